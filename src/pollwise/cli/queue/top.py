"""`pollwise queue top`: a live view of a queue: its kinds, its workers, and what they run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from pollwise.cli.live import fitted_table, watch
from pollwise.cli.options import Json
from pollwise.cli.output import NOTHING, out, print_json, print_wide, rounded, visible
from pollwise.cli.queue import steering
from pollwise.cli.queue.opening import Url, with_queue
from pollwise.cli.queue.text import counted
from pollwise.durations import seconds
from pollwise.errors import StoreError, Unsupported
from pollwise.queues.base import Queue
from pollwise.queues.notes import PauseInfo
from pollwise.queues.presence import WorkerInfo, handlers_of, unhandled
from pollwise.queues.views import JobFilter, Stats, summed
from pollwise.runtime.jobs import STATES, JobInfo

#: How often pauses and workers are read, in seconds: workers write their records once a minute.
NOTES_EVERY = 5.0
#: How many of the jobs that run are read for an update.
RUNNING_MAX = 100
#: A screen that is narrower than this shows fewer columns.
WIDE = 90
#: Lines of a table that are not rows: an empty one, the head, and how many more there are.
FRAME = 3

KINDS = ("kind", "ready", "delayed", "blocked", "leased", "dead", "oldest waits", "handled by")
KINDS_NARROW = ("kind", "ready", "leased", "dead", "handled by")
WORKERS = ("worker", "host", "busy", "up for", "seen", "polls", "kinds")
WORKERS_NARROW = ("worker", "busy", "seen", "kinds")
RUNNING = ("for", "job", "kind", "worker")
NUMERIC = ("ready", "delayed", "blocked", "leased", "dead", "oldest waits", "busy", "for")


@dataclass(frozen=True)
class QueueSnapshot:
    """A queue at one time.

    workers: None if the store does not know. leased: the jobs that run, at most `RUNNING_MAX`;
    None if the store cannot list them.
    """

    name: str
    now: float
    counts: Stats
    kinds: dict[str, Stats]
    pauses: dict[str | None, PauseInfo] = field(default_factory=dict)
    workers: list[WorkerInfo] | None = None
    leased: list[JobInfo] | None = None

    @property
    def running(self) -> list[tuple[float, str, str, str]]:
        """What runs, longest first: its start, the job's id and kind, and the worker's name.

        From the jobs; the records of workers, which may be a minute old, only where there is no
        list of jobs.
        """
        if self.leased is not None:
            return sorted(
                (each.claimed_at or each.since, each.job.id, each.job.kind, each.worker or NOTHING)
                for each in self.leased
            )
        return sorted(
            (job.since, job.id, job.kind, info.name)
            for info in self.workers or []
            for job in info.running
        )

    def busy(self, info: WorkerInfo) -> int:
        """How many handlers of a worker are busy: by its jobs if all are known, else its record."""
        same_name = sum(other.name == info.name for other in self.workers or [])
        if self.leased is None or len(self.leased) >= RUNNING_MAX or same_name > 1:
            return info.busy
        # Jobs that were claimed ahead have no handler yet.
        return min(sum(each.worker == info.name for each in self.leased), info.concurrency)

    @property
    def unhandled(self) -> list[str]:
        return [] if self.workers is None else unhandled(self.kinds, self.workers)

    def facts(self) -> dict[str, Any]:
        workers = self.workers
        return {
            "counts": self.counts.to_value(),
            "kinds": {kind: counts.to_value() for kind, counts in self.kinds.items()},
            "unhandled": self.unhandled,
            "paused": steering.pause_facts(self.pauses),
            "workers": None if workers is None else [info.to_value() for info in workers],
            "running": (
                None if self.leased is None else [*map(steering.running_facts, self.leased)]
            ),
        }


class QueueWatcher:
    """Takes snapshots: each time a count and what runs, now and then the pauses and workers."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._last: QueueSnapshot | None = None
        self._read_at = 0.0

    async def take(self) -> QueueSnapshot:
        queue, now = self._queue, self._queue.clock.now()
        counts, kinds = await self._count()
        last = self._last
        snapshot = QueueSnapshot(queue.name, queue.clock.epoch(), counts, kinds)
        if last is None or now >= self._read_at + NOTES_EVERY:
            pauses, workers = await steering.pauses_of(queue), await steering.workers_of(queue)
            self._read_at = now
        else:
            pauses, workers = last.pauses, last.workers
        leased = await self._leased() if counts.leased else []
        self._last = replace(snapshot, pauses=pauses, workers=workers, leased=leased)
        return self._last

    async def _leased(self) -> list[JobInfo] | None:
        with suppress(Unsupported, StoreError):
            return (await self._queue.page(JobFilter("leased", limit=RUNNING_MAX))).jobs
        return None

    async def _count(self) -> tuple[Stats, dict[str, Stats]]:
        """The counts of all jobs and of each kind, in one call; no kinds if the store has none."""
        with suppress(Unsupported):
            kinds = await self._queue.stats_by_kind()
            return summed(kinds.values()), kinds
        return await self._queue.stats(), {}


def top(
    url: Url,
    every: Annotated[str, typer.Option(help="The shortest time between two updates.")] = "1s",
    lasting: Annotated[
        str | None, typer.Option("--for", help="End after this time; by default, with q or Ctrl-C.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Watch a queue live: jobs by kind, workers, and what runs longest. q quits.

    Each update counts the jobs and lists up to 100 that run. If that takes long, updates are less
    frequent.

    Example: pollwise queue top sqlite:///jobs.db
    """
    pause = seconds(every, "every", positive=True)
    left = None if lasting is None else seconds(lasting, "for")
    if as_json or not out.is_terminal:
        snapshot = with_queue(url, lambda queue: QueueWatcher(queue).take())
        print_json(snapshot.facts()) if as_json else print_wide(frame(snapshot))
        return
    try:
        code = with_queue(
            url, lambda queue: watch(QueueWatcher(queue).take, fitting, max(pause, 0.1), left)
        )
    except KeyboardInterrupt:
        code = 0
    raise typer.Exit(code)


def fitting(snapshot: QueueSnapshot) -> RenderableType:
    """A view that fits the screen."""
    return frame(snapshot, out.size.height, out.size.width, live=True)


def frame(
    snapshot: QueueSnapshot,
    height: int | None = None,
    width: int | None = None,
    *,
    live: bool = False,
) -> RenderableType:
    """The whole view, on a screen of this size. live: a key ends it."""
    narrow = width is not None and width < WIDE
    workers = snapshot.workers or []
    running = snapshot.running
    kinds = sorted(snapshot.kinds, key=lambda kind: _waiting_first(kind, snapshot))
    parts: list[RenderableType] = [headline(snapshot), *_notices(snapshot, height)]
    left = None if height is None else height - len(parts) - live
    shares = _shares(left, len(kinds), len(workers), len(running))
    columns: Sequence[str]
    if kinds and shares[0]:
        columns = KINDS_NARROW if narrow else KINDS
        cells = [_kind_cells(kind, snapshot) for kind in kinds[: shares[0]]]
        parts += ["", fitted_table(columns, _chosen(cells, columns), NUMERIC)]
        parts += _more(len(kinds) - shares[0])
    if workers and shares[1]:
        columns = WORKERS_NARROW if narrow else WORKERS
        cells = [_worker_cells(info, snapshot) for info in workers[: shares[1]]]
        parts += ["", fitted_table(columns, _chosen(cells, columns), NUMERIC)]
        parts += _more(len(workers) - shares[1])
    if running and shares[2]:
        lines = [
            [Text(rounded(snapshot.now - since)), *(Text(visible(each)) for each in names)]
            for since, *names in running[: shares[2]]
        ]
        parts += ["", fitted_table(RUNNING, lines, NUMERIC)]
        parts += _more(len(running) - shares[2])
    if live:
        parts.append(Text("q quits", "dim"))
    return Group(*parts)


def _notices(snapshot: QueueSnapshot, height: int | None) -> list[Text]:
    """What is paused, and which kinds nobody handles; on a screen, at most a quarter of it."""
    cut: Any = {} if height is None else {"no_wrap": True, "overflow": "ellipsis"}
    notices = []
    if snapshot.unhandled:
        named = visible(", ".join(snapshot.unhandled))
        notices.append(Text(f"no running worker handles: {named}", "bold red", **cut))
    for kind, pause in snapshot.pauses.items():
        notices.append(Text(steering.pause_text(kind, pause), "yellow", **cut))
    return notices if height is None else notices[: max(height // 4, 1)]


def headline(snapshot: QueueSnapshot) -> Text:
    counts, workers = snapshot.counts, snapshot.workers
    styles = {"dead": "bold red", "leased": "green"}
    parts = [(visible(snapshot.name), "bold")]
    parts += [
        (f"{counted(counts, state)} {state}", styles.get(state, "") if number else "dim")
        for state in STATES
        if (number := getattr(counts, state)) or state in ("ready", "leased", "dead")
    ]
    if counts.oldest_age is not None:
        parts.append((f"oldest waits {rounded(counts.oldest_age)}", ""))
    if workers is not None:
        busy = f"{sum(map(snapshot.busy, workers))}/{sum(w.concurrency for w in workers)} busy"
        there = f"{len(workers)} worker{'' if len(workers) == 1 else 's'}"
        parts.append((f"{there}, {busy}" if workers else "no worker", "" if workers else "red"))
    text = Text(no_wrap=True, overflow="ellipsis")
    for place, (words, style) in enumerate(parts):
        text.append(" · " if place else "")
        text.append(words, style)
    return text


def _waiting_first(kind: str, snapshot: QueueSnapshot) -> tuple[object, ...]:
    counts = snapshot.kinds[kind]
    return kind not in snapshot.unhandled, -counts.ready - counts.leased, kind


def _shares(lines: int | None, *wanted: int) -> list[int]:
    """How many rows each table gets: the same for all, as long as it has more to show.

    On a low screen the last tables get none.
    """
    if lines is None:
        return list(wanted)
    shares = [0] * len(wanted)
    places = [place for place, want in enumerate(wanted) if want][: max(lines // (FRAME + 1), 0)]
    left = lines - FRAME * len(places)
    while left > 0 and any(shares[place] < wanted[place] for place in places):
        for place in places:
            if left > 0 and shares[place] < wanted[place]:
                shares[place] += 1
                left -= 1
    return shares


def _chosen(cells: Sequence[dict[str, Text]], columns: Sequence[str]) -> list[list[Text]]:
    return [[row[column] for column in columns] for row in cells]


def _more(count: int) -> list[RenderableType]:
    return [Text(f"… and {count} more", "dim")] if count > 0 else []


def _kind_cells(kind: str, snapshot: QueueSnapshot) -> dict[str, Text]:
    counts, workers = snapshot.kinds[kind], snapshot.workers
    paused = None in snapshot.pauses or kind in snapshot.pauses
    handlers = None if workers is None else handlers_of(kind, workers)
    age = counts.oldest_age
    cells: dict[str, Text] = {
        state: Text(counted(counts, state), _style(counts, state)) for state in STATES
    }
    cells["kind"] = Text(visible(kind), "yellow" if paused else "")
    cells["oldest waits"] = Text(NOTHING if age is None else rounded(age))
    if paused:
        cells["handled by"] = Text("paused", "yellow")
    elif handlers is None:
        cells["handled by"] = Text(NOTHING)
    else:
        count = f"{handlers} worker{'' if handlers == 1 else 's'}" if handlers else "nobody"
        cells["handled by"] = Text(count, "bold red" if kind in snapshot.unhandled else "")
    return cells


def _style(counts: Stats, state: str) -> str:
    if not getattr(counts, state):
        return "dim"
    return {"dead": "bold red", "leased": "green"}.get(state, "")


def _worker_cells(info: WorkerInfo, snapshot: QueueSnapshot) -> dict[str, Text]:
    busy, now = snapshot.busy(info), snapshot.now
    full = busy >= info.concurrency
    kinds = "any" if info.kinds is None else ", ".join(info.kinds)
    if info.breakers:
        kinds += f" (open breaker: {', '.join(info.breakers)})"
    if info.alone:
        kinds += f" (job {info.alone} runs alone)"
    return {
        "worker": Text(visible(info.name)),
        "host": Text(visible(info.host)),
        "busy": Text(f"{busy}/{info.concurrency}", "green" if full else ""),
        "up for": Text(rounded(now - info.started_at)),
        "seen": Text(f"{rounded(now - info.seen_at)} ago"),
        "polls": Text(visible(steering.pace_text(info))),
        "kinds": Text(visible(kinds), "red" if info.breakers else ""),
    }
