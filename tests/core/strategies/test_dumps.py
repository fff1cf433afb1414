"""What a pacer learned can be saved and taken over, and whatever was stored does no harm."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pollwise.core.outcome import Outcome, Pause, Plain
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import (
    STATE_VERSION,
    Pacer,
    RestoredPacer,
    Strategy,
    restored,
)
from pollwise.core.strategies.batch_fill import BatchFill
from pollwise.core.strategies.dumps import LIST_MAX, compact
from pollwise.core.strategies.ewma import Ewma
from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.freshness import Freshness
from pollwise.core.strategies.worth import Worth
from tests.core.strategies.histories import histories
from tests.core.strategies.pacing import saw
from tests.core.strategies.test_laws import recipes as others
from tests.core.strategies.test_worth import recipes as worths
from tests.core.strategies.worth_replay import cron, poisson, replay

ONE_OF_EACH: list[Strategy] = [
    Fixed("1s"),
    Adaptive(),
    BatchFill(),
    Ewma(),
    Ewma(held=True),
    Freshness(),
    Worth(poll_cost=20, wait_cost=1),
    Worth.latency(mean="2s"),
    Worth.latency(p95="2s"),
    Worth.budget(polls_per_hour=600),
    Worth.budget(polls_per_day=9000),
]
recipes = others | worths
numbers = st.integers() | st.floats(allow_nan=True)
jsons = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=12,
)


def stored(state: object) -> Any:
    """A state after it was written and read as JSON."""
    return json.loads(json.dumps(state))


def busy(seed: int, polls: int, start: float = 0.0) -> list[Outcome]:
    """Polls of a source that bursts, pauses and fails now and then."""
    draws, at, history = random.Random(seed), start, []
    for _ in range(polls):
        at += draws.choice([0.5, 2.0, 9.0, 60.0]) * draws.random()
        found = draws.choice([0, 0, 0, 1, 3, 50])
        waits = tuple(draws.random() for _ in range(found if draws.random() < 0.5 else 0))
        failed = draws.random() < 0.05
        history.append(Outcome(at, 0 if failed else found, 50, waits, failed))
    return history


def learned(strategy: Strategy, polls: int = 300, seed: int = 7) -> Pacer:
    pacer = strategy.pacer()
    for outcome in busy(seed, polls):
        pacer.after(outcome)
    return pacer


def answers(pacer: Pacer, history: list[Outcome]) -> list[tuple[Pause, dict[str, Plain]]]:
    return [(pacer.after(outcome), pacer.state()) for outcome in history]


# What was saved is taken over, and nothing is forgotten.


@given(recipes, histories(), st.data())
@settings(max_examples=200, deadline=None)
def test_a_loaded_pacer_answers_as_the_original(
    strategy: Strategy, history: list[Outcome], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(history)))
    pacer = strategy.pacer()
    for outcome in history[:cut]:
        pacer.after(outcome)
    loaded, problem = restored(strategy, stored(pacer.dump()))
    assume("is not a finite number" not in problem)  # a sum of waits of 1e300 s each
    assert problem == ""
    assert loaded.first() == pacer.first() or cut
    assert loaded.state() == pacer.state()
    assert answers(loaded, history[cut:]) == answers(pacer, history[cut:])


@pytest.mark.parametrize("strategy", ONE_OF_EACH, ids=repr)
def test_long_histories_go_on_exactly(strategy: Strategy) -> None:
    pacer = learned(strategy)
    loaded, problem = restored(strategy, stored(pacer.dump()))
    assert problem == ""
    later = busy(8, 300, start=1e5)
    assert answers(loaded, later) == answers(pacer, later)
    assert loaded.dump() == pacer.dump()


def test_what_is_not_known_yet_is_infinite() -> None:
    strategy = Worth.latency(p95="2s")
    state = stored(strategy.pacer().dump())
    assert '"inf"' in json.dumps(state)
    assert restored(strategy, state).pacer.dump() == state


def test_a_cycle_goes_on() -> None:
    strategy = Worth(poll_cost=20, wait_cost=1)
    pacer = strategy.pacer()
    replay(strategy, cron(60.0, 5, 200, seed=6), pacer=pacer)
    loaded = strategy.pacer(stored(pacer.dump()))
    assert loaded.state()["period"] == pacer.state()["period"] == pytest.approx(60, abs=1)


def test_taking_over_changes_no_other_pacer() -> None:
    for strategy in ONE_OF_EACH:
        state = stored(learned(strategy).dump())
        before = json.dumps(state), strategy.pacer().dump()
        answers(restored(strategy, state).pacer, busy(9, 50, start=1e5))
        assert (json.dumps(state), strategy.pacer().dump()) == before


def test_strategies_take_a_state() -> None:
    for strategy in ONE_OF_EACH:
        assert isinstance(strategy, (Fixed, Adaptive, BatchFill, Ewma, Freshness, Worth))
        old = learned(strategy)
        loaded = strategy.pacer(stored(old.dump()))
        assert type(loaded) is RestoredPacer
        assert loaded.state() == old.state()
        assert type(strategy.pacer({})) is type(strategy.pacer(None)) is type(strategy.pacer())


# Its size.


def test_what_worth_stores_is_small() -> None:
    busy_source, quiet = poisson(5.0, 4000, seed=3), poisson(0.01, 400, seed=4)
    sizes: dict[str, int] = {}
    for strategy in ONE_OF_EACH:
        for arrivals in (busy_source, quiet, cron(60.0, 20, 300, seed=5)):
            pacer = strategy.pacer()
            if strategy.name == "worth":
                replay(strategy, arrivals, pacer=pacer)
            else:
                pacer = learned(strategy)
            text = json.dumps(compact(pacer.dump()), separators=(",", ":"))
            sizes[repr(strategy)] = max(sizes.get(repr(strategy), 0), len(text))
    assert max(sizes.values()) <= 4096, sizes


def test_at_its_largest_it_still_fits() -> None:
    def full(part: Any) -> Any:
        if isinstance(part, dict) and part.keys() == {"size", "from", "items"}:
            draws = random.Random(1)
            return part | {"from": 0, "items": [draws.random() for _ in range(part["size"])]}
        return {n: full(each) for n, each in part.items()} if isinstance(part, dict) else part

    for strategy in ONE_OF_EACH:
        dump = compact(full(strategy.pacer().dump()))
        assert len(json.dumps(dump, separators=(",", ":"))) <= 15 * 1024


@pytest.mark.parametrize("strategy", ONE_OF_EACH, ids=repr)
def test_rounding_hardly_changes_the_pace(strategy: Strategy) -> None:
    pacer = learned(strategy)
    state = stored(compact(pacer.dump()))
    loaded, problem = restored(strategy, state)
    assert problem == ""
    for outcome in busy(8, 20, start=1e5):
        ours, theirs = loaded.after(outcome), pacer.after(outcome)
        assert ours.delay == pytest.approx(theirs.delay, rel=0.01)


def test_statistics_are_rounded_and_nothing_else() -> None:
    dump = {"at": 123456.789, "many": {"size": 9, "from": 1, "items": [0.123456789, 3.0, [1.5]]}}
    assert compact(dump) == {
        "at": 123456.789,
        "many": {"size": 9, "from": 1, "items": [0.123457, 3, [1.5]]},
    }


# What does not fit is not used.


def test_other_strategies_and_versions_are_refused() -> None:
    state = learned(Adaptive()).dump()
    assert restored(Adaptive(), state).problem == ""
    for strategy, wanted in (
        (BatchFill(), "its strategy is 'adaptive', not 'batch_fill'"),
        (Adaptive("100ms", "6s"), "its arguments is "),
    ):
        loaded, problem = restored(strategy, state)
        assert problem.startswith(wanted)
        assert loaded.state() == strategy.pacer().state()
    problem = restored(Adaptive(), {**state, "version": STATE_VERSION + 1}).problem
    assert problem == f"its version is '{STATE_VERSION + 1}', not {STATE_VERSION}"
    assert restored(Adaptive(), None).problem == "it is not an object"


def changed(learned_part: dict[str, Any], strategy: Strategy) -> str:
    state = strategy.pacer().dump()
    return restored(strategy, {**state, "learned": {**state["learned"], **learned_part}}).problem


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({"_more": 1}, "the state has other attributes"),
        ({"_empties": "three"}, "_empties is not a whole number"),
        ({"_empties": True}, "_empties is not a whole number"),
        ({"_empties": 10**400}, "_empties is not a finite number"),
        ({"_average": math.nan}, "_average is not a finite number"),
        ({"_average": "inf"}, "_average is not a finite number"),
        ({"_volume": 3}, "_volume is not a str as expected"),
        ({"_volume": "x" * 101}, "_volume is not a str as expected"),
        ({"_volume": "huge"}, "AttributeError: 'Ewma' object has no attribute 'huge_interval'"),
    ],
)
def test_values_that_do_not_fit_are_refused(part: dict[str, Any], problem: str) -> None:
    assert changed(part, Ewma()) == problem


def test_pauses_out_of_bounds_are_refused() -> None:
    pause = {"delay": 1e9, "hold": 0.0}
    assert changed({"_pause": pause}, Adaptive()) == "its pause is out of bounds"
    assert changed({"_pause": pause | {"hold": 0}}, Adaptive(max_interval=1e9)) == ""
    assert changed({"_pause": 3}, Adaptive()) == "_pause has other attributes"


@pytest.mark.parametrize(
    "cycle",
    [
        [0.0] * 47,
        7,
        {"size": 48, "from": 0, "items": [0.0] * 49},
        {"size": 48, "from": -1, "items": []},
        {"size": 10**9, "from": 0, "items": []},
        {"size": "48", "from": 0, "items": []},
        {"from": 0, "items": []},
        {"size": 48, "from": 0, "items": ["a"]},
    ],
)
def test_lists_that_do_not_fit_are_refused(cycle: object) -> None:
    strategy = Worth(poll_cost=1, wait_cost=1)
    there = strategy.pacer().dump()["learned"]["_cycle"]
    assert "_cycle._seen" in changed({"_cycle": there | {"_seen": cycle}}, strategy)
    assert changed({"_cycle": there}, strategy) == ""


@given(st.sampled_from(ONE_OF_EACH), jsons, jsons, histories())
@settings(deadline=None)
def test_arbitrary_json_does_no_harm(
    strategy: Strategy, state: object, part: object, history: list[Outcome]
) -> None:
    fresh = strategy.pacer().dump()
    for each in (state, {**fresh, "learned": state}, spoiled(fresh, 0, part)):
        keeps_its_bounds(strategy, each, history)


@given(st.sampled_from(ONE_OF_EACH), st.integers(0, 10**4), numbers | st.none(), histories())
@settings(max_examples=100, deadline=None)
@example(Worth(poll_cost=1, wait_cost=1), 3, 1e-300, [saw(3, at=float(n)) for n in range(40)])
def test_wrong_numbers_do_no_harm(
    strategy: Strategy, place: int, value: float | None, history: list[Outcome]
) -> None:
    state = spoiled(learned(strategy, 60).dump(), place, value)
    keeps_its_bounds(strategy, state, history)
    keeps_its_bounds(strategy, state, busy(11, 30, start=1e4))


@given(st.sampled_from(ONE_OF_EACH), st.lists(st.tuples(st.integers(0, 10**4), numbers)))
@settings(deadline=None)
def test_many_wrong_numbers_do_no_harm(strategy: Strategy, wrong: list[tuple[int, float]]) -> None:
    state: Any = learned(strategy, 60).dump()
    for place, value in wrong:
        state = spoiled(state, place, value)
    keeps_its_bounds(strategy, state, busy(11, 30, start=1e4))


def spoiled(state: Any, place: int, value: object) -> Any:
    """A state with the number at a place, counted through all of it, replaced."""
    count = 0

    def visit(part: Any) -> Any:
        nonlocal count
        if isinstance(part, dict):
            return {name: visit(each) for name, each in part.items()}
        if isinstance(part, list):
            return [visit(each) for each in part]
        count += 1
        return value if count - 1 == wanted else part

    wanted = -1
    visit(state["learned"])
    wanted, count = place % max(count, 1), 0
    return {**state, "learned": visit(state["learned"])}


def keeps_its_bounds(strategy: Strategy, state: object, history: list[Outcome]) -> None:
    pacer, _ = restored(strategy, state)
    pauses = [pacer.first(), *map(pacer.after, history)]
    pacer.resume(history[-1].at if history else 0.0)
    pauses += [pacer.after(replace(outcome, failed=False)) for outcome in history[-1:]]
    for pause in pauses:
        assert strategy.min_interval <= pause.delay <= strategy.max_interval
        assert 0 <= pause.hold <= strategy.longest_hold


def test_a_pacer_that_raises_is_replaced() -> None:
    strategy = Adaptive()
    broken: Any = None
    pacer = RestoredPacer(strategy, broken, 0.0)
    outcomes = busy(3, 5)
    fresh = strategy.pacer()
    assert [*map(pacer.after, outcomes)] == [*map(fresh.after, outcomes)]


def test_a_pacer_that_breaks_later_is_replaced() -> None:
    strategy = Worth(poll_cost=1, wait_cost=1)
    state = learned(strategy).dump()
    state["learned"]["_regimes"]["_landed"] = [-1e308] * 10
    loaded, problem = restored(strategy, state)
    assert problem == ""
    later = busy(8, 300, start=1e5)
    seen = answers(loaded, later)
    assert seen[-1][0].delay <= strategy.max_interval
    assert "nan" not in json.dumps(loaded.dump())
    state = Own().pacer().dump()
    state["learned"]["polls"] = -5
    loaded, problem = restored(Own(), state)
    assert problem == ""
    assert [loaded.after(saw(0, at=float(n))).delay for n in range(3)] == [1.0, 2.0, 3.0]


def test_a_cycle_out_of_reach_ends() -> None:
    """Its period is so short that its phases cannot be counted any more."""
    strategy = Worth(poll_cost=1, wait_cost=1)
    pacer = strategy.pacer()
    replay(strategy, cron(60.0, 5, 200, seed=6), pacer=pacer)
    state = pacer.dump()
    state["learned"]["_cycle"] |= {"_period": 1e-6, "_tick": -1e13}
    keeps_its_bounds(strategy, state, [saw(0, at=1e5 + n) for n in range(5)])


# The time in which nobody polled.


def test_downtime_is_no_evidence_of_silence() -> None:
    strategy = Worth(poll_cost=20, wait_cost=1)
    arrivals = poisson(1.0, 2000, seed=5)
    pacer = strategy.pacer()
    run = replay(strategy, arrivals, pacer=pacer)
    state = stored(pacer.dump())
    before, at = pacer.state()["long_run_rate"], run.polled[-1] + 12 * 3600
    loaded = strategy.pacer(state)
    loaded.resume(at)
    loaded.after(Outcome(at, 0))
    assert loaded.state()["long_run_rate"] == before
    usual = pacer.state()["usual_interval"]
    assert loaded.after(Outcome(at + 6.0, 6)).delay == pytest.approx(usual, rel=0.5)


def test_an_average_does_not_fade_while_nobody_polls() -> None:
    pacer = Ewma().pacer()
    for n in range(20):
        pacer.after(saw(5, 100, at=float(n)))
    loaded = Ewma().pacer(stored(pacer.dump()))
    loaded.resume(1e6)
    for n in range(3):
        loaded.after(saw(0, at=1e6 + n))
    assert loaded.state()["average"] == pytest.approx(5.0, rel=0.1)
    pacer.after(saw(0, at=1e6))
    pacer.after(saw(0, at=1e6 + 1))
    assert pacer.state()["average"] == 0.0


def test_a_cycle_keeps_its_phase_through_a_downtime() -> None:
    strategy = Worth(poll_cost=20, wait_cost=1)
    pacer = strategy.pacer()
    run = replay(strategy, cron(60.0, 5, 200, seed=6), pacer=pacer)
    loaded = strategy.pacer(stored(pacer.dump()))
    back = math.ceil(run.polled[-1] / 60) * 60 + 600 + 20.0
    loaded.resume(back)
    loaded.after(Outcome(back, 0))
    delay = loaded.after(Outcome(back + 1, 0)).delay
    assert 30 < delay < 50  # until the next batch, at the full minute


# Strategies of your own.


@dataclass
class Part:
    totals: list[float] = field(default_factory=list)
    note: str = field(default="", compare=False)
    scale: Final[float] = 2.0


class Own(Strategy):
    name = "own"
    min_interval = 1.0
    max_interval = 9.0

    def pacer(self) -> OwnPacer:
        return OwnPacer()


class OwnPacer(Pacer):
    """It does not know its strategy."""

    __slots__ = ("part", "polls")

    def __init__(self) -> None:
        self.part = Part()
        self.polls = 0

    def first(self) -> Pause:
        return Pause(1.0)

    def after(self, outcome: Outcome) -> Pause:
        self.polls += 1
        self.part.totals.append(outcome.at)
        self.part.note = "not a part of what it learned"
        return Pause(min(float(self.polls), 9.0))

    def state(self) -> dict[str, Plain]:
        return {"interval": float(self.polls)}


def test_strategies_of_your_own_are_restored_too() -> None:
    pacer = Own().pacer()
    for n in range(5):
        pacer.after(saw(1, at=float(n)))
    state = stored(pacer.dump())
    assert state["strategy"] == "OwnPacer"
    assert state["learned"] == {"part": {"totals": [0, 1, 2, 3, 4]}, "polls": 5}
    loaded, problem = restored(Own(), state)
    assert problem == ""
    loaded.resume(9.0)
    assert loaded.after(saw(1, at=9.0)).delay == 6.0
    state["learned"]["part"]["totals"] = [0.0] * (LIST_MAX + 1)
    assert "at most 4096 values" in restored(Own(), state).problem
