"""What the tests of both stores share: an empty store in virtual time."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pollwise.fleet.stores.base import FleetStore
from pollwise.fleet.stores.postgres.store import PostgresFleetStore
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.runtime.clock import VirtualClock
from tests.support.servers import Postgres

#: When virtual time begins.
NOW = 1_700_000_000.0
Main = Callable[[FleetStore], Awaitable[None]]
fleets = (f"stored {number}" for number in itertools.count())


@pytest.fixture(params=["sqlite", "postgres"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Main], None]:
    """Calls a function with an empty store and its outbox's tables."""

    def ran(main: Main) -> None:
        clock = VirtualClock(NOW)

        async def body() -> None:
            store: FleetStore
            if request.param == "sqlite":
                store = SqliteFleetStore(tmp_path / "fleet.db", clock=clock)
                await store.load()
                outbox = store.outbox()
                assert outbox is not None
                await outbox.migrate()
                await outbox.close()
            else:
                server: Postgres = request.getfixturevalue("postgres")
                store = PostgresFleetStore(server.dsn(), next(fleets), clock=clock)
                await store.migrate()
            try:
                await main(store)
            finally:
                await store.close()

        clock.run(body())

    return ran
