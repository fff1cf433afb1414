"""One budget for many pollers: a limit that holds for all of them, shared out fairly.

Pollers that want to poll wait in line, first come, first served. A poller has one place in the line
at a time, so hungry pollers take turns. The tokens of a bucket are the limit. The server corrects
it: a refusal halves the rate, and each answer raises it a little. If the server says how many
requests are left (`Allowance`), these are spread over the time until it accepts more.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pollwise.core.token_bucket import WAIT_MIN, WHOLE, TokenBucket

K = TypeVar("K", bound=Hashable)

#: A refusal multiplies the rate by this.
LOWERED = 0.5
#: The rate never falls below this part of the limit.
LOWEST = 1 / 64
#: Each answer adds this part of the limit to a lowered rate.
RAISED = 1 / 32
#: A poller that is this many seconds late loses its place in the line; it has ended, or hangs.
PATIENCE = 10.0
#: A server that has more left has no limit.
REMAINING_MAX = 10**12


@dataclass(frozen=True, slots=True)
class Allowance:
    """A rate limit as a server states it: how many requests are left, and for how long.

    remaining: how many requests it still accepts.
    resets_in: seconds until it accepts more.
    """

    remaining: int
    resets_in: float


class FairBudget(Generic[K]):
    """Decides which poller may poll when: at most `rate` polls a second and `burst` more in all.

    longest: the longest time, in seconds, that a server may silence the pollers.

    >>> budget = FairBudget[str](rate=1.0, burst=1.0, longest=60.0)
    >>> budget.ask("a", 0.0), budget.ask("b", 0.0), budget.ask("a", 0.0)
    (0.0, 1.0, 2.0)
    >>> budget.ask("b", 1.0)
    1.0
    """

    __slots__ = (
        "_bucket", "_cap", "_cap_until", "_lowered_at", "blocked_until", "limit", "longest", "rate",
        "waiting",
    )  # fmt: skip

    def __init__(self, rate: float, burst: float, longest: float) -> None:
        self.limit: float = rate
        self.longest: float = longest
        #: The limit as lowered by refusals.
        self.rate: float = rate
        self._bucket = TokenBucket(rate, burst)
        self._bucket.tokens = 1.0  # the first poll need not wait
        #: The pollers in line, and when each was asked to come again.
        self.waiting: dict[K, float] = {}
        self.blocked_until: float = -math.inf
        self._cap = math.inf
        self._cap_until = -math.inf
        self._lowered_at = -math.inf

    def ask(self, key: K, now: float) -> float:
        """Return when this poller should ask again; `now`: it may poll, and the poll is counted."""
        self._note_time(now)
        bucket = self._bucket
        bucket.has(now)
        ahead = self._ahead_of(key, now)
        if now >= self.blocked_until and bucket.tokens >= ahead + WHOLE:
            bucket.spend()
            self.waiting.pop(key, None)
            return now
        start = max(now, self.blocked_until)
        tokens = min(bucket.tokens + (start - now) * bucket.rate, bucket.burst)
        missing = max(ahead + 1.0 - tokens, 0.0)
        if not missing:
            at = start
        else:
            at = start + missing / bucket.rate if bucket.rate else math.inf
        if self._cap_until > now:
            at = min(at, max(self._cap_until, start))
        at = max(at, now + WAIT_MIN)
        self.waiting[key] = at
        return at

    def leave(self, key: K) -> None:
        """Give up this poller's place in the line, if it has one."""
        self.waiting.pop(key, None)

    def answered(self, now: float, allowance: Allowance | None = None) -> None:
        """A poll was answered; `allowance` is what the server said about its limit."""
        self.rate = min(self.rate + self.limit * RAISED, self.limit)
        if allowance is not None:
            self._note_allowance(allowance, now)
        self._resize(now)

    def refused(self, began: float, now: float, wait: float = 0.0) -> None:
        """A poll that began at `began` was refused; the server asked to wait for `wait` seconds.

        Polls that were on their way when the rate was lowered do not lower it again.
        """
        if wait > 0:
            self._block(now + min(wait, self.longest))
        if began >= self._lowered_at:
            self._lowered_at = now
            self.rate = max(self.rate * LOWERED, self.limit * LOWEST)
        self._resize(now)

    def _note_allowance(self, allowance: Allowance, now: float) -> None:
        resets_in = min(max(allowance.resets_in, 0.0), self.longest)
        remaining = min(max(allowance.remaining, 0), REMAINING_MAX)
        self._bucket.has(now)
        self._cap, self._cap_until = math.inf, -math.inf
        if not resets_in:
            return
        if not remaining:
            self._block(now + resets_in)
            return
        self._bucket.tokens = min(self._bucket.tokens, float(remaining))
        self._cap = (remaining - self._bucket.tokens) / resets_in
        self._cap_until = now + resets_in

    def _block(self, until: float) -> None:
        self.blocked_until = max(self.blocked_until, until)

    def _note_time(self, now: float) -> None:
        if self._cap < math.inf and now >= self._cap_until:
            self._bucket.has(self._cap_until)
            self._cap = math.inf
            self._resize(self._cap_until)

    def _resize(self, now: float) -> None:
        self._bucket.resize(min(self.rate, self._cap), self._bucket.burst, now)

    def _ahead_of(self, key: K, now: float) -> int:
        """Count the pollers in line before this one; remove late ones from the line."""
        ahead = 0
        late: list[K] = []
        for other, at in self.waiting.items():
            if other == key:
                break
            if at < now - PATIENCE:
                late.append(other)
            else:
                ahead += 1
        for other in late:
            del self.waiting[other]
        return ahead
