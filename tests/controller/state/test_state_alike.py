"""Whatever is done in whatever order, all stores of the state answer alike, and hold their laws."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pollwise.controller.state.base import ControllerState
from pollwise.controller.state.postgres.state import PostgresState
from pollwise.controller.state.sqlite.state import SqliteState
from pollwise.controller.state.values import ENDED, Contact, JobRow, RunEnding, RunRow, WorkerRow
from pollwise.runtime.clock import VirtualClock
from tests.support.servers import Postgres

JOBS = [f"{n:032x}" for n in range(4)]
WORKERS = ["w1", "w2"]
job = st.sampled_from(JOBS)
worker = st.sampled_from(WORKERS)
small = st.integers(0, 2)

STEPS = st.one_of(
    st.tuples(st.just("add"), job, st.none() | st.sampled_from(["u1", "u2"])),
    st.tuples(st.just("mark"), job, small),
    st.tuples(st.just("deliver"), st.lists(st.tuples(job, worker, small, small), max_size=4)),
    st.tuples(st.just("contact"), st.lists(st.tuples(job, worker, st.booleans()), max_size=3)),
    st.tuples(
        st.just("end"),
        st.lists(
            st.tuples(
                job,
                worker,
                st.sampled_from(["done", "ready", "dead", "cancelled"]),
                st.none() | small,
            ),
            max_size=3,
        ),
    ),
    st.tuples(st.just("end_job"), job, small, st.sampled_from(["dead", "ready"])),
    st.tuples(st.just("cancel"), job),
    st.tuples(st.just("renew"), job, small),
    st.tuples(st.just("release"), st.integers(1, 3)),
    st.tuples(st.just("hire"), worker),
    st.tuples(st.just("remove"), worker),
    st.tuples(st.just("log"), job, small, st.integers(0, 12), st.binary(max_size=8)),
    st.tuples(st.just("forget"), job),
    st.tuples(st.just("retire"), st.sampled_from([0.0, 60.0])),
    st.tuples(st.just("pass"), st.sampled_from([1.0, 50.0, 130.0])),
)


async def step(state: ControllerState, clock: VirtualClock, what: str, *given: Any) -> Any:
    """Do one thing, and return what the state says of it."""
    now = clock.epoch()
    match what:
        case "add":
            row = JobRow(given[0], "build", unique=given[1], requires_hash=given[0][-1])
            return await state.add_jobs([row])
        case "mark":
            return await state.mark_ready([(given[0], given[1], "q")])
        case "deliver":
            runs = [
                RunRow(job_id, by, "q", token, by, "build", round_, token + 1, now + 100 + token)
                for job_id, by, token, round_ in given[0]
            ]
            return await state.deliver(runs)
        case "contact":
            contacts = {
                (job_id, by): Contact(job_id, by, now + 100, 0.5 if loud else None, heard=loud)
                for job_id, by, loud in given[0]
            }
            return await state.contact(list(contacts.values()))
        case "end":
            endings = [
                RunEnding(job_id, by, state, error="e", token=token)
                for job_id, by, state, token in given[0]
            ]
            return await state.end_runs(endings)
        case "end_job":
            return await state.end_job(given[0], given[1], ["ready", "leased"], given[2])
        case "cancel":
            return await state.cancel(given[0])
        case "renew":
            return await state.renew_job(given[0], given[1])
        case "release":
            return sorted(map(repr, await state.release_lapsed(0, given[0])))
        case "hire":
            return await state.add_worker(WorkerRow(given[0], "mac", token_hash=given[0]))
        case "remove":
            left = await state.remove_worker(given[0])
            return None if left is None else sorted(map(repr, left))
        case "log":
            return await state.append_log(given[0], given[1], given[2], given[3], 20, b"|", b"-")
        case "forget":
            return await state.forget([given[0]])
        case "retire":
            return sorted(await state.finished_before(given[0], 10))
    return None


async def shown(state: ControllerState) -> Any:
    """All that there is to see."""
    runs = [run for by in WORKERS for run in await state.runs_of(by)]
    logs = {each: (await state.log_place(each), await state.read_log(each, 0, 99)) for each in JOBS}
    stats = await state.stats(60)
    return await state.jobs(JOBS), runs, logs, stats, await state.requirements()


async def check_laws(state: ControllerState) -> None:
    jobs, runs, _, stats, requirements = await shown(state)
    running = {row.id for row in jobs.values() if row.state == "leased"}
    assert {run.job_id for run in runs} == running, "what runs has a run, and nothing else"
    for run in runs:
        row = jobs[run.job_id]
        assert (run.worker_id, run.round, run.attempt) == (row.worker_id, row.round, row.attempt)
    for row in jobs.values():
        assert (row.finished_at is not None) == (row.state in ENDED)
        assert not (row.cancel and row.state in ("putting", "ready"))
    assert sum(stats.jobs.values()) == len(jobs)
    assert stats.runs == len(runs)
    known = {(each.kind, each.hash) for each in requirements}
    assert {(row.kind, row.requires_hash) for row in jobs.values()} <= known


@pytest.fixture
def both(tmp_path: Path, postgres: Postgres) -> Callable[[VirtualClock], list[ControllerState]]:
    schema = "state_alike"
    postgres.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    count = 0

    def make(clock: VirtualClock) -> list[ControllerState]:
        nonlocal count
        count += 1
        return [
            SqliteState(tmp_path / f"{count}.db", synchronous="off", clock=clock),
            PostgresState(postgres.dsn(), schema=schema, clock=clock),
        ]

    return make


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(STEPS, max_size=25))
def test_all_stores_answer_alike(
    both: Callable[[VirtualClock], list[ControllerState]], postgres: Postgres, steps: list[Any]
) -> None:
    clock = VirtualClock()

    async def main() -> None:
        states = both(clock)
        try:
            for state in states:
                await state.migrate()
            postgres.execute(
                "TRUNCATE state_alike.controller_jobs, state_alike.controller_requirements, "
                "state_alike.controller_workers CASCADE"
            )
            for done in steps:
                if done[0] == "pass":
                    await clock.advance(done[1])
                    continue
                told = [await step(state, clock, *done) for state in states]
                assert told[0] == told[1], done
            seen = [await shown(state) for state in states]
            assert seen[0] == seen[1]
            for state in states:
                await check_laws(state)
        finally:
            for state in states:
                await state.close()

    clock.run(main())
