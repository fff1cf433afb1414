"""Puts a job into a queue for each notice, so that a worker does the rest."""

from __future__ import annotations

from contextlib import suppress
from typing import Unpack

from pollwise.alerts.channels.base import Channel, ChannelOptions
from pollwise.alerts.texts import line_of
from pollwise.alerts.values import Notice
from pollwise.durations import shown
from pollwise.errors import ChannelError, ConfigError, PollwiseError, StoreError, UniqueConflict
from pollwise.queues.base import Queue
from pollwise.queues.urls import open_queue
from pollwise.runtime.jobs import NewJob, checked_name


class PutChannel(Channel):
    """Puts a job for each notice, with the payload that a webhook would send.

        PutChannel("jobs", "sqlite:///jobs.db", kind="page-changed")

    queue: a queue or its URL. `close()` closes a queue that was opened here.
    kind, priority: as for `NewJob`.
    keyed: use the target's name as the job's key, so that its notices are handled in order; None
        does so if the queue has keys.
    """

    def __init__(
        self,
        name: str,
        queue: Queue | str,
        *,
        kind: str = "alert",
        priority: int = 0,
        keyed: bool | None = None,
        **common: Unpack[ChannelOptions],
    ) -> None:
        super().__init__(name, common)
        self._kind = checked_name(kind, "kind", ConfigError)
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise ConfigError(f"priority = {shown(priority)} must be a whole number")
        if keyed is not None and not isinstance(keyed, bool):
            raise ConfigError(f"keyed = {shown(keyed)} must be true or false")
        if not isinstance(queue, (str, Queue)):
            raise ConfigError(f"queue = {shown(queue)} must be the URL of a queue")
        self._priority = priority
        self._url = queue if isinstance(queue, str) else None
        self._queue: Queue | None = open_queue(queue) if isinstance(queue, str) else queue
        self._keyed = self._queue.capabilities.keys if keyed is None else keyed

    async def _send(self, notice: Notice) -> None:
        queue = self._opened()
        payload = {"id": notice.id, **notice.payload}
        payload["text"] = payload.get("text") or line_of(payload)
        try:
            job = NewJob(
                self._kind,
                payload,
                # Names of targets may be longer than keys.
                key=notice.target[:_KEY_LENGTH] if self._keyed else None,
                priority=self._priority,
                unique=notice.id if queue.capabilities.unique else None,
            )
            with suppress(UniqueConflict):  # it was put before a crash
                await queue.put(job)
        except PollwiseError as error:
            # A queue that is down is tried again; a job that it will never take is not.
            permanent = not isinstance(error, StoreError)
            raise ChannelError(f"{self}: {error}", permanent=permanent) from None

    def _opened(self) -> Queue:
        if self._queue is None:
            assert self._url is not None  # noqa: S101 (only then it was closed)
            self._queue = open_queue(self._url)
        return self._queue

    async def close(self) -> None:
        if self._url is not None and self._queue is not None:
            queue, self._queue = self._queue, None
            await queue.close()


#: The length of a key. Targets whose names begin alike may share one, which affects only the order.
_KEY_LENGTH = 200
