"""What statements cost on SQLite, in steps of its virtual machine: the same on every machine."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from pollwise.storage.sql import migrations


def plan_of(package: str, sql: str) -> list[str]:
    """How SQLite would run a statement on the tables of a package."""
    values = dict.fromkeys(re.findall(r":(\w+)", sql), "[]")
    with closing(sqlite3.connect(":memory:")) as connection:
        for _, script in migrations(package):
            connection.executescript(script)
        rows = connection.execute(f"EXPLAIN QUERY PLAN {sql}", values).fetchall()
    return [row[3] for row in rows]


class Meter:
    steps = 0

    @contextmanager
    def reading(self, connection: sqlite3.Connection) -> Iterator[None]:
        connection.set_progress_handler(self._step, 1)
        self.steps = 0
        yield
        connection.set_progress_handler(None, 0)

    def _step(self) -> int:
        self.steps += 1
        return 0
