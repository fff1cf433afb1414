"""Calls of queues from views, commands and the admin.

A queue in a database of Django is called on Django's own connection, and any other store as
`pollwise.open_sync` does it: by one event loop in a thread of the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import connections, transaction

from pollwise.contrib.django import conf
from pollwise.contrib.django.conf import QueuePlace
from pollwise.contrib.django.joined import open_joined
from pollwise.contrib.django.joined.calls import run
from pollwise.errors import PollwiseError
from pollwise.queues.base import Queue
from pollwise.queues.capabilities import Capabilities
from pollwise.queues.sync import BorrowedSyncQueue, SyncQueue, open_sync, sync_queue_for
from pollwise.queues.urls import open_queue
from pollwise.runtime.jobs import NewJob
from pollwise.runtime.payloads.envelope import CodecChain

T = TypeVar("T")
Jobs = NewJob | Iterable[NewJob]


class JoinedQueue(BorrowedSyncQueue):
    """Blocking calls to a queue on Django's own connection."""

    def _run(self, queue: Queue, call: Coroutine[Any, Any, T]) -> T:
        return run(call)


class DjangoQueue:
    """A queue of Django's settings: `queue.call("get", job_id)`.

    joined: it is in a database of Django, and called on Django's connection.
    codec: what encodes payloads and results. Views for operators have none, so that they never show
        what is encrypted.
    """

    def __init__(self, name: str, place: QueuePlace, codec: CodecChain | None = None) -> None:
        self.name = name
        self._codec = codec
        self.place = place
        self.joined: bool = place.database is not None
        self._calls = self._joined() if self.joined else self._apart()

    def _joined(self) -> SyncQueue:
        self._queue = open_joined(self.place, self.name)
        self._queue.use_codec(self._codec)
        return JoinedQueue(lambda: self._queue)

    def _apart(self) -> SyncQueue:
        url = self.place.url_of(self.name)
        return sync_queue_for(url, lambda: _in_memory(url, self._codec), codec=self._codec)

    @property
    def capabilities(self) -> Capabilities:
        return self._calls.capabilities

    @property
    def url(self) -> str:
        """Where it is, without credentials."""
        return self._calls.url

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the queue, and wait for its result."""
        return getattr(self._calls, method)(*args, **kwargs)

    def put(self, jobs: Jobs, then: Callable[[list[str]], None] | None = None) -> list[str]:
        """Put jobs in the open transaction, and return their ids.

        If the store is not in the database of the transaction, they are put after its commit: then
        there are no ids yet, and the list is empty.

        then: called with the ids, when the jobs were put.
        """

        def put() -> list[str]:
            ids: list[str] = self.call("put", jobs)
            if then is not None:
                then(ids)
            return ids

        alias = self.place.on_commit
        if self.joined or alias is None or not connections[alias].in_atomic_block:
            return put()
        transaction.on_commit(put, using=alias)
        return []

    async def acall(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """The same for async code."""
        if self.joined:  # Django's connections belong to one thread
            return await sync_to_async(self.call, thread_sensitive=True)(method, *args, **kwargs)
        return await asyncio.to_thread(self.call, method, *args, **kwargs)

    def create_tables(self) -> None:
        """Create or upgrade the tables in the database of Django."""
        if connections[self.place.database].vendor == "sqlite":
            self._queue.create_tables()  # type: ignore[attr-defined]  # also for one in memory
            return
        with open_sync(self.place.url_of(self.name)) as queue:
            queue.migrate()


@cache
def _in_memory(url: str, codec: CodecChain | None) -> Queue:
    return open_queue(url, codec=codec)


def queue_at(name: str, place: QueuePlace, *, decoded: bool = True) -> DjangoQueue:
    """The queue with this name, the same object for the same place.

    decoded: what codecs have encoded is decoded.
    """
    # A test database has another name than the real one, under the same alias.
    alias = place.database
    where = place.url if alias is None else str(connections[alias].settings_dict["NAME"])
    codec = conf.codec() if decoded else None
    options = (place.on_commit, *sorted((key, str(each)) for key, each in place.options.items()))
    key = (name, alias, where, options, codec)
    if key not in _queues:
        _queues[key] = DjangoQueue(name, place, codec)
    return _queues[key]


_queues: dict[tuple[object, ...], DjangoQueue] = {}


def put(jobs: Jobs, queue: str = "default") -> list[str]:
    """Put jobs into a queue of settings.POLLWISE, in the open transaction: `put(resize.job(7))`.

    Returns their ids. A store that is not in the database of the transaction gets them after the
    commit: then there are none yet, and the list is empty.
    """
    return queue_at(queue, conf.default_place()).put(jobs)


def create_tables(alias: str) -> None:
    """After `migrate` on a database: create the tables of the queues in it."""
    for place in places():
        if place.database == alias:
            DjangoQueue("default", place).create_tables()


def places() -> list[QueuePlace]:
    """Where the queues of this project are, each place once."""
    from pollwise.contrib.django.backend import backends

    found: list[QueuePlace] = []
    with suppress(PollwiseError):  # checks report it; the places of backends do not depend on it
        found.append(conf.default_place())
    found += [backend.place for backend in backends()]
    return [place for at, place in enumerate(found) if place not in found[:at]]


def project_queues() -> dict[str, DjangoQueue]:
    """All queues of this project, by the names that operators see, for views of them."""
    from pollwise.contrib.django.backend import backends

    found = backends()
    if not found:
        return {"default": queue_at("default", conf.default_place(), decoded=False)}
    return {
        f"{each.alias}/{name}" if len(found) > 1 else name: queue_at(
            name, each.place, decoded=False
        )
        for each in found
        for name in sorted(each.queues) or ["default"]
    }
