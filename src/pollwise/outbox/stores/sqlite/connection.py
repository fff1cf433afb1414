"""The connection of `SqliteOutboxStore` to the user's own database, and its tables there.

Writes are short and begin with BEGIN IMMEDIATE, so that a write waits for the lock at its start and
never fails in the middle. The journal mode is not changed; with a write-ahead log (`PRAGMA
journal_mode = WAL`) readers and the one writer do not block each other.
"""

from __future__ import annotations

import random
import re
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from pollwise.errors import SchemaError, StoreError
from pollwise.storage.sql import incomplete_record, migrations, statements
from pollwise.storage.sqlite.file import (
    OLDEST_SQLITE,
    FileConnection,
    explained,
    script_statements,
    transaction,
)

#: How long SQLite itself waits for a lock, in seconds, and about how long we wait until the next
#: try. SQLite would wait longer and longer, and rarely get the lock of a busy database.
BUSY_APART = 0.003

#: The errors of a migration that was already applied.
_APPLIED_TWICE = re.compile("already exists|duplicate column")


class SqliteConnection:
    """One connection to one database file. Not for use from two threads at a time."""

    def __init__(self, path: Path, outbox: str, timeout: float) -> None:
        self.path = path.absolute()  # the working directory may change
        self._outbox = outbox
        self._timeout = timeout
        self._sql = statements(__package__)
        self._connection: sqlite3.Connection | None = None

    @property
    def connection(self) -> FileConnection | None:
        return cast("FileConnection | None", self._connection)

    # Connecting

    def connect(self) -> sqlite3.Connection:
        """The connection; the first call opens and checks it."""
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
                f"there is no database at {self.path}; check the path in the URL, or create it "
                "with `pollwise outbox migrate URL`"
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
            factory=FileConnection,
        )
        # SQLite accepts any bytes as text, and other programs put records too.
        connection.text_factory = lambda text: str(text, "utf-8", "replace")
        return connection

    def _tune(self, connection: sqlite3.Connection) -> None:
        """With a write-ahead log, do not wait for the disk.

        A power cut can then undo a claim or a settlement, and records are handled once more.
        Without a write-ahead log it could damage the file.
        """
        [(mode,)] = connection.execute("PRAGMA journal_mode")
        if mode == "wal":
            connection.execute("PRAGMA synchronous = NORMAL")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def call(self, method: Callable[..., Any], *args: Any) -> Any:
        """Call a method of this store; raise SQLite's errors as StoreErrors.

        While others hold the lock, try again until `timeout`. A method is one transaction or only
        reads, so a failed one has done nothing. A failed commit can be tried again.
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
        """Release the lock, so that the next call starts clean."""
        connection = self.connection
        if connection is not None and connection.in_transaction and not connection.grouped:
            try:
                connection.execute("ROLLBACK")
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
                    if recorded is None or not _APPLIED_TWICE.search(str(error)):
                        raise
                    lacking = incomplete_record("pollwise_outbox_schema", recorded, __package__)
                    raise SchemaError(f"{self.path}: {error}. {lacking}") from None
            return applied
        finally:
            connection.close()

    def _version(self, connection: sqlite3.Connection) -> int:
        return max(self._versions(connection) or [0])

    def _versions(self, connection: sqlite3.Connection) -> list[int] | None:
        """The versions that were applied; None if their table does not exist."""
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
                f"{self.path} has no outbox tables. Run `pollwise outbox migrate URL`."
            )
        if found < known:
            raise SchemaError(
                f"{self.path}: the outbox tables have version {found}; this code needs {known}. "
                "Run `pollwise outbox migrate URL`."
            )

    # Statements

    def _rows(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        values["outbox"] = self._outbox
        return self.connect().execute(self._sql[name], values).fetchall()

    def _run(self, name: str, **values: Any) -> int:
        """Run a statement that changes rows; return how many."""
        values["outbox"] = self._outbox
        return self.connect().execute(self._sql[name], values).rowcount


def migration(found: int = 0) -> str:
    """The SQL that upgrades tables of version `found`, for one transaction."""
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
