"""Flows in Redis against flows in memory: the same random program, the same jobs after each."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.redis.queue import RedisQueue
from pollwise.runtime.jobs import NewJob
from pollwise.runtime.jobs.new_job import FLOW_HEADER
from pollwise.testing import VirtualClock
from tests.queues.test_model import Side, Step, actions, delays, picks, plain, step
from tests.support.servers import Redis

#: A job of a batch: how far before it its predecessors are, and whether it runs on failure.
members = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["a", "b"]),
        "key": st.sampled_from([None, None, "k", "l"]),
        "priority": st.sampled_from([0, 0, 1]),
        "delay": delays,
        "payload": st.sampled_from([0, {"x": 1}, "x" * 2000]),
        "back": st.lists(st.integers(1, 4), max_size=3),
        "on_failure": st.sampled_from([False, False, False, True]),
    }
)
flows = step("flow", jobs=st.lists(members, min_size=2, max_size=7))
ends = st.lists(st.tuples(st.integers(0, 40), actions, delays), max_size=4)
programs = st.lists(
    st.one_of(
        flows,
        flows,
        step("lapse", limit=st.integers(1, 4), ahead=st.just(False)),
        step(
            "claim",
            limit=st.integers(1, 4),
            lease=st.sampled_from([2, 5, 50]),
            kinds=st.sampled_from([None, None, ["a"]]),
            ahead=st.just(False),
        ),
        step("claim", limit=st.just(9), lease=st.just(50), kinds=st.none(), ahead=st.just(False)),
        step("settle", picks=ends),
        step("settle", picks=st.lists(st.tuples(st.integers(0, 3), actions, delays), max_size=4)),
        step("settle", picks=st.lists(st.tuples(st.integers(0, 9), st.just("done"), delays))),
        step("cancel", picks=picks),
        step("elapse", units=st.sampled_from([0.5, 1, 2, 5])),
        step("elapse", units=st.sampled_from([3000, 4000, 2_600_000])),
        step("retry", picks=st.none() | picks),
        step("drop", picks=st.none() | picks),
        step("prune"),
        step("links", picks=picks),
    ),
    min_size=10,
    max_size=50,
).map(plain)


class FlowSide(Side):
    """A side whose flows have numbers for names."""

    def __init__(self, *handles: Queue) -> None:
        super().__init__(*handles)
        self._names: dict[str, str] = {}

    async def _flow(self, queue: Queue, jobs: list[dict[str, Any]]) -> Any:
        batch: list[NewJob] = []
        for job in jobs:
            fields = dict(job)
            back, on_failure = fields.pop("back"), fields.pop("on_failure")
            after = [batch[-each] for each in back if each <= len(batch)]
            batch.append(NewJob(**fields, after=after, on_failure=on_failure and bool(after)))
        put = await queue.put(batch)
        for job_id in put:
            self.numbers[job_id] = len(self.ids)
            self.ids.append(job_id)
        return [self.numbers[job_id] for job_id in put]

    async def _links(self, queue: Queue, picks: list[int]) -> Any:
        found = []
        for job_id in self._some_ids(picks) or []:
            before = await queue.predecessors(job_id)
            shown = await queue.flow(job_id)
            members = [] if shown is None else shown.jobs
            found.append([(self.numbers[each], ending) for each, ending in before])
            found += [
                (
                    self.numbers[each.info.job.id],
                    [self.numbers[other] for other in each.after],
                    each.on_failure,
                    each.info.state,
                )
                for each in members
            ]
        return found

    def _plain(self, job: Any) -> dict[str, Any]:
        shown = super()._plain(job)
        if (name := job.headers.get(FLOW_HEADER)) is not None:
            number = self._names.setdefault(name, str(self.numbers[job.id]))
            shown["headers"] = {**job.headers, FLOW_HEADER: number}
        return shown


async def agree(clock: VirtualClock, model: Side, store: Side, steps: list[Step]) -> None:
    for number, (name, what) in enumerate(steps):
        here = f"step {number}, {name} {what}"
        if name == "elapse":
            await clock.advance(what["units"])
        else:
            wanted, got = await model.take(name, what), await store.take(name, what)
            assert got == wanted, f"{here}: Redis (left) and memory (right) differ"
        (got_stats, got_jobs), (stats, shown) = await store.view(), await model.view()
        assert got_jobs == shown, f"after {here}: jobs of Redis (left) and memory (right)"
        assert got_stats == stats, f"after {here}: stats of Redis (left) and memory (right)"


examples = itertools.count()


def compare(url: str, steps: list[Step], keep: float | None) -> None:
    clock = VirtualClock()
    name = f"example {next(examples)}"

    async def main() -> None:
        handles = [RedisQueue(url, name, prefix="flows", clock=clock, keep=keep) for _ in range(2)]
        try:
            memory = MemoryQueue(name, clock=clock, keep=keep)
            await agree(clock, FlowSide(memory), FlowSide(*handles), steps)
        finally:
            for handle in handles:
                await handle.close()

    clock.run(main())


keeps = st.sampled_from([None, None, 2, 5000])


@pytest.fixture(scope="module", params=["redis", "redis_oldest"])
def url(request: pytest.FixtureRequest) -> str:
    server: Redis = request.getfixturevalue(request.param)
    return server.url()


@settings(max_examples=25, deadline=None)
@given(steps=programs, keep=keeps)
def test_flows_in_redis_and_in_memory_agree(
    url: str, steps: list[Step], keep: float | None
) -> None:
    compare(url, steps, keep)


@pytest.mark.soak
@settings(max_examples=10_000, deadline=None)
@given(steps=programs, keep=keeps)
def test_flows_in_redis_and_in_memory_agree_for_long(
    url: str, steps: list[Step], keep: float | None
) -> None:
    compare(url, steps, keep)
