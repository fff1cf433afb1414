"""The state of a fleet in a SQLite file: for one node, without a server.

The file can also hold a queue: their tables are separate, and each migrates its own.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from pollwise.errors import ConfigError, StoreError
from pollwise.fleet.stores.base import (
    AUDIT_KEPT,
    NAME,
    FleetNode,
    FleetStore,
    SavedTarget,
    TargetOrder,
)
from pollwise.runtime.audit import AuditEntry
from pollwise.storage.sqlite.file import SqliteFile, transaction
from pollwise.storage.sqlite.thread import SqliteThread, in_thread

#: A run without a sign of life for this many seconds is over; and seconds between two signs.
RUN_LASTS = 30.0
SIGN_EVERY = 10.0
#: The runs of this process. Any other run with our process id was left by an earlier process: in a
#: container they often have the same id.
_OUR_RUNS: set[str] = set()


class _FleetTables(SqliteFile):
    """Blocking calls on one connection, made from one thread."""

    package = __package__
    version_table = "pollwise_fleet_schema"
    holds = "fleet"

    def __init__(self, path: Path, fleet: str, *, create: bool) -> None:
        # "normal": a power cut may lose the last second of state; those polls are repeated.
        super().__init__(path, synchronous="normal", create=create)
        self._fleet = fleet
        self._run = secrets.token_hex(8)
        self._entered = False

    def load(self, names: Sequence[str] | None = None) -> list[SavedTarget]:
        rows = self.connect().execute(self._sql["load"], (self._fleet,))
        wanted = None if names is None else set(names)
        return [
            SavedTarget(name, due, bool(paused), *rest, more=_plain(more))  # type: ignore[misc]
            for name, due, paused, *rest, more in rows
            if wanted is None or name in wanted
        ]

    def save(self, batch: Sequence[SavedTarget]) -> list[str]:
        rows = [
            (
                self._fleet, each.name, each.due, each.paused, each.state, each.failures,
                each.error, each.polled_at, each.succeeded_at, each.failed_at, each.changed_at,
                each.interval, json.dumps(dict(each.more), separators=(",", ":"), default=str),
            )
            for each in batch
        ]  # fmt: skip
        connection = self.connect()
        with transaction(connection):
            connection.executemany(self._sql["save"], rows)
        return []

    def remove(self, names: Sequence[str]) -> None:
        connection = self.connect()
        with transaction(connection):
            connection.executemany(self._sql["remove"], [(self._fleet, name) for name in names])

    def enter(self) -> None:
        connection = self.connect()
        pid, host, now = os.getpid(), socket.gethostname(), time.time()
        with transaction(connection):
            found = connection.execute(self._sql["run"], (self._fleet,)).fetchone()
            if found is not None and found[0] != self._run:
                run, their_pid, their_host, at = found
                # A run that was wrongly declared dead gives way: two would double every poll.
                if self._entered or _lives(run, their_pid, their_host, at, now):
                    raise StoreError(
                        f"another process (pid {their_pid}, host {their_host}) polls this store; "
                        "use Postgres for several nodes"
                    )
            row = (self._fleet, self._run, pid, host, now)
            connection.execute(self._sql["keep_run"], row)
        self._entered = True
        _OUR_RUNS.add(self._run)

    def leave(self) -> None:
        if self._entered:
            self._entered = False
            _OUR_RUNS.discard(self._run)
            connection = self.connect()
            with transaction(connection):
                connection.execute(self._sql["end_run"], (self._fleet, self._run))

    def close(self) -> None:
        try:
            self.leave()
        finally:
            super().close()

    def nodes(self) -> list[FleetNode] | None:
        connection = self.connect()
        found = connection.execute(self._sql["run"], (self._fleet,)).fetchone()
        if found is None:
            return []
        run, pid, host, at = found
        now = time.time()
        if not _lives(run, pid, host, at, now):
            return []
        [held] = connection.execute(self._sql["count"], (self._fleet,)).fetchone()
        return [FleetNode(f"{host}-{pid}", RUN_LASTS - (now - at), held)]

    def order(self, what: str, names: Sequence[str], by: str = "") -> None:
        connection = self.connect()
        with transaction(connection):
            rows = [(self._fleet, name, what, by) for name in names]
            connection.executemany(self._sql["order"], rows)

    def orders(self) -> list[TargetOrder]:
        connection = self.connect()
        whose = (self._fleet,)
        found = connection.execute(self._sql["orders"], whose).fetchall()
        if found:  # otherwise no write, which would block others
            with transaction(connection):
                found = connection.execute(self._sql["orders"], whose).fetchall()
                connection.execute(self._sql["clear_orders"], whose)
        return [TargetOrder(*row) for row in found]

    def settings(self) -> dict[str, Any]:
        rows = self.connect().execute(self._sql["settings"], (self._fleet,))
        return {key: json.loads(value) for key, value in rows}

    def keep_settings(self, changes: Mapping[str, Any]) -> None:
        connection = self.connect()
        with transaction(connection):
            for key, value in changes.items():
                if value is None:
                    connection.execute(self._sql["remove_setting"], (self._fleet, key))
                else:
                    row = (self._fleet, key, json.dumps(value))
                    connection.execute(self._sql["keep_setting"], row)

    def audit(self, entry: AuditEntry) -> None:
        connection, now = self.connect(), time.time()
        with transaction(connection):
            connection.execute(self._sql["prune_audit"], (self._fleet, now - AUDIT_KEPT))
            parts = (entry.who, entry.action, entry.what, entry.detail, entry.address)
            connection.execute(self._sql["audit"], (self._fleet, now, *parts))

    def list_audit(self, limit: int, before: int | None = None) -> list[AuditEntry]:
        newest = 2**63 - 1 if before is None else before
        rows = self.connect().execute(self._sql["list_audit"], (self._fleet, newest, limit))
        return [AuditEntry(*row) for row in rows]


class SqliteFleetStore(FleetStore):
    """State in a SQLite file.

    path: the database file; created if missing, unless `create` is off.
    fleet: name of the fleet; several fleets can share a file.
    """

    enter_every: ClassVar[float | None] = SIGN_EVERY

    def __init__(self, path: str | Path, fleet: str = NAME, *, create: bool = True) -> None:
        self.path = Path(path)
        if self.path.name in ("", ".."):
            raise ConfigError(f"path = {str(path)!r} is not a file name; give one like fleet.db")
        self.name = fleet
        self.url = f"sqlite:///{quote(str(self.path))}"
        if fleet != NAME:
            self.url += f"?fleet={quote(fleet, safe='')}"
        self._tables = _FleetTables(self.path, fleet, create=create)
        self._thread = SqliteThread(
            self._tables, name=f"pollwise-{self.path.name}", store=str(self.path)
        )

    async def close(self) -> None:
        await self._thread.close()

    load = in_thread(_FleetTables.load)
    save = in_thread(_FleetTables.save)
    remove = in_thread(_FleetTables.remove)
    enter = in_thread(_FleetTables.enter)
    leave = in_thread(_FleetTables.leave)
    nodes = in_thread(_FleetTables.nodes)
    order = in_thread(_FleetTables.order)
    orders = in_thread(_FleetTables.orders)
    settings = in_thread(_FleetTables.settings)
    keep_settings = in_thread(_FleetTables.keep_settings)
    audit = in_thread(_FleetTables.audit)
    list_audit = in_thread(_FleetTables.list_audit)


def _lives(run: str, pid: int, host: str, at: float, now: float) -> bool:
    """True if a run is alive. A time in the future counts as old too: the clock may have been
    set."""
    if abs(now - at) > RUN_LASTS:
        return False
    if host != socket.gethostname():
        return True
    if pid == os.getpid():
        return run in _OUR_RUNS
    if os.name != "posix":  # on Windows, os.kill would end the process
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # the process of another user
        return True
    return True


def _plain(text: str) -> dict[str, Any]:
    """The JSON object in a text; invalid JSON, written by hand, counts as empty."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
