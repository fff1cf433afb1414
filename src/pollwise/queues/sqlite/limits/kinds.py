"""The kinds that a claim looks at: a bounded number, however many there are."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

#: The maximum number of kinds that a claim looks up one by one, because SQLite allows 500 selects
#: in a union; with more kinds, it first finds those whose first jobs come first.
MOST_KINDS = 400
#: The maximum number of kinds that a claim of any kind looks at; the next goes on after them.
KINDS_EXAMINED = 2_000


class ReadyKinds:
    """The kinds of one queue that have ready jobs.

    rows: runs a named statement of the store. arm: the SQL that finds the best jobs of one kind.
    """

    def __init__(self, rows: Callable[..., list[tuple[Any, ...]]], arm: str) -> None:
        self._rows = rows
        self._arm = arm
        self._after = self._next = ""

    def go_on(self) -> None:
        """Look from now on at the kinds after those that were looked at."""
        self._after = self._next

    def names(self) -> list[str]:
        """Kinds that have ready jobs: all, or KINDS_EXAMINED of very many."""
        after, most = self._after, KINDS_EXAMINED
        kinds = [kind for (kind,) in self._rows("ready_kinds", after=after, most=most)]
        if after and len(kinds) < most:
            first = self._rows("ready_kinds", after="", most=most - len(kinds))
            kinds += [kind for (kind,) in first if kind <= after]
        self._next = kinds[-1] if len(kinds) == most else ""
        return kinds

    def arms(self, kinds: Sequence[str]) -> tuple[str, dict[str, Any]]:
        """The best jobs of kinds, as SQL and its values."""
        if len(kinds) > MOST_KINDS:
            best = self._rows("best_kinds", kinds=json.dumps(kinds), most=MOST_KINDS)
            kinds = [kind for (kind,) in best] or kinds[:1]
        arms = " UNION ALL ".join(self._arm.replace("{n}", str(n)) for n in range(len(kinds)))
        return arms, {f"kind_{n}": kind for n, kind in enumerate(kinds)}

    @staticmethod
    def are_many(kinds: Sequence[str]) -> bool:
        """True if there may be more jobs of these kinds than `arms` finds."""
        return len(kinds) > MOST_KINDS
