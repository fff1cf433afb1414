"""The state of a fleet in Postgres, shared by several nodes: each polls the targets it holds.

A node has one lease, on its own row, so a renewal writes one row however many targets it holds.
This object knows what its node holds from its claims: no node takes a target from another that is
alive, and a node that was wrongly declared dead learns it from its next renewal. Leases are
measured with the server's clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from pollwise.alerts.notices import NOTICES_KEPT, outbox_of_alerts
from pollwise.alerts.values import Alert, AlertFilter, AlertPage
from pollwise.alerts.windows import MaintenanceWindow
from pollwise.durations import Duration
from pollwise.errors import ConfigError, MissingExtra
from pollwise.fleet.locations.values import LOCATION
from pollwise.fleet.stores.base import (
    AUDIT_KEPT,
    NAME,
    TARGET_STATES,
    FleetNode,
    LeaseRenewal,
    SavedTarget,
    SaveExtras,
    TargetLease,
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
from pollwise.fleet.views import NAMES_MAX
from pollwise.runtime.audit import AuditEntry
from pollwise.runtime.clock import Clock

try:
    import psycopg  # noqa: F401
except ImportError as error:  # also if psycopg is installed without libpq
    raise MissingExtra("a fleet on Postgres", "postgres") from error

from pollwise.fleet.stores.postgres.alerts import AlertTables
from pollwise.fleet.stores.postgres.definitions import PostgresDefinitions
from pollwise.fleet.stores.postgres.history import (
    PostgresTargetHistory,
    history_params,
    saved_from,
)
from pollwise.fleet.stores.postgres.locations import PostgresLocations
from pollwise.outbox.stores.postgres.store import PostgresOutboxStore
from pollwise.storage.postgres.database import Database
from pollwise.storage.postgres.params import flags, number, numbers, text, texts
from pollwise.storage.postgres.schema import TableSet

TABLES = TableSet(__package__, "fleet_migrations", "pollwise fleet migrate", "fleet")
#: The longest name of a fleet or a node.
NAME_MAX = 255
CONNECTIONS = 2
#: The fields of a saved target, in the order of the statement, and how each is passed.
_SAVED: dict[str, Callable[[list[Any]], Any]] = {
    "name": texts, "token": numbers, "due": numbers, "paused": flags, "state": texts,
    "failures": numbers, "error": lambda errors: texts(map(_storable, errors)),
    "polled_at": numbers, "succeeded_at": numbers, "failed_at": numbers, "changed_at": numbers,
    "interval": numbers,
    "more": lambda every: texts(json.dumps(dict(more), default=str) for more in every),
    "type": texts, "group": lambda groups: texts(map(_storable, groups)),
}  # fmt: skip


class PostgresFleetStore(PostgresLocations, PostgresDefinitions, PostgresTargetHistory):
    """State of the fleet `name` in a Postgres database. `await store.migrate()` creates its tables.

    conninfo: for libpq: a URL, or `host=… dbname=…`.
    schema: schema of the tables; it can hold several fleets and queues.
    timeout: time limit of a call; a call that takes longer fails and is cancelled at the server.
    """

    shared: ClassVar[bool] = True
    keeps_alerts: ClassVar[bool] = True

    def __init__(
        self,
        conninfo: str,
        name: str = NAME,
        *,
        schema: str = "pollwise",
        timeout: Duration = "10s",
        clock: Clock | None = None,
    ) -> None:
        self.name: str = _checked_name(name, "fleet")
        self.database: Database = Database(
            conninfo,
            TABLES,
            self.name,
            schema=schema,
            timeout=timeout,
            connections=CONNECTIONS,
            clock=clock,
        )
        self.schema: str = self.database.schema
        self.url: str = self.database.url
        self._fleet = text(self.name)
        self._alerts = AlertTables(self.database, self.name)
        self._timeout = timeout
        self._id: int | None = None
        self._held: set[str] = set()

    # Migrating

    async def migrate(self) -> list[int]:
        outbox = self.outbox()
        try:
            await outbox.migrate()
        finally:
            await outbox.close()
        return await self.database.migrate()

    def migration(self) -> str:
        return f"{self.outbox().migration()}\n{self.database.migration()}"

    # State

    async def load(self, names: Sequence[str] | None = None) -> list[SavedTarget]:
        given = None if names is None else texts(names)
        return [
            saved_from(*row)
            for row in await self.database.rows("load", [self._fleet, given], safe=True)
        ]

    async def page(self, chosen: TargetFilter) -> TargetPage:
        place, name = chosen.place
        limit = number(chosen.limit + 1)
        if chosen.sort == "name" and not chosen.narrows:
            rows = await self.database.rows(
                "first_names", [self._fleet, text(name), limit], safe=True
            )
        else:
            wanted = [text(each) for each in (chosen.state, chosen.group, chosen.text, chosen.sort)]
            begins = [number(max(place, -1e300)), text(name)]
            rows = await self.database.rows(
                "names", [self._fleet, *wanted, *begins, limit], safe=True
            )
        names = [name for _, name in rows[: chosen.limit]]
        return TargetPage(in_order(names, await self.load(names)), cursor_after(rows, chosen.limit))

    async def counts(self) -> TargetCounts:
        params = [self._fleet, number(OVERDUE), self.database.now()]
        return counts_from(await self.database.rows("counts", params, safe=True))

    async def pending(self, names: Sequence[str] | None = None) -> list[TargetOrder]:
        listed = None if names is None else texts(names)
        rows = await self.database.rows("pending", [self._fleet, listed], safe=True)
        return [TargetOrder(*row) for row in rows]

    async def figures(self) -> dict[str, Any]:
        fleet = self._fleet
        params = [fleet, number(OVERDUE), self.database.now()]
        rows = await self.database.rows("figures", params, safe=True)
        targets, paused, never, overdue = (sum(row[n] for row in rows) for n in range(1, 5))
        counted = {row[0]: row[1] for row in rows}
        dead = await self.database.rows("dead", [fleet, number(NAMES_MAX)], safe=True)
        oldest = await self.database.rows("stalest", [fleet, self.database.now()], safe=True)
        return {
            "targets": targets,
            "paused": paused,
            "never": never,
            "overdue": overdue,
            "dead": counted.get("dead", 0),
            "states": {each: counted.get(each, 0) for each in TARGET_STATES},
            "dead_targets": [name for (name,) in dead],
            "stalest": oldest[0][0] if oldest else None,
            "staleness": max(oldest[0][1], 0.0) if oldest else None,
        }

    async def save(
        self, batch: Sequence[SavedTarget], extras: SaveExtras | None = None
    ) -> list[str]:
        more = bool(extras)
        if not batch and not more:
            return []
        columns = [
            passed([getattr(each, name) for each in batch]) for name, passed in _SAVED.items()
        ]
        # With a token, saving twice is harmless; what belongs to targets replaces what it repeats.
        params = [self._fleet, *columns]
        if extras is not None and more:
            params += self._alerts.params(extras.alerts, extras.notices)
            params += history_params(extras)
        rows = await self.database.rows("save_with_extras" if more else "save", params, safe=True)
        refused = [name for (name,) in rows]
        self._held.difference_update(refused)
        return refused

    async def remove(self, names: Sequence[str]) -> None:
        if names:
            params = [self._fleet, texts(names), self.database.now()]
            await self.database.rows("remove", params, safe=True)
            self._held.difference_update(names)

    async def close(self) -> None:
        await self.database.close()

    # Alerts

    def outbox(self) -> PostgresOutboxStore:
        return PostgresOutboxStore(
            self.database.conninfo,
            outbox_of_alerts(self.name),
            schema=self.schema,
            timeout=self._timeout,
            connections=CONNECTIONS,
            clock=self.database.clock,
            keep=NOTICES_KEPT,
            on_dead="continue",
        )

    async def alerts(self, chosen: AlertFilter) -> AlertPage:
        return await self._alerts.page(chosen)

    async def alerts_by_id(self, ids: Sequence[str]) -> list[Alert]:
        return await self._alerts.by_id(ids)

    async def acknowledge(self, ids: Sequence[str], by: str, note: str = "") -> list[Alert]:
        return await self._alerts.acknowledge(ids, by, note)

    async def maintenance(self) -> list[MaintenanceWindow]:
        return await self._alerts.maintenance()

    async def keep_maintenance(self, window: MaintenanceWindow) -> None:
        await self._alerts.keep_maintenance(window)

    async def remove_maintenance(self, id: str) -> bool:
        return await self._alerts.remove_maintenance(id)

    # Nodes

    async def claim(
        self, node: str, names: Sequence[str], limit: int, lease: float
    ) -> list[TargetLease]:
        if self._id is None:
            await self.renew(node, lease)
        whose, now = number(self._id or 0), self.database.now()
        params = [self._fleet, whose, texts(names), number(limit), number(lease), now]
        rows = await self.database.rows("claim", params)
        leases = [
            TargetLease(name, token, lease, saved_from(name, *rest)) for name, token, *rest in rows
        ]
        self._held.update(each.name for each in leases)
        return leases

    async def renew(self, node: str, lease: float, location: str = LOCATION) -> LeaseRenewal:
        _checked_name(node, "node")
        known = None if self._id is None else number(self._id)
        params = [
            self._fleet, text(node), known, number(lease), text(location), self.database.now(),
        ]  # fmt: skip
        rows = await self.database.rows("renew", params, safe=True)
        [(known_as, nodes, free, ends, locations)] = rows
        if known_as != self._id:  # the node is new or its lease expired, so it holds nothing
            self._id = known_as
            self._held.clear()
        living = frozenset(json.loads(locations))
        return LeaseRenewal(frozenset(self._held), nodes, free, ends, living)

    async def give_back(self, node: str, names: Sequence[str] | None = None) -> None:
        if self._id is None or (names is not None and not names):
            return
        given = None if names is None else texts(names)
        await self.database.rows("give_back", [self._fleet, number(self._id), given], safe=True)
        if names is None:
            self._held.clear()
            self._id = None
        else:
            self._held.difference_update(names)

    async def nodes(self) -> list[FleetNode]:
        rows = await self.database.rows("nodes", [self._fleet, self.database.now()], safe=True)
        return [FleetNode(*row) for row in rows]

    # Orders and settings

    async def order(self, what: str, names: Sequence[str], by: str = "") -> None:
        asker = text(_storable(by) or "")
        await self.database.rows(
            "order", [self._fleet, texts(names), text(what), asker, self.database.now()]
        )

    async def orders(self) -> list[TargetOrder]:
        if self._id is None:
            return []
        rows = await self.database.rows(
            "orders", [self._fleet, number(self._id), self.database.now()]
        )
        return [TargetOrder(*row) for row in rows]

    async def settings(self) -> dict[str, Any]:
        rows = await self.database.rows("settings", [self._fleet], safe=True)
        return {key: json.loads(value) for key, value in rows}

    async def keep_settings(self, changes: Mapping[str, Any]) -> None:
        values = [None if value is None else json.dumps(value) for value in changes.values()]
        params = [self._fleet, texts(changes), texts(values), self.database.now()]
        await self.database.rows("keep_settings", params, safe=True)

    async def audit(self, entry: AuditEntry) -> None:
        parts = (entry.who, entry.action, entry.what, entry.detail, entry.address)
        texts_of = [text(_storable(each) or "") for each in parts]
        await self.database.rows(
            "audit", [self._fleet, *texts_of, number(AUDIT_KEPT), self.database.now()]
        )

    async def list_audit(self, limit: int, before: int | None = None) -> list[AuditEntry]:
        newest = 2**63 - 1 if before is None else before
        params = [self._fleet, number(newest), number(limit)]
        rows = await self.database.rows("list_audit", params, safe=True)
        return [AuditEntry(*row) for row in rows]


def _storable(said: str | None) -> str | None:
    """Text that Postgres accepts: without NUL characters and lone surrogates."""
    if said is None or (said.isascii() and "\0" not in said):
        return said
    return said.replace("\0", "\\x00").encode(errors="backslashreplace").decode()


def _checked_name(name: object, what: str) -> str:
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= NAME_MAX:
        raise ConfigError(
            f"{what} = {name!r} must be a printable name of 1 to {NAME_MAX} characters"
        )
    return name
