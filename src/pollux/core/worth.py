"""Worth: look again when the waiting you expect is worth one poll.

A poll costs c; an item that waits costs w a second. For a steady rate λ the best interval is
√(2c/(wλ)): there, the waiting of an interval costs as much as its poll. The rule keeps that balance
for a forecast that is not steady: the next poll is due when the waiting expected by then, w·∫N(s)ds
with N(s) the items expected by s, has reached c.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pollux.core.cycle import ITEMS_MIN, SILENCE, Cycle
from pollux.core.forecast import FADE_EVERY, MEMORY, Regimes, Rhythm
from pollux.core.goals import Budget, Goal, MeanWait, P95Wait, Price
from pollux.core.outcome import Change, Outcome, Pause, Plain
from pollux.core.strategy import Pacer, Strategy, bounds, number_within
from pollux.durations import Duration, seconds
from pollux.errors import ConfigError

HOURS_PER_MONTH = 730.5
COUNTED_MAX = 1_000_000_000  # of items in a poll; no larger number is worth telling apart
SPAN_MIN = 1e-6  # seconds; polls that are nearer count as one
AT_MAX = 1e12  # seconds; a clock that shows more is taken to stand still
PRICE_MIN = 1e-15  # item-seconds
SAMPLED = 8  # waiting times that are looked at in a batch


@dataclass(frozen=True, init=False, slots=True)
class Worth(Strategy):
    """Look again when the waiting you expect is worth one poll. Give one goal.

    poll_cost, wait_cost: the price of a poll, and of one item waiting one second, in one currency.
    polls_per_hour: the budget.
    dollars_per_month, price: the budget in money, and what a poll costs.
    mean_wait, p95_wait: how long items may wait, on average or all but one in twenty.
    floor, ceiling: no pause is shorter, none longer.
    """

    poll_cost: float | None
    wait_cost: float | None
    polls_per_hour: float | None
    dollars_per_month: float | None
    price: float | None
    mean_wait: float | None
    p95_wait: float | None
    floor: float
    ceiling: float

    name: ClassVar[str] = "worth"
    settings: ClassVar[Mapping[str, str]] = {
        "poll_cost": "poll_cost",
        "wait_cost": "wait_cost",
        "polls_per_hour": "polls_per_hour",
        "dollars_per_month": "dollars_per_month",
        "price": "price",
        "mean_wait": "mean_wait",
        "p95_wait": "p95_wait",
        "min_interval": "floor",
        "max_interval": "ceiling",
    }

    def __init__(
        self,
        *,
        poll_cost: float | None = None,
        wait_cost: float | None = None,
        polls_per_hour: float | None = None,
        dollars_per_month: float | None = None,
        price: float | None = None,
        mean_wait: Duration | None = None,
        p95_wait: Duration | None = None,
        floor: Duration = "10ms",
        ceiling: Duration = "60s",
    ) -> None:
        numbers = {
            "poll_cost": (poll_cost, "what one poll costs"),
            "wait_cost": (wait_cost, "what one item waiting one second costs"),
            "polls_per_hour": (polls_per_hour, "the budget"),
            "dollars_per_month": (dollars_per_month, "the budget"),
            "price": (price, "what one poll costs, in dollars"),
        }
        for key, (value, why) in numbers.items():
            checked = None if value is None else number_within(value, key, 0.0, math.inf, why)
            object.__setattr__(self, key, checked)
        for key, given in {"mean_wait": mean_wait, "p95_wait": p95_wait}.items():
            span = None if given is None else seconds(given, key, positive=True)
            object.__setattr__(self, key, span)
        low, high = bounds(floor, ceiling)
        object.__setattr__(self, "floor", low)
        object.__setattr__(self, "ceiling", high)
        self._check_goal()

    def _check_goal(self) -> None:
        goals = [
            ("poll_cost", "wait_cost"),
            ("polls_per_hour",),
            ("dollars_per_month", "price"),
            ("mean_wait",),
            ("p95_wait",),
        ]
        given = [keys for keys in goals if any(getattr(self, key) is not None for key in keys)]
        if not given:
            raise ConfigError(
                "poll_cost = None says no goal; give poll_cost and wait_cost, or polls_per_hour, "
                "or dollars_per_month and price, or mean_wait, or p95_wait"
            )
        if len(given) > 1:
            shown = " and ".join(
                f"{key} = {getattr(self, key)!r}"
                for keys in given
                for key in keys
                if getattr(self, key) is not None
            )
            raise ConfigError(f"{shown} are {len(given)} goals; give one")
        for key in given[0]:
            if getattr(self, key) is None:
                (other,) = (each for each in given[0] if each != key)
                raise ConfigError(
                    f"{other} = {getattr(self, other)!r} needs {key} as well; give both"
                )

    @classmethod
    def budget(
        cls,
        *,
        polls_per_hour: float | None = None,
        dollars_per_month: float | None = None,
        price: float | None = None,
        floor: Duration = "10ms",
        ceiling: Duration = "60s",
    ) -> Worth:
        """As little waiting as so many polls can buy."""
        return cls(
            polls_per_hour=polls_per_hour, dollars_per_month=dollars_per_month, price=price,
            floor=floor, ceiling=ceiling,
        )  # fmt: skip

    @classmethod
    def latency(
        cls,
        *,
        mean: Duration | None = None,
        p95: Duration | None = None,
        floor: Duration = "10ms",
        ceiling: Duration = "60s",
    ) -> Worth:
        """As few polls as keep the waiting there."""
        return cls(mean_wait=mean, p95_wait=p95, floor=floor, ceiling=ceiling)

    @property
    def longest_hold(self) -> float:
        return 0.0

    def goal(self) -> Goal:
        """A fresh controller for the goal."""
        if self.poll_cost is not None and self.wait_cost is not None:
            return Price(self.poll_cost / self.wait_cost)
        if self.mean_wait is not None:
            return MeanWait(self.mean_wait)
        if self.p95_wait is not None:
            return P95Wait(self.p95_wait)
        if self.polls_per_hour is not None:
            return Budget(self.polls_per_hour)
        assert self.dollars_per_month is not None  # noqa: S101
        assert self.price is not None  # noqa: S101
        return Budget(self.dollars_per_month / self.price / HOURS_PER_MONTH)

    def pacer(self) -> WorthPacer:
        return WorthPacer(self)


class WorthPacer(Pacer):
    def __init__(self, strategy: Worth) -> None:
        self._strategy = strategy
        self._goal = strategy.goal()
        self._regimes = Regimes()
        self._rhythms = (Rhythm(), Rhythm())  # of calm times, and of busy ones
        self._cycle = Cycle()
        self._busy = False
        self._delay = strategy.floor
        self._interval = strategy.floor  # the best one for the long-run rate
        self._now = 0.0  # items per second, at present
        self._rate = 0.0  # items per second, forecast
        self._last_at: float | None = None  # the last poll
        self._from = 0.0  # the poll from which items are counted
        self._open = 0  # items since then, of polls that were not the end of it
        self._item_at = 0.0  # the last item
        self._polls = 0

    def first(self) -> Pause:
        return Pause(self._delay)

    def after(self, outcome: Outcome) -> Pause:
        if outcome.failed:
            return Pause(self._delay)
        at = max(-AT_MAX, min(outcome.at, AT_MAX))
        if self._last_at is None:  # what it found came in no time that is known
            self._last_at = self._from = self._item_at = at
            return Pause(self._delay)
        self._goal.polled(at - self._last_at)
        self._last_at = at
        before = self._delay
        self._open += min(outcome.found, COUNTED_MAX)
        if outcome.full or at - self._from < SPAN_MIN:
            delay = 0.5 * before
        else:
            delay = self._decide(at, outcome.waits)
        delay = max(delay, self._goal.soonest())
        self._delay = max(self._strategy.floor, min(delay, self._strategy.ceiling))
        return Pause(self._delay, 0.0, _turn(before, self._delay))

    def _decide(self, at: float, waits: Sequence[float]) -> float:
        """Learn from all items since the last decision, and decide how long to pause."""
        found, start = self._open, self._from
        self._from, self._open = at, 0
        self._learn(found, start, at, waits)
        self._regimes.observe(found, at - start)
        long_run = self._regimes.long_run
        price = max(self._goal.price(long_run), PRICE_MIN)
        self._interval = math.sqrt(2.0 * price / long_run)
        self._now, self._rate = self._regimes.forecast(price, self._interval)
        self._busy = self._rate >= long_run
        self._fade()
        if self._cycle.period:
            return self._cycle.interval(price, self._rate, at)
        return self._rhythms[self._busy].interval(
            price, self._rate, at - self._item_at, self._interval, self._strategy.ceiling
        )

    def _learn(self, found: int, start: float, at: float, waits: Sequence[float]) -> None:
        """Compare the last forecast with what came."""
        known, times, weight = self._item_at, [], 0.0
        if found:
            waits, weight, newest, oldest = _sampled(waits, found, at - start)
            self._goal.waited(waits, weight)
            times = [at - wait if start <= at - wait <= at else start for wait in waits]
            self._item_at = max(at - newest, start)
        if not self._rate:
            return
        if self._cycle.period:
            self._cycle.learn(times, weight, self._rate, start, at)
        else:
            since = [time - known for time in times]
            self._rhythms[self._busy].learn(
                since, weight, self._rate, start - known, at - known, self._interval
            )
        if found and self._regimes.items > ITEMS_MIN:
            onset = max(at - oldest, start)
            if (onset - known) * self._regimes.long_run >= SILENCE:
                self._cycle.onset(onset)

    def _fade(self) -> None:
        self._polls += 1
        if self._polls == FADE_EVERY:
            self._polls = 0
            for each in (self._regimes, *self._rhythms, self._cycle):
                each.fade(1.0 - FADE_EVERY / MEMORY)

    def state(self) -> dict[str, Plain]:
        return {
            "interval": self._delay,
            "rate": self._now,
            "forecast_rate": self._rate,
            "long_run_rate": self._regimes.long_run,
            "usual_interval": self._interval,
            "period": self._cycle.period,
            "steer": self._goal.steer,
        }


def _sampled(
    waits: Sequence[float], found: int, span: float
) -> tuple[Sequence[float], float, float, float]:
    """Some waiting times, how many items each stands for, and the shortest and the longest one.

    Where waiting times are not known, items are taken to have come evenly.
    """
    if not waits:
        count = min(found, SAMPLED)
        waits = [span * (n + 0.5) / count for n in range(count)]
        newest = 0.5 * span / found
        return waits, found / count, newest, span - newest
    newest, oldest = max(min(waits), 0.0), max(waits)
    if len(waits) > SAMPLED:
        waits = waits[:: -(-len(waits) // SAMPLED)]
    return waits, found / len(waits), newest, oldest


def _turn(before: float, after: float) -> tuple[Change, ...]:
    """A change is told when the interval halves or doubles; it moves a little at every poll."""
    if after >= 2.0 * before:
        return (Change("back-off", before, after),)
    if after <= 0.5 * before:
        return (Change("speed-up", before, after),)
    return ()
