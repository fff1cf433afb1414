"""The thread that makes the calls to a SQLite file, so that the event loop is not blocked.

One thread with one connection is enough: SQLite has one writer at a time, so more would only wait.
Calls that wait at the same moment are made in one transaction, so that they wait for the disk once.
A store has two classes: one with the plain calls on the connection, and one whose methods are those
calls made `in_thread`.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial, wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from pollwise.errors import StoreError
from pollwise.platforms.processes import at_fork
from pollwise.runtime.clock import Clock, VirtualLoop
from pollwise.runtime.home import keep_for_parent
from pollwise.storage.sqlite.file import FileConnection, SqliteFile

P = ParamSpec("P")
T = TypeVar("T")

#: The maximum number of calls in one transaction, which limits how long the write lock is held.
CALLS_AT_ONCE = 64
#: After this many seconds no further call joins a transaction, for the same reason.
JOIN_FOR = 0.005
#: How long a fork waits for running calls to end, in seconds.
FORK_WAIT = 30.0


class SqliteThread:
    """Makes the calls of one store, one after the other.

    store: what is closed, for errors. opened: called once, after the first successful call.
    beside: the thread of another store in the same file. The two stores then have one thread and
        one connection, until the last of them is closed, and their calls are committed together.
    """

    def __init__(
        self,
        connected: SqliteFile,
        *,
        store: str,
        name: str | None = None,
        opened: Callable[[], None] | None = None,
        beside: SqliteThread | None = None,
    ) -> None:
        self.connected = connected
        self._store = store
        self._opened = opened
        self._calls: _WaitingCalls
        if beside is None:
            self._calls = _WaitingCalls(name or f"pollwise-{connected.path.name}")
        else:
            self._calls = beside._calls
            connected.share(beside.connected)
        self._calls.enter(connected)
        self._leave = weakref.finalize(self, self._calls.leave)  # if nobody closes it
        self.closed: bool = False

    def call(
        self, method: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        return self._call(partial(method, *args, **kwargs), alone=False)

    def call_alone(self, method: Callable[[], T]) -> asyncio.Future[T]:
        """As `call`, but never in one transaction with other calls."""
        return self._call(method, alone=True)

    def call_here(
        self, patience: float, method: Callable[..., T], /, *args: Any
    ) -> tuple[T] | None:
        """Make a call in this very thread, which saves the way to the other one and back.

        Returns None, and has done nothing, if it cannot be made at once: the file is not open, or
        other calls run or wait. patience: how long those may take, in seconds. Raises `FileBusy` if
        another process holds the lock of the file.
        """
        if self.closed or not self._calls.take_turn(patience):
            return None
        try:
            self.connected.check_file()
            if self.connected.connection is None:
                return None
            return (self.connected.call_once(method, *args),)
        finally:
            self._calls.end_turn()

    def _call(self, work: Callable[[], T], *, alone: bool) -> asyncio.Future[T]:
        if self.closed:
            raise StoreError(f"{self._store} is closed; open it again")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        if isinstance(loop, VirtualLoop):
            loop.made_outside(answer)
        if self._opened is not None:
            answer.add_done_callback(self._note_answer)
        self._calls.put(_WaitingCall(self.connected, work, answer, alone))
        return answer

    def _note_answer(self, answer: asyncio.Future[Any]) -> None:
        opened = self._opened
        if opened is not None and not answer.cancelled() and answer.exception() is None:
            self._opened = None
            opened()

    async def close(self) -> None:
        """Close the connection after the waiting calls, then the thread. May be called twice."""
        if self.closed:
            return
        closing = self.call_alone(self.connected.close)
        self.closed = True
        self._leave()
        await asyncio.shield(closing)


class _WaitingCall(NamedTuple):
    owner: SqliteFile
    work: Callable[[], Any]
    future: asyncio.Future[Any]
    alone: bool

    def joins(self, connection: FileConnection) -> bool:
        """True if it can share a transaction on this connection. The first call of a store cannot:
        it opens the connection and creates the tables.
        """
        return not self.alone and self.owner.connection is connection

    def make(self) -> _CallAnswer:
        try:
            return _CallAnswer(self.future, self.owner.call(self.work))
        except BaseException as error:  # raised where the answer is awaited
            return _CallAnswer(self.future, error=error)


class _CallAnswer(NamedTuple):
    future: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None

    def give(self) -> None:
        if self.future.done():  # cancelled
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


class _WaitingCalls:
    """The waiting calls of the stores on one connection, and the thread that makes them.

    SQLite forbids a child to use or close the connections of its parent, and a thread does not
    survive a fork. So connections are closed before a fork, and parent and child open their own.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._stores = 0
        self._files: list[SqliteFile] = []
        self._begin()
        _OPEN.add(self)

    def _begin(self) -> None:
        self._waiting: deque[_WaitingCall | None] = deque()
        self._wake = threading.Lock()  # released to wake the thread
        self._busy = threading.Lock()  # held while calls are made
        self._started = False
        self._changing = threading.RLock()  # reentrant: a store may be finalized within `put`

    def enter(self, file: SqliteFile) -> None:
        with self._changing:
            self._stores += 1
            self._files.append(file)

    def take_turn(self, patience: float) -> bool:
        """Keep the thread from making calls, if none waits; False if that takes too long."""
        if self._waiting:
            return False
        return self._busy.acquire(blocking=False) or (
            patience > 0 and self._busy.acquire(timeout=patience)
        )

    def end_turn(self) -> None:
        self._busy.release()

    def before_fork(self) -> None:
        if self._busy.acquire(timeout=FORK_WAIT):
            for file in self._files:
                file.close()

    def after_fork_in_parent(self) -> None:
        with suppress(RuntimeError):  # it was not acquired in time
            self._busy.release()

    def after_fork_in_child(self) -> None:
        for file in self._files:
            if file.connection is not None:
                keep_for_parent(file.connection)
                file.connection = None
        self._begin()

    def leave(self) -> None:
        """The last store to leave ends the thread, after the waiting calls."""
        with self._changing:
            self._stores -= 1
            if not self._stores:
                self._add(None)

    def put(self, call: _WaitingCall) -> None:
        with self._changing:
            if not self._stores:  # closed by another thread just now
                raise StoreError("the store is closed; open it again")
            self._add(call)
            if not self._started:
                # It does not refer to this object, so that a dropped store is finalized.
                args = (self._waiting, self._wake, self._busy)
                threading.Thread(target=_serve, args=args, name=self._name, daemon=True).start()
                self._started = True

    def _add(self, call: _WaitingCall | None) -> None:
        self._waiting.append(call)
        with suppress(RuntimeError):  # already released
            self._wake.release()


_OPEN: weakref.WeakSet[_WaitingCalls] = weakref.WeakSet()
_forking: list[_WaitingCalls] = []


def _before_fork() -> None:
    _forking[:] = _OPEN
    for calls in _forking:
        calls.before_fork()


def _in_parent() -> None:
    while _forking:
        _forking.pop().after_fork_in_parent()


def _in_child() -> None:
    while _forking:
        _forking.pop().after_fork_in_child()


at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)


def _serve(waiting: deque[_WaitingCall | None], wake: threading.Lock, busy: threading.Lock) -> None:
    """Make the calls, until None comes."""
    while True:
        with busy:
            if not _serve_next(waiting):
                return
        while not waiting:
            wake.acquire()


def _serve_next(waiting: deque[_WaitingCall | None]) -> bool:
    """Make the first call, or several in one transaction if they wait; False if it is None."""
    call = waiting[0]
    if call is None:
        return False
    call.owner.check_file()
    connection = call.owner.connection
    if len(waiting) > 1 and connection is not None and call.joins(connection):
        _deliver(_make_together(waiting, connection))
        return True
    waiting.popleft()
    if not call.future.cancelled():
        _deliver([call.make()])
    return True


def _make_together(
    waiting: deque[_WaitingCall | None], connection: FileConnection
) -> list[_CallAnswer]:
    """Make calls in one transaction, which the first one that writes begins. An error undoes its
    own call only, but if the transaction is not committed, all calls fail.
    """
    owner: SqliteFile | None = None
    answers: list[_CallAnswer] = []
    until = time.monotonic() + JOIN_FOR
    connection.grouped = True
    connection.isolation_level = "IMMEDIATE"  # so that a write outside of transaction() begins one
    try:
        while waiting and len(answers) < CALLS_AT_ONCE and time.monotonic() < until:
            call = waiting[0]
            if call is None or not call.joins(connection):
                break
            waiting.popleft()
            if call.future.cancelled():
                continue
            owner = call.owner
            begun = connection.in_transaction
            answers.append(call.make())
            if begun and not connection.in_transaction:
                # SQLite has undone all of it, because of a full disk for example.
                raise answers[-1].error or StoreError("the transaction was undone")
        if connection.in_transaction and owner is not None:
            owner.call(connection.execute, "COMMIT")
    except BaseException as error:  # raised where the answers are awaited
        with suppress(sqlite3.Error):
            connection.rollback()
        return [_CallAnswer(each.future, error=error) for each in answers]
    finally:
        connection.grouped = False
        connection.isolation_level = None
    return answers


def _deliver(answers: list[_CallAnswer]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[_CallAnswer]] = {}
    for answer in answers:
        by_loop.setdefault(answer.future.get_loop(), []).append(answer)
    for loop, its in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_give, its)


def _give(answers: list[_CallAnswer]) -> None:
    for answer in answers:
        answer.give()


class _ThreadedStore(Protocol):
    _thread: SqliteThread


class _ThreadedStoreWithClock(_ThreadedStore, Protocol):
    clock: Clock


def in_thread(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """The plain call `method` as an async method, which makes it in the thread `self._thread`."""

    @wraps(method)
    async def call(self: _ThreadedStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._thread.call(method, self._thread.connected, *args, **kwargs)

    return call


def in_thread_now(
    method: Callable[Concatenate[Any, float, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """As `in_thread`, for a plain call whose first argument is the time; `self.clock` gives it."""

    @wraps(method)
    async def call(self: _ThreadedStoreWithClock, /, *args: P.args, **kwargs: P.kwargs) -> T:
        thread = self._thread
        return await thread.call(method, thread.connected, self.clock.epoch(), *args, **kwargs)

    return call
