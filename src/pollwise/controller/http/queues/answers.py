"""Answers to repeated requests: a call that was carried out is not carried out again.

An answer is kept for a minute under the nonce of its request, as long as there is room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from pollwise.runtime.clock import Clock
from pollwise.runtime.jobs import Claim

#: How long an answer is kept, in seconds; the most answers, and the most bytes of them.
KEPT_FOR = 60.0
KEPT_MAX = 2000
KEPT_BYTES_MAX = 32 * 1024 * 1024

#: The caller, the queue and the nonce; without a nonce, a request cannot be repeated.
Place = tuple[str, str, str | None]


class HeldAnswer:
    """A request that is being carried out, or its answer."""

    def __init__(self, place: Place, task: asyncio.Task[bytes], now: float) -> None:
        self.place = place
        self.task = task
        self.began = now
        self.claims: Sequence[Claim] = ()
        self.given_back = False
        self.size = 0


class Answers:
    """The recent answers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[Place, HeldAnswer] = {}
        self._working: set[asyncio.Task[bytes]] = set()
        self._bytes = 0

    async def once(self, place: Place, work: Callable[[], Awaitable[bytes]]) -> bytes:
        """Do some work once: a call that repeats it gets the same answer."""

        async def done() -> tuple[bytes, Sequence[Claim]]:
            return await work(), ()

        return await asyncio.shield(self.hold(place, done).task)

    def hold(
        self, place: Place, work: Callable[[], Awaitable[tuple[bytes, Sequence[Claim]]]]
    ) -> HeldAnswer:
        """Begin some work that goes on even if the request ends; or return the earlier one.

        Work that failed is not kept, so it can be repeated.
        """
        known = self._held.get(place) if place[2] is not None else None
        if known is not None:
            return known

        async def working() -> bytes:
            answer, held.claims = await work()
            held.size = len(answer)
            return answer

        task = asyncio.get_running_loop().create_task(working())
        held = HeldAnswer(place, task, self._clock.now())
        self._working.add(task)
        if place[2] is not None:
            self._held[place] = held
        task.add_done_callback(lambda _: self._ended(held))
        return held

    def take(self, place: Place) -> HeldAnswer | None:
        return self._held.get(place) if place[2] is not None else None

    def forget(self, held: HeldAnswer) -> None:
        if self._held.get(held.place) is held:
            del self._held[held.place]
            self._bytes -= held.size if held.task.done() else 0

    async def close(self) -> None:
        for task in list(self._working):
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)
        self._held.clear()

    def _ended(self, held: HeldAnswer) -> None:
        self._working.discard(held.task)
        if held.task.cancelled() or held.task.exception() is not None:
            self.forget(held)  # its size is 0
        elif self._held.get(held.place) is held:
            self._bytes += held.size
            self._drop_old()

    def _drop_old(self) -> None:
        before = self._clock.now() - KEPT_FOR
        for held in list(self._held.values()):  # the oldest first
            full = self._bytes > KEPT_BYTES_MAX or len(self._held) > KEPT_MAX
            if not full and held.began >= before:
                break
            if held.task.done():
                self.forget(held)
