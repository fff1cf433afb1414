"""A queue in a SQLite file: durable, for several processes on one machine, without a server.

Calls run in one thread with one connection. Hints inside the process come from `put` itself, hints
from other processes through a watched file.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError
from pollwise.queues.base import MAX_PAYLOAD_BYTES, Capabilities, ClaimRequest, Queue
from pollwise.queues.sqlite.store import SqliteStore
from pollwise.runtime.clock import Clock
from pollwise.runtime.hints import Hints
from pollwise.runtime.jobs import Claim
from pollwise.storage.sqlite.file import file_path
from pollwise.storage.sqlite.thread import SqliteThread, in_thread, in_thread_now
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
        self.path = file_path(path, "jobs.db")
        if synchronous not in SYNCHRONOUS:
            raise ConfigError(
                f"synchronous = {synchronous!r} is not one of {', '.join(SYNCHRONOUS)}"
            )
        self.synchronous = synchronous
        self._watch = seconds(watch, "watch")
        super().__init__(name, clock=clock, keep=keep, max_payload_bytes=max_payload_bytes)
        self._store = SqliteStore(
            self.path, name, synchronous=synchronous, create=create, keep=keep is not None
        )
        self._thread = SqliteThread(self._store, store=self.url, opened=self._hints.opened)

    @property
    def url(self) -> str:
        return f"sqlite:///{quote(str(self.path))}?queue={quote(self.name, safe='')}"

    async def _claim(self, asked: ClaimRequest) -> list[Claim]:
        claims, due = await self._thread.call(self._store.claim, asked, self.clock.epoch())
        self._hint_when_due(due)
        return claims

    get = in_thread_now(SqliteStore.get)
    stats = in_thread_now(SqliteStore.stats)
    stats_by_kind = in_thread_now(SqliteStore.stats_by_kind)
    _put = in_thread_now(SqliteStore.put)
    _settle = in_thread_now(SqliteStore.settle)
    _renew = in_thread_now(SqliteStore.renew)
    _cancel = in_thread_now(SqliteStore.cancel)
    _list_jobs = in_thread_now(SqliteStore.list_jobs)
    _retry = in_thread_now(SqliteStore.retry)
    _drop = in_thread(SqliteStore.drop)
    _prune = in_thread_now(SqliteStore.prune)

    async def close(self) -> None:
        if not self._thread.closed:
            await super().close()
            await self._thread.close()

    def _make_hints(self) -> Hints:
        return WatchedFile(self.path, self._watch)
