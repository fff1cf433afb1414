"""Strategies under the names that qo uses, in milliseconds.

For code written for qo; new code reads better with `Adaptive("100ms", "30s")`.
"""

from __future__ import annotations

import math

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import number_within
from pollwise.core.strategies.fixed import Fixed
from pollwise.durations import shown
from pollwise.errors import ConfigError


class PollingStrategy:
    """`PollingStrategy.adaptive(...)` and `PollingStrategy.fixed(...)`."""

    @staticmethod
    def adaptive(
        *,
        min_interval_ms: float = 100,
        max_interval_ms: float = 5000,
        backoff_multiplier: float = 2.0,
    ) -> Adaptive:
        """Back off from min to max while idle; reset when something is found."""
        low = _milliseconds(min_interval_ms, "min_interval_ms")
        high = _milliseconds(max_interval_ms, "max_interval_ms")
        if low > high:
            raise ConfigError(
                f"min_interval_ms = {shown(min_interval_ms)} is above "
                f"max_interval_ms = {shown(max_interval_ms)}; lower the first or raise the second"
            )
        why = "each empty poll multiplies the interval by it"
        growth = number_within(backoff_multiplier, "backoff_multiplier", 1.0, math.inf, why)
        return Adaptive(low, high, backoff_multiplier=growth)

    @staticmethod
    def fixed(*, interval_ms: float = 500) -> Fixed:
        """Poll at one interval: predictable latency, higher cost."""
        return Fixed(_milliseconds(interval_ms, "interval_ms"))


def _milliseconds(value: float, name: str) -> float:
    return number_within(value, name, 0.0, math.inf, "milliseconds between polls") / 1000
