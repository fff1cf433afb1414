"""What an `ObjectQueue` costs, in requests by kind: counted, stated, guarded."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import pytest

from pollwise.queues.objects.queue import ObjectQueue
from pollwise.queues.objects.store import Store
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.hints import Hint
from pollwise.runtime.jobs import Job, NewJob, Progress, Settlement
from pollwise.testing.conformance.steering import INFO
from pollwise.worker import Worker
from tests.queues.objects.stores import Counting, VirtualStore, Wrapped
from tests.support.kit import options, virtually

T = TypeVar("T")


def counted(clock: VirtualClock, **options: float) -> tuple[ObjectQueue, Counting]:
    store = Counting(VirtualStore(clock, **options))
    return ObjectQueue(store, clock=clock), store


async def at_rest(queue: ObjectQueue) -> None:
    """Let what goes on in the background come to its end."""
    while queue._core._tasks:
        await asyncio.sleep(0)


def test_start_up_check() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, store = counted(clock)
        await queue.claim("w", 1, 30)
        assert store.take() == {"create": 2, "lost": 1, "list": 2, "delete": 1}

    virtually(main)


def test_an_idle_poll_is_one_list() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, store = counted(clock)
        await queue.claim("w", 1, 30)
        store.take()
        for _ in range(10):
            assert await queue.claim("w", 100, 30) == []
        assert store.take() == {"list": 10}
        # Also with jobs that are delayed, or leased by others.
        await queue.put([NewJob("job", n, delay=3600) for n in range(50)])
        await queue.put([NewJob("job", n) for n in range(50)])
        assert len(await queue.claim("w", 50, 600)) == 50
        store.take()
        await clock.advance(61)
        for _ in range(10):
            assert await queue.claim("w", 100, 30) == []
        assert store.take() == {"list": 10}

    virtually(main)


def test_one_job_from_submit_to_done() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, store = counted(clock)
        await queue.claim("w", 1, 30)
        putter, puts = ObjectQueue(store.inner, clock=clock), store
        await putter.stats()
        store.take()
        await queue.put(NewJob("job", 1))
        assert puts.take() == {"create": 1}
        worker = ObjectQueue(store, clock=clock)
        await worker.claim("w", 1, 30, kinds=["none"])
        store.take()
        claims = await worker.claim("w", 1, 30)
        assert store.take() == {"list": 1, "create": 1, "get": 1}
        await worker.settle([Settlement.done(claims[0])])
        await at_rest(worker)
        # Deletes are free on S3; two, for the order that they have to have.
        assert store.take() == {"create": 1, "delete": 2}
        assert store.inner.objects == {}  # type: ignore[attr-defined]

    virtually(main)


def test_a_batch_costs_little_more_than_a_job() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, store = counted(clock)
        await queue.stats()
        store.take()
        await queue.put([NewJob("job", n) for n in range(160)])
        worker = ObjectQueue(store, clock=clock)
        await worker.stats()
        put = Counter(store.take())
        claims = await worker.claim("w", 160, 30)
        assert len(claims) == 160
        assert store.take() == {"list": 1, "create": 10, "get": 1}
        await worker.settle([Settlement.done(claim) for claim in claims])
        await at_rest(worker)
        assert store.take() == {"create": 10, "delete": 2}
        assert put["create"] == 3  # and two of the other handle's start-up check
        assert store.inner.objects == {}  # type: ignore[attr-defined]

    virtually(main)


def test_other_settlements() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, store = counted(clock)
        await queue.put([NewJob("job", 1)])

        async def cost(*settled: Settlement) -> dict[str, int]:
            store.take()
            await queue.settle(settled)
            await at_rest(queue)
            return store.take()

        [claim] = await queue.claim("w", 1, 30)
        store.take()
        await queue.renew([claim], 30)
        assert store.take() == {"create": 1}
        assert await cost(Settlement.give_back(claim)) == {"create": 1}
        [claim] = await queue.claim("w", 1, 30)
        assert await cost(Settlement.retry(claim, 1, "again")) == {"create": 1}
        await clock.advance(2)
        [claim] = await queue.claim("w", 1, 30)
        assert await cost(Settlement.dead(claim, "broken")) == {"create": 2, "delete": 2}

    virtually(main)


def test_the_record_of_a_job_adds_no_requests() -> None:
    """Headers, progress, results and errors travel with requests that are made anyway."""

    async def main(clock: VirtualClock) -> None:
        bucket = VirtualStore(clock)
        costs = []
        for full in (False, True):
            store = Counting(bucket)
            queue = ObjectQueue(store, name=f"{full}", clock=clock, keep=600)
            await queue.claim("w", 1, 30)
            store.take()
            headers = {"traceparent": "00-1"} if full else None
            [job_id] = await queue.put(NewJob("job", 1, headers=headers))
            error, result = ("x" * 1000, {"sum": 1}) if full else (None, None)
            for last in (False, False, True):
                [claim] = await queue.claim("w", 1, 30)
                await queue.renew([claim], 30, {job_id: Progress(0.5, "half")} if full else None)
                again = Settlement.retry(claim, error=error)
                await queue.settle([Settlement.done(claim, result) if last else again])
            await at_rest(queue)
            costs.append(store.take())
            info = await queue.get(job_id)
            assert info is not None
            assert (len(info.errors), info.result) == ((2, {"sum": 1}) if full else (0, None))
        assert costs[0] == costs[1]
        assert costs[0] == {"list": 3, "create": 11, "head": 3, "delete": 2}

    virtually(main)


def test_what_pauses_and_records_cost() -> None:
    """A claim sees pauses and orders in the LIST it makes anyway."""

    async def main(clock: VirtualClock) -> None:
        queue, store = counted(clock)
        operator = ObjectQueue(store.inner, clock=clock)
        await queue.put([NewJob("mail", 1), NewJob("job", 2)])
        await queue.claim("w", 1, 30, kinds=["none"])
        await operator.pause("mail")
        store.take()
        assert len(await queue.claim("w", 5, 600, kinds=["mail", "job"])) == 1
        assert store.take() == {"list": 1, "create": 1, "head": 1}
        for _ in range(3):
            await clock.advance(60)
            await queue.claim("w", 5, 600, kinds=["mail"])
            await queue.record_worker(INFO, 180)
            store.take()
        await clock.advance(60)
        await queue.claim("w", 5, 600, kinds=["mail"])
        assert await queue.record_worker(INFO, 180) is None
        assert store.take() == {"list": 1, "create": 1, "delete": 1}
        await operator.set_concurrency(INFO.name, 3)
        await queue.claim("w", 5, 600, kinds=["mail"])
        assert await queue.record_worker(INFO, 180) == 3
        assert store.take() == {"list": 1, "create": 1, "delete": 1, "get": 1}
        await queue.forget_worker(INFO)
        assert store.take() == {"delete": 1}
        assert await operator.workers() == []

    virtually(main)


def test_what_a_cancel_costs() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, store = counted(clock)
        cancels = Counting(store.inner)
        canceller = ObjectQueue(cancels, clock=clock)
        await canceller.stats()
        put = await queue.put([NewJob("job", n) for n in range(16)])
        cancels.take()
        assert await canceller.cancel(put[:2]) == dict.fromkeys(put[:2], "cancelled")
        assert cancels.take() == {"list": 1, "get": 1, "create": 1, "head": 1}
        claims = await queue.claim("w", 16, 30)
        assert len(claims) == 14
        # The holder pays once, when it meets the request; the next renewal costs what it did.
        assert await canceller.cancel(put[2:4]) == dict.fromkeys(put[2:4], "leased")
        assert cancels.take() == {"list": 1, "create": 1, "head": 1}
        assert await canceller.cancel(put[2:4]) == dict.fromkeys(put[2:4], "leased")
        assert cancels.take() == {"list": 1, "get": 1}
        store.take()
        assert sorted((await queue.renew(claims, 30)).cancel) == sorted(put[2:4])
        assert store.take() == {"create": 2, "lost": 1, "list": 1, "get": 1}
        assert sorted((await queue.renew(claims, 30)).cancel) == sorted(put[2:4])
        assert store.take() == {"create": 1}
        await queue.settle([Settlement.retry(claim) for claim in claims])
        assert store.take() == {"create": 2}
        assert (await queue.stats()).ready == 12

    virtually(main)


class Gathering(Wrapped):
    """Answers the first LISTs of a queue only when so many have asked: all see the same."""

    def __init__(self, inner: Store, count: int) -> None:
        super().__init__(inner)
        self._left = count
        self._all = asyncio.Event()

    async def request(self, verb: str, names: Sequence[str], call: Callable[[], Awaitable[T]]) -> T:
        result = await call()
        if verb == "list" and names[0].endswith("/live"):
            self._left -= 1
            if self._left <= 0:
                self._all.set()
            await self._all.wait()
        return result


def race(jobs: int, limit: int, seed: int, start: str, *, put: int = 1) -> Counter[str]:
    """Sixteen workers that claim, work and settle as fast as they can, each with a handle of its
    own, over a store whose requests take 20 ms each, so that nothing but chance parts them.

    start: "at once" (all have listed before anybody claims, and none knows of the others),
    "as a fleet" (the same, and the handles started together) or "one by one" within a second.
    put: how many jobs go in together.
    """

    async def main(clock: VirtualClock) -> Counter[str]:
        bucket = VirtualStore(clock, latency=0.02)
        putter = ObjectQueue(bucket, clock=clock)
        for first in range(0, jobs, put):
            await putter.put([NewJob("job", n) for n in range(first, min(first + put, jobs))])
        store = Counting(bucket if start == "one by one" else Gathering(bucket, 16))
        rng = random.Random(seed)
        ran: list[int] = []
        queues = [ObjectQueue(store, clock=clock) for _ in range(16)]
        for queue in queues:
            queue._core.rng.seed(rng.random())
        starts = [queue._core.ready() for queue in queues]
        if start == "as a fleet":
            await asyncio.gather(*starts)
        else:
            for ready in starts:
                await ready
        store.take()

        async def work(queue: ObjectQueue, name: str) -> None:
            if start == "one by one":
                await clock.sleep(rng.random())
            empty = 0
            while empty < 5:
                claims = await queue.claim(name, limit, 30)
                empty = 0 if claims else empty + 1
                await clock.sleep(0.01 * (1 + rng.random()) if claims else 0.1)
                ran.extend(claim.job.payload for claim in claims)
                if claims:
                    await queue.settle([Settlement.done(claim) for claim in claims])
            await queue.close()

        await asyncio.gather(*(work(queue, f"w{n}") for n, queue in enumerate(queues)))
        assert sorted(ran) == list(range(jobs)), "each job ran, and once"
        return store.counts

    return virtually(main)


STARTS = ("at once", "as a fleet", "one by one")


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(("jobs", "most", "seeds"), [(16, 1.3, 10), (64, 0.9, 3)])
@pytest.mark.parametrize(("limit", "put"), [(1, 1), (8, 1), (8, 100)])
def test_a_race_of_sixteen_workers_loses_few_writes(
    start: str, jobs: int, most: float, seeds: int, limit: int, put: int
) -> None:
    lost = sum(race(jobs, limit, seed, start, put=put)["lost"] for seed in range(seeds))
    assert lost / jobs / seeds <= most


@pytest.mark.parametrize("jobs", [400, pytest.param(1000, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    ("start", "limit", "put"),
    [("at once", 1, 1), *((start, 8, put) for start in STARTS for put in (1, 100))],
)
def test_a_race_for_a_backlog_loses_fewer(start: str, limit: int, put: int, jobs: int) -> None:
    assert race(jobs, limit, 1, start, put=put)["lost"] / jobs <= 0.3


def test_a_worker_that_met_rivals_takes_all_there_is_once_they_are_gone() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, store = counted(clock)
        await queue.claim("w", 1, 30)
        for n in range(12):
            await queue.put(NewJob("job", n))
        for _ in range(3):
            queue._core.contention.lost()
        claims = await queue.claim("w", 12, 30)
        assert sorted(claim.job.payload for claim in claims) == list(range(12))
        # Order comes back as claims go undisputed, and so does the price of a claim.
        for _ in range(20):
            await queue.put(NewJob("job"))
            await queue.claim("w", 1, 30)
        store.take()
        await queue.put([NewJob("job", "first"), NewJob("job", "second")])
        [claim] = await queue.claim("w", 1, 30)
        assert claim.job.payload == "first"
        assert store.take() == {"create": 2, "list": 1, "head": 1}

    virtually(main)


def test_a_worker_that_loses_every_race_polls_again_soon() -> None:
    async def main(clock: VirtualClock) -> None:
        class Beaten(Wrapped):
            async def create(self, name: str, body: bytes) -> bool:
                return "/live/" not in name and await super().create(name, body)

        bucket = VirtualStore(clock)
        async with ObjectQueue(bucket, clock=clock) as putter:
            for n in range(4):
                await putter.put(NewJob("job", n))
        queue = ObjectQueue(Beaten(bucket), clock=clock)
        hint = Hint()
        queue.hints().join(hint)
        assert await queue.claim("w", 1, 30) == []
        assert queue._claiming.lost_races == 3
        began = clock.now()
        assert await hint.wait(60)
        assert clock.now() - began < 2

    virtually(main)


def test_long_lives_leave_short_chains() -> None:
    """A job that is snoozed for a day, or runs for one, does not fill the listing."""

    async def main(clock: VirtualClock) -> None:
        queue, store = counted(clock)
        await queue.put([NewJob("job", n) for n in range(3)])
        [held] = await queue.claim("long", 1, 30)
        for n in range(500):
            claims = await queue.claim("w", 1, 30)
            assert [claim.job.attempt for claim in claims] == [1 + n // 20], f"after {n} rounds"
            back = Settlement.retry if n % 20 > 17 else Settlement.give_back
            await queue.settle([back(claims[0])])
            if n % 2:
                await queue.renew([held], 30)
            await clock.advance(10)
        await at_rest(queue)
        left = [name for name in store.inner.objects if "/live/" in name]  # type: ignore[attr-defined]
        assert len(left) < 150, f"{len(left)} objects for three jobs"
        [claim] = await queue.claim("w", 1, 30)
        await queue.settle([Settlement.done(claim), Settlement.done(held)])

    virtually(main)


def test_a_worker_pays_little_for_a_backlog() -> None:
    async def main(clock: VirtualClock) -> None:
        bucket = VirtualStore(clock, latency=0.02)
        putter = ObjectQueue(bucket, clock=clock)
        for start in range(0, 960, 96):
            await putter.put([NewJob("job", start + n) for n in range(96)])
        store = Counting(bucket)
        queue = ObjectQueue(store, clock=clock)
        await queue.stats()
        store.take()
        worker, rng = Worker(queue), random.Random(1)
        ran: list[int] = []

        @worker.handle("job")
        async def work(job: Job) -> None:
            await asyncio.sleep(rng.random() * 0.1)
            ran.append(job.payload)
            if len(ran) == 960:
                worker.stop()

        await worker.run(options(concurrency=16))
        await queue.close()
        counts = store.take()
        assert sorted(ran) == list(range(960))
        billed = sum(counts[verb] for verb in ("list", "create", "get", "head"))
        assert billed / 960 < 0.6, counts
        assert not [name for name in bucket.objects if "/live/" in name]

    virtually(main)


def test_a_prune_lists_no_more_than_what_can_be_old_enough() -> None:
    async def main(clock: VirtualClock) -> None:
        store = Counting(VirtualStore(clock))
        async with ObjectQueue(store, clock=clock, keep=3600) as queue:
            await queue.cancel(await queue.put([NewJob("x") for _ in range(1200)]))
            await clock.sleep(3000)
            await queue.cancel(await queue.put([NewJob("x") for _ in range(5000)]))
            await clock.sleep(700)
            store.take()
            assert [await queue.prune() for _ in range(3)] == [1000, 200, 0]
            # Of 5,000 that are kept: one page of those put soon after, for each call.
            assert store.counts["list"] <= 12
            assert store.counts["delete"] <= 4
            assert (await queue.stats()).cancelled == 5000

    virtually(main)
