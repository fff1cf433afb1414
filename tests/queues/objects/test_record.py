"""The record of a job while its chain is summed up, and while its object is written."""

from __future__ import annotations

import asyncio

from pollwise.queues.objects.queue import ObjectQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.jobs import ERRORS_KEPT, JobInfo, NewJob, Progress, Settlement
from tests.queues.objects.stores import VirtualStore, Wrapped
from tests.support.kit import virtually


async def shown(queue: ObjectQueue, job_id: str) -> JobInfo:
    info = await queue.get(job_id)
    assert info is not None
    return info


def test_a_chain_that_is_summed_up_keeps_the_record() -> None:
    async def main(clock: VirtualClock) -> None:
        bucket = VirtualStore(clock)
        handles = [ObjectQueue(bucket, clock=clock, keep=600) for _ in range(3)]
        put = await handles[0].put([NewJob("job", n) for n in range(2)])
        wanted: list[tuple[float, int, str]] = []
        for n in range(1, 61):
            queue, viewer = handles[n % 2], handles[2]
            claims = await queue.claim(f"w{n}", 2, 30)
            claimed_at = clock.epoch()
            assert [claim.job.attempt for claim in claims] == [n, n]
            await clock.advance(10)
            said = {put[0]: Progress(n / 100, f"run {n}")}
            assert not (await queue.renew(claims, 30, said)).lost
            if n % 10 == 7:  # nobody settles it
                await clock.advance(31)
                wanted.append((clock.epoch() - 1, n, f"the lease of w{n} ran out"))
            else:
                await clock.advance(10)
                await queue.settle([Settlement.retry(claim, 0, f"failure {n}") for claim in claims])
                wanted.append((clock.epoch(), n, f"failure {n}"))
            info = await shown(viewer, put[0])
            found = [(each.at, each.attempt, each.error) for each in info.errors]
            assert found == wanted[-ERRORS_KEPT:], f"after {n} runs"
            assert info.claimed_at == claimed_at
            assert info.progress == Progress(n / 100, f"run {n}", claimed_at + 10)
            assert (await shown(viewer, put[1])).progress is None
        live = [name for name in bucket.objects if "/live/" in name]
        assert len(live) < 100, "the chain was never summed up"
        claims = await handles[0].claim("last", 2, 30)
        await handles[0].settle([Settlement.dead(claims[0], "end"), Settlement.done(claims[1])])
        for job_id, more in zip(put, ([(clock.epoch(), 61, "end")], []), strict=True):
            info = await shown(handles[1], job_id)
            found = [(each.at, each.attempt, each.error) for each in info.errors]
            assert found == [*wanted, *more][-ERRORS_KEPT:]
            assert (info.worker, info.job.attempt) == ("last", 61)
        for handle in handles:
            await handle.close()

    virtually(main)


def test_a_job_given_back_with_an_error_keeps_it() -> None:
    async def main(clock: VirtualClock) -> None:
        bucket = VirtualStore(clock)
        queue, other = (ObjectQueue(bucket, clock=clock) for _ in range(2))
        [job_id] = await queue.put(NewJob("job"))
        [claim] = await queue.claim("w", 1, 30)
        await queue.settle([Settlement.retry(claim, error="first")])
        [claim] = await queue.claim("w", 1, 30)
        await queue.settle([Settlement(claim, "give_back", error="second")])
        [claim] = await other.claim("w", 1, 30)
        assert claim.job.attempt == 2
        errors = [(each.attempt, each.error) for each in (await shown(other, job_id)).errors]
        assert errors == [(1, "first"), (2, "second")]

    virtually(main)


class Held(Wrapped):
    """Holds back the writes of records until they are let go."""

    def __init__(self, inner: VirtualStore) -> None:
        super().__init__(inner)
        self.asked, self.free = asyncio.Event(), asyncio.Event()

    async def create(self, name: str, body: bytes) -> bool:
        if "/ended/" in name or "/dead/" in name:
            self.asked.set()
            await self.free.wait()
        return await super().create(name, body)


def test_an_ended_job_shows_before_its_record_is_written() -> None:
    async def main(clock: VirtualClock) -> None:
        bucket = VirtualStore(clock)
        held = Held(bucket)
        queue = ObjectQueue(held, clock=clock, keep=600)
        other = ObjectQueue(bucket, clock=clock, keep=600)
        put = await queue.put([NewJob("job", n) for n in range(3)])
        claims = await queue.claim("w", 2, 30)
        settling = asyncio.ensure_future(queue.settle([Settlement.done(claims[0], {"sum": 3})]))
        await held.asked.wait()
        info = await shown(other, put[0])
        assert (info.state, info.result, info.worker) == ("done", {"sum": 3}, "w")
        assert await other.cancel(put) == {put[0]: "done", put[1]: "leased", put[2]: "cancelled"}
        held.free.set()
        await settling
        assert await shown(other, put[0]) == info
        assert (await queue.renew(claims[1:], 30)).cancel == (put[1],)
        for handle in (queue, other):
            await handle.close()

    virtually(main)


def test_what_waits_beside_a_cancelled_job_is_claimed_when_that_is_moved() -> None:
    """An earlier claim would have to move it, too, perhaps after an operator retried it."""

    async def main(clock: VirtualClock) -> None:
        bucket = VirtualStore(clock)
        held = Held(bucket)
        canceller = ObjectQueue(held, clock=clock, keep=600)
        worker = ObjectQueue(bucket, clock=clock, keep=600)
        put = await worker.put([NewJob("job", n) for n in range(3)])
        cancelling = asyncio.ensure_future(canceller.cancel(put[:1]))
        await held.asked.wait()
        assert await worker.claim("w", 3, 30) == []
        held.free.set()
        assert await cancelling == {put[0]: "cancelled"}
        assert [claim.job.id for claim in await worker.claim("w", 3, 30)] == put[1:]
        for handle in (canceller, worker):
            await handle.close()

    virtually(main)
