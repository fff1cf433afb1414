"""What a restart costs: Worth begins again, or continues with the pace that was saved.

A pacer learns on the first part of a trace, then nobody polls for a while. Then two others poll the
same items: a new one, and one that took over the saved pace, as JSON and rounded as in a store.
Each cost is a share of the cost of the pacer that was never restarted.
"""

from __future__ import annotations

import copy
import json
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence

from benchmarks import common
from pollwise import Worth
from pollwise.core.outcome import Outcome
from pollwise.core.strategies.base import Pacer
from pollwise.core.strategies.saved_pace import pace_restored, pace_saved
from pollwise.lab.replay.base import Trace

#: Items per poll of the best interval for the mean rate, as in the cases of the benchmark.
RHOS = (0.3, 1.0, 3.0, 10.0)
#: The items after a restart that are counted, and the most that are learned from before it.
COUNTED = (50, 200, 1000)
LEARNED = 3000
#: Restarts at these shares of a trace, and for how many of those intervals nobody polls.
PLACES, PLACES_QUICK = (0.4, 0.7), (0.5,)
DOWN = 5.0


def cost(
    pacer: Pacer, arrivals: Sequence[float], start: float, until: float, ratio: float
) -> float:
    """The price of the polls from `start` on, and of the waiting; no items from before it."""
    taken, now, total = bisect_right(arrivals, start), start, 0.0
    while now < until:
        end = bisect_right(arrivals, now, taken)
        waits = tuple([now - at for at in arrivals[taken:end]])
        taken = end
        total += ratio + sum(waits)
        now += pacer.after(Outcome(now, len(waits), None, waits)).delay
    return total + sum(now - at for at in arrivals[taken : bisect_right(arrivals, until)])


def restarts(
    trace: Trace, rho: float, places: Sequence[float]
) -> dict[int, list[tuple[float, float]]]:
    """For each number of items: the cost of a cold and of a warm start, over no restart."""
    ratio, interval = rho**2 / (2 * trace.rate), rho / trace.rate
    strategy = Worth(
        poll_cost=ratio, wait_cost=1.0, min_interval=interval * 1e-3, max_interval=interval * 1e3
    )
    arrivals = trace.arrivals.tolist()
    found: dict[int, list[tuple[float, float]]] = {count: [] for count in COUNTED}
    for place in places:
        stop = int(place * len(arrivals))
        first = max(stop - LEARNED, 0)
        at, back = arrivals[stop], arrivals[stop] + DOWN * interval
        after = bisect_right(arrivals, back)
        learned = strategy.pacer()
        cost(learned, arrivals, arrivals[first], at, ratio)
        saved = json.loads(json.dumps(pace_saved(learned, at, at)))

        def warm(saved: object = saved, back: float = back) -> Pacer:
            return pace_restored(strategy, saved, back, back).pacer

        cost(learned, arrivals, at, back, ratio)

        def steady(learned: Pacer = learned) -> Pacer:
            return copy.deepcopy(learned)

        makes: tuple[Callable[[], Pacer], ...] = (strategy.pacer, warm, steady)
        for count in COUNTED:
            if after + count < len(arrivals):
                until = arrivals[after + count]
                cold, kept, never = (cost(m(), arrivals, back, until, ratio) for m in makes)
                found[count].append((cold / never, kept / never))
    return found


def geomean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def goals(found: list[Trace], quick: bool) -> list[common.Goal]:
    """Measure and show the costs after restarts; return their goals."""
    rows: list[tuple[str, ...]] = []
    all_of: dict[int, list[tuple[float, float]]] = {count: [] for count in COUNTED}
    for trace in found:
        mine: dict[int, list[tuple[float, float]]] = {count: [] for count in COUNTED}
        for rho in RHOS:
            for count, pairs in restarts(trace, rho, PLACES_QUICK if quick else PLACES).items():
                mine[count] += pairs
        cells = [_pair(mine[count]) for count in COUNTED]
        rows.append((trace.name, *cells))
        for count in COUNTED:
            all_of[count] += mine[count]
    rows.append(("all", *(_pair(all_of[count]) for count in COUNTED)))
    common.heading("After a restart: the cost of a cold and of a warm start, over no restart")
    common.table(("trace", *(f"first {count} items" for count in COUNTED)), rows)
    least = COUNTED[0]
    warm = [kept for _, kept in all_of[least]]
    saved = [kept / cold for cold, kept in all_of[least]]
    return [
        common.Goal(f"warm start, first {least} items, over no restart", geomean(warm), 1.02, "×"),
        common.Goal(f"warm start, first {least} items, over cold", geomean(saved), 0.95, "×"),
    ]


def _pair(pairs: list[tuple[float, float]]) -> str:
    if not pairs:
        return "-"
    cold, warm = (geomean([pair[n] for pair in pairs]) for n in range(2))
    return f"{cold:.3f} → {warm:.3f}"
