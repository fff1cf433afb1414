from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollwise.core.forecast.durations import Durations
from pollwise.core.outcome import Outcome
from pollwise.core.strategies.base import Pacer, Strategy, restored
from pollwise.core.strategies.completion import Completion
from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import ConfigError
from tests.core.strategies.histories import histories

#: A plan takes a millisecond, and each run needs another.
few = settings(max_examples=20, deadline=None)
costs = st.floats(1e-3, 1e3) | st.floats(5e-324, 1e308)


@st.composite
def recipes(draw: st.DrawFn) -> Completion:
    low, high = sorted((draw(st.floats(1e-3, 1e6)), draw(st.floats(1e-3, 1e6))))
    return Completion(
        poll_cost=draw(costs), wait_cost=draw(costs), min_interval=low, max_interval=high
    )


def walk(pacer: Pacer, history: list[Outcome]) -> list[Any]:
    return [pacer.first(), *map(pacer.after, history), pacer.state()]


@few
@given(recipes(), histories())
def test_pauses_keep_within_the_bounds(strategy: Completion, history: list[Outcome]) -> None:
    pacer = strategy.pacer()
    for pause in (pacer.first(), *map(pacer.after, history)):
        assert strategy.min_interval <= pause.delay <= strategy.max_interval
        assert pause.hold == 0
        assert pause.changes == ()
    assert pacer.state()["interval"] == pause.delay


@few
@given(recipes(), histories())
def test_pacers_are_deterministic(strategy: Completion, history: list[Outcome]) -> None:
    assert walk(strategy.pacer(), history) == walk(strategy.pacer(), history)
    learned = (replace(strategy, history=Durations()) for _ in range(2))
    first, second = (walk(each.pacer(), history) for each in learned)
    assert first == second


def test_a_run_begins_when_the_loop_says_so_however_its_first_pause_ended() -> None:
    known = Durations()
    for _ in range(20):
        known.add(100)

    def elapsed(begun: bool) -> Any:
        pacer = Completion(history=known).pacer()
        if begun:
            pacer.begin(1000.0)
        pacer.first()
        pacer.after(Outcome(1005.0, 0, hinted=True))
        return pacer.state()["elapsed"]

    assert elapsed(begun=True) == 5.0
    assert elapsed(begun=False) > 50  # it can only assume that the whole pause has passed
    assert Completion.plans_first


def test_a_saved_pace_leaves_the_history_out() -> None:
    known = Durations()
    known.add(100)
    pacer = Completion(history=known).pacer()
    pacer.begin(0.0)
    pacer.after(Outcome(30.0, 0))
    state = pacer.dump()
    assert len(str(state)) < 400
    again = restored(Completion(history=known), state)
    assert again.problem == ""
    assert again.pacer.state() == pacer.state()
    again.pacer.begin(0.0)
    assert again.pacer.after(Outcome(60.0, 0)) == pacer.after(Outcome(60.0, 0))


@few
@given(recipes(), histories(), st.floats(0, 1e6))
def test_a_failed_poll_is_no_evidence(
    strategy: Completion, history: list[Outcome], later: float
) -> None:
    pacer = strategy.pacer()
    pause = [pacer.first(), *map(pacer.after, history)][-1]
    before = pacer.state()
    failure = Outcome((history[-1].at if history else 0.0) + later, 0, failed=True)
    assert pacer.after(failure) == pause
    assert pacer.state() == before


# What it learns.


def run(pacer: Any, took: float, begin: float = 0.0, *, exact: bool = False) -> tuple[int, float]:
    """Poll a run until it is found; how many polls, and how long its end waited."""
    at, polls = begin, 0
    pause = pacer.first()
    while True:
        at += pause.delay
        polls += 1
        wait = at - begin - took
        if wait >= 0:
            pacer.after(Outcome(at, 1, 1, (wait,) if exact else ()))
            return polls, wait
        pause = pacer.after(Outcome(at, 0, 1))


class Recorder(Durations):
    """Notes what is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[float, ...]] = []

    def add(self, took: Any) -> None:
        self.noted.append((took,))

    def add_between(self, earliest: Any, latest: Any) -> None:
        self.noted.append((earliest, latest))


def test_the_end_is_between_two_polls() -> None:
    history = Recorder()
    pacer = Completion(history=history).pacer()
    began = 1000.0
    first = pacer.first().delay
    second = pacer.after(Outcome(began + first, 0)).delay
    pacer.after(Outcome(began + first + 1, 0, failed=True))
    pacer.after(Outcome(began + first + second, 1))
    assert history.noted[0] == pytest.approx((first, first + second))


def test_the_next_run_begins_when_the_last_was_found() -> None:
    history = Recorder()
    pacer = Completion(history=history).pacer()
    pacer.after(Outcome(50.0, 1))
    assert pacer.state()["elapsed"] == 0.0
    pacer.after(Outcome(53.0, 0))
    assert pacer.state()["elapsed"] == 3.0
    pacer.after(Outcome(57.0, 1))
    assert history.noted[1] == (3.0, 7.0)


def test_a_first_poll_that_failed_says_when_the_run_began() -> None:
    pacer = Completion().pacer()
    first = pacer.first().delay
    pacer.after(Outcome(100.0 + first, 0, failed=True))
    pacer.after(Outcome(107.0 + first, 0))
    assert pacer.state()["elapsed"] == pytest.approx(7.0 + first)


@pytest.mark.parametrize(
    ("waits", "took"), [((1.5,), 8.5), ((0.5, 3.0), 7.0), ((9.0,), 6.0), ((-1.0,), 10.0)]
)
def test_waits_say_when_it_ended(waits: tuple[float, ...], took: float) -> None:
    history = Recorder()
    pacer = Completion(history=history).pacer()
    pacer.after(Outcome(0.0, 1))
    pacer.after(Outcome(6.0, 0))
    pacer.after(Outcome(10.0, 1, None, waits))
    assert history.noted[1] == (took,)


def test_pacers_share_a_history_only_if_it_is_given() -> None:
    alone = Completion()
    run(alone.pacer(), 60.0)
    assert alone.pacer().state()["runs"] == 0
    shared = Completion(history=Durations())
    run(shared.pacer(), 60.0)
    assert shared.pacer().state()["runs"] == 1


# What it is worth.


def cost(strategy: Strategy, took: list[float], price: float, *, exact: bool = False) -> float:
    """Polls and waiting of one run after the other."""
    total = 0.0
    for each in took:
        polls, wait = run(strategy.pacer(), each, exact=exact)
        total += polls * price + wait
    return total


def builds(rng: random.Random) -> float:
    """Most take about two minutes; some fail early, and few are slow."""
    kind = rng.random()
    if kind < 0.15:
        return rng.uniform(5, 15)
    return rng.lognormvariate(math.log(120), 0.08) if kind < 0.95 else rng.uniform(200, 900)


LENGTHS: dict[str, Callable[[random.Random], float]] = {
    "builds": builds,
    "regular": lambda rng: rng.lognormvariate(4, 0.2),
    "random": lambda rng: rng.expovariate(1 / 60),
}


@pytest.mark.parametrize(
    ("length", "price", "share"),
    [("builds", 1.0, 0.75), ("regular", 1.0, 0.7), ("regular", 10.0, 0.85), ("random", 10.0, 1.1)],
)
def test_it_costs_less_than_the_best_fixed_interval(
    length: str, price: float, share: float
) -> None:
    rng = random.Random(7)
    took = [LENGTHS[length](rng) for _ in range(100)]
    fixed = min(cost(Fixed(10.0 ** (n / 10)), took, price) for n in range(30))
    learned = Completion(poll_cost=price, history=Durations())
    assert cost(learned, took, price) < share * fixed


def test_ends_that_are_known_exactly_help() -> None:
    rng = random.Random(7)
    took = [builds(rng) for _ in range(100)]

    def total(exact: bool) -> float:
        return cost(Completion(poll_cost=5.0, history=Durations()), took, 5.0, exact=exact)

    assert total(True) < total(False)


def test_without_history_polls_begin_close_and_move_apart() -> None:
    pacer = Completion(poll_cost=1.0).pacer()
    at = pacer.first().delay
    assert at < 10.0
    delays = []
    while at < 10_000:
        delays.append(pacer.after(Outcome(at, 0)).delay)
        at += delays[-1]
    assert len(delays) < 150
    assert delays[-1] > 10 * delays[0]


# A strategy is a value.


def test_strategies_are_values() -> None:
    history = Durations()
    one = Completion(poll_cost=2, history=history)
    assert one == Completion(poll_cost=2.0, history=history)
    assert one != Completion(poll_cost=2, history=Durations())
    assert len({one, replace(one), Completion()}) == 2
    assert repr(Completion()) == (
        "Completion(poll_cost=1.0, wait_cost=1.0, history=None, min_interval=0.1, "
        "max_interval=3600.0)"
    )
    assert not one.drains
    assert one.longest_hold == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"poll_cost": 0}, "poll_cost = 0 must be above 0 and finite: what one poll costs"),
        ({"wait_cost": -1}, "wait_cost = -1 must be above 0 and finite: what it costs"),
        ({"history": {}}, "history = {} must be a Durations, or None"),
        ({"min_interval": "2h"}, "min_interval = '2h' is above max_interval = '1h'"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Completion(**wrong)
