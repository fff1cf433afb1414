from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pollwise.core.breaker import Breaker, Circuit
from pollwise.errors import ConfigError

BREAKER = Breaker(failures=3, delay="30s", max_delay="5m")


def closed() -> Circuit:
    return BREAKER.circuit()


def opened(at: float = 0.0) -> Circuit:
    """A circuit that opened at `at`, for 30 seconds."""
    circuit = closed()
    for _ in range(3):
        circuit.failed(at)
    return circuit


def on_trial(at: float = 30.0) -> Circuit:
    """A circuit that opened at 0 and began its trial at `at`."""
    circuit = opened()
    circuit.begin(at)
    return circuit


def test_a_circuit_adopts_the_state_of_another() -> None:
    """Workers of a queue share the state of a kind; each has a circuit of its own."""
    circuit = on_trial()
    assert (circuit.openings, circuit.on_trial) == (1, True)
    circuit.adopt(3, 100.0)
    assert (circuit.openings, circuit.on_trial, circuit.retry_at) == (3, False, 100.0)
    assert [circuit.state(at) for at in (99.0, 100.0)] == ["open", "half-open"]
    circuit.begin(100.0)
    circuit.failed(100.0)  # it was open before, so one failed trial opens it again
    assert circuit.openings == 4
    circuit.reset()
    assert (circuit.openings, circuit.retry_at) == (0, None)


# The recipe.


@pytest.mark.parametrize(
    ("breaker", "lengths"),
    [
        (Breaker(), [30, 60, 120, 240, 300, 300]),
        (Breaker(delay="10s", max_delay="1m", multiplier=3), [10, 30, 60, 60]),
        (Breaker(delay="10s", max_delay="1m", multiplier=1), [10, 10, 10]),
        (Breaker(delay="10s", max_delay="10s"), [10, 10]),
    ],
    ids=repr,
)
def test_openings_grow_up_to_the_max_delay(breaker: Breaker, lengths: list[float]) -> None:
    assert [breaker.open_for(n) for n in range(1, len(lengths) + 1)] == lengths


@pytest.mark.parametrize("openings", [25, 27, 63, 64, 1024, 10_000, 10**6, 10**9, 10**400])
def test_no_number_of_openings_overflows(openings: int) -> None:
    assert BREAKER.open_for(openings) == 300.0


@given(
    st.floats(1e-3, 1e6),
    st.floats(0, 1e6),
    st.floats(1, 100),
    st.integers(-1, 10**12),
    st.integers(0, 10**12),
)
@example(30.0, 270.0, 2.0, 0, 0)
def test_openings_are_bounded_and_never_shrink(
    delay: float, more: float, multiplier: float, n: int, later: int
) -> None:
    breaker = Breaker(delay=delay, max_delay=delay + more, multiplier=multiplier)
    assert delay <= breaker.open_for(n) <= breaker.open_for(n + later) <= delay + more


def test_a_recipe_is_a_value() -> None:
    assert Breaker() == Breaker(3, 30, timedelta(minutes=5), multiplier=2)
    assert len({Breaker(), Breaker(3), Breaker(4)}) == 2
    assert pickle.loads(pickle.dumps(BREAKER)) == copy.deepcopy(BREAKER) == BREAKER
    assert dataclasses.replace(BREAKER, failures=7) == Breaker(7)
    with pytest.raises(dataclasses.FrozenInstanceError):
        BREAKER.failures = 7  # type: ignore[misc]


@pytest.mark.parametrize(
    ("breaker", "text"),
    [
        (Breaker(), "Breaker(3, '30s', max_delay='5m')"),
        (
            Breaker(5, 1 / 3, multiplier=1.5),
            f"Breaker(5, {1 / 3!r}, max_delay='5m', multiplier=1.5)",
        ),
    ],
)
def test_repr_is_the_call_that_makes_it(breaker: Breaker, text: str) -> None:
    assert repr(breaker) == text
    assert eval(text) == breaker


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"failures": 0}, "failures = 0"),
        ({"failures": -1}, "failures = -1"),
        ({"failures": 1.5}, r"failures = 1\.5"),
        ({"failures": True}, "failures = True"),
        ({"failures": None}, "failures = None"),
        ({"delay": 0}, "delay = 0 must be above 0"),
        ({"delay": "-1s"}, "delay = '-1s'"),
        ({"delay": "later"}, "delay = 'later'"),
        ({"delay": math.nan}, "delay = nan"),
        ({"max_delay": "29s"}, "max_delay = '29s' must be at least delay = '30s'"),
        ({"max_delay": math.inf}, "max_delay = inf"),
        ({"multiplier": 0.9}, r"multiplier = 0\.9"),
        ({"multiplier": math.inf}, "multiplier = inf"),
        ({"multiplier": "2"}, "multiplier = '2'"),
    ],
)
def test_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Breaker(**arguments)


# The state transition table: what a report does in each state. Times are of the report; the
# circuit opened at 0 for 30 s, and its second opening lasts 60 s.

Report = Callable[[Circuit, float], None]
BEGIN, SUCCESS, FAILURE, ABANDON = (
    Circuit.begin,
    Circuit.succeeded,
    Circuit.failed,
    Circuit.abandoned,
)


@pytest.mark.parametrize(
    ("circuit", "report", "now", "state", "allows", "retry_at"),
    [
        (closed, BEGIN, 1, "closed", True, None),
        (closed, SUCCESS, 1, "closed", True, None),
        (closed, FAILURE, 1, "closed", True, None),
        (closed, ABANDON, 1, "closed", True, None),
        # Open: nothing moves it but time. Late reports neither prolong nor end it.
        (opened, BEGIN, 29, "open", False, 30),
        (opened, SUCCESS, 29, "open", False, 30),
        (opened, FAILURE, 29, "open", False, 30),
        (opened, ABANDON, 29, "open", False, 30),
        # Half-open, nobody on trial.
        (opened, BEGIN, 30, "half-open", False, 30),
        (opened, SUCCESS, 30, "half-open", True, 30),
        (opened, FAILURE, 30, "open", False, 90),
        (opened, ABANDON, 30, "half-open", True, 30),
        # Half-open, a trial under way since 30.
        (on_trial, BEGIN, 40, "half-open", False, 30),
        (on_trial, SUCCESS, 40, "closed", True, None),
        (on_trial, FAILURE, 40, "open", False, 100),
        (on_trial, ABANDON, 40, "half-open", True, 30),
        # Half-open, the trial silent for as long as the opening lasted.
        (on_trial, BEGIN, 60, "half-open", False, 30),
        (on_trial, SUCCESS, 60, "closed", True, None),
        (on_trial, FAILURE, 60, "open", False, 120),
        (on_trial, ABANDON, 60, "half-open", True, 30),
    ],
)
def test_transitions(
    circuit: Callable[[], Circuit],
    report: Report,
    now: float,
    state: str,
    allows: bool,
    retry_at: float | None,
) -> None:
    it = circuit()
    report(it, now)
    assert (it.state(now), it.allows(now), it.retry_at) == (state, allows, retry_at)


def test_it_opens_at_the_last_of_the_failures_in_a_row() -> None:
    circuit = closed()
    for now in (1.0, 2.0):
        circuit.failed(now)
        assert circuit.allows(now)
    circuit.failed(3.0)
    assert circuit.state(3.0) == "open"
    assert circuit.retry_at == 33.0
    assert not circuit.allows(math.nextafter(33.0, 0))
    assert circuit.allows(33.0)


def test_a_success_between_failures_starts_the_count_again() -> None:
    circuit = closed()
    for report in (FAILURE, FAILURE, SUCCESS, FAILURE, FAILURE):
        report(circuit, 1.0)
    assert circuit.state(1.0) == "closed"
    circuit.failed(2.0)
    assert circuit.state(2.0) == "open"


def test_one_failure_may_be_enough() -> None:
    circuit = Breaker(failures=1).circuit()
    circuit.failed(0.0)
    assert circuit.state(0.0) == "open"


def test_one_trial_at_a_time() -> None:
    circuit = opened()
    assert circuit.allows(31.0)
    assert circuit.allows(31.0), "asking is not beginning"
    circuit.begin(31.0)
    assert not circuit.allows(31.0)
    circuit.abandoned(32.0)
    assert circuit.allows(32.0)


def test_a_trial_that_never_reports_does_not_wedge_the_circuit() -> None:
    circuit = on_trial(at=40.0)
    circuit.begin(69.0)  # beside the trial: does not prolong its time
    assert not circuit.allows(69.9)
    assert circuit.allows(70.0)
    circuit.begin(70.0)
    assert not circuit.allows(99.9)
    assert circuit.allows(100.0)


def test_a_late_trial_of_a_longer_opening_has_longer() -> None:
    circuit = on_trial()
    circuit.failed(30.0)  # second opening, 60 s
    circuit.begin(90.0)
    assert not circuit.allows(149.9)
    assert circuit.allows(150.0)


def test_a_trial_is_heard_even_if_the_clock_was_set_back() -> None:
    circuit = on_trial()
    circuit.succeeded(10.0)
    assert circuit.state(10.0) == "closed"
    circuit = on_trial()
    circuit.failed(10.0)
    assert circuit.retry_at == 70.0


@pytest.mark.parametrize("report", [SUCCESS, FAILURE, ABANDON])
def test_a_trial_that_failed_is_over(report: Report) -> None:
    circuit = on_trial()
    circuit.failed(40.0)
    report(circuit, 50.0)
    assert circuit.state(50.0) == "open"
    assert circuit.retry_at == 100.0
    assert circuit.allows(100.0)


@pytest.mark.parametrize("report", [SUCCESS, FAILURE])
@pytest.mark.parametrize("begun", [-1.0, 5.0])
def test_work_begun_before_half_open_is_no_trial(begun: float, report: Report) -> None:
    circuit = closed()
    circuit.failed(-2.0)
    if begun < 0:
        circuit.begin(begun)
    circuit.failed(0.0)
    circuit.failed(0.0)
    if begun > 0:
        circuit.begin(begun)
    report(circuit, 10.0)
    assert circuit.state(10.0) == "open"
    assert circuit.retry_at == 30.0
    assert circuit.allows(30.0)


def test_openings_grow_and_a_success_starts_over() -> None:
    circuit, now, lengths = opened(), 0.0, []
    for _ in range(6):
        assert circuit.retry_at is not None
        lengths.append(circuit.retry_at - now)
        now = circuit.retry_at
        circuit.begin(now)
        circuit.failed(now)
    assert lengths == [30, 60, 120, 240, 300, 300]

    assert circuit.retry_at is not None
    now = circuit.retry_at
    circuit.begin(now)
    circuit.succeeded(now)
    for _ in range(3):
        circuit.failed(now)
    assert circuit.retry_at == now + 30


def test_after_ten_thousand_failed_trials_it_still_protects() -> None:
    circuit, now = opened(), 0.0
    for _ in range(10_000):
        assert circuit.retry_at is not None
        now = circuit.retry_at
        assert circuit.allows(now)
        circuit.begin(now)
        circuit.failed(now)
        assert not circuit.allows(now)
        assert not circuit.allows(math.nextafter(circuit.retry_at or 0.0, 0))
    assert circuit.retry_at == now + 300


def test_ten_thousand_late_failures_do_not_prolong_an_opening() -> None:
    circuit = opened()
    for n in range(10_000):
        circuit.failed(n * 29 / 10_000)
    assert circuit.retry_at == 30
    assert not circuit.allows(29.9)


def test_failures_without_begin_still_protect() -> None:
    circuit, allowed = closed(), 0
    for now in range(10_000):
        if circuit.allows(now):
            allowed += 1
            circuit.failed(now)
    # 3 to open, then trials at 32, 92, 212, 452, and from 752 on every 300 s.
    assert allowed == 3 + 4 + len(range(752, 10_000, 300))


def test_an_operator_may_reset() -> None:
    circuit = on_trial()
    circuit.reset()
    assert circuit.snapshot(31.0) == closed().snapshot(31.0)


@pytest.mark.parametrize(
    ("circuit", "now", "shown"),
    [
        (closed, 5, ("closed", 0, 0, None, None, False)),
        (opened, 10, ("open", 3, 1, 30, 20, False)),
        (opened, 45, ("half-open", 3, 1, 30, 0, False)),
        (on_trial, 45, ("half-open", 3, 1, 30, 0, True)),
        (on_trial, 60, ("half-open", 3, 1, 30, 0, False)),
    ],
)
def test_snapshot(circuit: Callable[[], Circuit], now: float, shown: tuple[object, ...]) -> None:
    keys = ("state", "failures", "openings", "retry_at", "retry_in", "on_trial")
    assert circuit().snapshot(now) == dict(zip(keys, shown, strict=True))


def test_circuits_share_nothing() -> None:
    one, other = BREAKER.circuit(), BREAKER.circuit()
    for _ in range(3):
        one.failed(0.0)
    assert not one.allows(0.0)
    assert other.allows(0.0)


# Any history at all.

steps = st.lists(
    st.tuples(st.sampled_from([BEGIN, SUCCESS, FAILURE, ABANDON]), st.floats(0, 400)), max_size=60
)


def play(history: list[tuple[Report, float]]) -> tuple[Circuit, float]:
    circuit, now = closed(), 0.0
    for report, passed in history:
        now += passed
        report(circuit, now)
    return circuit, now


@given(steps, st.floats(0, 1000))
def test_asking_changes_nothing(history: list[tuple[Report, float]], ahead: float) -> None:
    circuit, now = play(history)
    before = circuit.snapshot(now)
    for _ in range(3):
        circuit.state(now + ahead)
        circuit.allows(now + ahead)
        circuit.snapshot(now + ahead)
    assert circuit.snapshot(now) == before


@given(steps)
@example([(FAILURE, 0.0)] * 3 + [(BEGIN, 30.0)])
def test_every_history_leads_to_another_chance_within_the_max_delay(
    history: list[tuple[Report, float]],
) -> None:
    circuit, now = play(history)
    assert circuit.allows(now + 300.0)


@given(steps)
def test_what_is_allowed_follows_from_what_is_shown(history: list[tuple[Report, float]]) -> None:
    circuit, now = play(history)
    shown = circuit.snapshot(now)
    allowed = {"closed": True, "open": False, "half-open": not shown["on_trial"]}
    assert circuit.allows(now) is allowed[circuit.state(now)]
    assert (circuit.retry_at is None) is (shown["state"] == "closed")
