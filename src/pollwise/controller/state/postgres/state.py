"""The controller's state in Postgres, in the queue's schema: several controllers share it.

A call is one statement, one transaction and one round trip. The server's clock decides. Most calls
may be repeated when a connection broke in the middle: their second run changes nothing more.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from pollwise.controller.state import encoding
from pollwise.controller.state.base import ControllerState
from pollwise.controller.state.values import ArtefactRow, LogPiece, LogPlace
from pollwise.errors import MissingExtra
from pollwise.runtime.clock import Clock

try:
    from pollwise.storage.postgres.database import Database
except ImportError as error:  # also where it is installed without the library that it needs
    raise MissingExtra("a controller on Postgres", "postgres") from error

from pollwise.storage.postgres.params import Param, flag, number, text
from pollwise.storage.postgres.schema import TableSet
from pollwise.storage.sql import numbered

#: The tables of the controller.
TABLES = TableSet(
    __package__, "controller_migrations", "pollwise serve URL --migrate", "controller"
)
#: What a statement calls things here. The time is one for the whole statement.
DIALECT = {
    "{controller}": "{schema}.controller",
    "{now}": (
        "coalesce(:now::double precision, "
        "extract(epoch FROM statement_timestamp())::double precision)"
    ),
    "{items}": "json_array_elements",
    "{texts}": "json_array_elements_text",
}
#: The statements that do something else when they are run again.
_NOT_REPEATED = ("audit", "remove_worker")


class PostgresState(ControllerState):
    """The state in a Postgres database. `await state.migrate()` makes its tables.

    conninfo, schema: as a `PostgresQueue` has them.
    """

    def __init__(
        self, conninfo: str, *, schema: str = "pollwise", clock: Clock | None = None
    ) -> None:
        super().__init__()
        made = {
            name: numbered(statement)
            for name, statement in encoding.all_statements(TABLES.package, DIALECT).items()
        }
        self._names = {name: names for name, (_, names) in made.items()}
        self.database: Database = Database(
            conninfo,
            TABLES,
            "agents",
            schema=schema,
            timeout="30s",
            connections=4,
            clock=clock,
            what="queue",
            sql={name: statement for name, (statement, _) in made.items()},
        )
        self.schema: str = self.database.schema
        self.clock: Clock = self.database.clock
        self.url: str = self.database.url

    async def migrate(self) -> list[int]:
        return await self.database.migrate()

    async def ping(self) -> None:
        await self.database.check()

    async def close(self) -> None:
        await self.database.close()

    async def _put_artefact(self, row: ArtefactRow, most: int) -> tuple[bool, ArtefactRow | None]:
        given, job = json.dumps(encoding.plain_values(asdict(row))), encoding.folder_job(row)
        [(kept, before)] = await self._rows("put_artefact", row=given, job=job, most=most)
        return kept, None if before is None else ArtefactRow(**json.loads(before))

    async def _append_log(self, folder: str, piece: LogPiece) -> LogPlace | None:
        found = await self._rows("append_log", folder=folder, **asdict(piece))
        return encoding.place_of(found[0]) if found else None

    async def _rows(self, name: str, /, **values: Any) -> list[tuple[Any, ...]]:
        now = self.database.now()
        params = [now if each == "now" else _param(values[each]) for each in self._names[name]]
        return await self.database.rows(name, params, safe=name not in _NOT_REPEATED)


def _param(value: Any) -> Param:
    match value:
        case bool():
            return flag(value)
        case str():
            return text(encoding.plain(value))
        case bytes():
            return b"\\x" + value.hex().encode()
        case None:
            return None
        case _:
            return number(value)
