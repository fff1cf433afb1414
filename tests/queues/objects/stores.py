"""Stores for the tests of `ObjectQueue`: in memory and virtual time, counted, faulty, crashing."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from pollwise.errors import StoreError, StoreUnavailable
from pollwise.queues.base import Queue
from pollwise.queues.objects.chain import ListedObject
from pollwise.queues.objects.queue import ObjectQueue
from pollwise.queues.objects.store import Obstore, Store
from pollwise.runtime.clock import VirtualClock
from tests.queues.benches import VirtualBench

T = TypeVar("T")

PAGE = 1000


class VirtualStore:
    """Objects in memory whose times are the virtual clock's.

    grain: times are shown rounded down to it. ahead: how far its clock is ahead.
    latency: how long a request takes; it acts half-way.
    """

    def __init__(
        self, clock: VirtualClock, *, grain: float = 0.0, ahead: float = 0.0, latency: float = 0.0
    ) -> None:
        self.grain: float | None = grain or 0.0
        self.objects: dict[str, tuple[bytes, float]] = {}
        self._clock = clock
        self._rounding = grain
        self._ahead = ahead
        self._latency = latency

    async def _way(self) -> None:
        await asyncio.sleep(self._latency / 2)

    def _now(self) -> float:
        now = self._clock.epoch() + self._ahead
        return now - now % self._rounding if self._rounding else now

    async def create(self, name: str, body: bytes) -> bool:
        await self._way()
        made = name not in self.objects
        if made:
            self.objects[name] = (bytes(body), self._now())
        await self._way()
        return made

    async def get(self, name: str) -> bytes | None:
        await self._way()
        found = self.objects.get(name)
        await self._way()
        return None if found is None else found[0]

    async def head(self, name: str) -> ListedObject | None:
        await self._way()
        found = self.objects.get(name)
        await self._way()
        return None if found is None else ListedObject(name, len(found[0]), found[1])

    async def pages(self, folder: str, after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        after = f"{folder}/{after}"
        while True:
            await self._way()
            page = [
                ListedObject(name, len(self.objects[name][0]), self.objects[name][1])
                for name in sorted(self.objects)
                if name.startswith(f"{folder}/") and name > after
            ][:PAGE]
            await self._way()
            yield page
            if len(page) < PAGE:
                return
            after = page[-1].name

    async def delete(self, names: Sequence[str]) -> None:
        await self._way()
        for name in names:
            self.objects.pop(name, None)
        await self._way()


class Wrapped:
    """A store around another; `request` is in the middle of every request."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.grain = inner.grain

    async def request(self, verb: str, names: Sequence[str], call: Callable[[], Awaitable[T]]) -> T:
        return await call()

    async def create(self, name: str, body: bytes) -> bool:
        return await self.request("create", [name], lambda: self.inner.create(name, body))

    async def get(self, name: str) -> bytes | None:
        return await self.request("get", [name], lambda: self.inner.get(name))

    async def head(self, name: str) -> ListedObject | None:
        return await self.request("head", [name], lambda: self.inner.head(name))

    async def delete(self, names: Sequence[str]) -> None:
        await self.request("delete", names, lambda: self.inner.delete(names))

    async def pages(self, folder: str, after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        pages = self.inner.pages(folder, after)
        while True:
            page = await self.request("list", [folder], lambda: anext(pages, None))
            if page is None:
                return
            yield page
            if len(page) < PAGE:
                return


class Stamped(Wrapped):
    """A real store in virtual time: objects have the time at which the test wrote them."""

    def __init__(self, inner: Store, clock: VirtualClock, times: dict[str, float]) -> None:
        super().__init__(inner)
        self.grain = 0.0
        self._clock = clock
        self._times = times

    async def create(self, name: str, body: bytes) -> bool:
        made = await super().create(name, body)
        if made:
            self._times[name] = self._clock.epoch()
        return made

    def _stamped(self, item: ListedObject) -> ListedObject:
        return ListedObject(item.name, item.size, self._times.get(item.name, self._clock.epoch()))

    async def head(self, name: str) -> ListedObject | None:
        item = await super().head(name)
        return None if item is None else self._stamped(item)

    async def pages(self, folder: str, after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        async for page in super().pages(folder, after):
            yield [self._stamped(item) for item in page]


class Counting(Wrapped):
    """Counts requests by kind, and the creates that another client won."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.counts: Counter[str] = Counter()

    async def request(self, verb: str, names: Sequence[str], call: Callable[[], Awaitable[T]]) -> T:
        self.counts[verb] += 1
        result = await call()
        if verb == "create" and result is False:
            self.counts["lost"] += 1
        return result

    def take(self) -> dict[str, int]:
        counts, self.counts = dict(self.counts), Counter()
        return counts


class Crash(StoreError):
    """The process is dead: its requests have no effect any more."""


class Crashing(Wrapped):
    """Dies at its n-th request: before it, or after its effect and before the answer."""

    def __init__(self, inner: Store, at: int, *, after: bool) -> None:
        super().__init__(inner)
        self.left = at
        self._after = after

    @property
    def crashed(self) -> bool:
        return self.left <= 0

    async def request(self, verb: str, names: Sequence[str], call: Callable[[], Awaitable[T]]) -> T:
        if self.crashed:
            raise Crash("dead")
        self.left -= 1
        if self.crashed:
            if self._after:
                await call()
            raise Crash(f"dies at {verb} {names}")
        return await call()


class Flaky(Wrapped):
    """Fails its n-th request once, before its effect or after; the next try works."""

    def __init__(self, inner: Store, at: int, *, after: bool) -> None:
        super().__init__(inner)
        self.left = at
        self._after = after

    async def request(self, verb: str, names: Sequence[str], call: Callable[[], Awaitable[T]]) -> T:
        self.left -= 1
        if self.left == 0:
            if self._after:
                await call()
            raise StoreUnavailable(f"fails once at {verb}")
        return await call()


class Chaotic(Wrapped):
    """Drops requests, loses answers, delays and duplicates, at random; dies on command."""

    def __init__(
        self, inner: Store, rng: random.Random, share: float = 0.05, *, lose: bool = True
    ) -> None:
        super().__init__(inner)
        self._rng = rng
        self._share = share
        self._lose = lose
        self.dead = False

    def die(self) -> None:
        self.dead = True

    async def request(self, verb: str, names: Sequence[str], call: Callable[[], Awaitable[T]]) -> T:
        if self.dead:
            raise Crash("dead")
        fate = self._rng.random() / self._share
        if fate < 1:
            raise StoreUnavailable("dropped")
        if fate < 2:
            await asyncio.sleep(self._rng.expovariate(1 / 2.0))
        result = await call()
        if 2 <= fate < 3 and self._lose:
            raise StoreUnavailable("the answer is lost")
        if 3 <= fate < 4 and verb != "list":
            await call()  # the network sent it twice; the first answer counts
        if self.dead:
            raise Crash("dead")
        return result


class Heedless(Wrapped):
    """A store that ignores create-only, as some do: the last write wins."""

    async def create(self, name: str, body: bytes) -> bool:
        await self.inner.delete([name])
        return await self.inner.create(name, body)


class StampedBench(VirtualBench):
    """A real store; each bench has a prefix of its own in it."""

    def __init__(self, clock: VirtualClock, store: Any, prefix: str) -> None:
        super().__init__(clock)
        self._stamped = Stamped(Obstore(store, "real://"), clock, {})
        self._prefix = prefix

    async def queue(self, **options: Any) -> Queue:
        return self.keep(ObjectQueue(self._stamped, self._prefix, clock=self.clock, **options))


class ObjectBench(VirtualBench):
    def __init__(self, clock: VirtualClock, store: Any = None) -> None:
        super().__init__(clock)
        self.store = store or VirtualStore(clock)

    async def queue(self, **options: Any) -> Queue:
        return self.keep(ObjectQueue(self.store, clock=self.clock, **options))
