"""Crashes at every request, before and after its effect: nothing lost, no two live leases, and in
the end nothing left lying about."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from pollwise.errors import LeaseLost, StoreError, StoreUnavailable
from pollwise.queues.objects.core import TRIES
from pollwise.queues.objects.queue import ObjectQueue
from pollwise.queues.objects.store import Store
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.jobs import Claim, NewJob, Settlement
from tests.queues.objects.stores import Crashing, Flaky, VirtualStore, Wrapped
from tests.support.kit import virtually

LEASE = 30.0


class World:
    """A bucket, a healthy handle, and one that is going to die."""

    def __init__(self, clock: VirtualClock, keep: float | None = None) -> None:
        self.clock = clock
        self.keep = keep
        self.bucket = VirtualStore(clock)
        self.healthy = self.handle(self.bucket)
        self.ended: set[Any] = set()  # payloads whose end was acknowledged

    def handle(self, store: Any) -> ObjectQueue:
        return ObjectQueue(store, clock=self.clock, keep=self.keep)

    async def drain(self) -> Counter[Any]:
        """What runs, when healthy workers go on for long enough; all of it is done then."""
        ran: Counter[Any] = Counter()
        for _ in range(12):
            await self.clock.advance(LEASE)
            claims = await self.healthy.claim("healthy", 100, LEASE)
            ran.update(claim.job.payload for claim in claims)
            await self.healthy.settle([Settlement.done(claim) for claim in claims])
        return ran

    async def tidy(self) -> list[str]:
        """What is left in the bucket when there was time to clean up."""
        for _ in range(6):
            await self.clock.advance(61)
            await self.healthy.claim("healthy", 100, LEASE)
        await self.healthy.close()
        return [n for n in self.bucket.objects if "/check/" not in n]


Operation = Callable[[ObjectQueue, list[Claim]], Awaitable[Any]]
JOBS = 3


def settle(*actions: str) -> Operation:
    async def call(queue: ObjectQueue, claims: list[Claim]) -> None:
        ways: dict[str, Callable[[Claim], Settlement]] = {
            "done": Settlement.done,
            "retry": lambda claim: Settlement.retry(claim, 1, "again"),
            "back": Settlement.give_back,
            "dead": lambda claim: Settlement.dead(claim, "broken"),
        }
        batch = zip(claims, itertools.cycle(actions), strict=False)
        await queue.settle([ways[action](claim) for claim, action in batch])

    return call


async def put_more(queue: ObjectQueue, claims: list[Claim]) -> None:
    await queue.put([NewJob("job", f"more{n}") for n in range(JOBS)])


async def claim_some(queue: ObjectQueue, claims: list[Claim]) -> None:
    await queue.claim("victim", 2, LEASE)


async def claim_twice(queue: ObjectQueue, claims: list[Claim]) -> None:
    await queue.claim("victim", 1, LEASE)
    await queue.claim("victim", 5, LEASE)


async def renew(queue: ObjectQueue, claims: list[Claim]) -> None:
    await queue.renew(claims[:2], LEASE)


OPERATIONS: dict[str, tuple[Operation, bool]] = {  # and whether it needs claims
    "put": (put_more, False),
    "claim": (claim_some, False),
    "claim twice": (claim_twice, False),
    "renew": (renew, True),
    "done": (settle("done"), True),
    "retry": (settle("retry"), True),
    "give back": (settle("back"), True),
    "dead": (settle("dead"), True),
    "mixed": (settle("done", "retry", "dead"), True),
    "some": (lambda queue, claims: settle("done")(queue, claims[:1]), True),
    "some dead": (lambda queue, claims: settle("dead")(queue, claims[1:2]), True),
}


def every_crash(run: Callable[[int, bool], bool]) -> None:
    """Run with a crash at each request in turn, until one run has none."""
    for after in (False, True):
        for at in itertools.count(1):
            if not run(at, after):
                break
            assert at < 200, "it never ends"


@pytest.mark.parametrize("together", [True, False], ids=["one put", "single puts"])
@pytest.mark.parametrize("unique", [False, True], ids=["plain", "unique"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_crash_loses_nothing(name: str, unique: bool, together: bool) -> None:
    operation, needs_claims = OPERATIONS[name]

    async def main(clock: VirtualClock, at: int, after: bool) -> bool:
        world = World(clock)
        jobs = [NewJob("job", n, unique=f"u{n}" if unique else None) for n in range(JOBS)]
        for batch in [jobs] if together else [[job] for job in jobs]:
            await world.healthy.put(batch)
        dying = Crashing(world.bucket, 10**9, after=after)
        victim = world.handle(dying)
        claims = await victim.claim("victim", JOBS, LEASE) if needs_claims else []
        await victim.stats()
        dying.left = at
        survived = True
        try:
            await operation(victim, claims)
        except StoreError:
            survived = False
        await victim.close()  # what it does in the background dies with it
        crashed = dying.crashed
        ran = await world.drain()
        dead = {view.job.payload for view in await world.healthy.jobs("dead")}
        assert max(ran.values(), default=0) <= 1, f"{ran} ran twice, one after the other"
        if name == "put":
            more = sum(f"more{n}" in ran for n in range(JOBS))
            assert more in ((JOBS,) if survived else (0, JOBS)), f"{more} of the put came"
        settled = {"done", "dead", "mixed", "some", "some dead"}
        for n in range(JOBS):
            if name not in settled:
                assert ran[n] == 1, f"{n} is lost; {at} {after}"
            elif name == "dead":
                assert (n in dead) != (ran[n] == 1), f"{n}: dead {dead}, ran {ran}"
            elif survived and name == "done":
                assert not ran[n], f"{n} ran again although it was settled"
        if name == "some":
            assert ran[1] == ran[2] == 1
        if name == "some dead":
            assert ran[0] == ran[2] == 1
            assert (1 in dead) != (ran[1] == 1)
        if name == "mixed":
            assert ran[1] == 1, "what is retried is lost"
            assert (2 in dead) != (ran[2] == 1)
        if unique and not dead:  # all are free again
            await asyncio.wait_for(world.healthy.put(jobs), 1000)
            assert sum((await world.drain()).values()) == JOBS
        await world.healthy.drop()
        left = await world.tidy()
        assert not left, f"left lying about after a crash at {at}, after = {after}: {left}"
        return crashed

    every_crash(lambda at, after: virtually(lambda clock: main(clock, at, after)))


def test_a_crash_in_a_put_with_unique() -> None:
    async def main(clock: VirtualClock, at: int, after: bool) -> bool:
        world = World(clock)
        await world.healthy.put(NewJob("job", "held", unique="held"))
        jobs = [NewJob("job", n, unique=f"u{n}") for n in range(2)]
        jobs += [NewJob("job", "plain"), NewJob("job", "held", unique="held")]
        dying = Crashing(world.bucket, 10**9, after=after)
        victim = world.handle(dying)
        await victim.stats()
        dying.left = at
        with_put: list[str] = []
        with suppress(StoreError):
            with_put = await victim.put(jobs)
        await victim.close()
        crashed = dying.crashed
        again = await world.healthy.put(jobs)  # waits until it is sure about the crashed one
        assert not with_put or again[0] == with_put[0]
        ran = await world.drain()
        assert ran[0] == ran[1] == ran["held"] == 1, f"{ran}, crashed at {at}, after = {after}"
        assert ran["plain"] in (1, 2)
        assert not await world.tidy()
        return crashed

    every_crash(lambda at, after: virtually(lambda clock: main(clock, at, after)))


@pytest.mark.parametrize("what", ["retry", "drop", "prune"])
def test_a_crash_with_records(what: str) -> None:
    async def main(clock: VirtualClock, at: int, after: bool) -> bool:
        world = World(clock, keep=5 if what == "prune" else None)
        await world.healthy.put([NewJob("job", n, unique=f"u{n}") for n in range(JOBS)])
        claims = await world.healthy.claim("healthy", JOBS, LEASE)
        action = Settlement.done if what == "prune" else lambda c: Settlement.dead(c, "broken")
        await world.healthy.settle([action(claim) for claim in claims])
        await clock.advance(10)
        dying = Crashing(world.bucket, 10**9, after=after)
        victim = world.handle(dying)
        await victim.stats()
        dying.left = at
        survived = True
        try:
            await getattr(victim, what)()
        except StoreError:
            survived = False
        await victim.close()
        crashed = dying.crashed
        ran = await world.drain()
        if what == "retry":
            ran += Counter()
            await world.healthy.retry()
            again = await world.drain()
            assert all(ran[n] + again[n] >= 1 for n in range(JOBS)), f"lost: {ran} {again}"
            if survived:
                assert not again
        else:
            assert not ran
            await world.healthy.drop()
            await clock.advance(100)
            while await world.healthy.prune():
                pass
        left = await world.tidy()
        assert not [n for n in left if "/unique/" not in n], left
        await asyncio.sleep(0)
        return crashed

    every_crash(lambda at, after: virtually(lambda clock: main(clock, at, after)))


@pytest.mark.parametrize("keep", [None, 5.0], ids=["deleted", "kept"])
@pytest.mark.parametrize("unique", [False, True], ids=["plain", "unique"])
@pytest.mark.parametrize("what", ["waiting", "running", "lapsed", "holding"])
def test_a_crash_while_cancelling(what: str, unique: bool, keep: float | None) -> None:
    """One of three jobs is cancelled: by the victim, or before the victim acts."""

    async def main(clock: VirtualClock, at: int, after: bool) -> bool:
        world = World(clock, keep)
        jobs = [NewJob("job", n, unique=f"u{n}" if unique else None) for n in range(JOBS)]
        put = await world.healthy.put(jobs)
        dying = Crashing(world.bucket, 10**9, after=after)
        victim = world.handle(dying)
        await victim.stats()
        claims: list[Claim] = []
        if what != "waiting":
            holder = victim if what == "holding" else world.healthy
            claims = await holder.claim("holder", JOBS, LEASE)
        if what in ("lapsed", "holding"):
            assert await world.healthy.cancel([put[1]]) == {put[1]: "leased"}
        if what == "lapsed":
            await clock.advance(LEASE + 1)
        dying.left = at
        cancelled = what in ("lapsed", "holding")
        with suppress(StoreError):
            if what == "lapsed":
                await victim.claim("victim", JOBS, LEASE)
            elif what == "holding":
                await victim.settle([Settlement.retry(claim, 0, "again") for claim in claims])
            else:
                await victim.cancel([put[1]])
                cancelled = True
        await victim.close()
        crashed = dying.crashed
        if what == "running":
            await world.healthy.settle([Settlement.retry(claim) for claim in claims])
        ran = await world.drain()
        assert ran[0] == ran[2] == 1, f"{ran}; crashed at {at}, after = {after}"
        assert ran[1] <= (not cancelled), "a cancelled job ran"
        await clock.advance(61)
        await world.healthy.claim("healthy", 1, LEASE)  # cleans up
        await clock.advance(1)
        info = await world.healthy.get(put[1])
        state = None if info is None else info.state
        assert state == (None if keep is None else "done" if ran[1] else "cancelled")
        await clock.advance(10)
        while await world.healthy.prune():
            pass
        if unique:  # all are free again
            await asyncio.wait_for(world.healthy.put(jobs), 1000)
            assert sum((await world.drain()).values()) == JOBS
            await clock.advance(10)
            while await world.healthy.prune():
                pass
        left = await world.tidy()
        assert not left, f"left lying about after a crash at {at}, after = {after}: {left}"
        return crashed

    every_crash(lambda at, after: virtually(lambda clock: main(clock, at, after)))


def test_a_failed_request_is_not_noticed() -> None:
    """Each request fails once, before or after its effect: all goes as if it had not."""

    async def main(clock: VirtualClock, at: int, after: bool) -> bool:
        bucket = VirtualStore(clock)
        store = Flaky(bucket, at, after=after)
        queue = ObjectQueue(store, clock=clock)
        jobs = [NewJob("job", n, unique=f"u{n}" if n % 2 else None) for n in range(4)]
        put = await queue.put(jobs) + await queue.put(NewJob("job", 4))
        assert len(set(put)) == 5
        claims = await queue.claim("w", 10, LEASE)
        assert [claim.job.payload for claim in claims] == [0, 1, 2, 3, 4]
        await queue.renew(claims, LEASE)
        done, back = Settlement.done, Settlement.retry
        await queue.settle(
            [done(claims[0]), back(claims[1]), Settlement.dead(claims[2], "x"), back(claims[4])]
        )
        again = await queue.claim("w", 10, LEASE)
        assert {(c.job.payload, c.job.attempt) for c in again} == {(1, 2), (4, 2)}
        await queue.settle([done(claims[3]), *map(done, again)])
        assert await queue.retry() == 1
        [last] = await queue.claim("w", 10, LEASE)
        await queue.settle([done(last)])
        with pytest.raises(LeaseLost):
            await queue.settle([done(last)])
        await queue.close()
        assert not [n for n in bucket.objects if "/check/" not in n]
        return store.left <= 0

    every_crash(lambda at, after: virtually(lambda clock: main(clock, at, after)))


class Outage(Wrapped):
    """All tries of the n-th write fail, the first of them before its effect or after."""

    def __init__(self, inner: Store, at: int, *, after: bool) -> None:
        super().__init__(inner)
        self.at = at
        self._after = after
        self._seen: Counter[str] = Counter()

    @property
    def happened(self) -> bool:
        return len(self._seen) >= self.at

    async def create(self, name: str, body: bytes) -> bool:
        self._seen[name] += 1
        failing = list(self._seen).index(name) + 1 == self.at and self._seen[name] <= TRIES
        if failing and self._after and self._seen[name] == 1:
            await self.inner.create(name, body)
        if failing:
            raise StoreUnavailable("an outage")
        return await self.inner.create(name, body)


@pytest.mark.parametrize(
    "actions",
    [("done",), ("dead",), ("retry",), ("done", "retry"), ("done", "retry", "dead", "back")],
    ids=" ".join,
)
def test_a_settlement_that_is_tried_again_is_not_lost(actions: tuple[str, ...]) -> None:
    """A call that failed is made again under the same lease: what it did counts as done."""

    async def main(clock: VirtualClock, at: int, after: bool) -> bool:
        bucket = VirtualStore(clock)
        store = Outage(bucket, 10**9, after=after)
        queue = ObjectQueue(store, clock=clock)
        await queue.put([NewJob("job", n) for n in range(4)])
        claims = await queue.claim("w", 4, LEASE)
        store._seen.clear()
        store.at = at
        for _ in range(3):
            try:
                await settle(*actions)(queue, claims)
            except StoreUnavailable:
                await clock.advance(0.5)
            else:
                break
        happened, store.at = store.happened, 10**9
        await clock.advance(3 * LEASE)
        again = await queue.claim("w", 4, LEASE)
        each = Counter(actions[n % len(actions)] for n in range(4))
        assert len(again) == each["retry"] + each["back"]
        await clock.advance(1)  # what that claim saw lying about is being moved
        assert len(await queue.jobs("dead")) == each["dead"]
        await queue.close()
        return happened

    every_crash(lambda at, after: virtually(lambda clock: main(clock, at, after)))


def test_what_another_handle_settles_shows_at_once() -> None:
    async def main(clock: VirtualClock) -> None:
        bucket = VirtualStore(clock)
        one, other = (ObjectQueue(bucket, clock=clock) for _ in range(2))
        await one.put([NewJob("job", n) for n in range(3)])
        claims = await one.claim("w", 2, LEASE)
        await other.settle([Settlement.dead(claims[1], "broken")])  # while the first goes on
        assert [view.job.payload for view in await one.jobs("dead")] == [1]
        await other.close()
        await one.close()

    virtually(main)


def test_a_late_settlement_of_some_jobs_shows_at_once() -> None:
    """Nobody holds the others, and they can be claimed as soon as the dead one is moved."""

    async def main(clock: VirtualClock) -> None:
        bucket = VirtualStore(clock)
        one, other = (ObjectQueue(bucket, clock=clock) for _ in range(2))
        await one.put([NewJob("job", n) for n in range(3)])
        claims = await one.claim("w", 3, LEASE)
        await clock.advance(LEASE + 1)
        await one.settle([Settlement.dead(claims[1], "broken")])
        assert [view.job.payload for view in await other.jobs("dead")] == [1]
        assert [claim.job.payload for claim in await other.claim("w", 3, LEASE)] == [0, 2]
        await other.close()
        await one.close()

    virtually(main)


def test_a_late_settlement_counts_for_what_nobody_else_claimed() -> None:
    """Jobs were claimed together, their lease ran out, and another handle claimed one of them."""

    async def main(clock: VirtualClock) -> None:
        bucket = VirtualStore(clock)
        one, other = (ObjectQueue(bucket, clock=clock) for _ in range(2))
        put = await one.put([NewJob("job", n) for n in range(3)])
        claims = await one.claim("w", 3, LEASE)
        await clock.advance(LEASE + 1)
        assert [claim.job.payload for claim in await other.claim("w", 1, LEASE)] == [0]
        assert (await one.renew(claims, LEASE)).lost == (put[0],)
        with pytest.raises(LeaseLost) as error:
            await one.settle([Settlement.done(claim) for claim in claims])
        assert error.value.lost == (put[0],)
        assert [view.job.payload for view in await other.jobs()] == [0]
        await other.close()
        await one.close()

    virtually(main)
