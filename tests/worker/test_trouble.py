"""Stores that fail, leases that are lost, jobs that kill: no job is lost or under two leases."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pollwise.core.retry import Retry
from pollwise.errors import StoreError
from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.queues.redis.queue import RedisQueue
from pollwise.runtime.clock import VirtualClock, VirtualLoop
from pollwise.runtime.events import (
    ChoreFailed,
    JobDead,
    JobDone,
    JobLost,
    JobStarted,
    PollFailed,
    PollRecovered,
    WorkerStopped,
)
from pollwise.runtime.jobs import Job, NewJob, Renewal, Settlement
from pollwise.worker import Worker
from tests.queues.benches import migrated
from tests.support.kit import (
    SOON,
    CountedMemory,
    Seen,
    make_queue,
    options,
    until,
    until_empty,
    virtually,
    working,
)
from tests.support.servers import Postgres

# A store that fails.


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_fail_every_call_once(store: str, after: bool, tmp_path: Path) -> None:
    """Call number n fails, for every n: before it did its work, or after."""
    names = (str(n) for n in itertools.count())

    def failed_at(n: int) -> bool:
        folder = tmp_path / next(names)
        folder.mkdir()
        seen = Seen()
        finished: dict[str, int] = {}

        async def main(clock: VirtualClock) -> bool:
            async with make_queue(store, folder, clock, keep="1d") as made:
                queue: Any = made
                queue.fail_at, queue.after = n, after
                worker = Worker(queue, name="w", events=seen.events)

                @worker.handle("x", retry=SOON)
                async def handler(job: Job) -> None:
                    await asyncio.sleep(1.5)
                    if job.payload == job.attempt:
                        raise OSError("once")
                    finished[job.id] = finished.get(job.id, 0) + 1

                ids = await queue.put(
                    [NewJob("x", p, key=k) for p in (0, 1) for k in (None, "k", None)]
                )
                async with working(worker, options(concurrency=2, prefetch=1, lease="3s")):
                    await until_empty(queue, within=300)
                stats = await queue.stats()
                assert (stats.done, stats.dead, stats.leased) == (len(ids), 0, 0), f"call {n}"
                assert set(finished) == set(ids), f"call {n}"
                if not after:  # nothing was settled behind our back: each ran to its end once
                    assert set(finished.values()) == {1}, f"call {n}"
                total: int = queue.calls.total()
                return total >= n

        return virtually(main)

    calls = next(n for n in itertools.count(1) if not failed_at(n))
    assert calls > 20


def test_a_store_that_is_down_for_a_while_is_left_alone_and_then_all_is_done() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, seen = CountedMemory(clock=clock), Seen()
        worker = Worker(queue, name="w", events=seen.events)

        @worker.handle("x")
        async def handler(job: Job) -> None:
            await asyncio.sleep(5)

        await queue.put([NewJob("x") for _ in range(12)])
        async with working(worker, options(concurrency=4, prefetch=0, lease="10m")):
            await clock.advance(2)
            queue.failing = ("claim", "settle", "renew")
            before = queue.calls.total()
            await clock.advance(300)
            # From 1 s to 60 s for claims, to 5 s for the settlements that wait.
            assert queue.calls.total() - before < 90
            queue.failing = ()
            await until_empty(queue)
        assert len(seen.of(JobDone)) == 12
        assert not seen.of(JobLost)
        assert len(seen.of(PollRecovered)) == 1
        assert {e.chore for e in seen.of(ChoreFailed)} == {"settle", "renew leases"}

    virtually(main)


def test_the_backlog_of_settlements_is_bounded_while_the_store_takes_none() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = CountedMemory(clock=clock)
        worker = Worker(queue, events=Seen().events)
        worker.handle("x")(quick)
        await queue.put([NewJob("x") for _ in range(100)])
        async with working(worker, options(concurrency=4, prefetch=2)):
            queue.failing = ("settle",)
            await clock.advance(120)
            assert (await queue.stats()).leased <= 2 * (4 + 2)
            queue.failing = ()
            await until_empty(queue)

    virtually(main)


async def quick(job: Job) -> None: ...


def test_an_error_of_the_store_that_is_no_store_error_is_survived_too() -> None:
    class Odd(CountedMemory):
        odd = False

        async def settle(self, settlements: Any) -> None:
            if self.odd:
                raise RuntimeError("a driver's own error")
            await super().settle(settlements)

    async def main(clock: VirtualClock) -> None:
        queue, seen = Odd(clock=clock), Seen()
        worker = Worker(queue, events=seen.events)
        worker.handle("x")(quick)
        queue.odd = True
        await queue.put(NewJob("x"))
        async with working(worker, options()):
            await clock.advance(20)
            queue.odd = False
            await until_empty(queue)
        assert {e.chore for e in seen.of(ChoreFailed)} == {"settle"}

    virtually(main)


def test_a_store_that_will_never_answer_ends_the_worker_with_its_error() -> None:
    class Broken(CountedMemory):
        broken = False

        async def claim(self, *args: Any, **named: Any) -> Any:
            if self.broken:
                raise StoreError("not a database")
            return await super().claim(*args, **named)

    async def main(clock: VirtualClock) -> None:
        queue, seen = Broken(clock=clock), Seen()
        worker = Worker(queue, events=seen.events)

        @worker.handle("x")
        async def handler(job: Job) -> None:
            await asyncio.sleep(3600)

        await queue.put(NewJob("x"))
        task = asyncio.ensure_future(worker.run(options()))
        await until(lambda: bool(seen.of(JobStarted)))
        queue.broken = True
        with pytest.raises(StoreError, match="not a database"):
            await task
        stats = await queue.stats()
        assert (stats.ready, stats.leased) == (1, 0)
        assert len(seen.of(WorkerStopped)) == 1
        assert not seen.of(PollFailed)
        assert worker.state() == {}

    virtually(main)


def test_pruning_that_fails_is_reported_and_disturbs_nothing() -> None:
    class NoPruning(CountedMemory):
        async def prune(self) -> int:
            raise StoreError("may not delete")

    async def main(clock: VirtualClock) -> None:
        queue, seen = NoPruning(clock=clock, keep="1m"), Seen()
        worker = Worker(queue, events=seen.events)
        worker.handle("x")(quick)
        async with working(worker, options()):
            await clock.advance(150)
            await queue.put(NewJob("x"))
            await until_empty(queue)
        assert not seen.of(PollFailed)
        assert {e.error for e in seen.of(ChoreFailed)} == {"StoreError: may not delete"}
        assert len(seen.of(ChoreFailed)) == 3

    virtually(main)


# Leases that are lost.


class Losing:
    """A worker whose leases run out under it, for its renewals fail."""

    def __init__(self, clock: VirtualClock, handler: Any) -> None:
        self.queue, self.seen = CountedMemory(clock=clock), Seen()
        self.worker = Worker(self.queue, name="w", events=self.seen.events)
        self.worker.handle("x", retry=SOON)(handler)


def test_a_lost_lease_cancels_the_handler_and_a_late_settle_changes_nothing() -> None:
    async def main(clock: VirtualClock) -> None:
        ends: list[str] = []

        async def handler(job: Job) -> None:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

        it = Losing(clock, handler)
        [job_id] = await it.queue.put(NewJob("x"))
        async with working(it.worker, options(lease="30s")):
            await until(lambda: bool(it.seen.of(JobStarted)))
            it.queue.failing = ("renew", "claim")
            await clock.advance(31)
            it.queue.failing = ("claim",)
            [claim] = await MemoryQueue.claim(it.queue, "thief", 1, 1000)
            await clock.advance(60)
            assert ends == ["cancelled"]
            assert [e.job for e in it.seen.of(JobLost)] == [job_id]
            assert it.worker.state()["running"] == 0
            info = await it.queue.get(job_id)
            assert info is not None
            assert (info.state, info.worker) == ("leased", "thief")
            await it.queue.settle([Settlement.done(claim)])

    virtually(main)


@pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises"])
def test_a_handler_that_goes_on_under_a_lost_lease_is_not_listened_to(raises: bool) -> None:
    async def main(clock: VirtualClock) -> None:
        async def stubborn(job: Job) -> None:
            end = clock.now() + (200 if job.attempt == 1 else 100)
            while (left := end - clock.now()) > 0:
                try:
                    await asyncio.sleep(left)
                except asyncio.CancelledError:
                    continue
            if raises and job.attempt == 1:
                raise OSError("late")

        it = Losing(clock, stubborn)
        await it.queue.put(NewJob("x"))
        async with working(it.worker, options(lease="30s", concurrency=2)):
            await until(lambda: bool(it.seen.of(JobStarted)))
            it.queue.failing = ("renew",)
            await clock.advance(35)
            it.queue.failing = ()
            await clock.advance(20)
            # The worker itself claimed it again, and now runs it beside what it cannot stop.
            assert [e.attempt for e in it.seen.of(JobStarted)] == [1, 2]
            assert it.worker.state()["running"] == 2
            await until_empty(it.queue)
            assert [(e.attempt, round(e.took)) for e in it.seen.of(JobDone)] == [(2, 100)]
            await clock.advance(300)
            assert it.worker.state()["running"] == 0
        assert len(it.seen.of(JobLost)) == 1
        assert [type(e).__name__ for e in it.seen if hasattr(e, "job")] == [
            "JobStarted", "JobTakenOver", "JobLost", "JobStarted", "JobDone",
        ]  # fmt: skip

    virtually(main)


def test_what_waits_for_a_place_and_loses_its_lease_is_not_run() -> None:
    async def main(clock: VirtualClock) -> None:
        async def handler(job: Job) -> None:
            await asyncio.sleep(100)

        it = Losing(clock, handler)
        await it.queue.put([NewJob("x"), NewJob("x")])
        async with working(it.worker, options(lease="30s", concurrency=1, prefetch=1)):
            await until(lambda: bool(it.seen.of(JobStarted)))
            it.queue.failing = ("renew", "claim")
            await clock.advance(31)
            await MemoryQueue.claim(it.queue, "thief", 2, 1000)
            it.queue.failing = ("claim",)
            await clock.advance(300)
            assert len(it.seen.of(JobLost)) == 2
            assert len(it.seen.of(JobStarted)) == 1
            assert (await it.queue.stats()).leased == 2

    virtually(main)


def test_after_a_standstill_leases_are_renewed_before_the_next_job_starts() -> None:
    async def main(clock: VirtualClock) -> list[tuple[int, int]]:
        queue, runs = CountedMemory(clock=clock), list[tuple[int, int]]()
        worker = Worker(queue, name="w", events=Seen().events)

        @worker.handle("x")
        async def handler(job: Job) -> None:
            runs.append((job.payload, queue.calls["renew"]))
            if job.payload == 0:
                loop = asyncio.get_running_loop()
                assert isinstance(loop, VirtualLoop)
                loop.jump(100.0)  # as after a suspend: no timer ran meanwhile

        await queue.put([NewJob("x", n) for n in range(4)])
        async with working(worker, options(lease="30s", concurrency=1, prefetch=3)):
            await until_empty(queue)
        return runs

    first, *others = virtually(main)
    assert first == (0, 0)
    assert sorted(payload for payload, _ in others) == [1, 2, 3]
    assert all(renewals for _, renewals in others), "started under a lease that may be over"


def test_a_lease_that_is_lost_as_its_handler_is_about_to_begin_gives_its_place_free() -> None:
    class Gone(CountedMemory):
        async def renew(self, *_: Any, **__: Any) -> Renewal:
            await asyncio.sleep(5)
            return Renewal(lost=("2",))

    async def main(clock: VirtualClock) -> None:
        queue, seen = Gone(clock=clock), Seen()
        worker = Worker(queue, name="w", events=seen.events)

        @worker.handle("x")
        async def handler(job: Job) -> None:
            await asyncio.sleep(job.payload)

        await queue.put([NewJob("x", 15), NewJob("x", 1), NewJob("x", 1)])
        async with working(worker, options(lease="30s", concurrency=1, prefetch=1)):
            await until(lambda: bool(seen.of(JobStarted)))
            # The first renewal takes from 10 to 15; then the first job ends, and the second is
            # next, but its lease is gone.
            await clock.advance(25)
            assert [e.job for e in seen.of(JobLost)] == ["2"]
            assert [e.job for e in seen.of(JobDone)] == ["1", "3"]
            assert worker.state()["running"] == 0

    virtually(main)


def test_a_lease_that_ran_out_and_was_not_taken_is_taken_back() -> None:
    async def main(clock: VirtualClock) -> None:
        async def handler(job: Job) -> None:
            await asyncio.sleep(100)

        it = Losing(clock, handler)
        await it.queue.put(NewJob("x"))
        async with working(it.worker, options(lease="30s")):
            await until(lambda: bool(it.seen.of(JobStarted)))
            it.queue.failing = ("renew", "claim")
            await clock.advance(45)
            it.queue.failing = ("claim",)
            await clock.advance(30)
            it.queue.failing = ()
            await until_empty(it.queue)
        assert not it.seen.of(JobLost)
        assert len(it.seen.of(JobDone)) == 1

    virtually(main)


# Jobs that kill.


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_job_that_kills_its_workers_is_dead_after_its_attempts(
    store: str, tmp_path: Path
) -> None:
    async def main(clock: VirtualClock) -> None:
        async with make_queue(store, tmp_path, clock) as queue:
            [job_id] = await queue.put(NewJob("x"))
            for n in range(3):  # three workers claim it and are never heard of again
                [claim] = await queue.claim(f"victim-{n}", 1, "10s")
                assert claim.job.attempt == n + 1
                await clock.advance(11)
            seen, ran = Seen(), list[str]()
            worker = Worker(queue, name="w", events=seen.events)
            worker.handle("x", retry=Retry.fixed("1s", attempts=3))(lambda job: ran.append(job.id))
            async with working(worker, options()):
                await until_empty(queue)
            assert not ran
            [info] = await queue.jobs("dead")
            assert info.job.id == job_id
            assert info.error == "its worker died or lost its lease 3 times"
            assert not seen.of(JobStarted)
            assert len(seen.of(JobDead)) == 1

    virtually(main)


def test_a_job_that_killed_its_worker_once_gets_its_other_attempts() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, seen = MemoryQueue(clock=clock), Seen()
        await queue.put(NewJob("x"))
        await queue.claim("victim", 1, "10s")
        worker = Worker(queue, name="w", events=seen.events)
        worker.handle("x", retry=SOON)(quick)
        async with working(worker, options()):
            await until_empty(queue)
        assert [e.attempt for e in seen.of(JobDone)] == [2]

    virtually(main)


BAD = {
    "not JSON": ("{bad", None, "payload cannot be decoded: Expecting property name"),
    "too many digits": ("7" * 5000, None, "payload cannot be decoded: Exceeds the limit"),
    "too deep": ("[" * 100_000, None, "payload cannot be decoded: it nests deeper than"),
    "not a number": ('{"n": NaN}', None, "payload cannot be decoded: NaN is not JSON"),
    "half a character": (r'"\ud83d"', None, "payload cannot be decoded: 'utf-8' codec"),
    "headers that are a list": ("1", "[1]", "headers are not text by name: [1]"),
    "headers that are not text": ("1", '{"a": 1}', "headers are not text by name"),
    "headers that are not JSON": ("1", "{bad", "headers are not text by name: {bad"),
}


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres", "redis"])
def test_a_job_that_cannot_be_decoded_is_dead_and_its_neighbours_run(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seen, ran = Seen(), list[int]()
    server = request.getfixturevalue(store) if store in ("postgres", "redis") else None
    url = ""
    if isinstance(server, Postgres):
        url = migrated(server.dsn())
    elif server is not None:
        url = server.url()

    async def main(clock: VirtualClock) -> None:
        queue: Queue
        if store == "postgres":
            queue = PostgresQueue(url, uuid.uuid4().hex, clock=clock)
        elif store == "redis":
            queue = RedisQueue(url, uuid.uuid4().hex, clock=clock)
        else:
            queue = make_queue(store, tmp_path, clock)
        wanted: dict[str, str] = {}
        for number, (payload, headers, reason) in enumerate(BAD.values()):
            if headers and store == "memory":
                continue  # it keeps the headers themselves
            bad = NewJob("job", headers={"a": "b"} if headers else None)
            bad.encoded, bad.encoded_headers = payload, headers
            ids = await queue.put([NewJob("job", number), bad])
            wanted[ids[1]] = reason
        worker = Worker(queue, events=seen.events, clock=clock)
        worker.handle("job")(lambda job: ran.append(job.payload))
        async with working(worker, options()):
            await until_empty(queue)
        dead = {info.job.id: info.error or "" for info in await queue.jobs("dead")}
        assert dead.keys() == wanted.keys()
        for job_id, reason in wanted.items():
            assert reason in dead[job_id]
        assert {event.job: event.error for event in seen.of(JobDead)} == dead
        assert sorted(ran) == list(range(len(wanted)))
        await queue.close()

    virtually(main)


def test_text_in_a_sqlite_file_that_is_not_utf_8_stops_nobody(tmp_path: Path) -> None:
    ran: list[Any] = []

    async def main(clock: VirtualClock) -> None:
        queue = make_queue("sqlite", tmp_path, clock)
        await queue.put([NewJob("job", 0), NewJob("job", 1), NewJob("job", "\ufffd")])
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection, connection:
            connection.execute(
                "UPDATE pollwise_jobs SET payload = CAST(x'22ff22' AS TEXT) WHERE seq = 1"
            )
        assert [info.job.payload for info in await queue.jobs()] == ['"\ufffd"', 1, "\ufffd"]
        worker = Worker(queue, clock=clock)
        worker.handle("job")(lambda job: ran.append(job.payload))
        async with working(worker, options()):
            await until_empty(queue)
        [dead] = await queue.jobs("dead")
        assert dead.error == "its payload cannot be decoded: it is not UTF-8"
        assert ran == [1, "\ufffd"]
        await queue.close()

    virtually(main)
