"""Records that kill their relays: found out, and no other taken for the culprit.

When a relay dies, all the keys it held lapse, and the store counts that. Who of them did it? A key
that lapsed twice in a row is a suspect. Suspects wait, each for a time of its own, and then a relay
handles one of them at a time, after it gave all others back: if it dies again, that one did it.
"""

from __future__ import annotations

import random

from pollwise.outbox.progress import Progress
from pollwise.outbox.records import KeyClaim

#: A key whose leases ran out so often in a row is a suspect.
SUSPECT_AT = 2
#: How long suspects wait at the most, in seconds, each for a time of its own.
APART = 10.0
#: How many relays may die under a suspect that they handle alone before it is dead.
DEATHS_MAX = 3

#: Where those are counted in a record's progress; no handler can have this name.
_DEATHS = "\n"
_MARK = '"\\n":'


def is_suspect(claim: KeyClaim) -> bool:
    """Whether its first record is to be handled alone, or not at all."""
    first = claim.run[0]
    return claim.lapses >= SUSPECT_AT or (_MARK in first.progress and not first.fresh)


def deaths_of(claim: KeyClaim) -> tuple[Progress, int]:
    """A suspect's progress as it is now to be kept, and how many relays died under it alone."""
    first = claim.run[0]
    progress = Progress.read(first.progress, first.fresh)
    known = _DEATHS in progress
    deaths = progress.of(_DEATHS)
    if known and claim.lapses:
        deaths.attempts += 1
    return progress, deaths.attempts


def reason(deaths: int) -> str:
    """Why a suspect waits, or is dead."""
    return f"its relays died or lost their leases {deaths + SUSPECT_AT} times in a row"


def time_apart(rng: random.Random) -> float:
    return rng.random() * APART
