"""The periods and roll-ups that a target gathers: exact, without gaps, the same after a restart."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.fleet.history.packing import added_up, packed, unpacked
from pollwise.fleet.history.tracker import WAITING_MAX, TargetTracker
from pollwise.fleet.history.values import (
    NO_POLLS,
    NO_TIME,
    Period,
    PollFigures,
    TargetRollup,
    TimeInStates,
)
from pollwise.runtime.rollups.histogram import Histogram

START = 1_767_225_600.0  # a full day
HOUR, DAY = 3600.0, 86400.0
CONFIRMED = 3
Row = Period | TargetRollup


class Poll(NamedTuple):
    """after: seconds since the poll before. wait: seconds until the next one is planned."""

    after: float
    ok: bool
    wait: float = 60.0
    took: float = 0.25
    value: str | None = None
    covered: float | None = None


class Followed:
    """A tracker, and the polls of a target whose failures are confirmed by the third."""

    def __init__(self, start: float = START) -> None:
        self.now = start
        self.tracker: TargetTracker | None = None
        self.rows: list[Row] = []
        self.failures = 0
        self.since: float | None = None

    def poll(self, poll: Poll) -> None:
        self.now = round(self.now + poll.after, 3)
        if self.tracker is None:
            self.tracker = TargetTracker("a", int(self.now * 1000))
        self.failures = 0 if poll.ok else self.failures + 1
        self.since = None if poll.ok else self.since or self.now
        self.tracker.polled(
            self.now,
            poll.took,
            ok=poll.ok,
            changed=False,
            value=poll.value,
            failing_since=self.since,
            down_since=self.since if self.failures >= CONFIRMED else None,
            error="" if poll.ok else "OSError: no answer",
            planned=self.now + poll.wait,
            slack=30.0,
            covered=poll.covered,
        )

    def save(self) -> None:
        assert self.tracker is not None
        self.rows += self.tracker.take()

    def restart(self) -> None:
        self.save()
        assert self.tracker is not None
        again = TargetTracker.restored("a", json.loads(json.dumps(self.tracker.kept())))
        assert again is not None
        assert again.kept() == self.tracker.kept()
        self.tracker = again

    def outage(self) -> tuple[str, float | None]:
        """The state, and when the open outage began, after the start."""
        assert self.tracker is not None
        opened = self.tracker.open()
        return opened.state, None if opened.outage is None else opened.outage - START

    def finish(self) -> list[Row]:
        """All rows; the open ones are as long as they were counted."""
        self.save()
        assert self.tracker is not None
        opened = self.tracker.open()
        last = Period("a", opened.state, opened.started_at, opened.seen_at, opened.reason)
        return [*self.rows, last, opened.hour]


def followed(polls: Iterable[Poll], start: float = START) -> list[Row]:
    world = Followed(start)
    for each in polls:
        world.poll(each)
    return world.finish()


def periods_of(rows: Iterable[Row]) -> list[Period]:
    return [row for row in rows if isinstance(row, Period) and row.lasted > 0]


def rollups_of(rows: Iterable[Row], length: str) -> list[TargetRollup]:
    return [row for row in rows if isinstance(row, TargetRollup) and row.length == length]


def states_of(rows: Iterable[Row]) -> list[tuple[str, float, float]]:
    """Periods in seconds after START."""
    return [(p.state, p.started_at - START, p.ended_at - START) for p in periods_of(rows)]


polls = st.builds(
    Poll,
    after=st.one_of(st.floats(1, 100), st.floats(100, 8000), st.floats(8000, 200_000)),
    ok=st.sampled_from([True, True, False]),
    wait=st.floats(1, 4000),
    took=st.floats(0, 1),
    value=st.sampled_from([None, "7", "-1.5", "up"]),
    covered=st.none(),
)


def exact(polls: Sequence[Poll]) -> list[tuple[str, int, int]]:
    """What the periods must be, in milliseconds: worked out from the whole list at once."""
    at, times = START, []
    for poll in polls:
        at = round(at + poll.after, 3)
        times.append(at)
    found: list[tuple[str, int, int]] = []
    pending: list[tuple[int, int]] = []
    state, failures = "unknown", 0

    def add(state: str, start: int, end: int) -> None:
        if end > start:
            if found and found[-1][0] == state:
                start = found.pop()[1]
            found.append((state, start, end))

    for place, (poll, time) in enumerate(zip(polls, times, strict=True)):
        now = int(time * 1000)
        failures = 0 if poll.ok else failures + 1
        if poll.ok:
            for start, end in pending:
                add(state, start, end)
            pending, state = [], "up"
        elif failures >= CONFIRMED:
            for start, end in pending:
                add("down", start, end)
            pending, state = [], "down"
        if place + 1 == len(polls):
            break
        follows = int(times[place + 1] * 1000)
        wait = int((time + poll.wait - time) * 1000)
        lapses = now + 2 * wait + 30_000
        gap = follows - polls[place + 1].took * 1000 > lapses
        end = now + wait if gap else follows
        if failures and failures < CONFIRMED and state != "down":
            pending.append((now, end))
        else:
            add(state, now, end)
        if gap:
            for start, ended in pending:
                add(state, start, ended)
            pending, state = [], "unknown"
            add("unknown", end, follows)
    return found


@given(st.lists(polls, min_size=1, max_size=40))
def test_periods_partition_time_and_are_exact(polls: list[Poll]) -> None:
    rows = followed(polls)
    periods = periods_of(rows)
    for one, other in pairwise(periods):
        assert one.ended_at == other.started_at
        assert one.state != other.state
    expected = exact(polls)
    found = [(p.state, round(p.started_at * 1000), round(p.ended_at * 1000)) for p in periods]
    assert found == expected


@given(st.lists(polls, min_size=1, max_size=40))
def test_rollups_have_the_times_of_the_periods(polls: list[Poll]) -> None:
    rows = followed(polls)
    hours, days = rollups_of(rows, "hour"), rollups_of(rows, "day")
    assert len({each.at for each in hours}) == len(hours)
    spent: dict[float, TimeInStates] = {}
    for period in periods_of(rows):
        start = period.started_at
        while start < period.ended_at and period.state != "unknown":
            hour = start // HOUR * HOUR
            end = min(hour + HOUR, period.ended_at)
            now = spent.get(hour, NO_TIME)
            spent[hour] = now + TimeInStates(**{period.state: end - start})
            start = end
    for each in hours:
        assert each.times.up == pytest.approx(spent.get(each.at, NO_TIME).up, abs=0.01)
        assert each.times.down == pytest.approx(spent.get(each.at, NO_TIME).down, abs=0.01)
    assert {at for at, times in spent.items() if times} <= {each.at for each in hours}
    assert sum(each.figures.polls for each in hours) == len(polls)
    for day in days:
        parts = [each for each in hours if day.at <= each.at < day.at + DAY]
        assert day.times.up == pytest.approx(sum(each.times.up for each in parts))
        assert day.times.down == pytest.approx(sum(each.times.down for each in parts))
        whole = added_up(each.figures for each in parts)
        assert (day.figures.polls, day.figures.latency.counts) == (
            whole.polls, whole.latency.counts,
        )  # fmt: skip
        assert (day.figures.values, day.figures.low, day.figures.high) == (
            whole.values, whole.low, whole.high,
        )  # fmt: skip


@given(st.lists(polls, min_size=1, max_size=30), st.sets(st.integers(0, 29)))
def test_a_restart_at_any_point_changes_nothing(polls: list[Poll], restarts: set[int]) -> None:
    world = Followed()
    for place, each in enumerate(polls):
        world.poll(each)
        if place in restarts:
            world.restart()
    assert world.finish() == followed(polls)


def test_an_outage_counts_from_its_first_failure_to_the_success() -> None:
    rows = followed(
        [Poll(0, True), Poll(60, False), Poll(5, False), Poll(5, False), Poll(30, True)]
    )
    assert states_of(rows) == [("up", 0, 60), ("down", 60, 100)]
    down = periods_of(rows)[-1]
    assert down.reason == "OSError: no answer"


def test_a_hiccup_is_up() -> None:
    rows = followed([Poll(0, True), Poll(60, False), Poll(5, False), Poll(5, True)])
    assert states_of(rows) == [("up", 0, 70)]
    [hour] = rollups_of(rows, "hour")
    assert (hour.figures.polls, hour.figures.failed) == (4, 2)


def test_an_outage_confirmed_after_the_hour_counts_in_the_hour_before() -> None:
    fails = [Poll(HOUR - 2, False), Poll(5, False), Poll(5, False), Poll(5, False)]
    rows = followed([Poll(0, True, wait=HOUR), *fails])
    first, second = rollups_of(rows, "hour")
    assert first.times.down == pytest.approx(2.0)
    assert second.times.down == pytest.approx(13.0)


def test_a_time_without_polls_is_unknown_from_the_planned_poll_on() -> None:
    # 60 s planned, 60 s more, 30 s of timeout: 151 s is too late, 150 s is not.
    assert states_of(followed([Poll(0, True), Poll(150, True)])) == [("up", 0, 150)]
    rows = followed([Poll(0, True), Poll(151, True), Poll(60, True)])
    assert states_of(rows) == [("up", 0, 60), ("unknown", 60, 151), ("up", 151, 211)]
    assert rollups_of(rows, "hour")[0].times == TimeInStates(up=120.0)


def test_weeks_without_polls_make_no_rows() -> None:
    rows = followed([Poll(0, True), Poll(40 * DAY, True), Poll(HOUR, True, wait=2 * HOUR)])
    assert len(rollups_of(rows, "hour")) == 3
    assert [each.at - START for each in rollups_of(rows, "day")] == [0.0]


def test_an_outage_goes_on_in_a_maintenance_window_that_begins_later() -> None:
    world = Followed(START)
    for each in (Poll(0, True), *(Poll(5, False, wait=900) for _ in range(3))):
        world.poll(each)
    assert world.outage() == ("down", 5)
    world.poll(Poll(60, False, wait=900, covered=START + 200))
    world.restart()
    assert world.outage() == ("maintenance", 5)
    world.poll(Poll(300, False, wait=900))
    assert world.outage() == ("down", 5)
    world.poll(Poll(60, True))
    assert world.outage() == ("up", None)


def test_an_outage_that_begins_in_a_maintenance_window_is_one_after_its_end() -> None:
    world = Followed(START)
    fails = [Poll(5, False, wait=900, covered=START + 200) for _ in range(3)]
    for each in (Poll(0, True), *fails):
        world.poll(each)
    assert world.outage() == ("maintenance", None)
    world.poll(Poll(300, False))
    assert world.outage() == ("down", 200)


def test_down_in_a_maintenance_window_is_maintenance_until_the_window_ends() -> None:
    until = START + 600
    fails = [Poll(5, False, wait=900, covered=until) for _ in range(3)]
    rows = followed([Poll(0, True, wait=5), *fails, Poll(900, False), Poll(60, True)])
    assert states_of(rows) == [("up", 0, 5), ("maintenance", 5, 600), ("down", 600, 975)]
    assert periods_of(rows)[-1].reason == "OSError: no answer"


def test_a_window_without_an_end() -> None:
    fails = [Poll(5, False, covered=float("inf")) for _ in range(3)]
    world = Followed()
    for each in [Poll(0, True), *fails, Poll(60, True)]:
        world.poll(each)
        world.restart()
    assert states_of(world.finish()) == [("up", 0, 5), ("maintenance", 5, 75)]


def test_a_window_that_begins_during_an_outage() -> None:
    fails = [Poll(5, False) for _ in range(3)]
    covered = Poll(60, False, covered=START + HOUR)
    rows = followed([Poll(0, True), *fails, covered, Poll(60, True)])
    assert states_of(rows) == [("up", 0, 5), ("down", 5, 75), ("maintenance", 75, 135)]


def test_a_clock_set_forward_leaves_an_unknown_time() -> None:
    rows = followed([Poll(0, True), Poll(60, True), Poll(HOUR, True), Poll(60, True)])
    assert states_of(rows)[:2] == [("up", 0, 120), ("unknown", 120, 60 + HOUR)]


def test_a_clock_set_back_goes_on_at_the_new_time() -> None:
    world = Followed()
    for each in [Poll(5000, True), Poll(60, True), Poll(-4000, True), Poll(60, True)]:
        world.poll(each)
        world.restart()
    assert states_of(world.finish()) == [("up", 5000, 5060), ("up", 1060, 1120)]
    hours = {each.at - START: each.times.up for each in rollups_of(world.rows, "hour")}
    assert hours == {HOUR: 60.0}, "the hour is replaced when it comes again"


def test_a_clock_set_back_within_the_hour_counts_no_time_twice() -> None:
    world = Followed()
    for each in [Poll(0, True), Poll(900, True, wait=900), Poll(900, True)]:
        world.poll(each._replace(wait=900))
    world.poll(Poll(-300, True))
    world.poll(Poll(60, True))
    assert world.tracker is not None
    assert world.tracker.open().hour.times.up == 1800 - 300 + 60


def test_clocks_of_nodes_may_differ_a_little() -> None:
    rows = followed([Poll(0, True), Poll(60, True), Poll(-20, True), Poll(60, True)])
    assert states_of(rows) == [("up", 0, 100)]


def test_a_clock_at_1970_loses_nothing() -> None:
    world = Followed()
    world.poll(Poll(0, True))
    world.poll(Poll(60, True))
    world.poll(Poll(-START - 50, True))
    world.restart()
    world.poll(Poll(START + 100, True))
    world.poll(Poll(60, True))
    rows = world.finish()
    assert len(rows) < 12, "decades without polls make no rows"
    assert ("up", 0.0, 60.0) in states_of(rows)
    assert states_of(rows)[-1] == ("up", 110.0, 170.0)


def test_rows_wait_for_the_store_but_not_without_end() -> None:
    world = Followed()
    for _ in range(WAITING_MAX * 2):
        world.poll(Poll(5000, True))
    assert world.tracker is not None
    taken = world.tracker.take()
    assert len(taken) == WAITING_MAX
    world.poll(Poll(5000, True))
    world.tracker.give_back(taken)
    waiting = world.tracker.take()
    assert len(waiting) == WAITING_MAX
    assert waiting[0] not in taken[:1]


def test_an_interval_of_years_is_trusted_for_a_week() -> None:
    rows = followed([Poll(0, True, wait=1000 * DAY), Poll(999 * DAY, True)])
    assert states_of(rows) == [("up", 0, 7 * DAY), ("unknown", 7 * DAY, 999 * DAY)]


def well_kept() -> list[Any]:
    world = Followed(START - HOUR)
    for each in [Poll(0, True, value="7"), Poll(HOUR, True, wait=HOUR, value="7")]:
        world.poll(each._replace(wait=HOUR))
    assert world.tracker is not None
    return world.tracker.kept()


STATE, SINCE, COUNTED, WAIT, COVERED, REASON, TIME, POLLS, LATENCIES, NUMBERS, DAY_SO_FAR = (
    0, 1, 2, 3, 5, 6, 7, 10, 14, 15, 16,
)  # fmt: skip


@pytest.mark.parametrize("kept", [None, {}, [], "x", [1, 2], well_kept()[:-1], [*well_kept(), 1]])
def test_a_saved_history_of_another_form_is_left(kept: Any) -> None:
    assert TargetTracker.restored("a", kept) is None


@pytest.mark.parametrize(
    ("place", "values"),
    [
        (STATE, (9, True, "up", -1, None)),
        (SINCE, ("x", -1, 1e300, 2**60, None)),
        (COUNTED, (-1, 0.5, [])),
        (WAIT, (10**12, "x")),
        (COVERED, (-1, 1.5)),
        (REASON, (7, None)),
        (TIME, (3_600_001, -1)),
        (POLLS, (-1, 2**60, "1")),
        (LATENCIES, ([1], [999, 1], None, 7, ["a", 1], [1, -1])),
        (NUMBERS, ([1], ["1", 0, 0, 0], [1, "inf", 0, 0], [1, 1e300, 0, 0], 7)),
        (DAY_SO_FAR, ([1], [1, 2, 86_400_001, ""], [1, 2, ""], 7)),
    ],
)
def test_a_saved_history_with_a_wrong_value_is_left(place: int, values: tuple[Any, ...]) -> None:
    good = well_kept()
    assert TargetTracker.restored("a", good) is not None
    for value in values:
        wrong = [*good[:place], value, *good[place + 1 :]]
        assert TargetTracker.restored("a", wrong) is None, value


def test_a_broken_day_is_no_day() -> None:
    tracker = TargetTracker.restored("a", [*well_kept()[:DAY_SO_FAR], [1, 2, 3, "%%%"], 0])
    assert tracker is not None
    assert tracker.open().day.figures == NO_POLLS


figures = st.builds(
    PollFigures,
    polls=st.integers(1, 2**40),
    failed=st.integers(0, 2**40),
    changed=st.integers(0, 300),
    latency=st.lists(st.floats(0, 3600), max_size=20).map(Histogram.of),
)


@given(figures, st.lists(st.floats(-1e100, 1e100), max_size=4))
def test_figures_are_the_same_after_packing(figures: PollFigures, values: list[float]) -> None:
    numbers = (len(values), min(values), max(values), sum(values)) if values else (0, 0.0, 0.0, 0.0)
    whole = PollFigures(figures.polls, figures.failed, figures.changed, figures.latency, *numbers)
    again = unpacked(packed(whole))
    assert again.latency.total == pytest.approx(whole.latency.total, abs=1e-5)
    assert again.latency.counts == whole.latency.counts
    assert [getattr(again, name) for name in ("polls", "failed", "changed", "values", "low")] == [
        getattr(whole, name) for name in ("polls", "failed", "changed", "values", "low")
    ]


@given(st.binary(max_size=60))
def test_bytes_that_are_not_ours_are_no_figures(raw: bytes) -> None:
    found = unpacked(bytes([1]) + raw)
    assert found.latency.count >= 0
    assert unpacked(bytes([2]) + raw) == NO_POLLS
