"""The pages about workers: all of them, and one with its pace and its jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlencode

from pollwise.errors import PollwiseError
from pollwise.queues.notes import PauseInfo
from pollwise.queues.presence import PRESENCE_KEPT, WorkerInfo
from pollwise.queues.views import JobFilter
from pollwise.runtime.executor.starting import MAX_CONCURRENCY
from pollwise.runtime.jobs import NAME_LENGTH_MAX
from pollwise.runtime.rollups import HistoryPoint, series
from pollwise.web.charts import Series
from pollwise.web.live import Ask, MarkersInTurn, is_idle, wants_events
from pollwise.web.pages.job.page import source_of
from pollwise.web.pages.queues.attention import PROVING
from pollwise.web.sources import QueueSource, Remembered, ShownQueue
from pollwise.web.view import NotShown, Refused, View, Visit

#: How many workers, and how many jobs of a worker, a page shows.
PAGE = 50
JOBS_SHOWN = 25
#: How many queues the page of all workers sums up.
QUEUES_SHOWN = 24
#: The workers of how many queues are read; those of another one if it is chosen.
QUEUES_READ = 50
#: How far back the charts of a worker reach, and how long they are remembered, in seconds.
CHARTED = 3600.0
HISTORY_REMEMBERED = 10.0
#: How many workers' histories are remembered.
HISTORIES_REMEMBERED = 100
#: The longest text to search for, and the longest reason of a pause, in characters.
SEARCH_MAX = 200
WHY_MAX = 500


@dataclass(frozen=True, slots=True)
class ShownWorker:
    """A worker and the queue that it works for, as seen at a time.

    late: it has not written its record in time.
    hints: whether those of other processes arrive: "proven", "not proven", "being checked",
        "not checked" within a machine (SQLite), or "none" if the store has none.
    """

    source: QueueSource
    info: WorkerInfo
    late: bool
    hints: str

    @classmethod
    def of(cls, source: QueueSource, info: WorkerInfo, now: float) -> ShownWorker:
        late = info.seen_at < now - PRESENCE_KEPT
        if info.hints:
            return cls(source, info, late, "proven")
        reach = source.queue.capabilities.hints
        if reach != "network":
            return cls(source, info, late, "not checked" if reach == "machine" else "none")
        young = now - info.started_at < PROVING
        return cls(source, info, late, "being checked" if young else "not proven")


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A job that a worker runs. fraction: its progress, if it is known."""

    id: str
    kind: str
    since: float
    fraction: float | None = None


@dataclass(frozen=True, slots=True)
class WorkersOfQueue:
    """The workers of a queue, summed up."""

    source: QueueSource
    error: str | None
    count: int = 0
    busy: int = 0
    concurrency: int = 0
    fastest: float | None = None
    slowest: float | None = None
    pause: PauseInfo | None = None
    paused_kinds: tuple[str, ...] = ()


class WorkersView(View):
    """What the pages about workers share: their actions."""

    actions: ClassVar[Mapping[str, str]] = {
        "concurrency": "operate", "pause": "operate", "resume": "operate",
    }  # fmt: skip

    def shown_workers(self, workers: Sequence[tuple[QueueSource, WorkerInfo]]) -> list[ShownWorker]:
        now = self.web.sources.clock.epoch()
        return [ShownWorker.of(source, info, now) for source, info in workers]

    async def act(self, visit: Visit, action: str, form: Mapping[str, str]) -> str:
        slug = visit.path.get("slug") or form.get("queue", "")
        source = self.web.sources.queues.get(slug)
        if source is None:
            raise Refused(f"There is no queue {slug[:80]!r} here.")
        source.forget()
        if action == "pause":
            why = form.get("why", "").strip()[:WHY_MAX]
            await source.queue.pause(by=visit.viewer.who, why=why)
            return f"The queue {source.title} is paused. Running jobs go on to their end."
        if action == "resume":
            if not await source.queue.resume():
                raise Refused(f"The queue {source.title} was not paused as a whole.")
            return f"The queue {source.title} hands out jobs again."
        worker = visit.path.get("name") or form.get("worker", "")
        return await self._concurrency(source, worker, form.get("concurrency", ""))

    async def _concurrency(self, source: QueueSource, worker: str, wanted: str) -> str:
        if not (wanted.isascii() and wanted.isdigit() and len(wanted) <= 9):
            raise Refused(
                f"concurrency = {wanted[:40]!r} must be a whole number from 1 to {MAX_CONCURRENCY}."
            )
        count = await source.queue.set_concurrency(worker, int(wanted))
        whom = worker if count == 1 else f"{count} workers with the name {worker}"
        return (
            f"{whom} will run up to {int(wanted)} handlers at a time until the next restart. It "
            "takes effect within seconds, or within about a minute where hints do not arrive."
        )


class WorkersPage(WorkersView):
    """All workers of all queues."""

    name = "workers"
    path = "/workers"
    template = "workers/all.html"
    menu = "Workers"

    def __init__(self, web: Any) -> None:
        super().__init__(web)
        self._markers = MarkersInTurn()

    def shown(self) -> bool:
        return bool(self.web.sources.queues)

    def _queues(self, visit: Visit) -> list[QueueSource]:
        """The queues whose workers are read: the first ones, and the chosen one."""
        queues = self.web.sources.queues
        first = list(queues.values())[:QUEUES_READ]
        chosen = queues.get(visit.query.get("queue", ""))
        return first if chosen is None or chosen in first else [*first, chosen]

    async def marker(self, visit: Visit) -> Hashable:
        asks: dict[str, Ask] = {source.slug: source.marker for source in self._queues(visit)}
        return await self._markers.marker(visit, asks)

    async def context(self, visit: Visit) -> Mapping[str, Any]:
        sources, live = self._queues(visit), is_idle(visit)
        snapshots = await asyncio.gather(*(source.snapshot(live=live) for source in sources))
        found = list(zip(sources, snapshots, strict=True))
        text = visit.query.get("q", "").strip()[:SEARCH_MAX]
        chosen = visit.query.get("queue", "")
        chosen = chosen if chosen in self.web.sources.queues else ""
        matching = [
            (source, info)
            for source, snapshot in found
            if chosen in ("", source.slug)
            for info in snapshot.workers
            if matches(info, text)
        ]
        pages = max((len(matching) + PAGE - 1) // PAGE, 1)
        page = min(whole(visit.query.get("page", ""), 1), pages)
        queues = [summed_up(source, snapshot) for source, snapshot in found]
        agents = self.web.sources.controller_source()
        queues.sort(key=lambda each: (each.error is None, -each.count))
        return {
            "queues": queues[:QUEUES_SHOWN],
            "unread": len(self.web.sources.queues) - len(sources),
            "of_agents": None if agents is None else agents.shown,
            "more_queues": max(len(queues) - QUEUES_SHOWN, 0),
            "total": sum(each.count for each in queues),
            "total_busy": sum(each.busy for each in queues),
            "oldest_record": min(
                (each.seen_at for shown in snapshots for each in shown.workers), default=None
            ),
            "total_concurrency": sum(each.concurrency for each in queues),
            "workers": self.shown_workers(matching[(page - 1) * PAGE : page * PAGE]),
            "matching": len(matching),
            "page": page,
            "pages": pages,
            "q": text,
            "chosen": chosen,
            "filter": urlencode({"q": text, "queue": chosen}),
            "concurrency_max": MAX_CONCURRENCY,
        }


class OneWorkerPage(WorkersView):
    """One worker: what it runs, its pace, and its jobs."""

    name = "worker"
    path = "/queues/{slug}/workers/{name:path}"
    template = "workers/one.html"

    def __init__(self, web: Any) -> None:
        super().__init__(web)
        self._histories: dict[tuple[str, str], Remembered[list[HistoryPoint]]] = {}

    async def marker(self, visit: Visit) -> Hashable:
        source = source_of(visit)
        if not source.queue.capabilities.views:
            return await source.marker()
        try:
            return tuple(await runs_of(source, visit.path["name"]))
        except (PollwiseError, OSError) as error:
            return str(error)

    async def context(self, visit: Visit) -> Mapping[str, Any]:
        source, name = source_of(visit), visit.path["name"]
        snapshot = await source.snapshot(live=wants_events(visit.request))
        infos = [info for info in snapshot.workers if info.name == name]
        error, points, jobs, more = snapshot.error, [], [], False
        running = [ShownRun(run.id, run.kind, run.since) for info in infos for run in info.running]
        if error is None and 0 < len(name) <= NAME_LENGTH_MAX and name.isprintable():
            try:
                points = await self._history(source, name)
                if source.queue.capabilities.views:
                    running = await runs_of(source, name)
                    page = await source.queue.page(JobFilter(worker=name, limit=JOBS_SHOWN))
                    jobs, more = page.jobs, page.next is not None
            except (PollwiseError, OSError) as failed:
                error = str(failed)
        if not (infos or jobs or more or points or error):
            raise NotShown(
                f"There is no worker {name[:80]} of the queue {source.title}, and it left no jobs."
            )
        now = self.web.sources.clock.epoch()
        minutes = series(points, 60.0, now - CHARTED, now) if points else []
        return {
            "source": source,
            "name": name,
            "error": error,
            "instances": self.shown_workers([(source, info) for info in infos]),
            "pause": snapshot.paused.get(None),
            "points": minutes,
            "times": [each.at for each in minutes],
            "ended": [
                Series("done", [each.done for each in minutes], "green"),
                Series("failed", [each.failed for each in minutes], "red"),
            ],
            "keeps_history": source.queue.capabilities.history,
            "running": sorted(running, key=lambda run: run.since)[:PAGE],
            "running_max": PAGE,
            "jobs": jobs,
            "more_jobs": urlencode({"worker": name}) if more else "",
            "lists_jobs": source.queue.capabilities.views,
            "concurrency_max": MAX_CONCURRENCY,
        }

    async def _history(self, source: QueueSource, name: str) -> list[HistoryPoint]:
        if not source.queue.capabilities.history:
            return []
        known = (source.slug, name)
        if known not in self._histories:
            if len(self._histories) >= HISTORIES_REMEMBERED:
                self._histories.pop(next(iter(self._histories)))

            async def read() -> list[HistoryPoint]:
                return await source.queue.history(CHARTED, by="minute", worker=name)

            clock = self.web.sources.clock
            self._histories[known] = Remembered(read, clock, HISTORY_REMEMBERED)
        return await self._histories[known].get()


async def runs_of(source: QueueSource, worker: str) -> list[ShownRun]:
    """What a worker runs, as its queue knows it."""
    leased = await source.queue.page(JobFilter("leased", worker=worker, limit=PAGE))
    return [
        ShownRun(
            info.job.id,
            info.job.kind,
            info.claimed_at or info.since,
            None if info.progress is None else info.progress.fraction,
        )
        for info in leased.jobs
    ]


def summed_up(source: QueueSource, snapshot: ShownQueue) -> WorkersOfQueue:
    """The workers of a queue as one line."""
    workers = snapshot.workers
    intervals = [each.interval for each in workers if each.interval > 0]
    return WorkersOfQueue(
        source,
        snapshot.error,
        len(workers),
        sum(each.busy for each in workers),
        sum(each.concurrency for each in workers),
        min(intervals, default=None),
        max(intervals, default=None),
        snapshot.paused.get(None),
        tuple(kind for kind in snapshot.paused if kind is not None),
    )


def matches(info: WorkerInfo, text: str) -> bool:
    """True if a text is in the name or the host of a worker, or in one of its kinds."""
    wanted = text.lower()
    return (
        not wanted
        or wanted in info.name.lower()
        or wanted in info.host.lower()
        or any(wanted in kind.lower() for kind in info.kinds or ())
    )


def whole(text: str, default: int) -> int:
    """A positive whole number from an address, or the default."""
    return int(text) if text.isascii() and text.isdigit() and 0 < len(text) < 8 else default
