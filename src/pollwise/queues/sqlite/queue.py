"""A queue in a SQLite file: durable, for several processes on one machine, without a server.

Calls run in one thread with one connection; puts of a few jobs that need not wait for the disk, or
for others, are made in the calling thread. Hints inside the process come from `put` itself, hints
from other processes through a watched file.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import quote

from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError
from pollwise.queues.base import MAX_PAYLOAD_BYTES, ClaimRequest, Queue
from pollwise.queues.capabilities import Capabilities
from pollwise.queues.sqlite.store import SqliteStore
from pollwise.runtime.clock import Clock
from pollwise.runtime.hints import Hints
from pollwise.runtime.jobs import Claim, NewJob
from pollwise.runtime.rollups.rows import HistoryRange, HistoryRow
from pollwise.storage.sqlite.file import FileBusy, file_path
from pollwise.storage.sqlite.file_hints import large_log_reporter
from pollwise.storage.sqlite.thread import SqliteThread, in_thread, in_thread_now
from pollwise.storage.sqlite.watched_file import WatchedFile

#: full: a put survives a power cut. normal: it survives a crash of the process, but a power cut may
#: undo the last moments. off: as normal, but a power cut may damage the file.
SYNCHRONOUS = ("full", "normal", "off")


#: The maximum number of jobs that are put in the calling thread.
HERE_JOBS = 10
#: The maximum size of their payloads together, in bytes.
HERE_BYTES = 64 * 1024
#: How long a blocking put waits for others before it leaves the work to the thread, in seconds.
HERE_WITHIN = 0.01
#: After this many puts in the event loop, other tasks get a turn.
YIELD_EVERY = 10
#: Puts are left to the thread for this many seconds when another process writes, or when many tasks
#: put at once: the thread then makes them in one transaction.
IN_THREAD_FOR = 0.05
#: How many tasks that put at once count as many.
PUTS_AT_ONCE = 5


class SqliteQueue(Queue):
    """Jobs in a SQLite file.

    path: the database; created if missing, unless `create` is False.
    synchronous: "full" (a put survives a power cut), "normal" or "off".
    watch: how often a pause checks for hints of other processes, where the kernel cannot report
        them at once (Linux can); 0 ignores other processes.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(hints="machine")
    one_loop = False

    def __init__(
        self,
        path: str | Path,
        name: str = "default",
        *,
        synchronous: str = "full",
        watch: Duration = "100ms",
        create: bool = True,
        clock: Clock | None = None,
        keep: Duration | None = None,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
    ) -> None:
        self.path: Path = file_path(path, "jobs.db")
        if synchronous not in SYNCHRONOUS:
            raise ConfigError(
                f"synchronous = {synchronous!r} is not one of {', '.join(SYNCHRONOUS)}"
            )
        self.synchronous = synchronous
        self._watch = seconds(watch, "watch")
        super().__init__(name, clock=clock, keep=keep, max_payload_bytes=max_payload_bytes)
        self._store = SqliteStore(
            self.path, name, synchronous=synchronous, create=create, keep=self.keep,
            clock=self.clock.epoch,
        )  # fmt: skip
        self._store.on_large_log = large_log_reporter(self._hints, self.path)
        self._puts_here = 0
        self._in_thread_until = 0.0
        self._thread = SqliteThread(self._store, store=self.url, opened=self._hints.opened)

    @property
    def url(self) -> str:
        return f"sqlite:///{quote(str(self.path))}?queue={quote(self.name, safe='')}"

    async def _claim(self, asked: ClaimRequest) -> list[Claim]:
        claims, due = await self._thread.call(self._store.claim, asked, self.clock.epoch())
        self._limited = self._store.limited
        self._hint_when_due(due)
        return claims

    async def _put(self, jobs: list[NewJob]) -> tuple[list[str], int]:
        # Without a wait for the disk, the way to the thread and back takes longer than the put.
        if self.synchronous == "off" and time.monotonic() >= self._in_thread_until:
            self._puts_here = count = self._puts_here + 1
            if count % YIELD_EVERY == 0:
                await asyncio.sleep(0)  # puts in a loop must not keep the event loop for themselves
            try:
                at_once = self._puts_here - count
                made = None if at_once >= PUTS_AT_ONCE else self._put_here(jobs, 0.0)
            except FileBusy:
                made, at_once = None, PUTS_AT_ONCE
            if made is not None:
                return made
            if at_once >= PUTS_AT_ONCE:
                self._in_thread_until = time.monotonic() + IN_THREAD_FOR
        return await self._put_in_thread(jobs)

    def put_here(self, jobs: list[NewJob], loop: asyncio.AbstractEventLoop) -> list[str] | None:
        # Puts that wait for the disk at the same time should share one wait: in the thread they do.
        made = None
        with suppress(FileBusy):
            made = self._put_here(jobs, 0.0 if self.synchronous == "full" else HERE_WITHIN)
        if made is None:
            return None
        ids, fresh = made
        if fresh:
            self._hints.send_to_others(fresh)
        return ids

    def _put_here(self, jobs: list[NewJob], patience: float) -> tuple[list[str], int] | None:
        """Put a few jobs in this thread; None or `FileBusy` if that cannot be done at once."""
        if len(jobs) > HERE_JOBS or sum([job.size for job in jobs]) > HERE_BYTES:
            return None
        now = self.clock.epoch()
        made = self._thread.call_here(patience, SqliteStore.put, self._store, now, jobs)
        return None if made is None else made[0]

    _find = in_thread_now(SqliteStore.get)
    stats: Final = in_thread_now(SqliteStore.stats)
    stats_by_kind: Final = in_thread_now(SqliteStore.stats_by_kind)
    _put_in_thread = in_thread_now(SqliteStore.put)
    _settle = in_thread_now(SqliteStore.settle)
    _renew = in_thread_now(SqliteStore.renew)
    _cancel = in_thread_now(SqliteStore.cancel)
    _arrivals = in_thread_now(SqliteStore.arrivals)
    _page = in_thread_now(SqliteStore.page)
    _page_ids = in_thread_now(SqliteStore.page_ids)
    _names = in_thread(SqliteStore.names)
    _retry = in_thread_now(SqliteStore.retry)
    _drop = in_thread_now(SqliteStore.drop)
    _prune = in_thread_now(SqliteStore.prune)
    _write_note = in_thread_now(SqliteStore.write_note)
    _read_notes = in_thread_now(SqliteStore.read_notes)
    _swap_schedule = in_thread_now(SqliteStore.swap_schedule)
    _endings = in_thread_now(SqliteStore.endings)
    _limit_use = in_thread_now(SqliteStore.limit_use)
    _predecessors = in_thread_now(SqliteStore.predecessors)
    _flow = in_thread_now(SqliteStore.flow)

    async def _compensated(self, ids: Sequence[str] | None) -> list[str]:
        return await self._thread.call(self._store.flows.compensated, ids)

    async def _read_history(self, ranges: Sequence[HistoryRange]) -> list[list[HistoryRow]]:
        return await self._thread.call(self._store.history.read, ranges)

    async def _replace_history(self, old: Sequence[HistoryRow], new: Sequence[HistoryRow]) -> bool:
        return await self._thread.call(self._store.history.replace, old, new)

    async def close(self) -> None:
        if not self._thread.closed:
            await super().close()
            await self._thread.close()

    def _make_hints(self) -> Hints:
        return WatchedFile(self.path, self._watch)
