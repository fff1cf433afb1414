"""Waits that learn how long things take: what they remember, where, and what it changes."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pollwise import Fixed, Hints, Retry, until, until_sync
from pollwise.core.forecast.durations import Durations
from pollwise.core.strategies.completion import Completion
from pollwise.errors import ConfigError, NotYet, StoreError
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.jobs import NewJob
from pollwise.runtime.loop import poll
from pollwise.waiting import histories
from pollwise.waiting.histories import MemoryHistories, RunHistories, WaitHistory
from pollwise.waiting.history_file import SqliteHistories
from tests.support.kit import Seen, virtually
from tests.waiting.test_until import Job

#: Prices: a poll is worth two seconds of waiting.
PRICES: dict[str, Any] = {"poll_cost": 2.0, "wait_cost": 1.0}


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryHistories:
    """The memory of a fresh process."""
    fresh = MemoryHistories()
    monkeypatch.setattr(histories, "MEMORY", fresh)
    return fresh


def wait_for(takes: float, **given: Any) -> Job:
    """Wait for a job of this length, on a clock of its own; returns the job."""
    clock = VirtualClock()
    job = Job(clock, takes)
    chosen = {"name": "export", "events": Seen().events, "clock": clock, "seed": 1, **given}
    assert until_sync(job.check_sync, **chosen) == "done"
    return job


def cost(job: Job, takes: float) -> float:
    return 2.0 * len(job.times) + job.times[-1] - takes


# What it changes.


def test_it_polls_when_earlier_runs_ended() -> None:
    chance = random.Random(7)
    lengths = [chance.uniform(40, 50) for _ in range(60)]
    jobs = [wait_for(takes, **PRICES) for takes in lengths]
    late = list(zip(jobs, lengths, strict=True))[30:]
    learned = sum(cost(job, takes) for job, takes in late)
    plain = sum(cost(wait_for(takes), takes) for _, takes in late)
    assert learned < plain / 3
    for job, _ in late:
        assert job.times[0] > 30  # no poll while nothing ever ended so early
        assert len(job.times) <= 6


def test_only_the_ratio_of_the_prices_counts_and_it_matters() -> None:
    history = Durations()
    for seconds in (10, 20, 30, 40, 50) * 4:
        history.add(seconds)

    def times(poll_cost: float, wait_cost: float) -> list[float]:
        known = Durations.load(history.dump())
        return wait_for(45, poll_cost=poll_cost, wait_cost=wait_cost, history=known).times

    assert times(2, 1) == times(20, 10)
    assert len(times(0.1, 1)) > len(times(2, 1)) > len(times(30, 1))


def test_one_price_is_enough() -> None:
    assert wait_for(5, poll_cost=1.0).times == wait_for(5, wait_cost=1.0, name="other").times


def test_the_async_wait_learns_the_same() -> None:
    first, second = Durations(), Durations()

    def later(history: Durations) -> Callable[[VirtualClock], Any]:
        async def main(clock: VirtualClock) -> list[float]:
            job = Job(clock, 33)
            await until(job.check, clock=clock, history=history, seed=1, **PRICES)
            return job.times

        return main

    for _ in range(5):
        assert virtually(later(first)) == pytest.approx(
            wait_for(33, history=second, **PRICES).times
        )
    assert first.runs == second.runs == 5
    assert first.dump()["runs"] == 5


def test_a_hint_does_not_shift_the_beginning() -> None:
    """The end is measured from the call, however the first pause ended."""
    clock, hints, history = VirtualClock(), Hints(), Durations()
    for _ in range(20):
        history.add(100)
    job = Job(clock, 3)
    clock.call_later(3, hints.send)
    until_sync(job.check_sync, clock=clock, hints=hints, history=history, **PRICES)
    assert job.times == [3.0]
    state = history.dump()
    assert state["runs"] == 21
    probe = Durations.load(state)
    assert probe.next_poll(2.0) < 90  # it is known now that 3 s are possible


def test_a_loop_makes_the_first_poll_of_a_plan_when_it_is_planned() -> None:
    history = Durations()
    for _ in range(30):
        history.add(60)

    async def main(clock: VirtualClock) -> float:
        job = Job(clock, 0)

        async def fetch() -> list[str]:
            return [str(await job.check())]

        await anext(poll(fetch, Completion(history=history, **PRICES), clock=clock, spread=False))
        return job.times[0]

    assert 50 < virtually(main) < 75


# What is remembered.


class Recorded(Durations):
    """Durations that remember what they were taught."""

    taught: list[tuple[str, float, float]]

    def add_between(self, earliest: Any, latest: Any) -> None:
        self.taught.append(("between", earliest, latest))
        super().add_between(earliest, latest)

    def add_unfinished(self, after: Any) -> None:
        self.taught.append(("unfinished", after, 0.0))
        super().add_unfinished(after)


def taught_by(check: Callable[[VirtualClock], Any], **given: Any) -> list[tuple[str, float, float]]:
    history = Recorded()
    history.taught = []
    clock = VirtualClock()
    chosen = {"events": Seen().events, "clock": clock, "seed": 1, **PRICES, **given}
    with suppress(NotYet, OSError):
        until_sync(check(clock), history=history, **chosen)
    return history.taught


def test_the_end_lies_between_the_last_two_polls() -> None:
    times = list[float]()

    def check(clock: VirtualClock) -> Any:
        def poll_it() -> bool:
            times.append(clock.now())
            clock.wait(0.5)
            return clock.now() > 20

        return poll_it

    taught = taught_by(check)
    assert taught == [("between", times[-2], times[-1] + 0.5)]


def test_a_failed_poll_is_no_evidence() -> None:
    def check(clock: VirtualClock) -> Any:
        answers: Iterator[Any] = iter([False, OSError("down"), OSError("down"), True])

        def poll_it() -> Any:
            answer = next(answers)
            times.append(clock.now())
            if isinstance(answer, OSError):
                raise answer
            return answer

        return poll_it

    times = list[float]()
    assert taught_by(check) == [("between", times[0], times[-1])]
    assert len(times) == 4


def test_a_timeout_is_learned_as_longer_than_that() -> None:
    assert taught_by(lambda clock: lambda: None, timeout=500) == [("unfinished", 500.0, 0.0)]


def test_a_wait_that_failed_teaches_nothing() -> None:
    def check(clock: VirtualClock) -> Any:
        def poll_it() -> None:
            raise OSError("down")

        return poll_it

    assert taught_by(check, retry=Retry.never()) == []
    assert taught_by(check, timeout=5) == []


# Where.


def test_memory_is_by_name(memory: MemoryHistories) -> None:
    wait_for(10, **PRICES)
    wait_for(10, **PRICES)
    wait_for(10, name="build", **PRICES)
    assert [memory.load(name).runs for name in ("export", "build", "query")] == [2, 1, 0]


def test_a_wait_without_prices_remembers_nothing(memory: MemoryHistories) -> None:
    wait_for(10)
    assert memory.load("export").runs == 0


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> RunHistories:
    return MemoryHistories() if request.param == "memory" else SqliteHistories(tmp_path / "d.db")


def test_the_number_of_names_is_limited(
    store: RunHistories, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("histories", "history_file"):
        monkeypatch.setattr(f"pollwise.waiting.{module}.NAMES_MAX", 3)
    for now, name in enumerate(["a", "b", "c", "a", "d"]):
        store.learn(name, lambda history: history.add(5), float(now))
    assert {name: store.load(name).runs for name in "abcd"} == {"a": 2, "b": 0, "c": 1, "d": 1}


def test_threads_that_learn_at_once_lose_nothing(store: RunHistories) -> None:
    def learn() -> None:
        for _ in range(5):
            store.learn("export", lambda history: history.add(5), 0.0)

    threads = [threading.Thread(target=learn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.load("export").runs == 20


@pytest.mark.parametrize("form", ["path", "text", "url"])
def test_a_file_remembers_across_processes(form: str, tmp_path: Path) -> None:
    path = tmp_path / "durations.db"
    place = {"path": path, "text": str(path), "url": f"sqlite:///{path}"}[form]
    for _ in range(3):
        wait_for(10, history=place, **PRICES)
    assert SqliteHistories(path).load("export").runs == 3
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_async_wait_uses_the_file_from_a_thread(tmp_path: Path) -> None:
    used = list[str]()

    class Watched(SqliteHistories):
        def _call(self, *given: Any) -> Any:
            used.append(threading.current_thread().name)
            return super()._call(*given)

    async def main(clock: VirtualClock) -> None:
        job = Job(clock, 10)
        await until(job.check, name="export", history=tmp_path / "d.db", clock=clock)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pollwise.waiting.history_file.SqliteHistories", Watched)
        virtually(main)
    assert len(used) == 2
    assert threading.main_thread().name not in used


def test_the_file_may_hold_a_queue_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with SqliteQueue(tmp_path / "jobs.db") as queue:
            await queue.put(NewJob("resize"))
            await asyncio.to_thread(wait_for, 10, history=tmp_path / "jobs.db", **PRICES)
            assert (await queue.stats()).ready == 1

    asyncio.run(main())
    assert SqliteHistories(tmp_path / "jobs.db").load("export").runs == 1


@pytest.mark.parametrize("state", ["", "{", "[]", '{"version": 99}', "[" * 100_000])
def test_what_cannot_be_read_begins_again(
    state: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "d.db"
    wait_for(10, history=path, **PRICES)
    with sqlite3.connect(path) as file:
        file.execute("UPDATE pollwise_durations SET state = ?", [state])
    file.close()
    with caplog.at_level(logging.WARNING, "pollwise"):
        wait_for(10, history=path, **PRICES)
    assert "durations of 'export' cannot be read and begin again" in caplog.text
    assert SqliteHistories(path).load("export").runs == 1


def test_a_locked_file_delays_nothing_for_long_and_loses_no_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pollwise.waiting.history_file.LOCK_TIMEOUT", 0.01)
    path = tmp_path / "d.db"
    wait_for(10, history=path, **PRICES)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with caplog.at_level(logging.WARNING, "pollwise"):
        wait_for(10, history=path, **PRICES)
    other.close()
    assert "this run is not learned" in caplog.text
    assert SqliteHistories(path).load("export").runs == 1


# Errors.


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": None}, "needs a name"),
        ({"name": "x" * 201}, "201 characters; 200 is the maximum"),
        ({"poll_cost": 0}, "poll_cost = 0 must be above 0"),
        ({"wait_cost": -1}, "wait_cost = -1 must be above 0"),
        ({"strategy": Fixed("1s")}, "leave out poll_cost, wait_cost and history"),
        ({"history": 7}, "history = 7 is of type int; give Durations()"),
        ({"history": "postgres://app:hunter2@db/x"}, r"history = postgres://… names no file"),
        ({"history": "sqlite://host/x.db"}, r"names no file"),
        ({"history": "sqlite:///"}, r"names no file"),
        ({"history": "sqlite:///x.db?mode=ro"}, r"names no file"),
    ],
)
def test_wrong_arguments_are_refused(given: dict[str, Any], words: str) -> None:
    chosen: dict[str, Any] = {"name": "export", "poll_cost": 1.0, **given}
    with pytest.raises(ConfigError, match=words) as raised:
        until_sync(lambda: True, **chosen)
    assert "hunter2" not in str(raised.value)


def test_a_wrong_place_is_an_error_before_the_wait(tmp_path: Path) -> None:
    polls = list[int]()

    def check() -> bool:
        polls.append(1)
        return True

    with pytest.raises(StoreError, match="does not exist"):
        until_sync(check, name="x", history=tmp_path / "no" / "d.db")
    (tmp_path / "text").write_text("no database " * 100)
    with pytest.raises(StoreError, match="not a SQLite database"):
        until_sync(check, name="x", history=tmp_path / "text")
    assert polls == []


def test_the_dump_of_a_history_is_json(store: RunHistories) -> None:
    store.learn("export", lambda history: history.add(5), 0.0)
    assert json.loads(json.dumps(store.load("export").dump()))["runs"] == 1
    assert WaitHistory("export", Durations()).blocks is False
