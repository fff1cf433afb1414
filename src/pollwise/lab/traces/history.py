"""Rebuilds arrivals from the history that workers keep with a queue: counts and waits per minute.

A job that was claimed in a minute arrived earlier by its wait. The history has how many were
claimed in each minute and a histogram of their waits, so an arrival is placed at random: a moment
of the minute, less a wait from the histogram. So rates and rhythms of minutes and more are kept,
bursts within a minute are smoothed, and a retry counts as another arrival.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pollwise.errors import ConfigError
from pollwise.lab.numeric import np
from pollwise.lab.replay.base import Seconds, Trace
from pollwise.lab.traces.claimed import ClaimedJobs


def rebuilt(
    name: str, claimed: Sequence[ClaimedJobs], since: float, until: float, seed: int = 0
) -> Trace:
    """A trace of the time from `since` to `until` (seconds since 1970).

    A job that arrived before `since` counts as an arrival at the beginning.
    """
    span = until - since
    if not 0 < span < math.inf:
        raise ConfigError(f"the time from {since:g} to {until:g} is not a period of time")
    draws = np.random.RandomState(seed % 2**32)
    parts: list[Seconds] = [
        each.at - since + draws.random_sample(each.found) * each.seconds - _waits(each, draws)
        for each in claimed
        if each.found > 0
    ]
    if not parts:
        raise ConfigError(f"{name} has no arrivals in this time; choose a longer one")
    return Trace(name, np.sort(np.clip(np.concatenate(parts), 0.0, span)), span)


def _waits(each: ClaimedJobs, draws: np.random.RandomState) -> Seconds:
    """A wait for each job; those that the histogram does not have waited for nothing."""
    waits = np.zeros(each.found)
    place = 0
    for low, high, hits in each.waits:
        count = min(hits, each.found - place)
        width = high - low if math.isfinite(high) else 0.0
        waits[place : place + count] = low + width * draws.random_sample(count)
        place += count
    draws.shuffle(waits)
    return waits
