"""Connections to Postgres: a few, each driven by libpq's own asynchronous calls.

psycopg connects; after that a call is one message out and one answer in, without its cursors. The
statements are ours and few, their parameters are text and their results binary. What a cursor adds
(transactions, prepared statements, waiting while it cancels) must not happen here. Nothing is
prepared, so a pooler in transaction mode may sit in between. A call that is not answered in time is
cancelled at the server, which would otherwise still carry it out, and its connection is closed;
neither waits long for a server that hangs.

Measured (benchmarks/wire.py): a call is 2 to 4 % faster than with psycopg's cursor. So speed is not
the reason to do without cursors; the control over cancelling, transactions and prepared statements
is.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import capabilities
from psycopg.adapt import Transformer
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from pollwise.errors import StoreError, StoreUnavailable
from pollwise.runtime.clock import Clock
from pollwise.runtime.home import Home, keep_for_parent, watch_forks
from pollwise.storage.postgres.errors import (
    StatementRefused,
    connecting_error,
    lost_error,
    refused_error,
)
from pollwise.storage.postgres.params import Param

#: How often a call is tried that conflicts with others on the same rows.
TRIES = 5
#: Serialization failure, deadlock, and two leases on one key: nothing was done, so try again.
AGAIN = frozenset({"40001", "40P01", "23505"})
#: How long the server may take to cancel a call, in seconds; and how long running calls may go on
#: when everything is closed, before they are cancelled.
CANCEL_PATIENCE = 2.0
CLOSE_PATIENCE = 2.0

_FIELDS = (DiagnosticField.SQLSTATE, DiagnosticField.MESSAGE_PRIMARY)


class WireConnection:
    """One connection, for one call at a time."""

    def __init__(
        self, connection: psycopg.AsyncConnection[Any], heard: Callable[[str, str], None] | None
    ) -> None:
        self._connection = connection  # owns the memory that `_pgconn` points to
        self._pgconn: PGconn = connection.pgconn
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[None] | None = None
        self._answered: PGresult | None = None
        self._fd = self._pgconn.socket
        self._loop.add_reader(self._fd, self._readable)
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self._inherited = False
        watch_forks(self)

    @classmethod
    async def connect(
        cls, conninfo: str, heard: Callable[[str, str], None] | None = None
    ) -> WireConnection:
        connection = await psycopg.AsyncConnection.connect(conninfo, autocommit=True)
        return cls(connection, heard)

    @property
    def alive(self) -> bool:
        """True if the connection is usable. Notices that the server closed it."""
        if not self.lost.done():
            self._consume()
        return not self.lost.done()

    async def call(self, command: bytes, params: Sequence[Param]) -> PGresult:
        """Send a statement and wait for its answer. Raises `StatementRefused` for an error."""
        self._answered = None
        self._pgconn.send_query_params(command, params, None, None, 1)
        return await self._answer()

    async def script(self, text: bytes) -> None:
        """Run several statements."""
        self._answered = None
        self._pgconn.send_query(text)
        await self._answer()

    async def cancelled(self, patience: float) -> PGresult | None:
        """Ask the server to cancel the call; returns its answer if it was already done.

        A server that waits for a lock does not notice that the client is gone. Gives up after
        `patience` seconds if the server hangs.
        """
        with suppress(TimeoutError, StatementRefused, psycopg.Error, OSError):
            async with asyncio.timeout(patience):
                await self._ask_to_cancel(patience)
                return await self._answer()
        return None

    async def _ask_to_cancel(self, patience: float) -> None:
        if capabilities.has_cancel_safe():
            await self._connection.cancel_safe(timeout=patience)
            return
        # libpq before 17 can only cancel blocking, so it runs in a thread that nobody waits for.
        request, asked = self._pgconn.get_cancel(), asyncio.Event()

        def ask() -> None:
            with suppress(psycopg.Error, RuntimeError):  # the event loop may be closed by now
                request.cancel()
                self._loop.call_soon_threadsafe(asked.set)

        threading.Thread(target=ask, name="pollwise-cancel", daemon=True).start()
        await asked.wait()

    async def _answer(self) -> PGresult:
        pgconn = self._pgconn
        while pgconn.flush():
            await self._writable()
        while True:
            while pgconn.is_busy():
                if self.lost.done():
                    self.lost.result()  # raises, because nothing would end the wait
                self._waiting = self._loop.create_future()
                try:
                    await self._waiting
                finally:
                    self._waiting = None
            result = pgconn.get_result()
            if result is None:
                break
            if self._answered is None or self._answered.status != ExecStatus.FATAL_ERROR:
                self._answered = result
        answer = self._answered
        if answer is None:
            raise psycopg.OperationalError("the connection ended before the answer came")
        if answer.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            raise StatementRefused(*map(_text, map(answer.error_field, _FIELDS)))
        return answer

    def drop(self) -> None:
        """Close the connection at once."""
        self._watch_no_more()
        self._pgconn.finish()
        self._note_lost()

    def abandon(self) -> None:
        """Close it from any thread, such as the garbage collector's."""
        with suppress(RuntimeError):  # if its event loop is closed, nothing is left to do
            self._loop.call_soon_threadsafe(self.drop)

    async def _writable(self) -> None:
        """Wait until more can be sent or input arrived; raise when the connection is lost."""
        self._waiting = self._loop.create_future()
        self._loop.add_writer(self._fd, self._go_on)
        try:
            await self._waiting
        finally:
            self._waiting = None
            if self._fd >= 0:
                self._loop.remove_writer(self._fd)

    def after_fork(self) -> None:
        self._inherited = True  # what arrives is for the parent

    def _readable(self) -> None:
        if self._inherited:
            return
        self._consume()
        self._go_on()

    def _go_on(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _consume(self) -> None:
        try:
            self._pgconn.consume_input()
            while notice := self._pgconn.notifies():
                if self._heard is not None:
                    self._heard(notice.relname.decode(), notice.extra.decode())
        except psycopg.Error as error:
            self._watch_no_more()  # otherwise the closed socket would stay readable
            self._note_lost(error)

    def _watch_no_more(self) -> None:
        """Stop watching the socket. libpq may have closed it, and its number may be reused."""
        if self._fd >= 0:
            for remove in (self._loop.remove_writer, self._loop.remove_reader):
                with suppress(OSError):  # removing one of two asks the kernel about the socket
                    remove(self._fd)
            self._fd = -1

    def _note_lost(self, error: Exception | None = None) -> None:
        error = error or psycopg.OperationalError("the connection was closed")
        if not self.lost.done():
            self.lost.set_exception(error)
            self.lost.exception()  # mark it as retrieved: nobody has to wait for it
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)


class Connections:
    """Up to `most` connections, opened when needed and kept.

    where: names the store in errors.
    told: turns a refusal into an error.
    """

    def __init__(
        self,
        conninfo: str,
        where: str,
        clock: Clock,
        *,
        timeout: float,
        most: int,
        told: Callable[[StatementRefused, str], StoreError] = refused_error,
    ) -> None:
        self._conninfo = conninfo
        self._where = where
        self._told = told
        self._clock = clock
        self._timeout = timeout
        self._most = most
        self._home = Home()
        self._slots = asyncio.Semaphore(most)
        self._idle: list[WireConnection] = []
        self._calls: set[asyncio.Task[Any]] = set()
        self._transformer = Transformer()
        self._closed = False
        self._cut: asyncio.TimerHandle | None = None
        #: The number of statements sent, for tests and benchmarks.
        self.count = 0
        watch_forks(self)

    async def rows(
        self,
        command: bytes,
        params: Sequence[Param] = (),
        *,
        safe: bool = False,
        within: float | None = None,
    ) -> list[tuple[Any, ...]]:
        """The rows of a statement, which runs to its end even if the caller is cancelled.

        safe: may be repeated after the connection broke, when it may have run already.
        within: a limit below the general timeout.
        """
        self.check_open()
        limit = self._timeout if within is None else min(within, self._timeout)
        if self._cut is not None:
            limit = min(limit, CLOSE_PATIENCE)
        work = self._until_done(command, params, safe, limit)
        call = asyncio.get_running_loop().create_task(work)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            call.add_done_callback(_forget)
            raise

    def check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self._where} is closed; open it again")

    async def script(
        self,
        text: str,
        *,
        patient: bool = False,
        told: Callable[[StatementRefused, str], StoreError] = refused_error,
    ) -> None:
        """Run a script on a connection of its own.

        patient: without a time limit, and to its end even if the caller is cancelled.
        told: turns a refusal into an error.
        """
        with self._clock.outside():
            try:
                async with asyncio.timeout(None if patient else self._timeout):
                    wire = await self._connected()
                    try:
                        await wire.script(text.encode())
                    except asyncio.CancelledError:
                        if not patient:
                            await wire.cancelled(self._cancel_patience)
                        raise
                    finally:
                        wire.drop()
            except TimeoutError:
                raise self._too_late(self._timeout) from None
            except StatementRefused as refused:
                raise told(refused, self._where) from None
            except psycopg.Error as error:
                raise lost_error(error, self._where) from None

    def hurry(self) -> None:
        """Prepare to close: running calls may go on for a moment, then they are cancelled."""
        if self._cut is None:
            self._cut = asyncio.get_running_loop().call_later(CLOSE_PATIENCE, self._cut_off)

    async def close(self) -> None:
        """Close all connections after the running calls, which get a moment to finish."""
        self.hurry()
        self._closed = True
        with self._clock.outside():
            while calls := self._here():
                await asyncio.wait(calls)
        if self._cut is not None:
            self._cut.cancel()
        self._calls.clear()  # those of closed event loops
        self._drop_idle()

    def __del__(self) -> None:
        idle: list[WireConnection] = getattr(self, "_idle", [])
        for wire in idle:
            wire.abandon()
        if idle:
            told = f"{self._where} was not closed"
            warnings.warn(told, ResourceWarning, stacklevel=2, source=self)

    def _here(self) -> set[asyncio.Task[Any]]:
        """The running calls of this event loop; those of a closed loop never end."""
        loop = asyncio.get_running_loop()
        return {call for call in self._calls if call.get_loop() is loop}

    def _cut_off(self) -> None:
        for call in self._here():
            call.cancel()

    @property
    def _cancel_patience(self) -> float:
        return min(CANCEL_PATIENCE, self._timeout)

    async def _until_done(
        self, command: bytes, params: Sequence[Param], safe: bool, limit: float
    ) -> list[tuple[Any, ...]]:
        with self._clock.outside():
            tries = 0
            while True:
                tries += 1
                try:
                    async with asyncio.timeout(limit):
                        return await self._once(command, params)
                except TimeoutError:
                    raise self._too_late(limit) from None
                except asyncio.CancelledError:
                    if self._cut is None:
                        raise
                    raise self._cut_short() from None
                except StatementRefused as refused:
                    if refused.sqlstate not in AGAIN or tries == TRIES:
                        raise self._told(refused, self._where) from None
                except psycopg.Error as error:
                    if not safe or tries > 1:
                        raise lost_error(error, self._where) from None

    async def _once(self, command: bytes, params: Sequence[Param]) -> list[tuple[Any, ...]]:
        if self._home.enter(self._where):
            self._drop_idle()  # connections belong to an event loop
            self._slots = asyncio.Semaphore(self._most)
        async with self._slots:
            wire = await self._wire()
            try:
                self.count += 1
                result = await wire.call(command, params)
            except StatementRefused as refused:
                if refused.breaks:
                    wire.drop()
                raise
            except asyncio.CancelledError:  # timeout, or everything is being closed
                try:
                    late = await wire.cancelled(self._cancel_patience)
                finally:
                    wire.drop()  # a late cancellation would hit the next call
                if late is None:
                    raise
                result = late
            except BaseException:
                wire.drop()  # its late answer would be taken for that of the next call
                raise
            finally:
                if wire.alive:
                    self._idle.append(wire)
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    async def _wire(self) -> WireConnection:
        while self._idle:
            wire = self._idle.pop()
            if wire.alive:
                return wire
            wire.drop()
        return await self._connected()

    async def _connected(self) -> WireConnection:
        try:
            return await WireConnection.connect(self._conninfo)
        except psycopg.Error as error:
            raise connecting_error(error, self._where) from None

    def _too_late(self, limit: float) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self._where} did not answer within timeout = {limit:g} s, so the call may or may "
            "not be carried out. Check its load and its locks, or raise `timeout`."
        )

    def _cut_short(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self._where} was closed before the answer came, so the call may or may not be "
            "carried out"
        )

    def _drop_idle(self) -> None:
        for wire in self._idle:
            wire.drop()
        self._idle.clear()

    def after_fork(self) -> None:
        keep_for_parent(*self._idle, *self._calls)
        self._idle, self._calls, self._cut = [], set(), None


def _forget(call: asyncio.Task[Any]) -> None:
    """Read the error of a call that nobody waits for, so that asyncio does not report it."""
    if not call.cancelled():
        call.exception()


def _text(field: bytes | None) -> str:
    return (field or b"").decode(errors="replace")
