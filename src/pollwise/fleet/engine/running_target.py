"""RunningTarget: the running state of one target in a fleet. A fleet may have a million of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from pollwise.core.strategies.base import Pacer, Strategy
from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.freshness import FreshnessPacer

if TYPE_CHECKING:
    from pollwise.core.shares import Share
    from pollwise.fleet.targets import Probe, Reading, Target

#: Where a target is. It is in one place at a time, so it has one next run, always.
AGENDA: Final = 0  # on the agenda, or parked: paused, or held by another node
WAITING: Final = 1  # due, and its host, or a namesake that is still being polled, is busy
FLIGHT: Final = 2  # being polled
GONE: Final = 3  # removed; if it was being polled, what comes back is dropped


class RunningTarget:
    """One target and how it fares. Times are of the event loop's clock."""

    __slots__ = (
        "changed_at", "dead", "due", "error", "failed_at", "failures", "grid", "host", "interval",
        "pacer", "paused", "permanent", "place", "polled_at", "probe", "reading", "share",
        "strategy", "succeeded_at", "target", "token", "until",
    )  # fmt: skip

    def __init__(self, target: Target, probe: Probe, host: str | None, strategy: Strategy) -> None:
        self.target = target
        self.probe = probe
        self.host = host
        self.strategy = strategy
        #: None for a fixed interval, which needs no pacer.
        self.pacer: Pacer | None = None if isinstance(strategy, Fixed) else strategy.pacer()
        self.share: Share | None = None
        self.due = math.inf
        #: A point of the grid that a fixed interval keeps to.
        self.grid: float | None = None
        self.interval = strategy.min_interval
        self.failures = 0
        self.dead = False
        self.permanent = False
        self.paused = False
        self.place: int = GONE
        self.reading: Reading | None = None
        self.polled_at: float | None = None
        self.succeeded_at: float | None = None
        self.failed_at: float | None = None
        self.changed_at: float | None = None
        self.error: str | None = None
        #: Where nodes share: until when this one holds it, and by which token.
        self.until = math.inf
        self.token: int | None = None

    @property
    def fixed(self) -> bool:
        return self.pacer is None

    @property
    def learner(self) -> FreshnessPacer | None:
        """Its pacer, where that learns how often the reading changes."""
        return self.pacer if isinstance(self.pacer, FreshnessPacer) else None

    def __repr__(self) -> str:
        return f"<{self.target.name} due {self.due:g}>"
