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
from tests.worker.team import STORES, Team, server_of, team_of

#: Real seconds within which what is waited for has to happen.
PATIENCE = 240.0


def hasty(team: Team, *which: int) -> None:
    """Have these channels proven often; the others are proven once a minute, as is the rule."""
    for n in which:
        channel: Any = team.queues[n].hints()
        channel._check_every, channel._check_timeout = 0.5, 0.4


def all_have(team: Team, kind: type[Any], count: int) -> bool:
    return all(len(seen.of(kind)) >= count for seen in team.seen)


async def proven(team: Team, times: int = 1) -> None:
    await until(lambda: all_have(team, HintsProven, times), PATIENCE)


# The way of hints alone


def test_a_listening_session_that_hangs(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is open and says nothing: the first who notices gives it up for all."""
    monkeypatch.setattr("pollwise.storage.postgres.notify.PATIENCE", 0.5)
    dsn = migrated(postgres.dsn())

    async def main() -> None:
        team = Team(dsn, Clock(), listen=f"{dsn}?application_name=hanging")
        for _ in range(3):
            team.hire(dsn)
        hasty(team, 0)
        async with team.at_work():
            await proven(team)
            [(pid,)] = postgres.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'hanging'"
            )
            os.kill(pid, signal.SIGSTOP)
            try:
                await proven(team, 2)
            finally:
                os.kill(pid, signal.SIGCONT)
        assert len(team.of(HintsLost)) == 3, "told once each"
        assert not team.of(PollFailed)

    asyncio.run(main())


def test_a_subscription_that_hangs(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pollwise.storage.redis.pubsub.SUBSCRIBE_TIMEOUT", 0.5)

    async def main(proxy: Proxy) -> None:
        team = Team(redis.url(), Clock())
        for _ in range(3):
            team.hire(proxy.through(redis.url()))
        async with team.at_work():
            await proven(team)
            proxy.lose_answer(to=b"SUBSCRIBE", fate="silence")
            fourth = Team(redis.url(), Clock())
            fourth.hire(proxy.through(redis.url()))
            async with fourth.at_work():  # joins their connection, which falls silent
                await proven(team, 2)
                await proven(fourth)
        assert len(team.of(HintsLost)) == 3, "told once each"
        assert not team.of(PollFailed)

    with Proxy(redis.port) as proxy:
        asyncio.run(main(proxy))


def test_behind_a_pooler_in_transaction_mode(pgbouncer: PgBouncer, postgres: Postgres) -> None:
    """Told once what to do, and jobs are found by the strategy's own max_interval."""
    direct = migrated(postgres.dsn())

    async def main(listen: str | None) -> Team:
        team = Team(pgbouncer.dsn(), Clock(), took=0.0, listen=listen)
        for _ in range(2):
            team.hire(pgbouncer.dsn())
        hasty(team, 0, 1)
        async with team.at_work(polling=Adaptive("20ms", "300ms")):
            await until(lambda: all_have(team, HintsProven if listen else HintsLost, 1), PATIENCE)
            for _ in range(3):
                await team.put(5)
                await team.all_done(PATIENCE)
            await team.check()
        return team

    team = asyncio.run(main(None))
    assert len(team.of(HintsLost)) == 2
    assert all("listen" in event.advice for event in team.of(HintsLost))
    assert not team.of(HintsProven)
    assert max(event.delay for event in team.of(PollFinished)) <= 0.3

    team = asyncio.run(main(direct))
    assert len(team.of(HintsProven)) == 2
    assert not team.of(HintsLost)
    assert max(event.delay for event in team.of(PollFinished)) > 30, "the long interval is used"


# With the server


@pytest.mark.parametrize("store", STORES)
def test_hints_come_back_after_a_restart(
    store: str, own_postgres: OwnPostgres, own_redis: OwnRedis
) -> None:
    server = server_of(store, own_postgres, own_redis)

    async def main(clock: VirtualClock) -> None:
        team = team_of(clock, server)
        async with team.at_work():
            await until(lambda: all_have(team, HintsProven, 1))
            for turn in (2, 3):
                await clock.advance(600)
                server.restart()
                await until(lambda turn=turn: all_have(team, HintsProven, turn))  # type: ignore[misc]
                assert len(team.of(HintsLost)) == 3 * (turn - 1), "told once each"
                await clock.advance(600)
                with clock.outside():  # time stands still: nobody looks but by a hint
                    await team.put(1)
                    await team.began.wait()
                await team.all_done()
            await team.check()

    virtually(main)


@pytest.mark.parametrize("store", STORES)
def test_a_server_that_stands_still_for_longer_than_the_check_waits(
    store: str, own_postgres: OwnPostgres, own_redis: OwnRedis
) -> None:
    server = server_of(store, own_postgres, own_redis)

    async def main() -> None:
        team = Team(
            server.url() if isinstance(server, Redis) else server.dsn(),
            Clock(), took=0.05, timeout="400ms",
        )  # fmt: skip
        for _ in range(3):
            team.hire(server.url() if isinstance(server, Redis) else server.dsn())
        hasty(team, 0, 1, 2)
        # What the server finds in its sockets when it goes on, it still does: claims for nobody,
        # which come back when their leases end.
        async with team.at_work(lease="2s", polling=Adaptive("20ms", "100ms")):
            await proven(team)
            await team.put(60)
            await until(lambda: len(team.story.ran) > 5, PATIENCE)
            server.pause()
            try:
                await until(lambda: all_have(team, PollFailed, 1), PATIENCE)
                await until(lambda: all_have(team, HintsLost, 1), PATIENCE)
            finally:
                server.resume()
            await team.all_done(PATIENCE)
            await proven(team, 2)
            await team.check(once=False)
        assert all("did not answer" in event.error for event in team.of(PollFailed))
        assert len(team.of(HintsLost)) == 3, "told once each"
        team.check_backed_off(most=6)

    asyncio.run(main())
