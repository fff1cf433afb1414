"""How a fleet runs, checked: what `Fleet` was given, in seconds and counts."""

from __future__ import annotations

from dataclasses import dataclass

from pollwise.core.strategies.base import Strategy

#: How long what is done about a change may take.
ACTION_TIMEOUT = 30.0
#: A task lets others run after so many polls, should its probes never wait for anything.
POLLS_IN_A_ROW = 16
#: How often those who wait for a place are counted.
COUNT_EVERY = 1.0


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
