"""A pace as it is saved: what a pacer learned, and when, for another process.

Clocks of other processes begin elsewhere. So the time of a pacer goes on from where it was, by the
time that has passed on the wall clock: batches that came every hour are expected at the same minute
as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard, cast

from pollwise.core.strategies.base import Pacer, Strategy, restored
from pollwise.core.strategies.dumps import compact

#: How old a saved pace may be, in seconds; an older one is not used.
PACE_KEPT = 7 * 86400.0


class SavedPace(NamedTuple):
    """The pacer for a saved pace.

    age: for how long nobody polled, in seconds; 0 if that is not known.
    problem: why it is a fresh pacer; "" if it goes on from the saved pace.
    """

    pacer: Pacer
    age: float
    problem: str


def pace_saved(pacer: Pacer, now: float, epoch: float) -> dict[str, Any]:
    """Return the state of a pacer, as JSON values.

    now, epoch: the same moment on the clock of the outcomes, and in seconds since 1970.
    """
    return {"saved_at": epoch, "at": now + pacer.ahead, "pacer": compact(pacer.dump())}


def pace_restored(strategy: Strategy, state: object, now: float, epoch: float) -> SavedPace:
    """A pacer that goes on from what `pace_saved` returned, after a time in which nobody polled.

    Never raises: a state that does not fit is not used.
    """
    times = [state.get(key) for key in ("saved_at", "at")] if isinstance(state, Mapping) else []
    if not isinstance(state, Mapping) or not _are_times(times):
        return SavedPace(strategy.pacer(), 0.0, "it is not a saved pace")
    saved_at, at = times
    age = max(epoch - saved_at, 0.0)  # 0 if the clock was set back
    if age > PACE_KEPT:
        return SavedPace(strategy.pacer(), age, f"it is {age / 86400:.0f} days old")
    pacer, problem = restored(strategy, state.get("pacer"), at + age - now)
    if not problem:
        pacer.resume(now)
    return SavedPace(pacer, age, problem)


def _are_times(values: list[object]) -> TypeGuard[list[float]]:
    """True for seconds since 1970, or of a clock."""
    return all(type(v) in (int, float) and -1e12 <= cast(float, v) <= 1e12 for v in values)
