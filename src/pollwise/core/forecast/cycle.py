"""Cycle: batches that come at one period, and a forecast by its phase.

Cron jobs, timers and exports come every minute or every five. A forecast that only knows rates
polls all through the silence between them, and is late when it ends. So the moments at which
silence ends (onsets) are recorded. Two intervals between them that agree within 5 % make a guess of
the period. Onsets that come where the guess expects them confirm and correct it, as in a
phase-locked loop; others count against it. While it is confirmed, the forecast is multiplied by
items seen ÷ items forecast at each phase. A guess is used only once a further onset has confirmed
it, so a wrong guess costs little until it is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

#: An onset is an item after a silence of this many mean gaps between items ...
SILENCE = 4.0
#: ... once this many items have been seen.
ITEMS_MIN = 10.0
#: How far from its expected time an onset may be, in periods.
TOLERANCE = 0.05
#: Confidence: that of a new guess, the least with which a guess is used, and the maximum.
GUESSED, CONFIRMED, SURE = 2.0, 3.0, 6.0
#: How much an unexpected onset, or a missing one, lowers the confidence.
DOUBT = 0.5
#: By which shares of an onset's deviation the phase and the period are corrected.
TRIM_PHASE, TRIM_PERIOD = 0.5, 0.2
#: The number of bins of a period.
PHASES = 48
#: How many assumed items keep the ratio of each bin near 1.
SHRINK = 0.3


class Cycle:
    """Items seen ÷ items forecast, by the phase of a period."""

    def __init__(self) -> None:
        self._period = 0.0
        self._tick = 0.0  # where the last onset was expected
        self._trust = 0.0
        self._onset = 0.0  # when the last onset was
        self._between = 0.0  # the time between the last two onsets
        self._seen = [0.0] * PHASES
        self._forecast = [0.0] * PHASES

    @property
    def period(self) -> float | None:
        """The period, while it is confirmed."""
        return self._period if self._trust >= CONFIRMED else None

    def onset(self, at: float) -> None:
        """Learn that a silence ended."""
        between = at - self._onset
        if self._trust > 0.0:
            self._compare(at)
        if self._trust <= 0.0 and abs(between - self._between) <= TOLERANCE * between:
            self._period = 0.5 * (between + self._between)
            self._tick = at
            self._trust = GUESSED
            self._seen = [0.0] * PHASES
            self._forecast = [0.0] * PHASES
        self._onset, self._between = at, between

    def _compare(self, at: float) -> None:
        periods = float(round((at - self._tick) / self._period))
        off = at - self._tick - periods * self._period
        if periods < 1.0 or abs(off) > TOLERANCE * self._period:
            self._trust -= DOUBT
            return
        self._trust = min(self._trust + 1.0 - DOUBT * (periods - 1.0), SURE)
        self._tick += periods * self._period + TRIM_PHASE * off
        self._period += TRIM_PERIOD * off / periods

    def learn(
        self, times: Sequence[float], weight: float, rate: float, start: float, end: float
    ) -> None:
        """Compare what came, each time with this `weight`, with a forecast of `rate`."""
        width, tick = self._period / PHASES, self._tick
        for time in times:
            self._seen[math.floor((time - tick) / width + 0.5) % PHASES] += weight
        length = min(end - start, self._period)  # a longer time is the same at each phase
        place = (end - length - tick) / width + 0.5
        for _ in range(PHASES + 2):  # a period, and the parts of phases at its ends
            if length <= 0.0:
                break
            n = math.floor(place)
            step = min((n + 1 - place) * width, length)
            self._forecast[n % PHASES] += rate * step
            length -= step
            place = n + 1.0

    def interval(self, price: float, rate: float, at: float) -> float:
        """How long until the next poll should come; at most about two periods.

        That is when the expected waiting costs `price`, or earlier, right after a batch. Compared
        with a poll at S, a poll at s < S saves the waiting of N(s) items from s to S. But the
        N(S) - N(s) items that come after it wait for the poll after that.
        """
        width = self._period / PHASES
        held = SHRINK * max(1.0, math.sqrt(2.0 * price * rate))
        place = (at - self._tick) / width + 0.5
        start = expected = waited = step = here = 0.0
        marks = []
        for _ in range(3 * PHASES):
            n = math.floor(place)
            phase = n % PHASES
            here = rate * (self._seen[phase] + held) / (self._forecast[phase] + held)
            length = (n + 1 - place) * width
            left = price - waited
            step = 2.0 * left / (expected + math.sqrt(expected * expected + 2.0 * here * left))
            if step <= length or start > 2.0 * self._period:
                break
            waited += length * (expected + 0.5 * here * length)
            expected += here * length
            start += length
            place = n + 1.0
            marks.append((start, waited, expected))
        interval = latest = start + step
        expected += here * step
        least = price
        for start, waited, before in marks:
            cost = waited + (expected - before) * latest
            if cost < least:
                least, interval = cost, start
        return interval

    def factor(self, at: float, price: float, rate: float) -> float:
        """Items seen ÷ items forecast at the phase of `at`."""
        held = SHRINK * max(1.0, math.sqrt(2.0 * price * rate))
        phase = math.floor((at - self._tick) * PHASES / self._period + 0.5) % PHASES
        return (self._seen[phase] + held) / (self._forecast[phase] + held)

    def fade(self, left: float) -> None:
        """Keep only this share of what was learned about the phases."""
        self._seen = [left * each for each in self._seen]
        self._forecast = [left * each for each in self._forecast]
