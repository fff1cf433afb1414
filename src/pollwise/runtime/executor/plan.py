"""How a run of a worker goes: its options, checked."""

from __future__ import annotations

from dataclasses import dataclass

from pollwise.core.strategies.base import Strategy

#: How many seconds of work are claimed ahead, unless the prefetch is given, and how many jobs.
AHEAD_SECONDS = 0.1
AHEAD_MAX = 256


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run goes by; every value checked and in seconds."""

    name: str
    polling: Strategy
    concurrency: int
    prefetch: int | None
    lease: float
    grace: float
    timeout: float | None
    hints: bool
    long_interval: float
    seed: int | None

    def ahead(self, took: float | None) -> int:
        """How many jobs to claim ahead of a free handler, when handlers take `took` seconds.

        Short jobs by the hundred, so that a claim is worth its round trip; long ones not at all:
        a job that waits here for minutes could run elsewhere.
        """
        if self.prefetch is not None:
            return self.prefetch
        if took is None:
            return 0
        return int(min(self.concurrency * AHEAD_SECONDS / max(took, 1e-6), AHEAD_MAX))

    def full_at(self, limit: int) -> int:
        """How many jobs make a claim of up to `limit` count as full.

        What is claimed ahead varies from poll to poll, so where nobody fixed it, a strategy that
        goes by how full a batch was is told of twice the concurrency at the most.
        """
        return limit if self.prefetch is not None else min(limit, 2 * self.concurrency)
