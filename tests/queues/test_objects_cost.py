"""What an `ObjectQueue` costs, in requests by kind: counted, stated, guarded."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from pollux.clock import VirtualClock
from pollux.jobs import Job, NewJob, Settlement
from pollux.queues.objects import ObjectQueue
from pollux.worker import Worker
from tests.kit import options, virtually
from tests.queues.object_stores import Counting, VirtualStore


def counted(clock: VirtualClock, **options: float) -> tuple[ObjectQueue, Counting]:
    store = Counting(VirtualStore(clock, **options))
    return ObjectQueue(store, clock=clock), store


async def at_rest(queue: ObjectQueue) -> None:
    """Let what goes on in the background come to its end."""
    while queue._core._tasks:
        await asyncio.sleep(0)


def test_start_up_probe() -> None:
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
        assert put["create"] == 3  # and two of the other handle's probe
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
        await queue.extend([claim], 30)
        assert store.take() == {"create": 1}
        assert await cost(Settlement.give_back(claim)) == {"create": 1}
        [claim] = await queue.claim("w", 1, 30)
        assert await cost(Settlement.retry(claim, 1, "again")) == {"create": 1}
        await clock.advance(2)
        [claim] = await queue.claim("w", 1, 30)
        assert await cost(Settlement.dead(claim, "broken")) == {"create": 2, "delete": 2}

    virtually(main)


def race(workers: int, jobs: int, limit: int, seed: int, *, batch: bool = False) -> Counter[str]:
    """Workers that claim, work and settle as fast as they can, over a store that takes its time."""

    async def main(clock: VirtualClock) -> Counter[str]:
        bucket = VirtualStore(clock, latency=0.02)
        putter = ObjectQueue(bucket, clock=clock)
        for start in range(0, jobs, 100 if batch else 1):
            size = min(100, jobs - start) if batch else 1
            await putter.put([NewJob("job", start + n) for n in range(size)])
        store = Counting(bucket)
        rng = random.Random(seed)
        ran: list[int] = []

        async def work(name: str) -> None:
            queue = ObjectQueue(store, clock=clock)
            queue._core.rng = random.Random(rng.random())
            empty = 0
            await queue.stats()
            while empty < 5:
                claims = await queue.claim(name, limit, 30)
                empty = 0 if claims else empty + 1
                await clock.advance(0.01 + rng.random() * 0.01 if claims else 0.1)
                ran.extend(claim.job.payload for claim in claims)
                if claims:
                    await queue.settle([Settlement.done(claim) for claim in claims])
            await queue.close()

        await asyncio.gather(*(work(f"w{n}") for n in range(workers)))
        assert sorted(ran) == list(range(jobs)), "each job ran, and once"
        counts = store.counts
        counts["lost"] -= workers  # of the probes
        return counts

    return virtually(main)


def test_a_race_of_sixteen_workers_loses_few_writes() -> None:
    for limit, batch in ((1, False), (8, False), (8, True)):
        counts = race(16, 400, limit, seed=limit, batch=batch)
        assert counts["lost"] / 400 <= 1.3, (limit, batch, counts)


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
                await queue.extend([held], 30)
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
