"""Shared by the tests of `pollwise fleet`: a file of targets, and stores with saved targets."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from typing import Any

from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from tests.cli.console import good

STORE = "sqlite:///fleet.db"
FILE = """
[[target]]
name = "fine"
type = "command"
run = ["echo", "hello"]
base_interval = "1s"
min_interval = "1s"

[[target]]
name = "broken"
type = "command"
run = ["false"]
min_interval = "1s"
group = "shaky"

[[target]]
name = "slow"
type = "command"
run = ["true"]
interval = "1h"
"""


def row(name: str, **given: Any) -> dict[str, Any]:
    """A saved target; times are seconds from now."""
    now = time.time()
    kept = {
        "due": now + 5, "paused": 0, "state": "closed", "failures": 0, "error": None,
        "polled_at": now - 1, "succeeded_at": now - 1, "failed_at": None, "changed_at": None,
        "interval": 10.0, "more": json.dumps({"reading": {"value": "x", "summary": "200 OK"}}),
    }  # fmt: skip
    for key, value in given.items():
        kept[key] = now + value if key.endswith("_at") or key == "due" else value
    return {"fleet": "fleet", "name": name, **kept}


def saved(*rows: dict[str, Any], polled: bool = True) -> None:
    """A store with saved targets. polled: a process elsewhere polls it now."""

    async def made() -> None:
        store = SqliteFleetStore("fleet.db")
        await store.load()
        await store.close()

    asyncio.run(made())
    with sqlite3.connect("fleet.db") as connection:
        for each in rows:
            marks = ", ".join("?" * len(each))
            connection.execute(
                f"INSERT INTO pollwise_fleet_targets ({', '.join(each)}) VALUES ({marks})",
                list(each.values()),
            )
        if polled:
            connection.execute(
                "INSERT INTO pollwise_fleet_runs (fleet, run, pid, host, at) VALUES (?, ?, ?, ?, "
                "?)",
                ("fleet", "r", 17, "elsewhere", time.time()),
            )
    connection.close()


def state(name: str) -> dict[str, Any]:
    [found] = good("fleet", "status", name, "--store", STORE, "--json").json()
    assert isinstance(found, dict)
    return found
