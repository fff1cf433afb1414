"""Tables of Pollwise in a schema of a Postgres database: their statements by name, and their
maintenance.

Every store on Postgres has one: a queue, an outbox, a controller, a fleet. The first call checks
once that the tables have the version of this code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any

from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError, SchemaError, StoreError
from pollwise.runtime.clock import Clock
from pollwise.runtime.contexts import task_in
from pollwise.storage.postgres.connections import Connections
from pollwise.storage.postgres.conninfo import checked, completed, shown
from pollwise.storage.postgres.errors import migrating_error, refused_error
from pollwise.storage.postgres.params import Param, number
from pollwise.storage.postgres.schema import (
    TableSet,
    check_isolation,
    check_version,
    checked_schema,
    incomplete,
    quoted,
    script,
)
from pollwise.storage.sql import statements

#: The maximum number of connections of one store.
CONNECTIONS_MAX = 100
#: After this many ended rows a store vacuums its tables. Ended rows leave dead entries at the head
#: of the indexes, where every claim begins, and the server's own vacuum runs once a minute.
VACUUM_EVERY = 20_000


class Database:
    """The `tables` of one store in the schema `schema` of the database at `conninfo`.

    name, what: name and kind of the store, for the URL in messages.
    sql: the statements, if not those of the tables' folder.
    apart: a statement that gets a connection of its own. The first call of a function on a
        connection takes ten times as long, because the server has to make the plans.
    """

    def __init__(
        self,
        conninfo: str,
        tables: TableSet,
        name: str,
        *,
        schema: str,
        timeout: Duration,
        connections: int,
        clock: Clock | None,
        what: str | None = None,
        sql: Mapping[str, str] | None = None,
        apart: str | None = None,
    ) -> None:
        self.tables = tables
        self.schema: str = checked_schema(schema)
        self.clock: Clock = clock or Clock()
        parts = checked(conninfo, "conninfo")
        self.conninfo: str = completed(parts)
        self.url: str = shown(parts, name, self.schema, what or tables.what)
        timeout_s = seconds(timeout, "timeout", positive=True)
        most = _checked_connections(connections)

        def some(most: int) -> Connections:
            explain = partial(refused_error, migrate=tables.advice)
            return Connections(
                self.conninfo, self.url, self.clock, timeout=timeout_s, most=most, explain=explain
            )

        divided = apart is not None and most > 1
        self.connections: Connections = some(most - 1 if divided else most)
        self._own = some(1) if divided else self.connections
        self._apart = apart
        self.sql: dict[str, bytes] = {
            each: statement.replace("{schema}", quoted(self.schema)).encode()
            for each, statement in (sql or statements(tables.package)).items()
        }
        #: The tables were checked, and have the version of this code.
        self.fits: bool = False
        self._ended = 0
        self._context = copy_context()
        self._vacuum: asyncio.Task[None] | None = None

    def listening(self, listen: str | None) -> str:
        """The conninfo for hints: `listen`, if given."""
        return self.conninfo if listen is None else completed(checked(listen, "listen"))

    def now(self) -> Param:
        """The time as a parameter; NULL means the server's own time."""
        imposed = self.clock.imposed()
        return None if imposed is None else number(imposed)

    # Calls

    async def rows(
        self,
        name: str,
        params: Sequence[Param] = (),
        *,
        safe: bool = False,
        within: float | None = None,
    ) -> list[tuple[Any, ...]]:
        """The rows of the statement `name`. safe, within: see `Connections.rows`."""
        if not self.fits:
            await self.check()
        connections = self._own if name == self._apart else self.connections
        return await connections.rows(self.sql[name], params, safe=safe, within=within)

    async def check(self) -> None:
        """Refuse tables of another version, and a transaction isolation that does not work."""
        [(found, isolation)] = await self.connections.rows(self.sql["version"], safe=True)
        check_version(found, self.schema, self.url, self.tables)
        check_isolation(isolation, self.url, self.tables)
        self.fits = True

    # Migrating

    async def migrate(self) -> list[int]:
        """Create or update the tables; return the versions that were applied."""
        recorded = await self._versions()
        before = recorded or []
        if before and max(before) >= self.tables.newest:
            check_version(max(before), self.schema, self.url, self.tables)
            return []
        lacking = "" if recorded is None else incomplete(before, self.schema, self.tables)
        explain = partial(migrating_error, incomplete=lacking)
        await self.connections.script(self.migration(), explain=explain)
        return sorted(set(await self._versions() or []) - set(before))

    def migration(self) -> str:
        """The SQL that `migrate` runs."""
        return script(self.schema, self.tables)

    async def _versions(self) -> list[int] | None:
        """The versions that were applied; None if there is no record of them."""
        try:
            rows = await self.connections.rows(self.sql["versions"], safe=True)
        except SchemaError:
            return None
        return [version for (version,) in rows]

    # Upkeep

    def sweep(self, ended: int) -> None:
        """Vacuum the tables now and then, in the background on a connection of its own."""
        self._ended += ended
        idle = self._vacuum is None or self._vacuum.done()
        if self._ended >= VACUUM_EVERY and idle and self.clock.imposed() is None:
            self._ended = 0
            self._vacuum = task_in(self._context, self._vacuumed())

    async def _vacuumed(self) -> None:
        with suppress(StoreError):  # it only keeps claims fast; the server has its own vacuum
            [(ours,)] = await self.connections.rows(self.sql["may_vacuum"], safe=True)
            if ours:
                await self.connections.script(self.sql["vacuum"].decode(), patient=True)

    async def hurry(self) -> None:
        """Prepare to close: running calls get a moment, a vacuum is cancelled."""
        self.connections.hurry()
        self._own.hurry()
        vacuum, here = self._vacuum, asyncio.get_running_loop()
        if vacuum is not None and not vacuum.done() and vacuum.get_loop() is here:
            vacuum.cancel()  # the server finishes what it started
            await asyncio.wait([vacuum])

    async def close(self) -> None:
        await self.connections.close()
        if self._own is not self.connections:
            await self._own.close()


def _checked_connections(connections: object) -> int:
    if (
        isinstance(connections, bool)
        or not isinstance(connections, int)
        or not 1 <= connections <= CONNECTIONS_MAX
    ):
        raise ConfigError(
            f"connections = {connections!r} must be a whole number from 1 to {CONNECTIONS_MAX}"
        )
    return connections
