from __future__ import annotations

import doctest
import math
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pollwise import durations
from pollwise.durations import seconds, short, shown
from pollwise.errors import ConfigError


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        # Each unit.
        ("7us", 7e-6),
        ("7µs", 7e-6),
        ("250ms", 0.25),
        ("5s", 5.0),
        ("2m", 120.0),
        ("2min", 120.0),
        ("1h", 3600.0),
        ("1d", 86400.0),
        # Together, in any order, with or without spaces, in any case.
        ("1m30s", 90.0),
        ("1h 2m 3s", 3723.0),
        ("1d12h", 129600.0),
        ("30s1m", 90.0),
        ("  5 s ", 5.0),
        ("1 m 30 s", 90.0),
        ("5S", 5.0),
        ("250MS", 0.25),
        # Fractions and exponents.
        ("1.5s", 1.5),
        (".5s", 0.5),
        ("2.s", 2.0),
        ("1.5m", 90.0),
        ("1e3ms", 1.0),
        ("2E-3s", 0.002),
        # Without a unit: seconds.
        ("5", 5.0),
        ("0.25", 0.25),
        (".25", 0.25),
        ("1e3", 1000.0),
        (" 5 ", 5.0),
        ("+5", 5.0),
        ("+5s", 5.0),
        # Nothing.
        ("0", 0.0),
        ("0s", 0.0),
        # Not text.
        (2, 2.0),
        (0.25, 0.25),
        (0, 0.0),
        (timedelta(minutes=1, milliseconds=500), 60.5),
        (timedelta.max, timedelta.max.total_seconds()),
    ],
)
def test_read(written: Any, expected: float) -> None:
    result = seconds(written)
    assert result == expected
    assert type(result) is float


@pytest.mark.parametrize("nothing", [-0.0, "-0", "-0s", "-0ms"])
def test_nothing_has_no_sign(nothing: Any) -> None:
    assert math.copysign(1, seconds(nothing)) == 1


@given(st.integers(0, 10**9))
@example(9)  # 9 · 0.001 is 0.009000000000000001
def test_milliseconds_are_the_nearest_number_of_seconds(ms: int) -> None:
    assert seconds(f"{ms}ms") == seconds(ms / 1000)
    assert seconds(f"{ms}us") == seconds(ms / 1_000_000)


HELP = "; give a number of seconds, a timedelta, or a string such as '250ms'"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        *(
            (text, f"wait = {text!r} is not a duration{HELP}")
            for text in (
                "", " ", "s", "soon", "5x", "5 sec", "5 seconds", "s5", "5s,", "5s 3", "3 5s",
                "1 000", "1,5s", "1_000", "1_000ms", "٣s", "٣", "0x10", "1e", "1e3e3s",
                "--5s", "+-5s", "-+5", "-", "5-s", "5s-3s", "5s\x00",
                "nan", "inf", "-inf", "infinity", "NaN", "infs", "1:30", "PT5S", "1..5s", ".s",
            )
        ),
        ("1e400", f"wait = '1e400' is not finite{HELP}"),
        ("1e400d", f"wait = '1e400d' is not finite{HELP}"),
        (math.inf, f"wait = inf is not finite{HELP}"),
        (-math.inf, f"wait = -inf is not finite{HELP}"),
        (math.nan, f"wait = nan is not finite{HELP}"),
        (-1, f"wait = -1 must be 0 or more{HELP}"),
        ("-1s", f"wait = '-1s' must be 0 or more{HELP}"),
        ("- 5s", f"wait = '- 5s' must be 0 or more{HELP}"),
        ("-1.5", f"wait = '-1.5' must be 0 or more{HELP}"),
        (timedelta(seconds=-1), f"wait = {timedelta(seconds=-1)!r} must be 0 or more{HELP}"),
        (True, f"wait = True is not a duration{HELP}"),
        (False, f"wait = False is not a duration{HELP}"),
        (None, f"wait = None is a NoneType{HELP}"),
        (b"5s", f"wait = b'5s' is a bytes{HELP}"),
        ([5], f"wait = [5] is a list{HELP}"),
        (Decimal(5), f"wait = Decimal('5') is a Decimal{HELP}"),
        (5j, f"wait = 5j is a complex{HELP}"),
    ],
)  # fmt: skip
def test_refused(value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        seconds(value, "wait")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("zero", [0, 0.0, "0s", timedelta(0)])
def test_zero_is_refused_where_it_makes_no_sense(zero: Any) -> None:
    assert seconds(zero) == 0
    with pytest.raises(ConfigError) as caught:
        seconds(zero, "wait", positive=True)
    assert str(caught.value).startswith(f"wait = {zero!r} must be above 0{HELP}")


@pytest.mark.parametrize(
    ("value", "start"),
    [
        (10**400, "wait = 1000"),
        (-(10**400), "wait = -1000"),
        (10**5000, "wait = <int too long to write>"),
        ("9" * 5000, "wait = '9999"),
        ("9" * 5000 + "s", "wait = '9999"),
        ("x" * 10**6, "wait = 'xxxx"),
        (["x"] * 10**5, "wait = ['x', 'x'"),
    ],
    ids=shown,
)
def test_what_is_too_long_is_refused_in_a_short_message(value: Any, start: str) -> None:
    with pytest.raises(ConfigError) as caught:
        seconds(value, "wait")
    assert str(caught.value).startswith(start)
    assert len(str(caught.value)) < 250


def test_an_error_calls_it_a_duration_unless_told_otherwise() -> None:
    with pytest.raises(ConfigError, match=r"^duration = -1 must"):
        seconds(-1)


def test_a_long_refusal_does_not_take_long() -> None:
    with pytest.raises(ConfigError):
        seconds("1s" * 10**5 + "!")


def test_shown() -> None:
    assert shown("5s") == "'5s'"
    assert shown("x" * 78) == f"'{'x' * 78}'"
    assert shown("x" * 79) == f"'{'x' * 77} …"


# Written the way it is read.


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0s"),
        (7e-6, "7us"),
        (0.0000125, "12.5us"),
        (0.0009994, "999us"),
        (0.0009996, "0.9996ms"),
        (0.001, "1ms"),
        (0.25, "250ms"),
        (0.9999, "999.9ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (59.99, "59.99s"),
        (60, "1m"),
        (90, "1m30s"),
        (90.4, "1m30s"),
        (3600, "1h"),
        (3661, "1h1m1s"),
        (86400, "1d"),
        (90061, "1d1h1m1s"),
        (-90, "-1m30s"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
    ],
)
def test_short(value: float, text: str) -> None:
    assert short(value) == text


@given(st.floats(0, 1e300))
@example(5e-324)
@example(1e-11)
@example(0.00099951)
@example(0.99999)
@example(59.99999)
def test_what_is_written_can_be_read(value: float) -> None:
    assert seconds(short(value)) == pytest.approx(value, rel=1 / 119, abs=1e-320)


@given(st.integers(60, 10**9))
def test_whole_seconds_are_written_exactly(value: int) -> None:
    assert seconds(short(value)) == value


def test_the_examples_in_the_docstrings() -> None:
    assert doctest.testmod(durations).failed == 0
    assert doctest.testmod(durations).attempted == 2
