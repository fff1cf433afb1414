"""The connection of `SqliteOutboxStore` to the user's own database, and the tables made in it.

Writes are short, BEGIN IMMEDIATE, so that a write waits its turn at its start and never fails in
the middle. The journal is left as the user has it; with a write-ahead log (`PRAGMA journal_mode =
WAL`) readers and the one writer do not block each other.
"""

from __future__ import annotations

import random
import re
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pollwise.errors import SchemaError, StoreError
from pollwise.storage.sql import incomplete_record, migrations, statements
from pollwise.storage.sqlite.file import OLDEST_SQLITE, explained, script_statements, transaction

#: How long SQLite itself waits for a lock, in seconds, and we until it is tried again: SQLite waits
#: longer and longer, and would hardly ever have its turn where others write all the time.
BUSY_APART = 0.003


# What a migration meets that was applied already.
_TWICE = re.compile("already exists|duplicate column")


class SqliteConnection:
    """One connection to one database file. Not for use from two threads at a time."""

    def __init__(self, path: Path, outbox: str, timeout: float) -> None:
        self.path = path.absolute()  # wherever the process goes
        self._outbox = outbox
        self._timeout = timeout
        self._sql = statements(__package__)
        self._connection: sqlite3.Connection | None = None

    # Connecting

    def connect(self) -> sqlite3.Connection:
        """The connection; opened and checked when it is first asked for."""
        if self._connection is None:
            connection = self._open("rw")
            try:
                self._check_version(self._version(connection))
                self._tune(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _open(self, mode: str) -> sqlite3.Connection:
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            oldest = ".".join(map(str, OLDEST_SQLITE))
            raise StoreError(
                f"this Python has SQLite {sqlite3.sqlite_version}; Pollwise needs {oldest} or newer"
            )
        if self.path.is_dir():
            raise StoreError(f"{self.path} is a folder; name a file in it")
        if mode == "rw" and not self.path.exists():
            raise StoreError(
                f"there is no database at {self.path}; check the path in the URL, or run "
                "`pollwise outbox migrate URL`, which makes it"
            )
        if not self.path.parent.is_dir():
            raise StoreError(
                f"there is no folder {self.path.parent} for the database {self.path.name}; "
                "create it or correct the path"
            )
        connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}",
            uri=True,
            timeout=BUSY_APART,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        # SQLite takes any bytes for text, and other programs put records too.
        connection.text_factory = lambda text: str(text, "utf-8", "replace")
        return connection

    def _tune(self, connection: sqlite3.Connection) -> None:
        """Do not wait for the disk where a power cut can only undo a claim or a settlement.

        Then records are handled once more. Without a write-ahead log it could damage the file.
        """
        [(mode,)] = connection.execute("PRAGMA journal_mode")
        if mode == "wal":
            connection.execute("PRAGMA synchronous = NORMAL")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def call(self, method: Callable[..., Any], *args: Any) -> Any:
        """Run a method of this store with SQLite's errors told in ours.

        While others hold the lock it is tried again, for so long as `timeout` says. A method is
        one transaction, or reads only, so one that failed has done nothing.
        """
        give_up = time.monotonic() + self._timeout
        while True:
            try:
                return method(*args)
            except sqlite3.Error as error:
                self._end_transaction()
                name = getattr(error, "sqlite_errorname", "")
                if not name.startswith("SQLITE_BUSY") or time.monotonic() > give_up:
                    raise explained(error, self.path) from error
                time.sleep(random.uniform(0.0, 2 * BUSY_APART))
            except OSError as error:
                raise StoreError(f"{error}. Check the path and its permissions.") from error

    def _end_transaction(self) -> None:
        """Whatever failed, the next call begins anew, and the lock is let go."""
        if self._connection is not None and self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error:
                self.close()  # which undoes it as well

    # Migrating

    def migrate(self) -> list[int]:
        connection = self._open("rwc")
        try:
            newest = migrations(__package__)[-1][0]
            if self._version(connection) >= newest:
                self._check_version(self._version(connection))
                return []
            with transaction(connection):
                found = self._version(connection)  # again: another process may have been faster
                applied = [version for version, _ in migrations(__package__) if version > found]
                recorded = self._versions(connection)
                try:
                    for statement in script_statements(migration(found)):
                        connection.execute(statement)
                except sqlite3.OperationalError as error:
                    if recorded is None or not _TWICE.search(str(error)):
                        raise
                    lacking = incomplete_record("pollwise_outbox_schema", recorded, __package__)
                    raise SchemaError(f"{self.path}: {error}. {lacking}") from None
            return applied
        finally:
            connection.close()

    def _version(self, connection: sqlite3.Connection) -> int:
        return max(self._versions(connection) or [0])

    def _versions(self, connection: sqlite3.Connection) -> list[int] | None:
        """The versions that were applied; None where no record of them is."""
        known = connection.execute(
            "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'pollwise_outbox_schema'"
        ).fetchone()
        if not known:
            return None
        rows = connection.execute("SELECT version FROM pollwise_outbox_schema ORDER BY version")
        return [int(version) for (version,) in rows]

    def _check_version(self, found: int) -> None:
        known = migrations(__package__)[-1][0]
        if not found:
            raise SchemaError(
                f"{self.path} has no tables of an outbox. Run `pollwise outbox migrate URL`."
            )
        if found < known:
            raise SchemaError(
                f"{self.path}: the outbox's tables are of version {found}; this code needs "
                f"{known}. Run `pollwise outbox migrate URL`."
            )
        if found > known:
            raise SchemaError(
                f"{self.path}: the outbox's tables are of version {found}; this code knows up to "
                f"{known}. Upgrade pollwise."
            )

    # Statements

    def _rows(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        values["outbox"] = self._outbox
        return self.connect().execute(self._sql[name], values).fetchall()

    def _run(self, name: str, **values: Any) -> int:
        """Run a statement that changes rows; how many."""
        values["outbox"] = self._outbox
        return self.connect().execute(self._sql[name], values).rowcount


def migration(found: int = 0) -> str:
    """What has to be run on tables of this version, as SQL, in one transaction."""
    steps = [
        f"{script}\nINSERT INTO pollwise_outbox_schema (version) VALUES ({version});\n"
        for version, script in migrations(__package__)
        if version > found
    ]
    return "\n".join([_SCHEMA_TABLE, *steps])


_SCHEMA_TABLE = """\
CREATE TABLE IF NOT EXISTS pollwise_outbox_schema (
    version    INTEGER PRIMARY KEY,
    applied_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
);
"""
