"""The page of a queue: its figures, its jobs by state with filters, its kinds and its workers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, ClassVar

from pollwise.errors import ConfigError, PollwiseError
from pollwise.queues.limits.use import WAITING_MAX
from pollwise.queues.presence import handlers_of, unhandled
from pollwise.queues.views import JobPage, Stats
from pollwise.runtime.jobs import STATES
from pollwise.runtime.rollups import HistoryPoint, by_kind
from pollwise.web.live import wants_events
from pollwise.web.pages.queues.attention import queue_concerns, sorted_concerns
from pollwise.web.pages.queues.bulk import BULK_LIMIT, change_all, change_selected
from pollwise.web.pages.queues.figures import charts_of, figures_of, pace_of
from pollwise.web.pages.queues.search import AGES, PAGE, JobSearch
from pollwise.web.sources import QueueSource, ShownQueue
from pollwise.web.view import NotShown, Refused, View, Visit

#: How many kinds, and how many workers, the page shows.
KINDS_MAX = 50
WORKERS_MAX = 10
#: By state, what can be done with its jobs; "" for jobs in different states.
OFFERED: Mapping[str, tuple[str, ...]] = {
    "": ("retry", "cancel", "drop"),
    "ready": ("cancel",),
    "delayed": ("cancel",),
    "blocked": ("cancel",),
    "leased": ("cancel",),
    "done": ("retry",),
    "dead": ("retry", "drop"),
    "cancelled": ("retry",),
}
#: The ranges of the charts, in words.
SPANS: Mapping[str, str] = {"1h": "1 hour", "24h": "24 hours", "7d": "7 days"}
#: How often a page is rendered again while it shows jobs that run, in seconds.
RUNNING_REDRAWN = 5.0
#: The longest reason for a pause, in characters.
WHY_MAX = 500


class QueuePage(View):
    """One queue."""

    name = "queue"
    path = "/queues/{slug}"
    template = "queue/page.html"
    actions: ClassVar[Mapping[str, str]] = {
        "retry": "operate", "drop": "operate", "cancel": "operate",
        "retry-all": "operate", "drop-all": "operate", "cancel-all": "operate",
        "pause": "operate", "resume": "operate", "close-breaker": "operate",
    }  # fmt: skip

    async def marker(self, visit: Visit) -> Hashable:
        """Changes with the counts; and every few seconds while the page shows jobs that run."""
        marker = await self._source(visit).marker()
        running = getattr(visit.request.state, "shows_running", False)
        return marker, running and self.web.sources.clock.now() // RUNNING_REDRAWN

    async def context(self, visit: Visit) -> Mapping[str, Any]:
        source = self._source(visit)
        can = source.queue.capabilities
        shown = await source.snapshot(live=wants_events(visit.request))
        found, wrong = JobPage([], None, 0), ""
        try:
            search = JobSearch.of(visit.query)
        except ConfigError as error:
            search, wrong = JobSearch(), f"This filter cannot be used: {error}."
        else:
            if not can.views:
                search = JobSearch(state="dead")
            if shown.stats is not None:
                try:
                    found = await _found(visit, source, search, shown)
                except (PollwiseError, OSError) as error:
                    wrong = str(error)
        now = self.web.sources.clock.epoch()
        span = search.span or "1h"
        past = await source.history(span, live=shown.unchanged)
        lately = past if span == "1h" else await source.history("1h", live=shown.unchanged)
        figures = figures_of(source, lately, shown.workers, now)
        return {
            "source": source,
            "can": can,
            "shown": shown,
            "concerns": sorted_concerns(list(queue_concerns(source, shown, lately, now))),
            "search": search,
            "found": found,
            "wrong": wrong,
            "tabs": tabs(shown.stats, search),
            "offered": OFFERED[search.state],
            "matching": matching(shown, search),
            "bulk_limit": BULK_LIMIT,
            "figures": figures,
            "pace": pace_of(shown.workers),
            "charts_shown": charts_of(past, span, now) if past else [],
            "span": span,
            "spans": SPANS,
            "kinds": kinds_shown(shown, by_kind(lately)),
            "kind_names": sorted({*shown.kinds, *([search.kind] if search.kind else [])}),
            "workers": shown.workers[:WORKERS_MAX],
            "ages": AGES,
            "page_size": PAGE,
            "limits": {"kinds": KINDS_MAX, "why": WHY_MAX},
            "waiting_max": WAITING_MAX,
        }

    async def act(self, visit: Visit, action: str, form: Mapping[str, str]) -> str:
        source = self._source(visit)
        try:
            if action == "close-breaker":
                return await self._close_breaker(source, form.get("kind", ""))
            if action in ("pause", "resume"):
                return await self._steer(visit, source, action, form)
            if action.endswith("-all"):
                search = JobSearch.of(visit.query)
                return await change_all(source.queue, action.removesuffix("-all"), search)
            ids = await visit.picked("id", PAGE)
            return await change_selected(source.queue, action, ids)
        finally:
            source.forget()

    async def _close_breaker(self, source: QueueSource, kind: str) -> str:
        if not await source.queue.breakers.close(kind):
            raise Refused(f"The breaker of kind {kind} was not open.")
        return f"Closed the breaker of kind {kind}. If its jobs fail again, it opens again."

    async def _steer(
        self, visit: Visit, source: QueueSource, action: str, form: Mapping[str, str]
    ) -> str:
        kind = form.get("kind") or None
        what = "the whole queue" if kind is None else f"kind {kind}"
        if action == "resume":
            if not await source.queue.resume(kind):
                raise Refused(f"{what.capitalize()} was not paused.")
            return f"Resumed {what}."
        why = form.get("why", "").strip()
        if len(why) > WHY_MAX:
            raise Refused(f"The reason has {len(why)} characters; at most {WHY_MAX}.")
        await source.queue.pause(kind, by=visit.viewer.who, why=why)
        return f"Paused {what}. Running jobs go on to their end."

    def _source(self, visit: Visit) -> QueueSource:
        slug = visit.path["slug"]
        try:
            return self.web.sources.queues[slug]
        except KeyError:
            raise NotShown(f"There is no queue {slug} here.") from None


async def _found(
    visit: Visit, source: QueueSource, search: JobSearch, shown: ShownQueue
) -> JobPage:
    """The page of jobs.

    A page that stays open reads it again when the counts changed, and while it shows running jobs.
    """
    if not source.queue.capabilities.views:
        return await source.dead()
    if search.job:
        info = await source.queue.get(search.job)
        return JobPage([] if info is None else [info], None, 1)
    state = visit.request.state
    before: tuple[Hashable, JobPage] | None = getattr(state, "jobs", None)
    if before is not None and before[0] == shown.marker and not state.shows_running:
        return before[1]
    found = await source.queue.page(search.filter())
    state.jobs = shown.marker, found
    state.shows_running = any(info.state == "leased" for info in found.jobs)
    return found


def tabs(stats: Stats | None, search: JobSearch) -> list[dict[str, Any]]:
    """The states with their counts, each a link to its jobs."""
    listed = [{"state": "", "text": "All", "count": None, "capped": False}]
    for state in STATES:
        count = None if stats is None else getattr(stats, state)
        capped = stats is not None and state in stats.capped
        listed.append(
            {"state": state, "text": state.capitalize(), "count": count, "capped": capped}
        )
    return [{**each, "current": each["state"] == search.state} for each in listed]


def matching(shown: ShownQueue, search: JobSearch) -> int | None:
    """How many jobs match a search by state and kind; None if that is not known."""
    if not search.state or search.narrow or shown.stats is None:
        return None
    counts = shown.kinds.get(search.kind) if search.kind else shown.stats
    if counts is None or search.state in counts.capped:
        return None
    return int(getattr(counts, search.state))


def kinds_shown(
    shown: ShownQueue, history: Mapping[str, HistoryPoint] | None = None
) -> list[dict[str, Any]]:
    """The kinds: those that nobody handles first, then those with the most work.

    history: what was done of each in the last hour.
    """
    did = history or {}
    broken = {each.kind: each for each in shown.breakers}
    lost = set(unhandled(shown.kinds, shown.workers))
    rows = [
        {
            "kind": kind,
            "counts": counts,
            "handlers": handlers_of(kind, shown.workers),
            "lost": kind in lost,
            "pause": shown.paused.get(kind),
            "breaker": broken.get(kind),
            "did": did.get(kind),
        }
        for kind, counts in shown.kinds.items()
    ]
    rows += [
        {
            "kind": kind,
            "counts": None,
            "handlers": handlers_of(kind, shown.workers),
            "lost": False,
            "pause": shown.paused.get(kind),
            "breaker": broken.get(kind),
            "did": did.get(kind),
        }
        for kind in {*shown.paused, *broken, *did} - {None, "", *shown.kinds}
        if kind
    ]

    def place(row: dict[str, Any]) -> tuple[Any, ...]:
        counts = row["counts"]
        busy = 0 if counts is None else counts.ready + counts.leased
        return not row["lost"], row["pause"] is None, -busy, row["kind"]

    return sorted(rows, key=place)
