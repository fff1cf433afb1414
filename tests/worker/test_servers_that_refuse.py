"""Servers that are there and say no: locked, too slow, read-only, full. And clocks that differ."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.errors import StoreUnavailable
from pollwise.queues.redis.queue import RedisQueue
from pollwise.runtime.clock import Clock, VirtualClock
from pollwise.runtime.events import JobDone, JobLost, JobStarted, PollFailed
from pollwise.runtime.jobs import NewJob
from pollwise.worker import Worker
from tests.queues.benches import migrated
from tests.support.daemons import UNPRIVILEGED, wait_until
from tests.support.kit import until, virtually
from tests.support.servers import OwnPostgres, OwnRedis, Postgres, Redis
from tests.worker.team import STORES, Team, team_of

JOBS = 60


# Time limits


@pytest.mark.parametrize("limit", ["lock_timeout", "statement_timeout"])
def test_a_time_limit_of_the_role(limit: str, postgres: Postgres) -> None:
    """Somebody locks the table for a while, and the role may not wait for long."""
    name = f"locked_{limit}"
    dsn = migrated(postgres.create_database(name))
    postgres.create_role("hasty", options="SUPERUSER")
    postgres.execute("ALTER ROLE hasty RESET ALL")
    postgres.execute(f"ALTER ROLE hasty SET {limit} = '50ms'")

    async def main(clock: VirtualClock) -> None:
        team = Team(dsn, clock)
        for _ in range(3):
            team.hire(postgres.dsn(name, "hasty"))
        async with team.at_work():
            await team.put(JOBS)
            await until(lambda: len(team.story.ran) > 5)
            with psycopg.connect(dsn) as rude:
                rude.execute("LOCK TABLE pollwise.jobs")
                await clock.advance(9)
            failed = [event.error for event in team.of(PollFailed)]
            await team.all_done()
            await team.check()
        assert all(limit in error for error in failed), failed[:3]
        team.check_backed_off(most=8)  # a busy machine may be too slow for it once more
        assert not team.of(JobLost)

    virtually(main)


# Read-only


def test_a_failover_to_a_standby(own_postgres: OwnPostgres) -> None:
    """The primary is killed and its standby promoted; workers know both and look for the one."""
    primary = own_postgres()
    migrated(primary.dsn())
    standby = primary.standby()
    # Else the standby may lack what was answered last: no client can mend that.
    primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
    primary.execute("SELECT pg_reload_conf()")
    both = (
        f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"
        "?target_session_attrs=read-write"
    )

    async def main(clock: VirtualClock) -> None:
        team = Team(both, clock)
        for _ in range(3):
            team.hire(both)
        async with team.at_work():
            await team.put(JOBS)
            await until(lambda: len(team.story.ran) > 5)
            team.queues[0].strikes["settle"] = primary.kill
            await until(lambda: not primary.running)
            await clock.advance(5)
            standby.promote()
            await team.all_done()
            await team.check()
        team.check_backed_off(most=5)
        assert not team.of(JobLost)

    virtually(main)


def test_a_worker_on_a_standby_waits_until_it_is_promoted(own_postgres: OwnPostgres) -> None:
    primary = own_postgres()
    migrated(primary.dsn())
    standby = primary.standby()

    async def main(clock: VirtualClock) -> None:
        team = Team(primary.dsn(), clock)
        team.hire(standby.dsn())
        async with team.at_work():
            await team.put(JOBS)
            with clock.outside():
                standby.catch_up()
            await clock.advance(300)
            failed = team.of(PollFailed)
            assert all("read-only" in event.error for event in failed)
            assert 5 < len(failed) < 15
            standby.promote()
            await until(lambda: len(team.story.ran) == JOBS)
            [queue] = team.queues
            await until(lambda: len(team.of(JobDone)) == JOBS)
            await clock.advance(1)
            assert (await queue.stats()).done == JOBS
        team.story.check(team.ids)
        team.check_backed_off(most=15)

    virtually(main)


def test_a_primary_that_becomes_read_only_for_a_while(own_postgres: OwnPostgres) -> None:
    server = own_postgres()
    migrated(server.dsn())

    def read_only(now: str) -> None:
        server.execute(f"ALTER SYSTEM SET default_transaction_read_only = {now}")
        server.execute("SELECT pg_reload_conf()")
        server.disconnect_all()  # in the end; a session may not have heard of it yet

    async def main(clock: VirtualClock) -> None:
        team = team_of(clock, server)
        async with team.at_work():
            await team.put(JOBS)
            await until(lambda: len(team.story.ran) > 5)
            read_only("on")
            await clock.advance(9)
            read_only("off")
            await team.all_done()
            await team.check()
        assert any("read-only" in event.error for event in team.of(PollFailed))
        team.check_backed_off(most=6)
        assert not team.of(JobLost)

    virtually(main)


# Full


@contextmanager
def small_disk(folder: Path, megabytes: int, owner: str) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    what = f"size={megabytes}m,mode=700,uid={owner}"
    mount = ["mount", "-t", "tmpfs", "-o", what, "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("only root may mount a small disk, and not everywhere")
    try:
        yield folder
    finally:
        # Lazily: the server still has files there.
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(disk: Path) -> Path:
    """Leave not a byte, but what is left of the last blocks of files."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    return ballast


def test_a_disk_of_postgres_that_is_full_for_a_while(own_postgres: OwnPostgres) -> None:
    server = own_postgres()
    migrated(server.dsn())

    async def main(clock: VirtualClock, disk: Path) -> None:
        team = team_of(clock, server)
        # Four to a page, which leaves no room for the new version of any of them.
        jobs = [NewJob("job", secrets.token_hex(900)) for _ in range(JOBS)]
        async with team.handle(server.dsn()) as early:  # before any worker can claim them
            team.ids += await early.put(jobs)
        ballast = fill(disk)
        async with team.at_work():
            with pytest.raises(StoreUnavailable, match="disk is full"):
                await team.source.put(jobs)
            await clock.advance(9)
            assert not team.story.ran
            ballast.unlink()
            await team.put(5)
            await team.all_done()
            await team.check()
        assert all("disk is full" in event.error for event in team.of(PollFailed))
        team.check_backed_off(most=5)
        assert not team.of(JobLost)

    with small_disk(server.folder.with_suffix(".disk"), 2, UNPRIVILEGED) as disk:
        server.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
        server.execute("ALTER TABLE pollwise.jobs SET TABLESPACE small")
        server.execute("ALTER TABLE pollwise.jobs SET (fillfactor = 100)")
        virtually(lambda clock: main(clock, disk))
        server.stop("immediate")


def test_a_disk_of_redis_that_is_full_for_a_while(own_redis: OwnRedis) -> None:
    server = own_redis()
    server.stop()

    def writes() -> bool:
        with server.client() as client:
            return bool(client.info("persistence")["aof_last_write_status"] == "ok")

    async def main(clock: VirtualClock, disk: Path) -> None:
        team = team_of(clock, server)
        async with team.at_work():
            await team.put(JOBS)
            await until(lambda: len(team.story.ran) > 5)
            ballast = fill(disk)
            async with RedisQueue(server.url(), "surplus", clock=clock) as surplus:
                with pytest.raises(StoreUnavailable, match="cannot write to its disk"):
                    for _ in range(1000):
                        await surplus.put(NewJob("job", "x" * 1000))
            await clock.advance(9)
            ballast.unlink()
            wait_until(writes, "the server writing again")
            await team.all_done()
            await team.check()
        assert all("cannot write to its disk" in event.error for event in team.of(PollFailed))
        team.check_backed_off(most=5)
        assert not team.of(JobLost)

    with small_disk(server.folder, 4, "root"):
        server.start(appendonly="yes", appendfsync="everysec", auto_aof_rewrite_percentage=0)
        virtually(lambda clock: main(clock, server.folder))
        server.stop()


def test_a_memory_of_redis_that_is_full_for_a_while(own_redis: OwnRedis) -> None:
    """Nothing more comes in, and what is there is worked off as ever."""
    server = own_redis()

    async def main(clock: VirtualClock) -> None:
        team = team_of(clock, server)
        async with team.at_work():
            await team.put(JOBS)
            await until(lambda: len(team.story.ran) > 5)
            server.execute("CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(StoreUnavailable, match="memory is full"):
                await team.put(1)
            await team.all_done()
            server.execute("CONFIG", "SET", "maxmemory", "0")
            await team.put(5)
            await team.all_done()
            await team.check()
        assert not team.of(PollFailed, JobLost)

    virtually(main)


def test_a_full_redis_is_worked_off_although_a_tick_is_due(own_redis: OwnRedis) -> None:
    server = own_redis()

    async def main(clock: VirtualClock) -> None:
        ran: list[Any] = []
        async with (
            RedisQueue(server.url(), clock=clock) as queue,
            RedisQueue(server.url(), clock=clock) as own,
        ):
            await queue.schedules.set("tick", NewJob("job", "tick"), every="10s", overlap="queue")
            await queue.put([NewJob("job", number) for number in range(3)])
            await clock.advance(20)
            server.execute("CONFIG", "SET", "maxmemory", "1")
            worker = Worker(own)
            worker.handle("job")(lambda job: ran.append(job.payload))
            async with worker.running():
                await until(lambda: len(ran) >= 3)
                assert sorted(ran) == [0, 1, 2]
                server.execute("CONFIG", "SET", "maxmemory", "0")
                await until(lambda: "tick" in ran)

    virtually(main)


# Clocks that differ


class Skewed(Clock):
    """A machine's clock that is off."""

    def __init__(self, by: float) -> None:
        self._by = by

    def epoch(self) -> float:
        return super().epoch() + self._by


@pytest.mark.parametrize("store", STORES)
def test_the_clocks_of_workers_do_not_matter(store: str, request: pytest.FixtureRequest) -> None:
    """Ten minutes late, right, ten minutes early: leases, delays and waits are the server's."""
    server: Postgres | Redis = request.getfixturevalue(store)
    address = server.url() if isinstance(server, Redis) else migrated(server.dsn())

    async def main() -> None:
        team = Team(address, Clock(), took=0.1)
        for skew in (-600, 0, 600):
            team.hire(address, clock=Skewed(skew))
        dropped = await team.source.put(NewJob("job"))
        await team.source.claim("gone", 1, "500ms")  # and never heard of again
        async with team.at_work(lease="1500ms", polling=Adaptive("20ms", "200ms")):
            began, late = time.time(), list[str]()
            for queue in team.queues:
                late += await queue.put(NewJob("job", delay="600ms"))
            long = await team.source.put([NewJob("job", "long") for _ in range(3)])
            await team.put(20)
            team.ids += [*dropped, *late, *long]
            await team.all_done(within=20)
            await team.check()
        story = team.story
        assert all(story.leases[job_id][0].at >= began + 0.6 for job_id in late)
        assert [story.attempts(job_id) for job_id in (*late, *long)] == [[1]] * 6
        assert [story.attempts(job_id) for job_id in dropped] == [[1, 2]]
        assert all(event.waited < 60 for event in team.of(JobStarted)), "seen by a wrong clock"
        assert not team.of(JobLost)

    asyncio.run(main())
