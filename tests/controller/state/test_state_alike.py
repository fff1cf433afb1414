"""Whatever is done in whatever order, all stores of the state answer alike."""

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
from pollwise.controller.state.values import ArtefactRow, Token, WorkerRow, WorkerSeen
from pollwise.errors import JobError
from pollwise.runtime.clock import VirtualClock
from tests.support.servers import Postgres

FOLDERS = ["f1", "f2", "f3"]
WORKERS = ["w1", "w2"]
folder = st.sampled_from(FOLDERS)
worker = st.sampled_from(WORKERS)
small = st.integers(0, 2)
ages = st.sampled_from([0.0, 5.0, 60.0])

STEPS = st.one_of(
    st.tuples(st.just("require"), st.sampled_from("ab"), st.sampled_from(["", "h"])),
    st.tuples(st.just("prune_requirements"), st.booleans()),
    st.tuples(st.just("hire"), worker),
    st.tuples(st.just("seen"), st.lists(st.tuples(worker, ages), max_size=3)),
    st.tuples(st.just("drain"), worker, st.booleans()),
    st.tuples(st.just("remove"), worker),
    st.tuples(st.just("prune_workers"), ages, st.integers(1, 2)),
    st.tuples(st.just("token"), st.sampled_from("tu")),
    st.tuples(st.just("revoke"), st.sampled_from("tu")),
    st.tuples(st.just("rotate"), st.sampled_from("tu"), st.sampled_from("hk")),
    st.tuples(st.just("used"), st.sampled_from("tu"), ages),
    st.tuples(st.just("log"), folder, small, st.integers(0, 12), st.binary(max_size=8)),
    st.tuples(st.just("file"), folder, st.sampled_from("xyz"), small, st.booleans()),
    st.tuples(st.just("attach"), folder, st.sampled_from(["j1", "j2"])),
    st.tuples(st.just("before"), ages, st.integers(1, 3), st.none() | folder),
    st.tuples(st.just("forget"), folder),
    st.tuples(st.just("pass"), st.sampled_from([1.0, 8.0, 50.0, 8000.0])),
)


async def step(state: ControllerState, what: str, *given: Any) -> Any:
    """Do one thing, and return what the state says of it."""
    match what:
        case "require":
            return await state.require(given[0], given[1], {"of": given[0]})
        case "prune_requirements":
            return await state.prune_requirements(0, [("a", "h")] if given[0] else [])
        case "hire":
            hired = WorkerRow(given[0], "mac", token_hash=given[0], registered_by="token:t")
            return await state.add_worker(hired)
        case "seen":
            return await state.seen([WorkerSeen(id_, ago, id_) for id_, ago in given[0]])
        case "drain":
            return await state.set_drain(*given)
        case "remove":
            return await state.remove_worker(*given)
        case "prune_workers":
            return await state.prune_workers(*given)
        case "token":
            return await state.add_token(Token(given[0], "ci", "put", f"h{given[0]}"))
        case "revoke":
            return await state.revoke_token(*given)
        case "rotate":
            return await state.rotate_token(given[0], f"h{given[0]}", f"{given[1]}{given[0]}", None)
        case "used":
            return await state.tokens_used({given[0]: given[1]})
        case "log":
            folder, part, offset, data = given
            return await state.append_log(folder, part, offset, data, 20, b"|", b"-")
        case "file":
            row = ArtefactRow(given[0], given[1], f"b{given[2]}", 1, "0", input=given[3])
            try:
                return await state.put_artefact(row, 2)
            except JobError as error:
                return str(error)
        case "attach":
            return await state.attach(*given)
        case "before":
            return await state.folders_before(*given)
        case "forget":
            return await state.forget([given[0]])
    raise AssertionError(what)


async def shown(state: ControllerState) -> Any:
    """All that there is to see."""
    folders = {
        each: (
            await state.log_place(each),
            await state.read_log(each, 0, 99),
            await state.artefacts(each),
            await state.artefacts(each, input=True),
        )
        for each in FOLDERS
    }
    for place, log, files, inputs in folders.values():
        assert len(log) == place.size
        assert max(len(files), len(inputs)) <= 2
    return (
        folders,
        await state.folders_before(0, 10),
        await state.requirements(),
        await state.list_workers(),
        await state.count_workers(30),
        await state.list_tokens(),
    )


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
                "TRUNCATE state_alike.controller_folders, state_alike.controller_requirements, "
                "state_alike.controller_workers, state_alike.controller_tokens CASCADE"
            )
            for done in steps:
                if done[0] == "pass":
                    await clock.advance(done[1])
                    continue
                told = [await step(state, *done) for state in states]
                assert told[0] == told[1], done
            seen = [await shown(state) for state in states]
            assert seen[0] == seen[1]
        finally:
            for state in states:
                await state.close()

    clock.run(main())
