"""Tasks: functions that are put as jobs, with arguments and a result that are checked.

@worker.task(retry=Retry.exponential("5s", attempts=8))
async def resize(image: int, width: int = 800) -> Size: ...

job = await resize.put(image=7)
size = await job.result(timeout="30s")
await resize.options(delay="10m", key="img-7").put(7)
flow = await resize.s(7).then(store).put()  # store(size), when its size is known
job = resize.put_sync(7)  # from code without an event loop
await resize(7)  # calls the function itself
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Generic, ParamSpec, TypeVar, cast

from pollwise.durations import Duration
from pollwise.errors import ConfigError, JobError, PayloadError, Reject
from pollwise.queues.base import Queue
from pollwise.queues.handle import JobHandle, SyncJobHandle
from pollwise.queues.limits.record import KindLimits
from pollwise.queues.sync import SyncQueue, sync_queue_for
from pollwise.queues.urls import open_queue
from pollwise.runtime.executor.handlers import is_async, refuse_generator
from pollwise.runtime.jobs import Job, NewJob, checked_name
from pollwise.runtime.payloads.envelope import CodecChain, Codecs, chain_of
from pollwise.worker.arguments import Signature, limit_group_of
from pollwise.worker.context import mark_context
from pollwise.worker.declared.advice import JOB_ADVICE, advice_on, advising, refuse_in_loop
from pollwise.worker.declared.unfit import PayloadUnfit
from pollwise.worker.flows.building import Flow, FlowPart, FlowStep, PutTarget, flow_of

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", covariant=True)


class TaskPut(FlowPart[R], Generic[P, R]):
    """A task with options for the jobs that are put: `resize.options(delay="10m").put(7)`.

    options: everything of a `NewJob` except its kind and payload.
    limited_by: the argument whose value is the limit group of a job.
    """

    def __init__(
        self,
        signature: Signature,
        target: PutTarget,
        options: Mapping[str, Any],
        limited_by: str | None = None,
    ) -> None:
        self._signature = signature
        self._target = target
        self._options = options
        self._limited_by = limited_by

    def job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """The job of a call, to put several at once: `queue.put([resize.job(n) for n in …])`."""
        payload, options = self._signature.payload(args, kwargs), self._options
        if self._limited_by is not None and options.get("limit_group") is None:
            group = self._signature.limit_group(self._limited_by, payload)
            options = {**options, "limit_group": group}
        return NewJob(self._signature.kind, payload, **options)

    def s(self, *args: P.args, **kwargs: P.kwargs) -> Flow[R]:
        """A call of the task as a flow of one job, to link with others: `resize.s(7).then(store)`.

        Wrong arguments raise PayloadError.
        """
        return self._step(self.job(*args, **kwargs), bare=False)

    def _as_flow(self) -> Flow[R]:
        self._signature.first_argument()  # refuses a task that cannot take a result
        if self._limited_by is not None and self._options.get("limit_group") is None:
            raise _group_unknown(self._signature.kind, self._limited_by)
        return self._step(NewJob(self._signature.kind, {}, **self._options), bare=True)

    def _step(self, job: NewJob, *, bare: bool) -> Flow[R]:
        return flow_of(FlowStep(job, self._target, self._signature.result_in, bare=bare))

    async def put(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Put a call of the task as a job. Wrong arguments raise PayloadError; nothing is put."""
        queue = self._target.queue_for_puts
        [job_id] = await queue().put(self.job(*args, **kwargs))
        return JobHandle(job_id, queue, self._signature.result_in)

    def put_sync(self, *args: P.args, **kwargs: P.kwargs) -> SyncJobHandle[R]:
        """As `put`, from code without an event loop: blocks until the job is stored.

        In a running event loop it raises StoreError: write `await task.put(…)` there.
        """
        refuse_in_loop("put_sync", f"await {self._signature.kind}.put(…)")
        queue = self._target.sync_queue
        [job_id] = queue().put(self.job(*args, **kwargs))
        return SyncJobHandle(job_id, queue, self._signature.result_in)


class Task(TaskPut[P, R], Generic[P, R, C]):
    """A function that is registered with `@worker.task`. Called directly, it is just the function.

    kind: the kind of its jobs.
    """

    __name__: str

    def __init__(
        self, kind: str, function: Callable[..., C], target: PutTarget, context: Any
    ) -> None:
        refuse_generator(kind, function, "job")
        super().__init__(Signature(kind, function), target, {})
        self.kind = kind
        self._function = function
        self._context = context
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> C:
        return self._function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(advice_on(self.__dict__.get("kind", "task"), name))

    @advising("options()", **JOB_ADVICE)
    def options(
        self,
        *,
        key: str | None = None,
        priority: int = 0,
        delay: Duration = 0,
        run_at: datetime | float | None = None,
        unique: str | None = None,
        replace: bool = False,
        debounce: Duration | None = None,
        headers: Mapping[str, str] | None = None,
        limit_group: str | None = None,
    ) -> TaskPut[P, R]:
        """The task with options for the jobs that are put; see `NewJob`."""
        given: dict[str, Any] = {"key": key, "priority": priority, "delay": delay, "run_at": run_at}
        given |= {"unique": unique, "replace": replace, "debounce": debounce, "headers": headers}
        given |= {"limit_group": limit_group}
        return TaskPut(self._signature, self._target, given, self._limited_by)

    def signature(self) -> str:
        """A hash of its arguments and their types, for the record of the worker."""
        return self._signature.digest()

    @property
    def argument_names(self) -> list[str]:
        """The names of its arguments, without what the worker fills in."""
        return self._signature.names

    def limited(self, limits: KindLimits | None) -> None:
        """Put jobs with the limit group that these limits name. For the worker."""
        self._limited_by = None if limits is None else limits.by

    def __repr__(self) -> str:
        return f"<task {self.kind!r}>"

    @property
    def handler(self) -> Callable[[Job], Any]:
        """The function for the worker: reads the arguments of a job; returns the result as JSON."""
        signature, function = self._signature, self._function

        def arguments(job: Job) -> dict[str, Any]:
            try:
                return signature.arguments(job.payload, job, self._context())
            except PayloadError as error:
                raise PayloadUnfit(str(error)) from None

        def result(value: Any, job: Job) -> Any:
            try:
                return signature.result_out(value, secret=job.sealed is not None)
            except PayloadError as error:  # it ran; to run it again would not help
                raise Reject(str(error)) from None

        if is_async(function):

            async def run(job: Job) -> Any:
                return result(await cast(Any, function(**arguments(job))), job)

            return mark_context(functools.update_wrapper(run, function), signature.context_names)

        def run_plain(job: Job) -> Any:
            return result(function(**arguments(job)), job)

        return mark_context(functools.update_wrapper(run_plain, function), signature.context_names)


def handler_of_task(
    kind: str, function: Callable[..., Any], context: Callable[[], Any]
) -> Callable[[Job], Any]:
    """The handler of a task in a process that runs it for the worker and puts no jobs."""
    return Task(kind, function, cast(PutTarget, None), context).handler


class TaskRef(FlowPart[Any]):
    """A task by its name, for a program that does not import the task's code.

    Arguments are given by name, as JSON values; the worker checks them.
    """

    def __init__(
        self,
        kind: str,
        queue: Queue | str,
        codec: Codecs | CodecChain | None = None,
        limit_by: str | None = None,
    ) -> None:
        self.kind: str = checked_name(kind, "kind")
        self._limit_by = None if limit_by is None else checked_name(limit_by, "limit_by")
        self._queue = queue
        self._codec = chain_of(codec)
        if codec is not None and not isinstance(queue, str):
            raise ConfigError("codec was given with a queue; give it to the queue instead")
        self._opened = open_queue(queue, codec=self._codec) if isinstance(queue, str) else queue
        self._options: dict[str, Any] = {}

    def options(self, **given: Any) -> TaskRef:
        """The same task with options for the jobs that are put; see `NewJob`."""
        ref = copy.copy(self)
        ref._options = given
        return ref

    def job(self, **arguments: Any) -> NewJob:
        """The job of a call."""
        by, options = self._limit_by, self._options
        if by is not None and options.get("limit_group") is None:
            if by not in arguments:
                raise PayloadError(
                    f"the task {self.kind!r} is limited by its argument {by!r}: give it, or "
                    f".options(limit_group=…). Its default is known only where the code is"
                )
            group = limit_group_of(self.kind, by, arguments[by])
            options = {**options, "limit_group": group}
        return NewJob(self.kind, arguments, **options)

    def s(self, *args: Any, **arguments: Any) -> Flow[Any]:
        """A call of the task as a flow of one job, to link with others."""
        self._refuse_unnamed(args)
        return self._step(self.job(**arguments), bare=False)

    def _as_flow(self) -> Flow[Any]:
        if self._limit_by is not None and self._options.get("limit_group") is None:
            raise _group_unknown(self.kind, self._limit_by)
        return self._step(NewJob(self.kind, {}, **self._options), bare=True)

    def _step(self, job: NewJob, *, bare: bool) -> Flow[Any]:
        return flow_of(FlowStep(job, self, lambda value: value, bare=bare))

    @property
    def queue(self) -> Queue | str:
        """The queue, or its URL, as it was given."""
        return self._queue

    def queue_for_puts(self) -> Queue:
        """The queue."""
        return self._opened

    async def put(self, *args: Any, **arguments: Any) -> JobHandle[Any]:
        """Put a call of the task as a job."""
        self._refuse_unnamed(args)
        [job_id] = await self._opened.put(self.job(**arguments))
        return JobHandle(job_id, lambda: self._opened, lambda value: value)

    def put_sync(self, *args: Any, **arguments: Any) -> SyncJobHandle[Any]:
        """As `put`, from code without an event loop: blocks until the job is stored."""
        refuse_in_loop("put_sync", f"await {self.kind}.put(…)")
        self._refuse_unnamed(args)
        [job_id] = self.sync_queue().put(self.job(**arguments))
        return SyncJobHandle(job_id, self.sync_queue, lambda value: value)

    def sync_queue(self) -> SyncQueue:
        """The queue for code without an event loop; shared by all that have its URL."""
        return sync_queue_for(self._queue, lambda: self._opened, codec=self._codec)

    @contextmanager
    def using(self, queue: Queue) -> Iterator[TaskRef]:
        """Put into another queue inside the block. For tests."""
        before = self._queue, self._opened
        self._queue = self._opened = queue
        try:
            yield self
        finally:
            self._queue, self._opened = before

    def _refuse_unnamed(self, args: tuple[Any, ...]) -> None:
        if args:
            raise JobError(
                f"give the arguments of the task {self.kind!r} by name: the order is known only "
                "where its code is"
            )

    async def close(self) -> None:
        """Close the queue, if it was opened here."""
        await self._opened.close()

    def __repr__(self) -> str:
        return f"<task {self.kind!r} of {self._opened.url}>"


def task_ref(
    kind: str,
    queue: Queue | str,
    *,
    codec: Codecs | CodecChain | None = None,
    limit_by: str | None = None,
) -> TaskRef:
    """A task by its name, to put it where its code is not imported.

    queue: the queue, or the URL of one.
    codec: encodes payloads and results, if the queue is given as a URL.
    limit_by: the argument that the limits of the task name in `by`, if any. Its value is the limit
        group of a job.
    """
    return TaskRef(kind, queue, codec, limit_by)


def _group_unknown(kind: str, by: str) -> PayloadError:
    return PayloadError(
        f"the task {kind!r} is limited by its argument {by!r}, which is not known where the task "
        f"stands by itself in a flow: give {kind}.options(limit_group=…), or {kind}.s(…)"
    )
