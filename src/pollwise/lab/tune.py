"""Tune: the cheapest settings that meet a latency goal, or the least waiting within a budget.

Settings are chosen on the first part of a trace and tested on the rest. Both results are reported;
only the second says what to expect. A strategy with several numbers is searched over a grid and
then in smaller steps around its best points. One with a single number goes from cheap to expensive
until it meets the goal, and then bisects: expensive settings poll often and are slow to replay.
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
from pollwise.lab.policies import CostTerms, Point, SearchSpace, label, parse_one, space
from pollwise.lab.prices import MONTH, Price, dollars_a_month
from pollwise.lab.replay.base import Replay, Situation, Trace, figures
from pollwise.lab.replay.engine import replay
from pollwise.lab.replay.limits import ROUND
from pollwise.lab.texts import amount, brief, percent
from pollwise.lab.traces.reading import split
from pollwise.settings import polling_table

HOUR = 3600.0
#: The share of a trace that settings are chosen on.
SHARE = 0.6
#: The shortest delay that is tried, in seconds.
MIN_INTERVAL = 0.01
#: The longest delay by default: the goal, or the pause that spends the budget, times this.
REACH = 20.0
LONGEST = 86400.0
#: The shortest delay by default: the goal divided by this.
DEPTH = 20.0
#: Steps around the best point, as shares of a grid's step, and moves at each step size.
STEPS = (0.5, 0.25, 0.125, 0.06)
MOVES = 4
#: How many of the best points of the grid are searched around.
STARTS = 3
HALVINGS = 8
#: A goal that is missed by a smaller share is missed by chance.
SLACK = 0.05

MEASURES = {"mean": None, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
#: Units of time of a budget, in seconds.
_PER = {"hour": HOUR, "h": HOUR, "min": 60.0, "minute": 60.0, "s": 1.0, "second": 1.0,
        "d": 86400.0, "day": 86400.0, "month": MONTH}  # fmt: skip
_BUDGET = re.compile(
    r"(\$?)\s*([0-9.,e+-]+)\s*(\$?)\s*(?:polls)?\s*(?:/\s*([a-z]+))?", re.IGNORECASE
)

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class TuningGoal:
    """What settings must reach.

    measure: "mean", "p95", … of the waits, or "budget".
    value: seconds, or polls an hour for a budget.
    """

    text: str
    measure: str
    value: float

    @property
    def is_budget(self) -> bool:
        return self.measure == "budget"

    def measured(self, done: Replay) -> float:
        """The measure in a replay."""
        if self.is_budget:
            return done.polls_an_hour
        share = MEASURES[self.measure]
        return done.mean_wait if share is None else done.wait(share)

    def excess(self, done: Replay) -> float:
        """The share by which a replay misses the goal; 0 if it meets it."""
        return max(self.measured(done) / self.value - 1, 0.0)

    def is_met(self, done: Replay) -> bool:
        """True if the measure, as it is printed, is not above the goal."""
        return float(f"{self.measured(done):.3g}") <= self.value

    def score(self, done: Replay) -> tuple[float, float, float]:
        """A rank, lower is better: first the goal, then polls or, for a budget, the wait."""
        if self.is_budget:
            return self.excess(done), done.mean_wait, done.polls
        return self.excess(done), done.polls, done.mean_wait

    def says(self, value: float) -> str:
        """A value of the measure, as text."""
        if self.is_budget:
            return f"{amount(value)} polls an hour"
        return f"{self.measure} = {brief(value)}"


def parse_goal(text: str, price: Price) -> TuningGoal:
    """Read `p95=2s`, `mean=500ms`, `budget=720/hour` or `budget=$5/month`."""
    name, equals, value = (part.strip() for part in text.partition("="))
    measure = name.lower()
    if measure == "budget" and equals:
        return TuningGoal(text.strip(), measure, _budget(text, value, price))
    if not equals or measure not in MEASURES:
        raise ConfigError(
            f"goal {shown(text)} is not one of p95=2s, mean=500ms, budget=720/hour (polls) and "
            f"'budget=$5/month'; latencies: {', '.join(MEASURES)}"
        )
    return TuningGoal(text.strip(), measure, seconds(value, f"goal {measure}", positive=True))


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
            f"goal {shown(text)} is not a budget; write budget=720/hour for polls, or "
            "'budget=$5/month' in quotes, because the shell replaces the dollar sign"
        )
    if not dollars:
        return amount / per * HOUR
    if not price.dollars:
        raise ConfigError(
            f"goal {shown(text)} needs a price, and a poll costs nothing ({price.what}); "
            "give --price, or a budget in polls such as budget=720/hour"
        )
    return amount / price.dollars / per * HOUR


@dataclass(frozen=True)
class TuningResult:
    """The settings found, and their replays of both parts of the trace."""

    goal: TuningGoal
    strategy: Strategy
    price: Price
    share: float
    tried: int
    trained: Replay
    tested: Replay
    default: Replay | None = field(default=None)

    @property
    def holds(self) -> bool:
        """True if the goal is met on the part that the settings were not chosen on."""
        return self.goal.is_met(self.tested)

    @property
    def conclusion(self) -> str:
        """One sentence on whether to trust the settings."""
        got = self.goal.says(self.goal.measured(self.tested))
        missed = self.goal.excess(self.tested)
        if self.holds:
            return f"On the rest of the trace the goal is met: {got}."
        text = f"On the rest of the trace the goal is missed by {percent(missed)}: {got}."
        if missed <= SLACK:
            return f"{text} Choose a goal that is a little stricter, to leave some room."
        return (
            f"{text} Its traffic differs from the first part; choose a stricter goal, or tune on a "
            "longer trace."
        )

    def table(self) -> str | None:
        """The settings as a table for pollwise.toml, or None if settings cannot express them."""
        try:
            return polling_table(self.strategy)
        except ConfigError:
            return None

    def facts(self) -> dict[str, Any]:
        """The result as plain values."""
        parts = {"trained": self.trained, "tested": self.tested}
        if self.default is not None:
            parts["default"] = self.default
        return {
            "goal": self.goal.text,
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
            **done.measures(),
            "dollars_a_month": figures(dollars_a_month(done.polls, done.span, self.price)),
            "meets_goal": self.goal.is_met(done),
        }


def tune(
    trace: Trace,
    name: str,
    goal: TuningGoal,
    price: Price,
    terms: CostTerms,
    *,
    share: float = SHARE,
    min_interval: float = MIN_INTERVAL,
    max_interval: float | None = None,
    capacity: int | None = None,
    progress: Progress | None = None,
) -> TuningResult:
    """Find settings of a strategy on the first part of a trace, and test them on the rest.

    min_interval, max_interval: bounds of every delay that is tried.
    """
    first, rest = split(trace, share)
    low, high = _bounds(goal, min_interval, max_interval)
    tell = progress or (lambda done, total: None)
    situation = Situation(capacity=capacity)
    search = _Search(first, goal, space(name, low, high, terms), situation, tell)
    best = search.walk() if len(search.space.axes) == 1 else search.around(search.grid())
    trained = search.done[best]
    if goal.excess(trained) > 0:
        raise _unreachable(goal, best, trained, min_interval, high)
    tested = replay(rest, best, search.situation)
    default = replay(rest, parse_one(best.name, terms), search.situation)
    return TuningResult(goal, best, price, share, len(search.done), trained, tested, default)


def _bounds(
    goal: TuningGoal, min_interval: float, max_interval: float | None
) -> tuple[float, float]:
    """Delays worth trying: from a fraction of the goal to a multiple of it."""
    about = HOUR / goal.value if goal.is_budget else goal.value
    low = max(min_interval, about / DEPTH)
    high = max(min(about * REACH, LONGEST), min_interval) if max_interval is None else max_interval
    if max_interval is not None and max_interval < min_interval:
        raise ConfigError(
            f"--min-interval {short(min_interval)} is above --max-interval "
            f"{short(max_interval)}; lower the first or raise the second"
        )
    return min(low, high), high


def _unreachable(
    goal: TuningGoal, best: Strategy, done: Replay, min_interval: float, max_interval: float
) -> ConfigError:
    nearest = goal.says(goal.measured(done))
    if goal.is_budget:
        advice = f"raise the budget, or raise --max-interval above {short(max_interval)}"
    else:
        advice = f"relax the goal, or lower --min-interval below {short(min_interval)}"
    return ConfigError(
        f"no setting of {best.name} reaches {goal.text}; the nearest is {nearest}, by "
        f"{label(best)}; {advice}"
    )


@dataclass
class _Search:
    """Settings tried on one trace, each once."""

    trace: Trace
    goal: TuningGoal
    space: SearchSpace
    situation: Situation
    progress: Progress
    done: dict[Strategy, Replay] = field(default_factory=dict)
    points: dict[Strategy, Point] = field(default_factory=dict)
    expected: int = 1

    def expect(self, more: int) -> None:
        """Note how many more replays will come, at most."""
        self.expected = len(self.done) + more

    def of(self, point: Point) -> Strategy:
        """The strategy at a point; replays it if that was not done yet."""
        strategy = self.space.strategy(point)
        if strategy not in self.done:
            self.done[strategy] = replay(self.trace, strategy, self.situation)
            self.points[strategy] = point
            self.progress(len(self.done), max(self.expected, len(self.done)))
        return strategy

    def score(self, strategy: Strategy) -> tuple[float, float, float]:
        return self.goal.score(self.done[strategy])

    def best(self, strategies: Iterable[Strategy]) -> Strategy:
        return min(strategies, key=self.score)

    def grid(self) -> Strategy:
        """The best of the grid."""
        points = self.space.grid()
        self.expect(len({self.space.strategy(point) for point in points}))
        return self.best([self.of(point) for point in points])

    def walk(self) -> Strategy:
        """Go from cheap to expensive until the goal is met or the budget is spent; then bisect."""
        (axis,) = self.space.axes
        fixed = isinstance(self.space.strategy((axis.low,)), Fixed)
        if fixed:  # only these suit arrivals that follow the clock
            for interval in ROUND:
                if axis.low <= interval <= axis.high:
                    self.of((interval,))
        points = axis.points(max(self.space.counts[0] // 2, 5))
        if fixed:
            points.reverse()  # long intervals are cheap
        self.expect(len(points) // 2 + HALVINGS)
        cheap = points[0]
        self.of((cheap,))
        for expensive in points[1:]:
            done = self.done[self.of((expensive,))]
            met = self.goal.excess(done) == 0
            if met != self.goal.is_budget:  # the goal is met, or the budget is exceeded
                break
            cheap = expensive
        else:
            return self.best(self.done)
        for _ in range(HALVINGS):
            middle = math.sqrt(cheap * expensive)
            met = self.goal.excess(self.done[self.of((middle,))]) == 0
            if met != self.goal.is_budget:
                expensive = middle
            else:
                cheap = middle
        return self.best(self.done)

    def around(self, found: Strategy) -> Strategy:
        """Better settings near the best ones, in smaller and smaller steps."""
        starts = sorted(self.done, key=self.score)[:STARTS]
        self.expect(len(STEPS) * len(self.space.axes) * 2 * len(starts))
        for start in (found, *starts):
            at = start
            for step in STEPS:
                for _ in range(MOVES):
                    near = [self.of(point) for point in self.space.around(self.points[at], step)]
                    better = self.best([at, *near])
                    if self.score(better) >= self.score(at):
                        break
                    at = better
            found = self.best([found, at])
        return found
