"""Keys on Postgres, race by race: two transactions in each order that could go wrong.

One side is a plain connection whose transaction stays open; the other side is the queue. Whether
the queue waits is seen by a short look, which can only let a mistake pass, never fail a good run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.runtime.jobs import Claim, NewJob, Settlement
from tests.queues.postgres.kit import names
from tests.support.servers import Postgres

#: How long a look takes whether somebody waits, in seconds.
LOOK = 0.15


class Rival:
    """Another process in the middle of a call: its transaction is open until `commit`."""

    def __init__(self, queue: PostgresQueue, connection: psycopg.AsyncConnection[Any]) -> None:
        self._queue = queue
        self._connection = connection

    async def put(self, payload: int, key: str = "k", *, alone: bool = True) -> None:
        await self._connection.execute(
            "SELECT * FROM pollwise.put(%s, ARRAY['job'], ARRAY[%s], NULL, NULL, NULL, ARRAY[%s],"
            " NULL, NULL, %s, NULL, NULL, NULL)",
            [self._queue.name, str(payload), key, alone],
        )

    async def claim(self, limit: int = 10) -> list[int]:
        rows = await self._connection.execute(
            "SELECT payload::integer FROM pollwise.claim(%s, 'rival', %s, 60, ARRAY['job'],"
            " false, NULL, NULL, NULL) WHERE seq IS NOT NULL",
            [self._queue.name, limit],
        )
        return [payload for (payload,) in await rows.fetchall()]

    async def settle(self, claims: Iterable[Claim], action: int = 0) -> None:
        batch = list(claims)
        await self._connection.execute(
            "SELECT pollwise.settle(%s, %s, %s, %s, %s, NULL, NULL, true, false, NULL)",
            [
                self._queue.name,
                [int(claim.job.id) for claim in batch],
                [claim.token for claim in batch],
                [action for _ in batch],
                [0.0 for _ in batch],
            ],
        )

    async def cancel(self, job_id: str) -> None:
        await self._connection.execute(
            "SELECT * FROM pollwise.cancel(%s, ARRAY[%s]::bigint[], false, NULL)",
            [self._queue.name, int(job_id)],
        )

    async def lock(self, job_id: str) -> None:
        await self._connection.execute(
            "SELECT 1 FROM pollwise.jobs WHERE seq = %s FOR UPDATE", [int(job_id)]
        )

    async def commit(self) -> None:
        await self._connection.commit()


Main = Callable[[PostgresQueue, Rival], Coroutine[Any, Any, None]]


@pytest.fixture
def race(dsn: str) -> Callable[[Main], None]:
    @asynccontextmanager
    async def both() -> AsyncIterator[tuple[PostgresQueue, Rival]]:
        async with PostgresQueue(dsn, next(names), timeout="10s") as queue:
            async with await psycopg.AsyncConnection.connect(dsn) as connection:
                yield queue, Rival(queue, connection)

    async def run(main: Main) -> None:
        async with both() as (queue, rival):
            await main(queue, rival)

    return lambda main: asyncio.run(run(main))


async def waits(call: asyncio.Task[Any]) -> bool:
    done, _ = await asyncio.wait([call], timeout=LOOK)
    return not done


async def states(queue: PostgresQueue) -> dict[Any, str]:
    return {view.job.payload: view.state for view in await queue.jobs()}


async def drained(queue: PostgresQueue) -> list[Any]:
    """Run all there is, and see that no more than one of the key runs at a time."""
    found = []
    while claims := await queue.claim("w", 10, 60):
        assert len(claims) == 1
        found.append(claims[0].job.payload)
        await queue.settle([Settlement.done(claims[0])])
    return found


def test_ending_a_job_waits_for_a_put_behind_it(race: Callable[[Main], None]) -> None:
    async def main(queue: PostgresQueue, rival: Rival) -> None:
        await queue.put(NewJob("job", 1, key="k"))
        claims = await queue.claim("w", 1, 60)
        await rival.put(2)
        for action in (Settlement.retry(claims[0]), None):
            if action is not None:  # what does not end the job waits for nobody
                await queue.settle([action])
                claims = await queue.claim("w", 1, 60)
                continue
            ending = asyncio.ensure_future(queue.settle([Settlement.done(claims[0])]))
            assert await waits(ending)
            await rival.commit()
            await ending
        assert await states(queue) == {2: "ready"}
        assert await drained(queue) == [2]

    race(main)


@pytest.mark.parametrize("end", [Settlement.done, lambda claim: Settlement.dead(claim, "broken")])
def test_dead_or_done_a_put_behind_it_is_seen(
    race: Callable[[Main], None], end: Callable[[Claim], Settlement]
) -> None:
    async def main(queue: PostgresQueue, rival: Rival) -> None:
        await queue.put(NewJob("job", 1, key="k"))
        claims = await queue.claim("w", 1, 60)
        await rival.put(2)
        ending = asyncio.ensure_future(queue.settle([end(claims[0])]))
        assert await waits(ending)
        await rival.commit()
        await ending
        assert (await states(queue))[2] == "ready"

    race(main)


def test_a_put_behind_a_job_that_is_cancelled_is_seen(race: Callable[[Main], None]) -> None:
    async def main(queue: PostgresQueue, rival: Rival) -> None:
        [first] = await queue.put(NewJob("job", 1, key="k"))
        await rival.put(2)
        ending = asyncio.ensure_future(queue.cancel([first]))
        assert await waits(ending)
        await rival.commit()
        assert await ending == {first: "cancelled"}
        assert await states(queue) == {2: "ready"}

    race(main)


@pytest.mark.parametrize("way", ["retry", "lapse"])
def test_a_put_behind_a_job_that_is_to_cancel_is_seen(
    race: Callable[[Main], None], way: str
) -> None:
    async def main(queue: PostgresQueue, rival: Rival) -> None:
        [first] = await queue.put(NewJob("job", 1, key="k"))
        [claim] = await queue.claim("w", 1, 0.5 if way == "lapse" else 60)
        assert await queue.cancel([first]) == {first: "leased"}
        await rival.put(2)
        if way == "retry":
            ending: asyncio.Task[Any] = asyncio.create_task(queue.settle([Settlement.retry(claim)]))
        else:
            while (info := await queue.get(first)) is not None and info.state == "leased":
                await asyncio.sleep(0.01)  # real time: the lease runs out by the server's clock
            ending = asyncio.create_task(queue.claim("w", 1, 60, kinds=["none"]))
        assert await waits(ending)
        await rival.commit()
        await ending
        assert await states(queue) == {2: "ready"}

    race(main)


def test_a_retry_beside_a_request_to_cancel_ends_the_job(race: Callable[[Main], None]) -> None:
    async def main(queue: PostgresQueue, rival: Rival) -> None:
        [first, _] = await queue.put([NewJob("job", n, key="k") for n in (1, 2)])
        claims = await queue.claim("w", 1, 60)
        await rival.cancel(first)
        ending = asyncio.ensure_future(queue.settle([Settlement.retry(claims[0])]))
        assert await waits(ending)
        await rival.commit()
        await ending
        assert await states(queue) == {2: "ready"}

    race(main)


def test_a_blocked_job_that_is_freed_meanwhile_is_cancelled(race: Callable[[Main], None]) -> None:
    async def main(queue: PostgresQueue, rival: Rival) -> None:
        [_, second, third] = await queue.put([NewJob("job", n, key="k") for n in (1, 2, 3)])
        await rival.settle(await queue.claim("w", 1, 60))  # frees the second
        ending = asyncio.ensure_future(queue.cancel([second]))
        assert await waits(ending)
        await rival.commit()
        assert await ending == {second: "cancelled"}
        assert [info.job.id for info in await queue.jobs("ready")] == [third]

    race(main)


@pytest.mark.parametrize("way", ["settle", "cancel"])
def test_the_end_of_a_front_frees_the_job_behind_one_that_is_cancelled_meanwhile(
    race: Callable[[Main], None], way: str
) -> None:
    async def main(queue: PostgresQueue, rival: Rival) -> None:
        [first, second, _, _] = await queue.put([NewJob("job", n, key="k") for n in (1, 2, 3, 4)])
        if way == "settle":
            [claim] = await queue.claim("w", 1, 60)
            await rival.cancel(second)
            ending: asyncio.Task[Any] = asyncio.create_task(queue.settle([Settlement.done(claim)]))
        else:
            await rival.cancel(second)
            ending = asyncio.create_task(queue.cancel([first]))
        assert await waits(ending)
        await rival.commit()
        await ending
        assert await states(queue) == {3: "ready", 4: "blocked"}

    race(main)


def test_a_settlement_beside_a_cancel_of_its_whole_key_is_no_deadlock(
    race: Callable[[Main], None], postgres: Postgres
) -> None:
    async def main(queue: PostgresQueue, rival: Rival) -> None:
        [first] = await queue.put(NewJob("job", 1, key="k"))
        await queue.settle([Settlement.dead(c, "broken") for c in await queue.claim("w", 1, 60)])
        [second] = await queue.put(NewJob("job", 2, key="k"))
        await queue.retry()  # blocked behind a job that was put later
        [head] = await queue.claim("w", 1, 60)
        assert await states(queue) == {1: "blocked", 2: "leased"}
        before = postgres.log().count("deadlock detected")
        await rival.lock(first)
        cancelling = asyncio.ensure_future(queue.cancel([first, second]))
        assert await waits(cancelling)
        settling = asyncio.ensure_future(queue.settle([Settlement.done(head)]))
        assert await waits(settling)
        await rival.commit()
        assert await cancelling == {first: "cancelled", second: "leased"}
        await settling
        assert postgres.log().count("deadlock detected") == before
        assert await states(queue) == {}

    race(main)


def test_a_put_does_not_wait_for_the_end_of_the_job_before(race: Callable[[Main], None]) -> None:
    async def main(queue: PostgresQueue, rival: Rival) -> None:
        await queue.put([NewJob("job", n, key="k") for n in (1, 2)])
        claims = await queue.claim("w", 1, 60)
        await rival.settle(claims)
        await queue.put(NewJob("job", 3, key="k"))
        assert await states(queue) == {1: "leased", 2: "blocked", 3: "ready"}
        assert await queue.claim("w", 10, 60) == [], "1 may be leased still"
        await rival.commit()
        assert await drained(queue) == [2, 3]

    race(main)


def test_a_put_and_a_claim_do_not_wait_for_each_other(race: Callable[[Main], None]) -> None:
    async def main(queue: PostgresQueue, rival: Rival) -> None:
        await queue.put(NewJob("job", 1, key="k"))
        assert await rival.claim() == [1]
        await queue.put(NewJob("job", 2, key="k"))
        assert (await states(queue))[2] == "blocked"
        await rival.commit()
        await rival.put(3)
        assert await queue.claim("w", 10, 60) == []
        await rival.commit()
        assert await states(queue) == {1: "leased", 2: "blocked", 3: "blocked"}

    race(main)


def test_a_claim_takes_a_job_behind_which_somebody_puts(race: Callable[[Main], None]) -> None:
    async def main(queue: PostgresQueue, rival: Rival) -> None:
        await queue.put(NewJob("job", 1, key="k"))
        await rival.put(2)
        claims = await queue.claim("w", 10, 60)
        assert [claim.job.payload for claim in claims] == [1]
        await rival.commit()
        await queue.settle([Settlement.done(claims[0])])
        assert await drained(queue) == [2]

    race(main)


def test_a_late_commit_of_an_earlier_job_does_not_run_beside(race: Callable[[Main], None]) -> None:
    async def main(queue: PostgresQueue, rival: Rival) -> None:
        await rival.put(1, alone=False)  # gets the lower number, and commits later
        await queue.put([NewJob("job", n, key="k") for n in (2, 3)])
        [claim] = await queue.claim("w", 10, 60)
        assert claim.job.payload == 2
        await rival.commit()
        assert await queue.claim("w", 10, 60) == []
        assert await states(queue) == {1: "blocked", 2: "leased", 3: "blocked"}
        await queue.settle([Settlement.done(claim)])
        assert await drained(queue) == [1, 3]

    race(main)


def test_two_claims_at_once_do_not_lease_two_of_a_key(race: Callable[[Main], None]) -> None:
    async def main(queue: PostgresQueue, rival: Rival) -> None:
        async with await psycopg.AsyncConnection.connect(queue.database.conninfo) as late:
            other = Rival(queue, late)
            await other.put(1, alone=False)
            await rival.put(2, alone=False)
            await rival.commit()
            assert await rival.claim() == [2]  # in a transaction that stays open
            await other.commit()
            assert await queue.claim("w", 10, 60) == [], "2 may be leased by now"
            await rival.commit()
            assert await queue.claim("w", 10, 60) == []
            assert await states(queue) == {1: "blocked", 2: "leased"}

    race(main)


def test_of_two_calls_that_end_a_front_one_frees_the_next(
    race: Callable[[Main], None],
) -> None:
    async def main(queue: PostgresQueue, rival: Rival) -> None:
        await queue.put(NewJob("job", 0, key="k"))
        [first] = await queue.claim("w", 1, 60)
        await queue.settle([Settlement.give_back(first)])  # uses the front's number
        await rival.put(1, alone=False)
        [one] = await queue.claim("w", 1, 0.001)
        await asyncio.sleep(0.002)  # real time: the lease runs out by the server's clock
        await rival.commit()
        await queue.put(NewJob("job", 2, key="k"))
        await queue.claim("other", 1, 60, kinds=["none"])  # makes ready what ran out
        assert await states(queue) == {0: "ready", 1: "ready", 2: "blocked"}
        # 0 ends by its old token, 1 is given a lease by hand: the front ends from both sides.
        dsn = queue.database.conninfo
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as hand:
            rows = await hand.execute(
                "UPDATE pollwise.jobs SET state = 3, token = 7, since = since + 60"
                " WHERE queue = %s AND payload = '1' RETURNING seq",
                [queue.name],
            )
            [(seq,)] = await rows.fetchall()
        two = Claim(one.job.__class__(str(seq), "", "job", 1, "k", 0, 1, 0.0, 0.0, None), 7, "w", 0)
        await rival.settle([one])
        ending = asyncio.ensure_future(queue.settle([Settlement.done(two)]))
        assert await waits(ending)
        await rival.commit()
        await ending
        assert await states(queue) == {2: "ready"}

    race(main)


def test_an_open_transaction_of_a_user_holds_no_key_up(race: Callable[[Main], None]) -> None:
    async def main(queue: PostgresQueue, rival: Rival) -> None:
        await queue.put(NewJob("job", 1, key="k"))
        await rival.put(2, alone=False)
        assert await drained(queue) == [1]
        await queue.put(NewJob("job", 3, key="k"))
        assert await drained(queue) == [3]
        await rival.commit()
        assert await drained(queue) == [2]

    race(main)


def test_a_flood_of_one_key_is_sorted_out(race: Callable[[Main], None]) -> None:
    async def main(queue: PostgresQueue, rival: Rival) -> None:
        for number in range(100):  # each of them at the front
            await rival.put(number, alone=False)
        await rival.commit()
        await queue.put(NewJob("job", "other", key="l"))
        claims = await queue.claim("w", 10, 60)  # looks through so many at a time, and no more
        claims += await queue.claim("w", 10, 60)
        assert [claim.job.payload for claim in claims] == [0, "other"]
        counts = await queue.stats()
        assert (counts.ready, counts.blocked, counts.leased) == (0, 99, 2)
        await queue.settle([Settlement.done(claim) for claim in claims])
        assert await drained(queue) == list(range(1, 100))

    race(main)


def test_an_expired_lease_is_not_taken_back_beside_another(race: Callable[[Main], None]) -> None:
    async def main(queue: PostgresQueue, rival: Rival) -> None:
        await rival.put(1, alone=False)
        await queue.put(NewJob("job", 2, key="k"))
        [two] = await queue.claim("w", 1, 0.001)
        await asyncio.sleep(0.002)  # real time: the lease runs out by the server's clock
        await rival.commit()
        [one] = await queue.claim("v", 10, 60)
        assert one.job.payload == 1, "of the two at the front, the first"
        assert (await queue.renew([two], 60)).lost == (two.job.id,)
        await queue.settle([Settlement.done(one)])
        await queue.settle([Settlement.done(two)])  # nobody else has had it
        assert await queue.jobs() == []

    race(main)
