"""The queues of the store that are open for calls over HTTP: a bounded number of them.

A queue is opened by the first call that names it. When all places are taken, the queue that nobody
uses and that was unused for longest is closed, first among those of the token that opened most. So
a token that names many queues closes its own, and no token can keep the others out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pollwise.controller.http.answers import HttpError
from pollwise.queues.base import Queue

#: The most queues that are open, and the most of them that one token has opened.
QUEUES_MAX = 100
QUEUES_EACH = 50
#: The `keep` of queues that are opened for calls with one, in seconds. Such a queue does not delete
#: a job that ends; how long the job is kept is said by each settlement.
KEPT = 1e-6

#: Opens a named queue of the store that keeps finished jobs for this many seconds.
OpenQueue = Callable[[str, float | None], Queue]


class _UsedQueue:
    """A queue that is open. who: the token that opened it. users: how many calls use it now."""

    def __init__(self, queue: Queue, who: str) -> None:
        self.queue = queue
        self.who = who
        self.users = 0


class OpenQueues:
    """The queues that are open, by name and whether they keep finished jobs."""

    def __init__(self, open: OpenQueue) -> None:
        self._open = open
        #: The one unused for longest comes first.
        self._places: dict[tuple[str, bool], _UsedQueue] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._places)

    @contextmanager
    def using(self, name: str, who: str, *, keeps: bool) -> Iterator[Queue]:
        """A queue, open until the block ends. Raises `HttpError` (429) if there is no place."""
        place = self._places.get((name, keeps))
        if place is None:
            self._make_room(who)
            place = _UsedQueue(self._open(name, KEPT if keeps else None), who)
            place.queue.pass_sealed_on()
            self._places[name, keeps] = place
        with self._used(place):
            yield place.queue

    @contextmanager
    def still_using(self, queue: Queue) -> Iterator[None]:
        """Keep a queue open, that a caller uses now, until the block ends."""
        found = next((each for each in self._places.values() if each.queue is queue), None)
        if found is None:  # all were closed
            yield
            return
        with self._used(found):
            yield

    @contextmanager
    def _used(self, place: _UsedQueue) -> Iterator[None]:
        place.users += 1
        try:
            yield
        finally:
            place.users -= 1
            for key, each in list(self._places.items()):
                if each is place:
                    self._places[key] = self._places.pop(key)  # it is now the last

    def _make_room(self, who: str) -> None:
        """Close a queue if there is no place for one more of this token."""
        opened = Counter(place.who for place in self._places.values())
        full = len(self._places) >= QUEUES_MAX
        if not full and opened[who] < QUEUES_EACH:
            return
        idle = [(key, place) for key, place in self._places.items() if not place.users]
        if not full:
            idle = [(key, place) for key, place in idle if place.who == who]
        if not idle:
            raise HttpError(
                429,
                "too_many_queues",
                f"{opened[who]} queues are in use by calls of your token, and "
                f"{len(self._places)} by all; at most {QUEUES_EACH} and {QUEUES_MAX} may be",
                "Use fewer queues at a time.",
                {"Retry-After": "60"},
            )
        key, place = max(idle, key=lambda each: opened[each[1].who])  # the first of several
        del self._places[key]
        task = asyncio.get_running_loop().create_task(place.queue.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all queues."""
        places = list(self._places.values())
        self._places.clear()
        for place in places:
            await place.queue.close()
        await asyncio.gather(*self._closing, return_exceptions=True)
