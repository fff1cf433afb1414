"""The script that a process of the pool runs.

    python -P child.py FD

FD: a socket to the worker. A message is its length, as eight bytes, and JSON. The first one has
what the process needs before it imports anything of the program. Then each `load` makes a handler
ready, and each `run` runs a job. While it runs, the process says when there is a new report of its
progress, and sends it when `report` asks for it. When the socket closes, the worker has stopped or
died: the process ends, and with it the processes that it started.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import inspect
import json
import logging
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from pollwise.runtime.executor.control.run_control import RunControl

#: How long the context may take to be torn down, in seconds.
CLOSE_WITHIN = 5.0
#: The largest message, in bytes.
MESSAGE_MAX = 256 * 1024 * 1024
#: The longest text of a log record that is passed on, in characters.
LOG_TEXT_MAX = 1_000_000
#: The length of a message is written in this many bytes.
HEAD = 8
# The fields of a log record that the worker gets.
_RECORD_FIELDS = (
    "name", "levelno", "levelname", "pathname", "filename", "module", "lineno", "funcName",
    "created", "msecs", "process", "processName", "threadName",
)  # fmt: skip


class ParentSocket:
    """Messages to and from the worker. Any thread may send."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)
        self._lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        data = framed(message)
        with self._lock, contextlib.suppress(OSError):  # the worker is gone; this process will end
            self._socket.sendall(data)

    def after_fork(self) -> None:
        """Send nothing from a fork of the process: it would mix up the messages."""
        self._lock = threading.Lock()
        self._socket.close()

    def receive(self) -> dict[str, Any] | None:
        """The next message; None at the end."""
        head = self._read(HEAD)
        data = head and self._read(int.from_bytes(head))
        return json.loads(data) if data else None

    def _read(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            try:
                piece = self._socket.recv(min(size - len(data), 1 << 20))
            except OSError:
                return None
            if not piece:
                return None
            data += piece
        return bytes(data)


def framed(message: dict[str, Any]) -> bytes:
    """A message as bytes."""
    data = json.dumps(message).encode()
    return len(data).to_bytes(HEAD) + data


class LogForwarder(logging.Handler):
    """Passes log records to the worker, which formats and filters them."""

    def __init__(self, channel: ParentSocket) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        from pollwise.runtime.executor.control.run_control import run_fields

        try:
            text = record.getMessage()
            trace = record.exc_info and logging.Formatter().formatException(record.exc_info)
        except Exception:
            self.handleError(record)
            return
        values = {name: getattr(record, name) for name in _RECORD_FIELDS}
        values |= run_fields()
        values |= {"msg": text[:LOG_TEXT_MAX], "exc_text": trace[:LOG_TEXT_MAX] if trace else None}
        self._channel.send({"log": values})


class LoadedHandlers:
    """The handlers of this process, by kind."""

    def __init__(self, main: list[str], socket: ParentSocket) -> None:
        self._main = main
        self._socket = socket
        self._control: RunControl | None = None  # of the run
        self._calls: dict[str, Callable[[Any], Any]] = {}
        self._runner: asyncio.Runner | None = None
        self._entered: AsyncExitStack | None = None
        self._variables = copy_context()  # each job gets a copy
        self._context: Any = None

    def load(self, message: dict[str, Any]) -> None:
        """Import a handler, and set up the context if it asks for it."""
        from pollwise.runtime.executor.django import closing_old
        from pollwise.worker.context import filling_in
        from pollwise.worker.processes.places import FunctionPlace, found_at

        kind = message["kind"]
        if kind in self._calls:
            return
        function = found_at(FunctionPlace(*message["target"]), self._main)
        if message["context"] is not None and self._entered is None:
            self._enter(found_at(FunctionPlace(*message["context"]), self._main))
        if message["task"]:
            from pollwise.worker.tasks import handler_of_task

            call = handler_of_task(kind, function, lambda: self._context)
        else:
            call = filling_in(function, lambda: self._context)
        self._calls[kind] = closing_old(call)

    def run(self, message: dict[str, Any]) -> Any:
        """Run a job; return what its handler returned."""
        return self._variables.copy().run(self._run_job, message)

    def _run_job(self, message: dict[str, Any]) -> Any:
        from pollwise.runtime.executor.control.run_control import RunControl, begin_run
        from pollwise.runtime.jobs import Job
        from pollwise.runtime.tracing.w3c import attached
        from pollwise.worker.flows.taking import EndedBefore

        job = Job(**message["job"])
        self._control = RunControl(lambda: self._socket.send({"reports": True}))
        self._control.before = [EndedBefore(*each) for each in message["before"]]
        begin_run(job, self._control)
        try:
            with attached(message["trace"]):
                value = self._calls[job.kind](job)
                if inspect.isawaitable(value):
                    value = self._run(value, copy_context())
        finally:
            self.report()
            self._control = None
        return value if message["returns"] else None

    def report(self) -> None:
        """Send the newest report of the run's progress, if there is one. From any thread."""
        control = self._control
        if control is not None and (progress := control.unwritten()) is not None:
            control.wrote(progress)
            self._socket.send({"progress": [progress.fraction, progress.note]})

    def close(self) -> None:
        """Tear down the context."""
        if self._entered is not None:
            self._run(self._entered.aclose())
        if self._runner is not None:
            self._runner.close()

    def _enter(self, factory: Callable[[], Any]) -> None:
        entered = contextlib.AsyncExitStack()
        manager = (
            contextlib.asynccontextmanager(factory)()
            if inspect.isasyncgenfunction(factory)
            else factory()
        )
        self._context = self._run(entered.enter_async_context(manager))
        self._entered = entered

    def _run(self, awaitable: Any, variables: Context | None = None) -> Any:
        """Async handlers and the context share one event loop, which runs only for them."""

        async def awaited() -> Any:
            return await awaitable

        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(awaited(), context=variables or self._variables)


def main(fd: int) -> None:
    channel = ParentSocket(fd)
    first = channel.receive()
    if first is None:
        return
    sys.path[:], sys.argv[:] = first["path"], first["argv"]
    from pollwise.platforms import processes  # found on the path of the worker

    if not processes.die_with(first["parent"]):
        return
    _leave_signals_to_the_worker()
    faulthandler.enable()
    forwarder = LogForwarder(channel)
    logging.getLogger().addHandler(forwarder)
    processes.at_fork(after_in_child=partial(_leave_socket_to_the_parent, channel, forwarder))
    logging.getLogger().setLevel(first["log_level"])
    todo: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    idle = threading.Event()
    handlers = LoadedHandlers(first["main"], channel)
    reading = (channel, todo, idle, handlers.report)
    threading.Thread(target=_receive, args=reading, daemon=True).start()
    while (message := _next(todo, idle)) is not None:
        channel.send(_answer(handlers, message))
        del message  # do not hold a payload while idle
    with contextlib.suppress(Exception):
        handlers.close()
    logging.shutdown()


def _next(
    todo: queue.SimpleQueue[dict[str, Any] | None], idle: threading.Event
) -> dict[str, Any] | None:
    idle.set()
    message = todo.get()
    if message is not None:
        idle.clear()
    return message


def _answer(handlers: LoadedHandlers, message: dict[str, Any]) -> dict[str, Any]:
    """Do what a message asks for."""
    from pollwise.errors import Reject
    from pollwise.platforms.limits import resident_bytes
    from pollwise.runtime.jobs import encode
    from pollwise.worker.processes.failures import failure_of

    try:
        if message["do"] == "load":
            handlers.load(message)
            return {"value": None}
        value = handlers.run(message)
        text = encode(value, message["job"]["kind"], "result")
        if len(text) > MESSAGE_MAX // 8:
            raise Reject(f"the result has {len(text)} characters of JSON, which is too much")
        return {"value": text, "memory": resident_bytes()}
    except BaseException as error:  # SystemExit too concerns only its job
        secret = message.get("job", {}).get("sealed") is not None
        return {"failed": failure_of(error, secret=secret), "memory": resident_bytes()}


def _receive(
    channel: ParentSocket,
    todo: queue.SimpleQueue[dict[str, Any] | None],
    idle: threading.Event,
    report: Callable[[], None],
) -> None:
    """The thread that reads; at the end of the socket it makes sure that the process ends."""
    while (message := channel.receive()) is not None:
        if message["do"] == "report":
            report()
        else:
            todo.put(message)
    todo.put(None)
    if idle.is_set():
        threading.Event().wait(CLOSE_WITHIN)
    _kill_all()


def _kill_all() -> None:
    """End this process and those that it started."""
    from pollwise.platforms.processes import kill_group

    kill_group(os.getpid())


def _leave_socket_to_the_parent(channel: ParentSocket, forwarder: LogForwarder) -> None:
    """In a fork of this process, write log records to standard error, unless it sets up logging."""
    channel.after_fork()
    logging.getLogger().removeHandler(forwarder)


def _leave_signals_to_the_worker() -> None:
    """Do nothing on the signals that stop a worker: a service manager may send them to all.

    Not SIG_IGN, which programs that a handler starts would inherit. Forks get the defaults.
    """
    from pollwise.platforms import processes, signals

    # The signals that stop a worker; it then decides about its processes.
    before = {number: signals.handler_of(number) for number in signals.STOPPING}
    for number in before:
        signals.set_handler(number, lambda *_: None)

    def put_back() -> None:
        for number, handler in before.items():
            signals.set_handler(number, handler)

    processes.at_fork(after_in_child=put_back)


if __name__ == "__main__":
    main(int(sys.argv[1]))
