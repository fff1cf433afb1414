"""What every part of an `ObjectQueue` stands on: requests that settle their own doubts, the
store's time, what was read, what is to be deleted."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from pollwise.errors import StoreError, StoreUnavailable
from pollwise.queues.objects.body import BodyCache, PutBody, read_body
from pollwise.queues.objects.chain import (
    ClaimUnit,
    ListedObject,
    RootObject,
    read_roots,
    read_units,
)
from pollwise.queues.objects.contention import Contention
from pollwise.queues.objects.names import salt
from pollwise.queues.objects.store import Store, StoreClock
from pollwise.runtime.clock import Clock

T = TypeVar("T")

#: Requests under way at a time, at the most.
REQUESTS = 32
#: How often a request is tried, and the pause before the second try, which doubles.
TRIES, PAUSE = 4, 0.05
#: How long what was seen may be acted upon, in seconds. Whoever was stalled for longer looks again.
ACT_WITHIN = 20.0
#: How long it is left to whoever ended a job to clean up after it; then anybody may.
GRACE = 60.0
#: Clocks are compared to the microsecond, the last digit that names and times have.
TICK = 2e-6
#: How old what is known of the store's clock may become before it is asked again, in seconds.
PROBE_EVERY = 3600.0
#: How long what a probe left behind stays.
PROBE_KEPT = 600.0
#: Who wrote a probe within so many seconds starts together with us.
PROBED_NOW = 5.0
#: What one delete takes.
DELETE_BATCH = 1000


class Core:
    """One handle's view of one queue in a store."""

    def __init__(self, store: Store, clock: Clock, base: str, shown: str, name: str) -> None:
        self.store = store
        self.clock = clock
        self.base = base
        self.shown = shown
        self.name = name
        self.time = StoreClock(clock, store.grain)
        self.cache = BodyCache()
        self.rng = random.Random()
        self.contention = Contention(clock, self.rng)
        self.closed = False
        self._limit = asyncio.Semaphore(REQUESTS)
        self._probing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._trash: list[tuple[list[str], list[str]]] = []
        self._emptying: asyncio.Task[None] | None = None

    def path(self, *parts: str) -> str:
        return "/".join((self.base, *parts))

    # Requests

    async def create(self, name: str, body: bytes, *, ours: bool = False) -> bool:
        """Create an object; True also if an answer was lost and the object there is this one.

        ours: nobody else ever writes this name, so that a listing of it tells the store's time.
        """
        first = sent = self.clock.now()
        for tries_left in reversed(range(TRIES)):
            try:
                async with self._limit:
                    sent = self.clock.now()
                    made = await self.store.create(name, body)
            except StoreUnavailable:
                if not tries_left:
                    raise
                await self._pause(tries_left)
                continue
            if not made and tries_left < TRIES - 1 and await self.get(name) == body:
                made, sent = True, first
            if made and ours:
                self.time.wrote(name, sent, self.clock.now())
            return made
        raise AssertionError  # pragma: no cover - the loop returns or raises

    async def get(self, name: str) -> bytes | None:
        return await self._tried(lambda: self.store.get(name))

    async def head(self, name: str) -> ListedObject | None:
        return await self._tried(lambda: self.store.head(name))

    async def delete(self, names: Sequence[str]) -> None:
        for start in range(0, len(names), DELETE_BATCH):
            await self._tried(partial(self.store.delete, names[start : start + DELETE_BATCH]))

    async def pages(self, *folder: str, after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        """Pages of a listing. One that fails is begun again, unless some of it was used."""
        used = False
        for tries_left in reversed(range(TRIES)):
            try:
                async for page in self.store.pages(self.path(*folder), after):
                    self.time.saw(page)
                    used = True
                    yield page
            except StoreUnavailable:
                if used or not tries_left:
                    raise
                await self._pause(tries_left)
            else:
                return

    async def listing(self, *folder: str) -> list[ListedObject]:
        return [item async for page in self.pages(*folder) for item in page]

    async def _tried(self, request: Callable[[], Awaitable[T]]) -> T:
        for tries_left in reversed(range(TRIES)):
            try:
                async with self._limit:
                    return await request()
            except StoreUnavailable:
                if not tries_left:
                    raise
                await self._pause(tries_left)
        raise AssertionError  # pragma: no cover - the loop returns or raises

    async def _pause(self, tries_left: int) -> None:
        pause = PAUSE * 2 ** (TRIES - 1 - tries_left)
        await self.clock.sleep(pause * (0.5 + self.rng.random()))

    async def all(self, calls: Iterable[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
        """Run calls side by side, and all to their end, whatever becomes of the others."""
        return await asyncio.gather(*calls, return_exceptions=True)

    # Start

    async def ready(self) -> None:
        """Probe the store, once: does it honour create-only writes, and what is its time?"""
        if self.closed:
            raise StoreError(f"{self.shown} is closed; open it again")
        if self.time.age < PROBE_EVERY:
            return
        known = self.time.known
        if self._probing is None or self._probing.done():
            self._probing = self.begin(self._probe())
        if not known:
            await asyncio.shield(self._probing)

    async def _probe(self) -> None:
        name = self.path("probe", salt())
        if not await self.create(name, b"first", ours=True):
            raise StoreError(f"{self.shown}: a name of 40 random bits is taken; try again")
        if await self.create(name, b"other"):
            await self._sweep_probe(name)
            raise StoreError(
                f"{self.shown}: this store ignores create-only writes (If-None-Match: *), so two "
                "workers would get the same job. Use one that honours them: AWS S3, Google Cloud "
                "Storage, Azure Blob, R2, MinIO, SeaweedFS, or a local folder"
            )
        seen = await self.listing("probe")
        now = self.time.surely()
        long_ago = now - PROBE_KEPT  # by those who crashed in here
        await self._sweep_probe(name, *(i.name for i in seen if i.written < long_ago))
        self.contention.seen(sum(i.written > now - PROBED_NOW for i in seen) - 1)
        if not self.time.known:
            raise StoreError(
                f"{self.shown}: a LIST does not show what was just written; a queue needs a store "
                "whose listings are consistent"
            )

    async def _sweep_probe(self, *names: str) -> None:
        with suppress(StoreError):
            await self.delete(names)

    # What was read

    async def body(self, root: RootObject, *, afresh: bool = False) -> PutBody | None:
        """The body of a root. afresh: ask the store whether it is still there, at least."""
        body = self.cache.body(root.path)
        if body is not None:
            gone = afresh and await self.head(root.path) is None
            return None if gone else body
        raw = await self.get(root.path)
        if not raw:
            return None
        body = read_body(root.put.folder, raw)
        self.cache.add_body(root.path, body)
        return body

    async def content(self, name: str) -> dict[str, Any] | None:
        content = self.cache.content(name)
        if content is None:
            raw = await self.get(name)
            if raw is None:
                return None
            content = json.loads(raw)
            self.cache.add_content(name, content or {})
        return content

    async def folder(self, folder: str) -> list[RootObject]:
        """The roots of one put, as they are now."""
        return read_roots(await self.listing("live", folder))

    async def units(self, root: RootObject) -> list[ClaimUnit]:
        """The units of a root, read as far as it takes to know which jobs are left."""
        while True:
            units = self.seen_units(root)
            if units is None:
                if await self.body(root) is None:
                    return []
                continue
            missing = [name for unit in units if (name := self.unread(unit))]
            if not missing:
                return units
            for name in missing:
                if await self.content(name) is None:
                    return []  # it is being deleted

    def seen_units(self, root: RootObject) -> list[ClaimUnit] | None:
        return read_units(root, self.cache.slices, self.cache.content, self.time.grain)

    def unread(self, unit: ClaimUnit) -> str | None:
        """The entry that has to be read to know which jobs of a unit are left."""
        if unit.unread is not None:
            return unit.unread
        return unit.masked if unit.jobs(self.cache.content) is None else None

    # In the background

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something to its end, whoever is cancelled meanwhile."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits for it is told; if nobody does, it is not missed

    def throw_away(self, roots: list[str], entries: list[str]) -> None:
        """Delete roots, then their entries, soon, with what else is thrown away meanwhile.

        The order matters: whoever creates an entry, and then finds the root still there, knows
        that no entry had been deleted before it.
        """
        self.cache.forget(roots)
        self._trash.append((roots, entries))
        if self._emptying is None:
            self._emptying = self.begin(self._empty())

    async def _empty(self) -> None:
        try:
            while self._trash:
                trash, self._trash = self._trash, []
                # What cannot be deleted now is found by a later claim, of anybody.
                with suppress(StoreError):
                    if roots := [name for names, _ in trash for name in names]:
                        await self.delete(roots)
                    if entries := [name for _, names in trash for name in names]:
                        await self.delete(entries)
        finally:
            self._emptying = None

    async def close(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)
        self.closed = True
