"""Idle workers on real servers are quiet, and one put wakes few of them. Counted at the server."""

from __future__ import annotations

import asyncio
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import pytest
import redis as redis_client

from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import HintsLost, HintsProven, JobStarted, PollFinished
from pollwise.runtime.jobs import NewJob
from pollwise.storage.channel import TURN_AFTER
from tests.queues.benches import migrated
from tests.support.daemons import wait_until
from tests.support.kit import until, virtually
from tests.support.servers import OwnPostgres, OwnRedis, Postgres, Redis
from tests.worker.team import STORES, Team, team_of

HOUR = 3600.0
#: Statements a second that an idle process may send.
QUIET = 0.05
#: What the looking itself says to Redis.
LOOKING = {"echo", "client", "hello"}


class Monitor:
    """Counts what clients send to a Redis; what scripts call is not sent."""

    def __init__(self, server: Redis) -> None:
        self._server = server
        self._counts: Counter[str] = Counter()
        self._marks: set[str] = set()
        self._client = redis_client.Redis.from_url(server.url())
        self._monitor = self._client.monitor()  # type: ignore[no-untyped-call]
        self._monitor.__enter__()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with suppress(redis_client.ConnectionError):
            while True:
                told = self._monitor.next_command()
                if told["client_type"] != "lua":
                    word, _, rest = told["command"].partition(" ")
                    self._counts[word.lower()] += 1
                    self._marks.add(rest if word.lower() == "echo" else "")

    def sent(self) -> Counter[str]:
        mark = secrets.token_hex(6)
        self._server.execute("ECHO", mark)
        wait_until(lambda: mark in self._marks, "the monitor")  # it has told all before that, too
        return Counter({w: n for w, n in self._counts.items() if w not in LOOKING})

    def close(self) -> None:
        self._server.execute("CLIENT", "KILL", "TYPE", "normal")  # which ends the reading
        self._thread.join(20)
        self._monitor.connection.disconnect()
        self._client.close()


@dataclass
class Watched:
    """A server, and what it was sent since it started, by name."""

    server: Postgres | Redis
    monitor: Monitor | None

    def sent(self) -> Counter[str]:
        if self.monitor is not None:
            return self.monitor.sent()
        sent = re.findall(r" LOG:  (?:execute|statement)\b.*", self.server.log())
        return Counter(name(line) for line in sent)


@pytest.fixture
def watched(
    request: pytest.FixtureRequest, own_postgres: OwnPostgres, own_redis: OwnRedis
) -> Iterator[Watched]:
    if request.param == "redis":
        server = own_redis()
        with closing(Monitor(server)) as monitor:
            yield Watched(server, monitor)
    else:
        postgres = own_postgres(log_statement="all")
        migrated(postgres.dsn())
        yield Watched(postgres, None)


on_both = pytest.mark.parametrize("watched", STORES, indirect=True)


def name(line: str) -> str:
    found = re.search(r'"pollwise"\.(\w+)', line)
    return found[1] if found else line


class Window:
    """What the server was sent, and what workers tell, from its making on."""

    def __init__(self, team: Team, watched: Watched) -> None:
        self._team = team
        self._watched = watched
        self._sent = watched.sent()
        self._polls = [len(seen.of(PollFinished)) for seen in team.seen]

    @property
    def sent(self) -> Counter[str]:
        return self._watched.sent() - self._sent

    @property
    def polls(self) -> list[PollFinished]:
        news = zip(self._team.seen, self._polls, strict=True)
        return [poll for seen, before in news for poll in seen.of(PollFinished)[before:]]


async def idle(team: Team, clock: VirtualClock) -> None:
    """All is proven, and every worker has come to rest."""
    await until(lambda: len(team.of(HintsProven)) == len(team.workers))
    await clock.advance(300)


@on_both
def test_an_idle_hour(watched: Watched) -> None:
    """One statement a poll, one poll a minute, and after it the worker's record; checks ride."""

    async def main(clock: VirtualClock) -> None:
        team = team_of(clock, watched.server, workers=1, keep=None)
        async with team.at_work():
            await idle(team, clock)
            window = Window(team, watched)
            await clock.advance(HOUR)
            sent, polls = window.sent, len(window.polls)
        assert 50 <= polls <= 75
        assert HOUR / 130 <= sent.total() - polls <= HOUR / 60 + 1, sent
        assert sent.total() <= QUIET * HOUR
        assert len(team.of(HintsProven)) == 1
        assert not team.of(HintsLost)

    virtually(main)


@on_both
def test_an_idle_hour_of_a_queue_that_keeps_finished_jobs(watched: Watched) -> None:
    """Some polls are followed by a look for what was kept long enough, and by the record."""

    async def main(clock: VirtualClock) -> None:
        team = team_of(clock, watched.server, workers=1, keep="1d")
        async with team.at_work():
            await idle(team, clock)
            window = Window(team, watched)
            await clock.advance(HOUR)
            sent, polls = window.sent, len(window.polls)
        assert sent.total() <= 3 * polls
        assert sent.total() <= QUIET * HOUR

    virtually(main)


@on_both
def test_an_hour_with_one_long_job(watched: Watched) -> None:
    """Besides the polls and the record only its lease is renewed, three times a lease."""

    async def main(clock: VirtualClock) -> None:
        team = team_of(clock, watched.server, workers=1, took=HOUR / 10, keep=None)
        async with team.at_work(lease="60s"):
            await idle(team, clock)
            await team.source.put(NewJob("job", "long"))  # for two hours
            await until(lambda: bool(team.of(JobStarted)))
            await clock.advance(300)
            window = Window(team, watched)
            await clock.advance(HOUR)
            sent, polls = window.sent, len(window.polls)
            await team.all_done(2 * HOUR)
        records = sent.total() - polls - HOUR / 20
        assert HOUR / 130 - 1 <= records <= HOUR / 60 + 2, sent
        # A claim that finds nothing tells when the first lease ends, and one looks then, too.
        assert polls <= 2 * HOUR / 50
        assert len(team.of(HintsProven)) == 1

    virtually(main)


@on_both
def test_who_has_been_idle_for_long_is_brought_by_a_hint(watched: Watched) -> None:
    async def main(clock: VirtualClock) -> None:
        team = team_of(clock, watched.server, workers=1)
        async with team.at_work():
            await idle(team, clock)
            for _ in range(5):
                await clock.advance(HOUR / 4 + 7)
                window = Window(team, watched)
                with clock.outside():  # time stands still: nobody looks but by a hint
                    await team.put(1)
                    await team.began.wait()
                await team.all_done()
                first = window.polls[0]
                assert (first.found, first.hinted) == (1, True)
            await team.check()
        assert all(event.waited < 0.001 for event in team.of(JobStarted))

    virtually(main)


@on_both
def test_one_put_does_not_wake_fifty_workers(watched: Watched) -> None:
    async def main(clock: VirtualClock) -> None:
        team = team_of(clock, watched.server, workers=50, keep=None)
        async with team.at_work():
            await idle(team, clock)
            await team.put(1)  # the first call of a handle asks for more
            await clock.advance(120)
            for _ in range(10):
                window = Window(team, watched)
                with clock.outside():
                    await team.put(1)
                    await team.began.wait()
                await clock.advance(1.1 * TURN_AFTER)  # the next in turn polls too, and says so
                with clock.outside():
                    await all_heard(team)
                await clock.advance(0.5)
                sent, polls = window.sent, window.polls
                hinted = sum(event.hinted for event in polls)
                assert 1 <= hinted <= 3, polls
                # At the server: the put, a claim for each poll, of which some were due anyway, the
                # records of workers after some of them, the message of the one that polled, and
                # once an hour of each a look for history to fold.
                assert len(polls) + 1 <= sent.total() <= 2 * len(polls) + 3, sent
                await clock.advance(120)
        assert team.story.ran.keys() == set(team.ids)

    virtually(main)


async def all_heard(team: Team) -> None:
    """Nobody waits for its turn to look any more; that travels in real time."""
    channels: list[Any] = [queue.hints() for queue in team.queues]
    deadline = time.monotonic() + 240
    while any(channel._turns for channel in channels):
        assert time.monotonic() < deadline, "no process said that it polled"
        await asyncio.sleep(0)
