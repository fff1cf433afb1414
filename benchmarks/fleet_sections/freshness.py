"""How long a change stays unseen, at equal budgets of polls.

Each trace of real arrivals is distributed at random over 200 targets whose rates span four powers
of ten: an arrival is a change of that target's reading. Every policy then polls these targets with
the same total of polls. The first tenth, in which all learn, does not count. If a policy has no
budget, its intervals are scaled by one factor until it polls as often as the others.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import Goal, Plain, heading, number, percentile, table
from pollwise.core.forecast.changes import ChangeRate
from pollwise.core.outcome import Outcome
from pollwise.core.shares import Form, Shares
from pollwise.core.strategies.freshness import Freshness
from pollwise.lab.traces import reading as traces

TARGETS = 200
DECADES = 4.0
#: The total of polls, as a share of the total of changes.
BUDGETS = (0.3, 1.0, 3.0)
LEARNING = 0.1
CHANGES_MAX = 20_000
SEED = 3

Changes = list[list[float]]
#: The decision of a policy after a poll: target, now, changed -> the next interval.
After = Callable[[int, float, bool], float]


@dataclass(frozen=True)
class Mix:
    """Targets with the times of their changes, over a number of seconds."""

    name: str
    changes: Changes
    seconds: float

    @property
    def rate(self) -> float:
        return sum(map(len, self.changes)) / self.seconds


@dataclass(frozen=True)
class Unseen:
    """How long changes stayed unseen, and how many polls that took."""

    mean: float
    p95: float
    polls: int
    #: The mean over the changes of the quieter half of the targets.
    rare: float


def replayed(mix: Mix, first: Sequence[float], after: After, most: float = math.inf) -> Unseen:
    """Poll each target first as `first` says, and then as `after` says.

    most: the maximum number of polls.
    """
    due = [(at, target) for target, at in enumerate(first)]
    heapq.heapify(due)
    seen = [0] * len(mix.changes)
    waits: list[float] = []
    rare: list[float] = []
    middle = sorted(map(len, mix.changes))[len(mix.changes) // 2]
    polls = 0
    while due and due[0][0] <= mix.seconds and polls <= most:
        now, target = heapq.heappop(due)
        polls += 1
        changes, place = mix.changes[target], seen[target]
        while place < len(changes) and changes[place] <= now:
            if now >= LEARNING * mix.seconds:
                waits.append(now - changes[place])
                if len(changes) < middle:
                    rare.append(waits[-1])
            place += 1
        changed = place > seen[target]
        seen[target] = place
        heapq.heappush(due, (now + after(target, now, changed), target))
    if polls > most:
        return Unseen(math.nan, math.nan, polls, math.nan)
    mean_of_rare = sum(rare) / len(rare) if rare else math.nan
    return Unseen(sum(waits) / len(waits), percentile(waits, 0.95), polls, mean_of_rare)


def spread(mix: Mix, interval: float) -> list[float]:
    rng = random.Random(SEED)
    return [rng.random() * interval for _ in mix.changes]


# The policies


def uniform(mix: Mix, budget: float) -> Unseen:
    interval = len(mix.changes) / budget
    return replayed(mix, spread(mix, interval), lambda *_: interval)


def optimum(mix: Mix, budget: float) -> Unseen:
    """The best possible rates, if rates of change are known and constant."""
    shares = Shares(budget)
    rates = [max(len(each), 0.3) / mix.seconds for each in mix.changes]
    taken = [shares.join(1.0, 1e-6, _ceiling(mix, budget), rate) for rate in rates]
    intervals = [shares.interval(each) for each in taken]
    first = [interval * share for interval, share in zip(intervals, spread(mix, 1.0), strict=True)]
    return replayed(mix, first, lambda target, *_: intervals[target])


def budgeted(mix: Mix, budget: float, form: Form = "delay") -> Unseen:
    """Freshness with a budget, as a fleet with a budget uses it."""
    shares = Shares(budget, form)
    even = budget / len(mix.changes)
    beliefs = [ChangeRate(even) for _ in mix.changes]
    taken = [shares.join(1.0, 1e-6, _ceiling(mix, budget), each.rate) for each in beliefs]
    looked = [0.0] * len(mix.changes)

    def after(target: int, now: float, changed: bool) -> float:
        belief, gap = beliefs[target], now - looked[target]
        looked[target] = now
        if changed:
            belief.changed(gap)
        else:
            belief.unchanged(gap)
        shares.update(taken[target], belief.rate)
        return shares.interval(taken[target])

    return replayed(mix, spread(mix, 1 / even), after)


def freshness(mix: Mix, scale: float, most: float) -> Unseen:
    """Freshness without a budget: base 10, min_interval 5 and max_interval 300, in some unit of
    time.
    """
    strategy = Freshness(10 * scale, 5 * scale, 300 * scale)
    pacers = [strategy.pacer() for _ in mix.changes]

    def after(target: int, now: float, changed: bool) -> float:
        return pacers[target].after(Outcome(now, int(changed), 1)).delay

    return replayed(mix, spread(mix, 10 * scale), after, most)


def pulse(mix: Mix, scale: float, most: float) -> Unseen:
    """Pulse's own formula, for targets that always answer and never queue: score 0, no errors."""
    min_interval, max_interval = 5 * scale, 300 * scale
    intervals = [10 * scale] * len(mix.changes)

    def after(target: int, now: float, changed: bool) -> float:
        wanted = (
            0.6 * (min_interval + (max_interval - min_interval) * (1 - 0.0))
            + 0.4 * intervals[target]
        )
        intervals[target] = min(max(wanted, min_interval), max_interval)
        return intervals[target]

    return replayed(mix, spread(mix, 10 * scale), after, most)


def at_budget(policy: Callable[[Mix, float, float], Unseen], mix: Mix, budget: float) -> Unseen:
    """The policy at the scale of time at which it makes as many polls as the budget allows."""
    polls, even = budget * mix.seconds, len(mix.changes) / budget
    low, high = (
        even / 320,
        even / 4,
    )  # all at the max_interval of 300, or all at the min_interval of 5
    while True:
        middle = math.sqrt(low * high)
        tried = policy(mix, middle, polls * 1.1)
        if abs(tried.polls / polls - 1) < 0.01 or high < low * 1.001:
            return tried
        if tried.polls > polls:
            low = middle
        else:
            high = middle


def _ceiling(mix: Mix, budget: float) -> float:
    """No target waits longer than a hundred times the even interval."""
    return 100 * len(mix.changes) / budget


# The mixes


def dealt(name: str, times: Sequence[float]) -> Mix:
    """A trace, distributed over targets of very different rates."""
    rng = random.Random(SEED)
    weights = [10 ** (rng.random() * DECADES) for _ in range(TARGETS)]
    changes: Changes = [[] for _ in range(TARGETS)]
    times = times[:CHANGES_MAX]
    for at, target in zip(times, rng.choices(range(TARGETS), weights, k=len(times)), strict=True):
        changes[target].append(at - times[0])
    return Mix(name, changes, times[-1] - times[0])


def synthetic() -> list[Mix]:
    """Poisson changes at rates drawn log-uniformly; and targets that are busy from time to time."""
    rng = random.Random(SEED)
    seconds = 1000.0  # about 20,000 changes, as in a trace
    steady: Changes = []
    bursty: Changes = []
    for _ in range(TARGETS):
        rate = 10 ** rng.uniform(-4, 0)
        steady.append(_poisson(rng, rate, 0.0, seconds))
        busy, at, changes = rng.random() < 0.5, 0.0, []
        while at < seconds:
            until = min(at + rng.expovariate(1 / 100), seconds)
            changes += _poisson(rng, rate * 2 if busy else rate / 20, at, until)
            at, busy = until, not busy
        bursty.append(changes)
    return [
        Mix("synthetic, steady", steady, seconds),
        Mix("synthetic, on and off", bursty, seconds),
    ]


def _poisson(rng: random.Random, rate: float, start: float, end: float) -> list[float]:
    times, at = [], start + rng.expovariate(rate)
    while at < end:
        times.append(at)
        at += rng.expovariate(rate)
    return times


def mixes(folder: Path | None) -> list[Mix]:
    real = [] if folder is None else sorted(folder.glob("*.csv.gz"))
    read = [
        (path.name.removesuffix(".csv.gz"), traces.read(path).arrivals.tolist()) for path in real
    ]
    # With fewer than fifty changes per target, the trace ends before anything is learned.
    dealt_out = [dealt(name, times) for name, times in read if len(times) >= 50 * TARGETS]
    return [*dealt_out, *synthetic()]


def measure(folder: Path | None, quick: bool) -> tuple[Plain, list[Goal]]:
    heading("How long a change stays unseen, as a share of even polling, at equal budgets")
    budgets = BUDGETS[1:2] if quick else BUDGETS
    rows, facts = [], []
    to_even: list[float] = []
    to_best: list[float] = []
    rare: dict[str, list[float]] = {"changes": [], "age": []}
    chosen = mixes(folder)
    for mix in chosen[-3:] if quick else chosen:
        for share in budgets:
            budget = share * mix.rate
            even, best, ours = uniform(mix, budget), optimum(mix, budget), budgeted(mix, budget)
            rivals = {
                "pulse": at_budget(pulse, mix, budget),
                "freshness": at_budget(freshness, mix, budget),
                "budgeted": ours,
                "optimum": best,
            }
            by_age = budgeted(mix, budget, "age")
            if even.rare == even.rare:  # not NaN: there were such changes
                rare["changes"].append(ours.rare / even.rare)
                rare["age"].append(by_age.rare / even.rare)
            to_even.append(ours.mean / even.mean)
            to_best.append(ours.mean / best.mean)
            cells = [f"{each.mean / even.mean:.2f}" for each in rivals.values()]
            p95s = [f"{each.p95 / even.p95:.2f}" for each in rivals.values()]
            rows.append((mix.name, f"{share:g}", *cells, *p95s, f"{to_best[-1]:.3f}"))
            facts.append(
                {"mix": mix.name, "budget": share, "even": even.mean}
                | {name: each.mean for name, each in rivals.items()}
            )
    names = ("pulse", "freshness", "budgeted", "optimum")
    head = ("targets", "polls/change", *names, *(f"p95 {name}" for name in names), "to optimum")
    table(head, rows)
    overall = math.exp(sum(map(math.log, to_best)) / len(to_best))
    print(f"\nBudgeted to optimum: {overall:.3f} on average, {number(max(to_best))} at worst.")
    print(
        "Changes of the quieter half of the targets, as a share of even polling, at worst: "
        f"{max(rare['changes']):.2f} with the goal changes, {max(rare['age']):.2f} with age."
    )
    goals = [
        Goal("unseen time of rare changes, goal age ÷ even, worst mix", max(rare["age"]), 1.1, "×"),
        Goal("unseen time, budgeted ÷ optimum with known rates", overall, 1.1, "×"),
        Goal("unseen time, budgeted ÷ even polling, worst mix", max(to_even), 0.6, "×"),
    ]
    return {"freshness": facts}, goals
