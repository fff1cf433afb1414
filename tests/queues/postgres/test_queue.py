"""PostgresQueue beyond the contract: the user's own transaction, clocks, loops, connections."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from pollwise.errors import ConfigError, UniqueConflict
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.jobs import NewJob, Settlement
from tests.queues.postgres.kit import drain, fresh, names, queue_at, run
from tests.support.servers import Postgres

# The user's own transaction


@pytest.mark.parametrize("plain", [True, False])
def test_a_put_joins_the_users_transaction(dsn: str, plain: bool) -> None:
    async def main() -> None:
        async with fresh(dsn) as queue:
            if plain:
                with psycopg.connect(dsn) as connection:
                    await queue.put(NewJob("job", "rolled back", key="k"), connection=connection)
                    connection.rollback()
                    [job_id] = await queue.put(NewJob("job", 1, key="k"), connection=connection)
                    assert await queue.get(job_id) is None, "seen before the commit"
                    await queue.put(NewJob("job", 2, key="k"))  # does not wait for it
                    connection.commit()
            else:
                async with await psycopg.AsyncConnection.connect(dsn) as conn:
                    await queue.put(NewJob("job", "rolled back", key="k"), connection=conn)
                    await conn.rollback()
                    [job_id] = await queue.put(NewJob("job", 1, key="k"), connection=conn)
                    assert await queue.get(job_id) is None, "seen before the commit"
                    await queue.put(NewJob("job", 2, key="k"))
                    await conn.commit()
            assert await drain(queue) == [1, 2]

    run(main)


def test_headers_travel_with_a_put_in_the_users_transaction(dsn: str) -> None:
    headers = {"traceparent": "00-1", 'ü "☃"': "\\ {%s} $1"}

    async def main() -> None:
        async with fresh(dsn) as queue:
            async with await psycopg.AsyncConnection.connect(dsn) as conn:
                jobs = [NewJob("job", 1, headers=headers), NewJob("job", 2)]
                await queue.put(jobs, connection=conn)
                await queue.put(NewJob("job", 3, headers=headers, unique="u"), connection=conn)
                await conn.commit()
            claims = await queue.claim("w", 10, 60)
            assert [claim.job.headers for claim in claims] == [headers, {}, headers]

    run(main)


def test_a_unique_conflict_leaves_the_users_transaction_alive(dsn: str) -> None:
    async def main() -> None:
        async with fresh(dsn) as queue:
            await queue.put(NewJob("job", {"a": 1, "b": 2}, unique="u"))
            async with await psycopg.AsyncConnection.connect(dsn) as conn:
                with pytest.raises(UniqueConflict, match="'u'"):
                    jobs = [NewJob("job", 1), NewJob("job", 2, unique="u")]
                    await queue.put(jobs, connection=conn)
                same = [NewJob("job", {"b": 2, "a": 1}, unique="u"), NewJob("job", 3)]
                await queue.put(same, connection=conn)
                await conn.commit()
            assert await drain(queue) == [{"a": 1, "b": 2}, 3]

    run(main)


def test_an_open_transaction_holds_nobody_up(dsn: str) -> None:
    async def main() -> None:
        async with fresh(dsn, timeout="5s") as queue:
            await queue.put([NewJob("job", n, key="k") for n in range(3)])
            async with await psycopg.AsyncConnection.connect(dsn) as conn:
                await queue.put(NewJob("job", "mine", key="k"), connection=conn)
                assert await drain(queue) == [0, 1, 2]
                await queue.put(NewJob("job", 4, key="k"))
                [claim] = await queue.claim("w", 10, 60)
                await conn.commit()
                assert await queue.claim("w", 10, 60) == [], "one of the key runs"
                await queue.settle([Settlement.done(claim)])
            assert await drain(queue) == ["mine"]

    run(main)


def test_only_a_psycopg_connection_will_do(dsn: str) -> None:
    async def main() -> None:
        async with fresh(dsn) as queue:
            with pytest.raises(ConfigError, match="connection = int"):
                await queue.put(NewJob("job"), connection=7)

    run(main)


# Clocks, loops and connections


def test_the_servers_clock_decides(dsn: str) -> None:
    class Skewed(VirtualClock):
        def epoch(self) -> float:
            return 0.0

        def imposed(self) -> None:
            return None

    async def main() -> None:
        name = next(names)
        async with (
            fresh(dsn, name=name, clock=Skewed()) as early,
            fresh(dsn, name=name) as right,
        ):
            await early.put([NewJob("job", "now"), NewJob("job", "later", delay=60)])
            [claim] = await right.claim("w", 10, 60)
            assert claim.job.payload == "now"
            assert await early.claim("w", 10, 60) == []
            assert (await early.stats()).leased == 1

    run(main)


def test_a_queue_outlives_an_event_loop(dsn: str) -> None:
    queue = queue_at(dsn)

    async def main(turn: int) -> None:
        await queue.put(NewJob("job", turn))
        assert await drain(queue) == [turn]

    for turn in range(3):
        asyncio.run(main(turn))
    asyncio.run(queue.close())


def test_more_calls_than_connections_take_turns(dsn: str, postgres: Postgres) -> None:
    async def main() -> None:
        async with fresh(f"{dsn}?application_name=turns", connections=2) as queue:
            await asyncio.gather(*(queue.put(NewJob("job", n)) for n in range(50)))
            assert postgres.sessions().count("turns") == 2
            assert sorted(await drain(queue)) == list(range(50))

    run(main)
    assert "turns" not in postgres.sessions()
