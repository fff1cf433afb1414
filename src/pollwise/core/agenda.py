"""Agenda: which key is due next.

Due times change far more often than keys come due: each reading, failure or hint moves one. A plain
heap keeps the old node of a moved key, so it grows with the number of changes. And a stale node
that is not skipped polls a target twice. Here each key knows its one valid node; other nodes in the
heap are stale, and removed once they are more than half. So memory is bounded by the number of
keys. (A heap that moves nodes in place needs no cleaning, but is not in the standard library, and
costs two to three times as much.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from typing import Any, Generic, NamedTuple, TypeVar

from pollwise.errors import ConfigError

K = TypeVar("K", bound=Hashable)

#: Stale nodes are swept only if there are more than this many.
STALE_MIN = 64


class AgendaEntry(NamedTuple, Generic[K]):
    """One key of an agenda: when it is due, and its priority among those due together."""

    key: K
    due: float
    priority: float


class Agenda(Generic[K]):
    """Keys in the order of their due times; of keys due together, the higher priority goes first.

    With equal priorities, the key that was added first goes first. Moving a key keeps its place
    among ties; removing and adding it again does not. A key due at infinity is parked: it stays
    on the agenda and never comes due. Every change costs O(log n), amortised: a sweep now and
    then costs O(n).

    ties: returns, for a key, a value that decides between equal priorities; the smaller value goes
        first. It is called again each time the key is moved.

    >>> agenda = Agenda[str]()
    >>> agenda.upsert("b", due=5.0)
    >>> agenda.upsert("a", due=9.0)
    >>> agenda.upsert("a", due=5.0, priority=1.0)
    >>> agenda.pop_due(now=5.0)
    AgendaEntry(key='a', due=5.0, priority=1.0)
    """

    __slots__ = ("_arrivals", "_heap", "_nodes", "_ties")

    def __init__(self, ties: Callable[[K], Any] | None = None) -> None:
        # (due, -priority, tie, arrival, key): arrivals are unique, so keys are never compared.
        self._heap: list[tuple[float, float, Any, int, K]] = []
        self._nodes: dict[K, tuple[float, float, Any, int, K]] = {}
        self._arrivals = 0
        self._ties = ties

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, key: object) -> bool:
        return key in self._nodes

    def upsert(self, key: K, due: float, priority: float = 0.0) -> None:
        """Put `key` on the agenda, or move it, to be `due` with `priority`."""
        if math.isnan(due) or math.isnan(priority):
            raise ConfigError(
                f"due = {due!r} and priority = {priority!r} of {key!r} must be numbers: "
                "NaN cannot be ordered; park a key with due = inf"
            )
        node = self._nodes.get(key)
        if node is None:
            arrival = self._arrivals
            self._arrivals += 1
        else:
            _, _, _, arrival, key = node
        tie = None if self._ties is None else self._ties(key)
        self._nodes[key] = node = (due, -priority, tie, arrival, key)
        heappush(self._heap, node)
        self._sweep()

    def remove(self, key: K) -> bool:
        """Remove `key`; return True if it was on the agenda."""
        if self._nodes.pop(key, None) is None:
            return False
        self._sweep()
        return True

    def due(self, key: K) -> float | None:
        """Return when `key` is due; None if it is not on the agenda."""
        node = self._nodes.get(key)
        return None if node is None else node[0]

    def first_due(self) -> float:
        """Return when the first key is due; infinity if none ever is."""
        node = self._first()
        return math.inf if node is None else node[0]

    def count_due(self, now: float, limit: int) -> int:
        """Count the keys due at `now`, up to `limit`, without visiting many more."""
        heap, nodes = self._heap, self._nodes
        count, places = 0, [0]
        while places and count < limit:
            place = places.pop()
            if place < len(heap) and heap[place][0] <= now:  # if not, nothing below it is due
                node = heap[place]
                count += nodes.get(node[4]) is node
                places += (2 * place + 1, 2 * place + 2)
        return count

    def peek(self) -> AgendaEntry[K] | None:
        """Return the next entry without removing it; None if the agenda is empty."""
        node = self._first()
        return None if node is None else AgendaEntry(node[4], node[0], -node[1])

    def pop(self) -> AgendaEntry[K] | None:
        """Remove and return the next entry, due or not; None if the agenda is empty."""
        return self.pop_due(math.inf)

    def pop_due(self, now: float) -> AgendaEntry[K] | None:
        """Remove and return the next entry if it is due at `now`; else None."""
        node = self._first()
        if node is None or node[0] > now:
            return None
        due, rank, _, _, key = heappop(self._heap)
        del self._nodes[key]
        self._sweep()
        return AgendaEntry(key, due, -rank)

    def _first(self) -> tuple[float, float, Any, int, K] | None:
        """The first valid node; stale ones before it are dropped."""
        heap, nodes = self._heap, self._nodes
        while heap:
            node = heap[0]
            if nodes.get(node[4]) is node:
                return node
            heappop(heap)
        return None

    def _sweep(self) -> None:
        """Remove stale nodes once they are more than half."""
        if len(self._heap) > 2 * len(self._nodes) + STALE_MIN:
            self._heap = list(self._nodes.values())
            heapify(self._heap)
