"""The contract of a source: what is delivered, what is delivered again, and what never is."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, ClassVar, TypeVar

from pollwise.core.retry import Retry
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.errors import CursorMoved, SourceClosed
from pollwise.runtime.events import Events
from pollwise.runtime.loop import poll
from pollwise.sources.base import Source
from pollwise.testing.conformance.bench import NotCapable, equal, expect, refused
from pollwise.testing.contracts.base import Contract

S = TypeVar("S", bound=Source[Any])

#: How many polls in a row may find something before a check gives up.
POLLS_MAX = 200


def keys(count: int, start: int = 0) -> list[str]:
    return [f"item-{n:04d}" for n in range(start, start + count)]


class SourceContract(Contract):
    """A source, how items get into it, and how to open it again as after a crash.

        class MyContract(SourceContract):
            async def source(self):
                return self.keep(MySource(self.server, cursor=self.cursors, limit=self.batch))
            async def add(self, keys):
                await self.server.put(keys)
            def key(self, item):
                return item["key"]

    Each check needs an empty source without a cursor: `serving` makes one.

    batch: how many items a poll of `source()` delivers at most; None if the source decides.
    """

    batch: ClassVar[int | None] = 4

    @abstractmethod
    async def source(self) -> Source[Any]:
        """A new handle on the source with the same cursor, as another process would have it."""

    @abstractmethod
    async def add(self, keys: Sequence[str]) -> None:
        """Put an item for each key into the source, in this order."""

    @abstractmethod
    def key(self, item: Any) -> str:
        """The key of an item that was delivered."""

    def broken(self) -> AbstractAsyncContextManager[None]:
        """While inside, polls of the source fail, with an error that a later try may not meet."""
        raise NotCapable("this source cannot be made to fail")

    def keep(self, source: S) -> S:
        """Remember a handle, so that `close` closes it."""
        self._handles().append(source)
        return source

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Override it to begin with an empty source, which no cursor knows; each check is run
        inside. At its end, what `keep` remembers is closed."""
        try:
            yield
        finally:
            handles = self._handles()
            while handles:
                await handles.pop().close()

    def _handles(self) -> list[Source[Any]]:
        handles: list[Source[Any]] = self.__dict__.setdefault("_kept", [])
        return handles

    async def taken(self, source: Source[Any], polls: int = 1) -> list[str]:
        """The keys that this number of polls delivers."""
        found: list[str] = []
        for _ in range(polls):
            found += [self.key(item) for item in (await source()).items]
        return found

    async def drained(self, source: Source[Any]) -> list[str]:
        """The keys that polls deliver until one is empty and says that there is no more."""
        found: list[str] = []
        for _ in range(POLLS_MAX):
            batch = await source()
            found += [self.key(item) for item in batch.items]
            if not batch.items:
                return found
        raise AssertionError(f"{POLLS_MAX} polls in a row found items: {found[:20]}…")

    async def crashed(self, source: Source[Any]) -> Source[Any]:
        """Another handle, after a crash of the process with this one."""
        await source.close()
        return await self.source()

    async def check_an_empty_source_is_empty(self) -> None:
        """A poll of an empty source finds nothing, as often as it is repeated."""
        source = await self.source()
        for _ in range(3):
            equal(await self.taken(source), [], "the items of an empty source")

    async def check_each_item_is_delivered_once(self) -> None:
        """Without a crash, each item is delivered once, also those that come later."""
        source = await self.source()
        await self.add(keys(3))
        equal(sorted(await self.drained(source)), keys(3), "the items that were there")
        await self.add(keys(2, 3))
        equal(sorted(await self.drained(source)), keys(2, 3), "the items that came later")
        equal(await self.drained(source), [], "what is left after all was delivered")

    async def check_a_backlog_takes_several_polls(self) -> None:
        """A backlog is delivered in batches, and a batch that is not the last one is full."""
        if self.batch is None:
            raise NotCapable("the source decides how much it delivers")
        source = await self.source()
        wanted = keys(3 * self.batch - 1)
        await self.add(wanted)
        found: list[str] = []
        while len(found) < len(wanted):
            batch = await source()
            size = len(batch.items)
            expect(0 < size <= self.batch, f"a batch of {size} items, {self.batch} are allowed")
            found += [self.key(item) for item in batch.items]
            if len(found) < len(wanted):
                equal(batch.capacity, size, "the capacity of a batch, when there is more")
        equal(sorted(found), wanted, "the items of the backlog")
        equal(await self.taken(source), [], "what comes after the backlog")

    async def check_what_was_not_committed_comes_again(self) -> None:
        """After a crash before the commit, the batch is delivered again, and nothing is lost."""
        source = await self.source()
        await self.add(keys(3))
        first = await self.taken(source)
        expect(first, "no item was delivered")
        source = await self.crashed(source)
        equal(sorted(await self.drained(source)), keys(3), "the items after a crash")

    async def check_what_was_committed_does_not(self) -> None:
        """After a commit, or the next poll, another process goes on after the committed items."""
        source = await self.source()
        await self.add(keys(2))
        first = await self.drained(source)
        equal(sorted(first), keys(2), "the items before the crash")
        source = await self.crashed(source)
        equal(await self.drained(source), [], "the items after a poll committed all, and a crash")
        await self.add(keys(2, 2))
        found = await self.taken(source)
        while len(found) < 2:
            found += await self.taken(source)
        await source.commit()
        source = await self.crashed(source)
        equal(await self.drained(source), [], "the items after commit(), and a crash")

    async def check_a_crash_at_any_point_loses_nothing(self) -> None:
        """However often it dies, all is delivered, and a crash repeats one batch at most."""
        wanted = keys(11)
        await self.add(wanted)
        found: list[str] = []
        crashes, last = 0, 0
        source = await self.source()
        for polls in (1, 2, 3, 1, 2):
            for _ in range(polls):
                got = await self.taken(source)
                last = max(last, len(got))
                found += got
            source = await self.crashed(source)
            crashes += 1
        found += await self.drained(source)
        equal(sorted(set(found)), wanted, "the items over all crashes")
        repeats = len(found) - len(wanted)
        expect(repeats <= crashes * max(last, 1), f"{repeats} repeats after {crashes} crashes")

    async def check_a_new_loop_gets_again_what_the_last_one_dropped(self) -> None:
        """A consumer that raises in its loop gets its batch again from the next loop."""
        source = await self.source()
        await self.add(keys(2))

        def loop() -> Any:
            events = Events(quiet=True)
            return poll(source, Adaptive("1ms", "20ms"), events=events, spread=False, drain=True)

        first: list[str] = []
        try:
            async for items in loop():
                first = [self.key(item) for item in items]
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        expect(first, "no item was delivered")
        found: set[str] = set()
        async for items in loop():
            found |= {self.key(item) for item in items}
            if len(found) == 2:
                break
        equal(sorted(found), keys(2), "the items of the second loop")

    async def check_a_block_that_ends_well_commits(self) -> None:
        """`async with source:` commits at its end; if an exception ends it, it does not."""
        await self.add(keys(1))
        for error in (ValueError, None):
            source = await self.source()
            try:
                async with source:
                    equal(await self.taken(source), keys(1), "the item that is not committed")
                    if error is not None:
                        raise error
            except ValueError:
                pass
        source = await self.source()
        equal(await self.drained(source), [], "the items after a block that ended well")

    async def check_a_failed_poll_raises_and_loses_nothing(self) -> None:
        """While the source fails, polls raise; afterwards everything is delivered."""
        broken = self.broken()
        source = await self.source()
        await self.add(keys(2))
        before = await self.taken(source)
        async with broken:
            for _ in range(2):
                error: Exception | None = None
                try:
                    await source()
                except Exception as raised:
                    error = raised
                expect(error is not None, "a poll of a broken source did not raise")
                permanent = getattr(error, "permanent", False)
                expect(not permanent, f"the error is permanent: {error!r}")
        after = await self.drained(source)
        equal(sorted({*before, *after}), keys(2), "the items before and after the failure")

    async def check_a_loop_outlasts_failures(self) -> None:
        """`pollwise.poll` retries a source that fails, and delivers what it has afterwards."""
        broken = self.broken()
        source = await self.source()
        await self.add(keys(1))
        loop = poll(
            source, Adaptive("1ms", "20ms"), spread=False, retry=Retry.fixed("5ms", attempts=None),
            events=Events(quiet=True),
        )  # fmt: skip
        async with broken:
            waiting = asyncio.ensure_future(anext(loop))
            while loop.counts.failed < 2 and not waiting.done():
                await asyncio.wait([waiting], timeout=0.01)
        items = await waiting
        equal([self.key(item) for item in items], keys(1), "the items after the failure")
        loop.stop()

    async def check_a_closed_source_is_not_polled(self) -> None:
        """`close` may be called twice; afterwards a poll is refused."""
        source = await self.source()
        await self.taken(source)
        await source.close()
        await source.close()
        await refused(SourceClosed, source(), "a poll of a closed source")

    async def check_two_processes_notice_each_other(self) -> None:
        """Two processes that share a cursor cannot both commit: the second is always refused."""
        first, second = await self.source(), await self.source()
        await self.add(keys(1))
        await self.taken(first)
        await self.taken(second)
        await first.commit()
        await second.commit()  # the same cursor: it took the same items
        error: Exception | None = None
        try:
            for n, each in enumerate((first, second, first, second), 1):
                await self.add(keys(1, n))
                await self.drained(each)
                await each.commit()
        except CursorMoved as moved:
            error = moved
        expect(error is not None, "two processes committed different cursors")
        expect(getattr(error, "permanent", False), "the error does not end a loop")
