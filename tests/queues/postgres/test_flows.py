"""Flows on Postgres: calls at the same time, large flows, earlier versions, and ways to put.

Whether a call waits for another transaction is seen by a short look, which can only let a mistake
pass, never fail a good run.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import psycopg
import pytest

from pollwise.errors import JobError, LeaseLost, SchemaError
from pollwise.queues.flows.view import FLOW_KEPT, FLOW_SHOWN
from pollwise.queues.postgres.queue import TABLES, PostgresQueue
from pollwise.queues.sync import SyncQueue
from pollwise.queues.views import BulkDone, JobFilter
from pollwise.runtime.jobs import Claim, NewJob, Settlement
from pollwise.storage.postgres import schema
from pollwise.storage.sql import migrations
from tests.queues.benches import migrated
from tests.queues.postgres.kit import drain, fresh, names, run
from tests.support.servers import Postgres

#: How long a look takes whether somebody waits, in seconds.
LOOK = 0.15
LIVE = ("ready", "delayed", "blocked", "leased")


def fan_in(count: int, **options: Any) -> list[NewJob]:
    """Jobs, and one that waits for all of them."""
    before = [NewJob("job", n) for n in range(count)]
    return [*before, NewJob("job", "last", after=before, **options)]


async def states(queue: PostgresQueue, ids: Sequence[str]) -> list[str | None]:
    found = [await queue.get(job_id) for job_id in ids]
    return [None if info is None else info.state for info in found]


async def settled(queue: PostgresQueue, claims: Sequence[Claim]) -> None:
    await queue.settle([Settlement.done(claim) for claim in claims])


@asynccontextmanager
async def handles(dsn: str, count: int) -> AsyncIterator[list[PostgresQueue]]:
    """Handles of one queue, each as if in a process of its own."""
    name = next(names)
    async with AsyncExitStack() as stack:
        opened = [PostgresQueue(dsn, name, connections=1) for _ in range(count)]
        yield [await stack.enter_async_context(each) for each in opened]


async def counted(queue: PostgresQueue, what: str) -> int:
    [(count,)] = await queue.database.connections.rows(f"SELECT count(*) FROM {what}".encode())
    return int(count)


# Calls at the same time


def test_the_last_of_many_settlers_frees_the_successor(dsn: str) -> None:
    async def main() -> None:
        async with handles(dsn, 8) as queues:
            for _ in range(10):
                before = [NewJob("job", n) for n in range(16)]
                after = [
                    NewJob("job", "all", after=before),
                    NewJob("job", "odd", after=before[::2]),
                ]
                put = await queues[0].put([*before, *after])
                claims = await queues[0].claim("w", 100, 60)
                assert len(claims) == 16
                random.Random(0).shuffle(claims)
                parts = [claims[n::8] for n in range(8)]
                await asyncio.gather(*map(settled, queues, parts))
                assert await states(queues[0], put[16:]) == ["ready", "ready"]
                freed = await queues[0].claim("w", 100, 60)
                assert sorted(claim.job.payload for claim in freed) == ["all", "odd"]
                await settled(queues[0], freed)

    run(main)


def test_two_settlers_with_the_same_successors_wait_in_one_order(
    dsn: str, postgres: Postgres
) -> None:
    async def main() -> None:
        async with fresh(dsn) as queue:
            a, b = NewJob("job", "a"), NewJob("job", "b")
            # Linked in the other order, so that they lie in another order too.
            c = NewJob("job", "c", after=[a, b])
            d = NewJob("job", "d", after=[b, a])
            put = await queue.put([a, b, c, d])
            by_name = {each.job.payload: each for each in await queue.claim("w", 10, 60)}
            before = postgres.log().count("deadlock detected")
            async with await psycopg.AsyncConnection.connect(dsn) as rival:
                await rival.execute(
                    "SELECT pollwise.settle(%s, %s, %s, NULL, NULL, NULL, NULL, NULL, false, false,"
                    " NULL)",
                    [queue.name, [int(put[1])], [by_name["b"].token]],
                )
                call = asyncio.ensure_future(settled(queue, [by_name["a"]]))
                done, _ = await asyncio.wait([call], timeout=LOOK)
                assert not done, "it waits for the other settler"
                await rival.commit()
                await call
            assert await states(queue, put) == ["done", "done", "ready", "ready"]
            assert postgres.log().count("deadlock detected") == before

    run(main)


def test_a_cancel_of_all_beside_settlements_is_no_deadlock(dsn: str, postgres: Postgres) -> None:
    async def main() -> None:
        async with handles(dsn, 3) as queues:
            before = postgres.log().count("deadlock detected")
            for turn in range(20):
                rng = random.Random(turn)
                jobs = [NewJob("job", n) for n in range(6)]
                jobs.append(NewJob("job", "all", after=jobs))
                for n in range(30):
                    jobs.append(NewJob("job", f"s{n}", after=rng.sample(jobs, rng.randrange(1, 4))))
                put = await queues[0].put(jobs)
                claims = await queues[0].claim("w", 6, 60)
                rng.shuffle(put)
                await asyncio.gather(
                    queues[0].cancel(put),
                    settled(queues[1], claims[::2]),
                    settled(queues[2], claims[1::2]),
                )
                assert not set(await states(queues[0], put)) & set(LIVE)
            assert postgres.log().count("deadlock detected") == before

    run(main)


def random_flow(rng: random.Random, size: int) -> list[NewJob]:
    jobs: list[NewJob] = []
    for n in range(size):
        after = rng.sample(jobs, min(len(jobs), rng.choice((0, 1, 1, 2, 3))))
        on_failure = bool(after) and rng.random() < 0.2
        key = rng.choice((None, None, "k1", "k2"))
        delay = rng.choice((0, 0, 0, 0.01))
        jobs.append(NewJob("job", n, after=after, on_failure=on_failure, key=key, delay=delay))
    return jobs


class Hands:
    """Settle what they claim at random, and note it beforehand."""

    def __init__(self, flows: dict[str, tuple[tuple[str, ...], bool]], rng: random.Random) -> None:
        self.flows = flows
        self.rng = rng
        self.ends: dict[str, set[str]] = {job_id: set() for job_id in flows}
        self.done: list[str] = []

    async def work(self, queue: PostgresQueue, calm: bool) -> None:
        idle = 0
        while idle < 20:
            claims = await queue.claim("w", self.rng.choice((1, 3, 10)), 60)
            idle = 0 if claims else idle + 1
            ways = []
            for claim in claims:
                after, on_failure = self.flows[claim.job.id]
                before = [self.ends[each] for each in after]
                if on_failure:
                    assert any("dead" in each for each in before), f"{claim.job.id} is not needed"
                else:
                    assert all("done" in each for each in before), f"{claim.job.id} is too early"
                chance = 0.0 if calm else self.rng.random()
                if chance < 0.8:
                    ways.append(Settlement.done(claim))
                elif chance < 0.9:
                    ways.append(Settlement.dead(claim, "broken"))
                else:
                    ways.append(Settlement.retry(claim, 0, "again"))
                self.ends[claim.job.id].add(ways[-1].action)
            await queue.settle(ways)
            self.done += [each.claim.job.id for each in ways if each.action == "done"]
            if not calm and self.rng.random() < 0.1:
                await queue.cancel(self.rng.sample([*self.flows], 3))
            await asyncio.sleep(0.002)  # real time: others work, and delays end


@pytest.mark.parametrize("seed", range(4))
def test_random_flows(dsn: str, seed: int) -> None:
    """Whatever ends when: a job runs when its predecessors allow it, and nothing stays behind."""
    rng = random.Random(seed)

    async def main() -> None:
        async with handles(dsn, 4) as queues:
            flows: dict[str, tuple[tuple[str, ...], bool]] = {}
            for _ in range(8):
                jobs = random_flow(rng, 25)
                put = await queues[0].put(jobs)
                places = {id(job): job_id for job, job_id in zip(jobs, put, strict=True)}
                for job, job_id in zip(jobs, put, strict=True):
                    after = tuple(places[id(each)] for each in job.after)
                    flows[job_id] = after, job.on_failure
            hands = Hands(flows, rng)
            await asyncio.gather(*(hands.work(queue, calm=False) for queue in queues))
            for _ in range(3):  # one that was retried may need another that is dead
                await queues[0].retry(anyway=True)
                await asyncio.gather(*(hands.work(queue, calm=True) for queue in queues))
            stats = await queues[0].stats()
            assert (stats.ready, stats.delayed, stats.leased, stats.dead) == (0, 0, 0, 0), seed
            assert stats.blocked == 0, seed
            assert len(set(hands.done)) == len(hands.done), "a job is done once"
            held = f"pollwise.jobs WHERE queue = '{queues[0].name}' AND waits IS NOT NULL"
            assert await counted(queues[0], held) == 0
            late = (
                f"pollwise.jobs WHERE queue = '{queues[0].name}' AND flow IS NOT NULL"
                f" AND expires_at > since + {2 * FLOW_SHOWN}"
            )
            assert await counted(queues[0], late) == 0, "flows that have ended are let go"

    run(main)


def test_two_settlers_of_the_last_jobs_let_the_flow_go(dsn: str) -> None:
    async def main() -> None:
        async with handles(dsn, 4) as queues:
            for _ in range(10):
                first = NewJob("job", "first")
                jobs = [first, *(NewJob("job", n, after=[first]) for n in range(4))]
                put = await queues[0].put(jobs)
                await settled(queues[0], await queues[0].claim("w", 10, 60))
                claims = await queues[0].claim("w", 10, 60)
                await asyncio.gather(*map(settled, queues, ([each] for each in claims)))
                kept = (
                    f"pollwise.jobs WHERE seq = ANY ('{{{','.join(put)}}}')"
                    f" AND expires_at < since + {2 * FLOW_SHOWN}"
                )
                assert await counted(queues[0], kept) == 5

    run(main)


def test_a_job_that_is_freed_beside_the_end_of_its_key(dsn: str) -> None:
    """The end of the front job and the release of the next do not miss each other."""

    async def main() -> None:
        async with handles(dsn, 2) as (queue, other):
            for _ in range(20):
                await queue.put(NewJob("job", "front", key="k"))
                first = NewJob("job", "first")
                [_, last] = await queue.put([first, NewJob("job", "last", after=[first], key="k")])
                one, two = await queue.claim("w", 10, 60)
                await asyncio.gather(settled(queue, [one]), settled(other, [two]))
                [claim] = await queue.claim("w", 10, 60)
                assert claim.job.id == last
                await settled(queue, [claim])

    run(main)


# Large flows


def test_a_fan_in_of_ten_thousand(postgres: Postgres) -> None:
    """Each settlement costs the same, however many jobs the successor still waits for."""
    dsn = migrated(postgres.create_database("fan_in"))
    spent: list[int] = []

    async def blocks(queue: PostgresQueue) -> int:
        statement = (
            b"SELECT sum(pg_stat_get_blocks_fetched(c.oid))::bigint FROM pg_class AS c"
            b" WHERE c.relnamespace = 'pollwise'::regnamespace"
        )
        await queue.database.connections.rows(b"SELECT pg_stat_force_next_flush()")
        await queue.database.connections.rows(b"SELECT pg_stat_clear_snapshot()")
        [(count,)] = await queue.database.connections.rows(statement)
        return int(count)

    async def main() -> None:
        async with PostgresQueue(dsn, connections=1) as queue:
            put = await queue.put(fan_in(9_999))
            assert (await queue.stats()).blocked == 1
            while claims := await queue.claim("w", 500, 600):
                if claims[0].job.payload == "last":
                    break
                before = await blocks(queue)
                await settled(queue, claims)
                spent.append(await blocks(queue) - before)
            assert [claim.job.id for claim in claims] == put[-1:]
            assert len(await queue.predecessors(put[-1])) == 9_999
            view = await queue.flow(put[-1])
            assert view is not None
            assert (len(view.jobs), view.more) == (1101, True)  # with 100 before it, and itself
            await settled(queue, claims)
            assert (await queue.stats()).done == 10_000
            await queue.drop(JobFilter("done"))
            assert await counted(queue, "pollwise.links") == 0

    run(main)
    assert max(spent[1:-1]) <= 2 * spent[0], spent


def test_a_fan_out_of_ten_thousand_and_its_cancellation(dsn: str) -> None:
    async def main() -> None:
        async with fresh(dsn) as queue:
            for ending in ("done", "cancelled"):
                first = NewJob("job", "first")
                await queue.put([first, *(NewJob("job", n, after=[first]) for n in range(9_999))])
                [claim] = await queue.claim("w", 10, 60)
                await queue.settle([Settlement(claim, "done" if ending == "done" else "cancelled")])
                stats = await queue.stats()
                assert stats.blocked == 0
                if ending == "done":
                    assert stats.ready == 9_999
                    assert len(await drain(queue)) == 9_999
                else:
                    assert stats.cancelled == 10_000

    run(main)


# Earlier versions, and what is stored


@pytest.mark.parametrize("version", [1, 4])
def test_workers_of_earlier_versions_keep_flows(dsn: str, version: int) -> None:
    keeps = "" if version == 1 else "NULL,"

    async def main() -> None:
        async with fresh(dsn) as queue:
            put = await queue.put(fan_in(2, key="k"))
            claims = await queue.claim("w", 10, 60)
            with psycopg.connect(dsn, autocommit=True) as old:
                lost = old.execute(
                    "SELECT pollwise.settle(%s, %s, %s, NULL, NULL, NULL, NULL,"
                    f" {keeps} false, false, NULL)",
                    [queue.name, [int(each.job.id) for each in claims], [c.token for c in claims]],
                ).fetchone()
            assert lost == (None,)
            assert await states(queue, put) == ["done", "done", "ready"]
            assert await drain(queue) == ["last"]

    run(main)


def test_tables_of_an_earlier_version(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the tables of flows, all other calls work, and a flow is refused."""
    dsn = postgres.create_database("no_flows")
    with monkeypatch.context() as patch:
        earlier = [each for each in migrations(TABLES.package) if each[0] < 11]
        patch.setattr(schema, "migrations", lambda package: earlier)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(PostgresQueue(dsn).migration())

    async def main() -> None:
        async with PostgresQueue(dsn, keep="1h") as queue:
            with pytest.raises(SchemaError, match="pollwise queue migrate"):
                await queue.put(fan_in(2))
            put = await queue.put([NewJob("job", n, key=f"k{n % 2}") for n in range(4)])
            claims = await queue.claim("w", 10, 60)
            await queue.settle([Settlement.dead(claims[0], "no"), Settlement.done(claims[1])])
            assert await states(queue, put) == ["dead", "done", "ready", "ready"]
            assert await queue.cancel(put[2:3]) == {put[2]: "cancelled"}
            assert await queue.drop() == 1
            assert await queue.drop(JobFilter("done")) == BulkDone(1, None)
            assert await queue.prune() == 0
            assert [info.job.key for info in await queue.arrivals()] == ["k0", "k1"]

    run(main)


def test_the_server_keeps_flows_as_long_as_the_code_says(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT pollwise.flow_kept(), pollwise.flow_shown()").fetchone()
    assert row == (FLOW_KEPT, FLOW_SHOWN)


def test_links_are_deleted_with_their_jobs(postgres: Postgres) -> None:
    dsn = migrated(postgres.create_database("links"))

    async def main() -> None:
        async with fresh(dsn) as queue:
            put = await queue.put(fan_in(3))
            claims = await queue.claim("w", 10, 60)
            await queue.settle([Settlement.dead(claim, "broken") for claim in claims])
            assert await queue.drop(put[:1]) == 1
            found = await queue.predecessors(put[3])
            assert [each for each, _ in found] == put[:3]
            assert found[0][1] is None, "one that was dropped"
            assert await states(queue, put) == [None, "dead", "dead", "cancelled"]
            assert await queue.drop(JobFilter("cancelled")) == BulkDone(1, None)
            assert await counted(queue, "pollwise.links") == 0

            await queue.put(fan_in(3))
            await queue.settle(
                [Settlement.dead(each, "no") for each in await queue.claim("w", 1, 60)]
            )
            await queue.drop()
            over = "UPDATE pollwise.jobs SET expires_at = 1 WHERE state = 6 RETURNING 1"
            await queue.database.connections.rows(over.encode())
            assert await queue.prune() == 1
            assert await counted(queue, "pollwise.links") == 0

    run(main)


# Ways to put


def test_a_flow_in_a_transaction_of_the_users(dsn: str) -> None:
    async def main() -> None:
        async with fresh(dsn) as queue:
            with psycopg.connect(dsn) as connection:
                await queue.put(fan_in(2), connection=connection)
                assert (await queue.stats()).blocked == 0
                connection.rollback()
                await queue.put(fan_in(2, key="k", delay=5), connection=connection)
                connection.commit()
            async with await psycopg.AsyncConnection.connect(dsn) as connection:
                await queue.put([*fan_in(1), NewJob("job", "other")], connection=connection)
            stats = await queue.stats()
            assert (stats.ready, stats.blocked) == (4, 2)
            assert sorted(map(str, await drain(queue))) == ["0", "0", "1", "last", "other"]
            assert (await queue.stats()).delayed == 1

    run(main)


def test_a_flow_that_is_put_in_the_calling_thread(dsn: str) -> None:
    with SyncQueue(f"{dsn}?queue=sync") as queue:
        for _ in range(2):  # the first goes through the event loop, which checks the tables
            put = queue.put(fan_in(3))
            info = queue.get(put[-1])
            assert info is not None
            assert info.state == "blocked"


def test_a_flow_beside_jobs_that_replace_others(dsn: str) -> None:
    async def main() -> None:
        async with fresh(dsn) as queue:
            [old] = await queue.put(NewJob("job", 1, unique="u"))
            first, *rest = fan_in(1)
            again = NewJob("job", 2, unique="u", replace=True)
            put = await queue.put([first, again, *rest])
            assert put[1] == old
            assert await states(queue, put) == ["ready", "ready", "blocked"]
            with pytest.raises(JobError):  # nothing is put
                await queue.put([*fan_in(1), NewJob("other", 2, unique="u")])
            assert (await queue.stats()).blocked == 1
            assert sorted(map(str, await drain(queue))) == ["0", "2", "last"]
            with pytest.raises(LeaseLost):
                await settled(queue, [Claim(info.job, 1, "w", 0.0) for info in await queue.jobs()])

    run(main)
