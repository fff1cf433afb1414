"""A worker goes on at the pace that workers of its queue learned, whatever their names were."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.worth import Worth
from pollwise.errors import ConfigError, StoreUnavailable
from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.notes import NewNote, NoteWritten
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.queues.presence import WorkerInfo
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import PaceRestored
from pollwise.runtime.jobs import Job, NewJob
from pollwise.runtime.loop import PollLoop
from pollwise.runtime.rollups.keeping import PACES_KEPT, PACES_MAX, PaceKept
from pollwise.runtime.rollups.kept_pace import PACE_EVERY, READ_WITHIN
from pollwise.runtime.rollups.rows import (
    BY_MINUTE,
    PACE,
    PACE_AT,
    ROW_BYTES_MAX,
    HistoryRange,
    HistoryRow,
)
from pollwise.worker import Worker
from tests.queues.benches import MemoryBench, RedisBench, SqliteBench, VirtualBench, migrated
from tests.support.kit import Seen, options, virtually, working
from tests.support.servers import Postgres, Redis

HOUR = 3600.0
WORTH = Worth(poll_cost=20, wait_cost=1)
PACES = HistoryRange(PACE, 0, 2**40)


class PostgresPlace(VirtualBench):
    def __init__(self, clock: VirtualClock, dsn: str, name: str) -> None:
        super().__init__(clock)
        self._dsn, self._name = dsn, name

    async def queue(self, **given: Any) -> Queue:
        return self.keep(PostgresQueue(self._dsn, self._name, clock=self.clock, **given))


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> VirtualBench:
    clock = VirtualClock()
    if request.param == "memory":
        return MemoryBench(clock)
    if request.param == "sqlite":
        return SqliteBench(clock, tmp_path / "jobs.db")
    if request.param == "redis":
        redis: Redis = request.getfixturevalue("redis")
        return RedisBench(clock, redis.url())
    postgres: Postgres = request.getfixturevalue("postgres")
    return PostgresPlace(clock, migrated(postgres.dsn()), f"pace-{tmp_path.name}")


class Shift:
    """A worker that runs for a while, and what it knew at the end."""

    def __init__(self, queue: Queue, name: str, kinds: Sequence[str] = ("job",)) -> None:
        self.seen = Seen()
        self.worker = Worker(queue, name=name, events=self.seen.events)
        self.queue = queue
        for kind in kinds:
            self.worker.handle(kind)(self._handle)

    async def _handle(self, job: Job) -> None:
        """Do nothing."""

    async def run(
        self, clock: VirtualClock, span: float, *, every: float = 0.0, polling: Strategy = WORTH
    ) -> dict[str, Any]:
        """every: how often a job is put, in seconds; 0: never."""
        async with working(self.worker, options(polling=polling, hints=False)):
            for _ in range(int(span / every) if every else 0):
                await self.queue.put(NewJob("job"))
                await clock.advance(every)
            await clock.advance(0.0 if every else span)
            return self.worker.state()

    @property
    def restored(self) -> list[PaceRestored]:
        return self.seen.of(PaceRestored)


def test_a_new_worker_knows_what_the_last_one_learned(bench: VirtualBench) -> None:
    clock = bench.clock

    async def main() -> None:
        first = Shift(await bench.queue(), "w-1")
        before = await first.run(clock, 1800.0, every=5.0)
        assert first.restored == []
        await clock.advance(120.0)
        second = Shift(await bench.queue(), "w-2")
        after = await second.run(clock, 5.0)
        [event] = second.restored
        assert event.problem == ""
        assert event.age == pytest.approx(120.0, abs=1.0)
        assert after["long_run_rate"] == pytest.approx(before["long_run_rate"], rel=0.1)
        assert after["interval"] == pytest.approx(before["interval"], rel=0.5)
        cold = Shift(await bench.queue(), "w-3")
        other = await cold.run(clock, 5.0, polling=Worth(poll_cost=21, wait_cost=1))
        assert cold.restored == [], "another strategy has learned nothing"
        assert other["polls"] >= 3 * after["polls"]
        await bench.close()

    clock.run(main())


def test_paces_are_kept_for_each_strategy_and_set_of_kinds(bench: VirtualBench) -> None:
    clock = bench.clock

    async def main() -> None:
        queue = await bench.queue()
        pace = Adaptive("100ms", "7s")
        await Shift(queue, "a").run(clock, 600.0, every=5.0)
        await Shift(queue, "b").run(clock, 600.0, every=5.0)
        await Shift(queue, "c").run(clock, 600.0, polling=pace)
        await Shift(queue, "d", ["job", "more"]).run(clock, 600.0, polling=pace)
        kept = await queue.paces()
        assert len(kept) == 3, "workers of a kind share one"
        assert [each.saved_at for each in kept] == sorted(each.saved_at for each in kept)
        assert {json.dumps(each.state["pacer"]["strategy"]) for each in kept} == {
            '"worth"', '"adaptive"'
        }  # fmt: skip
        more = Shift(queue, "e", ["job", "more", "even more"])
        await more.run(clock, 60.0, polling=pace)
        [event] = more.restored
        assert event.problem == "", "that of other kinds is better than none"
        assert event.age < 10.0
        await bench.close()

    clock.run(main())


def test_paces_are_no_history(bench: VirtualBench) -> None:
    """What an earlier version reads and folds has no paces in it, and it leaves them alone."""
    clock = bench.clock

    async def main() -> None:
        queue = await bench.queue()
        await Shift(queue, "w").run(clock, 1800.0, every=10.0)
        [pace] = await queue.paces()
        before = await queue.history("4h", by="hour")
        await clock.advance(3 * HOUR)
        while await queue.fold_history():
            pass
        [rows] = await queue._read_history([HistoryRange(BY_MINUTE, 0, 2**40)])
        assert rows, "minutes were folded"
        assert await queue.history("4h", by="hour") == before
        assert await queue.paces() == [pace]
        assert await queue.workers() == []
        await bench.close()

    clock.run(main())


def test_paces_are_bounded(bench: VirtualBench) -> None:
    clock = bench.clock

    async def main() -> None:
        queue = await bench.queue()
        now = clock.epoch()
        info = info_of("w")
        for n in range(PACES_MAX + 3):
            state = json.dumps({"saved_at": now + n, "at": n})
            await queue.record_worker(info, 60.0, [pace_row(n, state)])
        for n, value in enumerate(("", "[]", "{}", '{"saved_at": null}', '{"saved_at": NaN}')):
            await queue.record_worker(info, 60.0, [pace_row(100 + n, value)])
        await queue.record_worker(
            info, 60.0, [pace_row(200, json.dumps({"saved_at": now - PACES_KEPT - 1}))]
        )
        assert len(await queue.paces()) == PACES_MAX
        await queue.fold_history()
        [left] = await queue._read_history([PACES])
        assert [row.writer for row in left] == [
            pace_row(n, "").writer for n in range(3, PACES_MAX + 3)
        ]
        assert [each.saved_at for each in await queue.paces()] == [row_at(row) for row in left]
        await clock.advance(PACES_KEPT + 100.0)
        await queue.fold_history()
        assert await queue.paces() == []
        await bench.close()

    clock.run(main())


def row_at(row: HistoryRow) -> Any:
    return json.loads(row.value)["saved_at"]


def pace_row(number: int, value: str) -> HistoryRow:
    return HistoryRow(PACE, PACE_AT, f"{number:016x}-{0:016x}", value)


def info_of(name: str) -> WorkerInfo:
    told = {"name": name, "instance": "1"}
    info = WorkerInfo.from_value(told)
    assert info is not None
    return info


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ([HistoryRow(PACE, PACE_AT, "1 w", "{}")], "the key '1 w', which is not valid"),
        ([pace_row(1, "{}")._replace(at=60)], "is not valid"),
        ([pace_row(1, "x" * (ROW_BYTES_MAX + 1))], "is above"),
        ([pace_row(1, "{}"), pace_row(2, "{}")], "at most one pace at a time"),
    ],
)
def test_rows_that_a_worker_does_not_write_are_refused(rows: list[HistoryRow], match: str) -> None:
    async def main(clock: VirtualClock) -> None:
        with pytest.raises(ConfigError, match=match):
            await MemoryQueue(clock=clock).record_worker(info_of("w"), 60.0, rows)

    virtually(main)


# What it costs.


class Calls(MemoryQueue):
    """Counts the calls about notes and history, and fails when asked to."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self.written: list[tuple[float, Sequence[HistoryRow]]] = []
        self.reads = 0
        self.fails: Exception | None = None
        self.hangs = False

    async def _write_note(self, note: NewNote) -> NoteWritten:
        self.written.append((self.clock.now(), note.history))
        return await super()._write_note(note)

    async def paces(self) -> list[PaceKept]:
        self.reads += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails is not None:
            raise self.fails
        return await super().paces()

    @property
    def paces_written(self) -> list[float]:
        return [at for at, rows in self.written if any(row.level == PACE for row in rows)]


def test_one_read_and_no_write_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pace rides on the records that are written anyway, at most every five minutes."""

    async def main(clock: VirtualClock) -> None:
        counts = {}
        for polling in (WORTH, Fixed("500ms")):
            queue = Calls(clock)
            await Shift(queue, "w").run(clock, 2 * HOUR, polling=polling)
            counts[polling.name] = len(queue.written)
            assert queue.reads == (polling is WORTH), "a fixed interval learns nothing"
            times = queue.paces_written
            if polling is WORTH:
                assert 20 <= len(times) <= 25
                gaps = [later - sooner for sooner, later in itertools.pairwise(times[:-1])]
                assert min(gaps) >= PACE_EVERY
                assert times[-1] == queue.written[-1][0], "a stop writes it too"
            else:
                assert times == []
        monkeypatch.setattr(PollLoop, "dump", lambda _: None)
        without = Calls(clock)
        await Shift(without, "w").run(clock, 2 * HOUR)
        assert without.paces_written == []
        assert abs(counts["worth"] - len(without.written)) <= 1

    virtually(main)


@pytest.mark.parametrize("trouble", [StoreUnavailable("gone"), ValueError("odd"), None])
def test_a_store_that_cannot_be_read_costs_the_pace_and_nothing_else(
    trouble: Exception | None,
) -> None:
    async def main(clock: VirtualClock) -> None:
        queue = Calls(clock)
        queue.fails, queue.hangs = trouble, trouble is None
        shift = Shift(queue, "w")
        began = clock.now()
        state = await shift.run(clock, 60.0, every=5.0)
        [event] = shift.restored
        assert event.problem.startswith("it could not be read: ")
        assert state["found"] >= 8
        assert queue.written[0][0] <= began + READ_WITHIN + 1.0

    virtually(main)


def test_a_damaged_pace_is_not_used() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        await Shift(queue, "w").run(clock, 600.0, every=5.0)
        [row] = queue._history.read(PACES)
        damaged = row.value.replace('"_regimes"', '"_empires"')
        queue._history.write([row._replace(value=damaged)])
        shift = Shift(queue, "w")
        state = await shift.run(clock, 60.0, every=5.0)
        assert [each.problem for each in shift.restored] == ["the state has other attributes"]
        assert state["found"] >= 8

    virtually(main)


def test_a_pace_that_is_too_large_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pollwise.runtime.rollups.kept_pace.ROW_BYTES_MAX", 100)

    async def main(clock: VirtualClock) -> None:
        queue = Calls(clock)
        await Shift(queue, "w").run(clock, 600.0)
        assert queue.paces_written == []
        assert queue.written

    virtually(main)


def test_a_killed_worker_is_remembered(tmp_path: Path) -> None:
    """`kill -9` after some minutes: what it knew at its last write is there."""
    database = tmp_path / "jobs.db"
    child = Path(__file__).parent / "children" / "counting.py"
    ended = subprocess.run(
        [sys.executable, child, database, "700"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == -9, ended.stderr

    async def main(clock: VirtualClock) -> None:
        await clock.advance(760.0)
        async with SqliteQueue(database, clock=clock, watch=0) as queue:
            shift = Shift(queue, "another")
            await shift.run(clock, 10.0, polling=options().polling)
            [event] = shift.restored
            assert event.problem == ""
            assert event.age < PACE_EVERY + 2 * 60.0 + 70.0

    virtually(main)


@pytest.mark.parametrize("together", [True, False], ids=["one process", "two processes"])
def test_what_its_own_work_frees_does_not_end_a_fixed_pause(
    bench: VirtualBench, together: bool
) -> None:
    """Nor what it left: jobs of one key and full batches wait for the interval."""
    clock = bench.clock

    async def main() -> None:
        first = Shift(await bench.queue(), "w")
        other = Shift(first.queue if together else await bench.queue(), "v")
        fixed = options(concurrency=2, prefetch=0, polling=Fixed("2s"))
        async with working(first.worker, fixed), working(other.worker, fixed):
            await clock.advance(10)
            await first.queue.put([NewJob("job", key="k") for _ in range(50)])
            await clock.advance(11)
            keyed = (await first.queue.stats()).ready + (await first.queue.stats()).blocked
            # Each of the two workers polls once because of the put, and then every two seconds.
            assert keyed >= 50 - 2 * 7
            await first.queue.put([NewJob("job") for _ in range(100)])
            await clock.advance(11)
            stats = await first.queue.stats()
            assert stats.ready + stats.blocked >= keyed + 100 - 2 * 7 * 2
        await bench.close()

    clock.run(main())
