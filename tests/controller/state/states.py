"""States of the controller for tests: on SQLite and on real servers, in virtual time."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pollwise.controller.state.base import ControllerState, new_id
from pollwise.controller.state.postgres.state import PostgresState
from pollwise.controller.state.sqlite.state import SqliteState
from pollwise.controller.state.values import WorkerRow
from pollwise.runtime.clock import VirtualClock
from tests.support.servers import Postgres

#: Makes a state, or several on the same store.
Make = Callable[[], ControllerState]
Main = Callable[["Stand"], Coroutine[Any, Any, None]]


class Stand:
    """The state and the clock of a test."""

    def __init__(self, clock: VirtualClock, make: Make) -> None:
        self.clock = clock
        self.make = make
        self.state = make()

    async def worker(self, name: str = "mac", **given: Any) -> WorkerRow:
        row = WorkerRow(new_id(self.clock), name, token_hash=uuid.uuid4().hex)
        return await self.state.add_worker(replace(row, **given))


@asynccontextmanager
async def standing(clock: VirtualClock, make: Make) -> AsyncIterator[Stand]:
    made: list[ControllerState] = []

    def noted() -> ControllerState:
        made.append(make())
        return made[-1]

    try:
        stand = Stand(clock, noted)
        await stand.state.migrate()
        yield stand
    finally:
        for each in made:
            await each.close()


def run_on_sqlite(path: Path, main: Main) -> None:
    clock = VirtualClock()

    async def whole() -> None:
        make = lambda: SqliteState(path, synchronous="off", clock=clock)  # noqa: E731
        async with standing(clock, make) as stand:
            await main(stand)

    clock.run(whole())


def run_on_postgres(server: Postgres, main: Main) -> None:
    clock = VirtualClock()
    schema = f"state_{uuid.uuid4().hex[:12]}"

    async def whole() -> None:
        make = lambda: PostgresState(server.dsn(), schema=schema, clock=clock)  # noqa: E731
        async with standing(clock, make) as stand:
            await main(stand)

    try:
        clock.run(whole())
    finally:
        server.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
