"""Views of a queue in memory: counts, lists, records and flows."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from urllib.parse import quote

from pollwise.queues.base import Queue
from pollwise.queues.flows.view import FlowJob
from pollwise.queues.memory.flows import MemoryFlows
from pollwise.queues.memory.job import MemoryJob
from pollwise.queues.notes import MemoryNotes
from pollwise.queues.views import COUNTED_MAX, JobFilter, JobPage, Stats, page_of_list
from pollwise.queues.waiting import JobEnding
from pollwise.runtime.decoding import cut_text, decode_job, decode_result, is_cut
from pollwise.runtime.home import Home
from pollwise.runtime.jobs import STATES, Claim, Job, JobInfo, State
from pollwise.storage.ids import number_of, place_after


class MemoryViews(MemoryNotes, Queue):
    """The jobs of one queue, and how they are shown."""

    def __init__(self, name: str = "default", **options: object) -> None:
        super().__init__(name, **options)
        self._home = Home()
        self._records: dict[int, MemoryJob] = {}
        self._flows = MemoryFlows(self._records, self.keep)

    @property
    def url(self) -> str:
        return f"memory://?queue={quote(self.name, safe='')}"

    async def stats(self, most: int = COUNTED_MAX) -> Stats:
        return self._stats_of(self._records.values())

    async def stats_by_kind(
        self, most: int = COUNTED_MAX, ready_most: int | None = None
    ) -> dict[str, Stats]:
        kinds: dict[str, list[MemoryJob]] = {}
        for record in self._records.values():
            kinds.setdefault(record.kind, []).append(record)
        return {kind: self._stats_of(records) for kind, records in kinds.items()}

    def _stats_of(self, records: Iterable[MemoryJob]) -> Stats:
        now = self._now()
        counts = dict.fromkeys(STATES, 0)
        oldest = None
        for record in records:
            state = self._state_at(record, now)
            counts[state] += 1
            if state == "ready":
                oldest = record.run_at if oldest is None else min(oldest, record.run_at)
        return Stats.of(counts, None if oldest is None else max(now - oldest, 0.0))

    @staticmethod
    def _state_at(record: MemoryJob, now: float) -> State:
        over = record.state in ("delayed", "leased") and record.since <= now
        return "ready" if over else record.state

    async def _find(self, job_id: str) -> JobInfo | None:
        record = self._records.get(number_of(job_id))
        return None if record is None or self._expired(record) else self._info(record)

    def _expired(self, record: MemoryJob) -> bool:
        """True if it was kept for a result whose time is over."""
        return record.expires_at is not None and record.expires_at <= self._now()

    async def _predecessors(self, job_id: str) -> list[tuple[str, JobEnding | None]]:
        record = self._records.get(number_of(job_id))
        after = [str(each) for each in record.after] if record is not None else []
        endings = await self._endings(after)
        return [(each, endings.get(each)) for each in after]

    async def _flow(self, job_id: str, most: int) -> list[FlowJob]:
        found = self._records.get(number_of(job_id))
        if found is None or self._expired(found):
            return []
        members = [self._records[seq] for seq in islice(self._flows.members(found), most)]
        return [
            FlowJob(self._info(each, listed=True), tuple(map(str, each.after)), each.on_failure)
            for each in members
            if not self._expired(each)
        ]

    async def _page(self, chosen: JobFilter) -> JobPage:
        return await page_of_list(self._newest, chosen, self.clock.epoch())

    async def _newest(self, chosen: JobFilter) -> list[JobInfo]:
        page: list[JobInfo] = []
        after = None if chosen.after is None else place_after(chosen.after)
        for record in reversed(self._records.values()):
            if after is not None and record.seq >= after:
                continue
            info = self._info(record, listed=True)
            if (
                not self._expired(record)
                and chosen.state in (None, info.state)
                and (chosen.kinds is None or record.kind in chosen.kinds)
                and chosen.worker in (None, info.worker)
            ):
                page.append(info)
                if len(page) == chosen.limit:
                    break
        return page

    async def _arrivals(self, chosen: JobFilter) -> list[JobInfo]:
        after = place_after(chosen.after)
        later = (each for seq, each in self._records.items() if seq > after)
        found = (each for each in later if not self._expired(each))
        return [self._info(each, listed=True) for each in islice(found, chosen.limit)]

    def _now(self) -> float:
        """The time; refuses calls from a second thread, because nothing here is locked."""
        self._home.enter(self.url)
        return self.clock.epoch()

    def _job(self, record: MemoryJob, *, cut: bool = False) -> Job:
        decoded = decode_job("null" if cut else record.encoded)
        return Job(
            str(record.seq), self.name, record.kind, decoded.payload, record.key, record.priority,
            record.attempt, record.created_at, record.run_at, record.unique, record.headers,
            decoded.unreadable,
        )  # fmt: skip

    def _info(self, record: MemoryJob, *, listed: bool = False) -> JobInfo:
        payload = listed and is_cut(record.encoded)
        result = listed and is_cut(record.result)
        state, since = self._state_at(record, self._now()), record.since
        job, claim = self._job(record, cut=payload), None
        if state == "leased" and record.worker is not None:
            claim = Claim(job, record.token, record.worker, record.since)
            since = record.claimed_at or since
        info = JobInfo(
            job,
            state,
            since,
            record.worker,
            record.errors,
            record.claimed_at,
            record.progress,
            record.cancel,
            None if result else decode_result(record.result),
            claim,
        )
        if not payload and not result:
            return info
        return info.cut(
            cut_text(record.encoded) if payload else None,
            cut_text(record.result or "") if result else None,
        )
