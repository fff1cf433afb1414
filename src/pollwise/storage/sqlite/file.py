"""A SQLite file as a store: one connection, opened, checked and migrated at its first use.

WAL lets readers and the one writer work without blocking each other. BEGIN IMMEDIATE makes a write
wait at its start, so that it never fails in the middle. A subclass names the package with its
migrations and the table with their versions, so that several stores may share a file.
"""

from __future__ import annotations

import os
import random
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from pollwise.errors import ConfigError, SchemaError, StoreError, StoreUnavailable
from pollwise.platforms.files import create_private, may_create_in
from pollwise.runtime.decoding import NotUtf8
from pollwise.storage.sql import incomplete_record, migrations, statements
from pollwise.storage.sqlite import write_ahead_log as log

#: The oldest SQLite with all features that the statements use (RETURNING, UPDATE FROM, JSON).
OLDEST_SQLITE = (3, 38, 0)
#: How long a call waits for another process's write, in seconds.
BUSY_TIMEOUT = 5.0
#: How long SQLite itself waits for a lock, in seconds, and about how long we wait until the next
#: try. SQLite would wait longer and longer, and rarely get the lock of a busy database.
BUSY_APART = 0.003
#: How often to check that the path still names the open file, in seconds.
CHECK_FILE_EVERY = 1.0

#: The error of a text that is not UTF-8; SQLite itself accepts any bytes.
_NOT_UTF8 = "Could not decode to UTF-8"
#: The errors of a migration that was already applied.
_APPLIED_TWICE = re.compile("already exists|duplicate column")


class FileConnection(sqlite3.Connection):
    """A connection on which several calls can be one transaction.

    grouped: a transaction stays open at its end, and the next joins it; the thread commits them.
    inside: the current call is in its own part of that transaction.
    file: the device and the inode of the open file. check_at: when to compare them again.
    report_at: the size of the write-ahead log that is reported next.
    read_only: it is open as a copy that nobody changes.
    """

    grouped = False
    inside = False
    file: tuple[int, int] | None = None
    check_at: float = 0.0
    report_at: int = log.LOG_REPORTED
    read_only = False


class FileBusy(Exception):
    """Others hold the lock of the file; `error` is SQLite's. Nothing was done."""

    def __init__(self, error: sqlite3.Error) -> None:
        super().__init__(str(error))
        self.error = error


class SqliteFile:
    """One connection to one database file, used by one thread at a time.

    package: has its migrations and statements. version_table: holds the versions of its tables.
    holds: what the file contains, for errors. made_by: the command that creates the tables, if the
    first use does not.

    synchronous: what survives a power cut, or None to leave the file's journal as it is.
    timeout: how long a call waits for another process's write; `BUSY_TIMEOUT` if None.
    bound: the values of parameters that all statements have in common.
    """

    package: ClassVar[str]
    version_table: ClassVar[str]
    holds: ClassVar[str]
    made_by: ClassVar[str] = ""

    def __init__(
        self,
        path: Path,
        *,
        synchronous: str | None,
        create: bool,
        timeout: float | None = None,
        **bound: Any,
    ) -> None:
        self.path = path
        self._synchronous = synchronous
        self._create = create
        self._timeout = timeout
        self._bound = bound
        self._sql = statements(self.package)
        self.connection: FileConnection | None = None
        #: Called in the thread of the calls when readers keep a large log: with its size.
        self.on_large_log: Callable[[int], None] | None = None
        self._sharing = [self]
        self._was_open = False
        self._lost = ""  # what became of the open file, until a call has raised it

    def share(self, other: SqliteFile) -> None:
        """Use one connection with another store in the same file and thread."""
        same_file = self.path.absolute() == other.path.absolute()
        if not same_file or self._synchronous != other._synchronous:
            raise StoreError(
                f"{self.path} and {other.path} cannot share a connection: it needs the same file "
                "and the same synchronous"
            )
        self._sharing = other._sharing
        self._sharing.append(self)

    def connect(self) -> FileConnection:
        """The connection; opened, checked and migrated at the first call.

        A file that was open once is not created again.
        """
        if self.connection is None:
            if self._lost:
                lost, self._lost = self._lost, ""
                raise StoreUnavailable(lost)
            connection = self._shared() or self._open(create=self._create)
            try:
                self._prepare(connection)
            except BaseException:
                if connection is not self._shared():
                    connection.close()
                raise
            self.connection = connection
            self._was_open, self._create = True, False
        return self.connection

    def check_file(self) -> None:
        """Close the connection if the file was removed or replaced; the next call says so."""
        connection, now = self.connection, time.monotonic()
        if connection is None or now < connection.check_at:
            return
        connection.check_at = now + CHECK_FILE_EVERY
        lost = _identity(self.path) != connection.file
        if not lost and not (connection.read_only and log.is_in_use(self.path)):
            self._check_log(connection)
            return
        for each in [each for each in self._sharing if each.connection is connection]:
            each.connection = None
            each._lost = each._removed() if lost else ""
        connection.close()

    def _check_log(self, connection: FileConnection) -> None:
        """Report a write-ahead log that grows because readers keep it."""
        size = log.log_size(self.path)
        if size <= log.LOG_KEPT:
            connection.report_at = log.LOG_REPORTED
        elif size >= connection.report_at and not connection.in_transaction:
            with suppress(sqlite3.Error):
                if log.readers_keep_log(connection):
                    connection.report_at = 2 * size
                    if self.on_large_log is not None:
                        self.on_large_log(size)

    def _removed(self) -> str:
        if not self.path.exists():
            return (
                f"{self.path} was removed while it was open, with everything in it. Put the "
                "file back; or, to begin with an empty one, start this process again"
            )
        return (
            f"{self.path} was replaced by another file while it was open; what was written in the "
            "last second may be in the old one. The next call uses the new one"
        )

    def _shared(self) -> FileConnection | None:
        found = (each.connection for each in self._sharing)
        return next((each for each in found if each is not None), None)

    def _open(self, *, create: bool) -> FileConnection:
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            oldest = ".".join(map(str, OLDEST_SQLITE))
            raise StoreError(
                f"this Python has SQLite {sqlite3.sqlite_version}; Pollwise needs {oldest} or newer"
            )
        if self.path.is_dir():
            raise StoreError(f"{self.path} is a folder; name a file in it")
        if any(each._was_open for each in self._sharing) and not self.path.exists():
            raise StoreUnavailable(self._removed())
        if not create and not self.path.exists():
            make = f", or create it with `{self.made_by}`" if self.made_by else ""
            raise StoreError(
                f"there is no database at {self.path}; check the path in the URL{make}"
            )
        if not self.path.parent.is_dir():
            raise StoreError(
                f"the folder {self.path.parent} for the database {self.path.name} does not exist; "
                "create it or correct the path"
            )
        if create:
            _make_private(self.path)
        mode = "rwc" if create else "rw"
        if read_only := _is_read_only(self.path):
            mode = "ro&immutable=1"
        connection = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=BUSY_APART,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
            factory=FileConnection,
        )
        connection.file = _identity(self.path)
        connection.check_at = time.monotonic() + CHECK_FILE_EVERY
        connection.read_only = read_only
        connection.execute(f"PRAGMA journal_size_limit = {log.LOG_KEPT}")
        return connection

    def _prepare(self, connection: FileConnection) -> None:
        found = self._version(connection)  # first, so that a foreign file stays untouched
        if not found and not self._create:
            raise SchemaError(f"{self.path} holds no {self.holds}; check the path in the URL")
        if connection.read_only:
            if found < (needed := migrations(self.package)[-1][0]):
                raise SchemaError(
                    f"{self.path} has {self.holds} of version {found}, this code needs {needed}, "
                    f"and {self.path.parent} is read-only; copy the file into a folder of your own"
                )
            return
        [(mode,)] = connection.execute("PRAGMA journal_mode = WAL")
        if mode != "wal":
            raise StoreError(
                f"{self.path} cannot use a write-ahead log (journal mode {mode}); "
                "put the database on a local disk"
            )
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        self._migrate(connection)

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None and connection is not self._shared():
            connection.close()

    def call(self, method: Callable[..., Any], *args: Any) -> Any:
        """Call a method of this store; raise SQLite's errors as ours.

        While others hold the lock, try again until `timeout`. A method is one transaction or only
        reads, so a failed one has done nothing; a failed commit can be repeated.
        """
        give_up = time.monotonic() + (BUSY_TIMEOUT if self._timeout is None else self._timeout)
        while True:
            try:
                return self.call_once(method, *args)
            except FileBusy as busy:
                if time.monotonic() > give_up:
                    raise explained(busy.error, self.path) from busy.error
                time.sleep(random.uniform(0.0, 2 * BUSY_APART))

    def call_once(self, method: Callable[..., Any], *args: Any) -> Any:
        """As `call`, but raises `FileBusy` at once if others hold the lock."""
        while True:
            try:
                return method(*args)
            except sqlite3.Error as error:
                self._end_transaction()
                if self.connection is not None and _NOT_UTF8 in str(error):
                    if self.connection.text_factory is str:
                        self.connection.text_factory = lenient_text
                        continue
                if getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
                    raise FileBusy(error) from error
                raise explained(error, self.path) from error
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

    # Versions

    @classmethod
    def migration(cls, found: int = 0) -> str:
        """The SQL that upgrades tables of version `found`, for one transaction."""
        table = cls.version_table
        steps = [
            f"{script}\nINSERT INTO {table} (version) VALUES ({version});\n"
            for version, script in migrations(cls.package)
            if version > found
        ]
        return "\n".join([_VERSION_TABLE.format(table=table), *steps])

    def _migrate(self, connection: FileConnection) -> list[int]:
        """Upgrade the tables; return the versions that were missing."""
        if self._version(connection) >= migrations(self.package)[-1][0]:
            return []  # also for tables of a newer version: migrations only add
        with transaction(connection):
            recorded = self._versions(connection)
            found = self._version(connection)  # again: another process may have been faster
            try:
                for statement in script_statements(self.migration(found)):
                    connection.execute(statement)
            except sqlite3.OperationalError as error:
                if recorded is None or not _APPLIED_TWICE.search(str(error)):
                    raise
                lacking = incomplete_record(self.version_table, recorded, self.package)
                raise SchemaError(f"{self.path}: {error}. {lacking}") from None
        return [version for version, _ in migrations(self.package) if version > found]

    def _version(self, connection: FileConnection) -> int:
        return max(self._versions(connection) or [0])

    def _versions(self, connection: FileConnection) -> list[int] | None:
        """The versions that were applied; None if their table does not exist."""
        table = self.version_table
        known = connection.execute(
            "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)
        ).fetchone()
        if not known:
            return None
        rows = connection.execute(f"SELECT version FROM {table} ORDER BY version")  # noqa: S608
        return [int(version) for (version,) in rows]

    # Statements

    def _rows(self, name: str, /, **values: Any) -> list[tuple[Any, ...]]:
        values |= self._bound
        return self.connect().execute(self._sql[name], values).fetchall()

    def _change(self, name: str, /, **values: Any) -> int:
        """Run a statement that changes rows; return how many."""
        values |= self._bound
        return self.connect().execute(self._sql[name], values).rowcount


_VERSION_TABLE = """\
CREATE TABLE IF NOT EXISTS {table} (
    version    INTEGER PRIMARY KEY,
    applied_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
);
"""


def _make_private(path: Path) -> None:
    """Create the file for this user only; SQLite gives its -wal and -shm the same permissions."""
    with suppress(OSError):  # it exists, or SQLite's error says why it cannot
        create_private(os.path.realpath(path))


def _is_read_only(path: Path) -> bool:
    """True for a copy that nobody uses, in a folder where this user cannot create SQLite's files.

    SQLite then has to be told that nobody changes the file.
    """
    if not path.exists() or may_create_in(path.parent):
        return False
    if log.log_size(path) and not path.with_name(f"{path.name}-shm").exists():
        raise StoreError(
            f"{path} cannot be read without writing in {path.parent}, because it has a write-ahead "
            f"log; copy it and {log.log_of(path).name} into a folder of your own"
        )
    return not log.is_in_use(path)


def file_path(path: str | Path, example: str) -> Path:
    found = Path(path)
    if found.name in ("", ".."):
        raise ConfigError(f"path = {str(path)!r} is not a file name; give one such as {example}")
    return found


_EXPLANATIONS: tuple[tuple[str, type[StoreError], str], ...] = (
    ("SQLITE_NOTADB", StoreError, "It is not a SQLite database; correct the path in the URL."),
    ("SQLITE_CORRUPT", StoreError, "The file is damaged; restore it from a backup."),
    ("SQLITE_CANTOPEN", StoreError, "Check that the folder exists and this user may write there."),
    ("SQLITE_READONLY", StoreError, "This user may not write the file or its folder; allow it."),
    ("SQLITE_PERM", StoreError, "This user may not open the file; allow it."),
    ("SQLITE_FULL", StoreUnavailable, "The disk is full; free some space."),
    ("SQLITE_BUSY", StoreUnavailable, "Another process has held the write lock for too long."),
    ("SQLITE_LOCKED", StoreUnavailable, "Another statement has held the table for too long."),
    (
        "SQLITE_IOERR",
        StoreUnavailable,
        "The disk is full or broken; see `df` and the system's log.",
    ),
    ("SQLITE_ERROR", SchemaError, "Its tables differ from those that this version creates."),
)


def explained(error: sqlite3.Error, path: Path) -> StoreError:
    """SQLite's error as ours: what it was, and what to do about it."""
    name = getattr(error, "sqlite_errorname", "")
    for prefix, kind, advice in _EXPLANATIONS:
        if name.startswith(prefix):
            return kind(f"{path}: {error}. {advice}")
    return StoreError(f"{path}: {error} ({name or type(error).__name__})")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def lenient_text(text: bytes) -> str:
    """A `text_factory` that takes any bytes, as SQLite does."""
    try:
        return str(text, "utf-8")
    except UnicodeDecodeError:
        return NotUtf8(text, "utf-8", "replace")


@contextmanager
def transaction(connection: FileConnection) -> Iterator[None]:
    """Commit all of it or nothing; inside another transaction, join that one.

    On a grouped connection the thread commits; an error undoes this part of the transaction only.
    """
    begun = connection.in_transaction
    if begun and (connection.inside or not connection.grouped):
        yield
        return
    connection.execute("SAVEPOINT part" if begun else "BEGIN IMMEDIATE")
    connection.inside = True
    try:
        yield
        if begun:
            connection.execute("RELEASE part")
        elif not connection.grouped:
            connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK TO part" if begun else "ROLLBACK")
        raise
    finally:
        connection.inside = False


@contextmanager
def snapshot(connection: FileConnection) -> Iterator[None]:
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
