"""What the tests of strategies share: how a pacer is fed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pollwise.core.outcome import Outcome, Pause
from pollwise.core.strategies.base import Pacer, Strategy

Turn = tuple[str, Any, Any]


def saw(found: int, capacity: int | None = 10, at: float = 0.0, *, failed: bool = False) -> Outcome:
    """What a poll saw: `found` items of 10, at time 0, unless told otherwise."""
    return Outcome(at, found, capacity, failed=failed)


def feed(pacer: Pacer, founds: Iterable[int], capacity: int | None = 10) -> list[Pause]:
    """The pauses after polls that found so many, all at time 0: none of them decays."""
    return [pacer.after(saw(found, capacity)) for found in founds]


def delays(strategy: Strategy, founds: Iterable[int], capacity: int | None = 10) -> list[float]:
    """The delays a fresh pacer answers after polls that found so many."""
    return [pause.delay for pause in feed(strategy.pacer(), founds, capacity)]


def turns(pause: Pause) -> list[Turn]:
    """What changed, as plain tuples."""
    return [(change.what, change.before, change.after) for change in pause.changes]
