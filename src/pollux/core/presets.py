"""Strategies under the names of qo's page, in whole milliseconds.

For code written against that page; new code reads better with `Adaptive("100ms", "30s")`.
"""

from __future__ import annotations

from pollux.core.adaptive import Adaptive
from pollux.core.fixed import Fixed


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
        return Adaptive(
            min_interval_ms / 1000, max_interval_ms / 1000, multiplier=backoff_multiplier
        )

    @staticmethod
    def fixed(*, interval_ms: float = 500) -> Fixed:
        """Poll at one interval: predictable latency, higher cost."""
        return Fixed(interval_ms / 1000)
