"""Flows of tasks: chains, groups, and chains of groups.

    flow = fetch.s(url).then(resize).then(pollwise.group([store.s("a"), store.s("b")]))
    done = await flow.put()

A flow is linked once and put once, so its jobs are never put twice by mistake. To run the same work
again, build it again; the tasks in it can be used as often as needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast, overload

from pollwise.errors import JobError
from pollwise.queues.flows.handle import FlowHandle, SyncFlowHandle
from pollwise.runtime.jobs import NewJob
from pollwise.runtime.store import MAX_BATCH
from pollwise.worker.declared.advice import refuse_in_loop
from pollwise.worker.flows.shape import ONE, in_shape, shape_of_group
from pollwise.worker.flows.taking import TAKES_ERROR, TAKES_HEADER

if TYPE_CHECKING:
    from pollwise.queues.base import Queue
    from pollwise.queues.sync import SyncQueue

R_co = TypeVar("R_co", covariant=True)
A_contra = TypeVar("A_contra", contravariant=True)
T = TypeVar("T")


class PutTarget(Protocol):
    """Where the jobs of tasks are put: a worker, or the queue of a task_ref."""

    @property
    def queue(self) -> Queue | str: ...
    def queue_for_puts(self) -> Queue: ...
    def sync_queue(self) -> SyncQueue: ...


class TakesResult(Protocol[A_contra, R_co]):
    """A task without a call: it takes the result of the job before it as its first argument."""

    def s(self, result: A_contra, /) -> Flow[R_co]: ...


class FlowStep:
    """A job of a flow, before it is put.

    job: the job, without its links. takes: the value of TAKES_HEADER, or "".
    bare: its call has no arguments, so it needs a job before it.
    after, on_failure: as for `NewJob`.
    """

    __slots__ = ("after", "bare", "job", "on_failure", "read", "takes", "target")

    def __init__(
        self, job: NewJob, target: PutTarget, read: Callable[[Any], Any], *, bare: bool
    ) -> None:
        self.job: NewJob = job
        self.target: PutTarget = target
        self.read: Callable[[Any], Any] = read
        self.bare: bool = bare
        self.takes: str = ""
        self.after: tuple[FlowStep, ...] = ()
        self.on_failure: bool = False

    def linked(self, after: Sequence[NewJob]) -> NewJob:
        """Return the job to put; it comes after these jobs."""
        made = copy(self.job)
        if self.takes:
            made = made.with_headers({TAKES_HEADER: self.takes})
        elif TAKES_HEADER in made.headers:  # they were copied from another job
            made = made.without_header(TAKES_HEADER)
        made.after, made.on_failure = tuple(after), self.on_failure
        return made


class FlowPart(ABC, Generic[R_co]):
    """What can be linked to others: a flow, or a task by itself."""

    @abstractmethod
    def _as_flow(self) -> Flow[R_co]:
        """Return this part as a flow that is not linked yet."""

    @overload
    def then(self, next: Flow[T], on_failure: FlowPart[Any] | None = None) -> Flow[T]: ...
    @overload
    def then(
        self, next: TakesResult[R_co, T], on_failure: FlowPart[Any] | None = None
    ) -> Flow[T]: ...
    @overload
    def then(self, next: None = None, *, on_failure: FlowPart[Any]) -> Flow[R_co]: ...
    def then(self, next: Any = None, on_failure: FlowPart[Any] | None = None) -> Flow[Any]:
        """Return one flow of this flow and what comes after it.

        next: a flow, such as `resize.s(width=80)` or a group. It begins when the last job of this
            flow is done; after a group, when all members of the group are done. A task by itself
            gets the result as its first argument; after a group, it gets the list of the results,
            in the order of the group.
        on_failure: a flow or a task that begins if a job of this flow is dead. A task by itself
            gets the text of that job's error as its first argument. If no job fails, the jobs of
            on_failure are cancelled.
        """
        if next is None and on_failure is None:
            raise JobError(
                "then() needs what comes next: a task, a call of one such as task.s(…), a group, "
                "or on_failure=…"
            )
        flow = self._as_flow()
        failing = None if on_failure is None else _part(on_failure, "on_failure")._as_flow()
        following = None if next is None else _part(next, "then")._as_flow()
        parts = [part for part in (flow, following, failing) if part is not None]
        first = flow._links
        made = replace(first, steps=_steps_of(parts))
        if failing is not None:
            failing._links.begin_after(first.main, TAKES_ERROR, on_failure=True)
        if following is not None:
            last = following._links
            last.begin_after(first.tails, first.shape)
            made = replace(made, tails=last.tails, main=[*first.main, *last.main], shape=last.shape)
        return Flow(made)


@dataclass(frozen=True, slots=True)
class FlowLinks:
    """The jobs of a flow and their links, before the flow is put.

    steps: all jobs; each comes after the jobs that it waits for.
    main: the jobs that must be done, without those of `on_failure`.
    heads, tails: the first and the last jobs. shape: how the results of the last jobs are nested.
    """

    steps: list[FlowStep]
    main: list[FlowStep]
    heads: Sequence[FlowStep]
    tails: Sequence[FlowStep]
    shape: str

    def begin_after(
        self, before: Sequence[FlowStep], takes: str, *, on_failure: bool = False
    ) -> None:
        """Let the flow begin after these steps; its first jobs without arguments take `takes`."""
        shared = tuple(before)
        for head in self.heads:
            head.after, head.on_failure = shared, on_failure
            head.takes = takes if head.bare else ""


class Flow(FlowPart[R_co]):
    """Calls of tasks that wait for each other: `task.s(…)`, `flow.then(…)`, `pollwise.group([…])`.

        flow = fetch.s(url).then(resize)
        handle = await flow.put()
        size = await handle.result(timeout="1m")

    All of its jobs are put at once, or none. A job begins when those before it are done.
    """

    def __init__(self, links: FlowLinks) -> None:
        self._links = links
        self._used = ""  # why it cannot be used again

    def _as_flow(self) -> Flow[R_co]:
        return self

    async def put(self) -> FlowHandle[R_co]:
        """Put all jobs of the flow, or none. A flow can be put once."""
        jobs, queue = self.jobs(), self._target().queue_for_puts
        with self._putting():
            ids = await queue().put(jobs)
        return FlowHandle(ids, self._awaited(ids), queue, self._reader(ids))

    def put_sync(self) -> SyncFlowHandle[R_co]:
        """As `put`, from code without an event loop: blocks until the jobs are stored."""
        refuse_in_loop("put_sync", "await flow.put()")
        jobs, queue = self.jobs(), self._target().sync_queue
        with self._putting():
            ids = queue().put(jobs)
        return SyncFlowHandle(ids, self._awaited(ids), queue, self._reader(ids))

    def jobs(self) -> list[NewJob]:
        """The jobs of the flow, to put all of them in one call, such as in your transaction."""
        self._check_unused()
        if len(self._links.steps) > MAX_BATCH:
            raise JobError(
                f"the flow has {len(self._links.steps)} jobs; at most {MAX_BATCH}, because all of "
                "them are put at once. Let its last job put the next part"
            )
        for head in self._links.heads:
            if head.bare:
                raise JobError(
                    f"the task {head.job.kind!r} takes the result of the job before it, but the "
                    "flow begins with it; give its arguments, as in task.s(…)"
                )
        made: dict[int, NewJob] = {}
        after: dict[int, list[NewJob]] = {}  # many steps have the same predecessors
        for step in self._links.steps:
            before = after.get(id(step.after))
            if before is None:
                before = after[id(step.after)] = [made[id(each)] for each in step.after]
            made[id(step)] = step.linked(before)
        return list(made.values())

    def _use(self, how: str) -> None:
        """Note that the flow cannot be used again, and why."""
        self._check_unused()
        self._used = how

    def _check_unused(self) -> None:
        if self._used:
            raise JobError(f"this flow {self._used}")

    @contextmanager
    def _putting(self) -> Iterator[None]:
        self._use("was put already; build it again to put it again")
        try:
            yield
        except Exception:
            self._used = ""  # the caller may try again
            raise

    def _target(self) -> PutTarget:
        """Where the flow is put."""
        first = self._links.steps[0]
        for step in self._links.steps:
            if step.target is not first.target and step.target.queue != first.target.queue:
                raise JobError(
                    f"the task {step.job.kind!r} belongs to another queue "
                    f"({step.target.queue_for_puts().url}) than the task {first.job.kind!r} "
                    f"({first.target.queue_for_puts().url}); all jobs of a flow are put into one "
                    "queue. Let the last task of this flow put another flow there"
                )
        return first.target

    def _awaited(self, ids: Sequence[str]) -> list[str]:
        places = {id(step): job_id for step, job_id in zip(self._links.steps, ids, strict=True)}
        return [places[id(step)] for step in self._links.main]

    def _reader(self, ids: Sequence[str]) -> Callable[[Mapping[str, Any]], R_co]:
        places = {id(step): job_id for step, job_id in zip(self._links.steps, ids, strict=True)}
        ends = [(places[id(step)], step.read) for step in self._links.tails]
        shape = self._links.shape

        def read(results: Mapping[str, Any]) -> R_co:
            return cast(R_co, in_shape(shape, [of(results[job_id]) for job_id, of in ends]))

        return read

    def __repr__(self) -> str:
        kinds = [step.job.kind for step in self._links.steps]
        return f"<flow of {', '.join(kinds[:5])}{' …' if len(kinds) > 5 else ''}>"


def group(parts: Iterable[FlowPart[T]]) -> Flow[list[T]]:
    """Flows that run at the same time, as one flow whose result is the list of their results.

        pages = pollwise.group([fetch.s(url) for url in urls])
        handle = await pages.then(merge).put()

    parts: flows, such as `fetch.s(url)`. In a group that comes after another flow, also tasks by
        themselves: each of them gets the result of that flow.
    """
    if isinstance(parts, FlowPart):
        raise JobError(f"group({parts!r}): give a list, as in group([{parts!r}])")
    members = [_part(each, "group")._as_flow() for each in parts]
    if not members:
        raise JobError("the group is empty; give at least one call, such as task.s(…)")
    links = [each._links for each in members]
    shape = shape_of_group([each.shape for each in links])
    return Flow(
        FlowLinks(
            _steps_of(members),
            [step for each in links for step in each.main],
            [head for each in links for head in each.heads],
            [tail for each in links for tail in each.tails],
            shape,
        )
    )


def flow_of(step: FlowStep) -> Flow[Any]:
    """The flow of one job."""
    return Flow(FlowLinks([step], [step], [step], [step], ONE))


def _part(given: object, where: str) -> FlowPart[Any]:
    if isinstance(given, FlowPart):
        return given
    advice = "give a task, a call of one such as task.s(…), or a group"
    if callable(given):
        advice = "a function can be linked if it is a task: decorate it with @worker.task"
    elif isinstance(given, NewJob):
        advice = "link jobs without tasks by their `after`, and put them in one call"
    raise JobError(f"{where} got {given!r}, which cannot be linked; {advice}")


def _steps_of(parts: Sequence[Flow[Any]]) -> list[FlowStep]:
    """The steps of flows that are joined into one; none of these flows can be used again."""
    for each in parts:
        each._check_unused()
    if len({id(each) for each in parts}) < len(parts):
        raise JobError("the same flow is given twice; build it once for each place")
    for each in parts:
        each._use(
            "is part of another flow already. To run several things after it, use "
            ".then(pollwise.group([…])); to run it twice, build it again"
        )
    return [step for each in parts for step in each._links.steps]
