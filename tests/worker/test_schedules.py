"""Schedules through workers: each tick once, however many run, come and go."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest

from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import ConfigError, HandlerError, JobError, StoreUnavailable, Unsupported
from pollwise.queues.base import Queue
from pollwise.queues.capabilities import Capabilities
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.notes import NOTES_MAX
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.queues.schedules.calls import Schedules
from pollwise.queues.schedules.record import TICK_HEADER
from pollwise.queues.schedules.when import When
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.clock import Clock, VirtualClock
from pollwise.runtime.events import (
    ChoreFailed,
    Event,
    Events,
    PollFailed,
    PollFinished,
    ScheduleChanged,
    TickPut,
    TickSkipped,
    TicksMissed,
)
from pollwise.runtime.jobs import Job, NewJob
from pollwise.worker import Worker, WorkerRunOptions
from pollwise.worker.declared.schedules import TICK_AGAIN
from tests.queues.benches import migrated
from tests.support.forked import Forked
from tests.support.kit import Seen, virtually
from tests.support.servers import OwnPostgres

CHILD = Path(__file__).parent / "children" / "scheduled.py"


def worker_of(queue: Queue, name: str = "w", seen: Seen | None = None) -> Worker:
    return Worker(queue, name=name, events=(Seen() if seen is None else seen).events)


def with_task(queue: Queue, name: str = "w", seen: Seen | None = None, **when: Any) -> Worker:
    """A worker with a task that is scheduled, unless `when` is empty."""
    worker = worker_of(queue, name, seen)

    async def tidy() -> None: ...

    task = worker.task()(tidy)
    if when:
        worker.schedule(**when)(task)
    return worker


class Plain(MemoryQueue):
    """Without records of workers and history, which would take most of the time of a year."""

    capabilities = Capabilities(long_poll=True, presence=False, history=False)


# The law


class Year:
    """Workers that come and go on one queue for some days, and the ticks that they ran."""

    SCHEDULES: dict[str, dict[str, Any]] = {
        "zurich": {"cron": "30 2 * * *", "tz": "Europe/Zurich"},
        "sydney": {"cron": "*/30 2 * * *", "tz": "Australia/Sydney"},
        "hours": {"every": "11h"},
        "jittery": {"cron": "15 */12 * * *", "jitter": "10m"},
    }

    def __init__(self, queue: Queue, clock: VirtualClock, rng: random.Random) -> None:
        self.queue, self.clock, self.rng = queue, clock, rng
        self.events = Events(quiet=True)
        self.seen: list[TickPut] = []
        self.wrong: list[Event] = []
        self.events.subscribe(self.seen.append, TickPut)
        self.events.subscribe(self.wrong.append, TicksMissed, TickSkipped, ChoreFailed)
        self.ran: Counter[str] = Counter()

    async def one(self, number: int, until: float) -> None:
        """A worker that is started and stopped at random."""
        while self.clock.now() < until:
            worker = Worker(self.queue, name=f"w{number}", events=self.events)
            worker.handle("tick")(self._run)
            span = self.rng.choice([21600, 5 * 86400, 20 * 86400]) * self.rng.random()
            options = WorkerRunOptions(polling=Fixed("12h"), seed=self.rng.randrange(10**6))
            async with worker.running(options):
                await self.clock.sleep(span)
            await self.clock.sleep(86400 * self.rng.random() ** 4)

    async def _run(self, job: Job) -> None:
        self.ran[job.payload] += 1

    async def days(self, days: float) -> None:
        for name, when in self.SCHEDULES.items():
            given = {"overlap": "queue", "catch_up": "all", **when}
            await self.queue.schedules.set(name, NewJob("tick", name), **given)
        start = self.clock.epoch()
        until = self.clock.now() + days * 86400
        async with asyncio.TaskGroup() as group:
            for number in range(2):
                group.create_task(self.one(number, until))
        last = Worker(self.queue, name="last", events=self.events)  # what was missed at the end
        last.handle("tick")(self._run)
        await last.run_once()
        self.check(start, self.clock.epoch())

    def check(self, start: float, end: float) -> None:
        put = Counter((event.schedule, event.tick) for event in self.seen)
        assert not self.wrong
        for name, when in self.SCHEDULES.items():
            rules = {k: v for k, v in when.items() if k != "jitter"}
            ticks, moment, known = [], start, When.checked(**rules)
            while (tick := known.after(moment)) is not None and tick <= end:
                ticks.append(tick)
                moment = tick
            found = sorted(tick for (each, tick), _ in put.items() if each == name)
            assert found == ticks, f"{name}: {set(ticks) ^ set(found)}"
            assert self.ran[name] >= len(ticks) - 1  # the last one may wait for its jitter
            assert self.ran[name] <= len(ticks)
        assert set(put.values()) == {1}


def year_of(days: float, seed: int) -> None:
    print(f"seed {seed}")  # shown when the test fails

    async def main(clock: VirtualClock) -> None:
        queue = Plain(clock=clock)
        await Year(queue, clock, random.Random(seed)).days(days)

    virtually(main)


def test_a_year_of_schedules_puts_each_tick_once() -> None:
    year_of(366, random.randrange(10**6))


@pytest.mark.soak
def test_years_of_schedules() -> None:
    for _ in range(30):
        year_of(366, random.randrange(10**6))


# Real processes


def end(process: Forked) -> None:
    process.kill()
    assert process.wait(10) == -signal.SIGKILL
    process.stdout.close()


async def ticks_of(queue: Queue) -> list[float]:
    """The ticks that have jobs."""
    jobs = await queue.jobs(limit=1000)
    return sorted(datetime.fromisoformat(i.job.headers[TICK_HEADER]).timestamp() for i in jobs)


def many_processes(database: str, queue: Queue, *, ticks: int, workers: int) -> None:
    """Ten processes see each tick of a second; one after the other is killed."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # shown when the test fails
    rng = random.Random(seed)
    alive: list[Forked] = []

    def start() -> None:
        alive.append(Forked([CHILD, database, f"w{len(alive)}"], err=False))

    async def main() -> None:
        async with queue:
            await queue.schedules.set(
                "s", NewJob("tick"), every="1s", catch_up="all", overlap="queue"
            )
            for _ in range(workers):
                start()
            found: list[float] = []
            async with asyncio.timeout(120):
                while len(found) < ticks:
                    await Clock().sleep(0.3)  # real time: other processes work
                    victim = alive.pop(rng.randrange(len(alive)))
                    end(victim)
                    start()
                    found = await ticks_of(queue)
            [kept] = await queue.schedules.list()
            await queue.schedules.pause("s")
            found = await ticks_of(queue)
            assert found == [found[0] + n for n in range(len(found))], f"seed {seed}"
            assert kept.last_tick in found

    try:
        asyncio.run(main())
    finally:
        for process in alive:
            end(process)


def test_ten_processes_put_each_tick_once_on_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    many_processes(str(path), SqliteQueue(path, keep="1d"), ticks=4, workers=10)


def test_processes_put_each_tick_once_on_postgres(own_postgres: OwnPostgres) -> None:
    dsn = migrated(own_postgres().dsn())
    many_processes(dsn, PostgresQueue(dsn, keep="1d"), ticks=4, workers=10)


@pytest.mark.soak
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_ten_processes_for_long(store: str, tmp_path: Path, own_postgres: OwnPostgres) -> None:
    if store == "postgres":
        dsn = migrated(own_postgres().dsn())
        many_processes(dsn, PostgresQueue(dsn, keep="1d"), ticks=60, workers=10)
    else:
        path = tmp_path / "jobs.db"
        many_processes(str(path), SqliteQueue(path, keep="1d"), ticks=60, workers=10)


# What a worker does


def test_schedules_in_code_are_set_once_and_changed_by_who_starts_last() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, seen = MemoryQueue(clock=clock), Seen()
        async with with_task(queue, "a", seen, every="1h").running():
            await clock.advance(1)
            async with with_task(queue, "b", seen, every="1h").running():
                await clock.advance(1)
            changes = [(each.worker, each.change) for each in seen.of(ScheduleChanged)]
            assert changes == [("a", "set")]
            async with with_task(queue, "c", seen, cron="0 3 * * *").running():
                await clock.advance(1)
            [found] = await queue.schedules.list()
            assert (str(found.when), found.origin, found.by) == ("0 3 * * *", "code", "c")
            await clock.advance(120)
            assert [await queue.schedules.get("tidy")] == [found]  # they do not fight

    virtually(main)


@pytest.mark.parametrize(("catch_up", "hours"), [("one", [5]), ("all", [1, 2, 3, 4, 5])])
def test_after_a_downtime_the_missed_ticks_are_caught_up(catch_up: str, hours: list[int]) -> None:
    async def main(clock: VirtualClock) -> None:
        queue, ticks = MemoryQueue(clock=clock), []
        begin = clock.epoch() // 3600
        worker = worker_of(queue)

        @worker.schedule(every="1h", catch_up=cast("Any", catch_up))
        @worker.task()
        async def report(job: Job) -> None:
            at = datetime.fromisoformat(job.headers[TICK_HEADER]).timestamp()
            ticks.append(at / 3600 - begin)
            await clock.sleep(1)

        async with worker.running():
            await clock.advance(60)
        await clock.advance(5 * 3600)
        async with worker.running():
            await clock.advance(60)
        assert sorted(ticks) == hours

    virtually(main)


def test_a_schedule_that_no_code_has_any_more_is_removed_at_its_tick() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, seen = MemoryQueue(clock=clock), Seen()
        old = with_task(queue, "old", seen, every="1h")
        new = with_task(queue, "new", seen)
        await queue.schedules.set("by hand", NewJob("tidy"), every="1h")
        async with new.running():
            async with old.running():
                await clock.advance(2.5 * 3600)
                ticks = Counter(event.schedule for event in seen.of(TickPut))
                assert ticks == {"tidy": 2, "by hand": 2}  # `old` still has it
            await clock.advance(2 * 3600)
        assert [each.name for each in await queue.schedules.list()] == ["by hand"]
        assert Counter(event.schedule for event in seen.of(TickPut)) == {"tidy": 2, "by hand": 4}
        assert [each.change for each in seen.of(ScheduleChanged)] == ["set", "removed"]

    virtually(main)


def test_a_worker_of_other_kinds_removes_nothing() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, seen = MemoryQueue(clock=clock), Seen()
        async with with_task(queue, "a", seen, every="1h", overlap="queue").running():
            await clock.advance(1)
        other = worker_of(queue, "b", seen)
        other.handle("other")(lambda job: None)
        async with other.running():
            await clock.advance(2 * 3600)
        assert len(seen.of(TickPut)) == 2

    virtually(main)


@pytest.mark.parametrize("hints", [True, False])
def test_workers_learn_of_changes(hints: bool) -> None:
    """At once by a broadcast, and within a minute or so without one."""

    async def main(clock: VirtualClock) -> None:
        queue, seen = MemoryQueue(clock=clock), Seen()
        worker = with_task(queue, "a", seen)
        async with worker.running(WorkerRunOptions(polling=Fixed("30s"), hints=hints)):
            await clock.advance(10)
            at = clock.epoch() + (1 if hints else 200)
            await queue.schedules.set("once", NewJob("tidy"), at=at)
            await clock.advance(300)
            [put] = seen.of(TickPut)
            assert put.tick == at
            assert put.late < 0.1
            await queue.schedules.set("once", NewJob("tidy"), at=clock.epoch() + 500)
            await queue.schedules.remove("once")
            await clock.advance(1000)
            assert len(seen.of(TickPut)) == 1

    virtually(main)


def test_ticks_are_put_while_all_handlers_are_busy() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, seen = MemoryQueue(clock=clock), Seen()
        worker = worker_of(queue, "a", seen)

        @worker.handle("long")
        async def long(job: Job) -> None:
            await clock.sleep(1000)

        await queue.schedules.set("s", NewJob("other"), every="100s", overlap="queue")
        await queue.put([NewJob("long"), NewJob("long")])
        async with worker.running(WorkerRunOptions(concurrency=1)):
            await clock.advance(950)
        puts = seen.of(TickPut)
        assert len(puts) == 9
        assert all(each.late < 15 for each in puts), [each.late for each in puts]

    virtually(main)


def test_an_idle_worker_with_schedules_polls_as_often_as_one_without() -> None:
    polls = {}
    for scheduled in (False, True):

        async def main(clock: VirtualClock, scheduled: bool = scheduled) -> None:
            queue, seen = Counted(clock=clock), Seen()
            if scheduled:
                await queue.schedules.set("s", NewJob("other"), every="1h", overlap="queue")
            options = WorkerRunOptions(polling=Fixed("30s"), seed=1)
            async with with_task(queue, "a", seen).running(options):
                await clock.advance(10)
                queue.calls.clear()
                await clock.advance(4 * 3600)
            polls[scheduled] = len(seen.of(PollFinished))
            assert queue.calls["_read_schedules"] == 0
            assert queue.calls["_swap_schedule"] == (4 if scheduled else 0)

        virtually(main)
    # A tick moves the polls after it.
    assert abs(polls[True] - polls[False]) <= 4


class Counted(MemoryQueue):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.calls: Counter[str] = Counter()

    async def _read_schedules(self) -> Any:
        self.calls["_read_schedules"] += 1
        return await super()._read_schedules()

    async def _swap_schedule(self, swap: Any) -> Any:
        self.calls["_swap_schedule"] += 1
        return await super()._swap_schedule(swap)


def test_a_held_poll_ends_at_a_tick() -> None:
    from pollwise.core.strategies.adaptive import Adaptive

    async def main(clock: VirtualClock) -> None:
        queue, seen = MemoryQueue(clock=clock), Seen()
        await queue.schedules.set("s", NewJob("tidy"), every="100s")
        polling = Adaptive("1s", "5s", hold="300s")
        async with with_task(queue, "a", seen).running(WorkerRunOptions(polling=polling)):
            await clock.advance(350)
        assert [round(each.late, 1) for each in seen.of(TickPut)] == [0.0, 0.0, 0.0]

    virtually(main)


def test_stacked_schedules_have_names_of_their_own_and_arguments() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        worker = worker_of(queue)
        ran = []

        @worker.schedule("0 0 1 1 *", name="yearly", args={"what": "all"}, options={"priority": 3})
        @worker.schedule(every="2h", args={"what": "some"}, jitter="1s")
        @worker.schedule("0 * * * *", tz="Europe/Zurich", catch_up="none", overlap="queue")
        @worker.task()
        async def tidy(what: str = "little") -> None:
            ran.append(what)

        async with worker.running():
            await clock.advance(2 * 3600 + 10)
        found = {each.name: each for each in await queue.schedules.list()}
        assert list(found) == ["tidy", "tidy-2", "yearly"]
        assert found["yearly"].priority == 3
        assert sorted(ran) == ["little", "little", "some"]

    virtually(main)


def test_what_a_decorator_refuses() -> None:
    worker = worker_of(MemoryQueue())
    task = worker.task("kind")(lambda number: None)
    with pytest.raises(HandlerError, match="not a task"):
        worker.schedule("* * * * *")(print)
    with pytest.raises(ConfigError, match=r"args = \[1\] must be a mapping of names"):
        worker.schedule(every="10m", args=cast("Any", [1]))(task)
    with pytest.raises(ConfigError, match="hour '25'"):
        worker.schedule("* 25 * * *")
    with pytest.raises(Exception, match="wrong arguments for the task 'kind'"):
        worker.schedule("* * * * *", args={"nomber": 1})(task)
    with pytest.raises(ConfigError, match="contradict each other"):
        worker.schedule(every="1h", catch_up="all", overlap="skip", args={"number": 1})(task)
    with pytest.raises(ConfigError, match="'kind' has 40174 bytes of JSON; at most"):
        worker.schedule("* * * * *", args={"number": "9" * 40_000})(task)
    worker.schedule("* * * * *", name="a", args={"number": 1})(task)
    with pytest.raises(ConfigError, match="'a' already exists"):
        worker.schedule("* * * * *", name="a", args={"number": 1})(task)


def test_a_store_without_schedules_is_refused_at_the_start() -> None:
    class Without(MemoryQueue):
        capabilities = Capabilities(long_poll=True, schedules=False)

    async def main(clock: VirtualClock) -> None:
        with pytest.raises(Unsupported, match="cannot keep schedules: it cannot put a job and"):
            await with_task(Without(clock=clock), every="1h").run()
        async with with_task(Without(clock=clock)).running():
            await clock.advance(100)

    virtually(main)


def test_tables_without_schedules_stop_no_worker(tmp_path: Path) -> None:
    from pollwise.errors import SchemaError

    class Old(MemoryQueue):
        async def _swap_schedule(self, swap: Any) -> Any:
            raise SchemaError("the function is missing. Run `pollwise queue migrate URL`.")

    async def main(clock: VirtualClock) -> None:
        queue, seen, ran = Old(clock=clock), Seen(), []
        worker = with_task(queue, "a", seen, every="1h")
        worker.handle("mail")(lambda job: ran.append(job.payload))
        async with worker.running():
            await queue.put(NewJob("mail", 1))
            await clock.advance(2 * 3600)
        assert ran == [1]
        [failed] = seen.of(ChoreFailed)
        assert "pollwise queue migrate" in failed.error

    virtually(main)


def test_a_schedule_that_cannot_be_set_stops_no_worker() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, seen, ran = MemoryQueue(clock=clock), Seen(), []
        for number in range(NOTES_MAX["schedules"] - 1):
            await queue.schedules.set(f"other {number}", NewJob("other"), every="1h")
        worker = worker_of(queue, "a", seen)
        task = worker.task("mail")(lambda number: ran.append(number))
        for number in (1, 2):
            worker.schedule(every="100s", name=f"mail {number}", args={"number": number})(task)
        async with worker.running():
            await clock.advance(250)
        assert ran == [1, 1]
        [failed] = seen.of(ChoreFailed)
        assert failed.error.startswith("schedule 'mail 2': ConfigError: memory://")

    virtually(main)


def test_a_store_that_takes_no_ticks_for_a_while_stops_no_worker() -> None:
    """It may be full: then it is worked off, and ticks that are due are put later."""

    class Full(MemoryQueue):
        full = True

        async def _swap_schedule(self, swap: Any) -> Any:
            if self.full and swap.job is not None:
                raise StoreUnavailable("the memory is full")
            return await super()._swap_schedule(swap)

    async def main(clock: VirtualClock) -> None:
        queue, seen, ran = Full(clock=clock), Seen(), []
        worker = worker_of(queue, "a", seen)
        worker.handle("mail")(lambda job: ran.append(job.payload))
        for number in range(3):
            await queue.schedules.set(f"tick {number}", NewJob("mail", number), every="1m")
        async with worker.running():
            await clock.advance(61)
            await queue.put(NewJob("mail", "put before"))
            await clock.advance(30)
            assert ran == ["put before"]
            assert not seen.of(PollFailed)
            assert 1 <= len(seen.of(ChoreFailed)) <= 31 / TICK_AGAIN + 2
            queue.full = False
            await clock.advance(TICK_AGAIN + 1)
            assert ran == ["put before", 0, 1, 2]

    virtually(main)


def test_a_schedule_of_the_largest_size_ticks() -> None:
    """Its note grows with its first tick, and the header of a fraction of a second is longer."""

    async def main(clock: VirtualClock) -> None:
        queue, ran = MemoryQueue(clock=clock), []
        worker = worker_of(queue)
        worker.handle("mail")(lambda job: ran.append(job.kind))

        async def largest(most: int, make: Any) -> None:
            low, high = 0, most
            while low < high:
                middle = (low + high + 1) // 2
                try:
                    await queue.schedules.set(str(most), make("x" * middle), every="90.25s")
                    low = middle
                except ValueError:
                    high = middle - 1

        await largest(40_000, lambda text: NewJob("mail", text))
        await largest(10_000, lambda text: NewJob("mail", headers={"h": text}))
        async with worker.running():
            await clock.advance(100)
        assert ran == ["mail", "mail"]
        for each in await queue.schedules.list():
            assert await queue.schedules.pause(each.name)

    virtually(main)


def test_a_schedule_whose_job_cannot_be_put_stops_no_worker() -> None:
    class Refusing(Schedules):
        async def put_tick(self, name: str, value: str, *, undeclared: bool = False) -> Any:
            if name == "bad":
                raise JobError("the headers are too large")
            return await super().put_tick(name, value, undeclared=undeclared)

    async def main(clock: VirtualClock) -> None:
        queue, seen, ran = MemoryQueue(clock=clock), Seen(), []
        queue.schedules = Refusing(queue)
        worker = worker_of(queue, "a", seen)
        worker.handle("mail")(lambda job: ran.append(job.payload))
        await queue.schedules.set("bad", NewJob("mail", 1), every="100s")
        await queue.schedules.set("good", NewJob("mail", 2), every="100s")
        async with worker.running():
            await clock.advance(550)
            await queue.put(NewJob("mail", 3))
            await clock.advance(10)
        assert ran == [2, 2, 2, 2, 2, 3]
        assert not seen.of(PollFailed)
        [failed] = seen.of(ChoreFailed)
        assert "'bad'" in failed.error
        assert "too large" in failed.error

    virtually(main)


def test_calls_without_an_event_loop(tmp_path: Path) -> None:
    import pollwise

    with pollwise.open_sync(f"sqlite:///{tmp_path}/jobs.db") as queue:
        made = queue.schedules.set("nightly", NewJob("tidy"), cron="0 3 * * *", tz="Europe/Zurich")
        assert queue.schedules.list() == [made]
        assert queue.schedules.pause("nightly")
        assert queue.schedules.resume("nightly")
        job = queue.get(queue.schedules.run("nightly"))
        assert job is not None
        assert job.job.kind == "tidy"
        assert queue.schedules.remove("nightly")
        assert queue.schedules.get("nightly") is None
