"""Optional calls of a fleet store are refused with a clear error; which process polls a file."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from pollwise.errors import Unsupported
from pollwise.fleet.stores.base import FleetStore, SavedTarget
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.fleet.stores.urls import open_store
from pollwise.runtime.audit import AuditEntry


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


def test_the_polling_process_of_a_file_is_known(tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"

    async def main() -> None:
        polls, looks = (SqliteFleetStore(path) for _ in range(2))
        assert await looks.nodes() == []
        await polls.save([SavedTarget("a"), SavedTarget("b")])
        await polls.enter()
        nodes = await looks.nodes()
        assert nodes is not None
        [(name, lasts, held, _)] = nodes
        assert (name, held) == (f"{socket.gethostname()}-{os.getpid()}", 2)
        assert 0 < lasts <= 30
        await polls.leave()
        assert await looks.nodes() == []
        # One that was killed: its process is gone, or it gave no sign of life for long.
        await polls.enter()
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE pollwise_fleet_runs SET at = at - 31")
        assert await looks.nodes() == []
        await polls.close()
        await looks.close()

    asyncio.run(main())


def test_orders_name_who_gave_them(tmp_path: Path) -> None:
    async def main() -> None:
        store = SqliteFleetStore(tmp_path / "fleet.db")
        await store.order("pause", ["a", "b"], "cli: me@here")
        await store.order("retry", ["a"])
        assert await store.orders() == [
            ("a", "pause", "cli: me@here"), ("b", "pause", "cli: me@here"), ("a", "retry", ""),
        ]  # fmt: skip
        assert await store.orders() == []
        await store.close()

    asyncio.run(main())


def test_audit_entries_are_kept_for_90_days(tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"

    async def main() -> None:
        store, other = SqliteFleetStore(path), SqliteFleetStore(path, "another")
        await store.audit(AuditEntry("me", "target.pause", "'a'"))
        await other.audit(AuditEntry("me", "target.pause", "'b'"))
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE pollwise_fleet_audit SET at = at - 91 * 86400")
        await store.audit(AuditEntry("you", "target.resume", "'a'"))
        assert [each.who for each in await store.list_audit(10)] == ["you"]
        assert [each.what for each in await other.list_audit(10)] == ["'b'"]
        await store.close()
        await other.close()

    asyncio.run(main())


def test_a_store_knows_its_fleet_and_its_url(tmp_path: Path) -> None:
    async def main() -> None:
        plain = SqliteFleetStore(tmp_path / "fleet.db")
        assert (plain.name, plain.url) == ("fleet", f"sqlite:///{tmp_path}/fleet.db")
        assert (plain.migration(), await plain.migrate()) == (None, [])
        assert not plain.path.exists()
        named = open_store(f"sqlite:///{tmp_path}/my%20fleet.db?fleet=a%26b")
        assert named.name == "a&b"
        assert named.url == f"sqlite:///{tmp_path}/my%20fleet.db?fleet=a%26b"
        await named.save([SavedTarget("x"), SavedTarget("y")])
        assert [each.name for each in await named.load(["y", "z"])] == ["y"]
        await plain.close()
        await named.close()

    asyncio.run(main())
