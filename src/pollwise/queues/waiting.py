"""Waiting for jobs to end: all waits for jobs of one queue share one poll loop.

A poll reads all these jobs in one call. Polls have a pace of their own, and a broadcast starts one
at once: within the process, and between processes where the store has a channel. While broadcasts
are known to arrive, polls are rare.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pollwise.durations import Duration, seconds
from pollwise.errors import CodecError, JobFailed, StoreError
from pollwise.runtime.contexts import task_in
from pollwise.runtime.hints import Hints
from pollwise.runtime.jobs import ENDED, JobFailure, JobInfo, State
from pollwise.runtime.loop import POLL_RETRY, Batch, LoopOptions, PollLoop

if TYPE_CHECKING:
    from pollwise.queues.base import Queue

#: The broadcast that jobs have ended which somebody may wait for.
ENDINGS = "#ended"
#: The longest pause between two polls while broadcasts are known to arrive, in seconds.
LONG_INTERVAL = 10.0
#: When somebody begins to wait for a job, polls become frequent again, at most this often, in
#: seconds.
AGAIN_EVERY = 0.5
#: How long the first poll may take, however short the timeout is, in seconds.
LOOK_FOR = 1.0
#: The maximum number of jobs that one call to the store reads.
READ_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class JobEnding:
    """How a job ended, for callers that wait for it: its state, and its result or newest error."""

    kind: str
    state: State
    result: Any = None
    failure: JobFailure | None = None

    @classmethod
    def of(cls, info: JobInfo) -> JobEnding:
        newest = info.errors[-1] if info.errors else None
        return cls(info.job.kind, info.state, info.result, newest)


Ended = asyncio.Future[JobEnding | None]
Until = Callable[[JobEnding | None], bool]


class EndingWaiters:
    """The waits for jobs of a queue, in each event loop that uses it.

    opened: decodes a result, given the kind and the id of its job; may raise `CodecError`.
    """

    def __init__(self, queue: Queue, opened: Callable[[Any, str, str], Any]) -> None:
        self._queue = queue
        self._decoded = opened
        self._context = copy_context()
        self._by_loop: dict[asyncio.AbstractEventLoop, LoopWaiters] = {}

    async def result(self, job_id: str, timeout: Duration | None) -> Any:
        """The result of a job; raises `JobFailed`, or `TimeoutError`."""
        endings = await self.wait([job_id], timeout)
        if job_id not in endings:
            raise TimeoutError(
                f"job {job_id} has not ended within {timeout}; it goes on. If it never ends, check "
                "that a worker runs: `pollwise queue workers URL`"
            )
        return self._opened(job_id, endings[job_id])

    async def results(
        self, ids: Sequence[str], timeout: Duration | None, *, until_failure: bool = False
    ) -> dict[str, Any]:
        """The result of each job, or the `JobFailed` that says why there is none."""
        endings = await self.wait(ids, timeout, _failed if until_failure else None)
        results: dict[str, Any] = {}
        for job_id in ids:
            if job_id in endings:
                try:
                    results[job_id] = self._opened(job_id, endings[job_id])
                except JobFailed as error:
                    results[job_id] = error
                except CodecError as error:
                    text = f"the result of job {job_id} cannot be decoded: {error}"
                    results[job_id] = JobFailed(job_id, "done", text)
        return results

    def _opened(self, job_id: str, ending: JobEnding | None) -> Any:
        """Raises `JobFailed`, or `CodecError`."""
        value = result_of(job_id, ending)
        return self._decoded(value, ending.kind if ending else "", job_id)

    async def wait(
        self, ids: Sequence[str], timeout: Duration | None, until: Until | None = None
    ) -> dict[str, JobEnding | None]:
        """How these jobs ended; None for one that does not exist any more.

        until: stop waiting after an ending for which this returns True.
        Jobs that have not ended by then, or at the timeout, are left out.
        """
        within = None if timeout is None else seconds(timeout, "timeout")
        if not ids or not self._queue.capabilities.results:
            return await self._queue.endings(ids)  # raises if it cannot
        loop = asyncio.get_running_loop()
        for each in [each for each in list(self._by_loop) if each.is_closed()]:
            self._by_loop.pop(each, None)  # another thread may have done so
        waiters = self._by_loop.get(loop)
        if waiters is None:
            waiters = self._by_loop[loop] = LoopWaiters(self._queue, self._context)
        return await waiters.wait(ids, within, until)

    def cancelled(self, ids: Iterable[str]) -> None:
        """End the waits for jobs that were cancelled here; their records may be gone already."""
        # Without an event loop, the cancel is part of a caller's transaction, which may not be
        # committed: waits find out from the store.
        here = asyncio._get_running_loop()
        waiters = None if here is None else self._by_loop.get(here)
        if waiters is not None:
            waiters.cancelled(ids)

    def close(self) -> None:
        """End all waits with an error."""
        error = StoreError(f"{self._queue.url} was closed while results were waited for")
        for loop, waiters in list(self._by_loop.items()):
            with suppress(RuntimeError):  # that loop is closed
                loop.call_soon_threadsafe(waiters.fail, error)


class LoopWaiters:
    """The waits in one event loop."""

    def __init__(self, queue: Queue, context: Context) -> None:
        self._queue = queue
        self._context = context
        self._waiting: dict[str, set[Ended]] = {}
        self._new: set[str] = set()  # not read yet
        self._reading: asyncio.Task[None] | None = None
        self._polling: asyncio.Task[None] | None = None
        self._polls: PollLoop[tuple[str, JobEnding | None]] | None = None
        self._began = 0.0

    async def wait(
        self, ids: Sequence[str], within: float | None, until: Until | None
    ) -> dict[str, JobEnding | None]:
        loop = asyncio.get_running_loop()
        futures: dict[str, Ended] = {job_id: loop.create_future() for job_id in ids}
        for job_id, future in futures.items():
            self._waiting.setdefault(job_id, set()).add(future)
        self._new.update(futures)
        self._begin()
        enough = _enough(futures.values(), until)
        ends = None if within is None else loop.time() + within
        try:
            if within is not None and self._reading is not None:  # at least one read
                await asyncio.wait([self._reading], timeout=max(within, LOOK_FOR))
            left = None if ends is None else max(ends - loop.time(), 0.0)
            await asyncio.wait([enough], timeout=left)
            return {job_id: each.result() for job_id, each in futures.items() if each.done()}
        finally:
            for job_id, future in futures.items():
                future.cancel()
                self._forget(job_id, future)
            if not self._waiting and self._polls is not None:
                self._polls.stop()

    def cancelled(self, ids: Iterable[str]) -> None:
        for job_id in ids:
            self._deliver(job_id, JobEnding("", "cancelled"))

    def _forget(self, job_id: str, future: Ended) -> None:
        waiting = self._waiting.get(job_id)
        if waiting is not None:
            waiting.discard(future)
            if not waiting:
                del self._waiting[job_id]

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        if self._polling is None or self._polling.done():
            self._polling = task_in(self._context, self._poll(), loop)
        elif self._polls is not None and self._queue.hints().known_at(ENDINGS) is None:
            if loop.time() - self._began > AGAIN_EVERY:
                self._polls.stop()
        if self._reading is None or self._reading.done():
            self._reading = task_in(self._context, self._read_new(), loop)

    # Reading

    async def _read_new(self) -> None:
        """Read each job once when a wait for it begins: it may have ended before."""
        await asyncio.sleep(0)  # for others who begin at the same moment
        while self._new:
            ids, self._new = [job_id for job_id in self._new if job_id in self._waiting], set()
            try:
                await self._read(ids)
            except Exception as error:
                if POLL_RETRY.classify(error) == "permanent":
                    self.fail(error)
                return  # the polls try again

    async def _poll(self) -> None:
        hints = self._queue.hints()
        options = LoopOptions(
            clock=self._queue.clock, hints=_Broadcasts(hints), long_interval=LONG_INTERVAL,
            drain=False,
        )  # fmt: skip
        while self._waiting:
            hints.announce(ENDINGS)
            self._began = asyncio.get_running_loop().time()
            polls: PollLoop[tuple[str, JobEnding | None]] = PollLoop(
                self._find_ended, self._queue.wait_pace, f"results of {self._queue.name}", options
            )
            self._polls = polls
            listening = hints.listen(self._heard, (ENDINGS,))
            try:
                async for _ in polls:
                    if not self._waiting:
                        return
            except Exception as error:
                self.fail(error)
            finally:
                listening.close()
                polls.stop()

    def _heard(self, _: str) -> None:
        if self._polls is not None:
            self._polls.hint()

    async def _find_ended(self, hold: float) -> Batch[tuple[str, JobEnding | None]]:
        if not self._waiting:
            return Batch(())
        self._queue.hints().announce(ENDINGS)
        return Batch(await self._read(list(self._waiting)))

    async def _read(self, ids: Sequence[str]) -> list[tuple[str, JobEnding | None]]:
        found: list[tuple[str, JobEnding | None]] = []
        for first in range(0, len(ids), READ_AT_ONCE):
            endings = await self._queue.endings(ids[first : first + READ_AT_ONCE])
            for job_id, ending in endings.items():
                self._deliver(job_id, ending)
            found += endings.items()
        return found

    def _deliver(self, job_id: str, ending: JobEnding | None) -> None:
        for future in self._waiting.pop(job_id, ()):
            if not future.done():
                future.set_result(ending)

    def fail(self, error: BaseException) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in (each for futures in waiting.values() for each in futures):
            if not future.done():
                future.set_exception(error)


def _enough(futures: Collection[Ended], until: Until | None) -> asyncio.Future[None]:
    """Done when all of these are, or one that ends the wait."""
    enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    left = len(futures)

    def ended(future: Ended) -> None:
        nonlocal left
        left -= 1
        if enough.done():
            return
        ends = left == 0 or future.cancelled() or future.exception() is not None
        if ends or (until is not None and until(future.result())):
            enough.set_result(None)

    for future in futures:
        future.add_done_callback(ended)
    return enough


def _failed(ending: JobEnding | None) -> bool:
    return ending is None or ending.state != "done"


class _Broadcasts(Hints):
    """Hints that only show the poll loop whether broadcasts are known to arrive."""

    def __init__(self, hints: Hints) -> None:
        super().__init__()
        self._hints = hints

    @property
    def proven_at(self) -> float | None:
        return self._hints.known_at(ENDINGS)


async def endings_one_by_one(
    find: Callable[[str], Awaitable[JobInfo | None]], ids: Sequence[str]
) -> dict[str, JobEnding | None]:
    """How jobs ended, with one call each."""
    found: dict[str, JobEnding | None] = {}
    for job_id in ids:
        info = await find(job_id)
        if info is None or info.state in ENDED:
            found[job_id] = None if info is None else JobEnding.of(info)
    return found


def result_of(job_id: str, ending: JobEnding | None) -> Any:
    """The result of a job that has ended; raises `JobFailed` if it has none."""
    if ending is None:
        raise JobFailed(
            job_id,
            None,
            f"job {job_id} does not exist (any more), nor does its result. A result is kept for "
            "the task's `result_ttl`, or for as long as the queue keeps finished jobs (`keep`); a "
            "job that was dropped, or cancelled while it waited, has none",
        )
    if ending.state == "done":
        return ending.result
    kind = f" of kind {ending.kind}" if ending.kind else ""
    failure = ending.failure
    reason = f": {failure.error}" if failure is not None else ""
    text = f"job {job_id}{kind} is {ending.state}{reason}"
    raise JobFailed(job_id, ending.state, text, None if failure is None else failure.traceback)
