from __future__ import annotations

import math
from typing import Any

import pytest

from pollwise.core.outcome import Pause
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.errors import ConfigError
from tests.core.strategies.pacing import Turn, delays, feed, saw, turns

EMPTY, HIT = 0, 1

# Golden tables, worked out by hand from qo's page: after an empty poll the interval is
# min(interval × multiplier, max), after a hit it is min.


@pytest.mark.parametrize(
    ("strategy", "founds", "expected"),
    [
        pytest.param(
            # 100 ms doubles six times (200, 400, 800, 1600, 3200, 6400), the last cut to 5000.
            Adaptive("100ms", "5s"),
            [EMPTY] * 8,
            [0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5],
            id="idle, the default",
        ),
        pytest.param(
            # The page's other max_interval: 100 ms × 2⁸ = 25.6 s, × 2⁹ = 51.2 s is cut to 30 s.
            Adaptive("100ms", "30s"),
            [EMPTY] * 10,
            [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30],
            id="idle, up to 30 s",
        ),
        pytest.param(
            # The page's drawing: steady at 500 ms while tasks are found, then 1, 2, 4, 8 s, 16 s
            # (drawn as 15), 30 s. When a task is found, 500 ms at once.
            Adaptive("500ms", "30s"),
            [HIT] * 4 + [EMPTY] * 7 + [HIT] * 2,
            [0.5] * 4 + [1, 2, 4, 8, 16, 30, 30] + [0.5] * 2,
            id="the drawing",
        ),
        pytest.param(
            # min=100ms, max=1s of the trade-off table: 1600 is cut to 1000.
            Adaptive("100ms", "1s"),
            [EMPTY] * 5,
            [0.2, 0.4, 0.8, 1, 1],
            id="idle, near real time",
        ),
        pytest.param(
            # Reset from anywhere: halfway, at max_interval, at min_interval. The first empty poll
            # after a hit is followed by 100 ms × 2.
            Adaptive("100ms", "5s"),
            [EMPTY, EMPTY, HIT, EMPTY, HIT, HIT, EMPTY, EMPTY, EMPTY, EMPTY, EMPTY, EMPTY, 7],
            [0.2, 0.4, 0.1, 0.2, 0.1, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 0.1],
            id="resets",
        ),
        pytest.param(
            # How much was found makes no difference, nor whether that was a full batch.
            Adaptive("1s", "8s"),
            [EMPTY, EMPTY, 1, EMPTY, 10, EMPTY, 10**400],
            [2, 4, 1, 2, 1, 2, 1],
            id="any hit",
        ),
        pytest.param(
            Adaptive("1s", "100s", backoff_multiplier=3),
            [EMPTY] * 6,
            [3, 9, 27, 81, 100, 100],
            id="tripling",
        ),
        pytest.param(
            # In whole milliseconds 1 × 1.5 would stay 1 for ever.
            Adaptive("1ms", "10ms", backoff_multiplier=1.5),
            [EMPTY] * 7,
            [0.0015, 0.00225, 0.003375, 0.0050625, 0.00759375, 0.01, 0.01],
            id="below a millisecond",
        ),
        pytest.param(Adaptive("3s", "3s"), [EMPTY, HIT, EMPTY], [3, 3, 3], id="no room"),
        pytest.param(
            Adaptive(1, 1e308, backoff_multiplier=1e308), [EMPTY] * 3, [1e308] * 3, id="overflow"
        ),
    ],
)
def test_intervals(strategy: Adaptive, founds: list[int], expected: list[float]) -> None:
    assert delays(strategy, founds) == pytest.approx(expected, rel=1e-12)


def test_doubling_is_exact() -> None:
    assert delays(Adaptive(), [EMPTY] * 7) == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_it_starts_at_the_min_interval() -> None:
    assert Adaptive("100ms", "5s").pacer().first() == Pause(0.1)


def test_defaults_are_those_of_the_page() -> None:
    assert Adaptive() == Adaptive("100ms", "5s", backoff_multiplier=2.0, hold=0)


def test_a_hold_goes_with_every_poll() -> None:
    strategy = Adaptive("1s", "2s", hold="20s")
    pacer = strategy.pacer()
    pauses = [pacer.first(), *feed(pacer, [EMPTY, EMPTY, HIT])]
    assert pauses == [Pause(1, 20), Pause(2, 20), Pause(2, 20), Pause(1, 20)]
    assert pacer.after(saw(0, failed=True)) == Pause(1, 20)
    assert strategy.longest_hold == 20.0


def test_a_failed_poll_is_not_an_empty_one() -> None:
    pacer = Adaptive("1s", "8s").pacer()
    feed(pacer, [EMPTY])
    before = pacer.state()
    pause = pacer.after(saw(0, failed=True))
    assert pause == Pause(2.0)
    assert pause.changes == ()
    assert pacer.state() == before
    assert feed(pacer, [EMPTY]) == [Pause(4.0)]


def test_changes_come_exactly_when_the_interval_turns() -> None:
    expected: list[list[Turn]] = [
        [],  # a hit at the min_interval
        [("back-off", 1.0, 2.0)],
        [("back-off", 2.0, 4.0)],
        [("back-off", 4.0, 5.0)],
        [],  # at the max_interval
        [],
        [("reset", 5.0, 1.0)],
        [],  # at the min_interval
        [("back-off", 1.0, 2.0)],
    ]
    founds = [HIT, EMPTY, EMPTY, EMPTY, EMPTY, EMPTY, HIT, HIT, EMPTY]
    assert [turns(pause) for pause in feed(Adaptive("1s", "5s").pacer(), founds)] == expected


def test_state() -> None:
    pacer = Adaptive("1s", "3s").pacer()
    assert pacer.state() == {"interval": 1.0, "empties": 0, "back_offs": 0, "resets": 0}
    feed(pacer, [EMPTY, EMPTY, EMPTY, EMPTY])  # two of them back off, to 2 and 3
    assert pacer.state() == {"interval": 3.0, "empties": 4, "back_offs": 2, "resets": 0}
    feed(pacer, [HIT, HIT])
    assert pacer.state() == {"interval": 1.0, "empties": 0, "back_offs": 2, "resets": 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_interval": 0}, "min_interval = 0 must be above 0; give a number of seconds"),
        (
            {"min_interval": "-100ms"},
            "min_interval = '-100ms' must be above 0; give a number of seconds",
        ),
        (
            {"min_interval": "fast"},
            "min_interval = 'fast' is not a duration; give a number of seconds",
        ),
        ({"max_interval": 0}, "max_interval = 0 must be above 0; give a number of seconds"),
        ({"max_interval": math.inf}, "max_interval = inf is not finite; give a number of seconds"),
        (
            {"min_interval": "10s", "max_interval": "5s"},
            "min_interval = '10s' is above max_interval = '5s'; lower min_interval or raise",
        ),
        (
            {"backoff_multiplier": 1},
            "backoff_multiplier = 1 must be above 1 and finite: each empty poll",
        ),
        (
            {"backoff_multiplier": 0.5},
            "backoff_multiplier = 0.5 must be above 1 and finite: each empty poll",
        ),
        (
            {"backoff_multiplier": -2},
            "backoff_multiplier = -2 must be above 1 and finite: each empty poll",
        ),
        (
            {"backoff_multiplier": math.nan},
            "backoff_multiplier = nan must be above 1 and finite: each",
        ),
        (
            {"backoff_multiplier": math.inf},
            "backoff_multiplier = inf must be above 1 and finite: each",
        ),
        ({"backoff_multiplier": 10**400}, "backoff_multiplier = 1000000000"),
        (
            {"backoff_multiplier": 10**5000},
            "backoff_multiplier = <int too long to write> must be above 1",
        ),
        (
            {"backoff_multiplier": "2"},
            "backoff_multiplier = '2' must be a number above 1 and finite: each empty poll",
        ),
        (
            {"backoff_multiplier": True},
            "backoff_multiplier = True must be above 1 and finite: each empty poll",
        ),
        ({"hold": -1}, "hold = -1 must be 0 or more; give a number of seconds"),
    ],
)
def test_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Adaptive(**arguments)
    assert str(caught.value).startswith(message)
