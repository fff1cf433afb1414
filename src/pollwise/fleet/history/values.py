"""The values of a target's history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PeriodState = Literal["up", "down", "maintenance", "unknown"]


@dataclass(frozen=True, slots=True)
class Period:
    """A time in which the state of a target did not change, in seconds since 1970.

    reason: why it was down.
    """

    target: str
    state: PeriodState
    started_at: float
    ended_at: float
    reason: str = ""
