"""Seeded workloads that ship with Pollwise, for first tries and for tests.

The same name, seed and length give the same trace, on every machine and with every numpy: the
random numbers come from its frozen legacy generator. Varying rates are thinned from the highest
rate, and the self-exciting one is drawn by Ogata's method, so both are exact, without time steps.

| name | what it is like | arrivals a second |
|---|---|---|
| steady | at random, at one rate | 0.2 |
| diurnal | by day and by night, 19 times more at noon than at midnight | 0.2 |
| bursty | a burst every 2 minutes or so, of 12 on average within a second or two | 0.1 |
| on-off | on for a minute or so at 2 a second, then off for four | 0.4 |
| flash-crowd | quiet, and every 6 hours or so 10 a second that halve every 2 minutes | 0.14 |
| cron | each full minute 10 within half a second, and 0.05 a second between | 0.22 |
| self-exciting | each arrival brings 0.8 more, half of them within 21 seconds | 0.2 |
"""

from __future__ import annotations

import math
from collections.abc import Callable

from pollwise.errors import ConfigError, did_you_mean
from pollwise.lab.numeric import np
from pollwise.lab.replay.base import Seconds, Trace

Draws = np.random.RandomState
Rate = Callable[[Seconds], Seconds]

#: A day, because a shorter trace shows no daily rhythm.
HOURS = 24.0
#: The longest workload, in hours: a year.
HOURS_MAX = 365 * 24.0
_DAY = 86400.0


def workload(name: str, seed: int = 0, hours: float = HOURS) -> Trace:
    """The workload with this name; `WORKLOADS` has the names."""
    made = WORKLOADS.get(name.strip().lower().replace("_", "-").replace(" ", "-"))
    if made is None:
        raise ConfigError(f"there is no workload {name!r}; {did_you_mean(name, WORKLOADS)}")
    return made(seed, hours)


def steady(seed: int = 0, hours: float = HOURS) -> Trace:
    """Arrivals at random at 0.2 a second."""
    draws, span = _begin(seed, hours)
    return Trace("steady", _at_random(draws, 0.2, span), span)


def diurnal(seed: int = 0, hours: float = HOURS) -> Trace:
    """0.2 a second on average over the day, 0.38 at noon and 0.02 at midnight."""
    draws, span = _begin(seed, hours)

    def rate(at: Seconds) -> Seconds:
        return 0.2 * (1 - 0.9 * np.cos(2 * math.pi * at / _DAY))

    return Trace("diurnal", _thinned(draws, rate, 0.38, span), span)


def bursty(seed: int = 0, hours: float = HOURS) -> Trace:
    """A burst every 120 s on average, of 12 on average, each 1 s on average after its start."""
    draws, span = _begin(seed, hours)
    begins = _at_random(draws, 1 / 120, span)
    sizes = draws.geometric(1 / 12, len(begins))
    arrivals = np.repeat(begins, sizes) + draws.exponential(1.0, int(sizes.sum()))
    return Trace("bursty", _within(arrivals, span), span)


def on_off(seed: int = 0, hours: float = HOURS) -> Trace:
    """On for 60 s at 2 a second, off for 240 s; both lengths exponential: 0.4 a second."""
    draws, span = _begin(seed, hours)
    periods, at = [], 0.0
    while at < span:
        on, off = draws.exponential(60.0), draws.exponential(240.0)
        periods.append(at + _at_random(draws, 2.0, on))
        at += on + off
    return Trace("on-off", _within(np.concatenate(periods), span), span)


def flash_crowd(seed: int = 0, hours: float = HOURS) -> Trace:
    """0.05 a second, and every 6 h on average a crowd of 10 a second that halves every 120 s.

    A crowd brings 10 · 120 / ln 2 ≈ 1731 arrivals. The first comes in the first half of the trace,
    or in the first 3 h, whatever the seed, so that every trace has one: 0.14 a second over a day.
    """
    draws, span = _begin(seed, hours)
    fade = 120 / math.log(2)
    parts = [_at_random(draws, 0.05, span)]
    at = draws.uniform(0.1, 0.5) * min(span, 6 * 3600.0)
    while at < span:
        crowd = draws.exponential(fade, draws.poisson(10 * fade))
        parts.append(at + crowd)
        at += draws.exponential(6 * 3600.0)
    return Trace("flash-crowd", _within(np.concatenate(parts), span), span)


def cron(seed: int = 0, hours: float = HOURS) -> Trace:
    """Each full minute 10 on average within half a second; 0.05 a second at random between."""
    draws, span = _begin(seed, hours)
    minutes = np.arange(0.0, span, 60.0)
    sizes = draws.poisson(10.0, len(minutes))
    batches = np.repeat(minutes, sizes) + 0.5 * draws.random_sample(int(sizes.sum()))
    arrivals = np.concatenate([batches, _at_random(draws, 0.05, span)])
    return Trace("cron", _within(arrivals, span), span)


def self_exciting(seed: int = 0, hours: float = HOURS) -> Trace:
    """0.04 a second by themselves; each arrival adds 0.8 / 30 s, which fades in 30 s: 0.2 in all.

    A Hawkes process by Ogata's thinning: between arrivals the rate only falls, so the rate now
    bounds the rate until the next.
    """
    draws, span = _begin(seed, hours)
    base, jump, fade = 0.04, 0.8 / 30.0, 30.0
    arrivals: list[float] = []
    at = excited = 0.0
    while True:
        bound = base + excited
        step = draws.exponential(1 / bound)
        at += step
        if at >= span:
            return Trace("self-exciting", np.array(arrivals), span)
        excited *= math.exp(-step / fade)
        if draws.random_sample() * bound < base + excited:
            arrivals.append(at)
            excited += jump


#: Every workload by its name; each takes a seed and a length in hours.
WORKLOADS: dict[str, Callable[[int, float], Trace]] = {
    "steady": steady,
    "diurnal": diurnal,
    "bursty": bursty,
    "on-off": on_off,
    "flash-crowd": flash_crowd,
    "cron": cron,
    "self-exciting": self_exciting,
}


def _begin(seed: int, hours: float) -> tuple[Draws, float]:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ConfigError(f"seed = {seed!r} must be a whole number from 0 to {2**32 - 1}")
    if not 0 < hours <= HOURS_MAX:
        raise ConfigError(f"hours = {hours!r} must be above 0 and at most {HOURS_MAX:g} (a year)")
    return Draws(seed), hours * 3600.0


def _at_random(draws: Draws, rate: float, span: float) -> Seconds:
    """Arrivals of a Poisson process: first their number, then their times."""
    return np.sort(draws.random_sample(draws.poisson(rate * span))) * span


def _thinned(draws: Draws, rate: Rate, highest: float, span: float) -> Seconds:
    """Arrivals at a varying rate: drawn at the highest rate, and kept in proportion."""
    drawn = _at_random(draws, highest, span)
    return drawn[draws.random_sample(len(drawn)) * highest < rate(drawn)]


def _within(arrivals: Seconds, span: float) -> Seconds:
    return np.sort(arrivals[arrivals < span])
