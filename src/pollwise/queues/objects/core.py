"""The base of all parts of an `ObjectQueue`: requests that resolve lost answers, the store's time,
a cache of what was read, and deletes in the background."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from pollwise.errors import StoreError, StoreUnavailable
from pollwise.queues.objects.body import BodyCache, PutBody, duties, read_body
from pollwise.queues.objects.chain import (
    ChainEntry,
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
from pollwise.runtime.home import Home

T = TypeVar("T")

#: The maximum number of requests at a time.
REQUESTS = 32
#: How often a request is tried, and the pause before the second try, which doubles.
TRIES, PAUSE = 4, 0.05
#: How long a listing may be acted upon, in seconds. A handle that stalled for longer lists again.
ACT_WITHIN = 20.0
#: How long only the handle that ended a job cleans up after it, in seconds; then any handle may.
GRACE = 60.0
#: Clocks are compared to the microsecond, the last digit in names and times.
TICK = 2e-6
#: How long the estimate of the store's clock is used before it is refreshed, in seconds.
CHECK_EVERY = 3600.0
#: After how many seconds the start-up object of a crashed handle is deleted.
CHECK_KEPT = 600.0
#: Handles that wrote their start-up object within this many seconds start together with us.
STARTED_NOW = 5.0
#: The maximum number of objects in one delete.
DELETE_BATCH = 1000


class Core:
    """One handle of one queue in a store."""

    def __init__(self, store: Store, clock: Clock, base: str, shown: str, name: str) -> None:
        self.store = store
        self.clock = clock
        self.base = base
        self.shown = shown
        self.name = name
        self.time: StoreClock = StoreClock(clock, store.grain)
        self.cache: BodyCache = BodyCache()
        self.rng: random.Random = random.Random()
        self.contention: Contention = Contention(clock, self.rng)
        self.closed: bool = False
        self._home = Home()
        self._limit = asyncio.Semaphore(REQUESTS)
        self._checking: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._trash: list[tuple[list[str], list[str]]] = []
        self._emptying: asyncio.Task[None] | None = None

    def path(self, *parts: str) -> str:
        return "/".join((self.base, *parts))

    # Requests

    async def create(self, name: str, body: bytes, *, ours: bool = False) -> bool:
        """Create an object; True also if the answer was lost and the object is there.

        ours: nobody else ever writes this name, so its listing shows the store's time.
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
        """Pages of a listing. A failed listing is restarted, unless some of it was used."""
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

    async def listing(self, *folder: str, most: float = math.inf) -> list[ListedObject]:
        """The objects in a folder; no more requests are made when there are more than `most`."""
        found: list[ListedObject] = []
        async for page in self.pages(*folder):
            found += page
            if len(found) > most:
                break
        return found

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
        """Run calls in parallel, all to their end, even if some fail."""
        return await asyncio.gather(*calls, return_exceptions=True)

    # Start

    async def ready(self) -> None:
        """Check the store once: does it honour create-only writes, and what is its time?"""
        if self.closed:
            raise StoreError(f"{self.shown} is closed; open it again")
        if self._home.enter(self.shown):  # what an earlier event loop began never ends
            self._limit, self._checking, self._emptying = asyncio.Semaphore(REQUESTS), None, None
            self._tasks = set()
        if self.time.age < CHECK_EVERY:
            return
        known = self.time.known
        if self._checking is None or self._checking.done():
            self._checking = self.begin(self._check_store())
        if not known:
            await asyncio.shield(self._checking)

    async def _check_store(self) -> None:
        name = self.path("check", salt())
        if not await self.create(name, b"first", ours=True):
            raise StoreError(f"{self.shown}: a random name is already taken; try again")
        if await self.create(name, b"other"):
            await self._delete_checks(name)
            raise StoreError(
                f"{self.shown}: this store ignores create-only writes (If-None-Match: *), so two "
                "workers would get the same job. Use one that honours them: AWS S3, Google Cloud "
                "Storage, Azure Blob, R2, MinIO, SeaweedFS, or a local folder"
            )
        seen = await self.listing("check")
        now = self.time.surely()
        long_ago = now - CHECK_KEPT  # written by handles that crashed
        await self._delete_checks(name, *(i.name for i in seen if i.written < long_ago))
        self.contention.seen(sum(i.written > now - STARTED_NOW for i in seen) - 1)
        if not self.time.known:
            raise StoreError(
                f"{self.shown}: a LIST does not show an object just written; a queue needs a store "
                "whose listings are consistent"
            )

    async def _delete_checks(self, *names: str) -> None:
        with suppress(StoreError):
            await self.delete(names)

    # What was read

    async def body(self, root: RootObject, *, afresh: bool = False) -> PutBody | None:
        """The body of a root. afresh: also ask the store whether the root still exists."""
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
            content = self.cache.add_content(name, json.loads(raw) or {})
        return content

    async def duty(self, entry: ChainEntry | None) -> list[dict[str, Any]]:
        """The jobs that an entry, or those before it, say have yet to be moved."""
        raw = None if entry is None else await self.get(entry.name)
        return [] if raw is None else duties(json.loads(raw))

    async def folder(self, folder: str) -> list[RootObject]:
        """The current roots of one put."""
        return read_roots(await self.listing("live", folder))

    async def units(self, root: RootObject) -> list[ClaimUnit]:
        """The units of a root, with everything read that says which jobs are left."""
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
        """The name of an entry that has to be read to know which jobs are left and which are
        asked to cancel, or None."""
        if unit.unread is not None:
            return unit.unread
        if unit.jobs(self.cache.content) is None:
            return unit.masked
        if unit.ended or unit.asking is None or self.cache.content(unit.asking) is not None:
            return None
        return unit.asking

    # In the background

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a task to its end, even if the caller is cancelled."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a waiting caller gets it; without one it is not reported

    def throw_away(self, roots: list[str], entries: list[str]) -> None:
        """Delete roots and then their entries in the background, together with other deletes.

        The order matters: a handle that creates an entry and then still finds the root knows that
        no entry was deleted before.
        """
        self.cache.forget(roots)
        self._trash.append((roots, entries))
        if self._emptying is None:
            self._emptying = self.begin(self._empty())

    async def _empty(self) -> None:
        try:
            while self._trash:
                trash, self._trash = self._trash, []
                # What cannot be deleted now is found by a later claim of any handle.

                with suppress(StoreError):
                    if roots := [name for names, _ in trash for name in names]:
                        await self.delete(roots)
                    if entries := [name for _, names in trash for name in names]:
                        await self.delete(entries)
        finally:
            self._emptying = None

    async def close(self) -> None:
        while self._tasks and self._home.here():
            await asyncio.wait(self._tasks)
        self.closed = True
