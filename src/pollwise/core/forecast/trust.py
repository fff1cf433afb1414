"""Trust: how far pauses follow a forecast, learned from what earlier pauses cost.

A forecast says by which factor the next pause should differ from the best fixed interval. The
pause follows a share of it, on a logarithmic scale: 0 is the fixed interval, 1 all of the forecast.
At the best length of a pause, its waiting costs as much as a poll. So where pauses that a forecast
made longer cost more waiting than polls, or those that it made shorter cost less, its share falls;
otherwise it rises. Each kind of evidence has a share of its own: that times are calm, that they are
busy, and the rhythm. (The phase of a cycle is met or missed, so a pause follows it wholly.)
"""

from __future__ import annotations

from math import exp, log

#: The kinds of evidence.
CALM, BUSY, RHYTHM = range(3)
#: The shares at the start.
FIRST = (0.7, 1.0, 0.7)
#: The limits of a share.
LEAST, MOST = 0.0, 1.3
#: How much evidence the shares at the start count as.
EVIDENCE = 40.0
#: The evidence of a pause is this, times the square of the logarithm of the factor.
CURVE = 4.0
#: The most that the waiting of a pause counts, in polls.
WAITED_MAX = 100.0


class Trust:
    """The share of each kind of evidence."""

    def __init__(self) -> None:
        self._shares = list(FIRST)
        self._evidence = [EVIDENCE] * len(FIRST)
        self._followed = ((CALM, 0.0), (RHYTHM, 0.0))  # the kinds, and the logs of their factors

    def interval(self, usual: float, now: float, own: float) -> float:
        """How long to pause.

        usual: the best fixed interval.
        now: what the current rate asks for.
        own: the same, corrected by the rhythm.
        """
        rate, more = log(now / usual), log(own / now)
        level = CALM if rate > 0.0 else BUSY
        self._followed = ((level, rate), (RHYTHM, more))
        return usual * exp(self._shares[level] * rate + self._shares[RHYTHM] * more)

    def learn(self, waited: float) -> None:
        """Learn what the waiting in the last pause cost, in polls."""
        excess = min(waited, WAITED_MAX) - 1.0
        for kind, factor in self._followed:
            self._evidence[kind] += CURVE * factor * factor
            share = self._shares[kind] - excess * factor / self._evidence[kind]
            self._shares[kind] = max(LEAST, min(share, MOST))

    def fade(self, left: float) -> None:
        """Keep only this share of the evidence; the shares stay."""
        self._evidence = [EVIDENCE + left * (each - EVIDENCE) for each in self._evidence]
