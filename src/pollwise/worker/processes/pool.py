"""The processes in which a worker runs CPU-bound handlers.

A process is started when a job needs one, as a new Python program: it inherits no threads and no
connections. It runs one job at a time, and is kept for the next. When a run is cancelled (a
timeout, a cancel, the end of the grace), its process and the processes that it started are killed.
When it dies by itself, only its own job fails. The next job gets another process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import Context, copy_context
from pathlib import Path
from typing import Any

from pollwise.errors import HandlerCrashed, HandlerTimeout, JobError
from pollwise.platforms import processes
from pollwise.platforms.signals import name_of
from pollwise.runtime.clock import Clock
from pollwise.runtime.contexts import task_in
from pollwise.runtime.executor.background import to_its_end
from pollwise.runtime.executor.control.run_control import control_of
from pollwise.runtime.executor.handlers import Proceed
from pollwise.runtime.jobs import Job
from pollwise.runtime.tracing import w3c
from pollwise.worker.options import WorkerRunOptions
from pollwise.worker.processes.child import CLOSE_WITHIN, HEAD, MESSAGE_MAX, framed
from pollwise.worker.processes.failures import error_of
from pollwise.worker.processes.places import ProcessCall, main_source, place_of

#: How long a process may take to start and to import a handler's module, in seconds.
START_WITHIN = 300.0
#: How often a process is asked for its progress at most, in seconds.
REPORT_EVERY = 0.5
#: How long to read what a process sent before it ended, in seconds.
DRAIN_FOR = 1.0
#: How long a killed process may take to disappear, in seconds.
KILL_WITHIN = 10.0
#: Why a process was killed whose messages could not be read.
GARBLED = "was killed: something in it wrote to the socket to the worker, or closed it"
_CHILD = Path(__file__).with_name("child.py")
#: The fields of a job that its process gets.
_JOB_FIELDS = (
    "id", "queue", "kind", "payload", "key", "priority", "attempt", "created_at", "run_at",
    "unique", "headers", "sealed",
)  # fmt: skip


class ProcessDied(Exception):
    """A process ended before it answered.

    code: its exit code, or the negative number of the signal; None if it is not known.
    garbled: it was killed, because what it sent was not a message.
    """

    def __init__(self, code: int | None, *, garbled: bool = False) -> None:
        self.code = code
        super().__init__(GARBLED if garbled else _ended(code))


class HandlerProcess:
    """One process. It does one thing at a time: `load` or `run`."""

    def __init__(self, clock: Clock, context: Context) -> None:
        self._clock = clock
        self._context = context  # for what outlives the job that starts the process
        self._spawned: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._answer: asyncio.Future[dict[str, Any]] | None = None
        self._job: Job | None = None  # the one that runs
        self._refused: JobError | None = None  # why its progress cannot be stored
        self._next_report = 0.0
        self._garbled = False
        #: The kinds whose handlers it has imported.
        self.loaded: set[str] = set()
        #: The memory that it used after its last run, in bytes.
        self.memory: int = 0

    @property
    def alive(self) -> bool:
        return self._reading is not None and not self._reading.done()

    @property
    def started(self) -> bool:
        return self._spawned is not None

    async def start(self) -> None:
        """Start it. If that is cancelled, `kill` ends what was started."""
        self._spawned = task_in(self._context, self._spawn())
        with self._clock.outside():
            await asyncio.shield(self._spawned)

    async def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs, ExitStack() as failed:
            failed.callback(ours.close)
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                "-P",
                str(_CHILD),
                str(theirs.fileno()),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                **processes.own_group(),
            )
            failed.pop_all()
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._reading = asyncio.ensure_future(self._read(reader, self._process))
        self._send(
            {
                "parent": os.getpid(),
                "path": [each for each in sys.path if isinstance(each, str)],
                "argv": sys.argv,
                "main": main_source(),
                "log_level": logging.getLogger().level,
            }
        )

    async def load(self, message: dict[str, Any]) -> None:
        """Import a handler; costs little if that was done already."""
        try:
            async with asyncio.timeout(START_WITHIN):
                await self._ask(message)
        except TimeoutError:
            raise HandlerTimeout(
                f"the process for kind {message['kind']!r} took longer than {START_WITHIN:g} s to "
                f"import {message['target'][0]}; it was killed"
            ) from None
        self.loaded.add(message["kind"])

    async def run(self, job: Job, returns: bool) -> Any:
        """Run a job; return what its handler returned, or raise what it raised."""
        values = {name: getattr(job, name) for name in _JOB_FIELDS}
        values["headers"] = dict(job.headers)
        self._job, self._refused = job, None
        try:
            trace = w3c.current()  # the span of the run
            message = {"do": "run", "job": values, "returns": returns, "trace": trace}
            control = control_of(job)
            message["before"] = [] if control is None else control.before
            text = await self._ask(message)
        finally:
            self._job = None
        if self._refused is not None:
            raise self._refused
        return json.loads(text)

    async def _ask(self, message: dict[str, Any]) -> Any:
        answered = self._answer = asyncio.get_running_loop().create_future()
        try:
            if not self.alive:
                await self.kill()
                raise self._died()
            with self._clock.outside():
                self._send(message)
                answer = await answered
        except asyncio.CancelledError:
            await self.kill()
            raise
        finally:
            self._answer = None
        self.memory = answer.get("memory", 0)
        if "failed" in answer:
            raise error_of(answer["failed"])
        return answer["value"]

    def _send(self, message: dict[str, Any]) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(framed(message))

    async def _read(
        self, reader: asyncio.StreamReader, process: asyncio.subprocess.Process
    ) -> None:
        """Read until the process has ended."""
        exited = asyncio.ensure_future(process.wait())
        exited.add_done_callback(self._exited)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(HEAD))
                message = json.loads(await reader.readexactly(size)) if size <= MESSAGE_MAX else 0
                if not isinstance(message, dict):
                    raise TypeError(message)
                self._take(message)
        except (asyncio.IncompleteReadError, OSError):
            pass
        except Exception:
            self._garbled = True
            self._signal_all()
        finally:
            await asyncio.wait([exited], timeout=CLOSE_WITHIN)
            self._garbled = self._garbled or not exited.done()
            self._signal_all()
            await asyncio.wait([exited], timeout=KILL_WITHIN)
            exited.cancel()
            self._hang_up()
            if self._answer is not None and not self._answer.done():
                self._answer.set_exception(self._died())

    def _exited(self, _: object) -> None:
        """It has ended, but its forks may keep the socket open: read only what is there."""
        self._signal_all()
        asyncio.get_running_loop().call_later(DRAIN_FOR, self._abort)

    def _abort(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()

    def _died(self) -> ProcessDied:
        code = None if self._process is None else self._process.returncode
        return ProcessDied(code, garbled=self._garbled)

    def _take(self, message: dict[str, Any]) -> None:
        if "log" in message:
            record = logging.makeLogRecord(message["log"])
            logger = logging.getLogger(record.name)
            if logger.isEnabledFor(record.levelno):
                try:
                    logger.handle(record)
                except Exception:  # a filter of the program; the job is not to blame
                    logging.Handler().handleError(record)
        elif "reports" in message:
            loop = asyncio.get_running_loop()
            when = max(self._next_report, loop.time())
            self._next_report = when + REPORT_EVERY
            loop.call_at(when, self._send, {"do": "report"})
        elif "progress" in message:
            if self._job is not None:
                try:
                    self._job.progress(*message["progress"])
                except JobError as error:
                    self._refused = error
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(message)

    def _signal_all(self) -> None:
        """Kill it, and the processes that it started and that are still in its group."""
        if self._process is not None:
            processes.kill_group(self._process.pid)

    async def kill(self) -> None:
        """Kill it and wait until it is gone."""
        await to_its_end(self._end(self._signal_all))

    async def close(self) -> None:
        """Let it tear down its context and end; kill it if that takes too long."""
        await to_its_end(self._end(self._hang_up))

    def _hang_up(self) -> None:
        if self._writer is not None:
            self._writer.close()

    async def _end(self, begin: Callable[[], None]) -> None:
        with self._clock.outside():
            if self._spawned is not None:
                with suppress(OSError):
                    await self._spawned
            begin()
            if self._reading is not None:
                await asyncio.wait([self._reading])


class ProcessPool:
    """Up to `limit` processes for the handlers in `calls`.

    context: the factory of the worker's context, which each process sets up for itself.
    max_memory: a process that uses more bytes than this after a job is replaced.
    """

    def __init__(
        self,
        limit: int,
        calls: Mapping[str, ProcessCall],
        context: Callable[[], Any] | None,
        max_memory: int | None,
        clock: Clock,
    ) -> None:
        self.limit = limit
        self._max_memory = max_memory
        self._clock = clock
        self._loads = {kind: _load_of(call, context) for kind, call in calls.items()}
        self._context = copy_context()
        self._places = asyncio.Semaphore(limit)
        self._taken = 0
        self._idle: list[HandlerProcess] = []
        self._closing: set[asyncio.Task[None]] = set()
        #: Called when a place becomes free after all were taken.
        self.on_free: Callable[[], None] = lambda: None

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds that run in processes."""
        return frozenset(self._loads)

    @asynccontextmanager
    async def place(self, kind: str, returns: bool) -> AsyncIterator[Proceed]:
        """A process that is ready to run jobs of `kind`; waits for a free place.

        What it yields runs a job there.
        """
        self._taken += 1
        try:
            async with self._places:
                with _explained_crash(kind, " while it imported the handler"):
                    process = await self._ready(kind)

                async def run(job: Job) -> Any:
                    with _explained_crash(kind):
                        return await process.run(job, returns)

                try:
                    yield run
                finally:
                    self._give_back(process)
        finally:
            self._taken -= 1
            if self._taken == self.limit - 1:
                self.on_free()

    async def _ready(self, kind: str) -> HandlerProcess:
        while True:
            process = self._idle.pop() if self._idle else HandlerProcess(self._clock, self._context)
            known = kind in process.loaded
            try:
                if not process.started:
                    await process.start()
                await process.load(self._loads[kind])
                return process
            except ProcessDied:
                if not known:  # else it died while it was idle, not because of this job
                    raise
            except asyncio.CancelledError:
                await process.kill()
                raise
            except Exception:
                self._give_back(process)
                raise

    def _give_back(self, process: HandlerProcess) -> None:
        if not process.alive:
            return
        if self._max_memory is not None and process.memory > self._max_memory:
            closing = asyncio.ensure_future(process.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        else:
            self._idle.append(process)

    async def close(self) -> None:
        """End the processes. None of them runs a job any more."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(process.close() for process in idle), *self._closing)


@contextmanager
def _explained_crash(kind: str, when: str = "") -> Iterator[None]:
    try:
        yield
    except ProcessDied as died:
        raise HandlerCrashed(f"the process of the handler of kind {kind!r} {died}{when}") from None


def pool_of(
    options: WorkerRunOptions,
    calls: Mapping[str, ProcessCall],
    context: Callable[[], Any] | None,
    clock: Clock,
) -> ProcessPool:
    """The processes of a run; as many as there are CPUs, unless the options say otherwise."""
    limit = options.cpu_processes or processes.cpu_count()
    return ProcessPool(limit, calls, context, options.max_memory, clock)


def _load_of(call: ProcessCall, context: Callable[[], Any] | None) -> dict[str, Any]:
    """The message that makes a process ready for a kind."""
    shared = None
    if call.context and context is not None:
        shared = place_of(context, f"the context that the handler of kind {call.kind!r} asks for")
    function = place_of(call.function, f"the handler of kind {call.kind!r}")
    return {
        "do": "load",
        "kind": call.kind,
        "target": function,
        "context": shared,
        "task": call.task,
    }


def _ended(code: int | None) -> str:
    if code is None:
        return "ended for an unknown reason"
    if code >= 0:
        return f"ended with exit code {code}"
    name = name_of(-code)
    more = "; the system may have run out of memory" if name == "SIGKILL" else ""
    return f"was killed by {name}{more}"
