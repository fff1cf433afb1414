"""Histograms, points and rows: sums are kept, quantiles are nearly exact, sizes are bounded."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollwise.errors import ConfigError
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.loop import Counts
from pollwise.runtime.rollups import (
    EMPTY,
    OTHER_KINDS,
    Histogram,
    HistoryPoint,
    by_kind,
    merged,
    series,
)
from pollwise.runtime.rollups.histogram import BUCKETS, added, bounds_of, bucket_of
from pollwise.runtime.rollups.points import HOUR, MINUTE, grouped
from pollwise.runtime.rollups.rows import (
    BY_HOUR,
    BY_WORKER,
    KINDS_PER_ROW_MAX,
    ROW_BYTES_MAX,
    ROWS_PER_WRITE_MAX,
    HistoryRange,
    HistoryRow,
    encoded,
    points_of,
)
from pollwise.runtime.rollups.tally import KINDS_COUNTED_MAX, Tally
from tests.support.kit import virtually

durations = st.floats(0.0, 1e7)
many = st.lists(durations, max_size=5)
counts = st.integers(0, 10**6)
few = settings(max_examples=30)
spans = st.sampled_from([MINUTE, HOUR])


@st.composite
def points(draw: st.DrawFn) -> HistoryPoint:
    length = draw(spans)
    low, high = sorted([draw(durations), draw(durations)])
    polls = draw(counts)
    return HistoryPoint(
        at=draw(st.integers(0, 48)) * length,
        seconds=length,
        kind=draw(st.sampled_from(["", "mail", "report", "☃"])),
        done=draw(counts),
        failed=draw(counts),
        dead=draw(counts),
        found=draw(counts),
        polls=polls,
        empty_polls=draw(counts),
        failed_polls=draw(counts),
        hinted=draw(counts),
        worker_seconds=draw(durations),
        interval_total=draw(durations),
        interval_low=low if polls else None,
        interval_high=high if polls else None,
        waits=Histogram.of(draw(many)),
        durations=Histogram.of(draw(many)),
    )


def sums(some: list[HistoryPoint]) -> list[float]:
    """Every figure that adds up, over all points."""
    names = (
        "done", "failed", "dead", "found", "polls", "empty_polls", "failed_polls", "hinted",
        "worker_seconds", "interval_total",
    )  # fmt: skip
    whole = [math.fsum(getattr(each, name) for each in some) for name in names]
    for histograms in ([each.waits for each in some], [each.durations for each in some]):
        whole += [sum(each.count for each in histograms), sum(each.total for each in histograms)]
    return whole


def same(got: list[float], wanted: list[float]) -> bool:
    return all(
        math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-5) for a, b in zip(got, wanted, strict=True)
    )


@given(durations)
def test_a_duration_is_within_its_bucket(duration: float) -> None:
    low, high = bounds_of(bucket_of(duration))
    assert low * (1 - 1e-12) <= duration < high * (1 + 1e-12)


@pytest.mark.parametrize("odd", [0.0, -1.0, math.nan, math.inf, 1e300])
def test_odd_durations_have_a_bucket(odd: float) -> None:
    bucket = bucket_of(odd) if odd != math.inf else BUCKETS - 1
    assert 0 <= bucket < BUCKETS


@given(st.lists(durations, min_size=1, max_size=200), st.floats(0.0, 1.0))
def test_a_quantile_is_in_the_bucket_of_the_exact_one(some: list[float], share: float) -> None:
    exact = sorted(some)[max(math.ceil(share * len(some)), 1) - 1]
    found = Histogram.of(some).quantile(share)
    assert found is not None
    assert bucket_of(found) == bucket_of(exact)


def test_a_quantile_of_nothing() -> None:
    assert EMPTY.quantile(0.5) is None
    assert EMPTY.mean is None
    with pytest.raises(ValueError, match="from 0 to 1"):
        EMPTY.quantile(95)


@given(st.lists(many, max_size=5))
def test_added_histograms_are_one_of_everything(parts: list[list[float]]) -> None:
    whole = Histogram.of([each for part in parts for each in part])
    got = added(map(Histogram.of, parts))
    assert got.counts == whole.counts
    assert math.isclose(got.total, whole.total, rel_tol=1e-9, abs_tol=1e-9)


@few
@given(st.lists(points(), max_size=6), st.sampled_from([60.0, 300.0, 3600.0]))
def test_nothing_is_lost_by_adding_up(some: list[HistoryPoint], step: float) -> None:
    wanted = sums(some)
    assert same(sums([merged(some)]), wanted)
    assert same(sums(list(by_kind(some).values())), wanted)
    assert same(sums(grouped(some, MINUTE)), wanted)
    assert same(sums(grouped(some, HOUR)), wanted)
    line = series(some, step, 0.0, 50 * HOUR)
    assert same(sums(line), wanted)
    assert [each.at for each in line] == [n * step for n in range(len(line))]
    assert all(each.seconds == step for each in line)
    lows = [each.interval_low for each in some if each.interval_low is not None]
    assert merged(some).interval_low == min(lows, default=None)


@few
@given(st.lists(points(), min_size=1, max_size=6))
def test_what_is_written_comes_back(some: list[HistoryPoint]) -> None:
    row = [
        replace(each, polls=0, empty_polls=0, failed_polls=0, hinted=0, worker_seconds=0.0,
                interval_total=0.0)
        if each.kind
        else replace(each, done=0, failed=0, dead=0, found=0, waits=EMPTY, durations=EMPTY)
        for each in by_kind(some).values()
    ]  # fmt: skip
    back = points_of(HistoryRow(BY_HOUR, 0, "", encoded(row)))
    assert same(sums(list(back)), sums(row))
    assert {each.kind for each in back} == {each.kind for each in row}


def test_a_row_is_bounded() -> None:
    """However many kinds there are, and however long their names; the busiest keep theirs."""
    long = Histogram.of([1.2**n / 1000 for n in range(120)])
    some = [
        HistoryPoint(0.0, kind=f"{n} " + "☃" * 190, done=n, found=n, waits=long, durations=long)
        for n in range(500)
    ]
    text = encoded(some)
    back = points_of(HistoryRow(BY_WORKER, 0, "w", text))
    assert len(text.encode()) <= ROW_BYTES_MAX
    assert same(sums(list(back)), sums(some))
    assert {each.kind.split()[0] for each in back} >= {OTHER_KINDS, "499", "498"}
    small = encoded([HistoryPoint(0.0, kind=f"k{n}", done=1) for n in range(500)])
    assert len(points_of(HistoryRow(BY_WORKER, 0, "w", small))) == KINDS_PER_ROW_MAX + 1


@few
@given(st.recursive(st.none() | st.floats() | st.text(max_size=3) | st.integers(), st.lists))
def test_a_row_of_somebody_else_is_ignored(value: object) -> None:
    for text in (json.dumps(value), json.dumps([1, value, value]), json.dumps([1, None, [value]])):
        assert isinstance(points_of(HistoryRow(BY_WORKER, 0, "w", text)), tuple)
    assert points_of(HistoryRow(BY_WORKER, 0, "w", "[" * 100_000)) == ()
    assert points_of(HistoryRow(9, 0, "w", "[1, null, []]")) == ()


def test_a_series_is_bounded() -> None:
    with pytest.raises(ConfigError, match="longer step"):
        series([], 1.0, 0.0, 1e9)
    with pytest.raises(ConfigError, match="at least 1 s"):
        series([], 0.0, 0.0, 1.0)


def test_a_fixed_interval_for_comparison() -> None:
    point = HistoryPoint(0.0, polls=10, failed_polls=2, worker_seconds=60.0, interval_total=40.0)
    assert (point.polls_at(0.5), point.interval_mean) == (120.0, 5.0)


# The tally of a run


def rows_of(tally: Tally) -> dict[int, list[HistoryPoint]]:
    return {row.at: list(points_of(row)) for row in tally.rows()}


def test_a_tally_by_minute() -> None:
    async def main(clock: VirtualClock) -> None:
        await clock.advance(-clock.epoch() % 60)
        start = int(clock.epoch())
        tally, loop = Tally("w", clock), Counts()
        await clock.advance(10)
        loop.polls, loop.found = 2, 2
        loop.failed = 1
        tally.found(clock.now(), ["mail", "mail"], [0.5, 1.5])
        tally.polled(loop, 5.0)
        tally.done(clock.now(), "mail", 0.1)
        tally.failed(clock.now(), "mail", 0.3)
        tally.died("mail")
        [polls, mail] = rows_of(tally)[start]
        assert (polls.polls, polls.failed_polls, polls.interval_low) == (2, 1, 5.0)
        assert polls.worker_seconds == pytest.approx(10.0)
        assert (mail.done, mail.failed, mail.dead, mail.found) == (1, 1, 1, 2)
        assert mail.waits == Histogram.of([0.5, 1.5])
        assert mail.durations.count == 2
        tally.written()
        await clock.advance(60)
        tally.done(clock.now(), "mail", 0.1)
        assert [len(each) for each in rows_of(tally).values()] == [2, 2], "both: it was not over"
        tally.written()
        assert list(rows_of(tally)) == [start + 60]

    virtually(main)


def test_a_tally_that_cannot_be_written_stays_bounded() -> None:
    async def main(clock: VirtualClock) -> None:
        tally = Tally("w", clock)
        for n in range(200):
            tally.done(clock.now(), f"kind {n}", 0.1)
            await clock.advance(60)
        rows = tally.rows()
        assert len(rows) <= ROWS_PER_WRITE_MAX
        whole = [point for row in rows for point in points_of(row)]
        assert sum(each.done for each in whole) == 200
        for n in range(2 * KINDS_COUNTED_MAX):
            tally.done(clock.now(), f"another {n}", 0.1)
        last = points_of(tally.rows()[-1])
        assert {each.kind: each.done for each in last}[OTHER_KINDS] >= KINDS_COUNTED_MAX

    virtually(main)


def test_what_happens_during_a_write_is_not_lost() -> None:
    async def main(clock: VirtualClock) -> None:
        tally = Tally("w", clock)
        tally.done(clock.now(), "mail", 0.1)
        tally.rows()
        tally.done(clock.now(), "mail", 0.1)
        await clock.advance(61)
        tally.done(clock.now(), "mail", 0.1)
        tally.written()
        done = [point.done for row in tally.rows() for point in points_of(row) if point.kind]
        assert done == [2, 1]

    virtually(main)


class SetBack(VirtualClock):
    """A clock that can be set back."""

    back = 0.0

    def epoch(self) -> float:
        return super().epoch() - self.back


def test_a_clock_that_is_set_back_does_not_replace_what_was_written() -> None:
    clock = SetBack()

    async def main() -> None:
        tally = Tally("w", clock)
        kept: dict[int, HistoryRow] = {}
        for back in (0.0, 0.0, 300.0, 0.0, 0.0, 300.0, 0.0):
            clock.back += back
            tally.done(clock.now(), "mail", 0.1)
            kept |= {row.at: row for row in tally.rows()}
            tally.written()
            await clock.advance(60)
        points = [point for row in kept.values() for point in points_of(row)]
        assert sum(each.done for each in points) == 7

    clock.run(main())


def test_hours_are_kept_beside_minutes_so_that_long_charts_read_few_rows() -> None:
    clock = VirtualClock(1_700_000_000.0)
    read: list[int] = []

    class Reading(MemoryQueue):
        async def _read_history(self, ranges: Sequence[HistoryRange]) -> list[list[HistoryRow]]:
            found = await super()._read_history(ranges)
            read.append(sum(map(len, found)))
            return found

    async def main() -> None:
        queue = Reading(clock=clock)
        rows = int(8.5 * 144)  # one in ten minutes
        for ago in range(rows):
            at = int((clock.epoch() - 600 * ago) // 60 * 60)
            value = encoded([HistoryPoint(at, kind="mail", done=1)])
            await queue._replace_history([], [HistoryRow(BY_WORKER, at, "a w", value)])
        while await queue.fold_history():
            pass
        for hours in (6, 48, 190):
            sums = []
            levels: tuple[Literal["minute", "hour"], ...] = ("minute", "hour")
            for by in levels:
                read.clear()
                sums.append(sum(each.done for each in await queue.history(3600.0 * hours, by=by)))
            assert sum(read) <= 12 + hours + 2, "few rows are read by the hour"
            assert max(sums) - min(sums) <= 6, "nothing counts twice, whichever level is read"
            assert sums[0] == pytest.approx(6 * hours, abs=6)
        assert sum(each.done for each in await queue.history("90d")) == rows

    clock.run(main())
