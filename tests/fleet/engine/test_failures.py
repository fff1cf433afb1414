"""The state of a target after failures: laws of the arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.core.breaker import Breaker
from pollwise.core.retry import Retry
from pollwise.errors import ConfigError, ProbeRefused
from pollwise.fleet.engine.failures import FailureRules, is_permanent, text_of

RULES = FailureRules()
units = st.floats(0, 1, exclude_max=True)
counts = st.integers(1, 10_000)


def after(failures: int, u: float = 0.0, **given: bool) -> tuple[float, bool]:
    told = {"permanent": False, "dead": False, **given}
    return RULES.failed(failures, soon=10.0, u=u, **told)


def test_an_outage_from_the_first_failure_to_the_dead_targets() -> None:
    assert [after(n) for n in range(1, 7)] == [
        (5.0, False), (5.0, False), (30.0, False), (60.0, False), (120.0, False), (240.0, False),
    ]  # fmt: skip
    assert [after(n) for n in (7, 8, 9, 10, 11)] == [
        (300.0, False), (300.0, False), (300.0, False), (600.0, True), (600.0, True),
    ]  # fmt: skip


@given(counts, units, st.integers(1, 20))
def test_a_target_may_have_its_own_number_of_failures(failures: int, u: float, own: int) -> None:
    delay, dead = RULES.failed(
        failures, permanent=False, dead=False, soon=10.0, u=u, dead_after=own
    )
    assert dead is (failures >= own)
    assert dead or delay <= RULES.breaker.max_delay


@given(counts, units)
def test_a_permanent_failure_is_confirmed_before_the_target_is_dead(
    failures: int, u: float
) -> None:
    if failures <= RULES.confirmations:
        assert after(failures, u, permanent=True) == (5.0, False)
    else:
        assert after(failures, u, permanent=True) == (600.0, True)
    at_once = FailureRules(confirmations=0)
    assert at_once.failed(1, permanent=True, dead=False, soon=10.0, u=u).dead


@given(counts, units, st.booleans(), st.booleans(), st.floats(0.1, 1e4))
def test_no_delay_is_longer_than_detect_within_allows(
    failures: int, u: float, permanent: bool, dead: bool, within: float
) -> None:
    bound = {"permanent": permanent, "dead": dead, "soon": 10.0, "u": u}
    free = RULES.failed(failures, **bound)  # type: ignore[arg-type]
    kept = RULES.failed(failures, **bound, within=within)  # type: ignore[arg-type]
    assert kept == (min(free.delay, within), free.dead)


@given(counts, units, st.booleans())
def test_a_dead_target_is_polled_every_ten_minutes(
    failures: int, u: float, permanent: bool
) -> None:
    assert after(failures, u, dead=True, permanent=permanent) == (600.0, True)


@given(counts, units, st.floats(0.001, 1e6))
def test_every_failure_is_followed_by_another_poll(failures: int, u: float, soon: float) -> None:
    delay, dead = RULES.failed(failures, permanent=False, dead=False, soon=soon, u=u)
    assert 0 < delay <= RULES.recheck
    assert dead is (failures >= RULES.dead_after)
    if failures <= RULES.confirmations:
        assert delay <= min(soon, RULES.confirm), "confirmed sooner, not later"


@given(counts, units)
def test_a_half_open_probe_is_never_late(failures: int, u: float) -> None:
    """A recovery is seen within the delay of the opening."""
    rules = FailureRules(dead_after=10**6)
    delay, _ = rules.failed(failures, permanent=False, dead=False, soon=1.0, u=u)
    if failures >= rules.breaker.failures:
        whole = rules.breaker.open_for(failures - rules.breaker.failures + 1)
        assert 0.8 * whole <= delay <= whole <= 300.0


@given(counts, units)
def test_between_confirming_and_opening_it_backs_off(failures: int, u: float) -> None:
    rules = FailureRules(breaker=Breaker(10, "30s"), dead_after=20)
    delay, dead = rules.failed(failures, permanent=False, dead=False, soon=9.0, u=u)
    if 2 < failures < 10:
        middle = min(5.0 * 2 ** (failures - 3), 300.0)
        assert 0.8 * middle <= delay <= min(1.2 * middle, 300.0)
        assert not dead


@given(counts, st.booleans(), st.booleans())
def test_a_target_has_one_state(failures: int, dead: bool, asked: bool) -> None:
    rules = FailureRules(
        breaker=Breaker(6, "30s"), backoff=Retry.exponential("5s", "5m", attempts=None)
    )
    word = rules.state(failures, dead=dead, asked=asked)
    if dead:
        assert word == "dead"
    elif failures <= 2:
        assert word == "confirming"
    elif failures < 6:
        assert word == "backing off"
    else:
        assert word == ("half-open" if asked else "open")
    assert rules.state(0, dead=False, asked=asked) == "closed"


@pytest.mark.parametrize(
    "wrong",
    [
        {"confirm": 0.0},
        {"recheck": -1.0},
        {"dead_after": 0},
        {"confirmations": -1},
        {"max_retry_after": -1.0},
    ],
)
def test_invalid_rules_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        FailureRules(**wrong)  # type: ignore[arg-type]


def test_an_error_says_whether_it_is_permanent() -> None:
    class Odd(Exception):
        permanent = "yes"  # not True

        def __str__(self) -> str:
            raise ValueError

    assert is_permanent(ProbeRefused("401"))
    assert not is_permanent(OSError())
    assert not is_permanent(Odd())
    assert text_of(Odd()) == "Odd: <an error whose message cannot be printed>"
    assert len(text_of(OSError("x" * 10_000))) == 500
    assert text_of(OSError("é\ud800")) == "OSError: é\\ud800", "a store takes it"
    assert text_of(KeyboardInterrupt()) == "KeyboardInterrupt"
