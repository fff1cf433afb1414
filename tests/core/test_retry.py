from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pollwise.core.retry import Retry, asked_wait, grown
from pollwise.errors import ConfigError, StoreUnavailable

BUILTINS = {each.__name__: each for each in (Exception, OSError, ValueError, KeyError)}

draws = st.floats(0, 1, exclude_max=True)
lengths = st.floats(1e-3, 1e6)
shares = st.floats(0, 0.99)
counts = st.integers(1, 10**12)
classes = st.sampled_from(sorted(BUILTINS.values(), key=repr))


@st.composite
def retries(draw: st.DrawFn) -> Retry:
    first, max_delay = sorted([draw(lengths), draw(lengths)])
    common: dict[str, Any] = {
        "attempts": draw(st.none() | st.integers(1, 100)),
        "jitter": draw(shares),
        "include": draw(st.lists(classes, max_size=3)),
        "exclude": draw(st.lists(classes, max_size=3)),
    }
    match draw(st.sampled_from(["exponential", "linear", "fixed", "never"])):
        case "exponential":
            multiplier = draw(st.floats(1, 100))
            return Retry.exponential(first, max_delay, multiplier=multiplier, **common)
        case "linear":
            return Retry.linear(first, max_delay, **common)
        case "fixed":
            return Retry.fixed(first, **common)
        case _:
            return Retry.never()


# Golden tables, worked out by hand.


@pytest.mark.parametrize(
    ("retry", "delays"),
    [
        (Retry.exponential(), [1, 2, 4, 8, 16, 32]),
        (Retry.exponential(jitter=0), [1, 2, 4, 8, 16, 32, 60, 60, 60]),
        (Retry.exponential("2s", "60s", jitter=0), [2, 4, 8, 16, 32, 60, 60]),
        (Retry.exponential("5s", "5m", jitter=0), [5, 10, 20, 40, 80, 160, 300, 300]),
        (Retry.exponential("1s", "1000s", multiplier=10, jitter=0), [1, 10, 100, 1000, 1000]),
        (Retry.exponential("1s", "10s", multiplier=1.5, jitter=0), [1, 1.5, 2.25, 3.375, 5.0625]),
        (Retry.exponential("3s", "9s", multiplier=1, jitter=0), [3, 3, 3, 3]),
        (Retry.exponential("3s", "3s", jitter=0), [3, 3, 3]),
        (Retry.linear(jitter=0), [5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 60]),
        (Retry.linear("2s", "7s", jitter=0), [2, 4, 6, 7, 7]),
        (Retry.fixed(), [5, 5, 5, 5]),
        (Retry.fixed(timedelta(minutes=1), jitter=0.5), [60, 60, 60]),
        (Retry.never(), [0, 0]),
    ],
    ids=repr,
)
def test_delays(retry: Retry, delays: list[float]) -> None:
    assert [retry.delay(n) for n in range(1, len(delays) + 1)] == delays


@pytest.mark.parametrize(
    ("retry", "failures", "u", "delay"),
    [
        (Retry.exponential(), 1, 0.0, 0.75),
        (Retry.exponential(), 1, 0.25, 0.875),
        (Retry.exponential(), 1, 0.75, 1.125),
        (Retry.exponential(), 3, 0.0, 3.0),
        # At the max_delay only the lower half is left: [45, 60].
        (Retry.exponential(), 7, 0.0, 45.0),
        (Retry.exponential(), 7, 0.5, 52.5),
        (Retry.exponential(), 700, 0.8, 57.0),
        # Near it, what the max_delay leaves: 50 ± 25 % is [37.5, 62.5], cut to [37.5, 60].
        (Retry.linear("10s", "60s"), 5, 0.5, 48.75),
        (Retry.linear("10s", "60s"), 6, 0.0, 45.0),
        # A fixed delay has no max_delay, so its jitter goes both ways.
        (Retry.fixed("4s", jitter=0.5), 9, 0.0, 2.0),
        (Retry.fixed("4s", jitter=0.5), 9, 0.5, 4.0),
        (Retry.fixed("4s", jitter=0.5), 9, 0.75, 5.0),
        (Retry.fixed("4s"), 9, 0.75, 4.0),
    ],
)
def test_jitter(retry: Retry, failures: int, u: float, delay: float) -> None:
    assert retry.delay(failures, u) == pytest.approx(delay, rel=1e-12)


# Laws.


@given(retries(), counts, draws)
@example(Retry.exponential(), 10**9, 0.5)
@example(Retry.linear(), 10**9, 0.5)
@example(Retry.exponential(), 10**400, 0.5)
@example(Retry.linear(), 10**400, 0.5)
@example(Retry.exponential(1e-300, 1e300), 10**400, 0.999)
@example(Retry.exponential(1e-300, 1e300), 1025, 0.999)
@example(Retry.linear(1e-300, 1e300), 10**400, 0.999)
@example(Retry.exponential(5e-324, 1e308, multiplier=1e308), 3, 0.0)
@example(Retry.exponential(1, 60, multiplier=math.nextafter(1, 2)), 10**18, 0.0)
def test_a_delay_is_within_its_bounds_for_any_number_of_failures(
    retry: Retry, failures: int, u: float
) -> None:
    delay = retry.delay(failures, u)
    assert 0 <= delay <= retry.max_delay
    assert math.isfinite(delay)


@given(retries(), st.integers(1, 300), st.integers(0, 10**6), draws)
def test_more_failures_never_wait_less(retry: Retry, failures: int, more: int, u: float) -> None:
    assert retry.delay(failures, u) <= retry.delay(failures + more, u) * (1 + 1e-12)


@given(retries(), counts, draws)
def test_jitter_stays_within_its_share(retry: Retry, failures: int, u: float) -> None:
    middle = dataclasses.replace(retry, jitter=0.0).delay(failures)
    low, high = middle * (1 - retry.jitter), middle * (1 + retry.jitter)
    assert low * (1 - 1e-12) <= retry.delay(failures, u) <= high * (1 + 1e-12)


@given(retries(), counts, st.floats(0.02, 0.99), st.floats(0, 0.98), st.floats(0.01, 1))
def test_jitter_varies_even_at_the_max_delay(
    retry: Retry, failures: int, jitter: float, a: float, further: float
) -> None:
    assume(retry.shape != "never")
    retry = dataclasses.replace(retry, jitter=jitter)
    b = a + (0.999 - a) * further
    assert retry.delay(failures, a) < retry.delay(failures, b)
    assert retry.delay(10**9, a) < retry.delay(10**9, b)


@given(retries(), counts, draws)
def test_the_same_question_has_the_same_answer(retry: Retry, failures: int, u: float) -> None:
    first = retry.delay(failures, u)
    retry.delay(failures + 1, u)
    assert retry.delay(failures, u) == first


@given(lengths, st.floats(1, 10), st.integers(0, 40))
def test_growth_is_the_power_below_the_max_delay(first: float, multiplier: float, n: int) -> None:
    power = first * multiplier**n
    assert grown(first, multiplier, n, power * 2) == power
    assert grown(first, multiplier, n, max(first, power / 2)) == max(first, power / 2)


@pytest.mark.parametrize("failures", [0, -1])
def test_a_delay_follows_a_failure(failures: int) -> None:
    with pytest.raises(ConfigError, match=f"failures = {failures}"):
        Retry.exponential().delay(failures)


# Giving up.


def test_attempts_count_the_first_run() -> None:
    assert [Retry.exponential(attempts=3).exhausted(n) for n in range(5)] == [
        False,
        False,
        False,
        True,
        True,
    ]


def test_never_is_one_attempt() -> None:
    assert not Retry.never().exhausted(0)
    assert Retry.never().exhausted(1)


def test_none_is_without_limit() -> None:
    assert not Retry.fixed(attempts=None).exhausted(10**9)


# Which failures.


class SaysSo(OSError):
    permanent = True


class SaysNo(OSError):
    permanent = False


class Unclear(OSError):
    def permanent(self) -> str:
        return "a method of that name says nothing"


def marked() -> OSError:
    error = OSError()
    error.permanent = True  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("retry", "error", "expected"),
    [
        (Retry.exponential(), OSError(), "transient"),
        (Retry.exponential(), StoreUnavailable(), "transient"),
        (Retry.exponential(), KeyboardInterrupt(), "permanent"),
        (Retry.exponential(), SaysSo(), "permanent"),
        (Retry.exponential(), marked(), "permanent"),
        (Retry.exponential(), SaysNo(), "transient"),
        (Retry.exponential(), Unclear(), "transient"),
        (Retry.exponential(include=OSError), OSError(), "transient"),
        (Retry.exponential(include=OSError), ConnectionResetError(), "transient"),
        (Retry.exponential(include=OSError), ValueError(), "permanent"),
        (Retry.exponential(include=OSError), SaysSo(), "permanent"),
        (Retry.exponential(include=(OSError, ValueError)), ValueError(), "transient"),
        (Retry.exponential(exclude=OSError), TimeoutError(), "permanent"),
        (Retry.exponential(exclude=OSError), ValueError(), "transient"),
        (Retry.linear(include=OSError, exclude=[TimeoutError]), OSError(), "transient"),
        (Retry.linear(include=OSError, exclude=[TimeoutError]), TimeoutError(), "permanent"),
        (Retry.fixed(include=()), OSError(), "permanent"),
        (Retry.fixed(include=BaseException), KeyboardInterrupt(), "transient"),
        (Retry.never(), OSError(), "transient"),
    ],
)
def test_classify(retry: Retry, error: BaseException, expected: str) -> None:
    assert retry.classify(error) == expected


# A recipe is a value.


@given(retries())
@example(Retry.exponential(1 / 3, 100.5, multiplier=3, attempts=None))
@example(Retry.exponential("90s", "1d", include=(OSError, ValueError), exclude=KeyError))
@example(Retry.fixed("250ms", include=()))
def test_repr_is_the_call_that_makes_it(retry: Retry) -> None:
    again = eval(repr(retry), {"Retry": Retry, **BUILTINS})
    assert again == retry
    assert hash(again) == hash(retry)


@pytest.mark.parametrize(
    ("retry", "text"),
    [
        (Retry.exponential(), "Retry.exponential('1s', max_delay='1m', attempts=5)"),
        (
            Retry.exponential("250ms", "90s", multiplier=3, attempts=None, jitter=0.1),
            (
                "Retry.exponential('250ms', max_delay='1m30s', multiplier=3, attempts=None, "
                "jitter=0.1)"
            ),
        ),
        (
            Retry.linear(include=OSError),
            "Retry.linear('5s', max_delay='1m', attempts=5, include=OSError)",
        ),
        (Retry.linear(jitter=0), "Retry.linear('5s', max_delay='1m', attempts=5, jitter=0)"),
        (
            Retry.fixed(1.00001, exclude=(OSError, StoreUnavailable)),
            "Retry.fixed(1.00001, attempts=5, exclude=(OSError, pollwise.errors.StoreUnavailable))",
        ),
        (Retry.fixed(60.5), "Retry.fixed(60.5, attempts=5)"),
        (Retry.never(), "Retry.never()"),
    ],
)
def test_repr(retry: Retry, text: str) -> None:
    assert repr(retry) == text


def test_equality_is_by_what_it_does() -> None:
    assert Retry.exponential("1s", "60s") == Retry.exponential(1, timedelta(minutes=1))
    assert Retry.exponential(include=OSError) == Retry.exponential(include=[OSError])
    assert len({Retry.fixed(), Retry.fixed("5s"), Retry.linear(), Retry.never()}) == 3
    assert Retry.fixed("5s", attempts=1) != Retry.never()


def test_a_recipe_cannot_change_and_can_be_copied() -> None:
    retry = Retry.exponential(exclude=ValueError)
    with pytest.raises(dataclasses.FrozenInstanceError):
        retry.attempts = 7  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(retry)) == copy.deepcopy(retry) == retry


# Bad values are refused when the recipe is built, by name and value.


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (Retry.exponential, {"first": 0}, "first = 0 s must be above 0"),
        (Retry.exponential, {"first": "-1s"}, "first = '-1s'"),
        (Retry.exponential, {"first": "soon"}, "first = 'soon'"),
        (Retry.exponential, {"first": "2m"}, "first = 120 s .* at most max_delay = 60 s"),
        (Retry.exponential, {"max_delay": "10ms"}, "max_delay = 0.01 s"),
        (Retry.exponential, {"max_delay": math.inf}, "max_delay = inf"),
        (Retry.exponential, {"max_delay": None}, "max_delay = None"),
        (Retry.exponential, {"multiplier": 0.5}, "multiplier = 0.5"),
        (Retry.exponential, {"multiplier": math.nan}, "multiplier = nan"),
        (Retry.exponential, {"multiplier": math.inf}, "multiplier = inf"),
        (Retry.exponential, {"multiplier": "2"}, "multiplier = '2'"),
        (Retry.exponential, {"multiplier": True}, "multiplier = True"),
        (Retry.exponential, {"attempts": 0}, "attempts = 0"),
        (Retry.exponential, {"attempts": -3}, "attempts = -3"),
        (Retry.exponential, {"attempts": 2.5}, r"attempts = 2\.5"),
        (Retry.exponential, {"attempts": True}, "attempts = True"),
        (Retry.exponential, {"jitter": -0.1}, r"jitter = -0\.1"),
        (Retry.exponential, {"jitter": 1}, "jitter = 1 "),
        (Retry.exponential, {"jitter": math.nan}, "jitter = nan"),
        (Retry.exponential, {"jitter": None}, "jitter = None"),
        (Retry.exponential, {"jitter": False}, "jitter = False"),
        (Retry.exponential, {"include": "OSError"}, "include = 'OSError'"),
        (Retry.exponential, {"include": 3}, "include = 3"),
        (Retry.exponential, {"include": (OSError, int)}, "include = .*int.* is not one"),
        (Retry.linear, {"exclude": OSError()}, r"exclude = OSError\(\)"),
        (Retry.linear, {"step": 0}, "step = 0 s"),
        (Retry.linear, {"step": "2m"}, "step = 120 s"),
        (Retry.linear, {"attempts": 0}, "attempts = 0"),
        (Retry.fixed, {"delay": 0}, "delay = 0 s"),
        (Retry.fixed, {"delay": "5 parsecs"}, "delay = '5 parsecs'"),
        (Retry.fixed, {"jitter": 2}, "jitter = 2"),
    ],
)
def test_refused(make: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**arguments)


def test_a_changed_copy_is_checked_too() -> None:
    with pytest.raises(ConfigError, match="attempts = 0"):
        dataclasses.replace(Retry.fixed(), attempts=0)


class Asks(Exception):
    def __init__(self, retry_after: object) -> None:
        self.retry_after = retry_after


@pytest.mark.parametrize(
    ("asked", "wait"),
    [
        *((5, 5.0), (0.5, 0.5), (0, 0.0), (-1, 0.0), (None, 0.0), (True, 0.0), ("9", 0.0)),
        *((math.nan, 0.0), (math.inf, 60.0), (10**400, 60.0), (61, 60.0)),
    ],
)
def test_a_server_asks_to_wait_up_to_the_longest(asked: object, wait: float) -> None:
    assert asked_wait(Asks(asked), 60.0) == wait
    assert asked_wait(Exception()) == 0.0
    assert asked_wait(Asks(10**400)) < math.inf
