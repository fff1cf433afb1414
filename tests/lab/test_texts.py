"""Numbers as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.lab.texts import amount, brief, compared, money, percent, plain, rate


@given(st.floats(0, 1e15))
def test_no_number_has_an_exponent(value: float) -> None:
    assert float(plain(value)) == value
    assert "e" not in plain(value) + amount(value) + money(value)
    assert float(amount(value).replace(",", "")) == pytest.approx(value, rel=0.0051)


def test_amounts() -> None:
    values = (0, 0.00139, 0.3, 1.67, 12, 60.06, 99.96, 720, 11828.4, 2.5e6)
    assert [amount(each) for each in values] == [
        "0", "0.00139", "0.3", "1.67", "12", "60.1", "100", "720", "11,828", "2,500,000",
    ]  # fmt: skip
    assert [plain(each) for each in (4.0, 2.2, 5e-06, 1e22)] == [
        "4", "2.2", "0.000005", "10000000000000000000000",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("dollars", "text"),
    [
        (0, "$0.00"), (1234.5, "$1,234.50"), (0.1, "$0.10"), (0.0123, "$0.012"),
        (5e-6, "$0.000005"), (2.8e-6, "$0.0000028"), (1e-12, "$0.000000000001"),
    ],
)  # fmt: skip
def test_money(dollars: float, text: str) -> None:
    assert money(dollars) == text


def test_brief() -> None:
    assert [brief(each) for each in (0.00123, 0.4567, 12.345, 90)] == [
        "1.23ms", "457ms", "12.3s", "1m30s",
    ]  # fmt: skip


def test_rates() -> None:
    assert [rate(each) for each in (250.0, 0.2, 0.02, 0.001, 3.858e-07)] == [
        "250 a second", "0.2 a second", "1.2 a minute", "3.6 an hour", "0.0333 a day",
    ]  # fmt: skip


def test_shares_are_not_rounded_to_all_or_nothing() -> None:
    assert [percent(each) for each in (0.83, 0.994, 0.99999, 1.0, 0.004, 0.0, 1.5)] == [
        "83%", "99.4%", "99.9%", "100%", "less than 1%", "0%", "150%",
    ]  # fmt: skip


def test_one_cost_beside_another() -> None:
    assert compared(4.46, 4.27) == "4% more than"
    assert compared(4.46, 26.11) == "83% less than"
    assert compared(10.0, 10.01) == "the same as"
    assert compared(23.4, 1.0) == "23.4 times as much as"
    assert compared(1.0, 0.0) == "the same as"
