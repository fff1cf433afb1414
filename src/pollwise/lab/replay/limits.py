"""What any strategy can be measured by: the clairvoyant optimum and two others.

All three minimise or bound polls · ratio + Σ waits, in item-seconds. The *ratio* is what a poll
costs over what a waiting item-second costs, so a ratio of 10 says: ten seconds of waiting, of one
item or of several together, are as bad as a poll. They know nothing of capacities, and so bound
strategies that do from below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import ConfigError
from pollwise.lab.needs import np
from pollwise.lab.replay import rules
from pollwise.lab.replay.fast import fast
from pollwise.lab.replay.results import Seconds, Trace

#: Intervals that people choose, in seconds; the only good ones for arrivals by the clock.
ROUND = (
    *(0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(60.0, 120.0, 180.0, 300.0, 600.0, 900.0, 1200.0, 1800.0),
    *(3600.0, 7200.0, 10800.0, 14400.0, 21600.0, 43200.0, 86400.0),
)
#: The best fixed interval is looked for up to so many times below and above √(2 · ratio / rate), …
REACH = 50.0
COARSE = 400
#: … with care within so many, …
LIKELY = 4.0
#: … at as many intervals as this much work allows, in arrivals looked at (about half a second), …
WORK = 200_000_000
FINEST, LEAST = 20_000, 1_000
#: … and in ever finer steps around so many of the best.
REFINED = 24
ROUNDS, STEPS = 3, 25


@dataclass(frozen=True)
class Limit:
    """The least cost of some kind, and the polls that reach it.

    cost: polls · ratio + waiting, in item-seconds.
    waiting: Σ waits, in item-seconds.
    """

    cost: float
    polls: int
    waiting: float
    poll_times: Seconds = field(repr=False, compare=False)


def optimum(arrivals: Seconds, ratio: float) -> Limit:
    """The least that polling could have cost with every arrival known beforehand.

    Such a poller polls only at arrivals: any poll can be moved back to the last arrival before it.
    Which of them is a shortest path, found by dynamic programming on a convex hull in O(n).
    """
    from pollwise.lab.replay import kernels

    arrivals = _checked(arrivals, ratio)
    # From the first arrival on: the sums stay small, and so do their roundings.
    shifted = arrivals - arrivals[0] if len(arrivals) else arrivals
    return _limit(arrivals, arrivals[kernels.optimal_polls(shifted, float(ratio))], ratio)


def sees_arrivals(arrivals: Seconds, ratio: float) -> Limit:
    """What a poller pays that sees arrivals (not the future) and polls by the fair rule.

    It polls when the waiting since the last poll has added up to the price of one poll, and so
    pays at most twice the optimum, whatever comes; no rule without the future can promise less.
    """
    from pollwise.lab.replay import kernels

    arrivals = _checked(arrivals, ratio)
    times = np.empty(len(arrivals))
    polls = kernels.polls_when_due(arrivals, float(ratio), times)
    return _limit(arrivals, times[:polls].copy(), ratio)


def best_fixed(arrivals: Seconds, ratio: float, span: float) -> tuple[float, float]:
    """The fixed interval that would have cost least, and its cost: polls at 0, T, 2T, …

    The interval is chosen in hindsight: over a grid around √(2 · ratio / rate), the round intervals
    people choose, and ever finer steps around the best. The cost jumps wherever a poll meets an
    arrival, so this is as exact as the steps are fine: within 0.5 % or so where arrivals
    follow a clock or come in few bursts, else within 0.1 %. The cost is what
    `replay(trace, Fixed(interval))` gives, by the same rule of beginning and end.
    """
    arrivals = _checked(arrivals, ratio)
    rules.check_arrivals(arrivals, span, "the trace")
    if not (len(arrivals) and span > 0 and ratio > 0):
        raise ConfigError(
            f"the best fixed interval of {len(arrivals)} arrivals in {span:g} s at the ratio "
            f"{ratio:g} is no question; give arrivals, a span and a ratio above 0"
        )
    intervals = _candidates(arrivals, ratio, span)
    costs = _costs(arrivals, span, intervals, ratio)
    best: dict[float, float] = {}
    for at in np.argsort(costs)[:REFINED].tolist():
        near = intervals[max(at - 1, 0) : at + 2]
        interval, cost = _refined(arrivals, span, ratio, near, float(intervals[at]))
        best[interval] = cost
    # The closed form and the sums of a real clock differ by roundings, which a poll that meets an
    # arrival exactly may feel: the last word has the replay.
    finalists = sorted(best, key=lambda t: (best[t], t))[:3]
    replayed = {interval: _replayed(arrivals, span, interval, ratio) for interval in finalists}
    interval = min(replayed, key=lambda t: (replayed[t], t))
    return interval, replayed[interval]


def _candidates(arrivals: Seconds, ratio: float, span: float) -> Seconds:
    """Intervals worth a look, in order. Above the span, the one poll that finds is just later."""
    likely = math.sqrt(2 * ratio * span / len(arrivals))
    fine = int(np.clip(WORK // len(arrivals), LEAST, FINEST))
    wanted = np.concatenate(
        [
            likely * np.geomspace(1 / REACH, REACH, COARSE),
            likely * np.geomspace(1 / LIKELY, LIKELY, fine),
            np.array([*ROUND, span, arrivals[-1]]),
        ]
    )
    within = wanted[(wanted >= likely / REACH) & (wanted <= span) & (wanted > 0)]
    return np.unique(within) if len(within) else np.array([span])


def _refined(
    arrivals: Seconds, span: float, ratio: float, near: Seconds, middle: float
) -> tuple[float, float]:
    """The best interval found among those near, in finer and finer steps, and its cost."""
    low, high, cost = float(near[0]), float(near[-1]), math.inf
    for _ in range(ROUNDS):
        steps = np.append(np.linspace(low, high, STEPS), middle)
        costs = _costs(arrivals, span, steps, ratio)
        middle, cost = float(steps[np.argmin(costs)]), float(costs.min())
        width = (high - low) / (STEPS - 1)
        low, high = max(middle - width, low), min(middle + width, high)
    return middle, cost


def _costs(arrivals: Seconds, span: float, intervals: Seconds, ratio: float) -> Seconds:
    from pollwise.lab.replay import kernels

    return kernels.fixed_costs(arrivals, float(span), intervals, float(ratio))


def _replayed(arrivals: Seconds, span: float, interval: float, ratio: float) -> float:
    return fast(Trace("fixed", arrivals, span), Fixed(interval)).cost(ratio, 1.0)


def _limit(arrivals: Seconds, poll_times: Seconds, ratio: float) -> Limit:
    """What these polls cost; the last is at or after the last arrival."""
    finds = np.searchsorted(poll_times, arrivals, side="left")
    waiting = float((poll_times[finds] - arrivals).sum()) if len(arrivals) else 0.0
    polls = len(poll_times)
    return Limit(polls * ratio + waiting, polls, waiting, poll_times)


def _checked(arrivals: Seconds, ratio: float) -> Seconds:
    if not 0 <= ratio < math.inf:
        raise ConfigError(
            f"ratio = {ratio!r} must be a finite number, 0 or more: what a poll costs over what a "
            "waiting item-second costs"
        )
    arrivals = np.ascontiguousarray(arrivals, dtype=np.float64)
    rules.check_arrivals(arrivals, float(arrivals[-1]) if len(arrivals) else 0.0, "the trace")
    return arrivals
