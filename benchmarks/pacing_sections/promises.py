"""Whether `Worth` keeps the promises of its goals: a latency with few polls, and a budget.

Each is compared with the fixed interval that reaches the same latency, or makes as many polls, on
the same traffic: a search finds that interval in hindsight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import common
from pollwise import Fixed, Worth
from pollwise.lab.replay.base import Replay, Situation, Trace
from pollwise.lab.replay.engine import replay
from pollwise.lab.traces import synthetic

Measure = Callable[[Replay], float]

SEEING = Situation(timestamps=True)
P95, MEAN = 2.0, 1.0
HOUR, DAY = 3600.0, 86400.0
PER_HOUR = 600
SEED = 1
#: The longest part of a trace that is replayed, in hours: a sparse one lasts for a year.
HOURS_MAX = 240.0
HEADS = ("trace", "polls/h", "reached", "from hour 2", "longest", "polls over fixed")


@dataclass(frozen=True)
class LatencyRow:
    """The result of a latency goal on one trace.

    later: what it reached from the second hour on. share: its polls, over those of the fixed
        interval that reaches the same; None where nothing arrives.
    """

    trace: str
    polls_an_hour: float
    reached: float
    later: float
    longest: float
    share: float | None

    def cells(self) -> tuple[str, ...]:
        waits = (f"{wait:.2f} s" for wait in (self.reached, self.later, self.longest))
        share = "-" if self.share is None else f"{self.share:.3f}"
        return (self.trace, f"{self.polls_an_hour:,.0f}", *waits, share)


def workloads() -> list[Trace]:
    """Traffic of many kinds, a flood and a silence among them."""
    draws = np.random.RandomState(SEED)

    def at_random(rate: float, span: float) -> Any:
        return np.sort(draws.random_sample(draws.poisson(rate * span))) * span

    nights = [at_random(10 / HOUR, DAY / 2) + n * DAY for n in range(3)]
    days = [at_random(720 / HOUR, DAY / 2) + (n + 0.5) * DAY for n in range(3)]
    begins = at_random(1 / 60, DAY)
    sizes = draws.geometric(0.1, len(begins))
    names = ("steady", "on-off", "cron", "diurnal", "bursty", "flash-crowd", "self-exciting")
    return [
        *(synthetic.workload(name, seed=SEED) for name in names),
        Trace("day and night", np.sort(np.concatenate([*nights, *days])), 3 * DAY),
        Trace("batches at random", np.repeat(begins, sizes), DAY),
        Trace("flood", at_random(50.0, HOUR / 2), HOUR / 2),
        Trace("silence", np.array([0.0]), 8 * HOUR),
    ]


def latency(trace: Trace, strategy: Worth, measure: Measure) -> LatencyRow:
    done = replay(trace, strategy, SEEING)
    later = done.waits[trace.arrivals >= HOUR]
    reached = measure(done)
    share = None
    if len(trace.arrivals) > 10:
        share = done.polls / fixed_for(trace, measure, reached).polls
    return LatencyRow(
        trace.name,
        done.polls_an_hour,
        reached,
        measure(with_waits(done, later)) if len(later) else reached,
        done.wait(1.0),
        share,
    )


def with_waits(done: Replay, waits: Any) -> Replay:
    return Replay(done.strategy, done.trace, done.span, 0, 0, 0, len(waits), waits)


def fixed_for(trace: Trace, measure: Measure, reached: float) -> Replay:
    """The replay of the longest fixed interval that reaches this value."""
    low, high = 0.5 * reached, 4.0 * reached
    for _ in range(18):
        middle = 0.5 * (low + high)
        if measure(replay(trace, Fixed(middle))) <= reached:
            low = middle
        else:
            high = middle
    return replay(trace, Fixed(low))


def latencies(found: list[Trace]) -> tuple[list[LatencyRow], list[LatencyRow]]:
    short = [cut(trace) for trace in found]
    p95s = [latency(each, Worth.latency(p95=P95), lambda done: done.wait(0.95)) for each in short]
    common.heading(f"Worth.latency(p95={P95:g} s), and the fixed interval with that p95")
    common.table(HEADS, [row.cells() for row in p95s])
    means = [latency(each, Worth.latency(mean=MEAN), lambda done: done.mean_wait) for each in short]
    common.heading(f"Worth.latency(mean={MEAN:g} s), and the fixed interval with that mean")
    common.table(HEADS, [row.cells() for row in means])
    return p95s, means


def cut(trace: Trace) -> Trace:
    span = min(trace.span, HOURS_MAX * HOUR)
    return Trace(trace.name, trace.arrivals[trace.arrivals <= span], span)


def budgets(quick: bool) -> dict[str, float]:
    """The worst result of each promise of a budget, over some workloads."""
    rows, worst = [], {"hour": 0.0, "day": 0.0, "fixed": 0.0, "priced": 0.0}
    an_hour = Worth.budget(polls_per_hour=PER_HOUR, max_interval="10m")
    a_day = Worth.budget(polls_per_day=24 * PER_HOUR, max_interval="10m")
    for name in ("diurnal", "on-off", "steady", "flash-crowd"):
        trace = synthetic.workload(name, seed=SEED + 1, hours=24 if quick else 72)
        for strategy in (an_hour, a_day):
            done = replay(trace, strategy, SEEING, keep_polls=True)
            hour, day = most_in(done, HOUR) / PER_HOUR, most_in(done, DAY) / (24 * PER_HOUR)
            fixed = done.mean_wait / replay(trace, Fixed(HOUR / done.polls_an_hour)).mean_wait
            priced = done.mean_wait / priced_with(trace, done.polls).mean_wait
            by = "hour" if strategy is an_hour else "day"
            shares = (f"{each:.3f}" for each in (hour, day, fixed, priced))
            rows.append((name, by, f"{done.polls_an_hour:.0f}", f"{done.mean_wait:.2f} s", *shares))
            worst["fixed"] = max(worst["fixed"], fixed)
            worst[by] = max(worst[by], hour if by == "hour" else day)
            if by == "day" and name in ("diurnal", "on-off"):
                worst["priced"] = max(worst["priced"], priced)
    common.heading(f"Worth.budget of {PER_HOUR} polls an hour, or of as many a day")
    heads = ("trace", "limit by", "polls/h", "mean wait", "fullest hour", "fullest day")
    common.table((*heads, "over fixed", "over priced"), rows)
    return worst


def most_in(done: Replay, window: float) -> int:
    assert done.poll_times is not None
    ends = np.searchsorted(done.poll_times, done.poll_times + window)
    return int(np.max(ends - np.arange(len(done.poll_times))))


def priced_with(trace: Trace, polls: int) -> Replay:
    """Worth with the price at which it makes as many polls."""

    def at(ratio: float) -> Replay:
        return replay(trace, Worth(poll_cost=ratio, wait_cost=1.0, max_interval="10m"), SEEING)

    low, high = 1e-4, 1e4
    for _ in range(10):
        ratio = math.sqrt(low * high)
        if at(ratio).polls > polls:
            low = ratio
        else:
            high = ratio
    return at(high)


def goals(found: list[Trace], quick: bool) -> list[common.Goal]:
    """Measure and show latencies and budgets; return their goals."""
    p95s, means = latencies([*found, *workloads()])
    by_name = {row.trace: row for row in p95s}
    uneven = [by_name[name] for name in ("azf_onoff", "on-off", "day and night") if name in by_name]
    hours = {each.name: each.span / HOUR for each in (*found, *workloads())}
    off = [abs(row.later / P95 - 1) for row in p95s if hours[row.trace] > 2 and row.share]
    worst = budgets(quick)
    return [
        common.Goal("p95, polls over fixed, worst", _worst(p95s), 1.02, "×"),
        common.Goal("p95, polls over fixed, uneven traffic", _worst(uneven), 0.6, "×"),
        common.Goal("p95, off its target from hour 2, worst", max(off), 0.05, "share"),
        common.Goal("p95, polls in silence", by_name["silence"].polls_an_hour, 65, "an hour"),
        common.Goal("mean, polls over fixed, worst", _worst(means), 1.02, "×"),
        common.Goal("budget of an hour, fullest hour", worst["hour"], 1.02, "×"),
        common.Goal("budget of a day, fullest day", worst["day"], 1.02, "×"),
        common.Goal("budgets, mean wait over fixed, worst", worst["fixed"], 1.03, "×"),
        common.Goal("budget of a day, mean wait over priced", worst["priced"], 1.1, "×"),
    ]


def _worst(rows: list[LatencyRow]) -> float:
    return max(row.share for row in rows if row.share is not None)
