"""Objects against memory: the same random program, the same answers, step by step.

As in test_model.py, without keys. A moment passes before each step: a bucket tells what happened
first by the time it happened.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.objects.queue import ObjectQueue
from pollwise.runtime.jobs import Claim
from pollwise.testing import VirtualClock
from tests.queues.objects.stores import VirtualStore
from tests.queues.test_model import Side, Step, keeps, programs


def without_keys(steps: list[Step]) -> list[Step]:
    for _, what in steps:
        for job in what.get("jobs", ()):
            job["key"] = None
    return steps


def shown(job: dict[str, Any]) -> dict[str, Any]:
    """What both must agree on. Memory tells that a lease ran out when the next claim comes by, a
    bucket at once; and times are rounded to the microsecond on their way through names."""
    seen = {k: round(v, 5) if isinstance(v, float) else v for k, v in job.items()}
    if seen["state"] == "ready":
        del seen["error"], seen["worker"], seen["since"]
    elif seen["state"] != "dead":
        del seen["error"]
    return seen


def stats(given: Any) -> Any:
    age = given.oldest_age
    return (given.ready, given.delayed, given.leased, given.dead, given.done), (
        None if age is None else round(age, 4)
    )


class Together(Side):
    """Extends all that came from one claim: a bucket renews what was claimed together.

    And claims, renews and settles by one handle: while its lease is live, a holder does not ask
    whether another handle ended it behind its back, which would cost a request each time.
    """

    def __init__(self, *handles: Queue) -> None:
        super().__init__(*handles)
        self.batches: list[list[Claim]] = []
        self._holder, self._all = handles[0], self.handles

    async def take(self, name: str, what: dict[str, Any]) -> Any:
        holds = name in ("claim", "renew", "settle")
        self.handles = itertools.cycle([self._holder]) if holds else self._all
        return await super().take(name, what)

    async def _claim(self, queue: Queue, limit: int, lease: float, kinds: Any) -> Any:
        had = len(self.claims)
        found = await super()._claim(queue, limit, lease, kinds)
        self.batches += [self.claims[had:]] * (len(self.claims) - had)
        return found

    async def _renew(self, queue: Queue, picks: list[int], lease: float) -> Any:
        if self.claims:
            chosen = [c for pick in picks for c in self.batches[-1 - pick % len(self.batches)]]
            await queue.renew(chosen, lease)


class Leases:
    """Never two live leases on a job, and each claim's token above the one before."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, float]] = {}

    def after_claim(self, found: list[Claim]) -> None:
        for claim in found:
            token, _ = self._newest.get(claim.job.id, (0, 0.0))
            assert claim.token > token, f"job {claim.job.id} got the token {claim.token} again"
            self._newest[claim.job.id] = (claim.token, claim.until)


async def agree(clock: VirtualClock, model: Side, store: Side, steps: list[Step]) -> None:
    leases = Leases()
    for number, (name, what) in enumerate(steps):
        here = f"step {number}, {name} {what}"
        await clock.advance(0.001)
        if name == "elapse":
            await clock.advance(what["units"])
        else:
            had = len(store.claims)
            wanted, got = await model.take(name, what), await store.take(name, what)
            if name == "claim":
                for claims in (wanted, got):
                    for job in claims:
                        job |= {k: round(v, 5) for k, v in job.items() if isinstance(v, float)}
            if isinstance(got, tuple):
                wanted, got = set(wanted[1]), set(got[1])
            assert got == wanted, f"{here}: objects (left) and memory (right) differ"
            leases.after_claim(store.claims[had:])
        (got_stats, got_jobs), (want_stats, want_jobs) = await store.view(), await model.view()
        for jobs in (got_jobs, want_jobs):
            for index in jobs:
                jobs[index] = shown(jobs[index])
        assert got_jobs == want_jobs, f"after {here}: jobs of objects (left) and memory (right)"
        assert stats(got_stats) == stats(want_stats), f"after {here}: stats"


def compare(steps: list[Step], keep: float | None) -> None:
    clock = VirtualClock()

    async def main() -> None:
        bucket = VirtualStore(clock)
        handles = [ObjectQueue(bucket, clock=clock, keep=keep) for _ in range(2)]
        memory = MemoryQueue(clock=clock, keep=keep)
        await agree(clock, Together(memory), Together(*handles), without_keys(steps))
        for handle in handles:
            await handle.close()

    clock.run(main())


@settings(max_examples=100, deadline=None)
@given(steps=programs, keep=keeps)
def test_objects_and_memory_agree(steps: list[Step], keep: float | None) -> None:
    compare(steps, keep)


@pytest.mark.soak
@settings(max_examples=10_000, deadline=None)
@given(steps=programs, keep=st.sampled_from([None, 2]))
def test_objects_and_memory_agree_for_long(steps: list[Step], keep: float | None) -> None:
    compare(steps, keep)
