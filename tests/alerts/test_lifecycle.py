"""The laws of an alert's life, for any sequence of polls, pauses and restarts."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pollwise.alerts.lifecycle import CALM, RuleState, due, step
from pollwise.alerts.rules import AlertRule

Steps = list[tuple[int, bool | None, bool, bool]]

RULES = st.builds(
    AlertRule,
    st.just("down"),
    lasting=st.sampled_from((0, 5, 30)),
    confirmations=st.integers(1, 3),
    repeat=st.sampled_from((None, 20)),
)
#: Seconds since the last step, what the poll saw, whether the alert is free, whether to restart.
STEPS = st.lists(
    st.tuples(
        st.integers(1, 40),
        st.sampled_from((True, False, None)),
        st.sampled_from((True, True, True, False)),
        st.booleans(),
    ),
    max_size=60,
)


def restarted(state: RuleState, now: float) -> RuleState:
    """The state after it was saved as JSON, with another clock, and restored."""
    return RuleState.restored(json.loads(json.dumps(state.kept(1e9))), 1e9, now)


def lived(rule: AlertRule, steps: Steps, *, restarts: bool) -> list[tuple[float, str]]:
    now, state = 0.0, CALM
    events: list[tuple[float, str]] = []
    for after, holds, free, restart in steps:
        now += after
        state, event = step(rule, state, now, holds, free=free)
        if event == "opened":
            state = replace(state, alert=f"a{now:g}")
        if event:
            events.append((now, event))
        if restart and restarts:
            state = restarted(state, now)
    return events


@given(RULES, STEPS)
def test_opened_and_closed_alternate(rule: AlertRule, steps: Steps) -> None:
    events = [event for _, event in lived(rule, steps, restarts=False)]
    turns = [event for event in events if event != "repeated"]
    assert turns[::2] == ["opened"] * len(turns[::2])
    assert turns[1::2] == ["closed"] * len(turns[1::2])
    for place, event in enumerate(events):
        if event == "repeated":
            assert rule.repeat is not None
            assert events[place - 1] in ("opened", "repeated")


@given(RULES, STEPS)
def test_a_restart_at_any_point_changes_nothing(rule: AlertRule, steps: Steps) -> None:
    assert lived(rule, steps, restarts=True) == lived(rule, steps, restarts=False)


@given(RULES, STEPS)
def test_it_opens_only_after_holding_for_its_time(rule: AlertRule, steps: Steps) -> None:
    opened = {at for at, event in lived(rule, steps, restarts=False) if event == "opened"}
    now, since, seen = 0.0, None, 0
    for after, holds, free, _ in steps:
        now += after
        if holds is False:
            since, seen = None, 0
        elif holds:
            since, seen = now if since is None else since, seen + 1
        if now in opened:
            assert free
            assert since is not None
            assert now - since >= rule.lasting
            assert seen >= rule.confirmations


@given(RULES, STEPS)
def test_repetitions_keep_their_distance(rule: AlertRule, steps: Steps) -> None:
    last = -math.inf
    for at, event in lived(rule, steps, restarts=False):
        if event == "repeated":
            assert at - last >= (rule.repeat or math.inf)
        last = at


def test_flapping_below_its_time_opens_nothing() -> None:
    rule = AlertRule("down", lasting="1m")
    state = CALM
    for now in range(0, 6000, 10):
        state, event = step(rule, state, now, now % 60 != 50)
        assert event is None


def test_time_alone_opens_and_repeats() -> None:
    rule = AlertRule("down", lasting="1m", repeat="10m")
    state, event = step(rule, CALM, 100.0, True, since=80.0)
    assert (event, due(rule, state)) == (None, 140.0)
    assert step(rule, state, 139.0)[1] is None
    state, event = step(rule, state, 140.0)
    assert (event, due(rule, state)) == ("opened", 740.0)
    state, event = step(rule, state, 740.0)
    assert (event, state.sent) == ("repeated", 2)
    assert due(rule, replace(state, acknowledged=True)) == math.inf


def test_once_free_it_needs_a_new_poll() -> None:
    rule = AlertRule("down")
    state, event = step(rule, CALM, 1.0, True, free=False)
    assert event is None
    state, event = step(rule, state, 2.0)
    assert event is None
    state, event = step(rule, state, 3.0, True)
    assert (event, state.since) == ("opened", 1.0)


def test_a_saved_state_that_cannot_be_read_is_a_fresh_one() -> None:
    unreadable: tuple[object, ...] = (
        None,
        [],
        "x",
        {"alert": "a"},
        {"since": "soon"},
        {"seen": []},
    )
    for kept in unreadable:
        assert RuleState.restored(kept, 0.0, 10.0) == CALM
    ahead = {"since": 500.0, "seen": 1, "alert": "a", "opened_at": 500, "sent_at": 500, "sent": 1}
    state = RuleState.restored(ahead, 0.0, 10.0)  # the clock was set back
    assert (state.since, state.opened_at, state.sent_at) == (10.0, 10.0, 10.0)
