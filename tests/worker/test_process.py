"""A worker as a process of its own: signals stop it, and nothing stays claimed."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from pollwise.queues.memory import MemoryQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime import signals
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.jobs import JobInfo, NewJob
from pollwise.runtime.signals import STUCK
from pollwise.worker import Worker
from tests.support.kit import Seen, options, until, virtually, working

CHILD = Path(__file__).parent / "children" / "stoppable.py"


class Child:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.told: list[str] = []

    def until(self, line: str, times: int = 1) -> None:
        """Read what it tells until it told this so many times; the watchdog ends it if it hangs."""
        assert self.process.stdout is not None
        while self.told.count(line) < times:
            told = self.process.stdout.readline().strip()
            assert told, f"it ended, and told only {self.told}"
            self.told.append(told)

    def ended(self, code: int = 0) -> list[str]:
        assert self.process.stdout is not None
        self.told += self.process.stdout.read().split("\n")[:-1]
        assert self.process.wait(20) == code
        return self.told


@contextmanager
def child(database: Path, how: str) -> Iterator[Child]:
    process = subprocess.Popen(
        [sys.executable, str(CHILD), str(database), how], stdout=subprocess.PIPE, text=True
    )
    watchdog = threading.Timer(40, process.kill)
    watchdog.start()
    try:
        with process:
            yield Child(process)
    finally:
        watchdog.cancel()
        process.kill()


def put(database: Path, *jobs: NewJob) -> None:
    async def main() -> None:
        async with SqliteQueue(database, synchronous="off") as queue:
            await queue.put(jobs)

    asyncio.run(main())


def left(database: Path) -> list[JobInfo]:
    async def main() -> list[JobInfo]:
        async with SqliteQueue(database) as queue:
            return await queue.arrivals()

    return asyncio.run(main())


@pytest.mark.parametrize("how", ["blocking", "awaited"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_finishes_what_runs_and_gives_the_rest_back(
    how: str, number: signal.Signals, tmp_path: Path
) -> None:
    database = tmp_path / "jobs.db"
    put(database, *(NewJob("finish", n) for n in range(6)))
    with child(database, how) as it:
        it.until("JobStarted finish", 2)
        it.process.send_signal(number)
        told = it.ended()
    assert told[-1] == "over"
    assert told.count("JobDone finish") == 2
    assert told.count("JobGivenBack finish") == 2
    assert [(info.state, info.job.payload, info.job.attempt) for info in left(database)] == [
        ("ready", n, 0) for n in range(2, 6)
    ]


def test_a_second_signal_ends_the_grace(tmp_path: Path) -> None:
    database = tmp_path / "jobs.db"
    put(database, NewJob("hang"), NewJob("finish"))
    with child(database, "blocking") as it:
        it.until("JobStarted finish")
        it.process.send_signal(signal.SIGTERM)
        it.until("JobDone finish")  # it is in its grace
        it.process.send_signal(signal.SIGINT)
        told = it.ended()
    assert told[-1] == "over"
    assert "JobGivenBack hang" in told
    [info] = left(database)
    assert (info.state, info.job.kind, info.job.attempt) == ("ready", "hang", 0)


def test_a_thread_that_hangs_does_not_keep_the_process(tmp_path: Path) -> None:
    database = tmp_path / "jobs.db"
    put(database, NewJob("block"))
    with child(database, "blocking") as it:
        it.until("JobStarted block")
        it.process.send_signal(signal.SIGTERM)
        it.until("WorkerStopping one")
        it.process.send_signal(signal.SIGTERM)
        assert it.ended()[-1] == "over"
    assert [info.state for info in left(database)] == ["ready"]


def test_a_handler_that_swallows_its_cancellation_does_not_keep_the_process(tmp_path: Path) -> None:
    database = tmp_path / "jobs.db"
    put(database, NewJob("stubborn"), NewJob("hang"))
    with child(database, "blocking") as it:
        it.until("JobStarted hang")
        it.process.send_signal(signal.SIGTERM)
        it.until("WorkerStopping one")
        it.process.send_signal(signal.SIGTERM)
        told = it.ended(STUCK)
    assert told.index("HandlerStuck ") < told.index("JobGivenBack stubborn")
    assert {(info.state, info.job.attempt) for info in left(database)} == {("ready", 0)}


def test_a_blocked_event_loop_does_not_keep_the_process(tmp_path: Path) -> None:
    database = tmp_path / "jobs.db"
    put(database, NewJob("freeze"))
    with child(database, "blocking") as it:
        it.until("frozen")
        it.process.send_signal(signal.SIGTERM)
        # Python may miss one that arrives just before a call that blocks, so send it again.
        while it.process.poll() is None:
            it.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                it.process.wait(0.5)
        it.ended(STUCK)
    assert [info.state for info in left(database)] == ["leased"]


def test_a_signal_stops_all_workers_of_an_event_loop(tmp_path: Path) -> None:
    database = tmp_path / "jobs.db"
    put(database, *(NewJob("finish", n) for n in range(6)))
    with child(database, "two") as it:
        it.until("JobStarted finish", 4)  # one holds four, two of them ahead; the other the rest
        it.process.send_signal(signal.SIGTERM)
        told = it.ended()
    assert told[-1] == "over"
    assert {"WorkerStopped one", "WorkerStopped two"} <= set(told)
    assert told.count("JobDone finish") == 4
    assert [info.state for info in left(database)] == ["ready", "ready"]


def test_a_signal_stops_an_idle_worker_at_once(tmp_path: Path) -> None:
    with child(tmp_path / "jobs.db", "blocking") as it:
        it.until("WorkerStarted one")
        it.process.send_signal(signal.SIGTERM)
        assert it.ended()[-1] == "over"


# In this process.


def test_signals_stop_the_workers_of_this_process_and_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]

    async def main(clock: VirtualClock) -> None:
        workers = [Worker(MemoryQueue(clock=clock), events=Seen().events) for _ in range(2)]
        for worker in workers:
            worker.handle("x")(print)
        short = asyncio.ensure_future(workers[0].run(options(signals=True)))
        tasks = [short, asyncio.ensure_future(workers[1].run(options(signals=True)))]
        await clock.advance(1)
        workers[0].stop()
        await short  # one that leaves does not take the signals with it
        signal.raise_signal(signal.SIGTERM)
        await asyncio.gather(*tasks)

    virtually(main)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert signals._Deadline.at is None, "this process is not ended"


def test_only_a_command_that_got_a_signal_ends_the_process() -> None:
    with signals.process_ends_on_signals():
        assert signals._Deadline.whole_process
    assert not signals._Deadline.whole_process


def test_a_worker_in_another_thread_leaves_signals_alone() -> None:
    ended: list[bool] = []

    def run() -> None:
        async def main(clock: VirtualClock) -> None:
            worker = Worker(MemoryQueue(clock=clock), events=Seen().events)
            worker.handle("x")(print)
            async with working(worker, options(signals=True)):
                await clock.advance(10)
            ended.append(True)

        virtually(main)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20)
    assert ended == [True]


@pytest.mark.parametrize("by", ["signal", "loop"])
def test_signals_that_somebody_else_handles_are_left_alone(by: str) -> None:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    heard: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in numbers[:2]:
            if by == "loop":
                loop.add_signal_handler(number, heard.append, number)
            else:
                signal.signal(number, lambda number, _: heard.append(number))
        worker = Worker(MemoryQueue(), events=Seen().events)
        worker.handle("x")(print)
        theirs = [signal.getsignal(number) for number in numbers]
        async with working(worker, options(signals=True)) as running:
            await until(lambda: bool(worker.state()))
            assert [signal.getsignal(number) for number in numbers] == theirs
            signal.raise_signal(signal.SIGTERM)
            await until(lambda: bool(heard))
            assert not running.done()
        assert [signal.getsignal(number) for number in numbers] == theirs

    try:
        asyncio.run(main())
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    assert heard == [signal.SIGTERM]


def test_a_handler_set_while_a_worker_runs_stays() -> None:
    before = signal.getsignal(signal.SIGTERM)

    async def main() -> None:
        worker = Worker(MemoryQueue(), events=Seen().events)
        worker.handle("x")(print)
        async with working(worker, options(signals=True)):
            await until(lambda: signal.getsignal(signal.SIGTERM) is not before)
            signal.signal(signal.SIGTERM, print)
        assert signal.getsignal(signal.SIGTERM) is print

    try:
        asyncio.run(main())
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_ignored_hangup_stays_ignored() -> None:
    """As `nohup` starts a process."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)

    async def main(clock: VirtualClock) -> None:
        worker = Worker(MemoryQueue(clock=clock), events=Seen().events)
        worker.handle("x")(print)
        async with working(worker, options(signals=True)):
            await clock.advance(1)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL

    try:
        virtually(main)
    finally:
        signal.signal(signal.SIGHUP, before)
