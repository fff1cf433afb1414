"""Laws that every strategy keeps, whatever its arguments and whatever its polls see."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pollwise.core.jitter import jittered
from pollwise.core.outcome import Outcome
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import Pacer, Strategy
from pollwise.core.strategies.batch_fill import BatchFill
from pollwise.core.strategies.ewma import NEGLIGIBLE, Ewma, decayed
from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.freshness import Freshness
from pollwise.testing.contracts.strategy import (
    LAWS,
    failed_polls_change_nothing,
    failed_polls_hurry,
    walk,
)
from tests.core.strategies.histories import capacities, gaps, histories
from tests.core.strategies.pacing import saw, turns

KINDS: list[type[Any]] = [Fixed, Adaptive, BatchFill, Ewma, Freshness]
NAMES = {kind.__name__: kind for kind in KINDS}

lengths = st.floats(1e-3, 1e6)
holds = st.floats(0, 60)


def ordered(count: int) -> st.SearchStrategy[list[float]]:
    return st.lists(lengths, min_size=count, max_size=count).map(sorted)


fixed = st.builds(Fixed, lengths, hold=holds)
adaptive = st.builds(
    lambda pair, multiplier, hold: Adaptive(*pair, backoff_multiplier=multiplier, hold=hold),
    ordered(2),
    st.floats(1, 1e6, exclude_min=True),
    holds,
)
batch_fill = st.builds(
    lambda pair, batch, hold: BatchFill(*pair, batch_size=batch, hold=hold),
    ordered(2),
    st.integers(1, 1000),
    holds,
)
ewma = st.builds(
    lambda five, alpha, drop_after, half_life, held: Ewma(
        very_high_interval=five[0], high_interval=five[1], medium_interval=five[2],
        low_interval=five[3], idle_interval=five[4], alpha=alpha, drop_after=drop_after,
        half_life=half_life, held=held, ),
    ordered(5),
    st.floats(0, 1, exclude_min=True),
    st.integers(1, 20),
    lengths,
    st.booleans(),
)  # fmt: skip
freshness = st.builds(
    lambda three: Freshness(min_interval=three[0], base_interval=three[1], max_interval=three[2]),
    ordered(3),
)
#: Those to which a failed poll is no evidence, and an empty one no reason to hurry.
calm = fixed | adaptive | batch_fill | ewma
recipes = calm | freshness


# What a pacer answers: the laws that users try their own strategies on.


@given(recipes, histories())
@example(Ewma(alpha=1), [saw(10**400, 1), saw(0, 0), saw(10**400, 10**400), saw(0), saw(0, at=9)])
@example(BatchFill(), [saw(10**400, 1), saw(10**400, None), saw(5, 0), saw(0, 0)])
@example(Adaptive(5e-324, 1e308, backoff_multiplier=1e308), [saw(0)] * 4)
@example(Ewma(half_life=5e-324), [saw(1), saw(0), saw(0, at=5e-324), saw(0, at=1e308)])
def test_the_laws_of_all(strategy: Strategy, history: list[Outcome]) -> None:
    for law in LAWS:
        law(strategy, history)


@given(calm, histories())
def test_a_failed_poll_changes_nothing(strategy: Strategy, history: list[Outcome]) -> None:
    failed_polls_change_nothing(strategy, history)


@given(freshness, histories())
def test_a_failed_poll_of_a_target_hurries(strategy: Strategy, history: list[Outcome]) -> None:
    failed_polls_hurry(strategy, history[:10])


@given(calm, histories(), st.lists(st.tuples(gaps, capacities), max_size=30))
@example(Ewma(alpha=1), [saw(5, 100)], [(0.0, 1), (0.0, 0)])
def test_the_interval_never_shrinks_while_idle(
    strategy: Strategy, history: list[Outcome], idle: list[tuple[float, int | None]]
) -> None:
    pacer = strategy.pacer()
    pauses = [pacer.first(), *map(pacer.after, history)][-1:]
    at = history[-1].at if history else 0.0
    for gap, capacity in idle:
        at += gap
        pauses.append(pacer.after(saw(0, capacity, at)))
    assert all(
        earlier.delay <= later.delay and earlier.hold <= later.hold
        for earlier, later in pairwise(pauses)
    )


@given(adaptive | batch_fill, histories())
def test_idleness_ends_at_max_interval(
    strategy: Adaptive | BatchFill, history: list[Outcome]
) -> None:
    factor = min(getattr(strategy, "backoff_multiplier", 2.0), 2.0)
    assume(factor > 1.001)
    assume(strategy.max_interval < strategy.min_interval * factor**100)  # what 100 polls can walk
    pacer = strategy.pacer()
    for outcome in history:
        pacer.after(outcome)
    pauses = [pacer.after(saw(0)) for _ in range(102)]
    assert pauses[-1].delay == strategy.max_interval
    assert pauses[-1].changes == ()
    for earlier, later in pairwise(pauses):  # and strictly grows on the way there
        assert earlier.delay < later.delay or earlier.delay == strategy.max_interval


@given(ewma, histories())
def test_an_average_fades_to_idle(strategy: Ewma, history: list[Outcome]) -> None:
    pacer = strategy.pacer()
    for outcome in history:
        pacer.after(outcome)
    at = max([0.0, *(outcome.at for outcome in history)])
    pacer.after(saw(0, at=at))
    pause = pacer.after(saw(0, at=at * 2 + 1e9))  # 1000 half-lives later, and more
    assert max(pause.delay, pause.hold) == strategy.idle_interval
    assert pacer.state()["average"] == 0.0
    assert pacer.state()["class"] == "idle"


@given(adaptive, histories(), st.integers(1, 10**400), capacities)
def test_adaptive_resets_when_busy(
    strategy: Adaptive, history: list[Outcome], found: int, capacity: int | None
) -> None:
    pacer = strategy.pacer()
    for outcome in history:
        pacer.after(outcome)
    assert pacer.after(saw(found, capacity)).delay == strategy.min_interval
    following = pacer.after(saw(0)).delay
    assert following == min(
        strategy.min_interval * strategy.backoff_multiplier, strategy.max_interval
    )


@given(batch_fill, histories(), st.integers(1, 10**400))
def test_batch_fill_halves_when_full(
    strategy: BatchFill, history: list[Outcome], capacity: int
) -> None:
    pacer = strategy.pacer()
    before = [pacer.first(), *map(pacer.after, history)][-1].delay
    assert pacer.after(saw(capacity, capacity)).delay == max(before / 2, strategy.min_interval)


# Decay does not depend on how time is sliced.


@given(st.floats(0, 1e6), st.floats(0, 1e4), st.floats(0, 1e4), st.floats(1, 1e4))
def test_decaying_for_a_and_then_for_b_is_decaying_for_both(
    average: float, a: float, b: float, half_life: float
) -> None:
    twice = decayed(decayed(average, a, half_life), b, half_life)
    assert twice == pytest.approx(decayed(average, a + b, half_life), rel=1e-9, abs=1e-300)


@given(
    st.integers(1, 10**6),
    st.floats(0.01, 1),
    st.floats(1, 1000),
    st.lists(st.floats(0, 1), min_size=1, max_size=50),
    st.lists(st.floats(0, 1), min_size=1, max_size=50),
)
@example(99, 0.1, 168.0, [0.5], [n / 50 for n in range(50)])
def test_an_average_fades_by_time_and_not_by_polls(
    found: int, alpha: float, span: float, some: list[float], others: list[float]
) -> None:
    left = decayed(alpha * found, span, 30.0)
    assume(abs(left - NEGLIGIBLE) > 1e-6)  # there, a rounding decides

    def average_after(moments: list[float]) -> Any:
        pacer = Ewma(alpha=alpha).pacer()
        pacer.after(saw(found, None, at=1000.0))
        for moment in sorted(moments):
            pacer.after(saw(0, None, at=1000.0 + span * moment))
        pacer.after(saw(0, None, at=1000.0 + span))
        return pacer.state()["average"]

    expected = pytest.approx(left if left > NEGLIGIBLE else 0.0, rel=1e-9)
    assert average_after(some) == expected
    assert average_after(others) == expected


# Jitter, on what pacers really answer.


@given(recipes, histories(), st.floats(0, 1, exclude_max=True))
def test_jitter_keeps_within_the_bounds(
    strategy: Strategy, history: list[Outcome], u: float
) -> None:
    for pause, _, _ in walk(strategy.pacer(), history):
        drawn = jittered(pause.delay, strategy.min_interval, strategy.max_interval, u)
        assert strategy.min_interval <= drawn <= strategy.max_interval
        assert pause.delay * 0.9 <= drawn <= pause.delay * 1.1


@given(adaptive | batch_fill | ewma, st.floats(0, 0.4), st.floats(0.5, 1, exclude_max=True))
def test_idle_pollers_do_not_march_in_step(strategy: Strategy, u: float, v: float) -> None:
    min_interval, max_interval = strategy.min_interval, strategy.max_interval
    assume(max_interval > min_interval * 1.0001)
    assert jittered(max_interval, min_interval, max_interval, u) < jittered(
        max_interval, min_interval, max_interval, v
    )


# Changes tell what turned, and nothing else.


@given(adaptive | batch_fill, histories())
def test_changes_are_the_turns_of_the_interval(
    strategy: Adaptive | BatchFill, history: list[Outcome]
) -> None:
    shrinks = "reset" if isinstance(strategy, Adaptive) else "speed-up"
    pacer = strategy.pacer()
    before, seen = pacer.first().delay, []
    for outcome in history:
        pause = pacer.after(outcome)
        if pause.delay == before:
            assert pause.changes == ()
        else:
            what = "back-off" if pause.delay > before else shrinks
            assert turns(pause) == [(what, before, pause.delay)]
            seen.append(what)
        before = pause.delay
    state = pacer.state()
    assert state["back_offs"] == seen.count("back-off")
    assert state[shrinks.replace("-", "_") + "s"] == seen.count(shrinks)


@given(ewma, histories())
def test_changes_are_the_turns_of_the_average(strategy: Ewma, history: list[Outcome]) -> None:
    pacer = strategy.pacer()
    before = pacer.state()
    for outcome in history:
        pause, after = pacer.after(outcome), pacer.state()
        expected = []
        if outcome.found == 0 and after["average"] != before["average"]:
            expected.append(("decay", before["average"], after["average"]))
        if after["resets"] != before["resets"]:
            expected.append(("reset", turns(pause)[0][1], after["average"]))
        if after["class"] != before["class"]:
            expected.append(("class", before["class"], after["class"]))
            was, now = (strategy.interval_of(str(s["class"])) for s in (before, after))
            if was != now:
                expected.append(("back-off" if now > was else "speed-up", was, now))
        assert turns(pause) == expected
        before = after


@given(recipes, histories())
def test_state_tells_the_interval(strategy: Strategy, history: list[Outcome]) -> None:
    for pause, _, state in walk(strategy.pacer(), history):
        held = isinstance(strategy, Ewma) and strategy.held
        assert state["interval"] == (pause.hold if held else pause.delay)


# A strategy is a value.


@given(recipes)
def test_repr_is_the_call_that_makes_it(strategy: Strategy) -> None:
    again = eval(repr(strategy), dict(NAMES))
    assert again == strategy
    assert hash(again) == hash(strategy)
    assert again is not strategy


@given(recipes)
def test_strategies_can_be_copied(strategy: Any) -> None:
    again = pickle.loads(pickle.dumps(strategy))
    assert again == copy.deepcopy(strategy) == dataclasses.replace(strategy) == strategy


@pytest.mark.parametrize("kind", KINDS)
def test_strategies_cannot_change(kind: type[Any]) -> None:
    strategy = kind()
    before = repr(strategy)
    for field in dataclasses.fields(strategy):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(strategy, field.name, 1.0)
        with pytest.raises(dataclasses.FrozenInstanceError):
            delattr(strategy, field.name)
    with pytest.raises((AttributeError, TypeError)):  # Python 3.11 gets this one wrong itself
        strategy.colour = "red"
    assert repr(strategy) == before


@given(recipes, recipes)
def test_equality_is_by_what_it_does(one: Any, other: Any) -> None:
    same = type(one) is type(other) and dataclasses.astuple(one) == dataclasses.astuple(other)
    assert (one == other) is same


def test_strategies_can_be_kept_in_sets() -> None:
    several: list[Strategy] = [kind() for kind in KINDS * 2]
    assert len({*several, Fixed("500ms"), Adaptive(0.1, 5), BatchFill("1s", "8s")}) == len(KINDS)
    assert len({Adaptive(), Adaptive(backoff_multiplier=3), Adaptive(hold=1), Adaptive("1ms")}) == 4


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        (Fixed(), "Fixed(interval=0.5, hold=0.0)"),
        (
            Adaptive(),
            "Adaptive(min_interval=0.1, max_interval=5.0, backoff_multiplier=2.0, hold=0.0)",
        ),
        (BatchFill(), "BatchFill(min_interval=1.0, max_interval=8.0, batch_size=10, hold=0.0)"),
        (Freshness(), "Freshness(base_interval=10.0, min_interval=5.0, max_interval=300.0)"),
        (
            Ewma(low_interval=9, medium_interval=8, high_interval=7),
            (
                "Ewma(idle_interval=20.0, low_interval=9.0, medium_interval=8.0, "
                "high_interval=7.0, very_high_interval=1.0, alpha=0.3, "
                "drop_after=10, half_life=30.0, held=None)"
            ),
        ),
    ],
)
def test_repr(strategy: Strategy, text: str) -> None:
    assert repr(strategy) == text


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_copy_is_checked_too(kind: type[Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        dataclasses.replace(kind(), **{dataclasses.fields(kind)[0].name: -1})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("can_hold", [True, False])
def test_for_a_source_only_the_hold_may_change(kind: type[Any], can_hold: bool) -> None:
    strategy = kind().for_source(can_hold)
    assert can_hold or not strategy.longest_hold
    assert type(strategy) is kind
    assert strategy.for_source(can_hold) == strategy


# What settings may say.


@pytest.mark.parametrize("kind", KINDS)
def test_fields_are_the_arguments_of_the_constructor(kind: type[Any]) -> None:
    parameters = inspect.signature(kind).parameters
    assert {field.name for field in dataclasses.fields(kind)} == set(parameters)
    for argument, parameter in parameters.items():
        default = parameter.default
        assert getattr(kind(**{argument: default}), argument) == getattr(kind(), argument)
        if argument.endswith("interval"):  # the promise is that these are durations
            assert isinstance(default, str)


def test_settings_names() -> None:
    assert [kind.name for kind in KINDS] == [
        *("fixed", "adaptive", "batch_fill", "ewma", "freshness")
    ]


@pytest.mark.parametrize("base", [Strategy, Pacer])
def test_the_contract_cannot_be_used_unfulfilled(base: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match="abstract"):
        base()
