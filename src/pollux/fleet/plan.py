"""How a fleet runs, checked: what `Fleet` was given, in seconds and counts."""

from __future__ import annotations

from dataclasses import dataclass

from pollux.core.strategy import Strategy


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What a run goes by."""

    name: str
    strategy: Strategy
    concurrency: int
    per_host: int | None
    budget: float | None
    grace: float
    node: str
    lease: float
