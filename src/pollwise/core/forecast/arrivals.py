"""Forecasts of arrivals, from what polls found: the evidence behind `Worth` (`docs/why/worth.md`).

`Regimes` assumes that items come at one of a few rates, each twice the one below, and that the rate
jumps now and then (a switching Poisson process). After each poll, Bayes' rule weighs the rates by
how well they explain the count. How long each rate lasts, and which rates follow a jump, is learned
by counting. As a likelihood, it does not depend on why a poll was made: neither a hint nor the gap
of a failed poll biases it.

`Rhythm` and `Cycle` correct that forecast by the time since the last item, and by the phase once
batches come at one period: they multiply it by items seen ÷ items forecast, a ratio that stays near
1 until there is evidence.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import ceil, exp, log, log2, sqrt
from operator import add, mul

#: Regimes: how many rates there are.
RATES = 10
#: How many of the rates are above the long-run rate.
ABOVE = 5
#: Before there is evidence, a rate is assumed to last this many intervals ...
LASTING = 100.0
#: ... and this assumption counts as this many jumps that were seen.
JUMPS = 0.3
#: A jump is assumed to lead to any rate with equal chance, which counts as this many jumps.
LANDINGS = 5.0
#: Rhythm: the factor between the bins of the time since the last item.
STEP = 1.15
#: How many assumed items keep the ratio of a bin near 1.
SHRINK = 4.0
#: What was learned fades by one part in MEMORY per poll, applied every FADE_EVERY polls.
MEMORY = 2000.0
FADE_EVERY = 200
#: Derived values are computed again after this many polls.
SETTLE_EVERY = 8

TINY = 1e-300  # avoids a division by zero

_LOG2 = log(2.0)
_EDGES = tuple(1e-4 * STEP**n for n in range(ceil(log(1e12) / log(STEP))))


class Regimes:
    """An estimate of the current rate of items, and how it changes."""

    def __init__(self) -> None:
        self.items: float = 0.0
        self.age: float = 0.0
        #: Items per second over the whole memory; one item is assumed.
        self.long_run: float = 0.0
        self._exponent = 0  # of the long-run rate, as a power of 2
        self._rates = [1.0] * RATES
        self._belief = [1.0 / RATES] * RATES
        self._jumps = [0.0] * RATES  # out of each rate
        self._spent = [0.0] * RATES  # seconds at each rate
        self._landed = [0.0] * RATES  # jumps into each rate
        # Derived from these counts.
        self._due = 0
        self._leave = [0.0] * RATES  # jumps out of each rate, per second
        self._usual = 0.0  # the mean rate, by how often each rate comes and how long it lasts
        self._far = [0.0] * RATES  # how far each rate is from the usual one
        self._ways = [0.0] * RATES  # how fast each rate moves to the usual one

    def observe(self, found: float, span: float) -> None:
        """Learn that `found` items came in `span` seconds."""
        self.items += found
        self.age += span
        belief, landed = self._belief, self._landed
        stay = [
            held / (1.0 + span * leave) for held, leave in zip(belief, self._leave, strict=True)
        ]
        jumped = max(1.0 - sum(stay), 1e-30)
        share = jumped / (sum(landed) + LANDINGS)
        even = share * LANDINGS / RATES
        if found:
            slope = found * _LOG2
            fits = [n * slope - rate * span for n, rate in enumerate(self._rates)]
            best = max(fits)
            fits = [exp(fit - best) for fit in fits]
        else:
            best = span * self._rates[0]
            fits = [exp(best - rate * span) for rate in self._rates]
        land = [(share * into + even) * fit for into, fit in zip(landed, fits, strict=True)]
        after = [*map(add, map(mul, stay, fits), land)]
        whole = 1.0 / sum(after)
        moved = sum(land) * whole / jumped
        self._spent = [*map(add, self._spent, [span * held for held in belief])]
        self._jumps = [
            out + moved * (held - kept)
            for out, held, kept in zip(self._jumps, belief, stay, strict=True)
        ]
        self._landed = [*map(add, landed, [whole * new for new in land])]
        self._belief = [whole * each for each in after]
        self.long_run = (self.items + 1.0) / self.age
        exponent = round(log2(self.long_run))
        if exponent != self._exponent:
            self._move_to(exponent)

    def forecast(self, price: float, interval: float) -> tuple[float, float]:
        """The current rate, and the constant rate at which `price` gives the same interval.

        The forecast moves from the current rate to the usual one, as fast as rates like the
        current one ended. The constant rate is its mean up to the resulting interval, items
        weighted by their time, approximated at two thirds of the interval. Before there is
        evidence, a rate is assumed to last LASTING times `interval`.
        """
        self._due -= 1
        if self._due <= 0:
            self._settle(JUMPS * LASTING * interval)
        now, usual, leaving = self.ahead()
        fade = leaving / 1.5
        rate = now
        for _ in range(3):
            rate = usual + (now - usual) / (1.0 + fade * sqrt(2.0 * price / rate))
        return now, rate

    def ahead(self) -> tuple[float, float, float]:
        """The current rate, the usual one, and how fast the first moves to the second."""
        belief = self._belief
        now = sum(map(mul, belief, self._rates))
        distance = sum(map(mul, belief, self._far)) + TINY
        return now, self._usual, sum(map(mul, belief, self._ways)) / distance

    def _settle(self, prior: float) -> None:
        """Compute what follows from the counts; they change slowly, so not at every poll.

        Rates that were not seen yet count in the usual rate. So it is too high at first, and pauses
        are too short. Pauses that are too long would cost more: without polls nothing is learned.
        """
        self._due = SETTLE_EVERY
        self._leave = [
            (out + JUMPS) / (time + prior)
            for out, time in zip(self._jumps, self._spent, strict=True)
        ]
        often = [
            (into + LANDINGS / RATES) / out
            for into, out in zip(self._landed, self._leave, strict=True)
        ]
        self._usual = usual = sum(map(mul, often, self._rates)) / sum(often)
        self._far = [abs(rate - usual) for rate in self._rates]
        self._ways = [*map(mul, self._far, self._leave)]

    def fade(self, left: float) -> None:
        """Keep only this share of what was learned; the current estimate stays."""
        self.items *= left
        self.age *= left
        self._jumps = [left * each for each in self._jumps]
        self._spent = [left * each for each in self._spent]
        self._landed = [left * each for each in self._landed]

    def _move_to(self, exponent: int) -> None:
        """Shift the rates around the long-run rate; counts beyond an end join the last rate."""
        shift = max(-RATES, min(exponent - self._exponent, RATES))
        for values in (self._belief, self._jumps, self._spent, self._landed):
            for _ in range(shift):
                lowest = values.pop(0)
                values[0] += lowest
                values.append(0.0)
            for _ in range(-shift):
                highest = values.pop()
                values[-1] += highest
                values.insert(0, 0.0)
        self._exponent = exponent
        self._due = 0
        low = exponent - (RATES - 1 - ABOVE)
        self._rates = [2.0 ** (low + n) for n in range(RATES)]


class Rhythm:
    """Items seen ÷ items forecast, by the time since the last item."""

    def __init__(self) -> None:
        self._seen = [0.0] * (len(_EDGES) + 1)
        self._forecast = [0.0] * (len(_EDGES) + 1)

    def learn(
        self, times: Sequence[float], weight: float, rate: float, since: float, until: float,
        least: float,
    ) -> None:  # fmt: skip
        """Compare what came with a forecast of `rate` for the time from `since` to `until`.

        All times count from the last item known to the forecast; each item has this `weight`. Times
        up to `least` share one bin.
        """
        seen, forecast = self._seen, self._forecast
        for time in times:
            seen[bisect_right(_EDGES, max(least, time))] += weight
        n = bisect_right(_EDGES, max(least, since))
        while n < len(_EDGES) and _EDGES[n] < until:
            forecast[n] += rate * (_EDGES[n] - since)
            since = _EDGES[n]
            n += 1
        forecast[n] += rate * (until - since)

    def interval(
        self, price: float, rate: float, since: float, least: float, max_interval: float
    ) -> float:
        """How long until the expected waiting costs `price`; may stop at `max_interval`."""
        seen, forecast = self._seen, self._forecast
        held = _prior_items(price, rate)
        n = bisect_right(_EDGES, max(least, since))
        start = expected = 0.0
        while True:
            here = rate * (seen[n] + held) / (forecast[n] + held)
            step = 2.0 * price / (expected + sqrt(expected * expected + 2.0 * here * price))
            if n == len(_EDGES) or start + step <= _EDGES[n] - since or start >= max_interval:
                return start + step
            length = _EDGES[n] - since - start
            price -= length * (expected + 0.5 * here * length)
            expected += here * length
            start += length
            n += 1

    def factor(self, since: float, price: float, rate: float, least: float) -> float:
        """Items seen ÷ items forecast, `since` seconds after the last item."""
        held = _prior_items(price, rate)
        n = bisect_right(_EDGES, max(least, since))
        return (self._seen[n] + held) / (self._forecast[n] + held)

    def fade(self, left: float) -> None:
        """Keep only this share of what was learned."""
        self._seen = [left * each for each in self._seen]
        self._forecast = [left * each for each in self._forecast]


def _prior_items(price: float, rate: float) -> float:
    """How many assumed items keep the ratio of a bin near 1: at least those of one pause."""
    return SHRINK * max(1.0, sqrt(2.0 * price * rate))
