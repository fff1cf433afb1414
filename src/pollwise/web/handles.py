"""The queues of a store that pages look at now: opened when a page needs one, and closed again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pollwise.queues.base import Queue
from pollwise.runtime.clock import Clock

#: How many queues stay open, and how many are open at the most, while many are looked at.
OPEN_KEPT = 32
OPEN_MAX = 128
#: A queue that was used in the last seconds may still be read, so it is closed only if too many are
#: open. A page waits no longer for a store.
IN_USE = 10.0


class QueueHandles:
    """The open queues that pages found in stores; the one unused for longest is closed first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[str, tuple[Queue, float]] = {}  # the one unused for longest comes first
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._open)

    def use(self, place: str, open: Callable[[], Queue]) -> Queue:
        """The queue at a place, opened if it is not open."""
        found = self._open.pop(place, None)
        queue = open() if found is None else found[0]
        self._open[place] = queue, self._clock.now()
        if found is None:
            self._close_old()
        return queue

    def _close_old(self) -> None:
        now = self._clock.now()
        for place, (queue, used) in list(self._open.items()):
            count = len(self._open)
            if count <= OPEN_KEPT or (count <= OPEN_MAX and now - used < IN_USE):
                return
            del self._open[place]
            task = asyncio.get_running_loop().create_task(queue.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        queues = [queue for queue, _ in self._open.values()]
        self._open.clear()
        for queue in queues:
            await queue.close()
        await asyncio.gather(*self._closing, return_exceptions=True)
