"""The state of a fleet in a SQLite file: for one node, without a server.

The file can also hold a queue: their tables are separate, and each migrates its own.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import quote

from pollwise.alerts.notices import NOTICES_KEPT, outbox_of_alerts
from pollwise.errors import StoreError
from pollwise.fleet.stores.base import (
    AUDIT_KEPT,
    NAME,
    FleetNode,
    FleetStore,
    SavedTarget,
    SaveExtras,
    TargetOrder,
    TargetPage,
    in_order,
)
from pollwise.fleet.stores.paging import (
    OVERDUE,
    TargetCounts,
    TargetFilter,
    counts_from,
    cursor_after,
)
from pollwise.fleet.stores.sqlite.alerts import AlertTables
from pollwise.fleet.stores.sqlite.definitions import DefinitionRows
from pollwise.fleet.stores.sqlite.history import TargetHistoryTables, saved_from
from pollwise.outbox.stores.sqlite.store import SqliteOutboxStore
from pollwise.platforms.processes import may_be_alive
from pollwise.runtime.audit import AuditEntry
from pollwise.runtime.clock import Clock
from pollwise.storage.sqlite.file import file_path, transaction
from pollwise.storage.sqlite.thread import SqliteThread, in_thread, in_thread_now

#: A run without a sign of life for this many seconds is over; and seconds between two signs.
RUN_LASTS = 30.0
SIGN_EVERY = 10.0
#: JSON of a target's further state; made once, because each save of a target needs it.
_ENCODED = json.JSONEncoder(separators=(",", ":"), default=str).encode
#: The runs of this process. Any other run with our process id was left by an earlier process: in a
#: container they often have the same id.
_OUR_RUNS: set[str] = set()


class _FleetTables(AlertTables, TargetHistoryTables, DefinitionRows):
    """Blocking calls on one connection, made from one thread."""

    package = __package__
    version_table = "pollwise_fleet_schema"
    holds = "fleet"

    def __init__(self, path: Path, fleet: str, *, create: bool) -> None:
        # "normal": a power cut may lose the last second of state; those polls are repeated.
        super().__init__(path, synchronous="normal", create=create, fleet=fleet)
        self._fleet = fleet
        self._run = secrets.token_hex(8)
        self._entered = False

    def load(self, names: Sequence[str] | None = None) -> list[SavedTarget]:
        if names is None:
            rows = self._rows("load")
        else:
            rows = self._rows("load_some", names=json.dumps(list(names)))
        return [saved_from(*row) for row in rows]

    def page(self, chosen: TargetFilter) -> TargetPage:
        place, name = chosen.place
        if chosen.sort == "name" and not chosen.narrows:
            rows = self._rows("first_names", name=name, limit=chosen.limit + 1)
        else:
            rows = self._rows(
                "names",
                state=chosen.state,
                group=chosen.group,
                text=chosen.text,
                sort=chosen.sort,
                place=place,
                name=name,
                limit=chosen.limit + 1,
            )
        names = [name for _, name in rows[: chosen.limit]]
        return TargetPage(in_order(names, self.load(names)), cursor_after(rows, chosen.limit))

    def counts(self, now: float) -> TargetCounts:
        return counts_from(self._rows("counts", late=now - OVERDUE, ahead=now + OVERDUE))

    def pending(self, names: Sequence[str] | None = None) -> list[TargetOrder]:
        listed = None if names is None else json.dumps(list(names))
        return [TargetOrder(*row) for row in self._rows("pending", names=listed)]

    def save(
        self, now: float, batch: Sequence[SavedTarget], extras: SaveExtras | None = None
    ) -> list[str]:
        rows = [
            (
                self._fleet, each.name, each.due, each.paused, each.state, each.failures,
                each.error, each.polled_at, each.succeeded_at, each.failed_at, each.changed_at,
                each.interval, each.type, each.group,
                _ENCODED(dict(each.more)),
            )
            for each in batch
        ]  # fmt: skip
        with transaction(self.connect()):
            self.connect().executemany(self._sql["save"], rows)
            if extras is not None and (extras.alerts or extras.notices):
                self.keep_alerts(now, extras.alerts, extras.notices)
            if extras is not None and (extras.periods or extras.rollups):
                self.keep_history(extras.periods, extras.rollups)
        return []

    def remove(self, now: float, names: Sequence[str]) -> None:
        with transaction(self.connect()):
            self.forget_history(names)
            for name in names:
                self._change("remove", name=name)
                self._change("close_alerts_of", name=name, now=now)

    def enter(self, now: float) -> None:
        pid, host = os.getpid(), socket.gethostname()
        with transaction(self.connect()):
            for run, their_pid, their_host, at in self._rows("run"):
                # A run that was wrongly declared dead gives way: two would double every poll.
                if run != self._run and (
                    self._entered or _lives(run, their_pid, their_host, at, now)
                ):
                    raise StoreError(
                        f"another process (pid {their_pid}, host {their_host}) polls this store; "
                        "use Postgres for several nodes"
                    )
            self._change("keep_run", run=self._run, pid=pid, host=host, at=now)
        self._entered = True
        _OUR_RUNS.add(self._run)

    def leave(self) -> None:
        if self._entered:
            self._entered = False
            _OUR_RUNS.discard(self._run)
            with transaction(self.connect()):
                self._change("end_run", run=self._run)

    def close(self) -> None:
        try:
            self.leave()
        finally:
            super().close()

    def nodes(self, now: float) -> list[FleetNode] | None:
        return [
            FleetNode(f"{host}-{pid}", RUN_LASTS - (now - at), self._rows("count")[0][0])
            for run, pid, host, at in self._rows("run")
            if _lives(run, pid, host, at, now)
        ]

    def order(self, what: str, names: Sequence[str], by: str = "") -> None:
        with transaction(self.connect()):
            for name in names:
                self._change("order", name=name, what=what, by=by)

    def orders(self) -> list[TargetOrder]:
        found = self._rows("orders")
        if found:  # otherwise no write, which would block others
            with transaction(self.connect()):
                found = self._rows("orders")
                self._change("clear_orders")
        return [TargetOrder(*row) for row in found]

    def settings(self) -> dict[str, Any]:
        return {key: json.loads(value) for key, value in self._rows("settings")}

    def keep_settings(self, changes: Mapping[str, Any]) -> None:
        with transaction(self.connect()):
            for key, value in changes.items():
                if value is None:
                    self._change("remove_setting", key=key)
                else:
                    self._change("keep_setting", key=key, value=json.dumps(value))

    def audit(self, now: float, entry: AuditEntry) -> None:
        with transaction(self.connect()):
            self._change("prune_audit", before=now - AUDIT_KEPT)
            self._change("audit", now=now, **asdict(entry))

    def list_audit(self, limit: int, before: int | None = None) -> list[AuditEntry]:
        newest = 2**63 - 1 if before is None else before
        return [AuditEntry(*row) for row in self._rows("list_audit", before=newest, limit=limit)]


class SqliteFleetStore(FleetStore):
    """State in a SQLite file.

    path: the database file; created if missing, unless `create` is off.
    fleet: name of the fleet; several fleets can share a file.
    """

    keeps_history: ClassVar[bool] = True
    enter_every: ClassVar[float | None] = SIGN_EVERY
    keeps_alerts: ClassVar[bool] = True

    def __init__(
        self,
        path: str | Path,
        fleet: str = NAME,
        *,
        create: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.path: Path = file_path(path, "fleet.db")
        self.name = fleet
        self.url: str = f"sqlite:///{quote(str(self.path))}"
        if fleet != NAME:
            self.url += f"?fleet={quote(fleet, safe='')}"
        self._tables = _FleetTables(self.path, fleet, create=create)
        self.clock: Clock = clock or Clock()
        self._thread = SqliteThread(self._tables, store=str(self.path))

    async def close(self) -> None:
        await self._thread.close()

    def outbox(self) -> SqliteOutboxStore:
        return SqliteOutboxStore(
            self.path,
            outbox_of_alerts(self.name),
            clock=self.clock,
            keep=NOTICES_KEPT,
            on_dead="continue",
        )

    load: Final = in_thread(_FleetTables.load)
    save: Final = in_thread_now(_FleetTables.save)
    remove: Final = in_thread_now(_FleetTables.remove)
    alerts: Final = in_thread(_FleetTables.alerts)
    alerts_by_id: Final = in_thread(_FleetTables.alerts_by_id)
    acknowledge: Final = in_thread_now(_FleetTables.acknowledge)
    maintenance: Final = in_thread(_FleetTables.maintenance)
    keep_maintenance: Final = in_thread_now(_FleetTables.keep_maintenance)
    remove_maintenance: Final = in_thread(_FleetTables.remove_maintenance)
    page: Final = in_thread(_FleetTables.page)
    counts: Final = in_thread_now(_FleetTables.counts)
    pending: Final = in_thread(_FleetTables.pending)
    rollups: Final = in_thread(_FleetTables.rollups)
    spent: Final = in_thread(_FleetTables.spent)
    periods: Final = in_thread(_FleetTables.periods)
    enter: Final = in_thread_now(_FleetTables.enter)
    leave: Final = in_thread(_FleetTables.leave)
    nodes: Final = in_thread_now(_FleetTables.nodes)
    order: Final = in_thread(_FleetTables.order)
    orders: Final = in_thread(_FleetTables.orders)
    settings: Final = in_thread(_FleetTables.settings)
    keep_settings: Final = in_thread(_FleetTables.keep_settings)
    definitions: Final = in_thread(_FleetTables.definitions)
    definitions_version: Final = in_thread(_FleetTables.definitions_version)
    define: Final = in_thread_now(_FleetTables.define)
    audit: Final = in_thread_now(_FleetTables.audit)
    list_audit: Final = in_thread(_FleetTables.list_audit)


def _lives(run: str, pid: int, host: str, at: float, now: float) -> bool:
    """True if a run is alive. A time in the future counts as old too: the clock may have been
    set."""
    if abs(now - at) > RUN_LASTS:
        return False
    if host != socket.gethostname():
        return True
    if pid == os.getpid():
        return run in _OUR_RUNS
    return may_be_alive(pid)
