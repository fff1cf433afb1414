from __future__ import annotations

import json
import math
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pollwise.core.forecast.best_polls import best_polls
from pollwise.core.forecast.durations import BINS, LONGEST, MEMORIES, PLANS, Durations
from pollwise.errors import ConfigError

times = st.floats(0, 1e9) | st.floats(0.001, 1000)
facts = st.lists(
    st.tuples(st.just("add"), times)
    | st.tuples(st.just("unfinished"), times)
    | st.tuples(st.just("between"), st.tuples(times, times).map(sorted)),
    max_size=6,
)
prices = st.floats(1e-6, 1e9)
#: A plan takes a millisecond, and each run needs another.
few = settings(max_examples=25, deadline=None)


def learned(known: list[tuple[str, Any]]) -> Durations:
    made = Durations()
    for what, value in known:
        if what == "add":
            made.add(value)
        elif what == "unfinished":
            made.add_unfinished(value)
        else:
            made.add_between(*value)
    return made


def polls(history: Durations, price: float, count: int = 30) -> list[float]:
    found = [history.next_poll(price)]
    while len(found) < count and math.isfinite(found[-1]):
        found.append(history.next_poll(price, found[-1]))
    return found


@few
@given(facts, prices)
@example([("add", 0.0), ("add", LONGEST), ("add", 1e300)], 1.0)
@example([("unfinished", 1e300), ("between", [0.0, 1e300])], 1e-300)
def test_polls_follow_one_another(known: list[tuple[str, Any]], price: float) -> None:
    found = [0.0, *polls(learned(known), price)]
    assert all(earlier < later for earlier, later in pairwise(found))


@few
@given(facts, prices, st.floats(0, 1e9))
def test_the_next_poll_is_later_wherever_the_last_was(
    known: list[tuple[str, Any]], price: float, elapsed: float
) -> None:
    assert learned(known).next_poll(price, elapsed) > elapsed


def test_after_the_last_bin_nothing_is_known() -> None:
    history = learned([("add", 10.0)])
    assert history.next_poll(1.0, LONGEST) == math.inf
    assert history.next_poll(1.0, 1e300) == math.inf
    assert history.next_poll(1.0, LONGEST * 0.98) == LONGEST


@few
@given(facts, prices)
def test_the_same_runs_give_the_same_polls(known: list[tuple[str, Any]], price: float) -> None:
    assert polls(learned(known), price, 9) == polls(learned(known), price, 9)


@few
@given(facts)
def test_a_dump_can_be_loaded(known: list[tuple[str, Any]]) -> None:
    history = learned(known)
    state = json.loads(json.dumps(history.dump()))
    again = Durations.load(state)
    assert again.dump() == state
    assert again.runs == history.runs == len(known)
    assert len(json.dumps(state)) < 64 * BINS


def test_a_loaded_history_decides_like_the_first() -> None:
    rng = random.Random(1)
    history = Durations()
    for _ in range(50):
        history.add(rng.lognormvariate(4, 0.5))
    again = Durations.load(history.dump())
    for price in (0.1, 1.0, 30.0):
        assert polls(again, price, 5) == pytest.approx(polls(history, price, 5), rel=0.05)


NUMBERS = st.integers(-(10**400), 10**400) | st.floats() | st.booleans()
ANYTHING = st.recursive(
    st.none() | NUMBERS | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=20,
)


@few
@given(ANYTHING, ANYTHING, ANYTHING)
@example(3, [0.125] * 8, [[5, 1.0, 2.0]])
@example(3, [0.125] * 8, [[5, 8.0, 8.0], [5, 8.0, 8.0], [6, 8.0, 8.0]])
@example(3, [0.125] * 8, [[5, 8.0]])
@example(3, [0.125] * 8, [[5, math.nan, 1.0]])
@example(3, [0.125] * 8, [[True, 1.0, 1.0]])
@example(3, [0.125] * 8, [[BINS, 1.0, 1.0]])
@example(3, [0.125] * 8, [[]])
@example(3, [0.125] * 8, [[5, 1.0, 1.0]] * (BINS + 1))
@example(3, [1.0] * 8, [])
@example(3, [math.nan] * 8, [])
@example(True, [0.125] * 8, [])
@example(-1, [0.125] * 8, [])
@example(10**400, [0.125] * 8, [])
def test_what_is_loaded_may_be_hostile(runs: object, mixture: object, weights: object) -> None:
    state = {"version": 1, "runs": runs, "mixture": mixture, "weights": weights}
    try:
        Durations.load(state)
    except ConfigError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert "Durations.dump" in refused
        assert len(refused) < 300
        return
    history = Durations.load(state)
    assert math.isfinite(history.next_poll(1.0))
    history.add(5)
    assert math.isfinite(history.next_poll(1.0))


@pytest.mark.parametrize("state", [None, [], "text", {}, {"version": 2}])
def test_another_version_is_refused(state: object) -> None:
    with pytest.raises(ConfigError, match="is not of version 1"):
        Durations.load(state)


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf, "soon", True])
def test_only_durations_are_learned(wrong: Any) -> None:
    history = Durations()
    with pytest.raises(ConfigError, match=r"took = .* give a number of seconds"):
        history.add(wrong)
    with pytest.raises(ConfigError, match="after = "):
        history.add_unfinished(wrong)
    with pytest.raises(ConfigError, match="earliest = "):
        history.add_between(wrong, 1)
    with pytest.raises(ConfigError, match=r"earliest = 3 is above latest = '2s'; swap them"):
        history.add_between(3, "2s")
    assert history.runs == 0
    assert repr(history) == "<Durations of 0 runs>"


@few
@given(st.lists(times, min_size=1, max_size=50))
def test_memory_is_bounded(took: list[float]) -> None:
    history = Durations()
    for each in took:
        history.add(each)
    weights = history.dump()["weights"]
    assert len(weights) <= BINS
    for number, memory in enumerate(MEMORIES, 1):
        assert sum(row[number] for row in weights) <= memory * 1.001


def test_plans_are_kept_until_something_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    def counted(*args: Any) -> list[int]:
        nonlocal made
        made += 1
        return best_polls(*args)

    monkeypatch.setattr("pollwise.core.forecast.durations.best_polls", counted)
    history = learned([("add", 20.0)])
    made = 0
    for price in range(1, PLANS + 1):
        history.next_poll(price)
        history.next_poll(price)
    assert made == PLANS
    history.next_poll(PLANS + 1.0)  # no room: all begin again
    history.next_poll(1.0)
    assert made == PLANS + 2
    history.add(20.0)
    history.next_poll(1.0)
    assert made == PLANS + 3


def test_no_poll_long_before_any_run_ended() -> None:
    history = Durations()
    for n in range(30):
        history.add(100.0 + n % 10)
    for price in (1.0, 3.0, 10.0, 30.0):
        assert 95.0 <= history.next_poll(price) <= 115.0


def test_runs_that_were_only_seen_between_polls_are_located() -> None:
    history = Durations()
    for _ in range(60):
        last, poll = 0.0, history.next_poll(2.0)
        while poll < 77.0:
            last, poll = poll, history.next_poll(2.0, poll)
        history.add_between(last, poll)
    assert 75.0 <= history.next_poll(2.0) <= 80.0


def test_runs_that_nobody_waited_for_move_the_polls_back() -> None:
    short, long = Durations(), Durations()
    for n in range(20):
        short.add(10.0)
        long.add(10.0)
        if n % 2:
            long.add_unfinished(50.0)
    after = 11.0
    assert long.next_poll(5.0, after) - after > short.next_poll(5.0, after) - after


def test_new_durations_replace_old_ones() -> None:
    history = Durations()
    for _ in range(100):
        history.add(10.0)
    for _ in range(15):
        history.add(200.0)
    assert history.next_poll(40.0) > 150.0


@few
@given(facts, prices)
def test_the_curve_rises_from_0_to_1(known: list[tuple[str, Any]], price: float) -> None:
    curve = learned(known).curve(price)
    times, shares = zip(*curve, strict=True)
    assert times[0] == shares[0] == 0
    assert times == tuple(sorted(times))
    assert all(earlier <= later + 1e-9 for earlier, later in pairwise(shares))
    assert 0.4 < shares[-1] < 1.0 + 1e-9


@pytest.mark.parametrize("spread", [0.1, 0.3, 1.0])
def test_cheaper_polls_are_earlier(spread: float) -> None:
    rng = random.Random(3)
    history = Durations()
    for _ in range(40):
        history.add(rng.lognormvariate(4, spread))
    first = [history.next_poll(price) for price in (0.1, 0.5, 2.0, 8.0, 32.0)]
    assert first == sorted(first)
    assert first[0] < first[-1]
