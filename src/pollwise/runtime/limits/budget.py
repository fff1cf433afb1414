"""A budget that several poll loops share."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from pollwise.core.budget import Allowance, FairBudget
from pollwise.core.outcome import Plain
from pollwise.core.retry import RETRY_AFTER_MAX, check_count
from pollwise.durations import Duration, seconds, short


class SharedBudget:
    """At most `limit` polls in each `per`, over all pollers that share this budget.

        budget = SharedBudget(limit=60, per="1m")
        orders = pollwise.poll(fetch_orders, Adaptive("1s", "1m"), budget=budget)
        prices = pollwise.poll(fetch_prices, Adaptive("1s", "1m"), budget=budget)

    limit, per: the limit of the API. Polls are spread: 60 in a minute are one in a second.
    burst: how many polls may start at once after a quiet time, so w seconds see at most
        `limit / per * w + burst` polls.
    max_retry_after: how long the server may silence all pollers with one answer.

    Pollers that want to poll wait in line, so each gets its turn: with n pollers that are always
    due, the numbers of their polls differ by `burst + 1` at most. A refusal (an error with
    `retry_after`, as for 429) halves the rate, and each answer adds 1/32 of the limit until it is
    reached again; `Batch(items, allowance=…)` says what the server has left. The budget may be used
    from several threads and event loops of one process.
    """

    def __init__(
        self,
        limit: int,
        per: Duration = "1m",
        *,
        burst: int = 1,
        max_retry_after: Duration = RETRY_AFTER_MAX,
    ) -> None:
        check_count(limit, "limit", "polls in each `per`")
        check_count(burst, "burst", "polls that may start at once")
        self.limit = limit
        self.per: float = seconds(per, "per", positive=True)
        self.burst = burst
        longest = seconds(max_retry_after, "max_retry_after")
        self._budget: FairBudget[Hashable] = FairBudget(limit / self.per, burst, longest)
        self._lock = threading.Lock()
        self._polls = self._refusals = 0

    def ask(self, poller: Hashable, now: float) -> float:
        """Return when this poller should ask again; `now`: it may poll, and the poll is counted."""
        with self._lock:
            at = self._budget.ask(poller, now)
            self._polls += at <= now
            return at

    def leave(self, poller: Hashable) -> None:
        """Give up this poller's place in the line, if it has one."""
        with self._lock:
            self._budget.leave(poller)

    def answered(self, now: float, allowance: Allowance | None = None) -> None:
        """A poll was answered; `allowance` is what the server said about its limit."""
        with self._lock:
            self._budget.answered(now, allowance)

    def refused(self, began: float, now: float, wait: float = 0.0) -> None:
        """A poll that began at `began` was refused; the server asked to wait for `wait` seconds."""
        with self._lock:
            self._refusals += 1
            self._budget.refused(began, now, wait)

    def state(self) -> dict[str, Plain]:
        """The limit and the rate now, in polls a second, and what was counted, as plain values."""
        with self._lock:
            budget = self._budget
            return {
                "limit": budget.limit,
                "rate": budget.rate,
                "waiting": len(budget.waiting),
                "polls": self._polls,
                "refusals": self._refusals,
            }

    def __repr__(self) -> str:
        return f"SharedBudget(limit={self.limit}, per={short(self.per)!r}, burst={self.burst})"
