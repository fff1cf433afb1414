"""An outbox in the user's own SQLite file.

Calls go to one thread with one connection. Hints come from changes of the file itself, so that a
commit by any process, in any language, is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError
from pollwise.outbox.records import KeyClaim, KeySettlement, NewRecord
from pollwise.outbox.stores.base import OnDead, OutboxStore
from pollwise.outbox.stores.sqlite.calls import SqliteCalls
from pollwise.outbox.stores.walks import WalkedOutbox
from pollwise.outbox.writers.common import OutboxTarget
from pollwise.queues.base import MAX_PAYLOAD_BYTES
from pollwise.runtime.clock import Clock
from pollwise.runtime.hints import Hints
from pollwise.runtime.rollups.rows import HistoryRange, HistoryRow
from pollwise.storage.sqlite.file import file_path
from pollwise.storage.sqlite.file_hints import large_log_reporter
from pollwise.storage.sqlite.thread import SqliteThread, in_thread, in_thread_now
from pollwise.storage.sqlite.watched_database import Claimable, WatchedDatabase


class SqliteOutboxStore(WalkedOutbox, OutboxStore):
    """Records in a SQLite file, in tables that `await store.migrate()` creates.

    path: the database, which also holds the user's data.
    timeout: how long a call waits for the write lock before it raises StoreUnavailable.
    watch: how often a pause checks the file for changes where the kernel does not report them
        (Linux does); 0 turns hints from other connections off.

    The journal mode is not changed. `PRAGMA journal_mode = WAL` is recommended: without it, a relay
    that reads and an application that commits wait for each other.
    """

    def __init__(
        self,
        path: str | Path,
        name: str = "default",
        *,
        timeout: Duration = "5s",
        watch: Duration = "100ms",
        clock: Clock | None = None,
        keep: Duration | None = None,
        on_dead: OnDead = "block",
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
    ) -> None:
        self.path: Path = file_path(path, "shop.db")
        if str(path) == ":memory:":
            raise ConfigError(
                "path = ':memory:' is visible to one connection only, so no relay can see it; give "
                "a file"
            )
        self._watch = seconds(watch, "watch")
        self._calls = SqliteCalls(self.path, name, seconds(timeout, "timeout", positive=True))
        super().__init__(
            name, clock=clock, keep=keep, on_dead=on_dead, max_payload_bytes=max_payload_bytes
        )
        self._calls.on_large_log = large_log_reporter(self._hints, self.path)
        #: The newest record that a claim has seen, and whether the last one may have left some.
        self._known, self._left = 0, False
        self._thread = SqliteThread(self._calls, store=self.url, opened=self._hints.opened)
        self._call = self._thread.call

    @property
    def url(self) -> str:
        return f"sqlite:///{quote(str(self.path))}?outbox={quote(self.name, safe='')}"

    def target(self) -> OutboxTarget:
        return self._target(self.clock.imposed)

    def _target(self, now: Callable[[], float | None]) -> OutboxTarget:
        return OutboxTarget("sqlite", self.name, self.url, path=self._calls.path, now=now)

    async def migrate(self) -> list[int]:
        return await self._thread.call_alone(self._calls.migrate)

    def migration(self) -> str:
        return self._calls.migration()

    async def _put(self, records: list[NewRecord]) -> list[str]:
        now = self._epoch()
        return await self._call(self._calls.put, self._target(lambda: now), records)

    async def _claim(
        self, lane: str, relay: str, keys: int, per_key: int, lease: float
    ) -> list[KeyClaim]:
        claims, due, lanes, newest = await self._call(
            self._calls.claim, lane, relay, keys, per_key, lease, self._epoch()
        )
        self._known, self._left = max(self._known, newest), len(claims) == keys
        self._hint_when_due(due)
        if not lane:
            self.lanes = lanes
        return claims

    async def _settle(self, lane: str, ends: list[KeySettlement]) -> list[KeyClaim]:
        now, keep, block = self._epoch(), self.keep is not None, self.on_dead == "block"
        lost, more = await self._call(self._calls.settle, lane, ends, now, keep=keep, block=block)
        if more:
            self._more_behind(more)
        return lost

    relays: Final = in_thread_now(SqliteCalls.relays)
    forget_lanes: Final = in_thread(SqliteCalls.forget_lanes)
    _read_lanes = in_thread(SqliteCalls.lanes)
    _stats = in_thread_now(SqliteCalls.stats)
    _renew = in_thread_now(SqliteCalls.renew)
    _announce_handlers = in_thread_now(SqliteCalls.announce)
    _blocked = in_thread(SqliteCalls.blocked)
    _records = in_thread_now(SqliteCalls.records)
    _rows_of = in_thread_now(SqliteCalls.rows_of)
    _at = in_thread_now(SqliteCalls.at)
    _walk = in_thread_now(SqliteCalls.walk)
    _release = in_thread_now(SqliteCalls.release)
    _replay = in_thread_now(SqliteCalls.replay)
    _replayable = in_thread(SqliteCalls.replayable)
    _prune = in_thread_now(SqliteCalls.prune)

    async def _retry(
        self, lane: str, ids: Sequence[str] | None, keys: Sequence[str] | None, *, drop: bool
    ) -> int:
        keep, now = self.keep is not None, self._epoch()
        return await self._call(self._calls.retry, now, lane, ids, keys, drop=drop, keep=keep)

    async def _read_history(self, ranges: Sequence[HistoryRange]) -> list[list[HistoryRow]]:
        return await self._call(self._calls.history.read, ranges)

    async def _replace_history(self, old: Sequence[HistoryRow], new: Sequence[HistoryRow]) -> bool:
        return await self._call(self._calls.history.replace, old, new)

    async def close(self) -> None:
        if not self._thread.closed:
            await super().close()
            await self._thread.close()

    def _epoch(self) -> float:
        return self.clock.epoch()

    def _make_hints(self) -> Hints:
        return WatchedDatabase(self._calls.path, self._watch, self._anything_to_claim)

    async def _anything_to_claim(self) -> Claimable:
        """Called after the file has changed; also schedules a hint for the next due key."""
        newest, due = await self._call(self._calls.new_and_due)
        if due is not None and due > self._epoch():
            self._hint_when_due(due)
            due = None
        if newest > self._known or (due is not None and not self._left):
            return "new"
        return "backlog" if newest or due is not None else "nothing"
