"""A SQLite file as a store: one connection, opened, checked and migrated at its first use.

WAL lets readers and the one writer work without blocking each other. BEGIN IMMEDIATE makes a write
wait at its start, so that it never fails in the middle. A subclass names the package with its
migrations and the table with its version, so that several stores may share a file.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from pollwise.errors import SchemaError, StoreError, StoreUnavailable
from pollwise.storage.sql import migrations, statements

#: The oldest SQLite with all features that the statements use (RETURNING, UPDATE FROM, JSON).
OLDEST_SQLITE = (3, 38, 0)
#: How long a write waits for another process's write, in seconds.
BUSY_TIMEOUT = 5.0


class FileConnection(sqlite3.Connection):
    """A connection on which several calls can be one transaction.

    grouped: a transaction stays open at its end, and the next joins it; the thread commits them.
    inside: the current call is in its own part of that transaction.
    """

    grouped = False
    inside = False


class SqliteFile:
    """One connection to one database file, used by one thread at a time.

    package: has its migrations and statements. version_table: holds the version of its tables.
    holds: what the file contains, for errors.
    """

    package: str
    version_table: str
    holds: str

    def __init__(self, path: Path, *, synchronous: str, create: bool) -> None:
        self.path = path
        self._synchronous = synchronous
        self._create = create
        self._sql = statements(self.package)
        self._connection: sqlite3.Connection | None = None
        self._sharing = [self]

    def share(self, other: SqliteFile) -> None:
        """Use one connection with another store in the same file and thread."""
        if (self.path.absolute(), self._synchronous) != (
            other.path.absolute(),
            other._synchronous,
        ):
            raise StoreError(
                f"{self.path} and {other.path} cannot share a connection: it needs the same file "
                "and the same synchronous"
            )
        self._sharing = other._sharing
        self._sharing.append(self)

    @property
    def connection(self) -> FileConnection | None:
        return cast("FileConnection | None", self._connection)

    def connect(self) -> sqlite3.Connection:
        """The connection; opened, checked and migrated at the first call."""
        if self._connection is None:
            connection = self._shared() or self._open()
            try:
                self._prepare(connection)
            except BaseException:
                if connection is not self._shared():
                    connection.close()
                raise
            self._connection = connection
        return self._connection

    def _shared(self) -> sqlite3.Connection | None:
        found = (each._connection for each in self._sharing)
        return next((each for each in found if each is not None), None)

    def _open(self) -> sqlite3.Connection:
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            oldest = ".".join(map(str, OLDEST_SQLITE))
            raise StoreError(
                f"this Python has SQLite {sqlite3.sqlite_version}; Pollwise needs {oldest} or newer"
            )
        if self.path.is_dir():
            raise StoreError(f"{self.path} is a folder; name a file in it")
        if not self._create and not self.path.exists():
            raise StoreError(f"there is no database at {self.path}; check the path in the URL")
        if not self.path.parent.is_dir():
            raise StoreError(
                f"the folder {self.path.parent} for the database {self.path.name} does not exist; "
                "create it or correct the path"
            )
        return sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode={'rwc' if self._create else 'rw'}",
            uri=True,
            timeout=BUSY_TIMEOUT,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
            factory=FileConnection,
        )

    def _prepare(self, connection: sqlite3.Connection) -> None:
        found = self._version(connection)  # first, so that a foreign file stays untouched
        if not found and not self._create:
            raise SchemaError(f"{self.path} holds no {self.holds}; check the path in the URL")
        if not connection.in_transaction:  # else another store shares it, and has set them
            self._write_ahead(connection)
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        self._migrate(connection)

    def _write_ahead(self, connection: sqlite3.Connection) -> None:
        """Switch to WAL. SQLite does not wait for other processes here, so we do."""
        give_up = time.monotonic() + BUSY_TIMEOUT
        mode = None
        while mode is None:
            try:
                mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            except sqlite3.OperationalError as error:
                busy = getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY")
                if not busy or time.monotonic() > give_up:
                    raise
                with transaction(connection):
                    pass  # waits until the other process is done
        if mode != "wal":
            raise StoreError(
                f"{self.path} cannot use a write-ahead log (journal mode {mode}); "
                "put the database on a local disk"
            )

    def _migrate(self, connection: sqlite3.Connection) -> None:
        newest = migrations(self.package)[-1][0]
        if self._version(connection) >= newest:
            return  # also tables of a newer version: migrations only add
        with transaction(connection):
            found = self._version(connection)  # again: another process may have been faster
            if found >= newest:
                return
            for version, script in migrations(self.package):
                if version > found:
                    for statement in script_statements(script):
                        connection.execute(statement)
            table = self.version_table
            connection.execute(f"CREATE TABLE IF NOT EXISTS {table} (version INTEGER NOT NULL)")
            connection.execute(f"DELETE FROM {table}")  # noqa: S608
            connection.execute(f"INSERT INTO {table} VALUES (?)", (newest,))  # noqa: S608

    def _version(self, connection: sqlite3.Connection) -> int:
        known = connection.execute(
            "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (self.version_table,)
        ).fetchone()
        if not known:
            return 0
        row = connection.execute(f"SELECT version FROM {self.version_table}").fetchone()  # noqa: S608
        return int(row[0]) if row else 0

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection is not self._shared():
            connection.close()

    def call(self, method: Callable[..., Any], *args: Any) -> Any:
        """Run a method of this store; SQLite's errors are raised as ours."""
        try:
            return method(*args)
        except sqlite3.Error as error:
            raise explained(error, self.path) from error
        except OSError as error:
            raise StoreError(f"{error}. Check the path and its permissions.") from error


_EXPLANATIONS: tuple[tuple[str, type[StoreError], str], ...] = (
    ("SQLITE_NOTADB", StoreError, "It is not a SQLite database; correct the path in the URL."),
    ("SQLITE_CORRUPT", StoreError, "The file is damaged; restore it from a backup."),
    ("SQLITE_CANTOPEN", StoreError, "Check that the folder exists and this user may write there."),
    ("SQLITE_READONLY", StoreError, "This user may not write the file or its folder; allow it."),
    ("SQLITE_PERM", StoreError, "This user may not open the file; allow it."),
    ("SQLITE_FULL", StoreUnavailable, "The disk is full; free some space."),
    ("SQLITE_BUSY", StoreUnavailable, "Another process has held the write lock for too long."),
    ("SQLITE_LOCKED", StoreUnavailable, "Another statement has held the table for too long."),
    ("SQLITE_IOERR", StoreUnavailable, "The disk has a problem; see the system's log."),
    ("SQLITE_ERROR", SchemaError, "Its tables differ from those that this version creates."),
)


def explained(error: sqlite3.Error, path: Path) -> StoreError:
    """SQLite's error as ours: what it was, and what to do about it."""
    name = getattr(error, "sqlite_errorname", "")
    for prefix, kind, advice in _EXPLANATIONS:
        if name.startswith(prefix):
            return kind(f"{path}: {error}. {advice}")
    return StoreError(f"{path}: {error} ({name or type(error).__name__})")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit all of it or nothing; inside another transaction, join that one.

    On a grouped connection the thread commits; an error undoes this part of the transaction only.
    """
    group = connection if isinstance(connection, FileConnection) and connection.grouped else None
    begun = connection.in_transaction
    if begun and (group is None or group.inside):
        yield
        return
    connection.execute("SAVEPOINT part" if begun else "BEGIN IMMEDIATE")
    try:
        if group is not None:
            group.inside = True
        yield
        if begun:
            connection.execute("RELEASE part")
        elif group is None:
            connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK TO part" if begun else "ROLLBACK")
        raise
    finally:
        if group is not None:
            group.inside = False


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """Read one state of the file, whatever others commit meanwhile."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


def script_statements(script: str) -> Iterator[str]:
    """The statements of a script; a trigger with its inner statements is one."""
    statement = ""
    for line in script.splitlines(keepends=True):
        if not statement and (not line.strip() or line.startswith("--")):
            continue
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
