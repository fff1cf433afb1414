"""Whether timestamps help: on wide cron batches, on batches at random, and if they are rounded.

The first two kinds of traffic are seeded. Rounded stamps are those of real traces: items arrive as
recorded, but a pacer gets waits that count from the whole step before the arrival.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from benchmarks import common
from pollwise import Strategy, Worth
from pollwise.core.outcome import Outcome, Pause, Plain
from pollwise.core.strategies.base import Pacer
from pollwise.lab.replay import limits
from pollwise.lab.replay.base import Replay, Situation, Trace
from pollwise.lab.replay.engine import replay
from pollwise.lab.replay.fast import lean

RHOS = (0.3, 1.0, 3.0, 10.0)
SEED = 7
SEEING, BLIND = Situation(timestamps=True), Situation(timestamps=False)
#: Cron batches: how wide they are in seconds, their mean size, and items between them a second.
WIDTHS, SIZES, BETWEEN = (2.0, 6.0, 15.0, 30.0), (10, 40), (0.0, 0.05)
CRON_ITEMS, CRON_ITEMS_QUICK = 4_000, 1_000
#: Batches at random: their mean sizes, and how many there are: one a minute for a day.
BATCHES, BATCH_SIZES = 1_440, (3, 10)
#: Rounded stamps: the steps in seconds, and the items of each trace of at least this rate.
STEPS, STAMPED_ITEMS, STAMPED_RATE = (1.0, 3.0), 2_000, 0.2


class RoundedPacer(Pacer):
    """Gives another pacer waits that count from the whole step before each arrival."""

    def __init__(self, pacer: Pacer, step: float) -> None:
        self._pacer, self._step = pacer, step

    def first(self) -> Pause:
        return self._pacer.first()

    def after(self, outcome: Outcome) -> Pause:
        at, step = outcome.at, self._step
        waits = tuple(at - math.floor((at - wait) / step) * step for wait in outcome.waits)
        return self._pacer.after(dataclasses.replace(outcome, waits=waits))

    def state(self) -> dict[str, Plain]:
        return self._pacer.state()


class Rounded(Strategy):
    """A strategy whose source rounds its stamps."""

    name = "rounded"

    def __init__(self, strategy: Strategy, step: float) -> None:
        self._strategy, self._step = strategy, step

    @property
    def min_interval(self) -> float:
        return self._strategy.min_interval

    @property
    def max_interval(self) -> float:
        return self._strategy.max_interval

    def pacer(self) -> Pacer:
        return RoundedPacer(self._strategy.pacer(), self._step)


def worth(trace: Trace, rho: float) -> tuple[Worth, float]:
    """Worth as in the cases of the benchmark, and the price of a poll in item-seconds."""
    ratio, interval = rho**2 / (2 * trace.rate), rho / trace.rate
    strategy = Worth(
        poll_cost=ratio, wait_cost=1.0, min_interval=interval / 1e3, max_interval=interval * 1e3
    )
    return strategy, ratio


def shares(trace: Trace, rho: float) -> tuple[float, float]:
    """The costs with timestamps and without, over that of the best fixed interval."""
    strategy, ratio = worth(trace, rho)
    _, fixed = limits.best_fixed(trace.arrivals, ratio, trace.span)

    def share(done: Replay) -> float:
        return done.cost(ratio, 1.0) / fixed

    return share(replay(trace, strategy, SEEING)), share(replay(trace, strategy, BLIND))


def cron(width: float, size: int, between: float, items: int) -> Trace:
    """Batches at each full minute, spread over `width` seconds, and items between them."""
    draws = np.random.RandomState(SEED)
    sizes = draws.poisson(size, items // size)
    span = 60.0 * len(sizes)
    inside = width * draws.random_sample(int(sizes.sum()))
    others = span * draws.random_sample(draws.poisson(between * span))
    begins = np.repeat(60.0 * np.arange(len(sizes)), sizes)
    return Trace(f"{width:g} s", np.sort(np.concatenate([begins + inside, others])), span)


def at_random(size: int, batches: int) -> Trace:
    """Whole batches at random, one a minute on average."""
    draws = np.random.RandomState(SEED)
    span = 60.0 * batches
    begins = np.sort(draws.random_sample(draws.poisson(batches))) * span
    return Trace(f"about {size}", np.repeat(begins, draws.geometric(1 / size, len(begins))), span)


def wide_cron(quick: bool) -> list[float]:
    """The cost with timestamps over that without, for each case."""
    rows, ratios = [], []
    for width in WIDTHS:
        items = CRON_ITEMS_QUICK if quick else CRON_ITEMS
        traces = [cron(width, size, between, items) for size in SIZES for between in BETWEEN]
        pairs = [shares(trace, rho) for trace in traces for rho in RHOS]
        over = [seeing / blind for seeing, blind in pairs]
        ratios += over
        seeing, blind = (geomean(values) for values in zip(*pairs, strict=True))
        figures = (seeing, blind, geomean(over), max(over))
        rows.append((f"{width:g} s", *(f"{figure:.3f}" for figure in figures)))
    common.heading("Cron batches: cost over best fixed, with timestamps and without")
    common.table(("width", "with", "without", "with over without", "worst"), rows)
    return ratios


def random_batches(quick: bool) -> list[float]:
    """The cost over best fixed, for each case."""
    rows, found = [], []
    for size in BATCH_SIZES:
        trace = at_random(size, BATCHES // 4 if quick else BATCHES)
        for rho in RHOS:
            seeing, blind = shares(trace, rho)
            found += [seeing, blind]
            rows.append((trace.name, f"{rho:g}", f"{seeing:.3f}", f"{blind:.3f}"))
    common.heading("Whole batches at random: cost over best fixed")
    common.table(("size", "rho", "with timestamps", "without"), rows)
    return found


def rounded(found: Sequence[Trace]) -> list[float]:
    """The cost with rounded stamps over that with exact ones, for each case."""
    rows, ratios = [], []
    for trace in found:
        if trace.rate < STAMPED_RATE:
            continue
        arrivals = trace.arrivals[:STAMPED_ITEMS]
        short = Trace(trace.name, arrivals, float(arrivals[-1]))
        for step in STEPS:
            over = []
            for rho in RHOS:
                strategy, ratio = worth(short, rho)
                exact = lean(short, strategy, SEEING).cost(ratio, 1.0)
                over.append(lean(short, Rounded(strategy, step), SEEING).cost(ratio, 1.0) / exact)
            ratios += over
            rows.append((trace.name, f"{step:g} s", *(f"{each:.3f}" for each in over)))
    common.heading("Rounded stamps: cost over that with exact ones")
    common.table(("trace", "step", *(f"rho {rho:g}" for rho in RHOS)), rows)
    return ratios


def goals(found: Sequence[Trace], quick: bool) -> list[common.Goal]:
    """Measure and show all of them; return their goals."""
    over_blind, batches, over_exact = wide_cron(quick), random_batches(quick), rounded(found)
    goals = [
        common.Goal("cron batches, with timestamps over without", geomean(over_blind), 1.0, "×"),
        common.Goal("cron batches, the same, worst", max(over_blind), 1.03, "×"),
        common.Goal("batches at random, geomean of best fixed", geomean(batches), 1.03, "×"),
        common.Goal("batches at random, worst", max(batches), 1.03, "×"),
    ]
    if over_exact:
        goals += [
            common.Goal("rounded stamps over exact ones, geomean", geomean(over_exact), 1.01, "×"),
            common.Goal("rounded stamps over exact ones, worst", max(over_exact), 1.03, "×"),
        ]
    return goals


def geomean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
