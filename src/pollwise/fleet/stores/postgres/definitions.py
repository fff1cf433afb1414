"""Definitions of targets in Postgres: calls of a fleet's store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pollwise.fleet.stores.base import FleetStore
from pollwise.fleet.stores.definitions import (
    DEFINITIONS_MAX,
    REMOVED_KEPT,
    DefinitionConflict,
    StoredDefinition,
    TooManyDefinitions,
    decoded,
    encoded,
    storable,
)
from pollwise.storage.postgres.params import number, numbers, text, texts

if TYPE_CHECKING:
    from pollwise.storage.postgres.database import Database


class PostgresDefinitions(FleetStore):
    """The calls for definitions; part of the store of a fleet."""

    database: Database

    async def definitions(self, since: int = 0) -> list[StoredDefinition]:
        params = [text(self.name), number(since)]
        return [decoded(*row) for row in await self.database.rows("definitions", params, safe=True)]

    async def definitions_version(self) -> int:
        rows = await self.database.rows("definitions_version", [text(self.name)], safe=True)
        return int(rows[0][0])

    async def define(
        self,
        tables: Mapping[str, Mapping[str, Any] | None],
        by: str = "",
        expected: Mapping[str, int] | None = None,
    ) -> int:
        wanted = expected or {}
        params = [
            text(self.name),
            texts(tables),
            texts([encoded(name, table) for name, table in tables.items()]),
            numbers([wanted.get(name) for name in tables]),
            text(storable(by)),
            number(REMOVED_KEPT),
            number(DEFINITIONS_MAX),
            self.database.now(),
        ]
        rows = await self.database.rows("define", params)
        conflicts = [conflict for _, conflict in rows if conflict is not None]
        if conflicts:
            raise DefinitionConflict(conflicts)
        version = int(rows[0][0])
        if version < 0:
            raise TooManyDefinitions
        return version
