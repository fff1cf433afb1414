"""Limits to compare strategies with: the clairvoyant optimum and two others.

All three minimise or bound polls · ratio + Σ waits, in item-seconds. The *ratio* is the cost of a
poll divided by the cost of one waiting item-second. A ratio of 10 means: ten seconds of waiting, of
one item or of several together, cost as much as a poll. The limits ignore capacities, so they are
lower bounds for strategies with a capacity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import ConfigError
from pollwise.lab.numeric import np
from pollwise.lab.replay import base
from pollwise.lab.replay.base import Seconds, Trace
from pollwise.lab.replay.fast import fast

#: Intervals that people choose, in seconds; only these suit arrivals that follow the clock.
ROUND = (
    *(0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(60.0, 120.0, 180.0, 300.0, 600.0, 900.0, 1200.0, 1800.0),
    *(3600.0, 7200.0, 10800.0, 14400.0, 21600.0, 43200.0, 86400.0),
)
#: The best fixed interval is searched up to this factor below and above √(2 · ratio / rate), …
REACH = 50.0
COARSE = 400
#: … more finely within this factor, …
LIKELY = 4.0
#: … at as many intervals as this work allows, in arrivals processed (about half a second), …
WORK = 200_000_000
FINEST, LEAST = 20_000, 1_000
#: … and in smaller and smaller steps around this many of the best.
REFINED = 24
ROUNDS, STEPS = 3, 25


@dataclass(frozen=True)
class LeastCost:
    """A lowest cost, and the polls that reach it.

    cost: polls · ratio + waiting, in item-seconds.
    waiting: Σ waits, in item-seconds.
    """

    cost: float
    polls: int
    waiting: float
    poll_times: Seconds = field(repr=False, compare=False)


def optimum(arrivals: Seconds, ratio: float) -> LeastCost:
    """The lowest cost of polling if every arrival were known in advance.

    Such a poller polls only at arrivals: any poll can be moved back to the last arrival before it.
    Choosing them is a shortest-path problem, solved with dynamic programming on a convex hull in
    O(n).
    """
    from pollwise.lab.replay import kernels

    arrivals = _checked(arrivals, ratio)
    # Counted from the first arrival, so that sums and their rounding errors stay small.
    shifted = arrivals - arrivals[0] if len(arrivals) else arrivals
    return _limit(arrivals, arrivals[kernels.optimal_polls(shifted, float(ratio))], ratio)


def sees_arrivals(arrivals: Seconds, ratio: float) -> LeastCost:
    """The cost of a poller that sees arrivals (not the future) and uses the fair rule.

    It polls when the waiting since the last poll has reached the price of one poll. So it pays at
    most twice the optimum; no rule that does not know the future can guarantee less.
    """
    from pollwise.lab.replay import kernels

    arrivals = _checked(arrivals, ratio)
    times = np.empty(len(arrivals))
    polls = kernels.polls_when_due(arrivals, float(ratio), times)
    return _limit(arrivals, times[:polls].copy(), ratio)


def best_fixed(arrivals: Seconds, ratio: float, span: float) -> tuple[float, float]:
    """The cheapest fixed interval, and its cost: polls at 0, T, 2T, …

    The interval is chosen in hindsight: from a grid around √(2 · ratio / rate), the round intervals
    people choose, and smaller and smaller steps around the best. The cost jumps wherever a poll
    meets an arrival, so the result is as exact as the steps are small: within about 0.5 % where
    arrivals follow a clock or come in few bursts, otherwise within 0.1 %. The cost is what
    `replay(trace, Fixed(interval))` gives.
    """
    arrivals = _checked(arrivals, ratio)
    base.check_arrivals(arrivals, span, "the trace")
    if not (len(arrivals) and span > 0 and ratio > 0):
        raise ConfigError(
            f"there is no best fixed interval for {len(arrivals)} arrivals in {span:g} s at the "
            f"ratio {ratio:g}; give arrivals, and a span and a ratio above 0"
        )
    intervals = _candidates(arrivals, ratio, span)
    costs = _costs(arrivals, span, intervals, ratio)
    best: dict[float, float] = {}
    for at in np.argsort(costs)[:REFINED].tolist():
        near = intervals[max(at - 1, 0) : at + 2]
        interval, cost = _refined(arrivals, span, ratio, near, float(intervals[at]))
        best[interval] = cost
    # The formula and the sums of a real clock round differently, which matters for a poll that
    # meets an arrival exactly: so the replay decides.
    finalists = sorted(best, key=lambda t: (best[t], t))[:3]
    trace = Trace("fixed", arrivals, span)
    replayed = {interval: fast(trace, Fixed(interval)).cost(ratio, 1.0) for interval in finalists}
    interval = min(replayed, key=lambda t: (replayed[t], t))
    return interval, replayed[interval]


def _candidates(arrivals: Seconds, ratio: float, span: float) -> Seconds:
    """Intervals to try, in order. Above the span, the one poll that finds items is only later."""
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
    """The best interval near a good one, in smaller and smaller steps, and its cost."""
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


def _limit(arrivals: Seconds, poll_times: Seconds, ratio: float) -> LeastCost:
    """The cost of these polls; the last is at or after the last arrival."""
    finds = np.searchsorted(poll_times, arrivals, side="left")
    waiting = float((poll_times[finds] - arrivals).sum()) if len(arrivals) else 0.0
    polls = len(poll_times)
    return LeastCost(polls * ratio + waiting, polls, waiting, poll_times)


def _checked(arrivals: Seconds, ratio: float) -> Seconds:
    if not 0 <= ratio < math.inf:
        raise ConfigError(
            f"ratio = {ratio!r} must be a finite number, 0 or more: the cost of a poll divided by "
            "the cost of one waiting item-second"
        )
    arrivals = np.ascontiguousarray(arrivals, dtype=np.float64)
    base.check_arrivals(arrivals, float(arrivals[-1]) if len(arrivals) else 0.0, "the trace")
    return arrivals
