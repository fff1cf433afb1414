"""Hints between workers on real servers: proven, lost, healed; and jobs are found all the same."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.runtime.clock import Clock, VirtualClock
from pollwise.runtime.events import HintsLost, HintsProven, PollFailed, PollFinished
from tests.queues.benches import migrated
from tests.support.kit import until, virtually
from tests.support.proxy import Proxy
from tests.support.servers import OwnPostgres, OwnRedis, PgBouncer, Postgres, Redis
from tests.worker.bench import STORES, Fleet, fleet_of, server_of

#: Real seconds within which what is waited for has to happen.
PATIENCE = 20.0


def hasty(fleet: Fleet, *which: int) -> None:
    """Have these channels proven often; the others are proven once a minute, as is the rule."""
    for n in which:
        channel: Any = fleet.queues[n].hints()
        channel._check_every, channel._check_timeout = 0.5, 0.4


def all_have(fleet: Fleet, kind: type[Any], count: int) -> bool:
    return all(len(seen.of(kind)) >= count for seen in fleet.seen)


async def proven(fleet: Fleet, times: int = 1) -> None:
    await until(lambda: all_have(fleet, HintsProven, times), PATIENCE)


# The way of hints alone


def test_a_listening_session_that_hangs(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is open and says nothing: the first who notices gives it up for all."""
    monkeypatch.setattr("pollwise.storage.postgres.line.PATIENCE", 0.5)
    dsn = migrated(postgres.dsn())

    async def main() -> None:
        fleet = Fleet(dsn, Clock(), listen=f"{dsn}?application_name=hanging")
        for _ in range(3):
            fleet.hire(dsn)
        hasty(fleet, 0)
        async with fleet.at_work():
            await proven(fleet)
            [(pid,)] = postgres.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'hanging'"
            )
            os.kill(pid, signal.SIGSTOP)
            try:
                await proven(fleet, 2)
            finally:
                os.kill(pid, signal.SIGCONT)
        assert len(fleet.of(HintsLost)) == 3, "told once each"
        assert not fleet.of(PollFailed)

    asyncio.run(main())


def test_a_subscription_that_hangs(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pollwise.storage.redis.line.SUBSCRIBE_TIMEOUT", 0.5)

    async def main(proxy: Proxy) -> None:
        fleet = Fleet(redis.url(), Clock())
        for _ in range(3):
            fleet.hire(proxy.through(redis.url()))
        async with fleet.at_work():
            await proven(fleet)
            proxy.lose_answer(to=b"SUBSCRIBE", fate="silence")
            fourth = Fleet(redis.url(), Clock())
            fourth.hire(proxy.through(redis.url()))
            async with fourth.at_work():  # joins their connection, which falls silent
                await proven(fleet, 2)
                await proven(fourth)
        assert len(fleet.of(HintsLost)) == 3, "told once each"
        assert not fleet.of(PollFailed)

    with Proxy(redis.port) as proxy:
        asyncio.run(main(proxy))


def test_behind_a_pooler_in_transaction_mode(pgbouncer: PgBouncer, postgres: Postgres) -> None:
    """Told once what to do, and jobs are found by the strategy's own max_interval."""
    direct = migrated(postgres.dsn())

    async def main(listen: str | None) -> Fleet:
        fleet = Fleet(pgbouncer.dsn(), Clock(), took=0.0, listen=listen)
        for _ in range(2):
            fleet.hire(pgbouncer.dsn())
        hasty(fleet, 0, 1)
        async with fleet.at_work(polling=Adaptive("20ms", "300ms")):
            await until(lambda: all_have(fleet, HintsProven if listen else HintsLost, 1), PATIENCE)
            for _ in range(3):
                await fleet.put(5)
                await fleet.all_done(PATIENCE)
            await fleet.check()
        return fleet

    fleet = asyncio.run(main(None))
    assert len(fleet.of(HintsLost)) == 2
    assert all("listen" in event.advice for event in fleet.of(HintsLost))
    assert not fleet.of(HintsProven)
    assert max(event.delay for event in fleet.of(PollFinished)) <= 0.3

    fleet = asyncio.run(main(direct))
    assert len(fleet.of(HintsProven)) == 2
    assert not fleet.of(HintsLost)
    assert max(event.delay for event in fleet.of(PollFinished)) > 30, "the long interval is used"


# With the server


@pytest.mark.parametrize("store", STORES)
def test_hints_come_back_after_a_restart(
    store: str, own_postgres: OwnPostgres, own_redis: OwnRedis
) -> None:
    server = server_of(store, own_postgres, own_redis)

    async def main(clock: VirtualClock) -> None:
        fleet = fleet_of(clock, server)
        async with fleet.at_work():
            await until(lambda: all_have(fleet, HintsProven, 1))
            for turn in (2, 3):
                await clock.advance(600)
                server.restart()
                await until(lambda turn=turn: all_have(fleet, HintsProven, turn))  # type: ignore[misc]
                assert len(fleet.of(HintsLost)) == 3 * (turn - 1), "told once each"
                await clock.advance(600)
                with clock.outside():  # time stands still: nobody looks but by a hint
                    await fleet.put(1)
                    await fleet.began.wait()
                await fleet.all_done()
            await fleet.check()

    virtually(main)


@pytest.mark.parametrize("store", STORES)
def test_a_server_that_stands_still_for_longer_than_the_check_waits(
    store: str, own_postgres: OwnPostgres, own_redis: OwnRedis
) -> None:
    server = server_of(store, own_postgres, own_redis)

    async def main() -> None:
        fleet = Fleet(
            server.url() if isinstance(server, Redis) else server.dsn(),
            Clock(), took=0.05, timeout="400ms",
        )  # fmt: skip
        for _ in range(3):
            fleet.hire(server.url() if isinstance(server, Redis) else server.dsn())
        hasty(fleet, 0, 1, 2)
        # What the server finds in its sockets when it goes on, it still does: claims for nobody,
        # which come back when their leases end.
        async with fleet.at_work(lease="2s", polling=Adaptive("20ms", "100ms")):
            await proven(fleet)
            await fleet.put(60)
            await until(lambda: len(fleet.story.ran) > 5, PATIENCE)
            server.pause()
            try:
                await until(lambda: all_have(fleet, PollFailed, 1), PATIENCE)
                await until(lambda: all_have(fleet, HintsLost, 1), PATIENCE)
            finally:
                server.resume()
            await fleet.all_done(PATIENCE)
            await proven(fleet, 2)
            await fleet.check(once=False)
        assert all("did not answer" in event.error for event in fleet.of(PollFailed))
        assert len(fleet.of(HintsLost)) == 3, "told once each"
        fleet.check_backed_off(most=6)

    asyncio.run(main())
