"""The objects behind the pytest fixtures: a queue that records puts, and a worker on it."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pollwise.errors import ConfigError, Signal
from pollwise.queues.limits.calls import GROUPS_SHOWN_MAX
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.executor.handlers import Proceed
from pollwise.runtime.jobs import Job, NewJob
from pollwise.testing.clock import SteppedClock
from pollwise.worker import RunSummary, Worker

if TYPE_CHECKING:
    from pollwise.worker.tasks import TaskRef

#: How many runs of handlers `run_all` allows; more count as an endless loop.
RUNS_MAX = 1000
#: How many jobs a failed assertion shows.
SHOWN_MAX = 20


class RecordedPut(NamedTuple):
    """A job that was put, and its id. A repeat of a `unique` has the id of the first."""

    id: str
    job: NewJob


class RecordingQueue(MemoryQueue):
    """A queue in memory that remembers every put, also of jobs that are done."""

    clock: SteppedClock

    def __init__(self, clock: SteppedClock, name: str = "test") -> None:
        super().__init__(name, clock=clock, keep="1d")
        #: All puts, in order.
        self.puts: list[RecordedPut] = []
        self._users = ExitStack()

    def use_in(self, *targets: Worker | TaskRef) -> None:
        """Make workers and task refs use this queue until the test ends."""
        for target in targets:
            if not hasattr(target, "using"):
                raise ConfigError(f"{target!r} has no queue: give a pollwise.Worker or a task_ref")
            self._users.enter_context(target.using(self))

    def release_all(self) -> None:
        """Let workers and task refs use their own queues again."""
        self._users.close()

    async def _put(self, jobs: list[NewJob]) -> tuple[list[str], int]:
        ids, fresh = await super()._put(jobs)
        self.puts += map(RecordedPut, ids, jobs)
        return ids, fresh

    def puts_of(self, task: Any, *payload: Any, **arguments: Any) -> list[RecordedPut]:
        """The puts of a task, or of a kind, whose payload has all of these arguments.

        task: a task, a `task_ref`, or the name of a kind.
        payload: one value; the whole payload must be equal to it.
        """
        from pydantic_core import to_jsonable_python

        kind = task if isinstance(task, str) else task.kind
        wanted = to_jsonable_python(arguments)
        return [
            put
            for put in self.puts
            if put.job.kind == kind
            and all(put.job.payload == to_jsonable_python(value) for value in payload)
            and _has(put.job.payload, wanted)
        ]

    def assert_put(self, task: Any, *payload: Any, **arguments: Any) -> RecordedPut:
        """Fail unless such a job was put; return the last one. As for `puts_of`."""
        found = self.puts_of(task, *payload, **arguments)
        if not found:
            raise AssertionError(
                f"no job was put as {_described(task, payload, arguments)}; {self._all_puts()}"
            )
        return found[-1]

    def assert_not_put(self, task: Any, *payload: Any, **arguments: Any) -> None:
        """Fail if such a job was put. As for `puts_of`."""
        if self.puts_of(task, *payload, **arguments):
            raise AssertionError(
                f"a job was put as {_described(task, payload, arguments)}; {self._all_puts()}"
            )

    def next_due(self, kinds: tuple[str, ...]) -> float | None:
        """When the next delayed job of these kinds falls due."""
        delayed = (each for each in self._records.values() if each.state == "delayed")
        return min((each.since for each in delayed if each.kind in kinds), default=None)

    async def next_start(self, kinds: tuple[str, ...]) -> float | None:
        """When a rate lets the next job of these kinds start that waits for one."""
        starts = []
        for use in await self.limits.use(groups=GROUPS_SHOWN_MAX):
            waiting = [each.next_at or 0.0 for each in use.groups if each.waiting]
            if use.waiting and use.limits.kind in kinds:
                starts.append(max(use.next_at or 0.0, min(waiting, default=0.0)))
        return min((each for each in starts if each), default=None)

    def _all_puts(self) -> str:
        shown = [f"{put.job.kind} {put.job.payload!r}" for put in self.puts[-SHOWN_MAX:]]
        if not shown:
            return "nothing was put here; `pollwise_worker(worker)` makes a worker use this queue"
        return f"{len(self.puts)} were put: {'; '.join(shown)}"


class WorkerTester:
    """A worker that runs on a queue in memory, for one test."""

    def __init__(self, worker: Worker, queue: RecordingQueue) -> None:
        self.worker = worker
        self.queue = queue
        self.clock: SteppedClock = queue.clock
        self._raised: list[Exception] = []

    async def run_all(self, *, delayed: bool = False, raises: bool = True) -> RunSummary:
        """Run all jobs that are ready now, and those that become ready because of them.

        delayed: also run those that are due later, retries too, and those that wait for the rate of
            a limit: time moves to each of them.
        raises: raise the first error of a handler, when all have run. `Reject` and `Snooze` are not
            errors.

        More than 1,000 runs fail: jobs that always come back would run forever.
        """
        self._raised.clear()
        total = RunSummary()
        layers = self.worker._middleware
        layers.append(self._noting_errors)  # the innermost: it sees what the handler raises
        try:
            while True:
                total.limited.clear()  # the last run sees all that wait
                total.add(await self.worker.run_once(self._options(total)))
                if self.worker.recycled:
                    raise AssertionError(f"jobs are still ready after {RUNS_MAX} runs: {total}")
                kinds = self.worker.kinds
                due = (self.queue.next_due(kinds), await self.queue.next_start(kinds))
                times = [each for each in due if each is not None]
                if not times or not delayed:
                    break
                await self.clock.advance(max(min(times) - self.clock.epoch(), 0.0))
        finally:
            layers.remove(self._noting_errors)
        if raises and self._raised:
            raise self._raised[0]
        return total

    def run_all_sync(self, *, delayed: bool = False, raises: bool = True) -> RunSummary:
        """As `run_all`, in a test without an event loop. It runs in virtual time."""
        if asyncio._get_running_loop() is not None:
            raise ConfigError("this test has an event loop: write `await ….run_all()` in it")
        return self.clock.run(self.run_all(delayed=delayed, raises=raises))

    def _options(self, total: RunSummary) -> Any:
        if total.runs >= RUNS_MAX:
            raise AssertionError(f"jobs still come back after {RUNS_MAX} runs: {total}")
        return replace(
            self.worker.options,
            signals=False,
            seed=1,
            max_jobs=RUNS_MAX - total.runs,
            max_memory=None,
            recycle_when_full=False,
        )

    async def _noting_errors(self, job: Job, proceed: Proceed) -> Any:
        try:
            return await proceed(job)
        except Signal:
            raise
        except Exception as error:
            self._raised.append(error)
            raise


class WorkerTesters:
    """`pollwise_worker(worker)`: use a worker with the test's queue until the test ends."""

    def __init__(self, queue: RecordingQueue) -> None:
        self._queue = queue

    def __call__(self, worker: Worker) -> WorkerTester:
        if not isinstance(worker, Worker):
            raise ConfigError(f"pollwise_worker({worker!r}): give a pollwise.Worker")
        self._queue.use_in(worker)
        return WorkerTester(worker, self._queue)


def _has(payload: Any, wanted: dict[str, Any]) -> bool:
    if not wanted:
        return True
    return isinstance(payload, dict) and payload.items() >= wanted.items()


def _described(task: Any, payload: tuple[Any, ...], arguments: dict[str, Any]) -> str:
    given = [repr(value) for value in payload]
    given += [f"{name}={value!r}" for name, value in arguments.items()]
    return f"{task if isinstance(task, str) else task.kind}({', '.join(given)})"
