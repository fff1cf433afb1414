"""Definitions of targets in a SQLite file: calls on the connection of a fleet's store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

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
from pollwise.storage.sqlite.file import SqliteFile, transaction


class DefinitionRows(SqliteFile):
    """The calls for definitions; part of the tables of a fleet."""

    def definitions(self, since: int = 0) -> list[StoredDefinition]:
        return [decoded(*row) for row in self._rows("definitions", since=since)]

    def definitions_version(self) -> int:
        return int(self._rows("definitions_version")[0][0])

    def define(
        self,
        now: float,
        tables: Mapping[str, Mapping[str, Any] | None],
        by: str = "",
        expected: Mapping[str, int] | None = None,
    ) -> int:
        texts = {name: encoded(name, table) for name, table in tables.items()}
        with transaction(self.connect()):
            found = dict(self._rows("definition_versions", names=json.dumps(list(tables))))
            wanted = expected or {}
            conflicts = [name for name in wanted if found.get(name, 0) != wanted[name]]
            if conflicts:
                raise DefinitionConflict(conflicts)
            added = sum(text is not None and name not in found for name, text in texts.items())
            if added and added + self._rows("count_definitions")[0][0] > DEFINITIONS_MAX:
                raise TooManyDefinitions
            version = self.definitions_version() + 1
            self._change("prune_definitions", before=now - REMOVED_KEPT)
            same = {"version": version, "by": storable(by), "now": now}
            for name, text in texts.items():
                self._change("define", name=name, definition=text, **same)
        return version
