"""One connection to Postgres, driven by libpq's own asynchronous calls; see `connections`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import capabilities
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from pollwise.platforms.loops import check_for_postgres
from pollwise.runtime.home import watch_forks
from pollwise.storage.postgres.errors import StatementRefused
from pollwise.storage.postgres.params import Param

_FIELDS = (DiagnosticField.SQLSTATE, DiagnosticField.MESSAGE_PRIMARY)
_DONE = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class StatementAnswer:
    """The answer to a statement, as it arrives on a connection that makes one call at a time."""

    def __init__(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        self._pgconn: PGconn = connection.pgconn  # in memory that `connection` owns
        self._answered: PGresult | None = None

    def send(self, command: bytes, params: Sequence[Param]) -> None:
        """Send a statement, or as much of it as can be sent now."""
        self._answered = None
        self._pgconn.send_query_params(command, params, None, None, 1)

    def _complete(self) -> bool:
        """Take what has arrived; True if it is the whole answer."""
        pgconn = self._pgconn
        while not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                return True
            if self._answered is None or self._answered.status != ExecStatus.FATAL_ERROR:
                self._answered = result
        return False

    def _result(self) -> PGresult:
        """The whole answer. Raises `StatementRefused` for an error."""
        answer = self._answered
        if answer is None:
            raise psycopg.OperationalError("the connection ended before the answer came")
        if answer.status not in _DONE:
            raise StatementRefused(*map(_text, map(answer.error_field, _FIELDS)))
        return answer


class WireConnection(StatementAnswer):
    """One connection, for one call at a time."""

    def __init__(
        self, connection: psycopg.AsyncConnection[Any], heard: Callable[[str, str], None] | None
    ) -> None:
        super().__init__(connection)
        self._connection = connection
        self._heard = heard
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[None] | None = None
        self._fd = self._pgconn.socket
        self.loop.add_reader(self._fd, self._readable)
        self.lost: asyncio.Future[None] = self.loop.create_future()
        self._inherited = self._hurried = False
        watch_forks(self)

    @classmethod
    async def connect(
        cls, conninfo: str, heard: Callable[[str, str], None] | None = None
    ) -> WireConnection:
        check_for_postgres()
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
        self.send(command, params)
        return await self.answer()

    async def arrived(self, limit: float) -> PGresult | None:
        """The answer; or None if it is not here in time, is a refusal, or if the connection is
        lost or `hurry` is called. Then `answer` goes on with the call.
        """
        with suppress(psycopg.Error):
            if not self._pgconn.flush() and not self.lost.done():
                until = self.loop.time() + limit
                timer = self.loop.call_at(until, self._go_on)
                try:
                    while not self._complete():
                        await self._wait_for_input()
                        if self._hurried or self.loop.time() >= until:
                            return None
                finally:
                    timer.cancel()
                if self._answered is not None and self._answered.status in _DONE:
                    return self._answered
        return None

    def hurry(self) -> None:
        """End the wait of `arrived`."""
        self._hurried = True
        self._go_on()

    async def script(self, text: bytes) -> None:
        """Run several statements."""
        self._answered = None
        self._pgconn.send_query(text)
        await self.answer()

    async def cancelled(self, patience: float) -> PGresult | None:
        """Ask the server to cancel the call; returns its answer if it was already done.

        A server that waits for a lock does not notice that the client is gone. Gives up after
        `patience` seconds if the server hangs.
        """
        with suppress(TimeoutError, StatementRefused, psycopg.Error, OSError):
            async with asyncio.timeout(patience):
                await self._ask_to_cancel(patience)
                return await self.answer()
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
                self.loop.call_soon_threadsafe(asked.set)

        threading.Thread(target=ask, name="pollwise-cancel", daemon=True).start()
        await asked.wait()

    async def answer(self) -> PGresult:
        """Wait for the answer to what was sent. Raises `StatementRefused` for an error."""
        while self._pgconn.flush():
            await self._writable()
        while not self._complete():
            if self.lost.done():
                self.lost.result()  # raises, because nothing would end the wait
            await self._wait_for_input()
        return self._result()

    async def _wait_for_input(self) -> None:
        """Wait until something arrived; raise when the connection is lost."""
        self._waiting = self.loop.create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def drop(self) -> None:
        """Close the connection at once."""
        self._watch_no_more()
        self._pgconn.finish()
        self._note_lost()

    def abandon(self) -> None:
        """Close it from any thread, such as the garbage collector's."""
        with suppress(RuntimeError):  # if its event loop is closed, nothing is left to do
            self.loop.call_soon_threadsafe(self.drop)

    async def _writable(self) -> None:
        """Wait until more can be sent or input arrived; raise when the connection is lost."""
        self._waiting = self.loop.create_future()
        self.loop.add_writer(self._fd, self._go_on)
        try:
            await self._waiting
        finally:
            self._waiting = None
            if self._fd >= 0:
                self.loop.remove_writer(self._fd)

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
            for remove in (self.loop.remove_writer, self.loop.remove_reader):
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


def _text(field: bytes | None) -> str:
    return (field or b"").decode(errors="replace")
