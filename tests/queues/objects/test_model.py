"""Objects against memory: the same random program, the same answers, step by step.

As in test_model.py, without keys and replaced jobs, which a bucket refuses. A moment passes before
each step: a bucket tells what happened first by the time it happened.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.objects.queue import ObjectQueue
from pollwise.runtime.jobs import ENDED, ERRORS_KEPT, Claim, JobFailure, Progress
from pollwise.testing import VirtualClock
from tests.queues.objects.stores import VirtualStore
from tests.queues.test_model import (
    Side,
    Step,
    actions,
    claims,
    delays,
    keeps,
    programs,
    puts,
    step,
)


def for_buckets(steps: list[Step]) -> list[Step]:
    for _, what in steps:
        for job in what.get("jobs", ()):
            job["key"] = None
            job.pop("replace", None)
    return steps


def rounded(value: Any) -> Any:
    """Times are rounded to the microsecond on their way through names."""
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, (Progress, JobFailure)):
        return replace(value, at=round(value.at, 5))
    return tuple(map(rounded, value)) if isinstance(value, tuple) else value


def lapsed(failure: JobFailure) -> bool:
    return failure.error.endswith("ran out")


def shown(job: dict[str, Any]) -> dict[str, Any]:
    """What both must agree on. Memory tells that a lease ran out when the next claim comes by, a
    bucket at once, so the errors of lapses are left out."""
    seen = {k: rounded(v) for k, v in job.items()}
    if seen["state"] == "ready":
        del seen["worker"], seen["since"]
    seen["errors"] = tuple(each for each in seen["errors"] if not lapsed(each))
    return seen


def comparable(mine: dict[str, Any], model: dict[str, Any]) -> tuple[Any, Any]:
    """The same job in the bucket and in memory, without what a lapse changes in one of them."""
    left, right = shown(mine), shown(model)
    if any(len(job["errors"]) == ERRORS_KEPT for job in (mine, model)):
        kept = min(len(left["errors"]), len(right["errors"]))  # a lapse pushed out an older one
        for job in (left, right):
            job["errors"] = job["errors"][len(job["errors"]) - kept :]
    if model["state"] in ENDED and model["worker"] is None and any(map(lapsed, model["errors"])):
        left["worker"] = None  # settled late: memory has forgotten who held it
    return left, right


def stats(given: Any) -> Any:
    """The pauses, the counts, and the age of the oldest job, of all and of each kind."""
    whole, kinds, pauses = given
    return pauses, {
        kind: {name: rounded(getattr(each, name)) for name in each.__slots__}
        for kind, each in [*kinds.items(), (None, whole)]
    }


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

    async def _claim(self, queue: Queue, limit: int, lease: float, kinds: Any, ahead: bool) -> Any:
        if isinstance(queue, ObjectQueue):
            queue._claiming.relist()  # a listing is used for a second, and shows no lapse in it
        had = len(self.claims)
        found = await super()._claim(queue, limit, lease, kinds, ahead)
        self.batches += [self.claims[had:]] * (len(self.claims) - had)
        return found

    async def _renew(self, queue: Queue, picks: list[int], lease: float, progress: Any) -> Any:
        together = {
            len(self.claims) - 1 - self.claims.index(claim)
            for pick in (picks if self.claims else ())
            for claim in self.batches[-1 - pick % len(self.batches)]
        }
        return await super()._renew(queue, sorted(together), lease, progress)


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
            # Until then, a result whose time is over may still be shown.
            await model.take("prune", {})
            await store.take("prune", {})
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
        assert set(got_jobs) == set(want_jobs), f"after {here}: the jobs there are"
        for job in got_jobs:
            mine, wanted = comparable(got_jobs[job], want_jobs[job])
            assert mine == wanted, f"after {here}: a job of objects (left) and memory (right)"
        assert stats(got_stats) == stats(want_stats), f"after {here}: stats"


def compare(steps: list[Step], keep: float | None) -> None:
    clock = VirtualClock()

    async def main() -> None:
        bucket = VirtualStore(clock)
        handles = [ObjectQueue(bucket, clock=clock, keep=keep) for _ in range(2)]
        memory = MemoryQueue(clock=clock, keep=keep)
        await agree(clock, Together(memory), Together(*handles), for_buckets(steps))
        for handle in handles:
            await handle.close()

    clock.run(main())


claims_of_all = step(
    "claim", limit=st.integers(1, 4), lease=st.sampled_from([1, 1, 50]), kinds=st.just(None),
    ahead=st.booleans(),
)  # fmt: skip
cancels = step("cancel", picks=st.lists(st.integers(0, 3), min_size=1, max_size=2))
settles = step("settle", picks=st.lists(st.tuples(st.integers(0, 3), actions, delays), max_size=3))
#: Programs in which jobs that run are cancelled, and leases run out.
cancelling = st.lists(
    st.one_of(
        st.tuples(claims_of_all, cancels, settles),
        st.tuples(claims_of_all, cancels, st.just(("elapse", {"units": 1})), claims | settles),
        programs.map(lambda steps: steps[:3]),
    ),
    min_size=1,
    max_size=5,
).flatmap(lambda parts: puts.map(lambda put: [put, *itertools.chain(*parts)]))


@settings(max_examples=60, deadline=None)
@given(steps=programs, keep=keeps)
def test_objects_and_memory_agree(steps: list[Step], keep: float | None) -> None:
    compare(steps, keep)


@settings(max_examples=100, deadline=None)
@given(steps=cancelling, keep=keeps)
def test_cancelling_agrees(steps: list[Step], keep: float | None) -> None:
    compare(steps, keep)


@pytest.mark.soak
@settings(max_examples=10_000, deadline=None)
@given(steps=programs | cancelling, keep=st.sampled_from([None, 2]))
def test_objects_and_memory_agree_for_long(steps: list[Step], keep: float | None) -> None:
    compare(steps, keep)
