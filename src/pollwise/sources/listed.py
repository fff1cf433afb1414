"""Sources that can only list all items: digests of delivered items are remembered."""

from __future__ import annotations

import base64
import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from pollwise.sources.base import Found, Source, State

T = TypeVar("T")

#: How many items a source remembers; twelve characters each in its cursor.
REMEMBERED = 10_000


def digest_of(*parts: Any) -> str:
    """Twelve characters for an item; among 10,000, two are alike once in 10^14 times."""
    written = json.dumps(parts, separators=(",", ":"), sort_keys=True, default=str)
    digest = hashlib.blake2b(written.encode("utf-8", "surrogatepass"), digest_size=9).digest()
    return base64.urlsafe_b64encode(digest).decode()


class ListedSource(Source[T], Generic[T]):
    """Base of the sources that list everything each time and deliver what is new.

    keeps_gone: remember items that are no longer listed, up to the maximum: they may come back.
    """

    keeps_gone: ClassVar[bool] = False

    async def _find(self, state: State, hold: float) -> Found[T]:
        listed = await self._list(state)
        if listed is None:
            return Found((), state)
        seen: dict[str, None] = dict.fromkeys(state.get("seen", ()))
        new: list[tuple[str, T]] = []
        here: dict[str, None] = {}
        more = False
        for digest, item in listed:
            if digest in here:
                continue
            if digest in seen:
                here[digest] = None
            elif len(new) < self.limit:
                here[digest] = None
                new.append((digest, item))
            else:
                more = True
        if self.keeps_gone:
            kept = remembered(here, seen) if new else list(seen)
        else:
            kept = [*(each for each in seen if each in here), *(digest for digest, _ in new)]
        return Found([item for _, item in new], {**self._rest(), "seen": kept}, more)

    @abstractmethod
    async def _list(self, state: State) -> Sequence[tuple[str, T]] | None:
        """All items in the order of delivery, each with its digest; None if nothing changed."""

    def _rest(self) -> State:
        """More values for the cursor."""
        return {}


def remembered(first: Iterable[str], then: Iterable[str], most: int = REMEMBERED) -> list[str]:
    """The digests without repetition, at most `most`; those of `first` come first."""
    return list(dict.fromkeys([*first, *then]))[:most]
