"""A budget that many pollers share: the limit, the turns, and what the server says."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollwise.core.budget import LOWERED, LOWEST, PATIENCE, RAISED, Allowance, FairBudget

rates = st.floats(0.01, 100.0)
bursts = st.integers(1, 10)


def polls_of(
    budget: FairBudget[int], pauses: list[float], most: int, late: float = 0.0
) -> list[tuple[float, int]]:
    """When which poller polls; each asks again `pauses[i]` seconds after its poll."""
    order = count()
    agenda = [(0.0, next(order), poller) for poller in range(len(pauses))]
    heapq.heapify(agenda)
    polls: list[tuple[float, int]] = []
    for _ in range(50 * most):
        at, _, poller = heapq.heappop(agenda)
        again = budget.ask(poller, at)
        if again <= at:
            polls.append((at, poller))
            if len(polls) == most:
                return polls
            heapq.heappush(agenda, (at + pauses[poller], next(order), poller))
        else:
            heapq.heappush(agenda, (again + late, next(order), poller))
    raise AssertionError("pollers ask again and again, and none may poll")


@given(rates, bursts, st.lists(st.floats(0.0, 20.0), min_size=1, max_size=8), st.floats(0, 1))
@settings(max_examples=50)
def test_no_span_sees_more_than_the_limit_and_the_burst(
    rate: float, burst: int, pauses: list[float], late: float
) -> None:
    times = [at for at, _ in polls_of(FairBudget(rate, burst, 60.0), pauses, 60, late)]
    for first, began in enumerate(times):
        for last in range(first, len(times)):
            allowed = rate * (times[last] - began) + burst
            assert last - first + 1 <= allowed * (1 + 1e-6) + 1e-6


@given(rates, bursts, st.integers(2, 12))
@settings(max_examples=50)
def test_hungry_pollers_take_turns_and_get_the_whole_rate(rate: float, burst: int, n: int) -> None:
    budget: FairBudget[int] = FairBudget(rate, burst, 60.0)
    polls = polls_of(budget, [0.0] * n, 20 * n)
    so_far: Counter[int] = Counter(dict.fromkeys(range(n), 0))
    for _, poller in polls:
        so_far[poller] += 1
        assert max(so_far.values()) - min(so_far.values()) <= burst + 1
    took = polls[-1][0] - polls[0][0]
    assert len(polls) >= rate * took * 0.999


@given(bursts, st.integers(1, 6), st.floats(2.5, 50.0))
@settings(max_examples=50)
def test_a_modest_poller_waits_for_one_turn_of_the_others_at_most(
    burst: int, hungry: int, pause: float
) -> None:
    polls = polls_of(FairBudget(1.0, burst, 60.0), [*([0.0] * hungry), pause], 200)
    its = [at for at, poller in polls if poller == hungry]
    gaps = [after - before for before, after in pairwise(its)]
    assert all(gap <= pause + hungry + burst + 1 + 1e-6 for gap in gaps)


def test_a_refusal_halves_the_rate_once_and_answers_raise_it_again() -> None:
    budget: FairBudget[str] = FairBudget(10.0, 1.0, 60.0)
    budget.refused(began=0.0, now=1.0)
    assert budget.rate == 10.0 * LOWERED
    budget.refused(began=0.5, now=1.1)  # was on its way
    assert budget.rate == 10.0 * LOWERED
    for n in range(20):
        budget.refused(began=2.0 + n, now=2.0 + n)
    assert budget.rate == 10.0 * LOWEST
    for n in range(round(1 / RAISED) - 1):
        before = budget.rate
        budget.answered(30.0 + n)
        assert budget.rate == pytest.approx(before + 10.0 * RAISED)
    budget.answered(90.0)
    assert budget.rate == 10.0
    budget.answered(91.0)
    assert budget.rate == 10.0


def test_a_lowered_rate_is_the_limit_of_all() -> None:
    budget: FairBudget[int] = FairBudget(10.0, 1.0, 60.0)
    budget.refused(began=0.0, now=0.0)
    polls = polls_of(budget, [0.0] * 3, 30)
    assert polls[-1][0] - polls[0][0] >= 29 / 5.0 - 1e-6


@given(st.floats(0.0, 1e12), st.floats(1.0, 600.0))
def test_a_refusal_silences_all_for_the_wait_but_not_for_ever(wait: float, longest: float) -> None:
    budget: FairBudget[str] = FairBudget(1.0, 1.0, longest)
    budget.refused(began=5.0, now=5.0, wait=wait)
    wait = min(wait, longest)
    at = 5.0
    for _ in range(5):
        again = budget.ask("a", at)
        if again <= at:
            break
        at = again
    assert at == pytest.approx(5.0 + wait, abs=2.1)
    assert at >= 5.0 + wait


@given(st.integers(1, 50), st.floats(0.1, 500.0), st.integers(1, 5), st.floats(0.0, 40.0), bursts)
@settings(max_examples=100)
def test_what_remains_at_the_server_lasts_until_it_resets(
    remaining: int, resets_in: float, pollers: int, began: float, burst: int
) -> None:
    budget: FairBudget[int] = FairBudget(50.0, burst, 600.0)
    budget.ask(99, 0.0)  # time passes, and tokens are saved
    budget.answered(began, Allowance(remaining, resets_in))
    order = count()
    agenda = [(began, next(order), poller) for poller in range(pollers)]
    polls = 0
    while agenda[0][0] < began + resets_in * (1 - 1e-9):
        at, _, poller = heapq.heappop(agenda)
        again = budget.ask(poller, at)
        polls += again <= at
        heapq.heappush(agenda, (again, next(order), poller))
    assert polls <= remaining


def test_the_limit_is_back_after_the_reset() -> None:
    budget: FairBudget[int] = FairBudget(10.0, 1.0, 600.0)
    budget.answered(0.0, Allowance(1, 100.0))
    assert budget.ask(0, 0.0) == 0.0
    assert budget.ask(0, 0.0) == 100.0  # nothing is left, so it comes again at the reset
    assert budget.ask(0, 100.0) in (100.0, pytest.approx(100.1))
    assert budget.ask(0, 100.2) == 100.2


def test_nothing_remains_until_the_reset() -> None:
    budget: FairBudget[str] = FairBudget(10.0, 3.0, 600.0)
    budget.answered(0.0, Allowance(0, 30.0))
    assert budget.ask("a", 0.0) == 30.0
    assert budget.ask("a", 30.0) == 30.0


@given(st.integers(-5, 10), st.floats(-100.0, 1e15))
def test_a_server_that_lies_about_its_limit_silences_nobody_for_ever(
    remaining: int, resets_in: float
) -> None:
    budget: FairBudget[str] = FairBudget(1.0, 1.0, 60.0)
    budget.answered(0.0, Allowance(remaining, resets_in))
    budget.ask("other", 0.0)
    at, asked = 0.0, 0
    while (again := budget.ask("a", at)) > at:
        at, asked = again, asked + 1
        assert asked < 20
    assert at <= 62.0 + PATIENCE  # the other one never comes back


def test_who_leaves_or_does_not_come_back_holds_up_nobody() -> None:
    budget: FairBudget[str] = FairBudget(0.1, 1.0, 600.0)
    assert budget.ask("first", 0.0) == 0.0
    assert budget.ask("gone", 0.0) == 10.0
    assert budget.ask("leaves", 0.0) == 20.0
    assert budget.ask("stays", 0.0) == 30.0
    budget.leave("leaves")
    budget.leave("was never there")
    at = 20.0  # "gone" was due at 10 s and is not late enough yet
    assert budget.ask("stays", at) == 20.0 + 10.0
    at += PATIENCE + 1e-3
    assert budget.ask("stays", at) == at
    assert list(budget.waiting) == []


def test_time_that_stands_still_or_goes_back_grants_nothing_twice() -> None:
    budget: FairBudget[str] = FairBudget(1.0, 1.0, 600.0)
    assert budget.ask("a", 5.0) == 5.0
    assert budget.ask("a", 5.0) == 6.0
    assert budget.ask("b", 4.0) > 4.0
    assert math.isfinite(budget.ask("a", 4.0))
