"""The costs on qo's page about adaptive polling, replayed, and the real costs.

The page prices a poll as one GET. A worker that polls a bucket does not know the names of the jobs,
so it sends a LIST, at 12.5 times the price, and one for each shard of its queue.

The page's figures are rounded to two digits, and its dollars come from the rounded polls. Its
adaptive rows mix two settings: "mostly idle" and "50 % busy" use those of its picture (500 ms to
30 s), "always busy" the min_interval of 100 ms of its examples. Busy means here that every poll
finds something; mostly idle means busy for one hour a day. Further rows show what its examples
would give.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import ConfigError
from pollwise.lab.numeric import np
from pollwise.lab.policies import label
from pollwise.lab.prices import MONTH, PRICES, Price
from pollwise.lab.replay.base import Replay, Situation, Trace
from pollwise.lab.replay.engine import replay

HOUR = 3600.0
DAY = 86400.0
#: The price of a poll on the page.
PAGE_PRICE = PRICES["s3-get"]
#: Digits the page's figures have.
PAGE_DIGITS = 2
#: The shards of qo.
SHARDS = 16
#: The workers of the page's sentence, and its dollars for one and for all of them.
WORKERS = 50
PAGE_DOLLARS_ONE = 2.08
PAGE_DOLLARS_ALL = 104.0
COUNT_MAX = 1_000_000

ASSUMED = (
    "The page is qo's on adaptive polling. A month has 30 days.",
    "The page rounds polls to two digits and prices the rounded number.",
    "The first table is without jitter, as the page counts; the second has the jitter of the loop.",
    "Busy: every poll finds something. Mostly idle: busy one hour a day. 50 % busy: twelve.",
    "Mostly idle and 50 % busy match the page with the 500ms to 30s of its picture.",
    "The last two rows, which the page does not have, use the 100ms of its examples.",
    "A real poll: one LIST for each shard; reading and claiming jobs costs extra.",
)


@dataclass(frozen=True)
class CostRow:
    """One line of the page's table of costs, for one worker and a month.

    busy: hours of a day in which every poll finds something.
    page_polls, page_dollars: what the page says; None for what it does not have.
    polls: what the replay counted.
    """

    name: str
    strategy: Strategy
    busy: float
    page_polls: int | None
    page_dollars: float | None
    polls: float = 0.0

    @property
    def rounded_polls(self) -> int:
        """The polls as the page rounds them."""
        return round(self.polls, PAGE_DIGITS - 1 - math.floor(math.log10(self.polls))).__int__()

    @property
    def rounded_dollars(self) -> float:
        """The dollars as the page gets them: a GET for each of the rounded polls."""
        return round(self.rounded_polls * PAGE_PRICE.dollars, 2)

    def dollars(self, price: Price, requests: int = 1) -> float:
        """The cost of the polls if each sends this number of requests."""
        return self.polls * requests * price.dollars


@dataclass(frozen=True)
class Tradeoff:
    """One line of the page's table of trade-offs: its words, and the figures behind them.

    polls: of an idle worker in a month. longest_wait: of an item that meets an idle worker.
    """

    strategy: Strategy
    page_cost: str
    page_wait: str
    use: str
    polls: float = 0.0
    longest_wait: float = 0.0


_PICTURE = Adaptive("500ms", "30s")
_EXAMPLE = Adaptive("100ms", "30s")
ROWS = (
    CostRow("fixed 500ms", Fixed("500ms"), 0, 5_200_000, 2.08),
    CostRow("fixed 100ms", Fixed("100ms"), 0, 26_000_000, 10.40),
    CostRow("adaptive, mostly idle", _PICTURE, 1, 300_000, 0.12),
    CostRow("adaptive, 50 % busy", _PICTURE, 12, 2_600_000, 1.04),
    CostRow("adaptive, always busy", _EXAMPLE, 24, 26_000_000, 10.40),
    CostRow("its examples, mostly idle", _EXAMPLE, 1, None, None),
    CostRow("its examples, 50 % busy", _EXAMPLE, 12, None, None),
)
TRADEOFFS = (
    Tradeoff(_EXAMPLE, "lowest", "up to 30s when idle", "batch jobs, cost-sensitive"),
    Tradeoff(Adaptive("100ms", "5s"), "low", "up to 5s when idle", "general purpose (default)"),
    Tradeoff(Adaptive("100ms", "1s"), "medium", "up to 1s", "near-real-time"),
    Tradeoff(Fixed("100ms"), "highest", "consistent 100ms", "real-time, latency-critical"),
)


def rows() -> list[CostRow]:
    """The page's table of costs: every row replayed for a day and scaled to a month."""
    return [
        replace(row, polls=_a_month(replay(_day(row.strategy, row.busy), row.strategy)))
        for row in ROWS
    ]


def tradeoffs() -> list[Tradeoff]:
    """The page's table of trade-offs: an idle day, and items that each meet an idle worker."""
    result = []
    for row in TRADEOFFS:
        late = replay(_lonely_items(row.strategy.max_interval), row.strategy)
        polls = idle_polls_a_month(row.strategy)
        result.append(replace(row, polls=polls, longest_wait=late.wait(1.0)))
    return result


def idle_polls_a_month(strategy: Strategy) -> float:
    """The polls of an idle worker in a month: an idle day with the loop's jitter, scaled."""
    # A fixed interval leaves no room for jitter, and without it the compiled loop can run.
    situation = Situation(jitter=strategy.min_interval < strategy.max_interval)
    return _a_month(replay(_day(strategy, 0), strategy, situation, seed=1))


def _a_month(done: Replay) -> float:
    return done.polls / done.span * MONTH


def _day(strategy: Strategy, busy_hours: float) -> Trace:
    """A day that begins idle and ends busy, with two items for every poll to find."""
    begin = DAY - busy_hours * HOUR
    arrivals = np.arange(begin, DAY, strategy.min_interval / 2) if busy_hours else np.empty(0)
    return Trace(f"busy {busy_hours:g} of 24 hours", arrivals, DAY)


def _lonely_items(max_interval: float, count: int = 500) -> Trace:
    """Items so far apart that each meets an idle worker, at different points of its pause."""
    golden = (math.sqrt(5) - 1) / 2
    gaps = max_interval * (10 + np.modf(np.arange(1, count + 1) * golden)[0])
    arrivals = np.cumsum(gaps)
    return Trace("lonely items", arrivals, float(arrivals[-1]) + 2 * max_interval)


def check_counts(workers: int, shards: int) -> None:
    """Raise a ConfigError for impossible numbers of workers or shards."""
    for name, count in (("workers", workers), ("shards", shards)):
        if not 1 <= count <= COUNT_MAX:
            raise ConfigError(f"{name} = {count} must be from 1 to {COUNT_MAX:,}")


def facts(
    costs: list[CostRow], trades: list[Tradeoff], price: Price, shards: int, workers: int
) -> dict[str, Any]:
    """Both tables and the sentence as plain values."""
    first = costs[0]
    return {
        "month_days": MONTH / DAY,
        "page_price": PAGE_PRICE.what,
        "true_price": price.what,
        "shards": shards,
        "workers": workers,
        "costs": [
            {
                "name": row.name,
                "polling": label(row.strategy),
                "busy_hours_a_day": row.busy,
                "polls_a_month": round(row.polls),
                "page_polls": row.page_polls,
                "rounded_polls": row.rounded_polls,
                "dollars_as_get": round(row.dollars(PAGE_PRICE), 4),
                "rounded_dollars": row.rounded_dollars,
                "page_dollars": row.page_dollars,
                "dollars_one_shard": round(row.dollars(price), 4),
                "dollars_all_shards": round(row.dollars(price, shards), 4),
            }
            for row in costs
        ],
        "tradeoffs": [
            {
                "polling": label(row.strategy),
                "page_cost": row.page_cost,
                "page_wait": row.page_wait,
                "idle_polls_a_month": round(row.polls),
                "idle_dollars_one_shard": round(row.polls * price.dollars, 4),
                "idle_dollars_all_shards": round(row.polls * shards * price.dollars, 4),
                "longest_wait_s": round(row.longest_wait, 4),
            }
            for row in trades
        ],
        "workers_at_fixed_500ms": {
            "page_dollars": PAGE_DOLLARS_ALL if workers == WORKERS else None,
            "rounded_dollars": round(first.rounded_dollars * workers, 2),
            "dollars_one_shard": round(first.dollars(price) * workers, 2),
            "dollars_all_shards": round(first.dollars(price, shards) * workers, 2),
        },
        "assumed": list(ASSUMED),
    }
