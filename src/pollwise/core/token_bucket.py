"""Token bucket: a rate that holds over every span of time.

Each start takes a token. Tokens come at `rate` a second, and at most `burst` are kept, so any w
seconds see at most rate · w + burst starts, whatever happened before: a pause, a long stall, a
backlog. A new bucket is empty: a process that starts again cannot start more than one that ran on.
"""

from __future__ import annotations

import math

#: A token counts as whole from here on: sums of small refills are not exact.
WHOLE = 1.0 - 1e-9
#: The shortest wait for a token, in seconds, so that a timer never fires twice at one time.
WAIT_MIN = 1e-6


class TokenBucket:
    """Tokens that come at `rate` a second; at most `burst` are kept, and at least one can be.

    >>> bucket = TokenBucket(rate=2.0, burst=3.0)
    >>> bucket.has(0.0), bucket.ready_at(0.0)
    (False, 0.5)
    >>> bucket.has(60.0), bucket.tokens
    (True, 3.0)
    """

    __slots__ = ("_at", "burst", "rate", "tokens")

    def __init__(self, rate: float, burst: float) -> None:
        self.rate: float = rate
        self.burst: float = max(burst, 1.0)
        self.tokens: float = 0.0
        self._at: float | None = None

    def has(self, now: float) -> bool:
        """True if there is a token at `now`."""
        at = self._at
        if at is None or now > at:
            self._at = now
            if at is not None and self.tokens < self.burst:
                self.tokens = min(self.tokens + (now - at) * self.rate, self.burst)
        return self.tokens >= WHOLE

    def spend(self) -> None:
        """Take a token; call it only after `has`."""
        self.tokens -= 1.0

    def ready_at(self, now: float) -> float:
        """When there is a token: `now`, or later; infinity at a rate of 0."""
        if self.has(now):
            return now
        if not self.rate:
            return math.inf
        return now + max((1.0 - self.tokens) / self.rate, WAIT_MIN)

    def resize(self, rate: float, burst: float, now: float | None = None) -> None:
        """Use another rate and burst from `now` on.

        Without `now`, the time since the last look counts at the new rate: right for a lower one.
        """
        if now is not None:
            self.has(now)
        self.rate = rate
        self.burst = max(burst, 1.0)
        self.tokens = min(self.tokens, self.burst)
