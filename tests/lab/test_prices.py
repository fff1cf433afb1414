"""Prices: names, dollars per polls, and a month of them."""

from __future__ import annotations

import re
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.errors import ConfigError
from pollwise.lab.prices import (
    DATED,
    DOLLARS_MAX,
    MONTH,
    PRICES,
    REGION,
    dollars_a_month,
    price_named,
    store_price,
    wait_price,
)


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


# The table


def test_the_table_is_dated_and_has_a_region() -> None:
    assert date.fromisoformat(DATED) >= date(2026, 11, 1)
    assert REGION == "us-east-1"


def test_the_table_has_what_users_poll() -> None:
    assert set(PRICES) == {
        "s3-list", "s3-get", "s3-put", "sqs", "dynamodb-read", "dynamodb-write", "lambda-invoke",
        "postgres-query", "http",
    }  # fmt: skip


@pytest.mark.parametrize("name", PRICES)
def test_every_price_has_a_source(name: str) -> None:
    source = PRICES[name].source
    assert source.startswith(("aws.amazon.com/", "calculated: "))
    assert name in ("postgres-query", "http") or source.startswith("aws.")


@pytest.mark.parametrize("name", PRICES)
def test_the_words_of_a_price_say_its_dollars(name: str) -> None:
    price = PRICES[name]
    found = re.search(r"\$([0-9.]+) per (million|1,000)$", price.what)
    assert found is not None
    times = 1e6 if found[2] == "million" else 1e3
    assert price.dollars * times == pytest.approx(float(found[1]), rel=0.01)


@pytest.mark.parametrize(
    ("name", "hourly", "a_second"), [("postgres-query", 0.065, 2000), ("http", 0.0168, 1000)]
)
def test_what_is_worked_out_says_from_what(name: str, hourly: float, a_second: int) -> None:
    price = PRICES[name]
    assert price.dollars == pytest.approx(hourly / 3600 / a_second)
    assert f"${hourly} an hour" in price.source
    assert f"{a_second:,} " in price.source


def test_a_price_of_ones_own_may_begin_with_a_dollar_sign() -> None:
    assert price_named("$0.005/1000").dollars == pytest.approx(5e-6)


# What waiting is worth


@pytest.mark.parametrize(
    ("text", "dollars"), [("0.01/3600", 0.01 / 3600), ("$1/1", 1.0), (" 2 / 0.5 ", 4.0)]
)
def test_a_wait_price(text: str, dollars: float) -> None:
    assert wait_price(text) == pytest.approx(dollars)


@pytest.mark.parametrize("text", ["", "1", "0/1", "-1/1", "1/0", "1/-1", "nan/1", "x/1", "1e300/1"])
def test_a_wait_price_that_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match="dollars per seconds that an item waits"):
        wait_price(text)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://bucket/jobs", "s3-list"),
        ("sqs://mail", "sqs"),
        ("https://sqs.eu-west-1.amazonaws.com/123456789012/mail", "sqs"),
        ("https://jobs.example.com/queues/mail", "http"),
        ("postgresql://db/shop", "postgres-query"),
        ("sqlite:////data/123/jobs.db", "postgres-query"),
    ],
)
def test_a_store_has_the_price_of_what_its_polls_are(url: str, name: str) -> None:
    assert store_price(url).name == name
