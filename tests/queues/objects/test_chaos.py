"""Workers over a network that drops, delays and duplicates, while some die and jobs are cancelled:
nothing is lost, no two leases are live, nothing runs once it was settled or cancelled."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest

from pollwise.errors import LeaseLost, PollwiseError, StoreError
from pollwise.queues.objects.queue import ObjectQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.jobs import Claim, NewJob, Settlement
from tests.queues.objects.stores import Chaotic, Crash, VirtualStore
from tests.support.kit import virtually


class Ledger:
    """What workers did: no two live leases on a job, nothing run again once it was settled."""

    def __init__(self) -> None:
        self.leases: dict[str, list[tuple[float, float, int]]] = {}
        self.done: dict[Any, float] = {}
        self.runs: Counter[Any] = Counter()
        self.cancelled: dict[str, float] = {}  # when the cancel of a job was answered

    def claimed(self, claim: Claim, now: float, asked: float) -> None:
        self.runs[claim.job.payload] += 1
        assert self.cancelled.get(claim.job.id, asked) >= asked, f"{claim.job.id} was cancelled"
        for began, until, token in self.leases.get(claim.job.id, ()):
            assert until <= now, (
                f"{claim.job.id} claimed at {now} (token {claim.token}) under a live lease "
                f"from {began} to {until} (token {token})"
            )
        assert claim.job.payload not in self.done, f"{claim.job.payload} runs although it is done"
        self.leases.setdefault(claim.job.id, []).append((now, claim.until, claim.token))

    def ended(self, claim: Claim) -> None:
        kept = [lease for lease in self.leases[claim.job.id] if lease[2] != claim.token]
        self.leases[claim.job.id] = kept


class Seeded:
    """In place of `secrets`, so that a seed runs the same each time."""

    def __init__(self, rng: random.Random) -> None:
        self.randbits = rng.getrandbits
        self._rng = rng

    def token_hex(self, size: int) -> str:
        return self._rng.randbytes(size).hex()


def chaos(seed: int, jobs: int = 120, workers: int = 6, grain: float = 0.0) -> Counter[Any]:
    """Workers over a network that drops, delays and duplicates; some of them die."""
    rng = random.Random(seed)

    async def main(clock: VirtualClock) -> Counter[Any]:
        bucket = VirtualStore(clock, latency=0.02, grain=grain, ahead=rng.uniform(-900, 900))
        if grain:
            bucket.grain = None
        ledger = Ledger()
        acknowledged: set[Any] = set()
        unsure: set[int] = set()  # perhaps cancelled before it ran
        canceller = handle(Chaotic(bucket, rng), clock)
        over = False

        async def produce() -> None:
            # Its answers are not lost: a put that is tried again may find that its job was put, run
            # and done already, and puts it twice. That is what at least once means.
            queue = handle(Chaotic(bucket, rng, lose=False), clock)
            for start in range(0, jobs, 6):
                size = rng.choice([1, 1, 6])
                batch = [NewJob("job", start + n, delay=rng.choice([0, 0, 3])) for n in range(size)]
                try:
                    put = await queue.put(batch)
                except StoreError:
                    continue
                acknowledged.update(job.payload for job in batch)
                at = rng.randrange(size)
                await cancel(put[at], batch[at].payload)
                await clock.advance(rng.random())

        async def cancel(job_id: str, payload: int) -> None:
            if rng.random() < 0.7:
                return
            unsure.add(payload)
            try:
                await clock.advance(rng.choice([0, 0.1, 3, 6]))
                states = await canceller.cancel([job_id])
            except StoreError:
                return  # it may be cancelled or not
            if job_id in states:
                ledger.cancelled[job_id] = clock.epoch()

        async def work(name: str) -> None:
            while not over:
                store = Chaotic(bucket, rng)
                queue = handle(store, clock)
                asyncio.get_running_loop().call_later(rng.expovariate(1 / 40), store.die)
                try:
                    while not over:
                        await live(queue, name)
                except Crash:
                    continue

        async def live(queue: ObjectQueue, name: str) -> None:
            asked = clock.epoch()
            try:
                claims = await queue.claim(name, rng.choice([1, 3, 20]), 5)
            except Crash:
                raise
            except StoreError:
                return
            for claim in claims:
                ledger.claimed(claim, clock.epoch(), asked)
            await clock.advance(rng.choice([0.05, 0.5, 4.0, 8.0]))
            for part in (claims[: len(claims) // 2], claims[len(claims) // 2 :]):
                fate = rng.random()
                if not 0.2 <= fate < 0.3:
                    for claim in part:  # it runs no more once its settlement is on the way
                        ledger.ended(claim)
                try:
                    if fate < 0.2 and part:
                        await queue.settle([Settlement.retry(c, rng.choice([0, 1])) for c in part])
                    elif fate < 0.3 and part:
                        await queue.renew(part, 5)
                        continue
                    elif part:
                        await queue.settle([Settlement.done(claim) for claim in part])
                        ledger.done.update({c.job.payload: clock.epoch() for c in part})
                except LeaseLost as error:
                    kept = [claim for claim in part if claim.job.id not in error.lost]
                    if fate >= 0.3:
                        ledger.done.update({c.job.payload: clock.epoch() for c in kept})
                except PollwiseError:  # it may be settled or not
                    if isinstance(queue._core.store, Chaotic) and queue._core.store.dead:
                        raise Crash("dead") from None
                    return
            if not claims:
                await clock.advance(0.5)

        crew = [asyncio.ensure_future(work(f"w{n}")) for n in range(workers)]
        await produce()
        deadline = clock.now() + 3600
        watcher = handle(bucket, clock)
        while clock.now() < deadline and not acknowledged <= set(ledger.done):
            await clock.advance(5)
            stats = await watcher.stats()
            if not stats.ready + stats.leased + stats.delayed:
                break
        over = True
        await asyncio.gather(*crew)
        never = acknowledged - set(ledger.runs) - unsure
        assert not never, f"lost: {never}"
        return ledger.runs

    def handle(store: Any, clock: VirtualClock) -> ObjectQueue:
        queue = ObjectQueue(store, clock=clock)
        queue._core.rng.seed(rng.random())
        return queue

    with patch("pollwise.queues.objects.names.secrets", Seeded(rng)):
        return virtually(main)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("grain", [0.0, 1.0], ids=["exact", "whole seconds"])
def test_chaos(seed: int, grain: float) -> None:
    chaos(seed, grain=grain)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_chaos_for_long() -> None:
    for seed in range(1000, 2000):
        try:
            chaos(seed, grain=seed % 2)
        except BaseException as error:
            raise AssertionError(f"chaos({seed}, grain={seed % 2})") from error
