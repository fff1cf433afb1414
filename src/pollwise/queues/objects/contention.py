"""How claims keep out of each other's way.

A claim is a race for a name, and a lost race is a billed write that brought nothing. Workers do not
know of each other, so what a handle knows of its rivals is what its own races told it:

- Alone, it claims in order, all it wants at once.
- If it does not know yet whether it is alone, it tries one unit first, the first in order, and the
  rest of what it wants only if it got that one: a race for a batch is lost by one write, not by
  one for each job.
- Once it lost, it claims at a place drawn at random, further back the more it loses, and its share
  first, more only if it got that. Order is given up as far as that, and comes back as claims go
  undisputed.
- What it saw before a race shows nothing of what the others took. If there is no room to keep clear
  of them, it looks again; after a race that it lost, only when it has paused for a random time, so
  that they come one after the other.

Those who start at the same time see each other's probes, and count each other as rivals from the
first claim on. None of this costs a request while nobody else claims.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from pollwise.queues.objects.chain import ClaimUnit
from pollwise.runtime.clock import Clock

#: Contention reckoned with after the first lost race, and at the most.
RIVALS_FIRST, RIVALS_MAX = 16.0, 128.0
#: What a lost race and a claim without one do to their number.
MORE, FEWER = 2.0, 0.8
#: How long a claim that nobody disputed proves that nobody else claims, in seconds.
ALONE_FOR = 10.0
#: Others that start at the same time, from which on they are taken for workers.
FLEET = 3
#: Time for each rival to look and claim by itself, in requests.
CLEAR = 2
#: The longest pause after a lost race, in seconds.
PAUSE_MAX = 2.0
#: Places for each rival to claim at, where there are as many.
ROOM = 2

#: Units to try, with how many jobs of each.
Chosen = list[tuple[ClaimUnit, int]]


class Contention:
    """How many others claim here, as far as races tell, and where to claim beside them."""

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
        """Over how many places claims are spread."""
        return int(self._count * ROOM) if self.any else 1

    @property
    def undisputed(self) -> bool:
        """Whether a batch may be tried for at once: the last claims met nobody."""
        at = self._undisputed_at
        return at is not None and self._clock.now() - at < ALONE_FOR

    def seen(self, count: int) -> None:
        """So many others started just now. One or two may be who puts, or stay idle."""
        if count >= FLEET:
            self._count = max(self._count, min(1.0 + count, RIVALS_MAX))

    def won(self) -> None:
        self._undisputed_at = self._clock.now()
        self._count = self._count * FEWER if self._count > 1.5 else 1.0

    def lost(self) -> None:
        self._undisputed_at = None
        self._count = min(max(self._count * MORE, RIVALS_FIRST), RIVALS_MAX)

    def room_among(self, units: Sequence[ClaimUnit]) -> bool:
        """Whether so many units allow another try without looking again."""
        return len(units) >= ROOM * self.places

    def pause(self, took: float) -> float:
        """How long to wait before a look that shows what the others took; `took`: one request."""
        return min(took * CLEAR * self._count, PAUSE_MAX) * self.rng.random()

    def choose(
        self, units: list[ClaimUnit], wanted: int, shares: int = 1
    ) -> tuple[Chosen, list[ClaimUnit]]:
        """Units to try, up to so many shares of them, and those that are left."""
        first = 0
        if self.any and units:
            # A share in units: a slice that is cut in two is raced for twice.
            share = max(1, round(len(units) / self._count)) * shares
            # Each claim's worth of units is one place; places do not overlap.
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
    """How many of the first units have so many jobs."""
    width = jobs = 0
    while width < len(units) and jobs < wanted:
        jobs += units[width].left
        width += 1
    return width
