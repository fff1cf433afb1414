"""A queue in Redis or Valkey: fast, many machines, hints by pub/sub.

Its durability is the server's: with an append-only file (`appendonly yes`) a put survives a
restart, with `appendfsync always` also a power cut; without it, a restart loses the queue. A
replica that takes over may lack the last moments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar
from urllib.parse import quote

from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError, MissingExtra
from pollwise.queues.base import MAX_PAYLOAD_BYTES, ClaimRequest, Queue
from pollwise.queues.capabilities import Capabilities
from pollwise.queues.flows.view import FlowJob
from pollwise.queues.limits.record import KindLimits
from pollwise.queues.limits.use import LimitUse
from pollwise.queues.notes import (
    NewNote,
    Note,
    NoteWritten,
    ScheduleSwap,
    ScheduleSwapped,
    Topic,
)
from pollwise.queues.viewed import DEAD
from pollwise.queues.views import COUNTED_MAX, JobFilter, JobPage, Stats
from pollwise.queues.waiting import JobEnding
from pollwise.runtime.clock import Clock
from pollwise.runtime.hints import Hints
from pollwise.runtime.jobs import (
    Claim,
    JobInfo,
    NewJob,
    Progress,
    Renewal,
    Settlement,
    State,
    checked_name,
)
from pollwise.runtime.rollups.rows import HistoryRange, HistoryRow
from pollwise.runtime.store import IDLE_WITHIN
from pollwise.storage.channel import HintChannel

try:
    from pollwise.queues.redis.server import check_server
    from pollwise.queues.redis.store import LAYOUT, RedisStore, tag_of
    from pollwise.storage.redis.connections import Connections, RedisAddress
    from pollwise.storage.redis.pubsub import RedisTransport
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "redis":
        raise
    raise MissingExtra("a queue in Redis", "redis") from error

#: The minimum time for which the server keeps an answer, in seconds.
KEEP_ANSWERS_MIN = 60.0


class RedisQueue(Queue):
    """Jobs in Redis or Valkey.

    url: redis://user:password@host:6379/0, rediss:// for TLS, or unix:///path/to/socket (which
        pollwise.open does not take).
    prefix: the beginning of all key names, in braces together with the queue's name.
    allow_eviction: accept a server that evicts keys when its memory is full.
    timeout: how long a call may take before it fails.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(hints="network")
    _hints_of_puts: ClassVar[bool] = True

    def __init__(
        self,
        url: str,
        name: str = "default",
        *,
        prefix: str = "pollwise",
        allow_eviction: bool = False,
        timeout: Duration = "30s",
        clock: Clock | None = None,
        keep: Duration | None = None,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
    ) -> None:
        self.prefix: str = checked_name(prefix, "prefix", ConfigError)
        self._address = RedisAddress(url, prefix)
        if "{" in prefix or "}" in prefix:
            raise ConfigError(
                f"prefix = {prefix!r} has a brace; braces mark the hash tag of a cluster, so "
                "leave them out"
            )
        time_limit = seconds(timeout, "timeout", positive=True)
        self._clock_of_calls = clock or Clock()
        tag = tag_of(prefix, checked_name(name, "queue", ConfigError))
        self._connections = Connections(
            self._address,
            self._clock_of_calls,
            time_limit,
            lambda calls: check_server(calls, tag, allow_eviction=allow_eviction),
        )
        self._store = RedisStore(
            self._connections,
            name,
            prefix=prefix,
            keep=None if keep is None else seconds(keep, "keep", positive=True),
            keep_answers=max(2 * time_limit, KEEP_ANSWERS_MIN),
        )
        super().__init__(
            name, clock=self._clock_of_calls, keep=keep, max_payload_bytes=max_payload_bytes
        )

    @property
    def url(self) -> str:
        query = f"queue={quote(self.name, safe='')}"
        if self.prefix != "pollwise":
            query += f"&prefix={quote(self.prefix, safe='')}"
        return f"{self._address}?{query}"

    async def _put(self, jobs: list[NewJob]) -> tuple[list[str], int]:
        kinds = {job.kind for job in jobs}
        message = self._channel.ride(len(jobs), kinds)
        ids, fresh = await self._store.put(jobs, self.clock.imposed(), message)
        if fresh and message is None:
            self._channel.send_to_others(fresh, kinds)
        return ids, fresh

    async def _claim(self, asked: ClaimRequest) -> list[Claim]:
        check = self._channel.check()
        within, self._poll_within = self._poll_within, None
        claims, due, counted = await self._store.claim(asked, self.clock.imposed(), check, within)
        if not claims:
            self._poll_within = IDLE_WITHIN
        others = () if asked.kinds is None else self._limited.difference(asked.kinds)
        self._limited = frozenset((*others, *(kind.decode() for kind in counted)))
        if due is not None:  # relative, so our clock may be wrong
            self._hints.send_at(self.clock.now() + due)
        return claims

    async def _settle(self, settlements: list[Settlement]) -> list[str]:
        return await self._store.settle(settlements, self.clock.imposed())

    async def _renew(
        self, claims: list[Claim], lease: float, progress: Mapping[str, Progress]
    ) -> Renewal:
        return await self._store.renew(claims, lease, progress, self.clock.imposed())

    async def _cancel(self, ids: Sequence[str]) -> dict[str, State]:
        return await self._store.cancel(ids, self.clock.imposed())

    async def stats(self, most: int = COUNTED_MAX) -> Stats:
        return await self._store.stats(self.clock.imposed())

    async def stats_by_kind(
        self, most: int = COUNTED_MAX, ready_most: int | None = None
    ) -> dict[str, Stats]:
        return await self._store.stats_by_kind(self.clock.imposed(), most)

    async def _find(self, job_id: str) -> JobInfo | None:
        return await self._store.get(job_id, self.clock.imposed())

    async def _arrivals(self, chosen: JobFilter) -> list[JobInfo]:
        return await self._store.arrivals(chosen, self.clock.imposed())

    async def _page(self, chosen: JobFilter) -> JobPage:
        return await self._store.page(chosen, self.clock.imposed())

    async def _retry(self, ids: Sequence[str] | None) -> int:
        return await self._store.retry(ids, self.clock.imposed())

    async def _compensated(self, ids: Sequence[str] | None) -> list[str]:
        return await self._store.compensated(ids, self.clock.imposed())

    async def _drop(self, ids: Sequence[str] | None, states: Sequence[State] = DEAD) -> int:
        return await self._store.drop(ids, states, self.clock.imposed())

    async def _prune(self, keep: float | None) -> int:
        return await self._store.prune(keep, self.clock.imposed())

    async def _write_note(self, note: NewNote) -> NoteWritten:
        return await self._store.notes.write(note, self.clock.imposed())

    async def _read_notes(self, topics: Sequence[Topic]) -> list[Note]:
        return await self._store.notes.read(topics, self.clock.imposed())

    async def _swap_schedule(self, swap: ScheduleSwap) -> ScheduleSwapped:
        return await self._store.notes.swap_schedule(swap, self.clock.imposed(), LAYOUT)

    async def _read_history(self, ranges: Sequence[HistoryRange]) -> list[list[HistoryRow]]:
        return await self._store.notes.read_history(ranges)

    async def _replace_history(self, old: Sequence[HistoryRow], new: Sequence[HistoryRow]) -> bool:
        return await self._store.notes.replace_history(old, new, self.clock.imposed())

    async def _limit_use(self, limits: KindLimits, groups: int) -> LimitUse:
        return await self._store.limit_use(limits, groups, self.clock.imposed())

    async def _endings(self, ids: Sequence[str]) -> dict[str, JobEnding | None]:
        return await self._store.endings(ids, self.clock.imposed())

    async def _predecessors(self, job_id: str) -> list[tuple[str, JobEnding | None]]:
        return await self._store.flows.predecessors(job_id, self.clock.imposed())

    async def _flow(self, job_id: str, most: int) -> list[FlowJob]:
        return await self._store.flows.flow(job_id, most, self.clock.imposed())

    async def close(self) -> None:
        if self._connections.closed:
            return
        try:
            await super().close()
        finally:
            await self._connections.close()

    def _make_hints(self) -> Hints:
        line = RedisTransport(
            self._address, self._store.channel, self._connections, self._clock_of_calls
        )
        self._channel = HintChannel(line, self._clock_of_calls)
        return self._channel
