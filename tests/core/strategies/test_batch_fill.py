from __future__ import annotations

from typing import Any

import pytest

from pollwise.core.outcome import Pause
from pollwise.core.strategies.batch_fill import BatchFill
from pollwise.durations import shown
from pollwise.errors import ConfigError
from tests.core.strategies.pacing import Turn, delays, feed, saw, turns

# Golden tables, worked out by hand from Namastack's page: fewer than 25 % of the batch doubles the
# interval up to the maximum, a full batch halves it down to the minimum, anything else keeps it.


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        # A quarter of 10 is 2.5: 0, 1 and 2 are fewer.
        *((found, 4.0) for found in (0, 1, 2)),
        *((found, 2.0) for found in (3, 4, 5, 6, 7, 8, 9)),
        (10, 1.0),
        (11, 1.0),  # more than asked for is full
    ],
)
def test_each_fill_of_a_batch_of_ten(found: int, expected: float) -> None:
    # The empty poll brings it from 1 s to 2 s, so that it can go both ways.
    assert delays(BatchFill("1s", "8s", batch_size=10), [0, found]) == [2.0, expected]


@pytest.mark.parametrize(
    ("strategy", "founds", "expected"),
    [
        pytest.param(BatchFill(), [0] * 5, [2, 4, 8, 8, 8], id="idle, the default"),
        pytest.param(
            # The page's example. 500 ms × 2⁵ = 16 s, × 2⁶ = 32 s is cut to 30 s.
            BatchFill("500ms", "30s", batch_size=20),
            [0] * 8,
            [1, 2, 4, 8, 16, 30, 30, 30],
            id="idle, up to 30 s",
        ),
        pytest.param(
            # From 8: full halves to 4, 2, 1, 1; five of ten keeps; one of ten doubles.
            BatchFill(),
            [0, 0, 0, 10, 10, 10, 10, 5, 1, 5, 10],
            [2, 4, 8, 4, 2, 1, 1, 1, 2, 2, 1],
            id="a burst",
        ),
        pytest.param(
            # 1, 2, 4, then 8 cut to 5. Halving goes 2.5, 1.25, then 0.625 raised to 1.
            BatchFill("1s", "5s"),
            [0, 0, 0, 10, 10, 10, 0],
            [2, 4, 5, 2.5, 1.25, 1, 2],
            id="bounds that are no powers of two",
        ),
        pytest.param(BatchFill("3s", "3s"), [0, 5, 10], [3, 3, 3], id="no room"),
    ],
)
def test_intervals(strategy: BatchFill, founds: list[int], expected: list[float]) -> None:
    assert delays(strategy, founds) == expected


@pytest.mark.parametrize(
    ("found", "capacity", "expected"),
    [
        (1, 8, 4.0),
        (2, 8, 2.0),  # exactly a quarter is not fewer than a quarter
        (7, 8, 2.0),
        (8, 8, 1.0),
        (24, 100, 4.0),
        (25, 100, 2.0),
        (0, 1, 4.0),
        (1, 1, 1.0),
        # A batch of 20, from the strategy, where the source does not say or cannot.
        (4, None, 4.0),
        (5, None, 2.0),
        (19, None, 2.0),
        (20, None, 1.0),
        (0, 0, 4.0),
        (5, 0, 2.0),
        (10**400, 1, 1.0),
        (1, 10**400, 4.0),
        (10**400, 10**400, 1.0),
        (10**400, None, 1.0),
    ],
    ids=shown,
)
def test_the_capacity_of_the_poll_counts(found: int, capacity: int | None, expected: float) -> None:
    pacer = BatchFill("1s", "8s", batch_size=20).pacer()
    pacer.after(saw(0))
    assert pacer.after(saw(found, capacity)).delay == expected


def test_it_starts_at_the_min_interval() -> None:
    assert BatchFill("2s", "8s").pacer().first() == Pause(2.0)


def test_defaults_are_those_of_the_page() -> None:
    assert BatchFill() == BatchFill("1s", "8s", batch_size=10, hold=0)


def test_a_hold_goes_with_every_poll() -> None:
    strategy = BatchFill("1s", "2s", hold="20s")
    pacer = strategy.pacer()
    pauses = [pacer.first(), *feed(pacer, [0, 5, 10]), pacer.after(saw(0, failed=True))]
    assert pauses == [Pause(1, 20), Pause(2, 20), Pause(2, 20), Pause(1, 20), Pause(1, 20)]
    assert strategy.longest_hold == 20.0


def test_a_failed_poll_is_not_an_empty_one() -> None:
    pacer = BatchFill("1s", "8s").pacer()
    feed(pacer, [0, 3])
    before = pacer.state()
    pause = pacer.after(saw(0, failed=True))
    assert pause == Pause(2.0)
    assert pause.changes == ()
    assert pacer.state() == before


def test_changes_come_exactly_when_the_interval_turns() -> None:
    expected: list[list[Turn]] = [
        [],  # full at the min_interval
        [("back-off", 1.0, 2.0)],
        [("back-off", 2.0, 3.0)],
        [],  # at the max_interval
        [],  # kept
        [("speed-up", 3.0, 1.5)],
        [],  # kept
        [("speed-up", 1.5, 1.0)],
        [],  # at the min_interval
    ]
    founds = [10, 0, 2, 1, 5, 10, 3, 10, 10]
    assert [turns(pause) for pause in feed(BatchFill("1s", "3s").pacer(), founds)] == expected


def test_state() -> None:
    pacer = BatchFill("1s", "8s").pacer()
    assert pacer.state() == {"interval": 1.0, "fill": 0.0, "back_offs": 0, "speed_ups": 0}
    feed(pacer, [0, 0, 10, 4])
    assert pacer.state() == {"interval": 2.0, "fill": 0.4, "back_offs": 2, "speed_ups": 1}
    feed(pacer, [30])
    assert pacer.state() == {"interval": 1.0, "fill": 1.0, "back_offs": 2, "speed_ups": 2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_interval": 0}, "min_interval = 0 must be above 0; give a number of seconds"),
        ({"max_interval": "8x"}, "max_interval = '8x' is not a duration; give a number of seconds"),
        (
            {"min_interval": 9, "max_interval": "8s"},
            "min_interval = 9 is above max_interval = '8s'; lower min_interval or raise",
        ),
        (
            {"batch_size": 0},
            "batch_size = 0 must be a whole number of at least 1: a batch holds items",
        ),
        (
            {"batch_size": -5},
            "batch_size = -5 must be a whole number of at least 1: a batch holds items",
        ),
        (
            {"batch_size": 2.5},
            "batch_size = 2.5 must be a whole number of at least 1: a batch holds items",
        ),
        ({"batch_size": "10"}, "batch_size = '10' must be a whole number of at least 1: a batch"),
        ({"batch_size": True}, "batch_size = True must be a whole number of at least 1: a batch"),
        ({"batch_size": None}, "batch_size = None must be a whole number of at least 1: a batch"),
        (
            {"batch_size": -(10**5000)},
            "batch_size = <int too long to write> must be a whole number",
        ),
        ({"hold": -1}, "hold = -1 must be 0 or more; give a number of seconds"),
    ],
)
def test_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BatchFill(**arguments)
    assert str(caught.value).startswith(message)
