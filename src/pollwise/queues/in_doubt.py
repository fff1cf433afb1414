"""Settlements whose answer was lost: they may have been carried out, and may be asked for again.

The second time, a store refuses what it carried out the first time: the token is used up. That is
no lost lease, so a store asks here about what it refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pollwise.errors import StoreUnavailable
from pollwise.runtime.jobs import Claim, Settlement

#: So many claims whose settlement is in doubt are remembered, the newest.
IN_DOUBT_MAX = 100_000


class InDoubt:
    """The claims whose settlement is in doubt."""

    def __init__(self) -> None:
        self._claims: dict[tuple[str, int], None] = {}

    def __contains__(self, claim: Claim) -> bool:
        return (claim.job.id, claim.token) in self._claims

    def note(self, settlements: Iterable[Settlement]) -> None:
        self._claims.update(dict.fromkeys(map(_held, settlements)))
        while len(self._claims) > IN_DOUBT_MAX:
            del self._claims[next(iter(self._claims))]

    @contextmanager
    def unless_answered(self, settlements: Iterable[Settlement]) -> Iterator[None]:
        """Note them when the call that is made meanwhile fails without an answer."""
        try:
            yield
        except StoreUnavailable:
            self.note(settlements)
            raise

    def forget(self, settlements: Iterable[Settlement]) -> None:
        """Their answer came."""
        if self._claims:
            for held in map(_held, settlements):
                self._claims.pop(held, None)


def _held(settlement: Settlement) -> tuple[str, int]:
    return settlement.claim.job.id, settlement.claim.token
