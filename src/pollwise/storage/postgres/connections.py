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
import warnings
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq.abc import PGresult

from pollwise.errors import StoreError, StoreUnavailable
from pollwise.runtime.clock import Clock
from pollwise.runtime.home import Home, keep_for_parent, watch_forks
from pollwise.storage.postgres.errors import (
    StatementRefused,
    connecting_error,
    late_error,
    lost_error,
    refused_error,
)
from pollwise.storage.postgres.params import Param
from pollwise.storage.postgres.wire import WireConnection

#: How often a call is tried that conflicts with others on the same rows.
TRIES = 5
#: Serialization failure, deadlock, and two leases on one key: nothing was done, so try again.
AGAIN = frozenset({"40001", "40P01", "23505"})
#: How long the server may take to cancel a call, in seconds.
CANCEL_PATIENCE = 2.0
#: How long running calls may go on at a close before they are cancelled, in seconds.
CLOSE_PATIENCE = 2.0


class Connections:
    """Up to `most` connections, opened when needed and kept.

    where: names the store in errors.
    explain: turns a refusal into an error.
    """

    def __init__(
        self,
        conninfo: str,
        where: str,
        clock: Clock,
        *,
        timeout: float,
        most: int,
        explain: Callable[[StatementRefused, str], StoreError] = refused_error,
    ) -> None:
        self.conninfo = conninfo
        self.where = where
        self.explain = explain
        self._clock = clock
        self.timeout = timeout
        self.most = most
        self._home = Home()
        self._slots = asyncio.Semaphore(most)
        self._idle: list[WireConnection] = []
        self._calls: set[asyncio.Task[Any]] = set()
        self._begun: set[WireConnection] = set()  # with a call that has no task of its own
        self._transformer = Transformer()
        self._closed = False
        self._cut: asyncio.TimerHandle | None = None
        #: The number of statements sent, for tests and benchmarks.
        self.count: int = 0
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
        limit = self.timeout if within is None else min(within, self.timeout)
        if self._cut is not None:
            limit = min(limit, CLOSE_PATIENCE)
        wire = await self._sent(command, params, safe)
        if wire is None:
            return await self._in_task(self._until_done(command, params, safe, limit))
        # The usual case needs no task: to schedule one takes longer than the rest.
        until = wire.loop.time() + limit
        self._begun.add(wire)
        try:
            with self._clock.outside():
                answer = await wire.arrived(limit)
        except asyncio.CancelledError:
            call = self._task(self._until_done(command, params, safe, limit, (wire, until)))
            call.add_done_callback(_forget)
            raise
        finally:
            self._begun.discard(wire)
        if answer is None:
            work = self._until_done(command, params, safe, limit, (wire, until))
            return await self._in_task(work)
        self._idle.append(wire)
        self._slots.release()
        return self._loaded(answer)

    async def _sent(
        self, command: bytes, params: Sequence[Param], safe: bool
    ) -> WireConnection | None:
        """An idle connection that the statement was sent on; None if there is none."""
        if self._cut is not None or not self._home.here() or self._slots.locked():
            return None
        wire = self._idle_wire()
        if wire is None:
            return None
        await self._slots.acquire()
        try:
            self.count += 1
            wire.send(command, params)
        except psycopg.Error as error:
            wire.drop()
            self._slots.release()
            if not safe:
                raise lost_error(error, self.where) from None
            return None
        return wire

    async def _in_task(
        self, work: Coroutine[Any, Any, list[tuple[Any, ...]]]
    ) -> list[tuple[Any, ...]]:
        call = self._task(work)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            call.add_done_callback(_forget)
            raise

    def _task(
        self, work: Coroutine[Any, Any, list[tuple[Any, ...]]]
    ) -> asyncio.Task[list[tuple[Any, ...]]]:
        call = asyncio.get_running_loop().create_task(work)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call

    def check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.where} is closed; open it again")

    async def script(
        self,
        text: str,
        *,
        patient: bool = False,
        explain: Callable[[StatementRefused, str], StoreError] = refused_error,
    ) -> None:
        """Run a script on a connection of its own.

        patient: without a time limit, and to its end even if the caller is cancelled.
        explain: turns a refusal into an error.
        """
        with self._clock.outside():
            try:
                async with asyncio.timeout(None if patient else self.timeout):
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
                raise late_error(self.timeout, self.where) from None
            except StatementRefused as refused:
                raise explain(refused, self.where) from None
            except psycopg.Error as error:
                raise lost_error(error, self.where) from None

    def hurry(self) -> None:
        """Prepare to close: running calls may go on for a moment, then they are cancelled."""
        if self._cut is None:
            self._cut = asyncio.get_running_loop().call_later(CLOSE_PATIENCE, self._cut_off)
            for wire in self._begun_here():
                wire.hurry()  # its call goes on in a task, which can be cancelled

    async def close(self) -> None:
        """Close all connections after the running calls, which get a moment to finish."""
        self.hurry()
        self._closed = True
        with self._clock.outside():
            while self._begun_here():  # noqa: ASYNC110 - one round
                await asyncio.sleep(0)
            while calls := self._here():
                await asyncio.wait(calls)
        if self._cut is not None:
            self._cut.cancel()
        self._calls.clear()  # those of closed event loops
        self._begun.clear()
        self._drop_idle()

    def __del__(self) -> None:
        idle: list[WireConnection] = getattr(self, "_idle", [])
        for wire in idle:
            wire.abandon()
        if idle:
            text = f"{self.where} was not closed"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    def _here(self) -> set[asyncio.Task[Any]]:
        """The running calls of this event loop; those of a closed loop never end."""
        loop = asyncio.get_running_loop()
        return {call for call in self._calls if call.get_loop() is loop}

    def _begun_here(self) -> list[WireConnection]:
        loop = asyncio.get_running_loop()
        return [wire for wire in self._begun if wire.loop is loop]

    def _cut_off(self) -> None:
        for call in self._here():
            call.cancel()

    @property
    def _cancel_patience(self) -> float:
        return min(CANCEL_PATIENCE, self.timeout)

    async def _until_done(
        self,
        command: bytes,
        params: Sequence[Param],
        safe: bool,
        limit: float,
        begun: tuple[WireConnection, float] | None = None,
    ) -> list[tuple[Any, ...]]:
        """begun: a connection that the statement was already sent on, and its time limit."""
        with self._clock.outside():
            tries = 0
            while True:
                tries += 1
                try:
                    wire, until = begun or (None, asyncio.get_running_loop().time() + limit)
                    begun = None
                    async with asyncio.timeout_at(until):
                        return await self._once(command, params, wire)
                except TimeoutError:
                    raise late_error(limit, self.where) from None
                except asyncio.CancelledError:
                    if self._cut is None:
                        raise
                    raise self._cut_short() from None
                except StatementRefused as refused:
                    if refused.sqlstate not in AGAIN or tries == TRIES:
                        raise self.explain(refused, self.where) from None
                except psycopg.Error as error:
                    if not safe or tries > 1:
                        raise lost_error(error, self.where) from None

    async def _once(
        self, command: bytes, params: Sequence[Param], wire: WireConnection | None
    ) -> list[tuple[Any, ...]]:
        if wire is None:
            if self._home.enter(self.where):
                self._drop_idle()  # connections belong to an event loop
                self._slots = asyncio.Semaphore(self.most)
            await self._slots.acquire()
        slots = self._slots
        try:
            if wire is None:
                wire = self._idle_wire() or await self._connected()
                self.count += 1
                wire.send(command, params)
            result = await wire.answer()
        except StatementRefused as refused:
            if wire is not None and refused.breaks:
                wire.drop()
            raise
        except asyncio.CancelledError:  # timeout, or everything is being closed
            if wire is None:
                raise
            try:
                late = await wire.cancelled(self._cancel_patience)
            finally:
                wire.drop()  # a late cancellation would hit the next call
            if late is None:
                raise
            result = late
        except BaseException:
            if wire is not None:
                wire.drop()  # its late answer would look like the next call's
            raise
        finally:
            if wire is not None and wire.alive:
                self._idle.append(wire)
            slots.release()
        return self._loaded(result)

    def _loaded(self, result: PGresult) -> list[tuple[Any, ...]]:
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    def _idle_wire(self) -> WireConnection | None:
        while self._idle:
            wire = self._idle.pop()
            if wire.alive:
                return wire
            wire.drop()
        return None

    async def _connected(self) -> WireConnection:
        try:
            return await WireConnection.connect(self.conninfo)
        except psycopg.Error as error:
            raise connecting_error(error, self.where) from None

    def _cut_short(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self.where} was closed before the answer came, so the call may or may not be "
            "carried out"
        )

    def _drop_idle(self) -> None:
        for wire in self._idle:
            wire.drop()
        self._idle.clear()

    def after_fork(self) -> None:
        keep_for_parent(*self._idle, *self._calls, *self._begun)
        self._idle, self._calls, self._begun, self._cut = [], set(), set(), None


def _forget(call: asyncio.Task[Any]) -> None:
    """Read the error of a call that nobody waits for, so that asyncio does not report it."""
    if not call.cancelled():
        call.exception()
