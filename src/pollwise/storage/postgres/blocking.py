"""Connections for calls that block the calling thread: for code without an event loop.

The statements, their parameters and their errors are those of `connections`. What differs is that
a thread waits for the answer itself, which takes a fraction of the time that an event loop in
another thread takes.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.adapt import Transformer
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq.abc import PGresult

from pollwise.platforms.sockets import poller
from pollwise.runtime.home import keep_for_parent, watch_forks
from pollwise.storage.postgres.connections import AGAIN, CANCEL_PATIENCE, TRIES, Connections
from pollwise.storage.postgres.errors import (
    StatementRefused,
    connecting_error,
    late_error,
    lost_error,
)
from pollwise.storage.postgres.params import Param
from pollwise.storage.postgres.wire import StatementAnswer


class BlockingConnection(StatementAnswer):
    """One connection, for one call at a time, from any thread."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__(connection)
        self._connection = connection
        self._input = poller(self._pgconn.socket)
        self._either = poller(self._pgconn.socket, writable=True)
        self._transformer = Transformer()

    @property
    def alive(self) -> bool:
        """True if the connection is usable: the server has sent nothing, such as its end."""
        return not self._input.poll(0)

    def rows(
        self, command: bytes, params: Sequence[Param], timeout: float
    ) -> list[tuple[Any, ...]]:
        """The rows of a statement. A `TimeoutError` cancels it at the server."""
        self.send(command, params)
        try:
            result = self._answer(time.monotonic() + timeout)
        except TimeoutError:
            late = self._cancelled()
            if late is None:
                raise
            result = late
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    def _cancelled(self) -> PGresult | None:
        """Ask the server to cancel the call; returns its answer if it was already done."""
        with suppress(TimeoutError, StatementRefused, psycopg.Error):
            self._connection.cancel_safe(timeout=CANCEL_PATIENCE)
            return self._answer(time.monotonic() + CANCEL_PATIENCE)
        return None

    def _answer(self, until: float) -> PGresult:
        while self._pgconn.flush():
            self._wait(self._either, until)
        while not self._complete():
            self._wait(self._input, until)
        return self._result()

    def _wait(self, files: Any, until: float) -> None:
        left = until - time.monotonic()
        if left <= 0 or not files.poll(math.ceil(left * 1000)):
            raise TimeoutError
        self._pgconn.consume_input()

    def drop(self) -> None:
        """Close the connection at once."""
        self._connection.close()


class BlockingConnections:
    """Connections that are opened when needed and kept; at most as many as `beside` has."""

    def __init__(self, beside: Connections) -> None:
        self._beside = beside
        self._parts: dict[str, Any] = conninfo_to_dict(beside.conninfo)
        self._parts.setdefault("connect_timeout", max(2, math.ceil(beside.timeout)))
        self._closed = False
        self._idle: list[BlockingConnection] = []
        self._free = threading.Semaphore(beside.most)
        watch_forks(self)

    def rows(self, command: bytes, params: Sequence[Param]) -> list[tuple[Any, ...]] | None:
        """The rows of a statement; None, and nothing was done, if all connections are in use."""
        self._beside.check_open()
        free = self._free
        if not free.acquire(blocking=False):
            return None
        try:
            for last in range(TRIES, 0, -1):
                try:
                    return self._once(command, params)
                except StatementRefused as refused:
                    if refused.sqlstate not in AGAIN or last == 1:
                        raise self._beside.explain(refused, self._beside.where) from None
            raise AssertionError("unreachable")
        finally:
            free.release()

    def _once(self, command: bytes, params: Sequence[Param]) -> list[tuple[Any, ...]]:
        wire = self._wire()
        reusable = False
        try:
            rows = wire.rows(command, params, self._beside.timeout)
            reusable = True
            return rows
        except StatementRefused as refused:
            reusable = not refused.breaks
            raise
        except TimeoutError:
            raise late_error(self._beside.timeout, self._beside.where) from None
        except psycopg.Error as error:
            raise lost_error(error, self._beside.where) from None
        finally:
            if reusable and not self._closed:
                self._idle.append(wire)
            else:
                wire.drop()  # a late answer would look like the next call's

    def _wire(self) -> BlockingConnection:
        while self._idle:
            with suppress(IndexError):  # another thread was faster
                wire = self._idle.pop()
                if wire.alive:
                    return wire
                wire.drop()
        try:
            return BlockingConnection(psycopg.Connection.connect(autocommit=True, **self._parts))
        except psycopg.Error as error:
            raise connecting_error(error, self._beside.where) from None

    def close(self) -> None:
        """Close the idle connections; one in use is closed after its call."""
        self._closed = True
        while self._idle:
            with suppress(IndexError):
                self._idle.pop().drop()

    def after_fork(self) -> None:
        keep_for_parent(*self._idle)
        self._idle, self._free = [], threading.Semaphore(self._beside.most)
