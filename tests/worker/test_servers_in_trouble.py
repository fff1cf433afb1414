"""Servers that are restarted, killed, cut off, fail over: workers back off, lose nothing, go on.

In virtual time on real servers: time stands still while a call is under way, and a server that is
down answers at once that it is. Only what takes real time at the server, as a pause does, does so
here. How each queue meets these faults call by call is tested in tests/queues.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from pollwise.errors import StoreUnavailable
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import ChoreFailed, JobLost, PollFailed
from pollwise.runtime.jobs import NewJob
from tests.queues.benches import migrated
from tests.support.kit import until, virtually
from tests.support.proxy import Proxy
from tests.support.servers import OwnPostgres, OwnRedis, Postgres, Redis
from tests.worker.team import (
    STORES,
    Call,
    Team,
    address_of,
    request_of,
    server_of,
    team_behind,
    team_of,
)

T = TypeVar("T")
Server = Postgres | Redis
JOBS = 60


def seeded() -> int:
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # shown when the test fails
    return seed


# The server goes, and comes back


@pytest.mark.parametrize(
    ("store", "end", "call"),
    [
        ("postgres", "fast", "claim"),
        ("postgres", "immediate", "settle"),
        ("postgres", "kill", "claim"),
        ("postgres", "kill", "settle"),
        ("postgres", "kill", "renew"),
        ("redis", "fast", "settle"),
        ("redis", "kill", "claim"),
        ("redis", "kill", "settle"),
        ("redis", "kill", "renew"),
    ],
)
def test_a_server_that_ends_in_the_middle_of_a_call(
    store: str, end: str, call: Call, own_postgres: OwnPostgres, own_redis: OwnRedis
) -> None:
    server, seed = server_of(store, own_postgres, own_redis), seeded()

    async def main(clock: VirtualClock) -> None:
        long = call == "renew"  # long enough to be renewed, and then nobody has room to poll
        team = team_of(clock, server, seed=seed, took=15 if long else 1)
        async with team.at_work():
            await team.put(JOBS)
            await until(lambda: len(team.story.leases) > 5)
            team.queues[0].strikes[call] = lambda: end_of(server, end)
            await until(lambda: not server.running)
            await clock.advance(9)  # the next renewal comes in time: nobody loses what it holds
            server.start()
            await team.all_done()
            await team.check()
        team.check_backed_off(most=5, every=not long)
        assert not team.of(JobLost)

    virtually(main)


def end_of(server: Server, end: str) -> None:
    if end == "kill":
        server.kill()
    else:
        server.stop(end)


@pytest.mark.parametrize("store", STORES)
def test_a_server_that_is_away_for_longer_than_the_leases(
    store: str, own_postgres: OwnPostgres, own_redis: OwnRedis
) -> None:
    server, seed = server_of(store, own_postgres, own_redis), seeded()

    async def main(clock: VirtualClock) -> None:
        team = team_of(clock, server, seed=seed, took=20)
        async with team.at_work(lease="10s"):
            await team.put(JOBS)
            await until(lambda: bool(team.story.leases))
            team.queues[0].strikes["renew"] = server.kill
            await until(lambda: not server.running)
            await clock.advance(600)
            server.start()
            await team.all_done()
            await team.check(once=False)  # who has lost its lease cannot take back what it did
        # From 1 s to 60 s: an outage of ten minutes is asked about a dozen times.
        team.check_backed_off(most=20, every=False)

    virtually(main)


# The way to it breaks


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("lost", ["answer", "request"])
@pytest.mark.parametrize("store", STORES)
def test_a_cut_in_the_middle_of_a_settle(
    store: str, lost: str, times: int, request: pytest.FixtureRequest
) -> None:
    """The batch counts, once, whether the request came through or not."""
    team = cut_in_the_middle_of("settle", store, lost, request, times)
    # The queue asks again by itself, once; after that it is up to the worker.
    assert len(team.of(ChoreFailed)) == times - 1
    assert not team.of(JobLost, PollFailed)
    for job_id in team.ids:
        assert team.story.attempts(job_id) in ([1], [1, 2]), "no attempt was lost"


@pytest.mark.parametrize("lost", ["answer", "request"])
@pytest.mark.parametrize("store", STORES)
def test_a_cut_in_the_middle_of_a_claim(
    store: str, lost: str, request: pytest.FixtureRequest
) -> None:
    """A batch whose answer is lost is leased to nobody: it comes back when its leases end."""
    team = cut_in_the_middle_of("claim", store, lost, request)
    assert len(team.seen[0].of(PollFailed)) == 1
    team.check_backed_off(most=1, every=False)
    unseen = [job_id for job_id in team.ids if team.story.attempts(job_id)[0] == 2]
    assert bool(unseen) is (lost == "answer")
    assert len(unseen) <= 5, "no more than one claim took"


def cut_in_the_middle_of(
    call: Call, store: str, lost: str, request: pytest.FixtureRequest, times: int = 1
) -> Team:
    """A team, after one of it lost some requests or answers, and all was done all the same."""
    server = shared(store, request)

    async def main(clock: VirtualClock, proxy: Proxy) -> Team:
        team = team_behind(clock, server, proxy)
        async with team.at_work(hints=False, prefetch=0):  # so each claim is an attempt
            await team.put(JOBS)
            await until(lambda: len(team.story.ran) > 5)
            for _ in range(times):
                lose(proxy, lost, request_of(store, call))
            await until(lambda: proxy.counts.lost == times)
            await team.all_done()
            await team.check()
        return team

    return through_a_proxy(server, main)


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("store", STORES)
def test_connections_cut_again_and_again(
    store: str, reset: bool, request: pytest.FixtureRequest
) -> None:
    server, seed = shared(store, request), seeded()
    rng = random.Random(seed)

    async def main(clock: VirtualClock, proxy: Proxy) -> None:
        team = team_behind(clock, server, proxy, behind=3, seed=seed)
        async with team.at_work(hints=False):
            await team.put(2 * JOBS)
            for _ in range(20):
                victim = rng.choice(team.queues)
                victim.strikes[rng.choice(["claim", "settle"])] = lambda: proxy.cut(reset=reset)
                await clock.advance(rng.uniform(0, 2))
            await team.all_done()
            await team.check()
        team.check_backed_off(most=20, every=False)
        assert not team.of(JobLost)

    through_a_proxy(server, main)


@pytest.mark.parametrize("store", STORES)
def test_a_cut_in_the_middle_of_a_large_put(
    store: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    """More than the sockets hold, so that the client waits to send the rest."""
    server = shared(store, request)
    jobs = [NewJob("job", "x" * 900_000) for _ in range(30)]

    async def main(clock: VirtualClock, proxy: Proxy) -> None:
        team = Team(proxy.through(address_of(server)), clock, keep=None)
        async with team.at_work():
            for reset in (False, True):
                await team.source.stats()  # so that there is a connection, known to the proxy
                sent = proxy.counts.requests
                proxy.hold("requests")
                put = asyncio.ensure_future(team.source.put(jobs))
                for _ in range(100):
                    await asyncio.sleep(0)
                proxy.cut(reset=reset)
                proxy.refuse()  # it may not be put after all, on another connection
                proxy.release()
                with pytest.raises(StoreUnavailable):
                    await put
                assert proxy.counts.requests - sent < 1_000_000
                proxy.restore()
            assert (await team.source.stats()).ready == 0, "all or none"

    through_a_proxy(server, main)
    assert not caplog.records, "no callback failed"


def lose(proxy: Proxy, what: str, text: bytes) -> None:
    if what == "answer":
        proxy.lose_answer(to=text)
    else:
        proxy.lose_request(containing=text)


def shared(store: str, request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(store)
    if isinstance(server, Postgres):
        migrated(server.dsn())
    return server


def through_a_proxy(
    server: Server, main: Callable[[VirtualClock, Proxy], Coroutine[Any, Any, T]]
) -> T:
    with Proxy(server.port) as proxy:
        return virtually(lambda clock: main(clock, proxy))


# All of that


class Trouble:
    """One fault after the other, drawn from a seed, each let loose in the middle of a call."""

    def __init__(self, team: Team, server: Server, proxy: Proxy, rng: random.Random) -> None:
        self._team = team
        self._server = server
        self._proxy = proxy
        self._rng = rng

    async def strike(self, clock: VirtualClock, *, lose_answers: bool) -> None:
        rng, server = self._rng, self._server
        faults: list[Callable[[], object]] = [
            server.kill, server.stop, self._proxy.cut, lambda: self._proxy.cut(reset=True),
            self._cut_off,
        ]  # fmt: skip
        if lose_answers:
            faults += [self._lose, self._lose]
        victim, call = rng.choice(self._team.queues), rng.choice(["claim", "settle", "renew"])
        victim.strikes[call] = rng.choice(faults)
        await clock.advance(rng.uniform(0, 15))
        victim.strikes.clear()
        self._proxy.restore()
        if not server.running:
            server.start()

    def _cut_off(self) -> None:
        self._proxy.refuse()
        self._proxy.cut()

    def _lose(self) -> None:
        store = "redis" if isinstance(self._server, Redis) else "postgres"
        call: Call = self._rng.choice(["claim", "settle", "renew"])
        lose(self._proxy, self._rng.choice(["answer", "request"]), request_of(store, call))


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("hints", [True, False])
@pytest.mark.parametrize("store", STORES)
def test_one_fault_after_the_other(
    store: str, hints: bool, own_postgres: OwnPostgres, own_redis: OwnRedis
) -> None:
    server = server_of(store, own_postgres, own_redis)
    for _ in range(20):
        seed = seeded()

        async def main(clock: VirtualClock, proxy: Proxy, seed: int = seed) -> None:
            rng = random.Random(seed)
            took = rng.choice([0.5, 12])
            team = team_behind(clock, server, proxy, behind=3, seed=seed, took=took)
            trouble = Trouble(team, server, proxy, rng)
            async with team.at_work(hints=hints):
                for _ in range(10):
                    await team.put(20)
                    # A check that rides on a call whose answer alone is lost would be waited for
                    # in virtual time, which stands still for it.
                    await trouble.strike(clock, lose_answers=not hints)
                await team.all_done()
                await team.check(once=False)
            team.check_backed_off(most=100, every=False)

        through_a_proxy(server, main)
