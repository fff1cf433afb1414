"""The worker: handlers by kind, run against a queue."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from pollwise.core.breaker import Breaker
from pollwise.core.retry import Retry
from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError, HandlerError
from pollwise.queues.base import Queue
from pollwise.queues.limits.record import KindLimits, Limit
from pollwise.queues.schedules.record import CatchUp, Overlap, Schedule, chosen_overlap
from pollwise.queues.schedules.when import When
from pollwise.queues.sync import SyncQueue, sync_queue_for
from pollwise.queues.urls import open_queue
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events
from pollwise.runtime.executor.background import in_background
from pollwise.runtime.executor.handlers import Handler, Middleware, check_middleware, handler_for
from pollwise.runtime.executor.recycling import check_memory_limit
from pollwise.runtime.executor.starting import checked_options, own_name, refuse_if_forbidden
from pollwise.runtime.jobs import RESULT_TTL, Job, checked_name
from pollwise.runtime.payloads.envelope import CodecChain, Codecs, chain_of
from pollwise.runtime.signals import stopping_on_signals
from pollwise.worker.context import check_context, enter_context, filling_in
from pollwise.worker.declared.advice import TASK_ADVICE, WORKER_ADVICE, advising
from pollwise.worker.declared.decorator import Async, TaskDecorator
from pollwise.worker.declared.limits import declared_limits
from pollwise.worker.declared.schedules import declared_above
from pollwise.worker.once import COUNTED, RunSummary
from pollwise.worker.options import WorkerRunOptions, check_hold
from pollwise.worker.processes.places import ProcessCall, process_call
from pollwise.worker.run import WorkerRun

if TYPE_CHECKING:
    from pollwise.worker.processes.pool import ProcessPool
    from pollwise.worker.tasks import Task

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


class Worker:
    """Handlers by kind, run against a queue.

        worker = Worker("sqlite:///jobs.db")

        @worker.handle("resize")
        async def resize(job): ...

        asyncio.run(worker.run())

    queue: a queue, or the URL of one, which the worker then opens and closes itself.
    options: how it runs, unless `run` is given others.
    name: shown with its leases and events; by default made from host and process.
    codec: encodes payloads and results, such as `AesGcm("keys.txt")`; several in a list.
    """

    @advising("Worker()", **WORKER_ADVICE)
    def __init__(
        self,
        queue: Queue | str,
        options: WorkerRunOptions | None = None,
        *,
        name: str | None = None,
        events: Events | None = None,
        clock: Clock | None = None,
        codec: Codecs | CodecChain | None = None,
    ) -> None:
        self._codec = chain_of(codec)
        if isinstance(queue, str):
            open_queue(queue)  # a wrong URL is refused now, not when the worker runs
        elif codec is not None:
            raise ConfigError("codec was given with a queue; give it to the queue instead")
        elif not isinstance(queue, Queue):
            raise ConfigError(f"queue = {queue!r} must be a queue or the URL of one")
        self.queue = queue
        self.options: WorkerRunOptions = (
            checked_options(options, WorkerRunOptions) or WorkerRunOptions()
        )
        self.name: str = name or own_name()
        self.events: Events = events or Events()
        self.clock: Clock = clock or (queue.clock if isinstance(queue, Queue) else Clock())
        self._handlers: dict[str, Handler] = {}
        self._middleware: list[Middleware] = []
        self._in_processes: dict[str, ProcessCall] = {}
        self._schedules: dict[str, Schedule] = {}
        self._limits: dict[str, KindLimits] = {}
        self._opened: Queue | None = None
        self._opening = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None  # while it runs
        self._context: Callable[[], AbstractAsyncContextManager[Any]] | None = None
        self._context_factory: Callable[[], Any] | None = None
        self._in_context: Any = None
        self._run: WorkerRun | None = None
        self._stop_asked = False
        #: Why the last run ended by itself, to be started again in a fresh process; else "".
        self.recycled: str = ""

    @advising("@worker.handle", **TASK_ADVICE)
    def handle(
        self,
        kind: str,
        *,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        breaker: Breaker | None = None,
        process: bool = False,
        result_ttl: Duration | None = None,
        limit: Limit | Iterable[Limit] | None = None,
        fair_by: str | None = None,
        weights: Mapping[str, int] | None = None,
    ) -> Callable[[F], F]:
        """Register the decorated function, async or plain, as the handler of `kind`.

        retry: how its failures are retried; by default 5 attempts, 1 s to 60 s apart.
        timeout: how long a run may take. A plain function runs in a thread, which cannot be
            stopped: its job is retried, its thread runs on and keeps its place.
        breaker: stop claiming this kind while its runs keep failing; then try one job.
        process: run it in a process of its own, for work that keeps a CPU busy. The function is
            imported there by its name, so it must be at the top level of a module. At a timeout or
            a cancel the process is killed. `WorkerRunOptions(cpu_processes=...)` sets how many.
        result_ttl: how long to keep what a run returns, which must be a JSON value. None or 0 keeps
            nothing.
        limit: a `Rate`, a `Concurrency`, or several, for this kind over all workers of the queue.
        fair_by: what the groups that take turns stand for, such as "tenant"; the group of a job
            is given in `NewJob(limit_group=…)`.
        weights: how many jobs a group gets in each turn; 1 if it is not named.

        A parameter whose default is `pollwise.from_context` gets what `context` yielded.
        """
        if callable(kind):  # `@worker.handle` without parentheses would register nothing
            raise HandlerError("give a kind: @worker.handle('resize')")
        checked_name(kind, "kind")
        limits = declared_limits(kind, limit, fair_by, weights)

        def register(function: F) -> F:
            if process:
                self._in_processes[kind] = process_call(kind, function, task=False)
            self._register(
                kind, function, retry, timeout, breaker, limits, result_ttl=result_ttl,
                process=process,
            )  # fmt: skip
            return function

        return register

    def _register(
        self,
        kind: str,
        function: Callable[..., Any],
        retry: Retry | None,
        timeout: Duration | None,
        breaker: Breaker | None,
        limits: KindLimits | None = None,
        **more: Any,
    ) -> None:
        if kind in self._handlers:
            taken = getattr(self._handlers[kind].function, "__name__", "another function")
            raise HandlerError(f"kind {kind!r} already has a handler: {taken}")
        if limits is not None:
            self._limits[kind] = limits
        filled = filling_in(function, lambda: self._in_context)
        self._handlers[kind] = handler_for(kind, filled, retry, timeout, breaker, **more)

    @overload
    def task(
        self, function: Callable[Concatenate[Job, P], Async[R]], /
    ) -> Task[P, R, Async[R]]: ...
    @overload
    def task(self, function: Callable[P, Async[R]], /) -> Task[P, R, Async[R]]: ...
    @overload
    def task(self, function: Callable[Concatenate[Job, P], R], /) -> Task[P, R, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    @overload
    def task(
        self,
        kind: str | None = None,
        *,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        breaker: Breaker | None = None,
        process: bool = False,
        result_ttl: Duration | None = RESULT_TTL,
        limit: Limit | Iterable[Limit] | None = None,
        fair_by: str | None = None,
        weights: Mapping[str, int] | None = None,
    ) -> TaskDecorator: ...
    @advising("@worker.task", **TASK_ADVICE)
    def task(
        self,
        kind: Any = None,
        *,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        breaker: Breaker | None = None,
        process: bool = False,
        result_ttl: Duration | None = RESULT_TTL,
        limit: Limit | Iterable[Limit] | None = None,
        fair_by: str | None = None,
        weights: Mapping[str, int] | None = None,
    ) -> Any:
        """Make the decorated function a task, whose calls can be put as jobs.

        Arguments and result are JSON, checked by pydantic against the annotations: at the put, and
        again when the job runs. One that does not fit is left to other workers for 15 minutes.

        kind: the kind of its jobs; by default the function's name. The rest is as in `handle`.
        result_ttl: how long the result is kept; one hour unless given. None or 0 keeps none.
        limit, fair_by: `by` or `fair_by` names the argument that is the limit group of a job.
        """
        from pollwise.worker.tasks import Task  # it needs pydantic, which handlers do not

        def register(function: Callable[..., Any]) -> Any:
            name = kind if isinstance(kind, str) else getattr(function, "__name__", "")
            if name == "<lambda>":
                raise HandlerError("a lambda has no name; name the task: worker.task('kind')(…)")
            task: Task[..., Any, Any] = Task(name, function, self, lambda: self._in_context)
            limits = declared_limits(name, limit, fair_by, weights, task.argument_names)
            task.limited(limits)
            if process:
                self._in_processes[name] = process_call(name, function, task=True)
            self._register(
                name, task.handler, retry, timeout, breaker, limits, result_ttl=result_ttl,
                process=process, signature=task.signature,
            )  # fmt: skip
            return task

        return register(kind) if callable(kind) else register

    def schedule(
        self,
        cron: str | None = None,
        *,
        every: Duration | None = None,
        at: datetime | str | float | None = None,
        tz: str | None = None,
        catch_up: CatchUp = "one",
        overlap: Overlap | None = None,
        jitter: Duration = 0,
        name: str | None = None,
        args: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Callable[[T], T]:
        """Put a job of the task below at each tick: `@worker.schedule("*/5 * * * *")`.

        One job is put for each tick, however many workers run.

        cron, every, at: when; give one. A cron expression is in the time zone `tz`, by default UTC.
        catch_up, overlap, jitter: see `queue.schedules.set`.
        name: of the schedule; by default the task's name, with a number if that is taken.
        args: the arguments of the task, by name.
        options: `key`, `priority` and `headers` of its jobs.
        """
        when = When.checked(cron, every, at, tz)

        def register(task: T) -> T:
            made = declared_above(
                task, when, self._schedules, name, args, options,
                catch_up=catch_up, overlap=chosen_overlap(overlap, catch_up), jitter=jitter,
            )  # fmt: skip
            self._schedules[made.name] = made
            return task

        return register

    def context(self, factory: Callable[[], Any]) -> Callable[[], Any]:
        """Set up what handlers share, such as a database pool, once per run of the worker.

            @worker.context
            async def app():
                async with create_pool() as pool:
                    yield pool

            @worker.task()
            async def resize(image: int, pool: Pool = from_context): ...

        factory: an async generator function that yields once, or a function that returns an async
            context manager. It is entered before the first poll and left after the last handler.
            Each process of handlers with `process=True` that ask for it enters one of its own.
        """
        if self._context is not None:
            raise HandlerError("the worker already has a context; yield several things from it")
        self._context_factory = factory
        self._context = (
            asynccontextmanager(factory) if inspect.isasyncgenfunction(factory) else factory
        )
        return factory

    @property
    def codec(self) -> CodecChain | None:
        """The codecs of payloads and results; None if there are none."""
        return self.queue.codec if isinstance(self.queue, Queue) else self._codec

    @codec.setter
    def codec(self, codec: Codecs | CodecChain | None) -> None:
        self._codec = chain_of(codec)
        if isinstance(self.queue, Queue):
            self.queue.use_codec(self._codec)

    def queue_for_puts(self) -> Queue:
        """The worker's queue, to put jobs from the program that defines it.

        A queue given as a URL is opened at the first call; `close` closes it.
        """
        if isinstance(self.queue, Queue):
            return self.queue
        with self._opening:
            if self._opened is None:
                self._opened = open_queue(self.queue, clock=self.clock, codec=self._codec)
            return self._opened

    @contextmanager
    def using(self, queue: Queue) -> Iterator[Worker]:
        """Use another queue inside the block: tasks are put there, and runs take jobs from there.

        For tests of a program whose worker is made with the URL of a real store.
        """
        if self._run is not None:
            raise ConfigError(
                f"worker {self.name} is running; stop it before it uses another queue"
            )
        if not isinstance(queue, Queue):
            raise ConfigError(f"queue = {queue!r} must be a queue, such as a MemoryQueue")
        before = self.queue, self.clock, self._opened
        self.queue, self.clock, self._opened = queue, queue.clock, None
        try:
            yield self
        finally:
            self.queue, self.clock, self._opened = before

    def sync_queue(self) -> SyncQueue:
        """The worker's queue for code without an event loop: its calls block.

        A queue given as a URL is opened again for that, once in a process; its connections are
        kept until the process ends. A queue in memory, or given as an object, is the worker's own:
        while the worker runs, calls are made in its event loop, so only other threads may make
        them.
        """
        return sync_queue_for(self.queue, self.queue_for_puts, lambda: self._loop, self._codec)

    async def close(self) -> None:
        """Close the queue that puts of tasks opened. The next put opens it again."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    def middleware(self, layer: Middleware) -> Middleware:
        """Put `async def layer(job, proceed)` around every handler; the first is outermost.

        It calls `await proceed(job)` to go on, and may raise what a handler may raise.
        """
        check_middleware(layer)
        self._middleware.append(layer)
        return layer

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that have a handler."""
        return tuple(self._handlers)

    async def run(self, options: WorkerRunOptions | None = None) -> None:
        """Work until stopped. A blocking program calls `asyncio.run(worker.run())`."""
        await self._main(options)

    async def run_once(self, options: WorkerRunOptions | None = None) -> RunSummary:
        """Run the jobs that are ready, and those that become ready because of them; then return.

        For cron, CI and serverless functions. Jobs that are due later stay, and so do retries with
        a delay. A store that cannot be reached raises its error after five tries.
        """
        chosen = replace(checked_options(options, WorkerRunOptions) or self.options, hints=False)
        summary = RunSummary()
        end = self.events.subscribe(summary.count, *COUNTED)
        try:
            await self._main(chosen, once=summary)
        finally:
            end()
        return summary

    @asynccontextmanager
    async def running(self, options: WorkerRunOptions | None = None) -> AsyncIterator[Worker]:
        """Work in the background during the block; its end stops the worker within the grace.

        For a program that has an event loop of its own, such as a web application. Signals are left
        to that program.
        """
        chosen = replace(checked_options(options, WorkerRunOptions) or self.options, signals=False)

        def main(started: asyncio.Event) -> Coroutine[Any, Any, None]:
            return self._main(chosen, started)

        async with in_background(main, self.stop, "worker", self.name, self.events):
            yield self

    async def _main(
        self,
        options: WorkerRunOptions | None,
        started: asyncio.Event | None = None,
        *,
        once: RunSummary | None = None,
    ) -> None:
        refuse_if_forbidden()
        chosen = checked_options(options, WorkerRunOptions) or self.options
        self._check_startable()
        check_memory_limit(chosen.max_memory)
        queue = self.queue_for_puts()
        entered = AsyncExitStack()
        self._loop = asyncio.get_running_loop()
        try:
            check_hold(chosen.polling, queue)
            processes = self._pool(chosen)
            if processes is not None and processes.kinds == set(self._handlers):
                limit = min(chosen.concurrency, processes.limit)
                chosen = replace(chosen, concurrency=limit)
            if self._context is not None:
                self._in_context = await enter_context(entered, self._context)
            self._run = WorkerRun(
                queue,
                self.name,
                chosen,
                self._handlers,
                self._middleware,
                self.clock,
                self.events,
                processes,
                once=once,
                schedules=self._schedules,
                limits=self._limits,
            )
            if self._stop_asked:
                self._run.stop()
            if started is not None:
                started.set()
            grace = seconds(chosen.grace, "grace")
            with stopping_on_signals(self.stop if chosen.signals else None, grace):
                await self._run.main()
        finally:
            run, self._run = self._run, None
            self.recycled = "" if run is None else run.recycled
            self._stop_asked = False
            self._loop = None
            if isinstance(self.queue, str):
                self._opened = None
                await (queue.close() if run is None else run.close_queue())
            self._in_context = None
            await entered.aclose()

    def _pool(self, options: WorkerRunOptions) -> ProcessPool | None:
        """The processes of the handlers that run in one."""
        if not self._in_processes:
            return None
        from pollwise.worker.processes.pool import pool_of

        return pool_of(options, self._in_processes, self._context_factory, self.clock)

    def stop(self) -> None:
        """Claim no more, finish within the grace, give the rest back. A second call ends the grace.

        Handlers may call it, plain ones in their threads too. A stop before `run` begins ends that
        run at once.
        """
        self._stop_asked = True
        if self._run is not None:
            self._run.stop()

    def state(self) -> dict[str, Any]:
        """The present state, as plain values; empty when the worker is not running."""
        return {} if self._run is None else self._run.state()

    def _check_startable(self) -> None:
        if self._run is not None:
            raise ConfigError(f"worker {self.name} is already running; create another one")
        if not self._handlers:
            raise HandlerError(
                "the worker has no handler; register one with @worker.handle('kind')"
            )
        check_context(self._handlers, self._context)
