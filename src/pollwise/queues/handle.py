"""A job that was put: its state, its result, and how to cancel it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pollwise.durations import Duration
from pollwise.queues.base import Queue
from pollwise.queues.sync import SyncQueue
from pollwise.runtime.jobs import JobInfo, State

R = TypeVar("R")


class JobHandle(Generic[R]):
    """A job that was put.

    id: its id in the queue.
    """

    __slots__ = ("_queue", "_read", "id")

    def __init__(self, job_id: str, queue: Callable[[], Queue], read: Callable[[Any], R]) -> None:
        self.id: str = job_id
        self._queue = queue
        self._read = read

    async def info(self) -> JobInfo | None:
        """The whole record, or None if the job does not exist any more."""
        return await self._queue().get(self.id)

    async def state(self) -> State | None:
        """The state of the job, or None if it does not exist any more."""
        info = await self.info()
        return None if info is None else info.state

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait until the job has ended; return its result, or raise `JobFailed`.

        timeout: how long to wait; then `TimeoutError` is raised, and the job goes on.
        """
        return self._read(await self._queue().result(self.id, timeout))

    async def cancel(self) -> State | None:
        """Cancel the job; return its present state."""
        return (await self._queue().cancel([self.id])).get(self.id)

    def __repr__(self) -> str:
        return f"<job {self.id}>"


class SyncJobHandle(Generic[R]):
    """A job that was put by code without an event loop: the calls of `JobHandle`, which block.

    id: its id in the queue.
    """

    __slots__ = ("_queue", "_read", "id")

    def __init__(
        self, job_id: str, queue: Callable[[], SyncQueue], read: Callable[[Any], R]
    ) -> None:
        self.id: str = job_id
        self._queue = queue
        self._read = read

    def info(self) -> JobInfo | None:
        """The whole record, or None if the job does not exist any more."""
        return self._queue().get(self.id)

    def state(self) -> State | None:
        """The state of the job, or None if it does not exist any more."""
        info = self.info()
        return None if info is None else info.state

    def result(self, timeout: Duration | None = None) -> R:
        """Wait until the job has ended; return its result, or raise `JobFailed`.

        timeout: how long to wait; then `TimeoutError` is raised, and the job goes on.
        """
        return self._read(self._queue().result(self.id, timeout))

    def cancel(self) -> State | None:
        """Cancel the job; return its present state."""
        return self._queue().cancel([self.id]).get(self.id)

    def __repr__(self) -> str:
        return f"<job {self.id}>"
