"""Worth: poll again when the expected waiting is worth one poll.

**The rule.** A poll costs c; an item that waits costs w a second. With N(s) the number of items
expected s seconds from now, a pause of T costs w·∫₀ᵀ N(s) ds of waiting. The next poll is due when
that has reached c. For a steady rate λ, T = √(2c/(wλ)), the cheapest interval.

**Evidence.** A failed poll is not evidence: the next one covers its time as well. A full batch is
an incomplete count: its items are kept, the pause is halved, and the first batch that is not full
ends the count over the whole time. A poll caused by a hint needs no special care. If the source
says how long items waited, their times are exact; otherwise items are assumed to have come evenly
between two polls. At the start no rate is known and one item is assumed, so pauses begin at the
min_interval and grow with the silence.

**Held polls.** While a server holds a poll, for g seconds on average, items do not wait. With T₀
the pause without a hold, T = √(T₀² + g²) - g is cheapest.

**Trust.** How far pauses follow a forecast is learned from what they cost. Where no forecast helps,
as with batches at random, they come near the best fixed interval for the long-run rate.

`docs/why/worth.md` derives the rule, and says where it loses. The forecast is in
`pollwise.core.forecast`; `pollwise.core.strategies.goals` finds c/w for a budget or a latency.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, overload

from pollwise.core.forecast.arrivals import FADE_EVERY, MEMORY, Regimes, Rhythm
from pollwise.core.forecast.cycle import ITEMS_MIN, SILENCE, Cycle
from pollwise.core.forecast.resolution import Resolution
from pollwise.core.forecast.trust import Trust
from pollwise.core.outcome import Change, Outcome, Pause, Plain
from pollwise.core.strategies.base import Pacer, State, Strategy, bounds, number_within, restored
from pollwise.core.strategies.goals import BudgetGoal, Goal, MeanWaitGoal, P95WaitGoal, PriceGoal
from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError

MIN_INTERVAL, MAX_INTERVAL = "10ms", "60s"
HOUR, DAY, MONTH = 3600.0, 86400.0, 30 * 86400.0  # a month as price lists count
#: The arguments that make each goal.
GOALS = (
    ("poll_cost", "wait_cost"),
    ("polls_per_hour",),
    ("polls_per_day",),
    ("dollars_per_month", "price"),
    ("mean_wait",),
    ("p95_wait",),
)
#: How much of a budget may be saved for later: only a little where every hour has its limit.
SAVED_AN_HOUR, SAVED_A_DAY = 0.02, 0.5
BUDGETS = ("polls_per_hour", "polls_per_day", "dollars_per_month")
COUNTED_MAX = 1_000_000_000  # items in a poll; larger numbers count as this
SPAN_MIN = 1e-6  # seconds; closer polls count as one
AT_MAX = 1e12  # seconds; later times count as this
PRICE_MIN, PRICE_MAX = 1e-15, 1e30  # item-seconds
SAMPLED = 8  # waits per batch that are used
#: A pause that was this much longer or shorter than decided says nothing about the decision.
STRETCHED = 1.5
#: Stamps are taken for exact where their step is at most this share of the usual interval.
ROUNDED = 0.05


@dataclass(frozen=True, init=False, slots=True)
class Worth(Strategy):
    """Poll again when the expected waiting is worth one poll. Give one goal.

    poll_cost: what one poll costs; give `wait_cost` as well, in the same currency.
    wait_cost: what it costs that one item waits one second.
    polls_per_hour: a limit for every hour; items wait as little as it allows.
    polls_per_day: a budget for every day; spent where it shortens the waiting most.
    dollars_per_month: a budget in money, spent as `polls_per_day` is; give `price` as well.
    price: what one poll costs, in dollars.
    mean_wait: how long items should wait on average, with as few polls as possible.
    p95_wait: how long 95 of 100 items should wait at most.
    min_interval: the shortest delay, whatever the goal.
    max_interval: the longest delay, whatever the goal.
    hold: how long each poll may block at the server.
    """

    poll_cost: float | None
    wait_cost: float | None
    polls_per_hour: float | None
    polls_per_day: float | None
    dollars_per_month: float | None
    price: float | None
    mean_wait: float | None
    p95_wait: float | None
    min_interval: float
    max_interval: float
    hold: float

    name: ClassVar[str] = "worth"

    def __init__(
        self,
        *,
        poll_cost: float | None = None,
        wait_cost: float | None = None,
        polls_per_hour: float | None = None,
        polls_per_day: float | None = None,
        dollars_per_month: float | None = None,
        price: float | None = None,
        mean_wait: Duration | None = None,
        p95_wait: Duration | None = None,
        min_interval: Duration = MIN_INTERVAL,
        max_interval: Duration = MAX_INTERVAL,
        hold: Duration = 0,
    ) -> None:
        numbers = (
            ("poll_cost", poll_cost, "what one poll costs"),
            ("wait_cost", wait_cost, "what it costs that one item waits one second"),
            ("polls_per_hour", polls_per_hour, "the budget"),
            ("polls_per_day", polls_per_day, "the budget"),
            ("dollars_per_month", dollars_per_month, "the budget"),
            ("price", price, "what one poll costs, in dollars"),
        )
        for key, number, why in numbers:
            checked = None if number is None else number_within(number, key, 0.0, math.inf, why)
            self._set(**{key: checked})
        for key, wait in (("mean_wait", mean_wait), ("p95_wait", p95_wait)):
            self._set(**{key: None if wait is None else seconds(wait, key, positive=True)})
        low, high = bounds(min_interval, max_interval)
        self._set(min_interval=low, max_interval=high, hold=seconds(hold, "hold"))
        self._check_goal()
        self._check_reach()

    def _check_goal(self) -> None:
        """Check that there is exactly one goal, with all its values."""
        given = [key for keys in GOALS for key in keys if getattr(self, key) is not None]
        shown = " and ".join(f"{key} = {getattr(self, key)!r}" for key in given)
        goals = [keys for keys in GOALS if not {*keys}.isdisjoint(given)]
        if not goals:
            choice = ", or ".join(" and ".join(keys) for keys in GOALS)
            raise ConfigError(f"{GOALS[0][0]} = None and no other goal; give {choice}")
        if len(goals) > 1:
            raise ConfigError(f"{shown} are {len(goals)} goals; give one of them")
        if missing := {*goals[0]}.difference(given):
            raise ConfigError(f"{shown} is only half of a goal; also give {missing.pop()}")

    def _check_reach(self) -> None:
        """Check that min_interval and max_interval allow the goal."""
        budget = self._budget()
        if budget is not None and budget[0] * self.max_interval < HOUR:
            per_hour = budget[0]
            what = next(each for each in BUDGETS if getattr(self, each))
            raise ConfigError(
                f"{what} = {getattr(self, what)!r} is {per_hour:g} polls an hour, but "
                f"max_interval = {self.max_interval!r} alone makes {3600.0 / self.max_interval:g}; "
                f"raise max_interval to several times {HOUR / per_hour:.3g} s, the mean interval "
                "of the budget"
            )
        for what, share in (("mean_wait", 0.5), ("p95_wait", 0.95)):
            wait = getattr(self, what)
            if wait is not None and wait < share * self.min_interval:
                raise ConfigError(
                    f"{what} = {wait!r} cannot be reached with min_interval = "
                    f"{self.min_interval!r}; "
                    f"lower the min_interval to {wait / share:.3g} or less"
                )

    @classmethod
    def budget(
        cls,
        *,
        polls_per_hour: float | None = None,
        polls_per_day: float | None = None,
        dollars_per_month: float | None = None,
        price: float | None = None,
        min_interval: Duration = MIN_INTERVAL,
        max_interval: Duration = MAX_INTERVAL,
        hold: Duration = 0,
    ) -> Worth:
        """Wait as little as a budget of polls, or of dollars at a price per poll, allows."""
        if polls_per_hour is polls_per_day is dollars_per_month is price is None:
            raise ConfigError(
                "Worth.budget needs a goal; give polls_per_hour, or polls_per_day, or "
                "dollars_per_month and price"
            )
        return cls(
            polls_per_hour=polls_per_hour, polls_per_day=polls_per_day,
            dollars_per_month=dollars_per_month, price=price,
            min_interval=min_interval, max_interval=max_interval, hold=hold,
        )  # fmt: skip

    @classmethod
    def latency(
        cls,
        *,
        mean: Duration | None = None,
        p95: Duration | None = None,
        min_interval: Duration = MIN_INTERVAL,
        max_interval: Duration = MAX_INTERVAL,
        hold: Duration = 0,
    ) -> Worth:
        """Make as few polls as keep the waiting at this mean, or at this 95th percentile."""
        if mean is None and p95 is None:
            raise ConfigError("Worth.latency needs a goal; give mean or p95, for example p95='2s'")
        return cls(
            mean_wait=None if mean is None else seconds(mean, "mean", positive=True),
            p95_wait=None if p95 is None else seconds(p95, "p95", positive=True),
            min_interval=min_interval, max_interval=max_interval, hold=hold,
        )  # fmt: skip

    def _budget(self) -> tuple[float, float, float] | None:
        """The polls an hour, the period of the budget in seconds, and how much may be saved."""
        if self.dollars_per_month is not None and self.price is not None:
            return self.dollars_per_month / self.price * HOUR / MONTH, DAY, SAVED_A_DAY
        if self.polls_per_day is not None:
            return self.polls_per_day * HOUR / DAY, DAY, SAVED_A_DAY
        if self.polls_per_hour is not None:
            return self.polls_per_hour, HOUR, SAVED_AN_HOUR
        return None

    def goal(self) -> Goal:
        """A fresh goal, for one source."""
        if self.poll_cost is not None and self.wait_cost is not None:
            return PriceGoal(self.poll_cost / self.wait_cost)
        budget = self._budget()
        if budget is not None:
            return BudgetGoal(*budget)
        if self.mean_wait is not None:
            return MeanWaitGoal(self.mean_wait)
        return P95WaitGoal(self.p95_wait or 0.0)

    @overload
    def pacer(self) -> WorthPacer: ...
    @overload
    def pacer(self, state: State | None) -> Pacer: ...
    def pacer(self, state: State | None = None) -> Pacer:
        return WorthPacer(self) if state is None else restored(self, state).pacer


class WorthPacer(Pacer):
    def __init__(self, strategy: Worth) -> None:
        self._strategy = strategy
        self._goal = strategy.goal()
        self._regimes = Regimes()
        self._rhythms = (Rhythm(), Rhythm())  # of calm times, and of busy ones
        self._cycle = Cycle()
        self._resolution = Resolution()
        self._busy = False
        self._delay = strategy.min_interval
        self._interval = strategy.min_interval  # the best one for the long-run rate
        self._price = _limited(self._goal.price(1.0))  # item-seconds that are worth a poll
        self._paid = self._price
        self._now = 0.0  # items per second, now
        self._rate = 0.0  # items per second, forecast
        self._last_at: float | None = None  # the last poll
        self._from = 0.0  # the poll from which items are counted
        self._open = 0  # items since then, in polls that did not end the count
        self._item_at = 0.0  # the last item
        self._stamp = 0.0  # and its stamp
        self._polls = 0
        self._trust = Trust()
        self._own = strategy.min_interval  # the pause that was decided, before it was limited
        self._decided = (0.0, 0.0, 0.0, 0.0)  # when, and the forecast from there

    def first(self) -> Pause:
        return Pause(self._delay, self._strategy.hold)

    def after(self, outcome: Outcome) -> Pause:
        if outcome.failed:
            return Pause(self._delay, self._strategy.hold)
        at = _within(float(outcome.at), -AT_MAX, AT_MAX)
        if self._last_at is None:  # it is unknown how long these items took to come
            self._last_at = self._from = self._item_at = self._stamp = at
            return Pause(self._delay, self._strategy.hold)
        self._goal.polled(at, at - self._last_at, self._price)
        self._last_at = at
        before = self._delay
        self._open = int(_within(self._open + outcome.found, 0, COUNTED_MAX))
        if outcome.full or at - self._from < SPAN_MIN:
            delay = 0.5 * before
        else:
            delay = self._before_a_hold(self._decide(at, _plain(outcome.waits)))
        soonest = self._goal.soonest(at)
        longer = delay
        if soonest > delay:
            longer = soonest
            self._goal.delayed(longer / delay)
        self._delay = _within(longer, self._strategy.min_interval, self._strategy.max_interval)
        # The price at which the pause would have been as long as it is.
        self._paid = _limited(self._price * (self._delay / delay) ** 2)
        turn = _turn(before, self._delay)
        return Pause(self._delay, self._strategy.hold, turn, forecast=self._rate)

    def _decide(self, at: float, waits: Sequence[float]) -> float:
        """Learn from all items since the last decision, and decide how long to pause."""
        found, start = self._open, self._from
        self._from, self._open = at, 0
        exact = self._exact(waits, start, at) if waits else waits
        if self._rate:
            self._judge(found, at - start, exact)
        self._learn(found, start, at, waits, exact)
        self._regimes.observe(found, at - start)
        long_run = self._regimes.long_run
        price = _limited(self._goal.price(long_run))
        self._price = price
        self._interval = math.sqrt(2.0 * price / long_run)
        self._now, self._rate = self._regimes.forecast(price, self._interval)
        self._busy = bool(self._rate >= long_run)
        self._fade()
        if isinstance(self._goal, P95WaitGoal):
            self._decided = (at, *self._regimes.ahead())
            return self._goal.pause(self._rate_ahead, self._strategy.max_interval)
        if self._cycle.period:
            self._own = 0.0  # it follows the cycle wholly
            return self._cycle.interval(price, self._rate, at)
        own = self._rhythms[self._busy].interval(
            price, self._rate, at - self._item_at, self._interval, self._strategy.max_interval
        )
        now = math.sqrt(2.0 * price / self._rate)
        self._own = self._trust.interval(self._interval, now, own)
        return self._own

    def _exact(self, waits: Sequence[float], start: float, at: float) -> Sequence[float]:
        """The waits without the rounding of stamps, where that is coarse."""
        self._resolution.learn(at - max(waits) - self._stamp)
        self._stamp = at - min(waits)
        coarse = self._resolution.step > ROUNDED * self._interval
        return self._resolution.spread(waits, at - start) if coarse else waits

    def _judge(self, found: int, span: float, waits: Sequence[float]) -> None:
        """Let the trust learn what the waiting in the last pause cost.

        A pause of another length than decided counts as one of that length: the waiting grows with
        its square.
        """
        if self._strategy.hold or not self._own < STRETCHED * span < STRETCHED**2 * self._own:
            return
        by = span / self._own
        waited = sum(waits) * found / len(waits) if waits and found else 0.5 * span * found
        self._trust.learn(waited / (self._price * by * by))

    def _rate_ahead(self, later: float) -> float:
        """The rate that is forecast for the moment `later` seconds after the last decision."""
        at, now, usual, leaving = self._decided
        rate = usual + (now - usual) / (1.0 + leaving * later)
        if self._cycle.period:
            return rate * self._cycle.factor(at + later, self._price, self._rate)
        since = at - self._item_at + later
        return rate * self._rhythms[self._busy].factor(
            since, self._price, self._rate, 0.5 * self._interval
        )

    def _before_a_hold(self, pause: float) -> float:
        """How long to pause if the next poll is held."""
        hold, rate = self._strategy.hold, self._rate
        if not hold:
            return pause
        held = hold if rate * hold < 1e-6 else -math.expm1(-rate * hold) / rate
        return pause * (pause / (math.hypot(pause, held) + held))

    def _learn(
        self, found: int, start: float, at: float, waits: Sequence[float], exact: Sequence[float]
    ) -> None:
        """Compare the last forecast with what came."""
        known, span = self._item_at, at - start
        times: Sequence[float] = ()
        weight = oldest = 0.0
        if waits and found:
            self._goal.waited(waits, found, self._paid)
            sample, weight, newest, oldest = _sampled(exact, found)
            times = [at - wait if wait < span else start for wait in sample]
            self._item_at = at - newest if newest < span else start
        elif found:
            self._goal.spread(found, span, self._paid)
            count = min(found, SAMPLED)
            times = [start + span * (n + 0.5) / count for n in range(count)]
            weight, newest = found / count, 0.5 * span / found
            self._item_at, oldest = at - newest, span - newest
        if not self._rate:
            return
        if isinstance(self._goal, P95WaitGoal):
            self._goal.score([self._rate_ahead(time - start) for time in times], weight)
        if self._cycle.period:
            self._cycle.learn(times, weight, self._rate, start, at)
        else:
            since = [time - known for time in times]
            self._rhythms[self._busy].learn(
                since, weight, self._rate, start - known, at - known, self._interval
            )
        if found and self._regimes.items > ITEMS_MIN:
            onset = at - oldest if oldest < span else start
            if (onset - known) * self._regimes.long_run >= SILENCE:
                self._cycle.onset(onset)

    def _fade(self) -> None:
        self._polls += 1
        if self._polls == FADE_EVERY:
            self._polls = 0
            for each in (self._regimes, *self._rhythms, self._cycle, self._trust):
                each.fade(1.0 - FADE_EVERY / MEMORY)

    def resume(self, at: float) -> None:
        """As at the start, it is unknown how long the items of the first poll took to come. The
        interruption does not count as silence. A cycle keeps its phase, because time went on."""
        self._last_at = None
        self._open = 0

    def state(self) -> dict[str, Plain]:
        return {
            "interval": self._delay,
            "rate": self._now,
            "forecast_rate": self._rate,
            "long_run_rate": self._regimes.long_run,
            "usual_interval": self._interval,
            "period": self._cycle.period,
            "price_ratio": self._price,
            "lean": self._goal.lean,
        }


def _limited(price: float) -> float:
    return _within(price, PRICE_MIN, PRICE_MAX)


def _within(value: float, least: float, most: float) -> float:
    """The value, or the limit that it is beyond. A comparison is faster than min and max."""
    return value if least <= value <= most else max(least, min(value, most))


def _plain(waits: Sequence[float]) -> Sequence[float]:
    """The waits as Python's floats: numpy's floats are slow to make and to compare."""
    return waits if not waits or type(waits[0]) is float else [*map(float, waits)]


def _sampled(waits: Sequence[float], found: int) -> tuple[Sequence[float], float, float, float]:
    """A sample of the waits, its weight per wait, and the shortest and longest of all waits."""
    newest, oldest = max(min(waits), 0.0), max(waits)
    if len(waits) > SAMPLED:
        waits = waits[:: -(-len(waits) // SAMPLED)]
    return waits, found / len(waits), newest, oldest


def _turn(before: float, after: float) -> tuple[Change, ...]:
    """Report a change when the interval halves or doubles; small moves happen at every poll."""
    if after >= 2.0 * before:
        return (Change("back-off", before, after),)
    if after <= 0.5 * before:
        return (Change("speed-up", before, after),)
    return ()
