"""Agenda: who is next.

Due times change far more often than they come due: each reading, failure or hint moves one. The
usual heap leaves the old entry behind and skips it later, so its memory grows with the number of
changes, and a stale entry that is not skipped polls a target twice. This heap knows where each
key sits and moves it: one entry a key, always, and every change in O(log n).
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from pollux.errors import ConfigError

K = TypeVar("K", bound=Hashable)


class Entry(NamedTuple, Generic[K]):
    """One key of an agenda: when it is due, and its priority among those due together."""

    key: K
    due: float
    priority: float


class Agenda(Generic[K]):
    """Keys in the order of their due times; together due, the higher priority goes first.

    Where priorities are equal too, the key that has been here longest goes first: moving a key
    keeps its place among ties, removing it and putting it back does not. A key due at infinity
    is parked: it stays known and never comes due.

    >>> agenda = Agenda[str]()
    >>> agenda.upsert("b", due=5.0)
    >>> agenda.upsert("a", due=9.0)
    >>> agenda.upsert("a", due=5.0, priority=1.0)
    >>> agenda.pop_due(now=5.0)
    Entry(key='a', due=5.0, priority=1.0)
    """

    __slots__ = ("_arrivals", "_heap", "_places")

    def __init__(self) -> None:
        # (due, -priority, arrival, key): arrivals are unique, so keys are never compared.
        self._heap: list[tuple[float, float, int, K]] = []
        self._places: dict[K, int] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._heap)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def upsert(self, key: K, due: float, priority: float = 0.0) -> None:
        """Put `key` on the agenda, or move it, to be `due` with `priority`."""
        if math.isnan(due) or math.isnan(priority):
            raise ConfigError(
                f"due = {due!r} and priority = {priority!r} of {key!r} must be numbers: "
                "NaN has no place in an order; park a key with due = inf"
            )
        place = self._places.get(key)
        if place is None:
            place = len(self._heap)
            arrival = self._arrivals
            node = (due, -priority, arrival, key)
            self._heap.append(node)
            self._arrivals += 1
        else:
            _, _, arrival, key = self._heap[place]
            node = (due, -priority, arrival, key)
        self._settle(node, place)

    def remove(self, key: K) -> bool:
        """Take `key` off the agenda; tell whether it was on it."""
        place = self._places.pop(key, None)
        if place is None:
            return False
        last = self._heap.pop()
        if place < len(self._heap):
            self._settle(last, place)
        return True

    def due(self, key: K) -> float | None:
        """Return when `key` is due; None if it is not on the agenda."""
        place = self._places.get(key)
        return None if place is None else self._heap[place][0]

    def peek(self) -> Entry[K] | None:
        """Return who is next, and leave it there; None if the agenda is empty."""
        if not self._heap:
            return None
        due, rank, _, key = self._heap[0]
        return Entry(key, due, -rank)

    def pop(self) -> Entry[K] | None:
        """Take who is next, due or not; None if the agenda is empty."""
        entry = self.peek()
        if entry is not None:
            self.remove(entry.key)
        return entry

    def pop_due(self, now: float) -> Entry[K] | None:
        """Take who is next, if it is due at `now`; else None."""
        if not self._heap or self._heap[0][0] > now:
            return None
        return self.pop()

    def _settle(self, node: tuple[float, float, int, K], place: int) -> None:
        """Put `node` at `place`, then up or down to where the heap is in order."""
        place = self._risen(node, place)
        place = self._sunk(node, place)
        self._put(node, place)

    def _risen(self, node: tuple[float, float, int, K], place: int) -> int:
        """Move parents that come after `node` down; return the place left free."""
        while place > 0:
            parent = (place - 1) // 2
            if self._heap[parent] < node:
                break
            self._put(self._heap[parent], place)
            place = parent
        return place

    def _sunk(self, node: tuple[float, float, int, K], place: int) -> int:
        """Move children that come before `node` up; return the place left free."""
        size = len(self._heap)
        while (child := 2 * place + 1) < size:
            sibling = child + 1
            if sibling < size and self._heap[sibling] < self._heap[child]:
                child = sibling
            if node < self._heap[child]:
                break
            self._put(self._heap[child], place)
            place = child
        return place

    def _put(self, node: tuple[float, float, int, K], place: int) -> None:
        self._heap[place] = node
        self._places[node[3]] = place
