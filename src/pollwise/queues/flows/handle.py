"""A flow that was put: its jobs, its result, and how to cancel it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from pollwise.durations import Duration
from pollwise.errors import JobFailed
from pollwise.queues.base import Queue
from pollwise.queues.flows.view import FlowView
from pollwise.queues.sync import SyncQueue
from pollwise.runtime.jobs import State

Q = TypeVar("Q")
R_co = TypeVar("R_co", covariant=True)
#: Makes the result of a flow from the results of its jobs, by id.
ReadResults = Callable[[Mapping[str, Any]], R_co]
#: The maximum number of jobs that one call cancels.
CANCEL_AT_ONCE = 1_000
#: If several jobs failed, the failure whose state comes first here is raised: it explains most.
_TELLING = ("dead", "cancelled", None)


class _Handle(Generic[Q, R_co]):
    """Shared by `FlowHandle` and `SyncFlowHandle`."""

    __slots__ = ("_awaited", "_queue", "_read", "id", "ids")

    def __init__(
        self,
        ids: Sequence[str],
        awaited: Sequence[str],
        queue: Callable[[], Q],
        read: ReadResults[R_co],
    ) -> None:
        """awaited: the jobs that must be done, without those of `on_failure`."""
        self.ids: tuple[str, ...] = tuple(ids)
        self.id: str = self.ids[0]
        self._awaited = tuple(awaited)
        self._queue = queue
        self._read = read

    def _result_of(self, found: Mapping[str, Any], timeout: Duration | None) -> R_co:
        """Return the result of the flow, given the results of its jobs; raise its failure."""
        _check_done(self.id, self._awaited, found, timeout)
        return self._read(found)

    def _portions(self) -> Iterator[Sequence[str]]:
        for first in range(0, len(self.ids), CANCEL_AT_ONCE):
            yield self.ids[first : first + CANCEL_AT_ONCE]

    def __repr__(self) -> str:
        return f"<flow of {len(self.ids)} jobs from {self.id}>"


class FlowHandle(_Handle[Queue, R_co]):
    """A flow that was put.

    ids: the ids of its jobs, in put order; each of them identifies the flow.
    id: the first of these.
    """

    __slots__ = ()

    async def result(self, timeout: Duration | None = None) -> R_co:
        """Wait until the flow has ended; return the result of its last job, or of its last jobs.

        Raises `JobFailed` as soon as one of its jobs is dead or cancelled, except those of
        `on_failure`.
        timeout: how long to wait; then `TimeoutError` is raised, and the flow goes on.
        """
        found = await self._queue().wait(self._awaited, timeout, until_failure=True)
        return self._result_of(found, timeout)

    async def cancel(self) -> dict[str, State]:
        """Cancel all jobs of the flow; return the present state of each, by id."""
        states: dict[str, State] = {}
        for portion in self._portions():
            states |= await self._queue().cancel(portion)
        return states

    async def view(self) -> FlowView | None:
        """The jobs of the flow with their states and links; None if it does not exist any more."""
        return await self._queue().flow(self.id)


class SyncFlowHandle(_Handle[SyncQueue, R_co]):
    """A flow that was put by code without an event loop: the calls of `FlowHandle`, which block.

    ids: the ids of its jobs, in put order; each of them identifies the flow.
    id: the first of these.
    """

    __slots__ = ()

    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait until the flow has ended; return the result of its last job, or of its last jobs.

        Raises `JobFailed` as soon as one of its jobs is dead or cancelled, except those of
        `on_failure`.
        timeout: how long to wait; then `TimeoutError` is raised, and the flow goes on.
        """
        found = self._queue().wait(self._awaited, timeout, until_failure=True)
        return self._result_of(found, timeout)

    def cancel(self) -> dict[str, State]:
        """Cancel all jobs of the flow; return the present state of each, by id."""
        states: dict[str, State] = {}
        for portion in self._portions():
            states |= self._queue().cancel(portion)
        return states

    def view(self) -> FlowView | None:
        """The jobs of the flow with their states and links; None if it does not exist any more."""
        return self._queue().flow(self.id)


def _check_done(
    flow: str, awaited: Sequence[str], found: Mapping[str, Any], timeout: Duration | None
) -> None:
    failures = [each for each in found.values() if isinstance(each, JobFailed)]
    if failures:
        raise min(failures, key=lambda each: _TELLING.index(each.state))
    if len(found) < len(awaited):
        raise TimeoutError(
            f"the flow of job {flow} has not ended within {timeout}: {len(found)} of its "
            f"{len(awaited)} jobs are done; it goes on. If it never ends, look at "
            f"`pollwise queue flow URL {flow}`"
        )
