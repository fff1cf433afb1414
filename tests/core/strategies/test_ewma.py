from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pollwise.core.outcome import Pause
from pollwise.core.strategies.ewma import CLASSES, Ewma, EwmaPacer, decayed
from pollwise.durations import shown
from pollwise.errors import ConfigError
from tests.core.strategies.pacing import Turn, delays, feed, saw, turns

IDLE, LOW, MEDIUM, HIGH, VERY_HIGH = 20.0, 15.0, 10.0, 5.0, 1.0


def average(pacer: EwmaPacer) -> float:
    value = pacer.state()["average"]
    assert isinstance(value, float)
    return value


def volume(pacer: EwmaPacer) -> str:
    return str(pacer.state()["class"])


def averages(strategy: Ewma, founds: list[int], capacity: int | None = None) -> list[float]:
    pacer = strategy.pacer()
    seen = []
    for found in founds:
        feed(pacer, [found], capacity)
        seen.append(average(pacer))
    return seen


def settled(value: float, alpha: float, drop_after: int = 10) -> EwmaPacer:
    """A pacer whose average one first poll, at time 0, brought to `value`: α · (value ÷ α)."""
    pacer = Ewma(alpha=alpha, drop_after=drop_after).pacer()
    feed(pacer, [round(value / alpha)], capacity=None)
    assert average(pacer) == pytest.approx(value, rel=1e-12)
    return pacer


# Golden tables, worked out by hand from Arrakis' page, with its mistakes mended as DESIGN.md asks.
# The average becomes α·found + (1-α)·average.


def test_smoothing_and_the_classes_it_passes() -> None:
    # α = 0.3, batches of up to 10. No row is a spike: none is above 3 × the average before it.
    table = [
        # found, average: 0.3 · found + 0.7 · the one above, interval of its class
        (4, 1.2, LOW),  # 1.2 + 0
        (3, 1.74, LOW),  # 0.9 + 0.84
        (5, 2.718, MEDIUM),  # 1.5 + 1.218
        (8, 4.3026, MEDIUM),  # 2.4 + 1.9026
        (10, 6.01182, HIGH),  # 3 + 3.01182
        (10, 7.208274, HIGH),  # 3 + 4.208274
        (10, 8.0457918, HIGH),  # 3 + 5.0457918
        (10, 8.63205426, HIGH),  # 3 + 5.63205426
        (10, 9.042437982, HIGH),  # 3 + 6.042437982
        (10, 9.3297065874, HIGH),  # 3 + 6.3297065874
        (10, 9.53079461118, VERY_HIGH),  # 3 + 6.53079461118, from 95 % of 10 on
        (2, 7.271556227826, HIGH),  # 0.6 + 6.671556227826
        (1, 5.3900893594782, HIGH),  # 0.3 + 5.0900893594782
        (1, 4.07306255163474, MEDIUM),  # 0.3 + 3.77306255163474
    ]
    founds = [found for found, _, _ in table]
    assert averages(Ewma(), founds, 10) == pytest.approx([row[1] for row in table], rel=1e-12)
    assert delays(Ewma(), founds, 10) == [row[2] for row in table]


@pytest.mark.parametrize(
    ("capacity", "rows"),
    [
        # With α = 1 the average is the newest batch. The page's bounds: 0 is idle, below 2 low,
        # below 5 medium, below 10 high. No step is above 3 ×.
        (
            None,
            [
                (1, "low"), (2, "medium"), (4, "medium"), (5, "high"), (9, "high"),
                (10, "very_high"), (11, "very_high"), (9, "high"), (1, "low"),
            ],
        ),
        # Beyond 10 ÷ 95 % the capacity no longer matters.
        (11, [(3, "medium"), (9, "high"), (10, "very_high"), (11, "very_high")]),
        (100, [(3, "medium"), (9, "high"), (10, "very_high")]),
        (10**400, [(3, "medium"), (9, "high"), (10, "very_high")]),
        # Batches of 10 reach very high at 9.5, of 8 at 7.6, of 5 at 4.75, of 4 at 3.8: only full.
        (10, [(3, "medium"), (9, "high"), (10, "very_high")]),
        (8, [(3, "medium"), (7, "high"), (8, "very_high")]),
        (5, [(3, "medium"), (4, "medium"), (5, "very_high")]),
        (4, [(1, "low"), (3, "medium"), (4, "very_high")]),
        # Where a full batch is smaller than 2, that is very high all the same.
        (2, [(1, "low"), (2, "very_high"), (1, "low")]),
        (1, [(1, "very_high")]),
        # A capacity of 0 tells nothing.
        (0, [(1, "low"), (3, "medium"), (9, "high"), (10, "very_high")]),
    ],
    ids=shown,
)  # fmt: skip
def test_classes(capacity: int | None, rows: list[tuple[int, str]]) -> None:
    pacer = Ewma(alpha=1).pacer()
    assert volume(pacer) == "idle"
    for found, expected in rows:
        feed(pacer, [found], capacity)
        assert (average(pacer), volume(pacer)) == (found, expected)


def test_each_class_has_its_interval() -> None:
    strategy = Ewma(
        idle_interval=50,
        low_interval=40,
        medium_interval=30,
        high_interval=20,
        very_high_interval=10,
    )
    assert [strategy.interval_of(name) for name in CLASSES] == [50, 40, 30, 20, 10]
    assert (strategy.min_interval, strategy.max_interval, strategy.longest_hold) == (10, 50, 0)


@pytest.mark.parametrize(
    ("alpha", "rows"),
    [
        pytest.param(
            0.5,
            [
                (2, 1.0),  # 1 + 0; from nothing there is no spike
                (20, 2.0),  # above 3 · 1, so it counts as 3: 1.5 + 0.5
                (2, 2.0),  # 1 + 1
                (20, 4.0),  # again alone, so it counts as 3 · 2: 3 + 1
            ],
            id="lone spikes",
        ),
        pytest.param(
            0.1,
            [
                (10, 1.0),  # 1 + 0
                (100, 1.2),  # counts as 3: 0.3 + 0.9
                (100, 11.08),  # the second in a row counts in full: 10 + 1.08
                (100, 19.972),  # and so does the third, above 3 · 11.08: 10 + 9.972
                (100, 27.9748),  # above 3 · 19.972: 10 + 17.9748
            ],
            id="a rise",
        ),
        pytest.param(
            0.5,
            [
                (2, 1.0),
                (3, 2.0),  # exactly 3 · 1 is no spike: 1.5 + 0.5
                (20, 4.0),  # so this is the first: it counts as 3 · 2: 3 + 1
                (20, 12.0),  # the second: 10 + 2
            ],
            id="exactly three times",
        ),
        pytest.param(
            0.5,
            [
                (2, 1.0),
                (20, 2.0),  # counts as 3
                (0, 2.0),  # empty: the row of spikes ends (and one empty poll does not decay)
                (20, 4.0),  # counts as 3 · 2: 3 + 1
            ],
            id="spikes with nothing between",
        ),
        pytest.param(
            0.5,
            [
                (8, 4.0),
                (2, 3.0),  # downwards nothing is clamped: 1 + 1.5
                (1, 2.0),  # 0.5 + 1.5
            ],
            id="falls",
        ),
    ],
)
def test_spikes(alpha: float, rows: list[tuple[int, float]]) -> None:
    founds = [found for found, _ in rows]
    expected = [value for _, value in rows]
    assert averages(Ewma(alpha=alpha), founds) == pytest.approx(expected, rel=1e-12)


def test_full_batches_after_a_single_message_reach_high_in_three_polls() -> None:
    # 1: 0.3 · 1 = 0.3. Then 10 counts as 0.9: 0.27 + 0.21 = 0.48. Then in full, as the second in
    # a row: 3 + 0.336 = 3.336. Then 10 is below 3 · 3.336: 3 + 2.3352 = 5.3352.
    founds = [1, 10, 10, 10]
    assert averages(Ewma(), founds, 10) == pytest.approx([0.3, 0.48, 3.336, 5.3352], rel=1e-12)
    assert delays(Ewma(), founds) == [LOW, LOW, MEDIUM, HIGH]


# Full batches reach very high. With α = 0.3 and batches of c, the averages are
#   0.3·c, then (3·0.3·c = 0.9·c is less than c, so that is what counts) 0.27·c + 0.21·c = 0.48·c,
# and from there on c·(1 - 0.52·0.7ⁿ⁻²). They have to reach min(10, 0.95·c).
POLLS_TO_VERY_HIGH = {
    # 0.52 · 0.7⁷ = 0.0428 is the first below 0.05. (Without the clamp 0.7⁹ = 0.0404 is: also 9.)
    **dict.fromkeys(range(1, 11), 9),
    11: 7,  # 11 · (1 - 0.52 · 0.7⁵) = 10.04; the one before is 9.63
    12: 6,  # 12 · (1 - 0.52 · 0.7⁴) = 10.50; 9.86
    13: 5,  # 13 · (1 - 0.52 · 0.7³) = 10.68; 9.69
    **dict.fromkeys((14, 15), 4),  # 14 · (1 - 0.52 · 0.7²) = 10.43; 15 · (1 - 0.52 · 0.7) = 9.54
    **dict.fromkeys(range(16, 21), 3),  # 16 · (1 - 0.52 · 0.7) = 10.18; 20 · 0.48 = 9.6
    **dict.fromkeys(range(21, 34), 2),  # 21 · 0.48 = 10.08; 33 · 0.3 = 9.9
    **dict.fromkeys(range(34, 101), 1),  # 34 · 0.3 = 10.2
}


@pytest.mark.parametrize("capacity", range(1, 101))
def test_full_batches_reach_very_high(capacity: int) -> None:
    pacer = Ewma().pacer()
    polls = 0
    while volume(pacer) != "very_high":
        assert polls < 9
        feed(pacer, [capacity], capacity)
        polls += 1
    assert polls == POLLS_TO_VERY_HIGH[capacity]
    assert {pause.delay for pause in feed(pacer, [capacity] * 100, capacity)} == {VERY_HIGH}


def test_full_batches_of_ten_poll_by_poll() -> None:
    # 3; 10 counts as 9: 2.7 + 2.1 = 4.8; then 10 - 5.2 · 0.7ⁿ⁻².
    expected = [3, 4.8, 6.36, 7.452, 8.2164, 8.75148, 9.126036, 9.3882252, 9.57175764]
    assert averages(Ewma(), [10] * 9, 10) == pytest.approx(expected, rel=1e-12)
    assert delays(Ewma(), [10] * 9) == [MEDIUM, MEDIUM, *[HIGH] * 6, VERY_HIGH]


@given(st.floats(0.01, 1), st.integers(1, 10**6))
def test_full_batches_reach_very_high_whatever_the_alpha(alpha: float, capacity: int) -> None:
    # Each poll that counts in full leaves 1-α of the distance, and one poll at most is clamped.
    polls = 1 + (0 if alpha == 1 else math.ceil(math.log(0.05) / math.log(1 - alpha)))
    pacer = Ewma(alpha=alpha).pacer()
    feed(pacer, [capacity] * polls, capacity)
    assert volume(pacer) == "very_high"


# Decay: exponential, with a half-life of 30 s, from the second empty poll in a row on.


@pytest.mark.parametrize(
    ("at", "left", "interval"),
    [
        (0, 9.9, HIGH),
        (30, 4.95, MEDIUM),  # a half
        (60, 2.475, MEDIUM),  # a quarter; the published code has 0 here
        (90, 1.2375, LOW),  # an eighth
        (150, 0.309375, LOW),  # a thirty-second
        (168, 9.9 / 2**5.6, LOW),  # 0.2041: 9.9 falls below 0.2 after 30·log₂(49.5) = 168.9 s
        (169, 0.0, IDLE),
        (10**9, 0.0, IDLE),
    ],
)
@pytest.mark.parametrize("step", [0.5, 7, 10, 20, 1000])
def test_decay(at: float, left: float, interval: float, step: float) -> None:
    pacer = settled(9.9, 0.1)
    for n in range(int(min(at / step, 400))):
        pacer.after(saw(0, at=n * step))
    pacer.after(saw(0, at=at))
    pause = pacer.after(saw(0, at=at))
    assert average(pacer) == pytest.approx(left, rel=1e-9)
    assert pause.delay == interval


def test_one_empty_poll_is_not_idleness() -> None:
    pacer = settled(9.9, 0.1)
    assert turns(pacer.after(saw(0, at=60.0))) == []
    assert average(pacer) == pytest.approx(9.9)
    pacer.after(saw(8, at=61.0))  # 0.8 + 0.9 · 9.9: nothing had faded
    assert average(pacer) == pytest.approx(9.71, rel=1e-12)
    pacer.after(saw(0, at=70.0))
    assert average(pacer) == pytest.approx(9.71, rel=1e-12)
    pacer.after(saw(0, at=91.0))  # 30 s after the last hit
    assert average(pacer) == pytest.approx(4.855, rel=1e-12)


def test_the_half_life_is_an_argument() -> None:
    pacer = Ewma(alpha=1, half_life="1m").pacer()
    pacer.after(saw(8, None, at=0.0))
    for at in (1.0, 60.0, 180.0):
        pacer.after(saw(0, None, at=at))
    assert average(pacer) == pytest.approx(1.0, rel=1e-12)


def test_an_average_of_exactly_the_least_is_kept() -> None:
    pacer = settled(0.8, 0.8)
    for at, left in [(0.0, 0.8), (30.0, 0.4), (60.0, 0.2), (60.001, 0.0)]:
        pacer.after(saw(0, at=at))
        assert average(pacer) == left


def test_an_idle_average_stays_idle() -> None:
    pacer = Ewma().pacer()
    assert [turns(pacer.after(saw(0, at=at))) for at in (0.0, 50.0, 99.0)] == [[], [], []]
    assert (average(pacer), volume(pacer)) == (0.0, "idle")


def test_nothing_decays_while_no_time_passes() -> None:
    pacer = settled(9.9, 0.1)
    for _ in range(5):
        assert turns(pacer.after(saw(0, at=0.0))) == []
    assert average(pacer) == pytest.approx(9.9)


def test_an_empty_poll_with_little_room_speeds_nothing_up() -> None:
    pacer = Ewma(alpha=1).pacer()
    feed(pacer, [5], capacity=100)
    for capacity in (1, 0, None, 5):
        assert pacer.after(saw(0, capacity)).delay == HIGH


# Drop detection: an average that low polls in a row contradict is reset to what they found.


def test_a_drop_is_detected() -> None:
    # With α = 0.001 the average falls from 20 to 1 + 19 · 0.999ⁿ: 19.83 after nine.
    pacer = settled(20, 0.001, drop_after=10)
    assert {pause.delay for pause in feed(pacer, [1] * 9)} == {VERY_HIGH}
    [pause] = feed(pacer, [1])
    assert pause.delay == LOW
    reset, change, slower = turns(pause)
    assert reset == ("reset", pytest.approx(1 + 19 * 0.999**10, rel=1e-9), 1.0)
    assert change == ("class", "very_high", "low")
    assert slower == ("back-off", VERY_HIGH, LOW)
    assert pacer.state()["resets"] == 1
    assert pacer.state()["low_polls"] == 0


def test_empty_polls_neither_count_as_low_nor_end_the_row() -> None:
    pacer = settled(20, 0.001, drop_after=10)
    feed(pacer, [1, 0] * 9)
    assert volume(pacer) == "very_high"
    feed(pacer, [1])
    assert volume(pacer) == "low"


@pytest.mark.parametrize(("found", "capacity"), [(2, 10), (5, 10), (10, 10), (1, 1), (2, None)])
def test_a_batch_that_is_not_low_ends_the_row(found: int, capacity: int | None) -> None:
    pacer = settled(20, 0.001, drop_after=10)
    feed(pacer, [1] * 9)
    feed(pacer, [found], capacity)
    feed(pacer, [1] * 9)
    assert volume(pacer) == "very_high"
    feed(pacer, [1])
    assert volume(pacer) == "low"


def test_a_drop_from_medium_is_detected_too() -> None:
    pacer = settled(3, 0.01, drop_after=4)
    feed(pacer, [1] * 3)  # 1 + 2 · 0.99³ = 2.94
    assert volume(pacer) == "medium"
    feed(pacer, [1])
    assert (average(pacer), volume(pacer)) == (1.0, "low")


def test_a_drop_within_batches_of_two_is_detected() -> None:
    # There very high begins at 1.9, below the bound of 2 between low and medium.
    pacer = settled(20, 0.001, drop_after=5)
    feed(pacer, [1], 2)
    for _ in range(10_000):
        feed(pacer, [2], 2)  # 2 + 18 · 0.999ⁿ: settles at 2
    assert [pause.delay for pause in feed(pacer, [1] * 5, 2)] == [VERY_HIGH] * 4 + [LOW]


@pytest.mark.parametrize("alpha", [0.001, 0.3, 1])
def test_a_steady_trickle_is_left_alone(alpha: float) -> None:
    pacer = Ewma(alpha=alpha, drop_after=3).pacer()
    pauses = feed(pacer, [1] * 100)
    assert {pause.delay for pause in pauses} == {LOW}
    first = [("class", "idle", "low"), ("speed-up", IDLE, LOW)]
    assert [turns(pause) for pause in pauses] == [first, *[[]] * 99]
    assert pacer.state()["resets"] == 0
    assert 0 < average(pacer) <= 1


def test_full_batches_of_one_are_no_drop() -> None:
    pacer = Ewma(drop_after=3).pacer()
    feed(pacer, [1] * 100, capacity=1)
    assert (volume(pacer), pacer.state()["resets"], pacer.state()["low_polls"]) == (
        "very_high",
        0,
        0,
    )


@given(
    st.floats(0, 1, exclude_min=True),
    st.integers(1, 50),
    st.none() | st.integers(2, 10**6),
    st.lists(st.integers(1, 10**6), max_size=20),
)
@example(1e-300, 10, None, [])
@example(0.001, 10, 2, [])
@example(1.0, 1, 10, [])
def test_a_fall_to_a_trickle_leaves_very_high_within_drop_after_polls(
    alpha: float, drop_after: int, capacity: int | None, before: list[int]
) -> None:
    pacer = Ewma(alpha=alpha, drop_after=drop_after).pacer()
    feed(pacer, before, capacity)
    feed(pacer, [10**18] * 2, capacity)  # a flood that lifts even the slowest average
    assert volume(pacer) == "very_high" or alpha < 1e-12
    assert feed(pacer, [1] * drop_after, capacity)[-1].delay == LOW
    assert volume(pacer) == "low"


def test_idleness_ends_a_row_of_low_polls() -> None:
    pacer = settled(20, 0.001, drop_after=10)
    feed(pacer, [1] * 9)
    assert pacer.state()["low_polls"] == 9
    pacer.after(saw(0, at=1.0))
    pacer.after(saw(0, at=2.0))
    assert pacer.state()["low_polls"] == 9
    pacer.after(saw(0, at=1e6))
    assert pacer.state() == {
        "interval": IDLE,
        "average": 0.0,
        "class": "idle",
        "empties": 3,
        "low_polls": 0,
        "resets": 0,
    }


# Changes.


def test_changes_come_exactly_when_they_happen() -> None:
    pacer = Ewma(alpha=1).pacer()
    table: list[tuple[float, int, list[Turn]]] = [
        (0, 0, []),
        (1, 2, [("class", "idle", "medium"), ("speed-up", IDLE, MEDIUM)]),
        (2, 4, []),  # another average, the same class
        (3, 8, [("class", "medium", "high"), ("speed-up", MEDIUM, HIGH)]),
        (4, 0, []),  # the first empty poll
        (4, 0, [("decay", 8.0, pytest.approx(8 / 2 ** (1 / 30)))]),  # still high
        (4, 0, []),  # no time has passed
        (33, 0, [("decay", pytest.approx(8 / 2 ** (1 / 30)), pytest.approx(4.0)),
                 ("class", "high", "medium"), ("back-off", HIGH, MEDIUM)]),
        (993, 0, [("decay", pytest.approx(4.0), 0.0), ("class", "medium", "idle"),
                  ("back-off", MEDIUM, IDLE)]),
        (1993, 0, []),  # nothing left to decay
        (1994, 1, [("class", "idle", "low"), ("speed-up", IDLE, LOW)]),
    ]  # fmt: skip
    assert [turns(pacer.after(saw(found, at=at))) for at, found, _ in table] == [
        expected for _, _, expected in table
    ]


def test_a_failed_poll_is_not_an_empty_one() -> None:
    pacer = settled(9.9, 0.1)
    pacer.after(saw(0, at=10.0))
    before = pacer.state()
    for _ in range(3):
        pause = pacer.after(saw(0, at=300.0, failed=True))
        assert pause == Pause(HIGH)
        assert pause.changes == ()
    assert pacer.state() == before


# The recipe.


def test_it_starts_idle() -> None:
    pacer = Ewma().pacer()
    assert pacer.first() == Pause(IDLE)
    assert pacer.state() == {
        "interval": IDLE,
        "average": 0.0,
        "class": "idle",
        "empties": 0,
        "low_polls": 0,
        "resets": 0,
    }


def test_held_intervals_are_holds() -> None:
    strategy = Ewma(alpha=1, held=True)
    pacer = strategy.pacer()
    pauses = [pacer.first(), *feed(pacer, [1, 3, 9, 10])]
    assert pauses == [Pause(0.0, hold) for hold in (IDLE, LOW, MEDIUM, HIGH, VERY_HIGH)]
    assert pacer.state()["interval"] == VERY_HIGH
    assert (strategy.min_interval, strategy.max_interval, strategy.longest_hold) == (0.0, 0.0, IDLE)


@pytest.mark.parametrize(
    ("strategy", "waits", "alpha", "drop_after"),
    [
        # Arrakis' calls give idle, visibility, low, medium, high, very high, alpha, drop.
        (Ewma(), (20, 15, 10, 5, 1), 0.3, 10),
        # WithAdaptivePolling(20, 30, 15, 10, 5, 1, 0.2, 10)
        (Ewma.conservative(), (20, 15, 10, 5, 1), 0.2, 10),
        # WithAdaptivePolling(15, 30, 10, 6, 3, 1, 0.4, 6)
        (Ewma.responsive(), (15, 10, 6, 3, 1), 0.4, 6),
        # WithAdaptivePolling(10, 60, 8, 5, 2, 1, 0.3, 8)
        (Ewma.high_volume(), (10, 8, 5, 2, 1), 0.3, 8),
    ],
    ids=["default", "conservative", "responsive", "high volume"],
)
def test_presets(strategy: Ewma, waits: tuple[float, ...], alpha: float, drop_after: int) -> None:
    assert tuple(strategy.interval_of(name) for name in CLASSES) == waits
    assert (strategy.alpha, strategy.drop_after) == (alpha, drop_after)
    assert (strategy.half_life, strategy.held) == (30.0, None)


def test_intervals_are_holds_where_the_source_can_hold() -> None:
    assert Ewma().for_source(can_hold=True) == Ewma(held=True)
    assert Ewma().for_source(can_hold=False).longest_hold == 0
    assert Ewma(held=False).for_source(can_hold=True) == Ewma(held=False)


@pytest.mark.parametrize(
    "strategy",
    [Ewma(), Ewma.conservative(), Ewma.responsive(), Ewma.high_volume()],
    ids=["default", "conservative", "responsive", "high volume"],
)
def test_a_fall_from_full_batches_to_single_items_resets_the_average_once(strategy: Ewma) -> None:
    pacer = strategy.pacer()
    feed(pacer, [10] * 200)
    changes = [change for pause in feed(pacer, [1] * 200) for change in pause.changes]
    assert [change.after for change in changes if change.what == "reset"] == [1.0]
    assert pacer.state()["resets"] == 1


def test_presets_can_be_held() -> None:
    for preset in (Ewma.conservative, Ewma.responsive, Ewma.high_volume):
        assert preset(held=True).held
        assert preset(held=True).longest_hold == preset().idle_interval


def test_decayed() -> None:
    assert decayed(8.0, 0.0, 30.0) == 8.0
    assert decayed(8.0, 30.0, 30.0) == 4.0
    assert decayed(8.0, 90.0, 30.0) == 1.0
    assert decayed(8.0, 1e308, 1e-300) == 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            ({name: 0}, f"{name} = 0 must be above 0; give a number of seconds")
            for name in (*(f"{each}_interval" for each in CLASSES), "half_life")
        ),
        (
            {"idle_interval": "20 sec"},
            "idle_interval = '20 sec' is not a duration; give a number of seconds",
        ),
        ({"half_life": math.nan}, "half_life = nan is not finite; give a number of seconds"),
        (
            {"low_interval": "30s"},
            "low_interval = '30s' is longer than idle_interval = '20s'; a busier class needs",
        ),
        (
            {"medium_interval": 16},
            "medium_interval = 16 is longer than low_interval = '15s'; a busier class needs",
        ),
        (
            {"high_interval": 11},
            "high_interval = 11 is longer than medium_interval = '10s'; a busier class needs",
        ),
        (
            {"very_high_interval": 6},
            "very_high_interval = 6 is longer than high_interval = '5s'; a busier class needs",
        ),
        ({"alpha": 0}, "alpha = 0 must be above 0 and at most 1: the weight of the newest batch"),
        ({"alpha": 1.01}, "alpha = 1.01 must be above 0 and at most 1: the weight"),
        ({"alpha": -0.3}, "alpha = -0.3 must be above 0 and at most 1: the weight"),
        ({"alpha": math.nan}, "alpha = nan must be above 0 and at most 1: the weight"),
        ({"alpha": "0.3"}, "alpha = '0.3' must be a number above 0 and at most 1: the weight"),
        ({"alpha": True}, "alpha = True must be above 0 and at most 1: the weight"),
        ({"drop_after": 0}, "drop_after = 0 must be a whole number of at least 1: it counts low"),
        ({"drop_after": 2.0}, "drop_after = 2.0 must be a whole number of at least 1: it counts"),
        ({"drop_after": None}, "drop_after = None must be a whole number of at least 1: it"),
        ({"held": "yes"}, "held = 'yes' must be true, false, or None"),
        ({"held": 1}, "held = 1 must be true, false, or None"),
    ],
)
def test_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Ewma(**arguments)
    assert str(caught.value).startswith(message)


def test_equal_intervals_are_allowed() -> None:
    strategy = Ewma(
        idle_interval=5, low_interval=5, medium_interval=5, high_interval=5, very_high_interval=5
    )
    assert (strategy.min_interval, strategy.max_interval) == (5.0, 5.0)


def test_a_class_of_the_same_interval_is_reported_without_a_turn_of_the_interval() -> None:
    pacer = Ewma(
        low_interval=10,
        medium_interval=10,
        idle_interval=10,
        high_interval=10,
        very_high_interval=10,
    ).pacer()
    assert turns(pacer.after(saw(3))) == [("class", "idle", "low")]
