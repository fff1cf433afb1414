"""A queue in a SQLite file: durable, for several processes on one machine, without a server.

Calls run in one thread with one connection. Hints inside the process come from `put` itself, hints
from other processes through a watched file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError
from pollwise.queues.base import MAX_PAYLOAD_BYTES, Capabilities, Queue, Stats
from pollwise.queues.sqlite.store import SqliteStore
from pollwise.runtime.clock import Clock
from pollwise.runtime.hints import Hints
from pollwise.runtime.jobs import Claim, JobInfo, NewJob, Settlement, State
from pollwise.storage.sqlite.thread import SqliteThread
from pollwise.storage.sqlite.watched_file import WatchedFile

#: full: a put survives a power cut. normal: it survives a crash of the process, but a power cut may
#: undo the last moments. off: as normal, but a power cut may damage the file.
SYNCHRONOUS = ("full", "normal", "off")


class SqliteQueue(Queue):
    """Jobs in a SQLite file.

    path: the database; created if missing, unless `create` is False.
    synchronous: "full" (a put survives a power cut), "normal" or "off".
    watch: how often a pause checks for hints of other processes, where the kernel cannot report
        them at once (Linux can); 0 ignores other processes.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(hints="machine")

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
        self.path = Path(path)
        if self.path.name in ("", ".."):
            raise ConfigError(f"path = {str(path)!r} is not a file name; give one such as jobs.db")
        if synchronous not in SYNCHRONOUS:
            raise ConfigError(
                f"synchronous = {synchronous!r} is not one of {', '.join(SYNCHRONOUS)}"
            )
        self.synchronous = synchronous
        self._watch = seconds(watch, "watch")
        super().__init__(name, clock=clock, keep=keep, max_payload_bytes=max_payload_bytes)
        self._store = SqliteStore(self.path, name, synchronous=synchronous, create=create)
        self._thread = SqliteThread(
            self._store,
            name=f"pollwise-{self.path.name}",
            store=self.url,
            opened=self._hints.opened,
        )
        self._call = self._thread.call

    @property
    def url(self) -> str:
        return f"sqlite:///{quote(str(self.path))}?queue={quote(self.name, safe='')}"

    async def _put(self, jobs: list[NewJob]) -> tuple[list[str], int]:
        return await self._call(self._store.put, jobs, self._epoch())

    async def _claim(
        self, worker: str, limit: int, lease: float, hold: float, kinds: Sequence[str] | None
    ) -> list[Claim]:
        claims: list[Claim]
        claims, due = await self._call(
            self._store.claim, worker, limit, lease, kinds, self._epoch()
        )
        self._hint_when_due(due)
        return claims

    async def _settle(self, settlements: list[Settlement]) -> list[str]:
        keep = self.keep is not None
        return await self._call(self._store.settle, settlements, self._epoch(), keep)

    async def _renew(self, claims: list[Claim], lease: float) -> list[str]:
        return await self._call(self._store.renew, claims, self._epoch() + lease)

    async def stats(self) -> Stats:
        return await self._call(self._store.stats, self._epoch())

    async def get(self, job_id: str) -> JobInfo | None:
        now = self._epoch()
        page = await self._call(lambda: self._store.page(now, job_id=job_id))
        return page[0] if page else None

    async def _list_jobs(
        self, state: State | None, kind: str | None, limit: int, after: str | None
    ) -> list[JobInfo]:
        now = self._epoch()
        return await self._call(
            lambda: self._store.page(now, state=state, kind=kind, limit=limit, after=after)
        )

    async def _retry(self, ids: Sequence[str] | None) -> int:
        return await self._call(self._store.retry, ids, self._epoch())

    async def _drop(self, ids: Sequence[str] | None) -> int:
        return await self._call(self._store.drop, ids)

    async def _prune(self, keep: float) -> int:
        return await self._call(self._store.prune, self._epoch() - keep)

    async def close(self) -> None:
        if not self._thread.closed:
            await super().close()
            await self._thread.close()

    def _epoch(self) -> float:
        return self.clock.epoch()

    def _make_hints(self) -> Hints:
        return WatchedFile(self.path, self._watch)
