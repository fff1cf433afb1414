"""Settlements whose answer was lost: the store may have carried them out, or not.

When such a settlement is sent again, a store that carried it out the first time refuses it, because
the token is used up. That is not a lost lease, so a store looks here before it reports one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from pollwise.errors import StoreUnavailable

S = TypeVar("S")

#: The number of settlements remembered; the oldest are forgotten first.
IN_DOUBT_MAX = 100_000


class InDoubt(Generic[S]):
    """The settlements in doubt.

    claim_of: returns the id and the token of a settlement's claim.
    """

    def __init__(self, claim_of: Callable[[S], tuple[str, int]]) -> None:
        self._claim_of = claim_of
        self._claims: dict[tuple[str, int], None] = {}

    def __contains__(self, settlement: S) -> bool:
        return self._claim_of(settlement) in self._claims

    def note(self, settlements: Iterable[S]) -> None:
        self._claims.update(dict.fromkeys(map(self._claim_of, settlements)))
        while len(self._claims) > IN_DOUBT_MAX:
            del self._claims[next(iter(self._claims))]

    @contextmanager
    def unless_answered(self, settlements: Iterable[S]) -> Iterator[None]:
        """Note the settlements if the call inside the `with` block fails without an answer."""
        try:
            yield
        except StoreUnavailable:
            self.note(settlements)
            raise

    def answered(self, settlements: Iterable[S]) -> None:
        """Forget the settlements: their answer arrived."""
        if self._claims:
            for claim in map(self._claim_of, settlements):
                self._claims.pop(claim, None)
