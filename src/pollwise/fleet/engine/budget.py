"""The budget of a fleet: polls a second over all its targets.

A budget has two effects. It is shared out: targets with an interval of their own and the rechecks
of dead targets take their part first, and the rest is for the others, as the goal says: by how
often their readings change, or evenly.
It is also a limit: each poll of any kind takes a token before it starts, so that no second sees
more than the budget and its burst. Targets that are due wait for a token, the longest due first.
"""

from __future__ import annotations

from collections.abc import Mapping

from pollwise.core.forecast.changes import ChangeRate
from pollwise.core.shares import Form, Shares
from pollwise.core.token_bucket import TokenBucket
from pollwise.fleet.engine.running_target import RunningTarget

#: The goals of a budget, and the form of sharing for each. "changes": changes are seen early, all
#: of them together. "age": the reading of each target is young, so that rare changes are seen as
#: early as frequent ones.
GOALS: Mapping[str, Form] = {"changes": "delay", "age": "age"}
#: Minimum part of the budget that is shared out; max_intervals are respected anyway.
SHARED_MIN = 1e-6
#: Shares are computed again when the part left for them changed by this fraction.
MOVED = 0.01


class FleetBudget:
    """Polls a second, shared out among the targets of a fleet.

    burst: polls that may start at once after a quiet time; None for one second's worth.
    goal: one of GOALS.
    """

    def __init__(self, polls: float, burst: float | None = None, goal: str = "changes") -> None:
        #: Polls a second of all nodes together, and of this one.
        self.whole = polls
        self.polls: float = polls
        self.burst: float = max(polls, 1.0) if burst is None else burst
        self.tokens: TokenBucket = TokenBucket(polls, self.burst)
        self._shares = Shares(polls, GOALS[goal])
        self._taken: dict[RunningTarget, float] = {}
        self._outside = 0.0
        self._was_short = False

    @property
    def asked(self) -> float:
        """Polls a second that are needed in any case: fixed intervals, rechecks, max_intervals."""
        return self._outside + self._shares.least

    def turned_short(self) -> bool:
        """True if more is needed than there is, and this was not so at the last call."""
        was, self._was_short = self._was_short, self.asked > self.polls
        return self._was_short and not was

    def join(self, entry: RunningTarget, others: int) -> None:
        """Give a target its share, by its learned rate of changes, or else an even one.

        others: number of targets that share, as far as known.
        """
        learner = entry.learner
        if learner is None:
            self.take(entry, 1.0 / min(entry.strategy.max_interval, entry.within))
            return
        if entry.reading is None:
            learner.changes = ChangeRate(self.whole / max(others, 1))
        entry.share = self._shares.join(
            entry.target.weight,
            entry.strategy.min_interval,
            entry.strategy.max_interval,
            learner.changes.rate,
        )

    def leave(self, entry: RunningTarget) -> None:
        if entry.share is not None:
            self._shares.leave(entry.share)
            entry.share = None
        self.take(entry, 0.0)

    def take(self, entry: RunningTarget, rate: float) -> None:
        """Record that a target that does not share is polled `rate` times a second."""
        before = self._taken.pop(entry, 0.0)
        if rate:
            self._taken[entry] = rate
        if rate == before:
            return
        self._outside = max(self._outside + rate - before, 0.0) if self._taken else 0.0
        self._share_out()

    def allot(self, part: float, now: float | None = None) -> None:
        """Use this part of the budget: that of the targets that this node holds.

        now: needed where the part may have grown.
        """
        polls = self.whole * part
        self.tokens.resize(polls, self.burst * part, now)
        if polls > 0 and abs(polls - self.polls) > MOVED * self.polls:
            self.polls = polls
            self._share_out()

    def _share_out(self) -> None:
        left = max(self.polls - self._outside, self.polls * SHARED_MIN)
        if abs(left - self._shares.budget) > MOVED * self._shares.budget:
            self._shares.budget = left

    def even(self, entry: RunningTarget) -> float:
        """The interval if all targets that share were polled alike, for a new target."""
        interval = len(self._shares) / self._shares.budget
        return min(max(interval, entry.strategy.min_interval), entry.strategy.max_interval)

    def interval(self, entry: RunningTarget, learned: ChangeRate) -> float:
        """The interval of a target that shares, after a poll of it."""
        assert entry.share is not None  # noqa: S101 - for the type checker
        self._shares.update(entry.share, learned.rate)
        return self._shares.interval(entry.share)
