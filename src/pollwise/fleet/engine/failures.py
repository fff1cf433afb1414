"""The state of a target, computed from its failures in a row.

    closed ──failed──▶ confirming ──third failure──▶ open ──its delay──▶ half-open (one probe)
      ▲                     │                          ▲                     │
      └──── any success ────┴──────────────────────────┼──────── failed, longer delay
                                                       │
                            fifth failure, or a permanent one ──▶ dead, rechecked every 30 min

A target that just failed is polled sooner, not later: two quick polls tell an outage from a hiccup.
Only then is it polled less often. A dead target is still polled every half hour, and one success
brings it back.

Nothing here has a clock or keeps state: the number of failures in a row and whether the target is
dead decide everything.
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

#: The delay of an open breaker is drawn from its last fifth: never later, so that a recovery is
#: noticed in time.
OPEN_JITTER = 0.2


class FailureDecision(NamedTuple):
    """What follows a failure: the next poll after `delay` seconds, as a dead target or not."""

    delay: float
    dead: bool


@dataclass(frozen=True, slots=True)
class FailureRules:
    """What happens after failed polls.

    confirmations: the first failures in a row, up to this number, are each followed by a quick
        poll, after at most `confirm` seconds.
    breaker: opens after its `failures` in a row, for longer each time.
    backoff: used between the confirmations and the opening of the breaker, if there is room.
    dead_after: number of transient failures in a row that make a target dead.
    recheck: seconds between two polls of a dead target.
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
        check_count(self.dead_after, "dead_after", "failures in a row that make a target dead")
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
        """The decision after failure number `failures` in a row (1 is the first).

        dead: the target was dead already.
        soon: minimum interval of the target, in seconds.
        u: places the delay within its jitter, 0 ≤ u < 1.
        dead_after: the target's own number, if it has one.
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
        """The state of a target; asked: its next poll is due or in progress."""
        if dead:
            return "dead"
        if not failures:
            return "closed"
        if failures >= self.breaker.failures:
            return "half-open" if asked else "open"
        return "confirming" if failures <= self.confirmations else "backing off"


def is_permanent(error: BaseException) -> bool:
    """True if the error says that polling again would not help."""
    return getattr(error, "permanent", False) is True


def wait_of(error: BaseException) -> float:
    """Seconds that the source asked to wait before the next poll; 0 if it did not ask."""
    asked = getattr(error, "retry_after", None)
    return float(asked) if isinstance(asked, (int, float)) and 0 < asked < math.inf else 0.0


def text_of(error: BaseException) -> str:
    """An error for people: its class and its message, at most 500 characters."""
    try:
        said = str(error)
    except Exception:
        said = "<an error whose message cannot be printed>"
    name = type(error).__name__
    return f"{name}: {without_hidden(said)}"[:500] if said else name
