"""PostgresQueue when answers are lost and servers stand still, restart or only read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from pollwise.errors import LeaseLost, StoreUnavailable
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.runtime.jobs import NewJob, Settlement
from tests.queues.benches import migrated
from tests.queues.postgres.kit import drain, fresh, run
from tests.support.kit import each_way
from tests.support.proxy import Proxy
from tests.support.servers import OwnPostgres, PgBouncer, Postgres


@asynccontextmanager
async def behind_a_proxy(
    dsn: str, postgres: Postgres
) -> AsyncIterator[tuple[PostgresQueue, Proxy]]:
    with Proxy(postgres.port) as proxy:
        async with fresh(proxy.through(dsn), connections=1) as queue:
            yield queue, proxy


def test_a_settlement_whose_answer_is_lost_counts_once(dsn: str, postgres: Postgres) -> None:
    async def main() -> None:
        async with behind_a_proxy(dsn, postgres) as (queue, proxy):
            await queue.put([NewJob("job", n) for n in range(5)])
            claims = await queue.claim("w", 10, 60)
            ways = [*each_way(claims[:4]), Settlement.cancelled(claims[4])]
            proxy.lose_answer(to=b"settle")
            await queue.settle(ways)
            views = [await queue.get(claim.job.id) for claim in claims]
            states = [view and (view.state, view.job.attempt) for view in views]
            assert states == [None, ("ready", 1), ("dead", 1), ("ready", 0), None]
            with pytest.raises(LeaseLost):
                await queue.settle(ways)

    run(main)


def test_settling_again_after_all_answers_were_lost_succeeds(dsn: str, postgres: Postgres) -> None:
    async def main() -> None:
        async with behind_a_proxy(dsn, postgres) as (queue, proxy):
            await queue.put([NewJob("job", n) for n in range(4)])
            ways = each_way(await queue.claim("w", 10, 60))
            proxy.lose_answer(to=b"settle")
            proxy.lose_answer(to=b"settle")
            with pytest.raises(StoreUnavailable):
                await queue.settle(ways)
            await queue.settle(ways[:1])  # in batches as they come
            await queue.settle(ways[1:])
            stats = await queue.stats()
            assert (stats.ready, stats.dead, stats.leased) == (2, 1, 0)
            with pytest.raises(LeaseLost) as lost:
                await queue.settle(ways)
            assert len(lost.value.lost) == 4, "nothing is in doubt any more"

    run(main)


def test_a_settlement_that_was_lost_is_still_refused_when_another_has_the_job(
    dsn: str, postgres: Postgres
) -> None:
    async def main() -> None:
        async with behind_a_proxy(dsn, postgres) as (queue, proxy):
            [job_id] = await queue.put(NewJob("job"))
            [old] = await queue.claim("w", 1, 0.001)
            proxy.lose_request(containing=b"settle")
            async with PostgresQueue(dsn, queue.name) as other:
                while not (new := await other.claim("v", 1, 60)):
                    pass
                with pytest.raises(LeaseLost) as caught:
                    await queue.settle([Settlement.retry(old)])
                assert caught.value.lost == (job_id,)
                await other.settle([Settlement.done(new[0])])

    run(main)


def test_a_server_that_stands_still_is_not_waited_for(own_postgres: OwnPostgres) -> None:
    server = own_postgres()
    dsn = migrated(server.dsn())

    async def main() -> None:
        queue = PostgresQueue(dsn, timeout="200ms")
        await queue.put(NewJob("job", 1))
        with server.paused():
            for call in (queue.put(NewJob("job", 2)), queue.claim("w", 1, 60), queue.stats()):
                with pytest.raises(StoreUnavailable, match=r"within timeout = 0\.2 s"):
                    await call
            await queue.close()
        async with PostgresQueue(dsn) as again:
            assert (await again.stats()).ready in (1, 2)

    run(main)


def test_a_restart_is_survived_without_an_error_once_it_is_over(own_postgres: OwnPostgres) -> None:
    server = own_postgres()
    dsn = migrated(server.dsn())

    async def main() -> None:
        async with PostgresQueue(dsn) as queue:
            await asyncio.gather(*(queue.put(NewJob("job", n)) for n in range(8)))
            server.restart()
            await asyncio.sleep(0)
            assert sorted(await drain(queue)) == list(range(8))
            server.stop()
            with pytest.raises(StoreUnavailable, match="cannot be reached"):
                await queue.stats()
            server.start()
            await queue.stats()

    run(main)


def test_a_standby_is_unavailable_not_wrong(own_postgres: OwnPostgres) -> None:
    primary = own_postgres()
    migrated(primary.dsn())
    standby = primary.standby()

    async def main() -> None:
        async with PostgresQueue(standby.dsn()) as queue:
            with pytest.raises(StoreUnavailable, match="read-only"):
                await queue.put(NewJob("job"))
            await asyncio.to_thread(standby.promote)
            await queue.put(NewJob("job", 1))
            assert await drain(queue) == [1]

    run(main)


def test_a_lock_of_others_is_waited_for_until_the_timeout(dsn: str) -> None:
    async def main() -> None:
        async with fresh(f"{dsn}?options=-c%20statement_timeout%3D100") as queue:
            await queue.put(NewJob("job"))
            with psycopg.connect(dsn) as rude:
                rude.execute("LOCK TABLE pollwise.jobs")
                with pytest.raises(StoreUnavailable, match="statement_timeout"):
                    await queue.put(NewJob("job"))
            await queue.put(NewJob("job"))

    run(main)


def test_through_pgbouncer(pgbouncer: PgBouncer, dsn: str) -> None:
    async def main() -> None:
        async with fresh(pgbouncer.dsn()) as queue:
            for turn in range(10):
                calls = (queue.put(NewJob("job", n, key="k")) for n in range(10))
                await asyncio.gather(*calls)
                assert sorted(await drain(queue)) == list(range(10)), turn

    run(main)
