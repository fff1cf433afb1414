"""The state of a target, computed from its failures in a row.

    closed ──failed──▶ confirming ──third failure──▶ open ──its delay──▶ half-open (one probe)
      ▲                     │                          ▲                     │
      └──── any success ────┴──────────────────────────┼──────── failed, longer delay
                                                       │
             tenth failure, or a confirmed permanent one ──▶ dead, rechecked every 10 min

A target that just failed is polled sooner, not later: two quick polls tell an outage from a hiccup,
also if the error looks permanent (a page that is missing during a deployment). Only then is it
polled less often. A dead target is still polled every ten minutes, and one success brings it back.
With `detect_within`, no delay is longer than that allows.

A target with an exact interval is polled at it until it is dead: after the time that others take
for their tenth failure.

Nothing here has a clock or keeps state: the number of failures in a row and whether the target is
dead decide everything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from pollwise.core.breaker import Breaker
from pollwise.core.retry import Retry, check_count
from pollwise.durations import seconds
from pollwise.errors import ConfigError, ProbeError
from pollwise.runtime.redact import without_hidden

#: The delay of an open breaker is drawn from its last fifth: never later, so that a recovery is
#: noticed in time.
OPEN_JITTER = 0.2


class FailureDecision(NamedTuple):
    """What follows a failure: the next poll after `delay` seconds, as a dead target or not."""

    delay: float
    dead: bool


class Unconfirmed(NamedTuple):
    """A failure that does not count: other locations did not see it, or have not answered yet.

    delay: seconds until the next poll. well: True if they saw it succeed.
    """

    delay: float
    well: bool = False


@dataclass(frozen=True, slots=True)
class FailureRules:
    """What happens after failed polls.

    confirmations: the first failures in a row, up to this number, are each followed by a quick
        poll, after at most `confirm` seconds.
    breaker: opens after its `failures` in a row, for longer each time.
    backoff: used between the confirmations and the opening of the breaker, if there is room.
    dead_after: number of failures in a row that make a target dead; the tenth comes about twenty
        minutes after the first. A permanent failure does so once it is confirmed.
    recheck: seconds between two polls of a dead target.
    max_retry_after: maximum of the seconds that a source may ask to wait (`Retry-After`); if the
        target's max_interval is longer, that is the maximum.
    """

    confirm: float = 5.0
    confirmations: int = 2
    breaker: Breaker = field(default_factory=lambda: Breaker(3, "30s", "5m"))
    backoff: Retry = field(
        default_factory=lambda: Retry.exponential("5s", "5m", attempts=None, jitter=0.2)
    )
    dead_after: int = 10
    recheck: float = 600.0
    max_retry_after: float = 300.0

    def __post_init__(self) -> None:
        seconds(self.confirm, "confirm", positive=True)
        seconds(self.recheck, "recheck", positive=True)
        seconds(self.max_retry_after, "max_retry_after")
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
        within: float = math.inf,
        exact_for: float | None = None,
    ) -> FailureDecision:
        """The decision after failure number `failures` in a row (1 is the first).

        dead: the target was dead already.
        soon: minimum interval of the target, in seconds.
        u: places the delay within its jitter, 0 ≤ u < 1.
        dead_after: the target's own number, if it has one.
        within: maximum delay of the target, in seconds.
        exact_for: how long a target with an exact interval has failed, in seconds; None for others.
            Its polls go on at that interval, so not their number makes it dead, but the time that
            others take for that number.
        """
        confirmed, most = failures > self.confirmations, dead_after or self.dead_after
        if exact_for is not None:
            gone = confirmed and exact_for >= _time_until(self, most)
        else:
            gone = (permanent and confirmed) or failures >= most
        if dead or gone:
            return FailureDecision(min(self.recheck, within), True)
        if failures >= self.breaker.failures:
            whole = self.breaker.open_for(failures - self.breaker.failures + 1)
            delay = whole * (1.0 - OPEN_JITTER * u)
        elif confirmed:
            delay = self.backoff.delay(failures - self.confirmations, u)
        else:
            delay = min(self.confirm, soon)
        return FailureDecision(min(delay, within), False)

    def longest(self, *, dead: bool, max_interval: float) -> float:
        """Maximum delay after a failure of a target with this max_interval."""
        usual = self.recheck if dead else max(self.breaker.max_delay, self.backoff.max_delay)
        return max(usual, self.longest_wait(max_interval))

    def longest_wait(self, max_interval: float) -> float:
        """Maximum of the seconds that a source may ask to wait."""
        return max(self.max_retry_after, max_interval)

    def state(self, failures: int, *, dead: bool, asked: bool) -> str:
        """The state of a target; asked: it is being polled."""
        if dead:
            return "dead"
        if not failures:
            return "closed"
        if failures >= self.breaker.failures:
            return "half-open" if asked else "open"
        return "confirming" if failures <= self.confirmations else "backing off"


@lru_cache(1000)
def _time_until(rules: FailureRules, failures: int) -> float:
    """Seconds from the first to this many failures in a row, without an exact interval."""
    delays = [
        rules.failed(
            n, permanent=False, dead=False, soon=rules.confirm, u=0.5, dead_after=failures
        ).delay
        for n in range(1, min(failures, 100))
    ]
    return sum(delays) + max(failures - 100, 0) * delays[-1] if delays else 0.0


def is_permanent(error: BaseException) -> bool:
    """True if the error says that polling again would not help."""
    return getattr(error, "permanent", False) is True


def text_of(error: BaseException) -> str:
    """An error for people, at most 500 characters: its message, after its class.

    Messages of probes say everything themselves, so their class is left out.
    """
    try:
        said = str(error)
    except Exception:
        said = "<an error whose message cannot be printed>"
    name = type(error).__name__
    own = isinstance(error, ProbeError)
    text = (without_hidden(said) if own else f"{name}: {without_hidden(said)}") if said else name
    text = text[:500]
    # Lone surrogates, as in the name of a file, cannot be saved.
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()
