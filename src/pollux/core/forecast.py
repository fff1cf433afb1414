"""Forecasts of arrivals, from what polls found: the evidence behind `Worth`.

Two small models, both deterministic, of constant size, and learned while they are used.

`Regimes` believes that arrivals come at one of a few rates, each twice the one below, and that the
rate jumps now and then (a switching Poisson process). After each poll, Bayes' rule weighs the
rates by how well they explain the count; how long each rate lasts, and which rates follow a jump,
are learned by counting what the belief says happened. So one silent poll after a busy minute moves
little, three say that the burst is over, and one batch in the silence says that it is back. Being
a likelihood, it does not care why a poll was made when it was made: a hint that ended the pause
biases nothing.

`Rhythm` corrects the forecast by how long ago the last item came. It keeps, by the logarithm of
that time, how many items came and how many were forecast; their ratio, held near 1 until there is
evidence, multiplies the forecast. Batches that come every five minutes leave no items at two
minutes and many at five: the ratio learns to wait, and when to look.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Regimes: how many rates there are, and how many of them lie above the long-run rate.
RATES = 14
ABOVE = 6
#: Before there is evidence, a rate lasts as long as this many intervals, with the weight of so
#: many jumps; and a jump leads to any rate alike, with the weight of so many jumps.
LASTING = 100.0
JUMPS = 0.3
LANDINGS = 5.0
#: Rhythm: each bin of the time since the last item is so much longer than the one before, and its
#: ratio is held at 1 by so many items.
STEP = 1.15
SHRINK = 4.0
#: What both have seen fades, by one part in so many at each poll.
MEMORY = 20_000.0

_LOG2 = math.log(2.0)
_LOG_STEP = math.log(STEP)
_BIN_LOW = math.floor(math.log(1e-4) / _LOG_STEP)
_BINS = math.ceil(math.log(1e11) / _LOG_STEP)
_EDGES = tuple(math.exp((n + _BIN_LOW + 1) * _LOG_STEP) for n in range(_BINS))
_FORGET = 1.0 - 1.0 / MEMORY


class Regimes:
    """A belief about the present rate of arrivals, and how it changes."""

    def __init__(self) -> None:
        self.items = 0.0
        self.age = 0.0
        self._exponent: int | None = None  # of the long-run rate, as a power of 2
        self._rates = [1.0] * RATES
        self._belief = [1.0 / RATES] * RATES
        self._jumps = [0.0] * RATES  # out of each rate
        self._spent = [0.0] * RATES  # seconds at each rate
        self._landed = [0.0] * RATES  # jumps into each rate

    @property
    def long_run(self) -> float:
        """Items per second since the beginning; one is taken for granted."""
        return (self.items + 1.0) / self.age

    def observe(self, found: float, span: float, interval: float) -> None:
        """Learn that `found` items came in `span` seconds; `interval` is the unit of lasting."""
        if self._exponent is None:
            self._exponent = round(math.log2((found + 1.0) / span))
            self._rates = _rates_around(self._exponent)
        belief, jumps, spent, landed = self._belief, self._jumps, self._spent, self._landed
        prior_time = JUMPS * LASTING * interval
        stay = [
            held / (1.0 + span * (out + JUMPS) / (time + prior_time))
            for held, out, time in zip(belief, jumps, spent, strict=True)
        ]
        jumped = max(1.0 - sum(stay), 1e-30)
        share = jumped / (sum(landed) + LANDINGS)
        land = [share * (into + LANDINGS / RATES) for into in landed]
        slope = found * _LOG2
        fits = [n * slope - rate * span for n, rate in enumerate(self._rates)]
        best = max(fits)
        fits = [math.exp(fit - best) for fit in fits]
        land = [into * fit for into, fit in zip(land, fits, strict=True)]
        after = [held * fit + into for held, fit, into in zip(stay, fits, land, strict=True)]
        total = sum(after)
        moved = sum(land) / (jumped * total)
        for n in range(RATES):
            jumps[n] = _FORGET * jumps[n] + (belief[n] - stay[n]) * moved
            spent[n] = _FORGET * spent[n] + belief[n] * span
            landed[n] = _FORGET * landed[n] + land[n] / total
        self._belief = [each / total for each in after]
        self.items = _FORGET * self.items + found
        self.age = _FORGET * self.age + span
        exponent = round(math.log2(self.long_run))
        if exponent != self._exponent:
            self._move_to(exponent)

    def equivalent(self, price: float, interval: float) -> tuple[float, float]:
        """The present rate, and the constant rate for which `price` buys the same interval.

        The forecast falls back from the present rate to the usual one as time passes; the constant
        rate stands for its mean, items weighted by their time, up to the interval it leads to.
        """
        now = later = weight = fade = distance = 0.0
        prior_time = JUMPS * LASTING * interval
        for held, rate, out, time, into in zip(
            self._belief, self._rates, self._jumps, self._spent, self._landed, strict=True
        ):
            lasts = (time + prior_time) / (out + JUMPS)
            often = (into + LANDINGS / RATES) * lasts
            later += often * rate
            weight += often
            now += held * rate
        later /= weight
        for held, rate, out, time in zip(
            self._belief, self._rates, self._jumps, self._spent, strict=True
        ):
            away = held * abs(rate - later)
            distance += away
            fade += away * (out + JUMPS) / (time + prior_time)
        fade *= 2.0 / (3.0 * distance)
        rate = now
        for _ in range(3):
            rate = later + (now - later) / (1.0 + fade * math.sqrt(2.0 * price / rate))
        return now, rate

    def _move_to(self, exponent: int) -> None:
        """Keep the rates around the long-run rate: what falls off one end joins the last there."""
        assert self._exponent is not None  # noqa: S101
        shift = max(-RATES, min(exponent - self._exponent, RATES))
        for values in (self._belief, self._jumps, self._spent, self._landed):
            for _ in range(shift):
                values[1] += values.pop(0)
                values.append(0.0)
            for _ in range(-shift):
                values[-2] += values.pop()
                values.insert(0, 0.0)
        self._exponent = exponent
        self._rates = _rates_around(exponent)


class Rhythm:
    """Items seen ÷ items forecast, by the time since the last item."""

    def __init__(self) -> None:
        self._seen = [0.0] * _BINS
        self._forecast = [0.0] * _BINS

    def learn(
        self, times: Sequence[float], weight: float, rate: float, since: float, span: float,
        least: float,
    ) -> None:
        """Compare what came with a forecast of `rate`.

        times: when items came, each standing for `weight` of them; and the forecast began `since`
        seconds after the last item known to it, and was for `span` seconds.
        """
        for time in times:
            self._seen[_bin(max(time, least))] += weight
        end = since + span
        n = _bin(max(since, least))
        while since < end:
            edge = min(_EDGES[n], end) if n < _BINS - 1 else end
            self._forecast[n] = self._forecast[n] * _FORGET + rate * (edge - since)
            self._seen[n] *= _FORGET
            since, n = edge, n + 1

    def interval(
        self, price: float, rate: float, since: float, least: float, ceiling: float
    ) -> float:
        """How long until waiting is expected to cost `price`, at `rate` and `since` the last item.

        With N(s) items expected by s, an interval T costs ∫₀ᵀ N(s) ds of waiting.
        """
        held = SHRINK * max(1.0, math.sqrt(2.0 * price * rate))
        n = _bin(max(since, least))
        start = expected = waited = 0.0
        while True:
            here = rate * (self._seen[n] + held) / (self._forecast[n] + held)
            end = _EDGES[n] - since if n < _BINS - 1 else math.inf
            left = price - waited
            step = 2.0 * left / (expected + math.sqrt(expected * expected + 2.0 * here * left))
            if start + step <= end or end >= ceiling:
                return start + step
            length = end - start
            waited += length * (expected + 0.5 * here * length)
            expected += here * length
            start, n = end, n + 1


def _rates_around(exponent: int) -> list[float]:
    low = exponent - (RATES - 1 - ABOVE)
    return [2.0 ** (low + n) for n in range(RATES)]


def _bin(time: float) -> int:
    return min(max(math.floor(math.log(time) / _LOG_STEP) - _BIN_LOW, 0), _BINS - 1)
