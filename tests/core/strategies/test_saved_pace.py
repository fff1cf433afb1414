"""A pace goes on in another process, whose clock begins elsewhere."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollwise.core.outcome import Outcome
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.saved_pace import PACE_KEPT, pace_restored, pace_saved
from pollwise.core.strategies.worth import Worth
from tests.core.strategies.test_dumps import busy, jsons, learned, stored

WORTH = Worth(poll_cost=20, wait_cost=1)
EPOCH = 1_767_225_600.0


def saved() -> Any:
    """At the time 1,000 of its clock."""
    return json.loads(text_saved())


@cache
def text_saved() -> str:
    return json.dumps(pace_saved(learned(WORTH), 1000.0, EPOCH))


@given(st.integers(0, 10**6), st.integers(0, 86400))
@settings(deadline=None)
def test_it_does_not_matter_where_a_clock_begins(start: int, down: int) -> None:
    def answers(now: float) -> list[Any]:
        pacer, age, problem = pace_restored(WORTH, saved(), now, EPOCH + down)
        assert (age, problem) == (down, "")
        assert pacer.ahead + now == 1000.0 + down
        found = [pacer.after(Outcome(now + each.at, each.found)) for each in busy(3, 5)]
        return [pause.delay for pause in found]

    assert answers(float(start)) == pytest.approx(answers(5.0), rel=1e-5)


def test_a_pace_is_saved_again_and_again() -> None:
    state = saved()
    for n in range(1, 4):
        pacer, _, problem = pace_restored(WORTH, state, 7.0, EPOCH + 100.0 * n)
        assert problem == ""
        state = stored(pace_saved(pacer, 57.0, EPOCH + 100.0 * n + 50.0))
        assert state["at"] == 1000.0 + 100.0 * n + 50.0


def test_a_clock_that_was_set_back_counts_as_no_time() -> None:
    pacer, age, problem = pace_restored(WORTH, saved(), 7.0, EPOCH - 5000.0)
    assert (age, problem, pacer.ahead) == (0.0, "", 993.0)


def test_what_is_not_used() -> None:
    state = saved()
    later = EPOCH + PACE_KEPT + 86400.0
    assert pace_restored(WORTH, state, 0.0, later).problem == "it is 8 days old"
    assert "its strategy is" in pace_restored(Adaptive(), state, 0.0, EPOCH).problem
    others: list[Any] = [None, [], {}, {**state, "at": None}, {**state, "saved_at": 1e13}]
    for other in others:
        assert pace_restored(WORTH, other, 0.0, EPOCH).problem == "it is not a saved pace"


@given(jsons, jsons)
@settings(deadline=None)
def test_arbitrary_states_do_no_harm(state: object, part: object) -> None:
    for each in (state, {**saved(), "at": part}, {**saved(), "pacer": part}):
        pacer = pace_restored(WORTH, json.loads(json.dumps(each)), 5.0, EPOCH).pacer
        for outcome in busy(4, 5):
            assert WORTH.min_interval <= pacer.after(outcome).delay <= WORTH.max_interval
