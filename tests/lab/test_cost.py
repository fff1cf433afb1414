"""The published cost tables, reproduced by replays; and what polling costs in truth."""

from __future__ import annotations

import json

import pytest

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import ConfigError
from pollwise.lab import cost
from pollwise.lab.cost import CostRow, Tradeoff
from pollwise.lab.prices import PRICES

LIST = PRICES["s3-list"]
GET = PRICES["s3-get"]


@pytest.fixture(scope="module")
def rows() -> list[CostRow]:
    return cost.rows()


@pytest.fixture(scope="module")
def trades() -> list[Tradeoff]:
    return cost.tradeoffs()


# What seeds/qo-adaptive-polling.md says: polls and dollars.
PAGE = {
    "fixed 500ms": (5_200_000, 2.08),
    "fixed 100ms": (26_000_000, 10.40),
    "adaptive, mostly idle": (300_000, 0.12),
    "adaptive, 50 % busy": (2_600_000, 1.04),
    "adaptive, always busy": (26_000_000, 10.40),
}
# What the replays count: polls, and dollars a month as GETs, as a LIST and as 16 LISTs.
REPLAYED = {
    "fixed 500ms": (5_184_000, 2.07, 25.92, 414.72),
    "fixed 100ms": (25_920_000, 10.37, 129.60, 2073.60),
    "adaptive, mostly idle": (298_890, 0.12, 1.49, 23.91),
    "adaptive, 50 % busy": (2_635_290, 1.05, 13.18, 210.82),
    "adaptive, always busy": (25_920_030, 10.37, 129.60, 2073.60),
    "its examples, mostly idle": (1_156_740, 0.46, 5.78, 92.54),
    "its examples, 50 % busy": (12_997_140, 5.20, 64.99, 1039.77),
}


@pytest.mark.parametrize("name", PAGE)
def test_the_replays_give_the_published_figures_within_rounding(
    name: str, rows: list[CostRow]
) -> None:
    row = next(row for row in rows if row.name == name)
    assert (row.page_polls, row.page_dollars) == PAGE[name]
    assert (row.rounded_polls, row.rounded_dollars) == PAGE[name]


@pytest.mark.parametrize("name", REPLAYED)
def test_the_true_cost_is_a_list_for_every_shard(name: str, rows: list[CostRow]) -> None:
    row = next(row for row in rows if row.name == name)
    dollars = (row.dollars(GET), row.dollars(LIST), row.dollars(LIST, 16))
    assert (round(row.polls), *(round(each, 2) for each in dollars)) == REPLAYED[name]
    assert row.dollars(LIST) == pytest.approx(12.5 * row.dollars(GET))


def test_rows_that_the_page_does_not_have_claim_nothing_of_it(rows: list[CostRow]) -> None:
    own = [row for row in rows if row.name not in PAGE]
    assert [row.page_polls for row in own] == [None, None]
    assert [row.page_dollars for row in own] == [None, None]


def test_an_hour_a_day_is_mostly_idle(rows: list[CostRow]) -> None:
    """The page's adaptive figures follow from its picture, not from its examples."""
    idle, half = rows[2], rows[3]
    assert idle.strategy == half.strategy == Adaptive("500ms", "30s")
    assert (idle.busy, half.busy) == (1, 12)
    by_hand = 30 * (23 * 3600 / 30 + 3600 / 0.5)
    assert idle.polls == pytest.approx(by_hand, rel=0.001)


def test_the_tradeoffs_are_in_the_order_of_the_page(trades: list[Tradeoff]) -> None:
    assert [row.page_cost for row in trades] == ["lowest", "low", "medium", "highest"]
    polls = [row.polls for row in trades]
    assert polls == sorted(polls)
    assert [round(each) for each in polls] == [91_080, 545_550, 2_728_380, 25_920_000]


@pytest.mark.parametrize("number", range(4))
def test_items_wait_up_to_the_ceiling_and_no_longer(number: int, trades: list[Tradeoff]) -> None:
    row = trades[number]
    assert 0.98 * row.strategy.max_interval < row.longest_wait <= row.strategy.max_interval + 1e-6
    assert trades[3].strategy == Fixed("100ms")


def test_the_sentence_about_fifty_workers(rows: list[CostRow], trades: list[Tradeoff]) -> None:
    facts = cost.facts(rows, trades, LIST, 16, 50)
    many = facts["workers_at_fixed_500ms"]
    assert many["rounded_dollars"] == many["page_dollars"] == cost.PAGE_DOLLARS_ALL == 104.0
    assert rows[0].rounded_dollars == cost.PAGE_DOLLARS_ONE == 2.08
    assert many["dollars_one_shard"] == 1296.0
    assert many["dollars_all_shards"] == 20_736.0


def test_other_workers_shards_and_prices(rows: list[CostRow], trades: list[Tradeoff]) -> None:
    facts = cost.facts(rows, trades, PRICES["sqs"], 4, 3)
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    first = facts["costs"][0]
    assert first["dollars_all_shards"] == pytest.approx(4 * first["dollars_one_shard"], rel=1e-3)
    assert facts["workers_at_fixed_500ms"]["page_dollars"] is None
    assert facts["workers_at_fixed_500ms"]["rounded_dollars"] == pytest.approx(3 * 2.08)
    assert "SQS" in facts["true_price"]


@pytest.mark.parametrize(("workers", "shards"), [(0, 1), (1, 0), (-1, 1), (1, 10**9)])
def test_numbers_that_cannot_be(workers: int, shards: int) -> None:
    with pytest.raises(ConfigError, match="must be from 1 to"):
        cost.check_counts(workers, shards)
