"""A queue in a SQLite database of Django."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterable
from functools import partial
from pathlib import Path
from typing import Any, cast

from django.db import connections, transaction

from pollwise.contrib.django.conf import QueuePlace, with_options
from pollwise.errors import SchemaError
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.queues.sqlite.store import SqliteStore
from pollwise.queues.urls import parse_url, sqlite_place
from pollwise.runtime.hints import Hints
from pollwise.storage.sqlite.file import FileConnection, explained
from pollwise.storage.sqlite.watched_file import WatchedFile

#: Stands for the path of a database in memory, which tests use.
IN_MEMORY = "/in-memory"


def open_on_sqlite(place: QueuePlace, name: str) -> DjangoSqliteQueue:
    if connections[place.database].is_in_memory_db():
        url = with_options(f"sqlite:///{IN_MEMORY}", {"queue": name, **place.options})
    else:
        url = place.url_of(name)
    path, options = sqlite_place(parse_url(url))
    return DjangoSqliteQueue(path, str(place.database), **options)


class DjangoConnection:
    """Django's connection, as a store uses it: all calls join its open transaction.

    grouped: there is one; then a call that fails undoes only what it did itself.
    """

    inside = False

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.grouped: bool = connection.in_transaction
        self.execute = connection.execute
        self.executemany = connection.executemany
        self._connection = connection

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction


class DjangoSqliteStore(SqliteStore):
    """The jobs of one queue, on Django's connection of the current thread."""

    def __init__(self, alias: str, path: Path, queue: str, **options: Any) -> None:
        super().__init__(path, queue, create=False, **options)
        self._alias = alias
        self._fits = False

    def connect(self) -> FileConnection:
        django = connections[self._alias]
        django.ensure_connection()
        connection = cast(FileConnection, DjangoConnection(django.connection))
        if not self._fits:
            if not self._version(connection):
                raise SchemaError(
                    f"the database {self._alias!r} has no tables of Pollwise. "
                    f"Run `manage.py migrate --database {self._alias}`."
                )
            self._fits = True
        return connection

    def create(self) -> None:
        """Create or upgrade the tables."""
        django = connections[self._alias]
        django.ensure_connection()
        self._migrate(cast(FileConnection, DjangoConnection(django.connection)))


class Answer:
    """An awaitable that has its value."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __await__(self) -> Generator[None, None, Any]:
        return self._value
        yield


class DjangoThread:
    """Stands in for the queue's thread: makes each call at once, in the calling thread."""

    closed = False

    def __init__(self, store: DjangoSqliteStore) -> None:
        self.connected = store

    def call(self, method: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Answer:
        try:
            return Answer(method(*args, **kwargs))
        except sqlite3.Error as error:
            raise explained(error, self.connected.path) from error


class DjangoHints(WatchedFile):
    """Sends hints after the commit of Django's transaction."""

    alias: str

    def send_to_others(self, count: int = 1, kinds: Iterable[str] | None = None) -> None:
        transaction.on_commit(partial(super().send_to_others, count, kinds), using=self.alias)

    def _broadcast_to_others(self, kind: str) -> None:
        transaction.on_commit(partial(super()._broadcast_to_others, kind), using=self.alias)


class DjangoSqliteQueue(SqliteQueue):
    """A queue on Django's connection `alias`."""

    def __init__(self, path: str, alias: str, **options: Any) -> None:
        self._alias = alias
        super().__init__(path, **options)
        options = {"synchronous": self.synchronous, "keep": self.keep, "clock": self.clock.epoch}
        self._store = DjangoSqliteStore(alias, self.path, self.name, **options)
        self._thread = cast(Any, DjangoThread(self._store))

    def create_tables(self) -> None:
        cast(DjangoSqliteStore, self._store).create()

    def _make_hints(self) -> Hints:
        if str(self.path) == IN_MEMORY:  # no other process sees it
            return Hints()
        hints = DjangoHints(self.path, self._watch)
        hints.alias = self._alias
        return hints
