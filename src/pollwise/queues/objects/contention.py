"""How workers that claim at the same time avoid each other.

A claim is a race for a name, and a lost race is a billed write without a result. Workers do not
know each other, so a handle estimates the number of rivals from its own races:

- Alone, it claims in order, everything it wants at once.
- If it does not know yet whether it is alone, it tries the first unit, and the rest only after it
  got that one: losing a race for a batch then costs one write, not one per job.
- After a lost race it claims at a random place, further back the more it loses. It takes only its
  share first, and more after it got that. So order is partly given up, and returns when no more
  races are lost.
- Its listing does not show what the others took meanwhile. If there are too few units to avoid the
  others, it lists again; after a lost race it first pauses for a random time, so that the workers
  come one after the other.

Handles that start at the same time see each other's start-up objects and count each other as rivals
from the first claim on. None of this costs a request while nobody else claims.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from pollwise.queues.objects.chain import ClaimUnit
from pollwise.runtime.clock import Clock

#: The assumed number of rivals after the first lost race, and its maximum.
RIVALS_FIRST, RIVALS_MAX = 16.0, 128.0
#: How a lost race and a claim without one change that number.
MORE, FEWER = 2.0, 0.8
#: How long a claim without a lost race proves that nobody else claims, in seconds.
ALONE_FOR = 10.0
#: If at least this many handles start at the same time, they count as rivals.
FLEET = 3
#: The time that each rival needs to list and claim, in requests.
CLEAR = 2
#: The longest pause after a lost race, in seconds.
PAUSE_MAX = 2.0
#: The number of places to claim at for each rival, if there are enough units.
ROOM = 2

#: Units to try, with the number of jobs to take from each.
Chosen = list[tuple[ClaimUnit, int]]


class Contention:
    """The estimated number of rivals, and which units to claim because of them."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self.rng = rng
        self._count = 1.0
        self._undisputed_at: float | None = None

    @property
    def any(self) -> bool:
        return self._count > 1

    @property
    def places(self) -> int:
        """The number of places that claims are spread over."""
        return int(self._count * ROOM) if self.any else 1

    @property
    def undisputed(self) -> bool:
        """True if a whole batch may be tried at once: the last claims lost no race."""
        at = self._undisputed_at
        return at is not None and self._clock.now() - at < ALONE_FOR

    def seen(self, count: int) -> None:
        """Note how many others just started. One or two may only put, or stay idle."""
        if count >= FLEET:
            self._count = max(self._count, min(1.0 + count, RIVALS_MAX))

    def won(self) -> None:
        self._undisputed_at = self._clock.now()
        self._count = self._count * FEWER if self._count > 1.5 else 1.0

    def lost(self) -> None:
        self._undisputed_at = None
        self._count = min(max(self._count * MORE, RIVALS_FIRST), RIVALS_MAX)

    def room_among(self, units: Sequence[ClaimUnit]) -> bool:
        """True if there are enough units for another try without a new listing."""
        return len(units) >= ROOM * self.places

    def pause(self, took: float) -> float:
        """The pause before the next listing. took: the duration of one request."""
        return min(took * CLEAR * self._count, PAUSE_MAX) * self.rng.random()

    def choose(
        self, units: list[ClaimUnit], wanted: int, shares: int = 1
    ) -> tuple[Chosen, list[ClaimUnit]]:
        """Units to try, up to this number of shares, and the units left."""
        first = 0
        if self.any and units:
            # A share is counted in units: a slice that is cut in two is raced for twice.
            share = max(1, round(len(units) / self._count)) * shares
            # The units of one claim are one place; places do not overlap.
            width = min(_width(units, wanted), share)
            wanted = min(wanted, sum(unit.left for unit in units[:width]))
            first = self.rng.randrange(min(self.places, -(-len(units) // width))) * width
        chosen: Chosen = []
        at = first
        while wanted > 0 and at < len(units):
            count = min(units[at].left, wanted)
            chosen.append((units[at], count))
            wanted -= count
            at += 1
        return chosen, units[:first] + units[at:]


def _width(units: Sequence[ClaimUnit], wanted: int) -> int:
    """How many of the first units are needed for this number of jobs."""
    width = jobs = 0
    while width < len(units) and jobs < wanted:
        jobs += units[width].left
        width += 1
    return width
