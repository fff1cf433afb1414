"""Paces: by which strategy the targets of a group are polled, and whether it may adapt at all."""

from __future__ import annotations

from dataclasses import dataclass, field

from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.freshness import Freshness
from pollwise.fleet.targets import Target


@dataclass(frozen=True, slots=True)
class Pace:
    """How targets are paced that have no interval of their own.

    strategy: theirs, within the bounds that a target itself gives.
    enabled: off, each is polled at its base interval, exactly.
    """

    strategy: Strategy = field(default_factory=Freshness)
    enabled: bool = True

    def of(self, target: Target) -> Strategy:
        """What paces this target."""
        strategy = target.strategy(self.strategy)
        if self.enabled or isinstance(strategy, Fixed):
            return strategy
        return Fixed(base_of(strategy))


def base_of(strategy: Strategy) -> float:
    """The interval of a target of which nothing is known yet."""
    return (
        strategy.base_interval
        if isinstance(strategy, Freshness)
        else strategy.pacer().first().delay
    )
