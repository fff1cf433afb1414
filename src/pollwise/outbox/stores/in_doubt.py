"""Ends of claims whose answer was lost: they may have been carried out, and may be asked for again.

The second time, a store refuses what it carried out the first time: the token is used up. That is
no lost lease, so a store asks here about what it refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from pollwise.errors import StoreUnavailable
from pollwise.outbox.records import KeyClaim, KeySettlement

#: So many claims whose end is in doubt are remembered, the newest.
IN_DOUBT_MAX = 100_000


class EndsInDoubt:
    """The claims whose end is in doubt."""

    def __init__(self) -> None:
        self._claims: dict[tuple[str, int], None] = {}

    def __contains__(self, claim: KeyClaim) -> bool:
        return (claim.name, claim.token) in self._claims

    def note(self, ends: Iterable[KeySettlement]) -> None:
        self._claims.update(dict.fromkeys((e.claim.name, e.claim.token) for e in ends))
        while len(self._claims) > IN_DOUBT_MAX:
            del self._claims[next(iter(self._claims))]

    @contextmanager
    def unless_answered(self, ends: Iterable[KeySettlement]) -> Iterator[None]:
        """Note them when the call that is made meanwhile fails without an answer."""
        try:
            yield
        except StoreUnavailable:
            self.note(ends)
            raise

    def forget(self, ends: Iterable[KeySettlement]) -> None:
        """Their answer came."""
        if self._claims:
            for end in ends:
                self._claims.pop((end.claim.name, end.claim.token), None)


def was_settled(end: KeySettlement, tokens: Mapping[str, int], live: Collection[str]) -> bool:
    """Did a call whose answer was lost end this claim, which was refused the second time?

    tokens: of the keys at work, by the names of their claims. live: the ids of records that are
    there, neither done nor dead.

    An end leaves the token one higher, or no row at all; a claim by another leaves a token that is
    the time it was made. Then only the records tell.
    """
    claim = end.claim
    if tokens.get(claim.name) == claim.token + 1:
        return True
    if any(held.record.id in live for held in claim.records[: end.done]):
        return False
    if end.rest == "dead":
        return claim.records[end.done].record.id not in live
    # What is to be retried keeps its row; all else that can be seen of it happened.
    return end.rest == "give_back"
