"""How a fleet runs, and how the targets of its groups are paced."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.freshness import Freshness
from pollwise.durations import Duration, seconds, shown
from pollwise.errors import ConfigError
from pollwise.fleet.engine.budget import GOALS
from pollwise.fleet.engine.failures import FailureRules
from pollwise.fleet.locations.values import LOCATION, checked_location
from pollwise.fleet.targets import Target

#: The upper limit of `concurrency` and `per_host`.
MAX_CONCURRENCY = 10_000


@dataclass(frozen=True, kw_only=True)
class FleetRunOptions:
    """How a fleet runs.

    strategy: paces the targets that have no interval of their own.
    concurrency: maximum number of polls at a time.
    budget: polls a second over all targets and nodes, shared out by how often their readings
        change; None polls each target at its own pace. It is a limit for every poll, also after a
        restart: targets that are due wait for their turn, the longest due first.
    budget_burst: polls that may start at once after a quiet time, in addition to the budget; None
        for one second's worth, at least 1.
    goal: what a budget is shared out for. "changes": that changes are seen as early as possible,
        all of them together, so that targets that change often get most polls. "age": that every
        target is polled equally often (by its weight), so that a rare change is seen as early as
        with fixed polling.
    per_host: maximum number of polls at a time of targets with the same host; None for no limit.
    detect_within: time within which an outage, and its end, is noticed, for targets without their
        own `detect_within`; None for no such limit.
    rules: what happens after failed polls.
    grace: how long a stop waits for polls in progress.
    location: where this node is; targets with `confirm_from` are confirmed from several locations.
    lease: with several nodes on one store, the time after which other nodes take over the targets
        of a killed one.
    signals: stop on SIGTERM, SIGINT and SIGHUP (in the main thread), unless the program handles
        them itself; a second one ends the grace. What then does not end, such as a handler that
        swallows its cancellation, ends with the process 30 s later.
    seed: makes jitter repeatable.
    """

    strategy: Strategy = field(default_factory=Freshness)
    concurrency: int = 64
    budget: float | None = None
    budget_burst: float | None = None
    goal: str = "changes"
    per_host: int | None = 4
    detect_within: Duration | None = None
    rules: FailureRules = field(default_factory=FailureRules)
    grace: Duration = "10s"
    location: str = LOCATION
    lease: Duration = "30s"
    signals: bool = True
    seed: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.strategy, Strategy):
            raise ConfigError(
                f"strategy = {shown(self.strategy)} is not a strategy; give e.g. Freshness('10s')"
            )
        if self.strategy.longest_hold:
            raise ConfigError(
                f"{self.strategy!r} holds its polls, but probes cannot; use another strategy"
            )
        _check_count(self.concurrency, "concurrency")
        if self.per_host is not None:
            _check_count(self.per_host, "per_host")
        budget, burst = self.budget, self.budget_burst
        if budget is not None and not (_is_finite(budget) and budget > 0):
            raise ConfigError(
                f"budget = {shown(budget)} must be a finite number of polls a second above 0, "
                "or None for no budget"
            )
        if burst is not None and not (_is_finite(burst) and burst >= 1):
            raise ConfigError(
                f"budget_burst = {shown(burst)} must be a finite number of polls, 1 or more, "
                "or None for one second's worth of the budget"
            )
        if burst is not None and budget is None:
            raise ConfigError(
                f"budget_burst = {shown(burst)} has no effect without a budget; give a budget too"
            )
        if self.goal not in GOALS:
            raise ConfigError(f"goal = {shown(self.goal)} must be one of {', '.join(GOALS)}")
        if self.goal != "changes" and budget is None:
            raise ConfigError(
                f"goal = {shown(self.goal)} has no effect without a budget; give a budget too"
            )
        if self.detect_within is not None:
            seconds(self.detect_within, "detect_within", positive=True)
        seconds(self.grace, "grace")
        seconds(self.lease, "lease", positive=True)
        checked_location(self.location)


@dataclass(frozen=True, slots=True)
class GroupPace:
    """How targets without an interval of their own are paced.

    strategy: their strategy, within the bounds of each target.
    enabled: when off, each target is polled exactly at its base interval.
    """

    strategy: Strategy = field(default_factory=Freshness)
    enabled: bool = True

    def of(self, target: Target, detect_within: float | None = None) -> Strategy:
        """The strategy of this target. detect_within: the fleet's."""
        strategy = target.strategy(self.strategy, detect_within)
        if self.enabled or isinstance(strategy, Fixed):
            return strategy
        if isinstance(strategy, Freshness):
            return Fixed(strategy.base_interval)
        return Fixed(min(strategy.pacer().first().delay, target.within(detect_within)))


def _is_finite(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)  # type: ignore[arg-type]


def _check_count(value: object, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_CONCURRENCY:
        raise ConfigError(f"{name} = {value!r} must be a whole number from 1 to {MAX_CONCURRENCY}")
