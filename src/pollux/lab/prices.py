"""Prices: what one poll costs, in dollars.

List prices of the us-east-1 region without free tiers, as of 2026-11. A poll of a queue on object
storage is a LIST, which costs 12.5 times a GET; tables that price it as a GET are too cheap.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass

from pollux.errors import ConfigError

#: A month of 30 days, in seconds, as price lists and their examples count it.
MONTH = 30 * 86400.0
#: The highest price that is believed.
DOLLARS_MAX = 1e6


@dataclass(frozen=True, slots=True)
class Price:
    """What one poll costs."""

    name: str
    dollars: float
    what: str


PRICES: dict[str, Price] = {
    price.name: price
    for price in (
        Price("s3-list", 0.005 / 1000, "S3 LIST, $0.005 per 1,000"),
        Price("s3-get", 0.0004 / 1000, "S3 GET, $0.0004 per 1,000"),
        Price("sqs", 0.40 / 1_000_000, "SQS standard request, $0.40 per million"),
    )
}


def price_named(text: str) -> Price:
    """A price by its name, or as dollars per number of polls: `0.005/1000`."""
    name = text.strip().lower()
    if name in PRICES:
        return PRICES[name]
    dollars, _, polls = name.partition("/")
    try:
        given, times = float(dollars), float(polls)
    except ValueError:
        given = times = math.nan
    if not (0 <= given <= DOLLARS_MAX and 1 <= times < math.inf):
        near = difflib.get_close_matches(name, PRICES, 1)
        advice = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(PRICES)}"
        raise ConfigError(
            f"price {text!r} is neither a known price nor dollars per polls such as 0.005/1000; "
            f"{advice}"
        )
    return Price(text, given / times, f"${given:g} per {times:,.0f} polls")


def dollars_a_month(polls: int, seconds: float, price: Price) -> float:
    """What a month costs at the rate of `polls` in `seconds`."""
    return 0.0 if seconds <= 0 else polls / seconds * MONTH * price.dollars
