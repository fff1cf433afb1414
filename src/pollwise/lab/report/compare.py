"""Which policy to take: strategies compared on one trace, in dollars and in waiting.

Polls and waiting get a price each: dollars for a poll, and for a second that one item waits. The
policy to take has the lowest sum. Limits that no policy can beat on this trace are shown beside
them. `Comparison.facts` has everything as plain values; page and pictures are drawn from it alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.worth import Worth
from pollwise.durations import short
from pollwise.errors import ConfigError
from pollwise.lab.numeric import np
from pollwise.lab.policies import CostTerms, known, label, rounded, space
from pollwise.lab.prices import MONTH, Price
from pollwise.lab.replay import limits
from pollwise.lab.replay.base import Replay, Situation, Trace, figures
from pollwise.lab.replay.engine import replay
from pollwise.lab.replay.fast import sweep
from pollwise.lab.texts import amount, brief, compared, money, percent
from pollwise.lab.traces.resampled import resampled

HOUR = 3600.0
#: The default price of a second that one item waits: a cent an hour.
WAIT_PRICE = "0.01/3600"
#: Bins of time that rates are counted in, and points of the distribution of waits.
BINS = 120
LEVELS = 200
#: Sweeps try delays from the best fixed interval divided by this to the same multiplied by it.
REACH = 20.0
#: Settings that need more polls than this in a replay are not tried, to stay fast.
SWEPT_POLLS = 300_000
#: Worth is tried at these multiples of the price of waiting, with at most this many polls.
WORTH_FACTORS = (0.01, 0.03, 0.1, 0.3, 3.0, 10.0, 30.0)
WORTH_POLLS = 50_000
#: With a capacity, the best fixed interval is the best of this many, up to the one without.
NARROWED = 40
#: Policies are near each other if their polls differ by no more than this factor.
NEAR = 1.7
#: The cost of each policy is also found on this many traces resampled from the one given.
RESAMPLED = 4
FORMATS = (".html", ".svg")

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class PolicyResult:
    """One policy and its replay; dollars are for a month at the rate of the trace.

    others: what it would cost on other traces like this one, resampled from it.
    """

    name: str
    family: str
    done: Replay
    poll_dollars: float
    wait_dollars: float
    others: tuple[float, ...] = ()

    @property
    def dollars(self) -> float:
        """Polls and waiting together, rounded as reports keep it."""
        return figures(self.poll_dollars + self.wait_dollars)

    @property
    def range(self) -> tuple[float, float]:
        """The lowest and the highest cost, on this trace and on those like it."""
        every = (self.dollars, *self.others)
        return min(every), max(every)

    @property
    def forecast(self) -> str:
        """The range as text; one figure if both ends read alike."""
        low, high = map(money, self.range)
        return low if low == high else f"{low} to {high}"

    def costs(self) -> dict[str, float]:
        return {
            "poll_dollars_a_month": self.poll_dollars,
            "wait_dollars_a_month": self.wait_dollars,
            "dollars_a_month": self.dollars,
        }


@dataclass(frozen=True)
class CostLimit:
    """A cost that policies can be compared with. policy: what has that cost, if it has a name."""

    name: str
    what: str
    dollars: float
    polls_an_hour: float
    mean_wait: float
    policy: str = ""


@dataclass(frozen=True)
class Comparison:
    """Policies compared on one trace, ready to be shown."""

    trace: Trace
    price: Price
    terms: CostTerms
    lines: list[PolicyResult]
    swept: list[PolicyResult]
    limits: list[CostLimit]
    situation: Situation = field(default_factory=Situation)

    @property
    def chosen(self) -> PolicyResult:
        """The policy to take: the cheapest, polls and waiting together."""
        return min(self.lines, key=lambda line: line.dollars)

    @property
    def baseline(self) -> PolicyResult | None:
        """What most people would write: the first fixed interval, else the next best policy."""
        others = sorted(
            (line for line in self.lines if line is not self.chosen), key=lambda line: line.dollars
        )
        named = (line for line in self.lines if line in others and line.family == "fixed")
        return next(named, others[0] if others else None)

    @property
    def headline(self) -> str:
        """Which policy to take, and what it costs beside the best fixed interval."""
        best = self.chosen
        text = f"Take {best.name}: {best.forecast} a month for polls and waiting"
        if best.forecast != money(best.dollars):
            text += f" ({money(best.dollars)} on this trace)"
        if self.limits:
            fixed = self.limits[0]
            beside = (
                f"the best fixed interval in hindsight ({fixed.policy}, {money(fixed.dollars)})"
            )
            return f"{text}, {compared(best.dollars, fixed.dollars)} {beside}."
        other = self.baseline
        return f"{text}." if other is None else f"{text}, {self._beside(other)}."

    def _beside(self, other: PolicyResult) -> str:
        cost = compared(self.chosen.dollars, other.dollars)
        return f"{cost} {other.name} ({money(other.dollars)})"

    def notes(self) -> list[str]:
        """Further facts, one sentence each."""
        best, done = self.chosen, self.chosen.done
        paid = f"{amount(done.polls_an_hour)} times an hour ({money(best.poll_dollars)} a month)"
        got = (
            f"{brief(done.mean_wait)} on average, 95 of 100 at most {brief(done.wait(0.95))}, "
            f"the longest {brief(done.wait(1.0))}"
        )
        terms = (
            f"Price of a poll: {self.price.what}. Price of an hour that an item waits: "
            f"{money(self.terms.wait * HOUR)}."
        )
        notes = [f"It polls {paid}; an item waits {got}."]
        if self.limits and self.baseline is not None:
            notes.append(f"It costs {self._beside(self.baseline)}.")
        notes.extend(self._doubts())
        notes.append(terms)
        if not self.terms.poll:
            notes.append("Polls cost nothing here, so the shortest interval wins.")
            return notes
        tuned = min(self.swept, key=lambda line: line.dollars, default=None)
        if tuned is not None and tuned.dollars < 0.98 * best.dollars:
            notes.append(
                f"In hindsight, {tuned.name} would have cost {money(tuned.dollars)}, "
                f"{percent(1 - tuned.dollars / best.dollars)} less. Use pollwise lab tune to find "
                "such settings and test them on other traffic."
            )
        return notes

    def _doubts(self) -> list[str]:
        """Which other policies win on traces like this one."""
        tries = len(self.chosen.others)
        wins: dict[str, int] = {}
        for n in range(tries):
            best = min(self.lines, key=lambda line: line.others[n])
            if best is not self.chosen:
                wins[best.name] = wins.get(best.name, 0) + 1
        if not wins:
            return []
        which = ", ".join(f"{name} in {count}" for name, count in wins.items())
        return [f"Of {tries} other traces made from parts of this one, {which} would win."]

    def facts(self) -> dict[str, Any]:
        """Everything the report shows, as plain values."""
        edges = np.linspace(0.0, self.trace.span, BINS + 1)
        # Held polls are a different kind of polling, so no line leads from them to the others.
        tried = [line for line in self.lines if "held poll" not in line.done.requests] + self.swept
        return {
            "trace": self.trace.name,
            "arrivals": len(self.trace.arrivals),
            "span_s": figures(self.trace.span),
            "rate_a_second": figures(self.trace.rate),
            "price": self.price.what,
            "dollars_a_poll": self.terms.poll,
            "dollars_a_waiting_second": figures(self.terms.wait),
            "take": self.chosen.name,
            "headline": self.headline,
            "notes": self.notes(),
            "policies": [self._policy_facts(line) for line in self.lines],
            "limits": [self._limit_facts(limit) for limit in self.limits],
            "frontier": {
                family: [_mark(line) for line in frontier(tried, family)]
                for family in dict.fromkeys(line.family for line in tried)
            },
            "time": {
                "bin_s": figures(self.trace.span / BINS),
                "arrivals_a_second": _rates(self.trace.arrivals, edges),
                "polls_a_second": {line.name: self._poll_rates(line, edges) for line in self.lines},
                "wait_mean_s": {line.name: self._waits(line, edges) for line in self.lines},
            },
            "waits": {
                "share": [number / LEVELS for number in range(1, LEVELS + 1)],
                "seconds": {line.name: _distribution(line.done) for line in self.lines},
            },
        }

    def _policy_facts(self, line: PolicyResult) -> dict[str, Any]:
        done = line.done
        return {
            "name": line.name,
            "family": line.family,
            "strategy": done.strategy,
            "take": line is self.chosen,
            "polls": done.polls,
            "empty": done.empty,
            "found": done.found,
            **done.measures(),
            **line.costs(),
            "dollars_a_month_low": line.range[0],
            "dollars_a_month_high": line.range[1],
            "ratios": {limit.name: _ratio(line.dollars, limit.dollars) for limit in self.limits},
        }

    def _limit_facts(self, limit: CostLimit) -> dict[str, Any]:
        return {
            "name": limit.name,
            "what": limit.what,
            "polls_an_hour": figures(limit.polls_an_hour),
            "wait_mean_s": figures(limit.mean_wait),
            "poll_dollars_a_month": figures(limit.polls_an_hour / HOUR * MONTH * self.terms.poll),
            "dollars_a_month": limit.dollars,
            "ratios": {each.name: _ratio(limit.dollars, each.dollars) for each in self.limits},
        }

    def _poll_rates(self, line: PolicyResult, edges: Any) -> list[float]:
        if line.done.poll_times is None:  # a fixed interval polls at one rate
            return [figures(line.done.polls_an_hour / HOUR)] * BINS
        return _rates(line.done.poll_times, edges)

    def _waits(self, line: PolicyResult, edges: Any) -> list[float | None]:
        """The mean wait of the items that arrived in each bin; None without any."""
        arrivals = self.trace.arrivals
        counts, _ = np.histogram(arrivals, edges)
        sums, _ = np.histogram(arrivals, edges, weights=line.done.waits)
        return [
            figures(total / count) if count else None
            for total, count in zip(sums, counts, strict=True)
        ]


def compare(
    trace: Trace,
    strategies: Sequence[Strategy],
    price: Price,
    terms: CostTerms,
    *,
    capacity: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Comparison:
    """Replay a trace with each strategy, and with other settings of each, and find the limits."""
    if not len(trace.arrivals) or trace.span <= 0:
        raise ConfigError(
            f"trace {trace.name!r} has {len(trace.arrivals)} arrivals in {short(trace.span)}; a "
            "comparison needs several arrivals over a period of time"
        )
    hold = any(strategy.longest_hold for strategy in strategies)
    situation = Situation(capacity=capacity, hold=hold)
    tell = progress or (lambda done, of: None)
    alike = [made for n in range(RESAMPLED) if len((made := resampled(trace, seed + n)).arrivals)]
    lines = []
    for number, strategy in enumerate(strategies, 1):
        keep = not isinstance(strategy, Fixed) or strategy.hold > 0
        done = replay(trace, strategy, situation, seed=seed, keep_polls=keep)
        tries = (replay(each, strategy, situation, seed=seed) for each in alike)
        others = tuple(_line(strategy, each, terms).dollars for each in tries)
        lines.append(replace(_line(strategy, done, terms), others=others))
        tell(number, len(strategies))
    tried = _other_settings(trace, strategies, lines, terms)
    already, total = len(strategies), len(strategies) + len(tried)
    done_tried = sweep(
        trace, tried, situation, seed=seed, progress=lambda done, _: tell(already + done, total)
    )
    swept = [_line(each, done, terms) for each, done in zip(tried, done_tried, strict=True)]
    return Comparison(trace, price, terms, lines, swept, _limits(trace, terms, capacity), situation)


def _line(strategy: Strategy, done: Replay, terms: CostTerms) -> PolicyResult:
    month = MONTH / done.span
    waited = float(done.waits.sum())
    return PolicyResult(
        label(strategy, terms),
        strategy.name,
        done,
        figures(done.polls * terms.poll * month),
        figures(waited * terms.wait * month),
    )


def _other_settings(
    trace: Trace, strategies: Sequence[Strategy], lines: Sequence[PolicyResult], terms: CostTerms
) -> list[Strategy]:
    """Other settings of each strategy to try, around the best fixed interval."""
    fair = CostTerms(terms.poll or terms.wait * trace.span / SWEPT_POLLS, terms.wait)
    middle = fair.best_interval(trace.rate)
    min_interval = max(middle / REACH, trace.span / SWEPT_POLLS)
    max_interval = max(middle * REACH, min_interval)
    found: dict[Strategy, None] = {}
    for family in dict.fromkeys(each.name for each in strategies if each.name in known()):
        if family == Worth.name:
            polls = max(line.done.polls for line in lines if line.family == family)
            found |= dict.fromkeys(_other_worths(polls, fair))
            continue
        tried = space(family, min_interval, max_interval, fair)
        found |= dict.fromkeys(map(tried.strategy, tried.grid()))
    return [each for each in found if each not in set(strategies)]


def _other_worths(polls: int, terms: CostTerms) -> list[Strategy]:
    """Worth at other prices of waiting, if few polls: its replays are not compiled.

    polls: its polls at these terms; they grow with the square root of the price.
    """
    return [
        Worth(poll_cost=terms.poll_cost, wait_cost=rounded(terms.wait * factor))
        for factor in WORTH_FACTORS
        if polls * math.sqrt(factor) <= WORTH_POLLS
    ]


def _best_fixed(trace: Trace, terms: CostTerms, capacity: int | None) -> tuple[Replay, float]:
    """The replay of the cheapest fixed interval, and the interval."""
    interval, _ = limits.best_fixed(trace.arrivals, terms.ratio, trace.span)
    situation = Situation(capacity=capacity)
    best = replay(trace, Fixed(interval), situation)
    # A poll that finds only some of the items leaves the others to the next: shorter is better.
    factors = [] if capacity is None else np.geomspace(1 / REACH, 1.0, NARROWED).tolist()
    for shorter in [max(interval * factor, trace.span / SWEPT_POLLS) for factor in factors]:
        done = replay(trace, Fixed(shorter), situation)
        if done.cost(terms.poll, terms.wait) < best.cost(terms.poll, terms.wait):
            best, interval = done, shorter
    return best, interval


def _limits(trace: Trace, terms: CostTerms, capacity: int | None) -> list[CostLimit]:
    """The costs of the best fixed interval, a rule that sees arrivals, and a clairvoyant."""
    arrivals, ratio = trace.arrivals, terms.ratio
    if ratio == 0:  # polls are free: a shorter interval is always better
        return []
    fixed, interval = _best_fixed(trace, terms, capacity)
    sees = limits.sees_arrivals(arrivals, ratio)
    best = limits.optimum(arrivals, ratio)
    month = MONTH / trace.span * terms.wait
    hour = HOUR / trace.span
    items = len(arrivals)

    def limit(name: str, what: str, cost: float, polls: int, policy: str = "") -> CostLimit:
        wait = (cost - polls * ratio) / items
        return CostLimit(name, what, figures(cost * month), polls * hour, wait, policy)

    policy = f"fixed {brief(interval)}"
    hindsight = f"{policy}, the best interval in hindsight"
    seeing = "sees arrivals without polling, and polls when their waiting is worth a poll"
    return [
        limit("best fixed", hindsight, fixed.cost(ratio, 1.0), fixed.polls, policy),
        limit("sees arrivals", seeing, sees.cost, sees.polls),
        limit("clairvoyant", "knows all arrivals in advance", best.cost, best.polls),
    ]


def frontier(lines: Sequence[PolicyResult], family: str) -> list[PolicyResult]:
    """The best policies of a family, by polls: no other has both fewer polls and less waiting.

    A policy above the straight line between two near ones, on logarithmic scales, is left out too:
    settings between those two would most likely beat it.
    """
    mine = sorted(
        (line for line in lines if line.family == family and line.done.mean_wait > 0),
        key=lambda line: (line.done.polls, line.done.mean_wait),
    )
    kept: list[PolicyResult] = []
    for line in mine:
        if kept and line.done.mean_wait >= kept[-1].done.mean_wait:
            continue
        while len(kept) > 1 and _above(kept[-1], kept[-2], line):
            kept.pop()
        kept.append(line)
    return kept


def _above(middle: PolicyResult, left: PolicyResult, right: PolicyResult) -> bool:
    """True if a point lies above the straight line between two others that are near."""
    if right.done.polls > NEAR * left.done.polls:
        return False
    (x0, y0), (x, y), (x1, y1) = (
        (math.log(line.done.polls), math.log(line.done.mean_wait)) for line in (left, middle, right)
    )
    return (y - y0) * (x1 - x0) >= (y1 - y0) * (x - x0)


def _mark(line: PolicyResult) -> dict[str, Any]:
    every = {**line.done.measures(), **line.costs()}
    left_out = ("wait_p50_s", "wait_p99_s", "wait_max_s", "wait_dollars_a_month")
    kept = {key: value for key, value in every.items() if key not in left_out}
    return {"name": line.name, **kept}


def _rates(times: Any, edges: Any) -> list[float]:
    counts, _ = np.histogram(times, edges)
    width = edges[1] - edges[0]
    return [figures(count / width) for count in counts]


def _distribution(done: Replay) -> list[float]:
    shares = np.arange(1, LEVELS + 1) / LEVELS
    waits = np.quantile(done.waits, shares, method="inverted_cdf")
    return [figures(wait) for wait in waits]


def _ratio(cost: float, limit: float) -> float | None:
    return figures(cost / limit) if limit > 0 else None


def _ratio_text(ratio: float | None) -> str:
    if ratio is None:
        return "–"
    return amount(ratio) if ratio >= 100 or 0 < ratio < 0.005 else f"{ratio:.2f}"


def table(facts: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], list[str]]]:
    """The rows of a report's table: the facts of a policy or limit, and its cells as text."""
    keys = [f"wait_{each}_s" for each in ("mean", "p50", "p95", "p99", "max")]
    return [
        (
            each,
            [
                each["name"],
                amount(each["polls_an_hour"]),
                money(each["poll_dollars_a_month"]),
                *(brief(each[key]) if key in each else "" for key in keys),
                money(each["dollars_a_month"]),
                *(_ratio_text(ratio) for ratio in each["ratios"].values()),
            ],
        )
        for each in (*facts["policies"], *facts["limits"])
    ]


def check_out(path: Path) -> None:
    """Raise a ConfigError for a path that cannot be written, before any work is done."""
    if path.suffix.lower() not in FORMATS:
        known_formats = ", ".join(FORMATS)
        raise ConfigError(
            f"--out {str(path)!r} must end in one of {known_formats}: a page, or a picture"
        )
    if path.is_dir():
        raise ConfigError(f"--out {str(path)!r} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise ConfigError(
            f"--out {str(path)!r}: there is no folder {str(path.parent)!r}; create it first"
        )
