"""Tune: the cheapest settings that meet a latency target, or the least waiting within a budget.

Settings are chosen on the first part of a trace and tested on the rest, which they have not seen;
both are reported, for only the second says what to expect. A strategy with several numbers is
searched over a grid and then step by step around the best of it. One with a single number goes from
cheap to dear until the goal is in reach, and then halves its way back: what is dear is also slow to
replay.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.fixed import Fixed
from pollwise.durations import seconds, short, shown
from pollwise.errors import ConfigError
from pollwise.lab.policies import Point, Space, Terms, label, parse_one, space
from pollwise.lab.prices import MONTH, Price
from pollwise.lab.replay.engine import replay
from pollwise.lab.replay.limits import ROUND
from pollwise.lab.replay.results import Replay, Situation, Trace
from pollwise.lab.report.compare import brief, figures
from pollwise.lab.traces.reading import split
from pollwise.settings import polling_table

HOUR = 3600.0
#: The share of a trace that settings are chosen on.
SHARE = 0.6
#: The shortest delay that is tried, in seconds.
FLOOR = 0.01
#: The longest, unless given: so many times the target, or the pause that spends the budget.
REACH = 20.0
LONGEST = 86400.0
#: The bounds of a strategy's settings begin at its target divided by this.
DEPTH = 20.0
#: Steps around the best, as shares of a grid's step; at each, so many moves.
STEPS = (0.5, 0.25, 0.125, 0.06)
MOVES = 4
#: Of the grid, so many are looked around.
STARTS = 3
HALVINGS = 8
#: How much of a target may be missed in the test before the report calls it missed.
SLACK = 0.05

MEASURES = {"mean": None, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
#: What a budget may be counted by, in seconds.
_PER = {"hour": HOUR, "h": HOUR, "min": 60.0, "minute": 60.0, "s": 1.0, "second": 1.0,
        "d": 86400.0, "day": 86400.0, "month": MONTH}  # fmt: skip
_BUDGET = re.compile(
    r"(\$?)\s*([0-9.,e+-]+)\s*(\$?)\s*(?:polls)?\s*(?:/\s*([a-z]+))?", re.IGNORECASE
)

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Target:
    """What settings must reach.

    measure: of the waits ("mean", "p95", …), or "budget".
    value: seconds; polls an hour for a budget.
    """

    text: str
    measure: str
    value: float

    @property
    def is_budget(self) -> bool:
        return self.measure == "budget"

    def measured(self, done: Replay) -> float:
        """What a replay has of it."""
        if self.is_budget:
            return done.polls_an_hour
        share = MEASURES[self.measure]
        return done.mean_wait if share is None else done.wait(share)

    def excess(self, done: Replay) -> float:
        """By what share a replay misses it; 0 where it does not."""
        return max(self.measured(done) / self.value - 1, 0.0)

    def score(self, done: Replay) -> tuple[float, float, float]:
        """The lower, the better: first the target, then what it is to be met with least of."""
        if self.is_budget:
            return self.excess(done), done.mean_wait, done.polls
        return self.excess(done), done.polls, done.mean_wait

    def says(self, value: float) -> str:
        """A value of what the target is about, for people."""
        if self.is_budget:
            return f"{value:,.3g} polls an hour"
        return f"{self.measure} = {brief(value)}"


def parse_target(text: str, price: Price) -> Target:
    """Read `p95=2s`, `mean=500ms`, `budget=720/hour` or `budget=$5/month`."""
    name, equals, value = (part.strip() for part in text.partition("="))
    measure = name.lower()
    if measure == "budget" and equals:
        return Target(text.strip(), measure, _budget(text, value, price))
    if not equals or measure not in MEASURES:
        raise ConfigError(
            f"target {shown(text)} is none of p95=2s, mean=500ms, budget=720/hour (polls) and "
            f"'budget=$5/month'; latencies: {', '.join(MEASURES)}"
        )
    return Target(text.strip(), measure, seconds(value, f"target {measure}", positive=True))


def _budget(text: str, value: str, price: Price) -> float:
    """Polls an hour."""
    found = _BUDGET.fullmatch(value)
    amount = math.nan
    if found:
        try:
            amount = float(found[2].replace(",", ""))
        except ValueError:
            found = None
    dollars = bool(found and (found[1] or found[3]))
    per = _PER.get((found[4] or ("month" if dollars else "hour")).lower()) if found else None
    if per is None or not 0 < amount < math.inf:
        raise ConfigError(
            f"target {shown(text)} is no budget; write budget=720/hour for polls, or, in quotes "
            "because the shell would take the dollar sign, 'budget=$5/month'"
        )
    if not dollars:
        return amount / per * HOUR
    if not price.dollars:
        raise ConfigError(
            f"target {shown(text)} needs a price, and a poll costs nothing ({price.what}); "
            "give --price, or a budget in polls such as budget=720/hour"
        )
    return amount / price.dollars / per * HOUR


@dataclass(frozen=True)
class Tuned:
    """The settings found, and what they did on both parts of the trace."""

    target: Target
    strategy: Strategy
    price: Price
    share: float
    tried: int
    trained: Replay
    tested: Replay
    default: Replay | None = field(default=None)

    @property
    def holds(self) -> bool:
        """Whether the target is met on the part that the settings were not chosen on."""
        return self.target.excess(self.tested) <= SLACK

    @property
    def verdict(self) -> str:
        """One sentence on whether to trust the settings."""
        got = self.target.says(self.target.measured(self.tested))
        missed = self.target.excess(self.tested)
        if self.holds:
            how = "holds" if not missed else "nearly holds"
            return f"On the rest of the trace the target {how}: {got}."
        return (
            f"On the rest of the trace the target is missed by {missed:.0%}: {got}. Its traffic "
            "differs from the first part's; ask for a little more, or tune on a longer trace."
        )

    def table(self) -> str | None:
        """The settings as a table for pollwise.toml; None where settings cannot say them."""
        try:
            return polling_table(self.strategy)
        except ConfigError:
            return None

    def facts(self) -> dict[str, Any]:
        """All of it as plain values."""
        parts = {"trained": self.trained, "tested": self.tested}
        if self.default is not None:
            parts["default"] = self.default
        return {
            "target": self.target.text,
            "strategy": self.strategy.name,
            "policy": label(self.strategy),
            "recipe": repr(self.strategy),
            "polling_table": self.table(),
            "price": self.price.what,
            "trained_on_share": self.share,
            "tried": self.tried,
            "holds": self.holds,
            **{name: self._part(done) for name, done in parts.items()},
        }

    def _part(self, done: Replay) -> dict[str, Any]:
        return {
            "trace": done.trace,
            "span_s": figures(done.span),
            "arrivals": done.found,
            "polls": done.polls,
            "polls_an_hour": figures(done.polls_an_hour),
            "dollars_a_month": figures(done.polls / done.span * MONTH * self.price.dollars),
            "wait_mean_s": figures(done.mean_wait),
            "wait_p50_s": figures(done.wait(0.5)),
            "wait_p95_s": figures(done.wait(0.95)),
            "wait_p99_s": figures(done.wait(0.99)),
            "wait_max_s": figures(done.wait(1.0)),
            "meets_target": self.target.excess(done) <= SLACK,
        }


def tune(
    trace: Trace,
    name: str,
    target: Target,
    price: Price,
    terms: Terms,
    *,
    share: float = SHARE,
    min_interval: float = FLOOR,
    max_interval: float | None = None,
    capacity: int | None = None,
    progress: Progress | None = None,
) -> Tuned:
    """Find settings of a strategy on the first part of a trace, and test them on the rest.

    min_interval, max_interval: bounds of every delay that is tried.
    """
    first, rest = split(trace, share)
    low, high = _bounds(target, min_interval, max_interval)
    search = _Search(
        first, target, space(name, low, high, terms), Situation(capacity=capacity), progress
    )
    best = search.walk() if len(search.space.axes) == 1 else search.around(search.grid())
    trained = search.done[best]
    if target.excess(trained) > 0:
        raise _unreachable(target, best, trained, min_interval, high)
    tested = replay(rest, best, search.situation)
    default = replay(rest, parse_one(best.name, terms), search.situation)
    return Tuned(target, best, price, share, len(search.done), trained, tested, default)


def _bounds(target: Target, min_interval: float, max_interval: float | None) -> tuple[float, float]:
    """Delays worth trying: from a fraction of the target to a multiple of it."""
    about = HOUR / target.value if target.is_budget else target.value
    low = max(min_interval, about / DEPTH)
    high = max(min(about * REACH, LONGEST), min_interval) if max_interval is None else max_interval
    if max_interval is not None and max_interval < min_interval:
        raise ConfigError(
            f"min_interval = {short(min_interval)} is above max_interval = "
            f"{short(max_interval)}; lower the min_interval or "
            "raise the max_interval"
        )
    return min(low, high), high


def _unreachable(
    target: Target, best: Strategy, done: Replay, min_interval: float, max_interval: float
) -> ConfigError:
    nearest = target.says(target.measured(done))
    if target.is_budget:
        advice = f"raise the budget, or --max_interval above {short(max_interval)}"
    else:
        advice = f"relax the target, or lower --min_interval below {short(min_interval)}"
    return ConfigError(
        f"no setting of {best.name} reaches {target.text}; the nearest is {nearest}, by "
        f"{label(best)}; {advice}"
    )


class _Search:
    """Settings tried on one trace, each once, and the best of them."""

    def __init__(
        self,
        trace: Trace,
        target: Target,
        tried: Space,
        situation: Situation,
        progress: Progress | None,
    ) -> None:
        self.trace = trace
        self.target = target
        self.space = tried
        self.situation = situation
        self.done: dict[Strategy, Replay] = {}
        self._points: dict[Strategy, Point] = {}
        self._progress = progress or (lambda done, total: None)
        self._expected = 1

    def expect(self, more: int) -> None:
        """So many more replays are to come, at most."""
        self._expected = len(self.done) + more

    def of(self, point: Point) -> Strategy:
        """The strategy at a point, replayed."""
        strategy = self.space.strategy(point)
        if strategy not in self.done:
            self.done[strategy] = replay(self.trace, strategy, self.situation)
            self._points[strategy] = point
            self._progress(len(self.done), max(self._expected, len(self.done)))
        return strategy

    def score(self, strategy: Strategy) -> tuple[float, float, float]:
        return self.target.score(self.done[strategy])

    def best(self, strategies: Iterable[Strategy]) -> Strategy:
        return min(strategies, key=self.score)

    def grid(self) -> Strategy:
        """The best of the grid."""
        points = self.space.grid()
        self.expect(len({self.space.strategy(point) for point in points}))
        return self.best([self.of(point) for point in points])

    def walk(self) -> Strategy:
        """From cheap to dear until the goal is in reach or the budget is spent; then halve."""
        (axis,) = self.space.axes
        fixed = isinstance(self.space.strategy((axis.low,)), Fixed)
        if fixed:  # the only good ones for arrivals by the clock
            for interval in ROUND:
                if axis.low <= interval <= axis.high:
                    self.of((interval,))
        points = axis.points(max(self.space.counts[0] // 2, 5))
        if fixed:
            points.reverse()  # long intervals are the cheap ones
        self.expect(len(points) // 2 + HALVINGS)
        cheap = points[0]
        self.of((cheap,))
        for dear in points[1:]:
            done = self.done[self.of((dear,))]
            met = self.target.excess(done) == 0
            if met != self.target.is_budget:  # the target is met, or the budget overdrawn
                break
            cheap = dear
        else:
            return self.best(self.done)
        for _ in range(HALVINGS):
            middle = math.sqrt(cheap * dear)
            met = self.target.excess(self.done[self.of((middle,))]) == 0
            if met != self.target.is_budget:
                dear = middle
            else:
                cheap = middle
        return self.best(self.done)

    def around(self, found: Strategy) -> Strategy:
        """Better settings near the best ones, in ever smaller steps."""
        starts = sorted(self.done, key=self.score)[:STARTS]
        self.expect(len(STEPS) * len(self.space.axes) * 2 * len(starts))
        for start in (found, *starts):
            at = start
            for step in STEPS:
                for _ in range(MOVES):
                    near = [self.of(point) for point in self.space.around(self._points[at], step)]
                    better = self.best([at, *near])
                    if self.score(better) >= self.score(at):
                        break
                    at = better
            found = self.best([found, at])
        return found
