"""How much of its tables and indexes each statement of a store on Postgres reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from pollwise.storage.postgres.database import Database
from pollwise.storage.postgres.params import Param
from tests.support.servers import Postgres

#: What the server believes about the tables when it makes its plans. `emptied`: a vacuum found them
#: empty, which is the normal state of a queue that keeps up.
Statistics = Literal["emptied", "none", "fresh"]
STATISTICS: tuple[Statistics, ...] = ("emptied", "none", "fresh")


class Touched:
    """Counts what the statements of a database read: blocks, entries of indexes and rows.

    most: the most that one call of each statement read.
    called: the names of the statements.
    The store has one connection.
    """

    def __init__(self, database: Database) -> None:
        self.most: dict[str, int] = {}
        self.called: set[str] = set()
        self._about = ""
        self._rows = database.rows
        self._connections = database.connections
        self._sum = (
            "SELECT sum(pg_stat_get_blocks_fetched(oid) + pg_stat_get_tuples_returned(oid)"
            " + pg_stat_get_tuples_fetched(oid))::bigint FROM pg_class"
            f" WHERE relnamespace = '{database.schema}'::regnamespace"
        ).encode()
        database.rows = self._counted  # type: ignore[method-assign]

    @contextmanager
    def of(self, about: str) -> Iterator[None]:
        """Statements in here are counted apart, by this name beside their own."""
        before, self._about = self._about, f" {about}"
        yield
        self._about = before

    async def _counted(
        self, name: str, params: Sequence[Param] = (), **options: Any
    ) -> list[tuple[Any, ...]]:
        before = await self._so_far()
        rows = await self._rows(name, params, **options)
        self.called.add(name)
        label = name + self._about
        self.most[label] = max(self.most.get(label, 0), await self._so_far() - before)
        return rows

    async def _so_far(self) -> int:
        await self._connections.rows(b"SELECT pg_stat_force_next_flush()")
        [(total,)] = await self._connections.rows(self._sum)
        return int(total)


def prepare(server: Postgres, schema: str, fill: Sequence[str], statistics: Statistics) -> None:
    """Leave statistics of an empty table, none, or (after the last fill) good ones.

    fill: statements that put a few rows into each table, whatever they are.
    """
    tables = _tables(server, schema)
    for table in tables:  # nothing but this changes the statistics
        server.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
    if statistics == "emptied":
        for statement in fill:
            server.execute(statement)
        for table in tables:
            server.execute(f"DELETE FROM {table}")
            server.execute(f"VACUUM (TRUNCATE off) {table}")


def analyze(server: Postgres, schema: str) -> None:
    for table in _tables(server, schema):
        server.execute(f"ANALYZE {table}")


def _tables(server: Postgres, schema: str) -> list[str]:
    named = "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relnamespace = %s"
    found = server.execute(f"{named}::regnamespace AND relname !~ 'migrations$'", [schema])
    return [name for (name,) in found]


def grown(small: Mapping[str, int], large: Mapping[str, int]) -> list[str]:
    """The statements that read more with a larger backlog. Its indexes may have a level more."""
    assert small.keys() == large.keys()
    return [
        f"{name} read {few} with few rows and {large[name]} with many"
        for name, few in small.items()
        if large[name] > few * 1.5 + 250
    ]
