"""Prices: what one poll costs, in dollars.

List prices of the region us-east-1 without free tiers, as of `DATED`. A poll of a queue on object
storage is a LIST, which costs 12.5 times a GET; tables that price it as a GET are too cheap. Your
own database or server has no price per query, so its price here is the hourly price of a stated
machine divided by a stated number of queries a second. You can give your own price: `0.005/1000`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pollwise.durations import shown
from pollwise.errors import ConfigError, did_you_mean
from pollwise.lab.texts import plain
from pollwise.queues.urls import is_sqs
from pollwise.runtime.redact import split_url

#: When the table below was last compared with its sources, and for which region.
DATED = "2026-11-15"
REGION = "us-east-1"
#: A month of 30 days, in seconds, as price lists and their examples count it.
MONTH = 30 * 86400.0
HOUR = 3600.0
#: The highest price that is accepted.
DOLLARS_MAX = 1e6


@dataclass(frozen=True, slots=True)
class Price:
    """What one poll costs.

    what: the price as its source states it.
    source: where it is stated, or how it was calculated.
    """

    name: str
    dollars: float
    what: str
    source: str = "given by hand"


PRICES: dict[str, Price] = {
    price.name: price
    for price in (
        Price(
            "s3-list",
            0.005 / 1000,
            "S3 LIST, $0.005 per 1,000",
            "aws.amazon.com/s3/pricing, Requests: PUT, COPY, POST, LIST (S3 Standard)",
        ),
        Price(
            "s3-get",
            0.0004 / 1000,
            "S3 GET, $0.0004 per 1,000",
            "aws.amazon.com/s3/pricing, Requests: GET, SELECT and all others (S3 Standard)",
        ),
        Price(
            "sqs",
            0.40 / 1_000_000,
            "SQS standard request, $0.40 per million",
            "aws.amazon.com/sqs/pricing, standard queues up to 100 billion requests a month; "
            "a FIFO request is $0.50",
        ),
        Price(
            "s3-put",
            0.005 / 1000,
            "S3 PUT, $0.005 per 1,000",
            "aws.amazon.com/s3/pricing, Requests: PUT, COPY, POST, LIST (S3 Standard)",
        ),
        Price(
            "dynamodb-read",
            0.125 / 1_000_000,
            "DynamoDB read request unit on demand, $0.125 per million",
            "aws.amazon.com/dynamodb/pricing/on-demand: halved on 2024-11-01, pages that say $0.25 "
            "are older; one unit reads 4 KB strongly consistent, or twice eventually consistent",
        ),
        Price(
            "dynamodb-write",
            0.625 / 1_000_000,
            "DynamoDB write request unit on demand, $0.625 per million",
            "aws.amazon.com/dynamodb/pricing/on-demand: halved on 2024-11-01; one unit writes 1 KB",
        ),
        Price(
            "lambda-invoke",
            0.20 / 1_000_000,
            "Lambda invocation, $0.20 per million",
            "aws.amazon.com/lambda/pricing, Requests; its running time is billed separately",
        ),
        Price(
            "postgres-query",
            0.065 / HOUR / 2000,
            "Postgres query, $0.009 per million",
            "calculated: an RDS db.t4g.medium (2 vCPU, Single-AZ) at $0.065 an hour, spread over "
            "2,000 small queries a second",
        ),
        Price(
            "http",
            0.0168 / HOUR / 1000,
            "HTTP request to your own server, $0.0047 per million",
            "calculated: an EC2 t4g.small (2 vCPU) at $0.0168 an hour, spread over 1,000 requests "
            "a second",
        ),
    )
}


#: By the scheme of a store's URL, the price that is nearest to one of its polls.
STORE_PRICES = {
    "s3": "s3-list",
    "gs": "s3-list",
    "az": "s3-list",
    "sqs": "sqs",
    "postgres": "postgres-query",
    "postgresql": "postgres-query",
    "http": "http",
    "https": "http",
}


def store_price(url: str) -> Price:
    """The price of a poll of the store at a URL; of a store of your own, that of a query."""
    scheme = url.partition(":")[0]
    if scheme in ("http", "https") and is_sqs(split_url(url)):
        scheme = "sqs"
    return PRICES[STORE_PRICES.get(scheme, "postgres-query")]


def price_named(text: str) -> Price:
    """A price by its name, or as dollars per number of polls: `0.005/1000`."""
    name = text.strip().lower()
    if name in PRICES:
        return PRICES[name]
    given = _ratio(name)
    if given is None or given[1] < 1:
        raise ConfigError(
            f"price {shown(text)} is neither a known price nor dollars per polls such as "
            f"0.005/1000; {did_you_mean(name, PRICES)}"
        )
    dollars, polls = given
    return Price(text.strip(), dollars / polls, f"${plain(dollars)} per {polls:,.0f} polls")


def wait_price(text: str) -> float:
    """The price of a second that one item waits: dollars per seconds, as in `0.01/3600`."""
    given = _ratio(text)
    if given is None or given[0] == 0:
        raise ConfigError(
            f"wait price {shown(text)} is not dollars per seconds that an item waits; "
            "give for example 0.01/3600, one cent an hour"
        )
    dollars, seconds = given
    return dollars / seconds


def _ratio(text: str) -> tuple[float, float] | None:
    """Dollars and the number they pay for, or None if the text is something else."""
    dollars, _, times = text.strip().partition("/")
    try:
        ratio = float(dollars.strip().removeprefix("$")), float(times)
    except ValueError:
        return None
    believable = 0 <= ratio[0] <= DOLLARS_MAX and 0 < ratio[1] < math.inf
    return ratio if believable and math.isfinite(ratio[0] / ratio[1]) else None


def dollars_a_month(polls: float, seconds: float, price: Price) -> float:
    """The cost of a month at the rate of `polls` in `seconds`."""
    return 0.0 if seconds <= 0 else polls / seconds * MONTH * price.dollars
