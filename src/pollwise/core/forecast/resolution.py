"""Resolution: the step to which the stamps of items are rounded, and waits without that rounding.

Many stores and logs keep whole seconds. Then the times between stamps are multiples of a step. A
forecast that treated such stamps as exact would see batches at each second, and learn their rhythm.
So the step is estimated as the largest common divisor of the times between stamps. Once many times
have agreed, the waits are spread over the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

#: How far from a multiple a time may be, in steps.
TOLERANCE = 0.02
#: How many times must agree, how many are counted at most, and how many a disagreement subtracts.
AGREED, AGREED_MAX, OTHER = 12, 24, 4
#: The coarsest step, in seconds: longer ones may be the period of batches.
COARSEST = 5.0
#: The finest step, as a share of the time between stamps, because clocks are not exact.
FINEST = 1e-3
#: A longer time between stamps, in seconds, is ignored.
BETWEEN_MAX = 1e12
#: Waits are spread in steps of the golden ratio, which fills a step evenly.
GOLDEN = 0.6180339887498949


class Resolution:
    """The step to which stamps are rounded."""

    def __init__(self) -> None:
        self._guess = 0.0
        self._agreed = 0
        self._place = 0.5  # where in its step the last item was put

    @property
    def step(self) -> float:
        """The step in seconds; 0 while stamps seem exact."""
        return self._guess if self._agreed >= AGREED and self._guess <= COARSEST else 0.0

    def learn(self, between: float) -> None:
        """Learn the time between two stamps, in seconds. Equal stamps teach nothing."""
        guess = self._guess
        if not 0.0 < between < BETWEEN_MAX:
            return
        if guess <= FINEST * between:
            self._guess, self._agreed = between, 0
            return
        steps = floor(between / guess + 0.5)
        off = abs(between - steps * guess)
        if off <= TOLERANCE * guess:
            self._agreed = min(self._agreed + (steps > 0), AGREED_MAX)
            return
        self._agreed -= OTHER
        if self._agreed < 0:
            self._guess, self._agreed = off, 0

    def spread(self, waits: Sequence[float], span: float) -> list[float]:
        """Return the waits as if items came anywhere in the steps of their stamps.

        span: seconds since the last poll. No item is moved to before that poll; an item whose whole
        step lies before it keeps its wait.
        """
        step, place, spread = self._guess, self._place, []
        for wait in waits:
            place = (place + GOLDEN) % 1.0
            least, most = max(wait - step, 0.0), min(wait, span)
            spread.append(least + place * (most - least) if least < most else wait)
        self._place = place
        return spread
