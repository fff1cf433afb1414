"""Connections to Postgres: a few, each driven by libpq's own asynchronous calls.

psycopg connects; from then on a call is one message out and one answer in, without its cursors:
the statements are ours and few, their parameters are text and their results binary, and what a
cursor does on top (transactions, prepared statements, cancelling politely) is what must not happen
here. Nothing is prepared, so a pooler in transaction mode may sit in between. A call that is not
answered in time ends its connection, so that nobody ever waits for a server that stands still.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from pollux.clock import Clock
from pollux.errors import StoreError, StoreUnavailable
from pollux.queues.postgres_errors import Refused, connecting_error, lost_error, refused_error
from pollux.queues.postgres_params import Param

#: A call that met others at work on the same rows is tried again so often.
TRIES = 5
#: Serialization failure, deadlock, and two leases on one key: nothing was done, so try again.
AGAIN = frozenset({"40001", "40P01", "23505"})

_FIELDS = (
    DiagnosticField.SQLSTATE,
    DiagnosticField.MESSAGE_PRIMARY,
    DiagnosticField.CONSTRAINT_NAME,
)


class Wire:
    """One connection, for one call at a time."""

    def __init__(
        self, connection: psycopg.AsyncConnection[Any], heard: Callable[[str, str], None] | None
    ) -> None:
        self._connection = connection  # holds the memory that `_pgconn` points to
        self._pgconn: PGconn = connection.pgconn
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[None] | None = None
        self._fd = self._pgconn.socket
        self._loop.add_reader(self._fd, self._readable)
        self.lost: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    async def connect(cls, conninfo: str, heard: Callable[[str, str], None] | None = None) -> Wire:
        connection = await psycopg.AsyncConnection.connect(conninfo, autocommit=True)
        return cls(connection, heard)

    @property
    def alive(self) -> bool:
        """Is it worth a call? A connection that the server ended is noticed here."""
        if not self.lost.done():
            self._consume()
        return not self.lost.done()

    @property
    def backend(self) -> int:
        return self._pgconn.backend_pid

    async def call(self, command: bytes, params: Sequence[Param]) -> PGresult:
        """Send a statement and wait for its answer. `Refused` when the server says no."""
        self._pgconn.send_query_params(command, params, None, None, 1)
        return await self._answer()

    async def script(self, text: bytes) -> None:
        """Run many statements."""
        self._pgconn.send_query(text)
        await self._answer()

    async def _answer(self) -> PGresult:
        pgconn = self._pgconn
        while pgconn.flush():
            await self._writable()
        answer: PGresult | None = None
        while True:
            while pgconn.is_busy():
                self._waiting = self._loop.create_future()
                try:
                    await self._waiting
                finally:
                    self._waiting = None
            result = pgconn.get_result()
            if result is None:
                break
            if answer is None or answer.status != ExecStatus.FATAL_ERROR:
                answer = result
        if answer is None:
            raise psycopg.OperationalError("the connection ended before the answer came")
        if answer.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            raise Refused(*map(_text, map(answer.error_field, _FIELDS)))
        return answer

    def drop(self) -> None:
        """End the connection without a word more."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            self._fd = -1
        self._pgconn.finish()
        self._note_lost()

    async def _writable(self) -> None:
        writable = asyncio.Event()
        self._loop.add_writer(self._fd, writable.set)
        try:
            await writable.wait()
        finally:
            if self._fd >= 0:
                self._loop.remove_writer(self._fd)

    def _readable(self) -> None:
        self._consume()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _consume(self) -> None:
        try:
            self._pgconn.consume_input()
            while notice := self._pgconn.notifies():
                if self._heard is not None:
                    self._heard(notice.relname.decode(), notice.extra.decode())
        except psycopg.Error as error:
            if self._fd >= 0:  # else its end would make the file readable for ever
                self._loop.remove_reader(self._fd)
                self._fd = -1
            self._note_lost(error)

    def _note_lost(self, error: Exception | None = None) -> None:
        if not self.lost.done():
            self.lost.set_exception(error or psycopg.OperationalError("the connection was closed"))
            self.lost.exception()  # whoever waits for it gets it; nobody has to
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error or psycopg.OperationalError("connection closed"))


class Connections:
    """Up to `most` connections, made when they are needed and kept.

    where: names the store in errors.
    """

    def __init__(
        self, conninfo: str, where: str, clock: Clock, *, timeout: float, most: int
    ) -> None:
        self._conninfo = conninfo
        self._where = where
        self._clock = clock
        self._timeout = timeout
        self._most = most
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots = asyncio.Semaphore(most)
        self._idle: list[Wire] = []
        self._calls: set[asyncio.Task[Any]] = set()
        self._transformer = Transformer()
        self._closed = False
        #: Statements sent, for whoever counts them.
        self.count = 0

    async def rows(
        self, command: bytes, params: Sequence[Param] = (), *, safe: bool = False
    ) -> list[tuple[Any, ...]]:
        """The rows of a statement, which runs to its end even if the caller is cancelled.

        safe: may be repeated when the connection broke and nobody knows whether it was run.
        """
        if self._closed:
            raise StoreError(f"{self._where} is closed; open it again")
        call = asyncio.get_running_loop().create_task(self._until_done(command, params, safe))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            call.add_done_callback(_forget)
            raise

    async def script(self, text: str, *, patient: bool = False) -> None:
        """Run a script, on a connection of its own. patient: however long it takes."""
        with self._clock.outside():
            try:
                async with asyncio.timeout(None if patient else self._timeout):
                    wire = await self._connected()
                    try:
                        await wire.script(text.encode())
                    finally:
                        wire.drop()
            except TimeoutError:
                raise self._too_late() from None
            except Refused as refused:
                raise refused_error(refused, self._where) from None
            except psycopg.Error as error:
                raise lost_error(error, self._where) from None

    async def close(self) -> None:
        """End all connections, after the calls under way."""
        self._closed = True
        while self._calls:
            await asyncio.wait(self._calls)
        for wire in self._idle:
            wire.drop()
        self._idle.clear()

    async def _until_done(
        self, command: bytes, params: Sequence[Param], safe: bool
    ) -> list[tuple[Any, ...]]:
        with self._clock.outside():
            tries = 0
            while True:
                tries += 1
                try:
                    async with asyncio.timeout(self._timeout):
                        return await self._once(command, params)
                except TimeoutError:
                    raise self._too_late() from None
                except Refused as refused:
                    if refused.sqlstate not in AGAIN or tries == TRIES:
                        raise refused_error(refused, self._where) from None
                except psycopg.Error as error:
                    if not safe or tries > 1:
                        raise lost_error(error, self._where) from None

    async def _once(self, command: bytes, params: Sequence[Param]) -> list[tuple[Any, ...]]:
        self._adopt(asyncio.get_running_loop())
        async with self._slots:
            wire = await self._wire()
            try:
                self.count += 1
                result = await wire.call(command, params)
            except Refused as refused:
                if refused.breaks:
                    wire.drop()
                raise
            except BaseException:
                wire.drop()  # its answer may still come, and would be taken for another's
                raise
            finally:
                if wire.alive:
                    self._idle.append(wire)
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    async def _wire(self) -> Wire:
        while self._idle:
            wire = self._idle.pop()
            if wire.alive:
                return wire
            wire.drop()
        return await self._connected()

    async def _connected(self) -> Wire:
        try:
            return await Wire.connect(self._conninfo)
        except psycopg.Error as error:
            raise connecting_error(error, self._where) from None

    def _too_late(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self._where} did not answer within timeout = {self._timeout:g} s. Look at its load "
            "and its locks, or raise `timeout`."
        )

    def _adopt(self, loop: asyncio.AbstractEventLoop) -> None:
        """Connections belong to an event loop; those of one that ended are let go."""
        if loop is not self._loop:
            for wire in self._idle:
                wire.drop()
            self._idle.clear()
            self._slots = asyncio.Semaphore(self._most)
            self._loop = loop


def _forget(call: asyncio.Task[Any]) -> None:
    """Look at the error of a call that nobody waits for, so that asyncio does not report it."""
    if not call.cancelled():
        call.exception()


def _text(field: bytes | None) -> str:
    return (field or b"").decode(errors="replace")
