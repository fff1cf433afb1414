"""Flows in a SQLite file: under workers of older versions, and at a cost that does not grow."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.jobs import Claim, NewJob, Settlement
from tests.support.sqlite_cost import Meter


@contextmanager
def older(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection for the statements of an older version."""
    with closing(sqlite3.connect(path)) as connection, connection:
        yield connection


def diamond() -> list[NewJob]:
    first = NewJob("first")
    left, right = NewJob("left", after=[first]), NewJob("right", after=[first], key="k")
    failed = NewJob("failed", after=[first, left], on_failure=True)
    return [first, left, right, NewJob("last", after=[left, right]), failed]


async def states(queue: SqliteQueue) -> dict[str, str]:
    return {info.job.kind: info.state for info in await queue.jobs()}


def test_an_older_worker_frees_what_comes_after(tmp_path: Path) -> None:
    """It deletes a job that is done, if the queue keeps none."""

    async def main() -> None:
        async with SqliteQueue(tmp_path / "jobs.db") as queue:
            await queue.put(diamond())
            for kinds in (["first"], ["left", "right"], ["last"]):
                claims = await queue.claim("w", 10, 60)
                assert sorted(claim.job.kind for claim in claims) == kinds
                with older(queue.path) as connection:
                    for claim in claims:
                        connection.execute(
                            "DELETE FROM pollwise_jobs WHERE state IN (0, 3) AND seq = ?",
                            (int(claim.job.id),),
                        )
            assert await states(queue) == {"failed": "blocked"}
            await queue.prune()
            assert await states(queue) == {"failed": "cancelled"}

    VirtualClock().run(main())


@pytest.mark.parametrize("state", [4, 6])
def test_what_an_older_worker_fails_or_cancels(tmp_path: Path, state: int) -> None:
    async def main() -> None:
        clock = VirtualClock()
        async with SqliteQueue(tmp_path / "jobs.db", clock=clock) as queue:
            [first, *_] = await queue.put(diamond())
            await queue.claim("w", 1, 60)
            with older(queue.path) as connection:
                connection.execute(
                    "UPDATE pollwise_jobs SET state = ?, since = ? WHERE seq = ?",
                    (state, clock.epoch(), int(first)),
                )
            await queue.prune()
            found = await states(queue)
            waiting = {found[kind] for kind in ("left", "right", "last")}
            if state == 4:
                assert (waiting, found["failed"]) == ({"blocked"}, "ready")
            else:
                assert (waiting, found["failed"]) == ({"cancelled"}, "cancelled")

    VirtualClock().run(main())


def test_a_claim_without_headers_settles_a_flow(tmp_path: Path) -> None:
    """A controller settles for agents of older versions, which do not send the headers back."""

    async def main() -> None:
        async with SqliteQueue(tmp_path / "jobs.db") as queue:
            first = NewJob("first")
            [before, after] = await queue.put([first, NewJob("after", after=[first])])
            [claim] = await queue.claim("w", 1, 60)
            bare = type(claim.job)(
                before, "default", "first", None, None, 0, claim.job.attempt, 0.0, 0.0, None
            )
            again = Claim(bare, claim.token, claim.worker, claim.until)
            await queue.settle([Settlement.done(again)])
            [(_, ending)] = await queue.predecessors(after)
            assert ending is not None
            assert ending.state == "done"
            assert [each.job.id for each in await queue.claim("w", 1, 60)] == [after]

    VirtualClock().run(main())


@pytest.mark.parametrize("fan", ["in", "out"])
@pytest.mark.parametrize("at_once", [1, 100])
def test_the_cost_of_a_job_does_not_grow_with_its_flow(
    tmp_path: Path, fan: str, at_once: int
) -> None:
    """Steps of SQLite for the settlements of a flow, by the number of its jobs."""

    async def cost(count: int) -> float:
        meter = Meter()
        async with SqliteQueue(tmp_path / f"{count}.db", synchronous="off") as queue:
            one, many = NewJob("one"), [NewJob("job") for _ in range(count)]
            if fan == "in":
                await queue.put([*many, NewJob("one", after=many)])
            else:
                await queue.put([one, *(NewJob("job", after=[one]) for _ in range(count))])
                [claim] = await queue.claim("w", 1, 60)
                await queue.settle([Settlement.done(claim)])
            claims = await queue.claim("w", 10_000, 60, kinds=["job"])
            while len(claims) < count:
                claims += await queue.claim("w", 10_000, 60, kinds=["job"])
            batches = [claims[at : at + at_once] for at in range(0, count, at_once)]
            await queue.settle([Settlement.done(claim) for claim in batches.pop()])  # the thread
            store = queue._store
            with meter.reading(store.connect()):
                for batch in batches:
                    store.settle(1.0, [Settlement.done(claim) for claim in batch])
        return meter.steps / (count - at_once)

    async def main() -> None:
        small, large = await cost(200), await cost(2000)
        assert large < small * 1.5, f"{small:.0f} steps a job of 200, {large:.0f} of 2,000"

    VirtualClock().run(main())


@pytest.mark.parametrize("count", [100, 1000])
def test_a_long_chain_is_cancelled_step_by_step(tmp_path: Path, count: int) -> None:
    async def main() -> None:
        meter = Meter()
        async with SqliteQueue(tmp_path / "jobs.db", synchronous="off") as queue:
            jobs: list[NewJob] = []
            for _ in range(count):
                jobs.append(NewJob("job", after=jobs[-1:]))
            put = await queue.put(jobs)
            with meter.reading(queue._store.connect()):
                queue._store.cancel(1.0, put[:1])
            assert meter.steps < 1000 * count
            assert (await queue.stats()).cancelled == count

    VirtualClock().run(main())
