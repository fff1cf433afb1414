"""How long things take: a forecast of when a run ends, learned from the runs before it.

Polling sees ends only roughly: a run that the third poll found finished ended between the second
poll and the third. So a run is kept as a weight of 1 over the bins of that time, spread by the
forecast of that moment. Bins have a constant ratio.

The forecast is a mixture of simple ones, which differ in two ways. They have one of two memories:
the last few runs, or many. And they have one of four widths of a kernel in log time, which says how
far a run counts for times near its own; with little evidence, a narrower one falls back to the next
wider one. The weights of the mixture follow how well each part predicted the runs so far. Where
nothing is known, all times are equally likely on a log scale.

`docs/why/until.md` has the derivation; `pollwise.core.forecast.best_polls` finds the best polls.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul
from typing import Any, TypeGuard

from pollwise.core.forecast.best_polls import best_polls
from pollwise.durations import Duration, seconds, shown
from pollwise.errors import ConfigError

#: Where the first bin ends, in seconds.
FIRST_END = 1e-3
#: How many bins follow while time doubles.
PER_DOUBLING = 32
#: The number of bins, which reach to 29 days.
BINS = 1000
#: How many runs each memory keeps.
MEMORIES = (8.0, 80.0)
#: The widths of the kernels, in log time.
WIDTHS = (1.0, 0.3, 0.1, 0.03)
#: For each width, the weight of the next wider forecast, in runs.
FALL_BACK = (0.5, 0.5, 1.0, 1.0)
#: A part of the time in which the run ended with a smaller probability gets no weight.
NEGLIGIBLE = 0.003
#: How much of the mixture is spread evenly again at each run, so that no part is lost forever.
SHARE = 0.02
#: The longest step in the grid of a plan, in bins.
BLOCK = 8
#: The points of the grid between two polls.
POINTS = 4.0
#: The share of the known runs that the grid covers.
HORIZON = 0.95
#: The share of a run that counts for each block after it.
LEAK = 0.03
#: The longest step outside of the grid, in bins.
COARSE = 32
#: How many plans are kept.
PLANS = 8
#: Each of the first FRESH runs outdates the plans, and later every KEPT-th run does.
FRESH, KEPT = 16, 2

_PARTS = len(MEMORIES) * len(WIDTHS)
#: The ends of the bins, from 0: bin k is from _ENDS[k] to _ENDS[k + 1].
_ENDS: tuple[float, ...] = (0.0, *(FIRST_END * 2.0 ** (k / PER_DOUBLING) for k in range(BINS)))
LONGEST = _ENDS[-1]
_LOG_STEP = math.log(2.0) / PER_DOUBLING
#: By width and step: what is left of a weight after the step, and of one spread over the step.
_LEFT = tuple(
    tuple(math.exp(-step * _LOG_STEP / width) for step in range(BINS + 1)) for width in WIDTHS
)
_PASSED = tuple(
    (1.0, *((1.0 - left) * width / (step * _LOG_STEP) for step, left in enumerate(lefts[1:], 1)))
    for width, lefts in zip(WIDTHS, _LEFT, strict=True)
)
_TINY = 1e-12  # avoids a division by zero
_VERSION = 1
_DIGITS = 5  # of the weights in a dump
_RUNS_MAX = 10**15


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A forecast of when a run ends, and the best polls of a part of the time, for one price.

    marks: a grid, as ends of bins. parts: by part of the mixture, the probability to have finished
    by each mark. finished: the same of the mixture. grid: the marks at which polls are planned.
    polls: the best next poll after a poll at each of them but the last.
    """

    price: float
    marks: Sequence[int]
    parts: Sequence[Sequence[float]]
    finished: Sequence[float]
    grid: Sequence[int]
    polls: Sequence[int]

    def covers(self, price: float, mark: int) -> bool:
        """True if the plan has the next poll after a poll at this mark."""
        return self.price == price and self.grid[0] <= mark < self.grid[-1]

    def next_poll(self, mark: int) -> float:
        """The time of the best next poll after a poll at this mark."""
        return _ENDS[self.polls[bisect_right(self.grid, mark) - 1]]


class Durations:
    """How long runs of one kind took. Give the same object to every strategy that waits for them.

    history = Durations()
    history.add(12.5)
    strategy = Completion(poll_cost=1, wait_cost=0.1, history=history)
    """

    __slots__ = ("_bins", "_high", "_low", "_mixture", "_plans", "_runs")

    def __init__(self) -> None:
        self._runs = 0
        self._bins = [[0.0] * BINS for _ in MEMORIES]
        self._low, self._high = BINS, 0  # the bins in use
        self._mixture = [1.0 / _PARTS] * _PARTS
        self._plans: list[RunPlan] = []

    def __repr__(self) -> str:
        return f"<Durations of {self._runs} runs>"

    @property
    def runs(self) -> int:
        """How many runs were added."""
        return self._runs

    def add(self, took: Duration) -> None:
        """Learn that a run took this long."""
        end = min(seconds(took, "took"), LONGEST)
        first = max(bisect_left(_ENDS, end) - 1, 0)
        self._learn(first, first + 1)

    def add_between(self, earliest: Duration, latest: Duration) -> None:
        """Learn that a run took more than `earliest` and at most `latest`."""
        low, high = seconds(earliest, "earliest"), seconds(latest, "latest")
        if low > high:
            raise ConfigError(
                f"earliest = {shown(earliest)} is above latest = {shown(latest)}; swap them"
            )
        first = min(_mark(low), BINS - 1)
        self._learn(first, max(_mark(high), first + 1))

    def add_unfinished(self, after: Duration) -> None:
        """Learn that a run had not finished after this time; its end is unknown."""
        self._learn(min(_mark(seconds(after, "after")), BINS - 1), BINS)

    def next_poll(self, price: float, elapsed: float = 0.0) -> float:
        """Return when to poll a run next that had not finished after `elapsed`.

        price: how many seconds of waiting are worth a poll. The answer counts from the start of the
        run, as `elapsed` does, and is later than `elapsed`. It is inf after the last bin.
        """
        mark = _mark(elapsed)
        if mark == BINS:
            return math.inf
        price = min(max(price, FIRST_END), LONGEST)
        return self._plan_for(price, mark).next_poll(mark)

    def curve(self, price: float) -> list[tuple[float, float]]:
        """Pairs of a time in seconds and the probability that a run has finished by then.

        price: as in `next_poll`; the times are as close together as a plan for this price needs.
        """
        plan = self._plan_for(min(max(price, FIRST_END), LONGEST), 0)
        return [(_ENDS[mark], share) for mark, share in zip(plan.marks, plan.finished, strict=True)]

    def dump(self) -> dict[str, Any]:
        """Return everything that was learned, as plain JSON, for `load`."""
        columns = [[round(each, _DIGITS) for each in bins] for bins in self._bins]
        weights = [[k, *row] for k, row in enumerate(zip(*columns, strict=True)) if any(row)]
        return {
            "version": _VERSION,
            "runs": self._runs,
            "mixture": list(self._mixture),
            "weights": weights,
        }

    @classmethod
    def load(cls, state: object) -> Durations:
        """The durations that `dump` wrote. Raises `ConfigError` for anything else."""
        if not isinstance(state, dict) or state.get("version") != _VERSION:
            raise _bad(f"is not of version {_VERSION}")
        runs, mixture, weights = (state.get(key) for key in ("runs", "mixture", "weights"))
        if not isinstance(runs, int) or isinstance(runs, bool) or not 0 <= runs <= _RUNS_MAX:
            raise _bad(f"has runs = {shown(runs)}, not a number of runs")
        if not _numbers(mixture, _PARTS, 1.0) or not 0.999 < sum(mixture) < 1.001:
            raise _bad(f"has mixture = {shown(mixture)}, not {_PARTS} shares of 1")
        if not isinstance(weights, list) or len(weights) > BINS:
            raise _bad(f"has weights = {shown(weights)}, not a list of at most {BINS} bins")
        made = cls()
        for row in weights:
            bin_ = row[0] if isinstance(row, list) and row else None
            if type(bin_) is not int or not 0 <= bin_ < BINS:
                raise _bad(f"has {shown(row)} in its weights, not a bin below {BINS}")
            if not _numbers(row[1:], len(MEMORIES), max(MEMORIES)):
                raise _bad(f"has {shown(row)} in its weights, not {len(MEMORIES)} weights of a bin")
            for bins, weight in zip(made._bins, row[1:], strict=True):
                bins[bin_] = float(weight)
            made._low, made._high = min(made._low, bin_), max(made._high, bin_ + 1)
        for bins, memory in zip(made._bins, MEMORIES, strict=True):
            if sum(bins) > memory * 1.001:
                raise _bad(f"holds {sum(bins):g} runs in a memory of {memory:g}")
        made._runs, made._mixture = runs, [*map(float, mixture)]
        return made

    def _plan_for(self, price: float, mark: int) -> RunPlan:
        """Return a plan with the next poll after a poll at this mark; make it if there is none."""
        for plan in self._plans:
            if plan.covers(price, mark):
                return plan
        if len(self._plans) == PLANS:
            self._plans.clear()
        self._plans.append(self._plan(price, mark))
        return self._plans[-1]

    def _plan(self, price: float, since: int) -> RunPlan:
        """Forecast the end of a run, and plan its polls from a mark on.

        Polls are planned for the time in which most runs end; a run that takes longer gets another
        plan. So the grid is fine where it matters, and small.
        """
        low, high = self._low, self._high
        known = []  # by memory, the weight before each bin
        for bins in self._bins:
            used = list(accumulate(bins[low:high], initial=0.0))
            known.append([0.0] * low + used + [used[-1]] * (BINS - high))
        grid = _grid(known[-1], price, since)
        outside = {0, *range(low, since, COARSE), *range(grid[-1], high, COARSE), BINS}
        marks = sorted({*grid, *outside, min(grid[-1] + 2 * COARSE, BINS)})
        steps = [after - before for before, after in pairwise(marks)]
        slopes = [
            [(left[step], passed[step]) for step in steps]
            for left, passed in zip(_LEFT, _PASSED, strict=True)
        ]
        parts = []
        for weights in known:
            before = [weights[mark] for mark in marks]
            masses = [after - upto for upto, after in pairwise(before)]
            part = [mark / BINS for mark in marks]
            for slope, weight in zip(slopes, FALL_BACK, strict=True):
                part = _smoothed(before, masses, slope, weight, part)
                parts.append(part)
        mixture = self._mixture
        finished = [sum(map(mul, mixture, column)) for column in zip(*parts, strict=True)]
        first = marks.index(since)
        planned = finished[first : first + len(grid)]
        polls = best_polls([_ENDS[mark] for mark in grid], planned, price)
        return RunPlan(price, marks, parts, finished, grid, [grid[n] for n in polls])

    def _learn(self, first: int, last: int) -> None:
        """Learn that a run ended in the bins from `first` to `last`, without the last."""
        plan = self._plans[-1] if self._plans else self._plan(max(_ENDS[first], FIRST_END), first)
        marks, finished = plan.marks, plan.finished
        cells = []  # of the plan's grid: which, from which bin, to which, and what share of it
        n = bisect_right(marks, first) - 1
        while n + 1 < len(marks) and marks[n] < last:
            begin, end = max(marks[n], first), min(marks[n + 1], last)
            cells.append((n, begin, end, (end - begin) / (marks[n + 1] - marks[n])))
            n += 1
        fits = [
            held * (sum([share * (part[n + 1] - part[n]) for n, _, _, share in cells]) + _TINY)
            for held, part in zip(self._mixture, plan.parts, strict=True)
        ]
        whole = (1.0 - SHARE) / sum(fits)
        self._mixture = [whole * fit + SHARE / _PARTS for fit in fits]
        masses = [share * (finished[n + 1] - finished[n]) + _TINY for n, _, _, share in cells]
        least = NEGLIGIBLE * sum(masses)
        held = [(begin, end, mass) for (_, begin, end, _), mass in zip(cells, masses, strict=True)
                if mass > least]  # fmt: skip
        whole = 1.0 / sum([mass for _, _, mass in held])
        self._low, self._high = min(self._low, held[0][0]), max(self._high, held[-1][1])
        used = slice(self._low, self._high)
        for bins, memory in zip(self._bins, MEMORIES, strict=True):
            left = 1.0 - 1.0 / memory
            bins[used] = [left * weight for weight in bins[used]]
            for begin, end, mass in held:
                more = whole * mass / (end - begin)
                bins[begin:end] = [weight + more for weight in bins[begin:end]]
        self._runs = min(self._runs + 1, _RUNS_MAX)
        if self._runs < FRESH or self._runs % KEPT == 0:
            self._plans.clear()


def _smoothed(
    before: Sequence[float], masses: Sequence[float], slope: Sequence[tuple[float, float]],
    weight: float, wider: Sequence[float],
) -> list[float]:  # fmt: skip
    """The probability to have finished by each mark, by runs whose weight spreads to both sides.

    before: the weight of runs before each mark. masses: that of each step. slope: what is left of a
    weight at the end of each step, if it came at the start, and if it came evenly. wider: what to
    fall back to. The kernel falls exponentially on both sides, so two passes are enough.
    """
    behind = 0.0
    found = []
    for mass, (left, passed), upto in zip(masses, slope, before[1:], strict=True):
        behind = behind * left + mass * passed
        found.append(upto - 0.5 * behind)
    whole = 1.0 / (weight + before[-1])
    ahead = 0.0
    rest = zip(reversed(masses), reversed(slope), reversed(found), reversed(wider), strict=False)
    found = []
    for mass, (left, passed), upto, other in rest:
        found.append((weight * other + upto + 0.5 * ahead) * whole)
        ahead = ahead * left + mass * passed
    found.append(0.0)
    found.reverse()
    return found


def _grid(known: Sequence[float], price: float, since: int) -> list[int]:
    """The marks between which to plan: so dense that several lie between two polls.

    known: the weight of runs before each mark. Where a share f of the runs ends per second, of the
    share s that is left, polls are best about √(2 · price · s / f) apart.
    """
    weight = known[-1] + FALL_BACK[0]
    gone = known[since]
    left = known[-1] - gone
    most = bisect_left(known, gone + HORIZON * left) if left > _TINY else since
    horizon = min(max(most, since + COARSE, _mark(8.0 * price)) + BLOCK, BINS)
    begin = min(max(_mark(_ENDS[since] + price / 8.0), since), BINS - 1)
    grid = [since] if begin == since else [since, begin]
    scale = POINTS / math.sqrt(2.0 * price)
    points, gone = 0.0, known[begin]
    while begin < horizon:
        end = min(begin + BLOCK, BINS)
        mass = known[end] - gone + LEAK * gone + FALL_BACK[0] * BLOCK / BINS
        here = mass * (_ENDS[end] - _ENDS[begin]) / max(weight - gone, FALL_BACK[0])
        points += scale * math.sqrt(here)
        begin, gone = end, known[end]
        if points >= 1.0 or begin >= horizon:
            step = next(step for step in (8, 4, 2, 1) if step == 1 or points * step < 12.0)
            grid += [
                mark for mark in range(begin - BLOCK + step, begin + 1, step) if mark > grid[-1]
            ]
            points = 0.0
    return grid


def _mark(elapsed: float) -> int:
    """The end of a bin that is nearest to a time."""
    n = bisect_left(_ENDS, elapsed)
    if n > BINS:
        return BINS
    return n - 1 if n and elapsed - _ENDS[n - 1] < _ENDS[n] - elapsed else n


def _numbers(values: object, count: int, most: float) -> TypeGuard[list[float]]:
    """True for a list of this many numbers from 0 to `most`."""
    return (
        isinstance(values, list)
        and len(values) == count
        and all(type(value) in (int, float) and 0 <= value <= most for value in values)
    )


def _bad(problem: str) -> ConfigError:
    return ConfigError(f"state {problem}; give what Durations.dump returned, unchanged")
