"""Workers write what they did, minute by minute, with their records and not more often."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pollwise.core.breaker import Breaker
from pollwise.core.retry import Retry
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.errors import Reject, SchemaError, Snooze, StoreUnavailable
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.notes import NewNote, NoteWritten
from pollwise.queues.postgres.queue import TABLES
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.queues.urls import open_queue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import ChoreFailed
from pollwise.runtime.jobs import Job, NewJob
from pollwise.runtime.rollups import by_kind, merged, series
from pollwise.runtime.rollups.keeping import FOLD_ROWS
from pollwise.runtime.rollups.rows import BY_MINUTE, BY_WORKER, HistoryRange, HistoryRow
from pollwise.storage.postgres import schema
from pollwise.storage.sql import migrations
from pollwise.worker import Worker
from tests.support.kit import Seen, make_queue, options, until_empty, virtually, working
from tests.support.servers import Postgres

HOUR = 3600.0
PACE = Adaptive("100ms", "5s")
stores = pytest.mark.parametrize("store", ["memory", "sqlite"])


@stores
def test_what_a_worker_did(store: str, tmp_path: Path) -> None:
    """Each way to end, counted by kind; a stop writes the last minute."""

    async def main(clock: VirtualClock) -> None:
        queue = make_queue(store, tmp_path, clock)
        worker = Worker(queue, name="w", events=Seen().events)
        snoozed: list[str] = []

        @worker.handle("mail", retry=Retry.fixed("1s", attempts=2))
        async def mail(job: Job) -> None:
            await asyncio.sleep(0.5)
            if job.payload == "fail" or (job.payload == "once" and job.attempt == 1):
                raise ValueError("no")
            if job.payload == "reject":
                raise Reject("no")
            if job.payload == "snooze" and not snoozed:
                snoozed.append(job.id)
                raise Snooze("1s")

        for payload in ("good", "good", "fail", "once", "reject", "snooze"):
            await queue.put(NewJob("mail", payload))
        async with queue:
            async with working(worker, options(polling=PACE)):
                await until_empty(queue)
            points = await queue.history("1h")
            assert await queue.workers() == []
            kinds = by_kind(points)
        mails, polls = kinds["mail"], kinds[""]
        assert (mails.done, mails.failed, mails.dead) == (4, 4, 2)
        assert mails.found == 9, "six, one snooze and two retries"
        assert mails.waits.count == mails.found
        assert mails.durations.count == mails.done + mails.failed
        assert mails.durations.mean == pytest.approx(0.5, abs=0.01)
        assert polls.polls == queue.calls["claim"]  # type: ignore[attr-defined]
        assert 0 < polls.empty_polls < polls.polls
        assert polls.interval_low == pytest.approx(0.1)

    virtually(main)


class Writes(MemoryQueue):
    """Notes the writes: when, and how many rows of history they had."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self.writes: list[tuple[float, int]] = []
        self.replaced = 0
        self.fails = 0

    async def _write_note(self, note: NewNote) -> NoteWritten:
        self.writes.append((self.clock.now(), len(note.history)))
        if self.fails:
            self.fails -= 1
            raise StoreUnavailable("on purpose")
        return await super()._write_note(note)

    async def _replace_history(self, old: Sequence[HistoryRow], new: Sequence[HistoryRow]) -> bool:
        self.replaced += len(old)
        return await super()._replace_history(old, new)


def test_hours_of_a_worker() -> None:
    """At most one write a minute while active, and none of its own while idle."""

    async def main(clock: VirtualClock) -> None:
        queue = Writes(clock)
        seen = Seen()
        worker = Worker(queue, name="w", events=seen.events)
        ran: list[float] = []

        @worker.handle("job")
        async def handle(job: Job) -> None:
            ran.append(clock.epoch())

        began = clock.epoch()
        async with working(worker, options(polling=PACE)):
            for _ in range(120):
                await queue.put([NewJob("job")] * 10)
                await clock.advance(30)
            active = len(queue.writes)
            await clock.advance(2 * HOUR)
            idle = len(queue.writes) - active
            await queue.put(NewJob("job"))
            await clock.advance(60)
        gaps = [later - sooner for (sooner, _), (later, _) in itertools.pairwise(queue.writes[:-1])]
        assert min(gaps) >= 59.9, "as often as the record of the worker, which was there before"
        assert active <= 61
        assert idle <= 121
        assert max(rows for _, rows in queue.writes) <= 3
        points = await queue.history("4h", by="minute")
        line = series(points, 60.0, began, clock.epoch())
        assert sum(each.done for each in line) == len(ran) == 1201
        assert [each.done for each in line[1:60]] == [20] * 59
        polls = merged(points)
        assert polls.polls == worker_polls(seen)
        assert 3 * HOUR <= polls.worker_seconds <= 3 * HOUR + 61
        assert polls.polls_at(0.1) > 5 * polls.polls
        by_worker = HistoryRange(BY_WORKER, 0, 2**40)
        assert queue.replaced > 0, "minutes that are old enough were folded"
        assert len(queue._history.read(by_worker)) + len(
            queue._history.read(HistoryRange(BY_MINUTE, 0, 2**40))
        ) in (181, 182, 183)

    virtually(main)


def worker_polls(seen: Seen) -> int:
    return seen.names().count("PollFinished")


def test_a_write_that_fails_is_made_up_for() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = Writes(clock)
        worker = Worker(queue, name="w", events=Seen().events)

        @worker.handle("job")
        async def handle(job: Job) -> None:
            """Do nothing."""

        async with working(worker, options(polling=PACE)):
            for n in range(30):
                await queue.put(NewJob("job"))
                await clock.advance(60)
                queue.fails = 12 if n == 5 else queue.fails
        assert max(rows for _, rows in queue.writes) >= 12
        assert merged(await queue.history("1h")).done == 30
        assert len(await queue.history("1h", ["job"], "minute")) == 30, "each in its minute"

    virtually(main)


def test_a_trial_of_a_breaker_counts_as_failed() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        worker = Worker(queue, name="w", events=Seen().events)

        @worker.handle("job", breaker=Breaker(1, "5s"))
        async def handle(job: Job) -> None:
            raise ValueError("no")

        await queue.put(NewJob("job"))
        async with working(worker, options(polling=PACE)):
            await clock.advance(30)
        [point] = await queue.history("1h", ["job"], "hour")
        assert point.failed == point.durations.count >= 2

    virtually(main)


def test_a_killed_worker_loses_at_most_a_minute(tmp_path: Path) -> None:
    database = tmp_path / "jobs.db"
    child = Path(__file__).parent / "children" / "counting.py"
    ended = subprocess.run(
        [sys.executable, child, database, "400"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == -9, ended.stderr
    ran = [float(line) for line in ended.stdout.split()]

    async def main(clock: VirtualClock) -> None:
        async with SqliteQueue(database, clock=clock, watch=0) as queue:
            points = await queue.history("24h", ["job"])
        kept = sum(each.done for each in points)
        assert len([at for at in ran if at < ran[-1] - 60]) <= kept <= len(ran)
        assert kept > 30

    virtually(main)


def test_folding_a_long_history_takes_bounded_steps() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = Writes(clock)
        now = int(clock.epoch() // 60 * 60)
        value = '[1,null,[["job",1,0,0,1,[],[]]]]'
        rows = [
            HistoryRow(BY_WORKER, now - 20_000 - minute * 60, f"i{n} w", value)
            for minute in range(100)
            for n in range(12)
        ]
        queue._history.write(rows)
        steps = 1
        before = merged(await queue.history("24h"))
        while await queue.fold_history():
            steps += 1
        assert queue.replaced <= (FOLD_ROWS + 50) * steps
        assert steps == 3
        assert merged(await queue.history("24h")) == before
        assert len(queue._history.read(HistoryRange(BY_MINUTE, 0, 2**40))) == 100

    virtually(main)


def test_a_database_that_is_not_migrated_yet(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker runs on tables without the history, and says once that it keeps none."""
    url = postgres.create_database("no_history")
    before = tuple(each for each in migrations(TABLES.package) if each[0] < 6)

    async def main() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(schema, "migrations", lambda _: before)
            async with open_queue(url) as queue:
                assert await queue.migrate() == [number for number, _ in before]
        async with open_queue(url) as queue:
            seen = Seen()
            worker = Worker(queue, name="w", events=seen.events)

            @worker.handle("job")
            async def handle(job: Job) -> None:
                worker.stop()

            await queue.put(NewJob("job"))
            await worker.run(options())
            assert [event.chore for event in seen.of(ChoreFailed)] == ["history"]
            with pytest.raises(SchemaError, match="pollwise queue migrate"):
                await queue.history()
            assert 6 in await queue.migrate()
            assert await queue.history() == []

    asyncio.run(main())
