"""What needs attention: problems that the overview shows first, each with a link."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pollwise.errors import PollwiseError
from pollwise.queues.presence import unhandled
from pollwise.runtime.rollups import EMPTY, HistoryPoint, by_kind
from pollwise.web.sources import ANSWER_WITHIN, QueueSource, ShownQueue
from pollwise.web.texts import age, counted, one_line

if TYPE_CHECKING:
    from pollwise.web.controllers import ControllerSource
    from pollwise.web.pages.fleet.source import FleetSource, ShownFleet
    from pollwise.web.pages.outbox.source import OutboxSource, ShownOutbox

#: How many kinds or workers a line names.
NAMED_MAX = 3
#: A worker that is younger than this may still be proving its hints, in seconds.
PROVING = 90.0
#: A run may hang if it lasts this many times as long as 99 % of the others of its kind, and at
#: least this many seconds. The comparison needs at least this many others.
SLOW_TIMES, SLOW_MIN, SLOW_SAMPLE = 10.0, 60.0, 20
#: A schedule needs attention if its tick is overdue for longer than this, in seconds.
LATE_AFTER = 120.0
#: The tones, the most urgent first.
URGENCY = ("red", "amber", "blue")


@dataclass(frozen=True, slots=True)
class Concern:
    """Something that needs attention.

    tone: red for work that does not get done, amber for what an operator should know, blue for
        what costs only polls.
    where: what it is about. text: what is wrong. more: the reason, if there is one.
    page, parts, query: the page that shows it, for the template's `url`.
    """

    tone: Literal["red", "amber", "blue"]
    where: str
    text: str
    page: str
    parts: Mapping[str, str]
    query: Mapping[str, str] = field(default_factory=dict)
    more: str = ""
    anchor: str = ""


def sorted_concerns(concerns: list[Concern]) -> list[Concern]:
    """The most urgent first; else in the order of what they are about."""
    return sorted(concerns, key=lambda each: URGENCY.index(each.tone))


def queue_concerns(
    source: QueueSource, shown: ShownQueue, lately: Iterable[HistoryPoint], now: float
) -> Iterator[Concern]:
    """What needs attention in a queue. lately: its history of the last hours."""
    page, title = "queue", source.title
    parts = {"slug": source.slug}
    stats = shown.stats
    if stats is None:
        yield Concern(
            "red", title, "The store does not answer.", page, parts, more=shown.error or ""
        )
        return
    if stats.dead:
        text = f"{counted(stats.dead, 'dead job', 'dead' in stats.capped)}: retry or drop."
        yield Concern("red", title, text, page, parts, {"state": "dead"}, anchor="jobs")
    if (abandoned := shown.abandoned(now)) and not source.for_agents:
        holders = sorted({info.worker or "" for info in abandoned})
        last = max((info.claim.until for info in abandoned if info.claim), default=now)
        back = "It comes back when its lease ends"
        if len(abandoned) > 1:
            back = "They come back when their leases end"
        more = f"{back}, within {age(last - now)}." if last > now else ""
        text = f"{counted(len(abandoned), 'job')} held by {_named(holders)}, which no longer runs."
        yield Concern("amber", title, text, page, parts, {"state": "leased"}, more, "jobs")
    yield from _slow_runs(source, shown, lately, now)
    yield from _handler_concerns(source, shown)
    for kind, pause in shown.paused.items():
        what = "The whole queue is paused" if kind is None else f"Kind {kind} is paused"
        query, anchor = ({}, "") if kind is None else ({"kind": kind}, "kinds")
        by = f" by {pause.by}" if pause.by else ""
        since = now - pause.at
        text = f"{what}{by}, {'just now' if since < 1 else f'{age(since)} ago'}."
        why = one_line(pause.why, 90)
        yield Concern("amber", title, text, page, parts, query, why, anchor)
    broken = sorted(
        {kind for worker in shown.workers for kind in worker.breakers}
        | {each.kind for each in shown.breakers}
    )
    if broken:
        text = (
            f"Open breaker: workers do not claim {_named(broken)}, because handlers keep failing."
        )
        query = {"kind": broken[0]} if len(broken) == 1 else {}
        yield Concern("amber", title, text, page, parts, query, anchor="workers")
    late = {each.name: each.late(now) for each in shown.schedules if each.late(now) > LATE_AFTER}
    if late:
        text = f"{counted(len(late), 'late schedule')}: {_named(sorted(late, key=_by_name(late)))}."
        more = f"No worker has put a tick that was due {age(max(late.values()))} ago."
        yield Concern("red", title, text, "schedules", parts, more=more)
    yield from _hint_concerns(source, shown, now)


async def controller_concerns(controller: ControllerSource | None) -> list[Concern]:
    """What needs attention in a controller: jobs that no agent can take."""
    if controller is None:
        return []
    try:
        async with asyncio.timeout(ANSWER_WITHIN):
            stuck = [each for each in await controller.waiting() if each.waiting_for]
    except (PollwiseError, OSError):
        return []  # its own page says why
    if not stuck:
        return []
    jobs = sum(each.count for each in stuck)
    kinds = list(dict.fromkeys(each.kind for each in stuck))
    text = f"{counted(jobs, 'job')} that no agent can take: {_named(kinds)}."
    why = one_line(stuck[0].waiting_for, 120)
    return [Concern("red", "Controller", text, "controller", {}, more=f"{why.capitalize()}.")]


def outbox_concerns(source: OutboxSource, shown: ShownOutbox) -> Iterator[Concern]:
    """What needs attention in an outbox: blocked keys, dead records, and no relay."""
    where, parts, stats = f"Outbox {source.title}", {"slug": source.slug}, shown.stats
    if stats is None:
        text, more = "The store does not answer.", shown.error or ""
        yield Concern("red", where, text, "outbox", parts, more=more)
        return
    if stats.keys_blocked:
        text = f"{counted(stats.keys_blocked, 'blocked key')}: a dead record stands first."
        more = f"{counted(stats.behind, 'record')} behind." if stats.behind else ""
        yield Concern("red", where, text, "outbox", parts, more=more)
    elif stats.dead:
        text = f"{counted(stats.dead, 'dead record')}: retry or drop."
        yield Concern("red", where, text, "outbox", parts, {"state": "dead"}, anchor="records")
    if not shown.relays and stats.ready:
        text = f"No relay is running, with {counted(stats.ready, 'record')} to handle."
        yield Concern("red", where, text, "outbox", parts)


def fleet_concerns(source: FleetSource, shown: ShownFleet) -> Iterator[Concern]:
    """What needs attention in a fleet: alerts that nobody acknowledged, targets that are down or
    dead, and no polling node."""
    where, parts, counts = f"Fleet {source.title}", {"slug": source.slug}, shown.counts
    if counts is None:
        text, more = "The store does not answer.", shown.error or ""
        yield Concern("red", where, text, "fleet", parts, more=more)
        return
    unknown = [each for each in shown.alerts if each.acknowledged_at is None]
    if unknown:
        text = f"{counted(len(unknown), 'open alert', shown.more_alerts)}:"
        names = ", ".join(dict.fromkeys(one_line(each.target, 60) for each in unknown[:3]))
        more = f"{names}{', …' if len(unknown) > 3 else ''}"
        yield Concern("red", where, text, "alerts", parts, more=more)
    states = counts.states
    if states["open"]:
        text = f"{counted(states['open'], 'broken target')}: polls keep failing."
        yield Concern("red", where, text, "fleet", parts, {"state": "open"}, anchor="targets")
    if states["dead"]:
        text = f"{counted(states['dead'], 'dead target')}: polls failed for long."
        yield Concern("red", where, text, "fleet", parts, {"state": "dead"}, anchor="targets")
    if shown.nodes is not None and not shown.nodes and counts.total:
        text = f"No node polls its {counted(counts.total, 'target')}."
        yield Concern("red", where, text, "fleet", parts)


def _slow_runs(
    source: QueueSource, shown: ShownQueue, lately: Iterable[HistoryPoint], now: float
) -> Iterator[Concern]:
    """Runs that take many times as long as others of their kind, and may hang."""
    long = [info for info in shown.leased if now - (info.claimed_at or now) > SLOW_MIN]
    usual = by_kind(lately) if long else {}
    slow: dict[str, list[float]] = {}
    for info in long:
        lasted = now - (info.claimed_at or now)
        durations = usual[info.job.kind].durations if info.job.kind in usual else EMPTY
        limit = (durations.quantile(0.99) or 0.0) * SLOW_TIMES
        if durations.count >= SLOW_SAMPLE and lasted > limit:
            slow.setdefault(info.job.kind, []).append(lasted)
    for kind, lasting in slow.items():
        text = f"{counted(len(lasting), 'run')} of {kind}: not ended after {age(max(lasting))}."
        usually = age(usual[kind].durations.quantile(0.99))
        yield Concern(
            "amber", source.title, text, "queue", {"slug": source.slug},
            {"state": "leased", "kind": kind}, f"99 % of them take {usually} at most.", "jobs",
        )  # fmt: skip


def _handler_concerns(source: QueueSource, shown: ShownQueue) -> Iterator[Concern]:
    """Jobs that wait, and that no running worker can take."""
    if not source.queue.capabilities.presence or shown.stats is None or source.for_agents:
        return
    parts = {"slug": source.slug}
    waiting = shown.stats.ready
    if not shown.workers:
        if waiting:
            text = f"No worker is running, with {counted(waiting, 'job')} ready."
            yield Concern("red", source.title, text, "queue", parts, {"state": "ready"}, "", "jobs")
        return
    kinds = unhandled(shown.kinds, shown.workers)
    if kinds:
        text = f"No running worker handles {_named(kinds)}."
        query = {"kind": kinds[0]} if len(kinds) == 1 else {}
        yield Concern("red", source.title, text, "queue", parts, query, anchor="kinds")


def _hint_concerns(source: QueueSource, shown: ShownQueue, now: float) -> Iterator[Concern]:
    """Workers to which hints of other processes are not proven to arrive.

    Hints within a machine (SQLite) are never checked.
    """
    if source.queue.capabilities.hints != "network":
        return
    without = [w.name for w in shown.workers if not w.hints and now - w.started_at > PROVING]
    if without:
        text = (
            f"Hints are not proven for {_named(without)}: they poll at their strategy's own pace."
        )
        yield Concern("blue", source.title, text, "queue", {"slug": source.slug}, anchor="workers")


def _by_name(late: Mapping[str, float]) -> Callable[[str], tuple[float, str]]:
    """The order of late schedules: the latest first."""
    return lambda name: (-late[name], name)


def _named(names: list[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
