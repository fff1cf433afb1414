"""The state of a fleet in Postgres, shared by several nodes: each polls the targets it holds.

A node has one lease, on its own row, so a renewal is one row written however much it holds. What it
holds is known here from its claims: nobody takes a target from a node that lives, and one that was
taken for dead learns it from its next renewal. The server's clock decides over leases.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from pollux.clock import Clock
from pollux.durations import Duration, seconds
from pollux.errors import ConfigError, MissingExtra, SchemaError
from pollux.fleet.store import CONDITIONS, FleetStore, Lease, Renewal, Saved
from pollux.fleet.views import NAMES_MAX
from pollux.queues.sql import statements

try:
    import psycopg  # noqa: F401
except ImportError as error:  # also where it is installed without the library that it needs
    raise MissingExtra("a fleet on Postgres", "postgres") from error

from pollux.queues.postgres_connections import Connections
from pollux.queues.postgres_conninfo import checked, completed, shown
from pollux.queues.postgres_errors import migrating_error
from pollux.queues.postgres_params import Param, flags, number, numbers, text, texts
from pollux.queues.postgres_schema import (
    Tables,
    check_isolation,
    check_version,
    checked_schema,
    quoted,
    script,
)

TABLES = Tables("fleet_postgres", "fleet_migrations", "pollux fleet migrate", "fleet")
#: The longest name of a fleet or a node.
NAME_MAX = 255
CONNECTIONS = 2


class Node(NamedTuple):
    """A node that takes part: how much it holds, and for how many seconds more."""

    name: str
    lasts: float
    held: int


class PostgresFleetStore(FleetStore):
    """State of the fleet `name` in a Postgres database. `await store.migrate()` makes its tables.

    conninfo: as libpq takes it: a URL, or `host=… dbname=…`.
    schema: where the tables are; one may hold many fleets, and queues.
    timeout: how long a call may take; one that takes longer fails and is cancelled at the server.
    """

    shared: ClassVar[bool] = True

    def __init__(
        self,
        conninfo: str,
        name: str = "fleet",
        *,
        schema: str = "pollux",
        timeout: Duration = "10s",
        clock: Clock | None = None,
    ) -> None:
        self.name = _checked_name(name, "fleet")
        self.schema = checked_schema(schema)
        self.clock = clock or Clock()
        parts = checked(conninfo, "conninfo")
        self.url = shown(parts, self.name, self.schema, "fleet")
        self._connections = Connections(
            completed(parts),
            self.url,
            self.clock,
            timeout=seconds(timeout, "timeout", positive=True),
            most=CONNECTIONS,
        )
        self._sql = {
            each: statement.replace("{schema}", quoted(schema)).encode()
            for each, statement in statements(TABLES.folder).items()
        }
        self._fleet = text(self.name)
        self._version_fits = False
        self._id: int | None = None
        self._held: set[str] = set()

    # Migrating

    async def migrate(self) -> list[int]:
        """Make the tables, or renew them; the versions that were applied."""
        before = await self._versions()
        if before and max(before) >= TABLES.newest:
            check_version(max(before), self.schema, self.url, TABLES)
            return []
        await self._connections.script(script(self.schema, TABLES), told=migrating_error)
        return sorted(set(await self._versions()) - set(before))

    def migration(self) -> str:
        """What `migrate` would run, as SQL."""
        return script(self.schema, TABLES)

    async def _versions(self) -> list[int]:
        try:
            rows = await self._connections.rows(self._sql["versions"], safe=True)
        except SchemaError:
            return []
        return [version for (version,) in rows]

    # State

    async def load(self, names: Sequence[str] | None = None) -> list[Saved]:
        given = None if names is None else texts(names)
        return [_saved(*row) for row in await self._rows("load", [self._fleet, given], safe=True)]

    async def figures(self) -> dict[str, Any]:
        """How the targets of all nodes fare together, counted by the server."""
        fleet = self._fleet
        [(targets, paused, never)] = await self._rows("figures", [fleet], safe=True)
        counted = dict(await self._rows("conditions", [fleet], safe=True))
        dead = await self._rows("dead", [fleet, number(NAMES_MAX)], safe=True)
        oldest = await self._rows("stalest", [fleet, self._now()], safe=True)
        return {
            "targets": targets,
            "paused": paused,
            "never": never,
            "dead": counted.get("dead", 0),
            "conditions": {each: counted.get(each, 0) for each in CONDITIONS},
            "dead_letters": [name for (name,) in dead],
            "stalest": oldest[0][0] if oldest else None,
            "staleness": max(oldest[0][1], 0.0) if oldest else None,
        }

    async def save(self, batch: Sequence[Saved]) -> list[str]:
        if not batch:
            return []
        rows = await self._rows(
            "save",
            [
                self._fleet,
                texts([each.name for each in batch]),
                numbers([each.token for each in batch]),
                numbers([each.due for each in batch]),
                flags([each.paused for each in batch]),
                texts([each.condition for each in batch]),
                numbers([each.failures for each in batch]),
                texts([_storable(each.error) for each in batch]),
                numbers([each.polled_at for each in batch]),
                numbers([each.succeeded_at for each in batch]),
                numbers([each.failed_at for each in batch]),
                numbers([each.changed_at for each in batch]),
                numbers([each.interval for each in batch]),
                texts([json.dumps(dict(each.more), default=str) for each in batch]),
            ],
            safe=True,  # under a token, saving twice is saving once
        )
        refused = [name for (name,) in rows]
        self._held.difference_update(refused)
        return refused

    async def forget(self, names: Sequence[str]) -> None:
        if names:
            await self._rows("forget", [self._fleet, texts(names)], safe=True)
            self._held.difference_update(names)

    async def close(self) -> None:
        await self._connections.close()

    # Nodes

    async def claim(self, node: str, names: Sequence[str], limit: int, lease: float) -> list[Lease]:
        if self._id is None:
            await self.renew(node, lease)
        rows = await self._rows(
            "claim",
            [
                self._fleet,
                number(self._id or 0),
                texts(names),
                number(limit),
                number(lease),
                self._now(),
            ],
        )
        leases = [Lease(name, token, lease, _saved(name, *rest)) for name, token, *rest in rows]
        self._held.update(each.name for each in leases)
        return leases

    async def renew(self, node: str, lease: float) -> Renewal:
        _checked_name(node, "node")
        [(known_as, nodes, free, ends)] = await self._rows(
            "renew",
            [
                self._fleet,
                text(node),
                None if self._id is None else number(self._id),
                number(lease),
                self._now(),
            ],
            safe=True,
        )
        if known_as != self._id:  # it is new, or its lease was over: it holds nothing any more
            self._id = known_as
            self._held.clear()
        return Renewal(frozenset(self._held), nodes, free, ends)

    async def give_back(self, node: str, names: Sequence[str] | None = None) -> None:
        if self._id is None or (names is not None and not names):
            return
        given = None if names is None else texts(names)
        await self._rows("give_back", [self._fleet, number(self._id), given], safe=True)
        if names is None:
            self._held.clear()
            self._id = None
        else:
            self._held.difference_update(names)

    async def nodes(self) -> list[Node]:
        rows = await self._rows("nodes", [self._fleet, self._now()], safe=True)
        return [Node(*row) for row in rows]

    # What people ask for, and settings

    async def order(self, what: str, names: Sequence[str]) -> None:
        await self._rows("order", [self._fleet, texts(names), text(what), self._now()])

    async def orders(self) -> list[tuple[str, str]]:
        if self._id is None:
            return []
        rows = await self._rows("orders", [self._fleet, number(self._id), self._now()])
        return [(name, what) for name, what in rows]

    async def settings(self) -> dict[str, Any]:
        rows = await self._rows("settings", [self._fleet], safe=True)
        return {key: json.loads(value) for key, value in rows}

    async def keep_settings(self, changes: Mapping[str, Any]) -> None:
        values = [None if value is None else json.dumps(value) for value in changes.values()]
        params = [self._fleet, texts(changes), texts(values), self._now()]
        await self._rows("keep_settings", params, safe=True)

    # The rest

    async def _rows(
        self, name: str, params: Sequence[Param], *, safe: bool = False
    ) -> list[tuple[Any, ...]]:
        if not self._version_fits:
            try:
                rows = await self._connections.rows(self._sql["version"], safe=True)
            except SchemaError:
                rows = [(None, "read committed")]
            [(found, isolation)] = rows
            check_version(found, self.schema, self.url, TABLES)
            check_isolation(isolation, self.url, TABLES)
            self._version_fits = True
        return await self._connections.rows(self._sql[name], params, safe=safe)

    def _now(self) -> Param:
        imposed = self.clock.imposed()
        return None if imposed is None else number(imposed)


def _saved(
    name: str,
    due: float | None,
    paused: bool,
    condition: str,
    failures: int,
    problem: str | None,
    polled_at: float | None,
    succeeded_at: float | None,
    failed_at: float | None,
    changed_at: float | None,
    interval: float | None,
    more: str,
) -> Saved:
    return Saved(
        name, due, paused, condition, failures, problem, polled_at, succeeded_at, failed_at,
        changed_at, interval, json.loads(more),
    )  # fmt: skip


def _storable(said: str | None) -> str | None:
    """Text as Postgres takes it, which has no character 0, and no half of one."""
    if said is None or (said.isascii() and "\0" not in said):
        return said
    return said.replace("\0", "\\x00").encode(errors="backslashreplace").decode()


def _checked_name(name: object, what: str) -> str:
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= NAME_MAX:
        raise ConfigError(
            f"{what} = {name!r} must be a printable name of 1 to {NAME_MAX} characters"
        )
    return name
