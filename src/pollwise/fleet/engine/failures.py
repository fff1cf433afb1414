"""Condition: how a target fares, as arithmetic on its failures in a row.

    closed ──failed──▶ confirming ──third failure──▶ open ──its delay──▶ half-open (one probe)
      ▲                     │                          ▲                     │
      └──── any success ────┴──────────────────────────┼──────── failed, longer delay
                                                       │
                            fifth failure, or a permanent one ──▶ dead, rechecked every 30 min

A target that just failed is confirmed sooner, not later: two quick polls tell an outage from a
hiccup. Only then it is asked less often. A dead letter is not forgotten: it is asked every half
hour, and one success brings it back.

Nothing here has a clock or a state: how often a target failed in a row, and whether it is dead,
says all; the rest is when it is polled next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from pollwise.core.breaker import Breaker
from pollwise.core.retry import Retry, check_count
from pollwise.durations import seconds
from pollwise.errors import ConfigError
from pollwise.runtime.redact import without_hidden

#: A half-open delay is drawn from its last fifth: never later, so that a recovery is seen in time.
OPEN_JITTER = 0.2


class FailureDecision(NamedTuple):
    """What follows from a failure: the next poll after `delay` seconds, as a dead letter or not."""

    delay: float
    dead: bool


@dataclass(frozen=True, slots=True)
class FailureRules:
    """How failures are answered.

    confirmations: so many failures in a row are each followed by a quick poll, after `confirm`
        seconds at most.
    breaker: opens after its `failures` in a row, for longer each time.
    backoff: between the confirmations and the opening of the breaker, where there is room.
    dead_after: so many transient failures in a row make a dead letter.
    recheck: how often a dead letter is polled all the same, in seconds.
    """

    confirm: float = 5.0
    confirmations: int = 2
    breaker: Breaker = field(default_factory=lambda: Breaker(3, "30s", "5m"))
    backoff: Retry = field(
        default_factory=lambda: Retry.exponential("5s", "5m", attempts=None, jitter=0.2)
    )
    dead_after: int = 5
    recheck: float = 1800.0

    def __post_init__(self) -> None:
        seconds(self.confirm, "confirm", positive=True)
        seconds(self.recheck, "recheck", positive=True)
        check_count(self.dead_after, "dead_after", "so many failures in a row make a dead letter")
        if isinstance(self.confirmations, bool) or self.confirmations < 0:
            raise ConfigError(f"confirmations = {self.confirmations!r} must be 0 or more")

    def failed(
        self,
        failures: int,
        *,
        permanent: bool,
        dead: bool,
        soon: float,
        u: float,
        dead_after: int | None = None,
    ) -> FailureDecision:
        """What follows from the failure number `failures` in a row (1 is the first).

        dead: it was a dead letter already.
        soon: how long the target's own pace would wait at the least, in seconds.
        u: places the delay within its jitter, 0 ≤ u < 1.
        dead_after: the target's own, where it has one.
        """
        if dead or permanent or failures >= (dead_after or self.dead_after):
            return FailureDecision(self.recheck, True)
        if failures >= self.breaker.failures:
            whole = self.breaker.open_for(failures - self.breaker.failures + 1)
            return FailureDecision(whole * (1.0 - OPEN_JITTER * u), False)
        if failures <= self.confirmations:
            return FailureDecision(min(self.confirm, soon), False)
        return FailureDecision(self.backoff.delay(failures - self.confirmations, u), False)

    def state(self, failures: int, *, dead: bool, asked: bool) -> str:
        """How it fares, in a word; asked: its next poll is due or under way."""
        if dead:
            return "dead"
        if not failures:
            return "closed"
        if failures >= self.breaker.failures:
            return "half-open" if asked else "open"
        return "confirming" if failures <= self.confirmations else "backing off"


def is_permanent(error: BaseException) -> bool:
    """Whether asking again would not help: its author says so."""
    return getattr(error, "permanent", False) is True


def wait_of(error: BaseException) -> float:
    """How long the source asked not to be polled again, in seconds; mostly it asks nothing."""
    asked = getattr(error, "retry_after", None)
    return float(asked) if isinstance(asked, (int, float)) and 0 < asked < math.inf else 0.0


def text_of(error: BaseException) -> str:
    """An error for people: its class and what it says, bounded."""
    try:
        said = str(error)
    except Exception:
        said = "<an error that cannot be written>"
    name = type(error).__name__
    return f"{name}: {without_hidden(said)}"[:500] if said else name
