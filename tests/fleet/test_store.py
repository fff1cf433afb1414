"""What a store of a fleet need not be able to do, it refuses in plain words."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pollux.errors import Unsupported
from pollux.fleet.store import FleetStore
from pollux.fleet.store_sqlite import SqliteFleetStore


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.claim("node", ["a"], 1, 30.0),
        lambda store: store.renew("node", 30.0),
        lambda store: store.give_back("node"),
    ],
)
def test_a_store_for_one_node_cannot_be_shared(
    tmp_path: Path, call: Callable[[FleetStore], Awaitable[object]]
) -> None:
    async def main() -> None:
        store = SqliteFleetStore(tmp_path / "fleet.db")
        with pytest.raises(
            Unsupported, match=r"SqliteFleetStore cannot share a fleet.*; use .*Postgres"
        ):
            await call(store)
        await store.close()

    asyncio.run(main())
