"""Flows in each store against memory: the same random program, the same answers, step by step."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.queues.redis.queue import RedisQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.jobs import ENDED, NewJob
from pollwise.runtime.jobs.new_job import FLOW_HEADER
from pollwise.testing import VirtualClock
from tests.queues.benches import migrated
from tests.queues.test_model import Opener, Side, Step, actions, delays, step

linked_jobs = st.fixed_dictionaries(
    {
        "kind": st.sampled_from("ab"),
        "key": st.sampled_from([None, None, "k", "l"]),
        "priority": st.sampled_from([0, 0, 1]),
        "delay": delays,
        "run_at": st.none() | st.sampled_from([1, 3]),
        # What it comes after, as places before its own.
        "after": st.lists(st.integers(1, 4), max_size=3),
        "on_failure": st.booleans(),
    }
)
picks = st.lists(st.integers(0, 12), min_size=1, max_size=3)
puts = step("put", jobs=st.lists(linked_jobs, min_size=1, max_size=7))
claims = step(
    "claim",
    limit=st.integers(1, 4),
    lease=st.sampled_from([1, 5, 50]),
    kinds=st.sampled_from([None, None, ["a"]]),
    ahead=st.just(False),
)
settles = step("settle", picks=st.lists(st.tuples(st.integers(0, 5), actions, delays), max_size=4))
programs = st.lists(
    st.one_of(
        puts,
        claims,
        claims,
        claims,
        settles,
        settles,
        step("cancel", picks=picks),
        step("elapse", units=st.sampled_from([1, 1, 3, 3601, 3601])),
        step("retry", picks=st.none() | picks),
        step("drop", picks=st.none() | picks),
        step("prune"),
    ),
    min_size=10,
    max_size=50,
)


class FlowSide(Side):
    """A side whose flows are told as the number of their first job."""

    def __init__(self, *handles: Queue) -> None:
        super().__init__(*handles)
        self._flows: dict[str, int] = {}
        self._waits: dict[str, list[str]] = {}

    async def _put(self, queue: Queue, jobs: list[dict[str, Any]]) -> Any:
        made: list[NewJob] = []
        for place, job in enumerate(jobs):
            after = [made[place - back] for back in job["after"] if back <= place]
            run_at = None if job["run_at"] is None else queue.clock.epoch() + job["run_at"]
            options = {
                **job,
                "after": after,
                "on_failure": bool(after) and job["on_failure"],
                "run_at": run_at,
                "delay": 0 if run_at is not None else job["delay"],
            }
            made.append(NewJob(payload=len(self.ids) + place, **options))
        put = await queue.put(made)
        for job_id in put:
            self.numbers[job_id] = len(self.ids)
            self.ids.append(job_id)
            info = await queue.get(job_id)
            if info is not None and (flow := info.job.headers.get(FLOW_HEADER)):
                self._flows.setdefault(flow, len(self._flows))  # in put order; lists have another
        places = {id(job): job_id for job, job_id in zip(made, put, strict=True)}
        for linked, job_id in zip(made, put, strict=True):
            self._waits[job_id] = [places[id(each)] for each in linked.after]
        return [self.numbers[job_id] for job_id in put]

    def _plain(self, job: Any) -> dict[str, Any]:
        plain = super()._plain(job)
        flow = plain["headers"].get(FLOW_HEADER)
        number = None if flow is None else self._flows.setdefault(flow, len(self._flows))
        return {**plain, "headers": number}

    async def view(self) -> tuple[Any, dict[int, dict[str, Any]]]:
        """The stats, and every job with its predecessors and its flow."""
        stats, shown = await super().view()
        queue = next(self.handles)
        for job_id, number in self.numbers.items():
            if number in shown:
                before = await queue.predecessors(job_id)
                assert [each for each, _ in before] == self._waits[job_id]
                view = await queue.flow(job_id)
                shown[number]["before"] = [ending for _, ending in before]
                shown[number]["flow"] = view and [
                    (self.numbers[each.info.job.id], [*map(self.numbers.get, each.after)])
                    for each in view.jobs
                ]
        return stats, shown

    def check(self, shown: dict[int, dict[str, Any]]) -> None:
        """What waits is not lost, and a job of a flow that is not over is there."""
        for job_id, number in self.numbers.items():
            if shown.get(number, {}).get("state") != "blocked":
                continue
            before = [shown.get(self.numbers[each]) for each in self._waits[job_id]]
            states = [None if job is None else job["state"] for job in before]
            key = shown[number]["key"]
            line = [
                each["state"]
                for other, each in shown.items()
                if key is not None and each["key"] == key and other != number
            ]
            waits = any(state not in ("done", "cancelled", None) for state in states)
            assert waits or set(line) - set(ENDED), f"job {number} waits for nothing: {states}"


async def agree(clock: VirtualClock, model: FlowSide, store: FlowSide, steps: list[Step]) -> None:
    for number, (name, what) in enumerate(steps):
        here = f"step {number}, {name} {what}"
        if name == "elapse":
            await clock.advance(what["units"])
        else:
            wanted, got = await model.take(name, what), await store.take(name, what)
            assert got == wanted, f"{here}: the store (left) and memory (right) differ"
        (got_stats, got_jobs), (stats, shown) = await store.view(), await model.view()
        assert got_stats == stats, f"after {here}: stats of the store (left) and memory (right)"
        assert got_jobs == shown, f"after {here}: jobs of the store (left) and memory (right)"
        store.check(got_jobs)


@pytest.fixture(scope="module", params=["sqlite", "redis", "postgres"])
def opener(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Opener:
    if request.param == "sqlite":
        made: Callable[..., Queue] = partial(
            SqliteQueue, tmp_path_factory.mktemp("model") / "jobs.db", synchronous="off"
        )
        return made
    kind: type[RedisQueue | PostgresQueue] = RedisQueue
    if request.param == "postgres":
        kind = PostgresQueue
    if not kind.capabilities.flows:
        pytest.skip(f"{kind.__name__} cannot link jobs")
    if request.param == "postgres":
        return partial(PostgresQueue, migrated(request.getfixturevalue("postgres").dsn()))
    return partial(RedisQueue, request.getfixturevalue("redis").url(), prefix="flow-model")


examples = itertools.count()


def compare(opener: Opener, steps: list[Step], keep: float | None) -> None:
    clock = VirtualClock()
    name = f"flows {next(examples)}"  # a queue of its own, in one store for all

    async def main() -> None:
        handles = [opener(name, clock=clock, keep=keep) for _ in range(2)]
        try:
            memory = MemoryQueue(name, clock=clock, keep=keep)
            await agree(clock, FlowSide(memory), FlowSide(*handles), steps)
        finally:
            for handle in handles:
                await handle.close()

    clock.run(main())


keeps = st.sampled_from([None, None, 2, 4000])


@settings(max_examples=25, deadline=None)
@given(steps=programs, keep=keeps)
def test_store_and_memory_agree(opener: Opener, steps: list[Step], keep: float | None) -> None:
    compare(opener, steps, keep)


@pytest.mark.soak
@settings(max_examples=20_000, deadline=None)
@given(steps=programs, keep=keeps)
def test_store_and_memory_agree_for_long(
    opener: Opener, steps: list[Step], keep: float | None
) -> None:
    compare(opener, steps, keep)
