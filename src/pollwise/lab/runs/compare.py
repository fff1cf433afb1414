"""Compares when to poll runs that finish: what `pollwise lab until` prints and draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pollwise.core.forecast.durations import Durations
from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.completion import Completion
from pollwise.lab.numeric import np
from pollwise.lab.policies import label
from pollwise.lab.runs import costs
from pollwise.lab.runs.costs import RunCost

#: The longest pauses of Completion while it is compared: they decide nothing.
MIN_INTERVAL, MAX_INTERVAL = "1ms", "30d"
#: How many of the last runs are drawn, and how many polls.
DRAWN, POLLS_DRAWN = 100, 40


@dataclass(frozen=True)
class RunsComparison:
    """What each way to poll costs over all groups. rows: name and cost, cheapest limits last."""

    price: float
    groups: int
    rows: Mapping[str, RunCost]
    drawn: Mapping[str, Any]

    def facts(self) -> dict[str, Any]:
        """All figures, as plain values."""
        best = self.rows[BEST_FIXED].cost(self.price)
        return {
            "price": self.price,
            "groups": self.groups,
            "runs": self.rows[BEST_FIXED].runs,
            "policies": [
                {
                    "name": name,
                    "polls_a_run": each.polls / each.runs,
                    "wait_mean_s": each.waited / each.runs,
                    "cost_a_run": each.cost(self.price) / each.runs,
                    "of_best_fixed": each.cost(self.price) / best,
                }
                for name, each in self.rows.items()
            ],
            "drawn": dict(self.drawn),
        }


COMPLETION = "completion"
BEST_FIXED = "best fixed, in hindsight"
BEST_BACK_OFF = "best back-off, in hindsight"
KNOWN = "durations known before"


def compare(
    groups: Mapping[str, Sequence[float]],
    strategies: Sequence[Strategy],
    poll_cost: float,
    wait_cost: float,
) -> RunsComparison:
    """Poll all runs of each group with Completion, with other strategies, and at the limits."""
    learning = Completion(
        poll_cost=poll_cost,
        wait_cost=wait_cost,
        min_interval=MIN_INTERVAL,
        max_interval=MAX_INTERVAL,
    )
    price = poll_cost / wait_cost
    histories = {name: Durations() for name in groups}
    rows = {
        COMPLETION: costs.total(
            {
                name: costs.replay(replace(learning, history=histories[name]), took)
                for name, took in groups.items()
            }
        )
    }
    for each in strategies:
        rows[label(each)] = costs.total(
            {name: costs.replay(each, took) for name, took in groups.items()}
        )
    arrays = {name: np.array(took, dtype=float) for name, took in groups.items()}
    rows[BEST_BACK_OFF] = costs.total(
        {name: costs.best_back_off(took, price)[1] for name, took in arrays.items()}
    )
    rows[BEST_FIXED] = costs.total(
        {name: costs.best_interval(took, price)[1] for name, took in arrays.items()}
    )
    runs = sum(map(len, groups.values()))
    rows[KNOWN] = RunCost(runs, runs, 0.0)
    largest = max(groups, key=lambda name: len(groups[name]))
    return RunsComparison(
        price, len(groups), rows, _drawn(largest, groups[largest], histories[largest], price)
    )


def _drawn(group: str, took: Sequence[float], history: Durations, price: float) -> dict[str, Any]:
    """What was learned of a group, and the polls of its next run."""
    polls = [history.next_poll(price)]
    while len(polls) < POLLS_DRAWN and polls[-1] < max(took):
        polls.append(history.next_poll(price, polls[-1]))
    return {
        "group": group,
        "last_runs_s": sorted(took[-DRAWN:]),
        "learned": [list(point) for point in history.curve(price)],
        "polls_s": polls,
    }
