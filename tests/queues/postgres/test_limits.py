"""Limits in Postgres: claims at the same time, killed sessions, and many jobs of one group."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, contextmanager

import psycopg
import pytest

from pollwise.errors import SchemaError, StoreUnavailable
from pollwise.queues.limits.record import Concurrency, Limit, Rate
from pollwise.queues.notes import NewNote, ScheduleSwap
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.jobs import Claim, NewJob, Settlement
from pollwise.storage.sql import migrations
from tests.queues.benches import migrated
from tests.queues.postgres.kit import fresh, names, run
from tests.support.servers import OwnPostgres, Postgres

GROUPS = "abcdefgh"
HOT = 20_000
#: A claim of up to 9 jobs in an open transaction.
CLAIM = (
    "SELECT count(seq) FROM pollwise.claim(%s, 'open', 9, 60, ARRAY['job'], false, false,"
    " NULL, NULL, NULL)"
)


@pytest.fixture(params=["postgres", "postgres_oldest"])
def server(request: pytest.FixtureRequest) -> Postgres:
    found: Postgres = request.getfixturevalue(request.param)
    return found


def of_groups(count: int) -> list[NewJob]:
    """Jobs of all groups in turn, each with its group as its payload."""
    return [
        NewJob("job", group, limit_group=group)
        for group in (GROUPS[n % len(GROUPS)] for n in range(count))
    ]


@contextmanager
def transaction(dsn: str) -> Iterator[psycopg.Connection]:
    """An open transaction, which is rolled back at the end."""
    with psycopg.connect(dsn) as connection:
        yield connection
        connection.rollback()


def test_four_claimers_never_exceed_a_limit(server: Postgres) -> None:
    """They claim and settle as fast as they can, and the jobs that run are counted meanwhile."""
    dsn, name = migrated(server.dsn()), next(names)
    most, most_each, jobs = 7, 2, 400
    running: Counter[str] = Counter()
    done: Counter[str] = Counter()

    async def claimer(worker: str) -> None:
        async with PostgresQueue(dsn, name, connections=2) as queue:
            while done.total() < jobs:
                claims = await queue.claim(worker, 5, 60, kinds=["job"])
                running.update(claim.job.payload for claim in claims)
                assert running.total() <= most, running
                assert max(running.values(), default=0) <= most_each, running
                await asyncio.sleep(0)  # another claimer has its turn
                # They no longer count here before they end there, so never too late.
                running.subtract(claim.job.payload for claim in claims)
                if claims:
                    await queue.settle([Settlement.done(claim) for claim in claims])
                done.update(claim.job.payload for claim in claims)

    async def main() -> None:
        async with PostgresQueue(dsn, name) as queue:
            limits: list[Limit] = [Concurrency(most), Concurrency(most_each, by="tenant")]
            await queue.limits.set("job", limits)
            await queue.put(of_groups(jobs))
            await asyncio.gather(*(claimer(f"w{n}") for n in range(4)))
            [use] = await queue.limits.use("job")
            assert (use.running, use.waiting, use.groups) == (0, 0, ())

    run(main)
    assert done == dict.fromkeys(GROUPS, jobs // len(GROUPS))


def test_a_killed_claim_charges_nothing(own_postgres: OwnPostgres) -> None:
    """Its session is killed when it has leased and charged, but not committed."""
    server = own_postgres()
    dsn = migrated(server.dsn())

    async def main() -> None:
        async with PostgresQueue(dsn, connections=1) as queue:
            rates: list[Limit] = [Rate(4, "1h", burst=4), Rate(1, "1h", by="tenant", burst=1)]
            await queue.limits.set("job", [*rates, Concurrency(4), Concurrency(1, by="tenant")])
            await queue.put(of_groups(8))
            [first] = await queue.claim("first", 1, 60)
            [before] = await queue.limits.use("job")
            session = await session_of(queue)
            with closing(psycopg.connect(dsn)) as killed:
                assert killed.execute(CLAIM, ["default"]).fetchone() == (3,), (
                    "what is left of the rate"
                )
                os.kill(killed.info.backend_pid, signal.SIGKILL)
                with pytest.raises(psycopg.OperationalError):
                    killed.execute("SELECT 1")
            while await session_of(queue) in (None, session):
                await asyncio.sleep(0.05)  # real time: the server ends all sessions and recovers
            [after] = await queue.limits.use("job")
            assert after == before
            claims = await queue.claim("second", 9, 60)
            assert first.job.payload not in [claim.job.payload for claim in claims]
            assert len(claims) == 3

    run(main)


async def session_of(queue: PostgresQueue) -> int | None:
    """The session of the queue's only connection; None while the server is not there."""
    try:
        [(pid,)] = await queue.database.connections.rows(b"SELECT pg_backend_pid()")
    except StoreUnavailable:
        return None
    return int(pid)


def test_a_claim_waits_for_one_of_the_same_kind_and_for_no_other(server: Postgres) -> None:
    dsn, name = migrated(server.dsn()), next(names)

    async def main() -> None:
        async with PostgresQueue(dsn, name) as queue:
            await queue.limits.set("job", Concurrency(2))
            await queue.limits.set("other", Concurrency(2))
            kinds = ("job", "other", "free")
            await queue.put([NewJob(kind, n) for n in range(3) for kind in kinds])
            with transaction(dsn) as connection:
                row = connection.execute(CLAIM, [name]).fetchone()
                assert row == (2,)
                assert len(await queue.claim("w", 9, 60, kinds=["free", "other"])) == 5
                waiting = asyncio.ensure_future(queue.claim("w", 9, 60, kinds=["job"]))
                while not _waits(server, connection.info.backend_pid):
                    await asyncio.sleep(0.01)  # real time: the other session has to get there
                connection.commit()
                assert await waiting == [], "it counts what was committed while it waited"

    run(main)


def _waits(server: Postgres, pid: int) -> bool:
    found = server.execute(
        f"SELECT 1 FROM pg_stat_activity WHERE {pid} = ANY (pg_blocking_pids(pid))"
    )
    return bool(found)


def test_claims_of_several_limited_kinds_do_not_lock_in_a_circle(server: Postgres) -> None:
    """Many handles ask for the kinds in different orders; each begins without rows to lock."""
    dsn, name = migrated(server.dsn()), next(names)
    kinds = ["a", "b", "c", "d"]

    async def main() -> None:
        async with AsyncExitStack() as stack:
            opened = [stack.enter_async_context(PostgresQueue(dsn, name)) for _ in range(4)]
            queues = [await queue for queue in opened]
            for turn in range(10):
                for kind in kinds:
                    await queues[0].limits.set(f"{kind}{turn}", Concurrency(1))
                put = [NewJob(f"{kind}{turn}", n) for kind in kinds for n in range(3)]
                await queues[0].put(put)
                orders = [[f"{kind}{turn}" for kind in kinds[n:] + kinds[:n]] for n in range(4)]
                found = await asyncio.gather(
                    *(queues[n].claim("w", 2, 60, kinds=orders[n]) for n in range(4))
                )
                claimed = Counter(claim.job.kind for claims in found for claim in claims)
                assert max(claimed.values()) == 1
                assert len(claimed) == 4

    before = server.log().count("deadlock detected")
    run(main)
    assert server.log().count("deadlock detected") == before


# Groups


def test_every_put_keeps_the_group(dsn: str) -> None:
    """Alone, in a batch, in a transaction of the user, with `unique`, and by a schedule."""

    async def main() -> None:
        async with fresh(dsn) as queue:
            await queue.limits.set("job", Concurrency(1, by="tenant"))
            job = NewJob("job", limit_group='big "ü" \\ ☃')
            await queue.put(job)
            await queue.put([job, NewJob("job", 1, limit_group='big "ü" \\ ☃', unique="u")])
            with psycopg.connect(dsn) as connection:
                await queue.put([job, job], connection=connection)
                await queue.put(job, connection=connection)
            swap = ScheduleSwap("s", None, "{}", job=None)
            assert (await queue._swap_schedule(swap)).done
            assert (await queue._swap_schedule(ScheduleSwap("s", "{}", "{", "}", job))).done
            [use] = await queue.limits.use("job")
            [group] = use.groups
            assert (group.group, group.waiting) == ('big "ü" \\ ☃', 7)
            assert len(await queue.claim("w", 9, 60)) == 1

    run(main)


def test_a_large_group_costs_the_others_nothing(server: Postgres) -> None:
    """Claims look at few blocks, whether they were planned before or after the statistics."""
    database = f"hot{server.port}"
    dsn = migrated(server.create_database(database))

    async def blocks_of(queue: PostgresQueue) -> int:
        """How many blocks a claim looks at."""
        rows = queue.database.connections.rows
        counts = []
        for _ in range(2):
            await rows(b"SELECT pg_stat_force_next_flush()")
            await rows(b"SELECT pg_stat_clear_snapshot()")
            [(found,)] = await rows(
                b"SELECT sum(pg_stat_get_blocks_fetched(c.oid))::bigint FROM pg_class AS c"
                b" WHERE c.relnamespace = 'pollwise'::regnamespace"
            )
            counts.append(int(found))
            if len(counts) == 1:
                claims = await queue.claim("w", 20, 60, kinds=["job"])
                assert {claim.job.payload for claim in claims} >= set(GROUPS)
                await queue.settle([Settlement.give_back(claim) for claim in claims])
        return counts[1] - counts[0]

    async def main() -> None:
        async with PostgresQueue(dsn, connections=1) as queue, PostgresQueue(dsn) as other:
            limits: list[Limit] = [Concurrency(3, by="tenant"), Rate(10**6, "1s", by="tenant")]
            await queue.limits.set("job", limits)
            await queue.claim("w", 20, 60, kinds=["job"])  # planned for empty tables
            await other.put(of_groups(80))
            await blocks_of(queue)  # warms the caches up
            small = await blocks_of(queue)
            # In the same session, because another one reports its blocks at its end.
            await queue.database.connections.rows(
                b"INSERT INTO pollwise.jobs"
                b" (queue, kind, payload, state, since, run_at, created_at, limit_group)"
                b" SELECT 'default', 'job', '\"hot\"', 0, n, n, n, 'hot'"
                b" FROM generate_series(1, $1::integer) AS n",
                [str(HOT).encode()],
            )
            large = await blocks_of(queue)
            assert large <= small + HOT / 10, "part of it is the search for jobs without a group"
            await queue.database.connections.rows(b"VACUUM ANALYZE pollwise.jobs")
            async with PostgresQueue(dsn, connections=1) as later:
                await blocks_of(later)
                assert await blocks_of(later) <= small + HOT / 10
            assert await blocks_of(queue) <= small + HOT / 10

    run(main)


def test_a_job_without_a_group_is_found_behind_a_large_group(dsn: str) -> None:
    async def main() -> None:
        async with fresh(dsn) as queue:
            await queue.limits.set("job", Concurrency(1, by="tenant"))
            await queue.put([NewJob("job", "hot", limit_group="hot") for _ in range(2000)])
            await queue.put(NewJob("job", "alone"))
            found = []
            for _ in range(15):
                found += await queue.claim("w", 5, 60)
            assert sorted(claim.job.payload for claim in found) == ["alone", "hot"]

    run(main)


# Groups that may start nothing


def test_full_groups_cost_a_claim_nothing(server: Postgres) -> None:
    """A claim looks at as few blocks with 3,400 full groups as with 400."""
    dsn = migrated(server.create_database(f"full{server.port}"))

    async def blocks_of(queue: PostgresQueue, found: int) -> int:
        rows = queue.database.connections.rows
        counts = []
        for _ in range(2):
            await rows(b"SELECT pg_stat_force_next_flush()")
            await rows(b"SELECT pg_stat_clear_snapshot()")
            [(count,)] = await rows(
                b"SELECT sum(pg_stat_get_blocks_fetched(c.oid))::bigint FROM pg_class AS c"
                b" WHERE c.relnamespace = 'pollwise'::regnamespace"
            )
            counts.append(int(count))
            if len(counts) == 1:
                assert len(await queue.claim("w", 20, 3600, kinds=["job"])) == found
        return counts[1] - counts[0]

    async def main() -> None:
        async with PostgresQueue(dsn, connections=1) as queue, PostgresQueue(dsn) as other:
            await queue.limits.set("job", Concurrency(1, by="tenant"))
            spent = []
            for groups in (range(400), range(400, 3400)):
                await other.put([
                    NewJob("job", limit_group=f"t{n:04}") for n in groups for _ in range(2)
                ])  # fmt: skip
                while await queue.claim("w", 1000, 3600, kinds=["job"]):
                    pass
                for _ in range(6):  # groups that became full leave, and dead rows are forgotten
                    await blocks_of(queue, 0)
                spent.append(await blocks_of(queue, 0))
                await other.put(NewJob("job", limit_group=f"free {groups}"))
                spent.append(await blocks_of(queue, 1))
            few, many = spent[:2], spent[2:]
            assert all(two <= one + 500 for one, two in zip(few, many, strict=True)), spent

    run(main)


def test_idle_claims_read_no_waiting_job(server: Postgres) -> None:
    """However long ago the limits were set, and many jobs wait: not one of them is read."""
    clock, dsn = VirtualClock(), migrated(server.create_database(f"idle{server.port}"))

    async def main() -> None:
        async with PostgresQueue(dsn, connections=1, clock=clock) as queue:
            rows = queue.database.connections.rows

            async def entries_read() -> int:
                """How many entries of indexes were read."""
                await rows(b"SELECT pg_stat_force_next_flush()")
                await rows(b"SELECT pg_stat_clear_snapshot()")
                [(count,)] = await rows(
                    b"SELECT sum(pg_stat_get_tuples_returned(c.oid))::bigint FROM pg_class AS c"
                    b" WHERE c.relnamespace = 'pollwise'::regnamespace"
                )
                return int(count)

            await queue.limits.set("job", Concurrency(1, by="tenant"))
            await queue.put([
                NewJob("job", limit_group=f"t{n:04}") for n in range(1200) for _ in range(2)
            ])  # fmt: skip
            for found in (1000, 200):
                assert len(await queue.claim("w", found, 600_000)) == found
            assert await rows(b"SELECT count(*) FROM pollwise.limit_circle") == [(0,)]
            await queue.claim("w", 20, 60)  # the last pass
            for pause in (0, 1, 11, 100, 1000):
                await clock.advance(pause)
                before = await entries_read()
                assert await queue.claim("w", 20, 60) == []
                read = await entries_read() - before
                assert read <= 30, (pause, read)

    clock.run(main())


@contextmanager
def at_work(dsn: str, isolation: str = "read committed") -> Iterator[psycopg.Connection]:
    """A transaction that began before the limits are set."""
    with psycopg.connect(dsn) as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        connection.execute("SELECT count(*) FROM pollwise.notes")
        yield connection


GROUPED, LOOSE = NewJob("job", "grouped", limit_group="b"), NewJob("job", "loose")


async def claimed(queue: PostgresQueue, count: int, most: int = 9) -> list[Claim]:
    """What is found, soon: another transaction of the server may run for a moment."""
    found: list[Claim] = []
    for _ in range(200):
        found += await queue.claim("w", most, 600_000)
        if len(found) >= count:
            break
        await asyncio.sleep(0)
    return found


def test_jobs_of_transactions_that_see_no_limits_are_found(postgres: Postgres) -> None:
    """They put jobs while limits are set, and commit after claims have looked at all others."""

    clock, dsn = VirtualClock(), migrated(postgres.create_database("unseen"))

    async def main() -> None:
        async with PostgresQueue(dsn, clock=clock) as queue:
            await queue.put(NewJob("job", "first", limit_group="a"))
            with at_work(dsn) as connection:
                await queue.put([GROUPED, LOOSE], connection=connection)
                await queue.limits.set("job", Concurrency(1, by="tenant"))
                assert len(await queue.claim("w", 9, 60)) == 1
                for _ in range(3):
                    assert await queue.claim("w", 9, 60) == []
                connection.commit()
            found = await claimed(queue, 2)
            assert {claim.job.payload for claim in found} == {"grouped", "loose"}

    clock.run(main())


def test_jobs_of_transactions_with_an_old_snapshot_are_found(postgres: Postgres) -> None:
    """They see no limits, although they put their jobs after all passes."""

    clock, dsn = VirtualClock(), migrated(postgres.create_database("snapshots"))

    async def main() -> None:
        async with PostgresQueue(dsn, clock=clock) as queue:
            await queue.put(NewJob("job", "first", limit_group="a"))
            with at_work(dsn, "repeatable read") as connection:
                await queue.limits.set("job", Concurrency(1, by="tenant"))
                assert len(await queue.claim("w", 9, 60)) == 1
                for _ in range(3):
                    assert await queue.claim("w", 9, 60) == []
                await queue.put([GROUPED, LOOSE], connection=connection)
                connection.commit()
            found = await claimed(queue, 2)
            assert {claim.job.payload for claim in found} == {"grouped", "loose"}

    clock.run(main())


def test_jobs_from_before_the_limits_are_found_when_they_are_ready(dsn: str) -> None:
    """Delayed, blocked, leased, retried after their end, and more of them than one claim takes."""
    clock = VirtualClock()

    async def main() -> None:
        async with PostgresQueue(dsn, next(names), clock=clock, keep="1d") as queue:
            await queue.put([
                NewJob("job", "dead", priority=9), NewJob("job", "leased", priority=9),
                NewJob("job", "front", priority=9, key="k"), NewJob("job", "blocked", key="k"),
                NewJob("job", "delayed", delay=100), *[NewJob("job", n) for n in range(700)],
            ])  # fmt: skip
            claims = {claim.job.payload: claim for claim in await queue.claim("w", 3, 60)}
            await queue.settle([Settlement.dead(claims.pop("dead"), "broken")])
            await queue.limits.set("job", fair_by="tenant")
            found = await claimed(queue, 700, 100)
            assert {claim.job.payload for claim in found} == {*range(700)}
            await queue.settle([Settlement.done(each) for each in found])
            await queue.settle([Settlement.retry(claims["leased"])])
            await queue.settle([Settlement.done(claims["front"])])
            assert await queue.retry() == 1
            await clock.advance(101)
            found = await claimed(queue, 4)
            wanted = {"leased", "blocked", "delayed", "dead"}
            assert {claim.job.payload for claim in found} == wanted

    clock.run(main())


def test_a_job_that_another_transaction_holds_gets_its_group_later(dsn: str) -> None:
    clock = VirtualClock()

    async def main() -> None:
        async with PostgresQueue(dsn, next(names), clock=clock) as queue:
            await queue.put([NewJob("job", n) for n in range(3)])
            with psycopg.connect(dsn) as connection:
                lock = "SELECT 1 FROM pollwise.jobs WHERE queue = %s AND payload = '1' FOR UPDATE"
                connection.execute(lock, [queue.name])
                await queue.limits.set("job", fair_by="tenant")
                found = await claimed(queue, 2)
                assert {claim.job.payload for claim in found} == {0, 2}
                connection.rollback()
            await clock.advance(11)
            assert [claim.job.payload for claim in await claimed(queue, 1)] == [1]

    clock.run(main())


PUT = (
    "SELECT fresh FROM pollwise.put(%s, ARRAY['job'], ARRAY['1'], NULL, NULL, NULL, NULL, NULL,"
    """ ARRAY['{"pollwise-limit-group": "a"}'], true, NULL, NULL, NULL)"""
)


def test_a_put_that_is_not_committed_keeps_its_group(dsn: str) -> None:
    """A claim that finds the group empty does not take it out, and the job is found later."""

    async def main() -> None:
        async with fresh(dsn) as queue:
            await queue.limits.set("job", Concurrency(1, by="tenant"))
            await queue.put(NewJob("job", limit_group="a"))
            [claim] = await queue.claim("w", 9, 60)
            await queue.settle([Settlement.done(claim)])  # the group enters the circle
            with psycopg.connect(dsn) as connection:
                connection.execute(PUT, [queue.name])
                assert await queue.claim("w", 9, 60) == []
                connection.commit()
            assert len(await queue.claim("w", 9, 60)) == 1

    run(main)


def test_a_put_during_the_claim_that_takes_its_group_out_waits_for_nothing(dsn: str) -> None:
    async def main() -> None:
        async with fresh(dsn) as queue:
            await queue.limits.set("job", Concurrency(1, by="tenant"))
            await queue.put(NewJob("job", limit_group="a"))
            [claim] = await queue.claim("w", 9, 60)
            await queue.settle([Settlement.done(claim)])
            with psycopg.connect(dsn) as connection:
                connection.execute(CLAIM, [queue.name])
                left = "SELECT count(*) FROM pollwise.limit_circle WHERE queue = %s"
                assert connection.execute(left, [queue.name]).fetchone() == (0,)
                await asyncio.wait_for(queue.put(NewJob("job", limit_group="a")), 60)
                connection.commit()
            assert len(await queue.claim("w", 9, 60)) == 1

    run(main)


def test_a_settlement_that_is_not_committed_keeps_its_group(dsn: str) -> None:
    async def main() -> None:
        async with fresh(dsn) as queue:
            await queue.limits.set("job", Concurrency(1, by="tenant"))
            await queue.put([NewJob("job", limit_group="a") for _ in range(2)])
            [claim] = await queue.claim("w", 9, 60)
            assert await queue.claim("w", 9, 60) == []
            with psycopg.connect(dsn) as connection:
                connection.execute("DELETE FROM pollwise.jobs WHERE seq = %s", [int(claim.job.id)])
                assert await queue.claim("w", 9, 60) == []
                connection.commit()
            assert len(await queue.claim("w", 9, 60)) == 1

    run(main)


# Upkeep


def test_rows_of_groups_are_pruned_when_their_rate_is_unused(dsn: str, postgres: Postgres) -> None:
    async def main() -> None:
        async with fresh(dsn) as queue:

            def rows() -> int:
                [(count,)] = postgres.execute(
                    "SELECT (SELECT count(*) FROM pollwise.limit_groups WHERE queue = %s)"
                    " + (SELECT count(*) FROM pollwise.limit_turns WHERE queue = %s)",
                    [queue.name, queue.name],
                )
                return int(count)

            await queue.limits.set("job", Rate(1, "1h", by="tenant"))
            await queue.put(of_groups(8))
            assert len(await queue.claim("w", 9, 60)) == 8
            await queue.prune()
            assert rows() == 9, "they are in use"
            postgres.execute(
                "UPDATE pollwise.limit_groups SET full_at = 1"
                " WHERE queue = %s AND limit_group < 'c' RETURNING 1",
                [queue.name],
            )
            await queue.prune()  # the last one came to the end, so this begins again
            await queue.prune()
            assert rows() == 7
            await queue.limits.remove("job")
            await queue.prune()
            assert rows() == 6, "nothing is left of the kind itself"

    run(main)


def test_groups_of_kinds_without_limits_write_no_rows(dsn: str, postgres: Postgres) -> None:
    async def main() -> None:
        async with fresh(dsn) as queue:

            def rows() -> int:
                [(count,)] = postgres.execute(
                    "SELECT count(*) FROM pollwise.limit_circle WHERE queue = %s", [queue.name]
                )
                return int(count)

            await queue.put(of_groups(8))
            await queue.settle([Settlement.retry(each) for each in await queue.claim("w", 4, 60)])
            assert rows() == 0
            await queue.limits.set("job", Concurrency(50))
            await queue.put(of_groups(8))
            await queue.settle([Settlement.retry(each) for each in await queue.claim("w", 4, 60)])
            assert rows() == 0, "its groups take no turns"
            await queue.limits.set("job", Concurrency(1, by="tenant"))
            assert len(await queue.claim("w", 9, 60)) == 8, "they enter when the limits are set"
            await queue.put(of_groups(8))
            await queue.prune()
            assert rows() == 8, "they are in use"
            await queue.limits.remove("job")
            await queue.prune()
            assert rows() == 0

    run(main)


def test_a_clock_that_was_put_back_holds_nothing_longer(dsn: str, postgres: Postgres) -> None:
    async def main() -> None:
        async with fresh(dsn) as queue:
            await queue.limits.set("job", [Rate(1, "1m"), Rate(1, "2m", by="tenant")])
            await queue.put(of_groups(8))
            assert len(await queue.claim("w", 9, 60)) == 1
            for table in ("limit_turns", "limit_groups"):
                postgres.execute(
                    f"UPDATE pollwise.{table} SET full_at = full_at + 9000 WHERE queue = %s"
                    " RETURNING 1",
                    [queue.name],
                )
            assert await queue.claim("w", 9, 60) == []
            await queue.prune()
            for table, most in (("limit_turns", 60), ("limit_groups", 120)):
                [(left,)] = postgres.execute(
                    f"SELECT full_at - extract(epoch FROM clock_timestamp()) FROM pollwise.{table}"
                    " WHERE queue = %s",
                    [queue.name],
                )
                assert left <= most, table

    run(main)


@pytest.mark.parametrize(
    "value",
    ["[]", "no JSON", '{"most": 0}', '{"most": "x"}', '{"rate": [1]}', '{"weights": {"a": -1}}'],
)
def test_a_note_that_is_not_understood_limits_nothing(dsn: str, value: str) -> None:
    async def main() -> None:
        async with fresh(dsn) as queue:
            await queue._write_note(NewNote("limits", "job", value))
            await queue.put(of_groups(8))
            assert len(await queue.claim("w", 9, 60)) == 8

    run(main)


def test_tables_without_limits_refuse_them_and_do_the_rest(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers go on with the tables of version 9, and say what is needed for limits."""
    older = [each for each in migrations("pollwise.queues.postgres.tables") if each[0] < 10]
    dsn = postgres.create_database("version_9")

    async def main() -> None:
        async with PostgresQueue(dsn) as queue:
            with monkeypatch.context() as patched:
                patched.setattr("pollwise.storage.postgres.schema.migrations", lambda _: older)
                await queue.migrate()
            with pytest.raises(SchemaError, match="pollwise queue migrate"):
                await queue.limits.set("job", Concurrency(1))
            assert await queue.limits.list() == []
            await queue.put(of_groups(2))
            claims = await queue.claim("w", 9, 60)
            await queue.settle([Settlement.retry(claim) for claim in claims])
            await queue.prune()
            await queue.migrate()
            await queue.limits.set("job", Concurrency(1))
            assert len(await queue.claim("w", 9, 60)) == 1

    run(main)


@pytest.mark.parametrize("limit", [Concurrency(2), Concurrency(2, by="tenant")])
def test_a_late_renewal_needs_room(server: Postgres, limit: Concurrency) -> None:
    """A lease that ran out counts no more; others may have used its room meanwhile."""
    clock, dsn = VirtualClock(), migrated(server.dsn())

    async def main() -> None:
        async with PostgresQueue(dsn, next(names), clock=clock) as queue:
            await queue.limits.set("job", [limit])
            await queue.put([NewJob("job", n, limit_group="a") for n in range(2)])
            late = await queue.claim("late", 2, 10)
            await clock.advance(11)
            assert not (await queue.renew(late, 10)).lost, "nobody used the room"
            await clock.advance(11)
            await queue.put([NewJob("job", n, limit_group="a", priority=9) for n in range(2)])
            others = await queue.claim("w", 2, 60)
            assert {each.job.priority for each in others} == {9}
            assert len((await queue.renew(late, 10)).lost) == 2
            await queue.settle([Settlement.done(others[0])])
            assert (await queue.renew(late, 60)).lost == (late[1].job.id,), "room for one"
            assert not await queue.claim("w", 2, 60), "it counts again"
            await queue.settle([Settlement.done(late[0]), Settlement.done(others[1])])
            await queue.limits.remove("job")
            assert not (await queue.renew(late[1:], 60)).lost, "without limits it is taken back"

    clock.run(main())


def test_a_pass_over_jobs_without_a_group_ends(server: Postgres) -> None:
    """A claim is to be repeated at once until all have one, and then not again."""
    clock, dsn = VirtualClock(), migrated(server.create_database(f"pass{server.port}"))
    again = (
        b"SELECT until FROM pollwise.claim($1, 'w', 5, 60, ARRAY['job'], false, false, NULL, NULL,"
        b" $2) WHERE seq IS NULL"
    )

    async def main() -> None:
        async with PostgresQueue(dsn, next(names), clock=clock) as queue:
            await queue.put([NewJob("job") for _ in range(2500)])
            await queue.limits.set("job", Concurrency(1, by="tenant"))

            async def claim() -> float:
                params = [queue.name.encode(), queue.database.now()]
                [(until,)] = await queue.database.connections.rows(again, params)
                return float(until)

            assert [await claim() for _ in range(7)] == [0, 0, 0, 0, 60, 60, 60]
            await clock.advance(11)
            assert [await claim() for _ in range(2)] == [49, 49]

    clock.run(main())
