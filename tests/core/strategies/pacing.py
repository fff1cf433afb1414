"""Shared by the tests of strategies: how to feed a pacer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pollwise.core.outcome import Outcome, Pause
from pollwise.core.strategies.base import Pacer, Strategy

Turn = tuple[str, Any, Any]


def saw(found: int, capacity: int | None = 10, at: float = 0.0, *, failed: bool = False) -> Outcome:
    """The outcome of a poll: `found` items of 10, at time 0 by default."""
    return Outcome(at, found, capacity, failed=failed)


def feed(pacer: Pacer, founds: Iterable[int], capacity: int | None = 10) -> list[Pause]:
    """The pauses after polls with these numbers of items, all at time 0, so that nothing decays."""
    return [pacer.after(saw(found, capacity)) for found in founds]


def delays(strategy: Strategy, founds: Iterable[int], capacity: int | None = 10) -> list[float]:
    """The delays of a new pacer after polls with these numbers of items."""
    return [pause.delay for pause in feed(strategy.pacer(), founds, capacity)]


def turns(pause: Pause) -> list[Turn]:
    """The changes, as plain tuples."""
    return [(change.what, change.before, change.after) for change in pause.changes]
