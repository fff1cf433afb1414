"""Held polls, replayed: what a hold is worth to each strategy, in what it costs in all."""

from __future__ import annotations

import pytest

from pollwise import Adaptive, Ewma, Fixed, Worth
from pollwise.core.strategies.base import Strategy
from pollwise.lab.prices import PRICES
from pollwise.lab.replay.base import Situation
from pollwise.lab.replay.engine import replay
from pollwise.lab.traces.synthetic import workload

POLL, WAIT = PRICES["sqs"].dollars, 0.01 / 3600


def cost(name: str, strategy: Strategy) -> float:
    """Dollars for six hours of a workload: of the polls, and of the waiting."""
    trace = workload(name, seed=0, hours=6)
    done = replay(trace, strategy, Situation(capacity=10, hold=strategy.longest_hold > 0))
    return float(done.polls * POLL + done.mean_wait * len(trace.arrivals) * WAIT)


@pytest.mark.parametrize("name", ["steady", "bursty", "diurnal", "flash-crowd", "self-exciting"])
def test_worth_that_holds_costs_least(name: str) -> None:
    held = cost(name, Worth(poll_cost=POLL, wait_cost=WAIT, hold="20s"))
    assert held < 0.3 * cost(name, Worth(poll_cost=POLL, wait_cost=WAIT))
    rivals = (
        Ewma(held=True),
        Adaptive("100ms", "5s", hold="20s"),
        Fixed("10ms", hold="20s"),
        Fixed("1s", hold="20s"),
    )
    assert held < 1.03 * min(cost(name, rival) for rival in rivals)
