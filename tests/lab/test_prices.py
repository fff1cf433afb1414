"""Prices: names, dollars per polls, and a month of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.errors import ConfigError
from pollux.lab.prices import DOLLARS_MAX, MONTH, PRICES, dollars_a_month, price_named


@pytest.mark.parametrize("name", PRICES)
def test_a_price_is_found_by_its_name(name: str) -> None:
    assert price_named(name) is PRICES[name]
    assert price_named(f" {name.upper()} ") is PRICES[name]
    assert PRICES[name].name == name


def test_list_prices() -> None:
    """A LIST costs 12.5 times a GET; an SQS request is 40 cents a million."""
    assert PRICES["s3-list"].dollars == pytest.approx(12.5 * PRICES["s3-get"].dollars)
    assert PRICES["sqs"].dollars * 1e6 == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("text", "dollars", "what"),
    [
        ("0.005/1000", 5e-6, "$0.005 per 1,000 polls"),
        ("0.4/1e6", 4e-7, "$0.4 per 1,000,000 polls"),
        ("1/1", 1.0, "$1 per 1 polls"),
        ("0/1000", 0.0, "$0 per 1,000 polls"),
        (" 2 / 4 ", 0.5, "$2 per 4 polls"),
    ],
)
def test_dollars_per_polls(text: str, dollars: float, what: str) -> None:
    price = price_named(text)
    assert price.dollars == pytest.approx(dollars)
    assert price.what == what


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("s3-lst", "did you mean 's3-list'?"),
        ("S3GET", "did you mean 's3-get'?"),
        ("sqss", "did you mean 'sqs'?"),
        ("free", "known: s3-list, s3-get, sqs"),
        *(
            (text, "0.005/1000")
            for text in (
                "", "/", "1", "0.005", "1/", "/1", "1/0", "-1/1000", "-1/-1000", "1/-1", "nan/1",
                "1/nan", "inf/1", "1/inf", "inf/inf", "1/0.5", "1/2/3", "1,5/1000", "1e300/1",
            )
        ),
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: str, advice: str) -> None:
    with pytest.raises(ConfigError) as refused:
        price_named(text)
    assert f"price {text!r} is neither" in str(refused.value)
    assert advice in str(refused.value)


def test_a_month_has_thirty_days() -> None:
    assert MONTH == 30 * 86400
    # Ten polls a second at the price of a LIST: 25.92 million polls.
    assert dollars_a_month(600, 60.0, PRICES["s3-list"]) == pytest.approx(129.6)


@given(st.integers(0, 10**9), st.floats(1e-3, 1e9), st.floats(0, DOLLARS_MAX))
def test_a_month_costs_what_its_polls_cost(polls: int, seconds: float, dollars: float) -> None:
    price = price_named(f"{dollars}/1")
    month = dollars_a_month(polls, seconds, price)
    assert month == pytest.approx(polls * MONTH / seconds * dollars)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_no_time_costs_nothing(seconds: float) -> None:
    assert dollars_a_month(5, seconds, PRICES["sqs"]) == 0.0
