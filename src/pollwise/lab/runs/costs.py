"""What it costs to poll runs until they are found finished: by strategies, and at the limits.

A run costs its polls and the time from its end to the poll that finds it. Polls are instantaneous
and without jitter. A strategy sees what a poll can see: whether the run has finished.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from pollwise.core.forecast.durations import Durations
from pollwise.core.outcome import Outcome
from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.completion import Completion
from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import ConfigError
from pollwise.lab.numeric import np
from pollwise.lab.replay.base import Seconds

#: The intervals that are tried in hindsight, beside the durations themselves.
INTERVALS = 1500
#: The back-offs that are tried in hindsight: how often and how fast, as shares of the median.
STARTS, FACTORS = 16, (1.05, 1.1, 1.2, 1.35, 1.5, 2.0, 3.0)
POLLS_MAX = 1_000_000  # of one run


@dataclass(frozen=True)
class RunCost:
    """Polls and waiting of some runs; cost is in seconds of waiting."""

    runs: int
    polls: int
    waited: float

    def cost(self, price: float) -> float:
        return self.polls * price + self.waited

    def __add__(self, other: RunCost) -> RunCost:
        return RunCost(self.runs + other.runs, self.polls + other.polls, self.waited + other.waited)


NOTHING = RunCost(0, 0, 0.0)


def replay(strategy: Strategy, took: Sequence[float]) -> RunCost:
    """Poll one run after the other, each with a new pacer."""
    return sum(each_run(strategy, took), NOTHING)


def each_run(strategy: Strategy, took: Sequence[float]) -> Iterator[RunCost]:
    """The cost of each run. `Completion` without a history learns into a new one."""
    if isinstance(strategy, Completion) and strategy.history is None:
        strategy = Completion(
            poll_cost=strategy.poll_cost, wait_cost=strategy.wait_cost, history=Durations(),
            min_interval=strategy.min_interval, max_interval=strategy.max_interval,
        )  # fmt: skip
    for end in took:
        pacer = strategy.pacer()
        at = pacer.first().delay
        polls = 1
        while at < end:
            at += pacer.after(Outcome(at, 0, 1)).delay
            polls += 1
            if polls > POLLS_MAX:
                raise ConfigError(
                    f"{strategy.name} polls a run of {end:g} s more than {POLLS_MAX:,} times; "
                    "give it longer intervals"
                )
        pacer.after(Outcome(at, 1, 1))
        yield RunCost(1, polls, at - end)


def at_times(polls: Seconds, took: Seconds) -> RunCost:
    """The cost of polls at these times after the begin of each run; the last is after all."""
    which = np.searchsorted(polls, took)
    return RunCost(len(took), int(which.sum()) + len(took), float((polls[which] - took).sum()))


def at_interval(interval: float, took: Seconds) -> RunCost:
    """The cost of polls at a fixed interval."""
    polls = np.maximum(np.ceil(took / interval), 1.0)
    return RunCost(len(took), int(polls.sum()), float((polls * interval - took).sum()))


def best_interval(took: Seconds, price: float) -> tuple[Fixed, RunCost]:
    """The fixed interval that would have been the cheapest, known only in hindsight."""
    usual = math.sqrt(2.0 * price * max(float(took.mean()), 1e-3))  # the best for steady ends
    low = min(max(float(took.min()), 1e-3) * 0.5, usual * 0.2)
    high = max(float(took.max()), usual) * 1.001
    tried = np.concatenate([np.geomspace(low, high, INTERVALS), np.unique(took) * (1.0 + 1e-9)])
    tried = tried[tried > 0.0]
    costs = [at_interval(interval, took).cost(price) for interval in tried]
    best = float(tried[int(np.argmin(costs))])
    return Fixed(best), at_interval(best, took)


def back_off(start: float, factor: float, longest: float, end: float) -> Seconds:
    """When a back-off polls, until after `end`."""
    delays = [start]
    total = start
    while total <= end and len(delays) < POLLS_MAX:
        delays.append(min(delays[-1] * factor, longest))
        total += delays[-1]
    return np.array([*accumulate(delays)])


def best_back_off(took: Seconds, price: float) -> tuple[tuple[float, float], RunCost]:
    """The start and factor of the back-off that would have been the cheapest."""
    middle, end = max(float(np.median(took)), 1e-3), float(took.max())
    found = {
        (start * middle, factor): at_times(back_off(start * middle, factor, math.inf, end), took)
        for start in np.geomspace(0.02, 3.0, STARTS).tolist()
        for factor in FACTORS
    }
    best = min(found, key=lambda each: found[each].cost(price))
    return best, found[best]


def total(costs: Mapping[str, RunCost]) -> RunCost:
    """The cost of all groups."""
    return sum(costs.values(), NOTHING)
