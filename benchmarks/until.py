"""What it costs to wait for something that will finish, with and without learning.

    python benchmarks/until.py [DIR] [--quick] [--json FILE] [--out PICTURE]

DIR/durations_nasa.csv.gz has how long real jobs ran, by user and program (DIR is $POLLWISE_TRACES
by default): 84 groups of 40 or more runs, of which the first 300 count. Without it, 12 groups are
generated from a seed. A poll is worth 1, 3, 10 or 30 % of the group's median in seconds of waiting.
Cost is polls · price + waiting, as a share of the cost of the best fixed interval, which is chosen
in hindsight for each group and price among 1,500 intervals and all durations of the group.
Durations are whole seconds in the file, so each gets seeded jitter of one second. Otherwise polls
on whole seconds would meet the ends by chance.

Completion begins without history in each case, and learns only what its own polls show: that the
run ended between two of them. It has the same settings in all cases. For its development, groups
were halved: those at even places of the sorted names were used to choose its constants, those at
odd places ("held out") were not. It is compared with:

- a back-off from 1 s by 2 to 60 s, the usual defaults
- a proportional back-off: each pause is 15 % of the time so far, as `until` does by default
- the best back-off in hindsight, among 112 for each case
- a tenth of the median, fixed
- the known durations: one poll per run, exactly at its end; nothing can cost less
"""

from __future__ import annotations

import math
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np  # noqa: E402

from benchmarks import common  # noqa: E402 - see there
from pollwise import Completion, Durations  # noqa: E402
from pollwise.core.outcome import Outcome  # noqa: E402
from pollwise.lab.replay.base import Seconds  # noqa: E402
from pollwise.lab.runs import costs, reading  # noqa: E402

PRICES = (0.01, 0.03, 0.1, 0.3)
RUNS, RUNS_QUICK = 300, 60
FILE = "durations_nasa.csv.gz"
#: The prefix of the names of generated groups, which is also in their goals.
MADE_UP = "synthetic"
FIRST = 5
#: A smaller choice of fixed intervals, to compare with published figures that used one.
COARSE = np.geomspace(0.01, 30.0, 60)
COLUMNS = (
    "completion", "back-off 1s x2 60s", "15 % of elapsed", "best back-off", "10 % of median",
    "known",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One group at one price, which is in seconds of waiting."""

    group: str
    held_out: bool
    share: float
    price: float
    took: Seconds


def load(folder: Path | None, runs: int) -> dict[str, Seconds]:
    """The durations of each group, off the grid of whole seconds."""
    if folder is None or not (folder / FILE).exists():
        return {f"{MADE_UP} {n}": made(n, runs) for n in range(12)}
    found = {}
    for name, took in sorted(reading.read(folder / FILE).items()):
        rng = random.Random(name)
        found[name] = np.array([each + rng.random() - 0.5 for each in took[:runs]])
    return found


def made(number: int, runs: int) -> Seconds:
    """Durations of one kind of run: most are similar, some fail early, and a few are slow."""
    rng = random.Random(number)
    spread, early = (0.05, 0.2, 0.5, 1.0)[number % 4], (0.0, 0.1, 0.3)[number // 4]
    return np.array(
        [
            rng.uniform(3, 10) if rng.random() < early else rng.lognormvariate(5, spread)
            for _ in range(runs)
        ]
    )


def cases(groups: dict[str, Seconds]) -> list[Case]:
    return [
        Case(name, bool(place % 2), share, share * float(np.median(took)), took)
        for place, (name, took) in enumerate(sorted(groups.items()))
        for share in PRICES
    ]


def learned(case: Case) -> tuple[list[costs.RunCost], float]:
    """The cost of each run with Completion, and the CPU time of its decisions."""
    strategy = Completion(
        poll_cost=case.price, wait_cost=1.0, history=Durations(), min_interval="1ms",
        max_interval="30d",
    )  # fmt: skip
    began = time.process_time()
    found = list(costs.each_run(strategy, case.took.tolist()))
    return found, time.process_time() - began


def measure(case: Case) -> common.Plain:
    """All figures of one case; costs as shares of the best fixed interval's."""
    price, took = case.price, case.took
    end, middle = float(took.max()), float(np.median(took))
    _, fixed = costs.best_interval(took, price)
    best = fixed.cost(price)
    coarse = min(costs.at_interval(each * middle, took).cost(price) for each in COARSE)
    runs, spent = learned(case)
    usual = costs.back_off(1.0, 2.0, 60.0, end)
    proportional = costs.back_off(0.1, 1.15, math.inf, end)
    early = sum(runs[:FIRST], costs.NOTHING).cost(price)
    found = {
        "completion": sum(runs, costs.NOTHING),
        "back-off 1s x2 60s": costs.at_times(usual, took),
        "15 % of elapsed": costs.at_times(proportional, took),
        "best back-off": costs.best_back_off(took, price)[1],
        "10 % of median": costs.at_interval(0.1 * middle, took),
        "known": costs.RunCost(len(took), len(took), 0.0),
    }
    return {
        "group": case.group,
        "held out": case.held_out,
        "price": case.share,
        **{name: each.cost(price) / best for name, each in found.items()},
        "coarse": coarse / best,
        "first": early / costs.at_times(usual, took[:FIRST]).cost(price),
        "first, 15 %": early / costs.at_times(proportional, took[:FIRST]).cost(price),
        "polls": found["completion"].polls,
        "seconds": spent,
    }


def lookups(polls: int = 20_000) -> float:
    """The microseconds of a decision that has a plan already: all except the first of a run."""
    pacer = Completion(poll_cost=1e-3, wait_cost=1.0, min_interval=0.5, max_interval=0.5).pacer()
    pacer.after(Outcome(0.5, 0))
    began = time.process_time()
    for _ in range(polls):
        pacer.after(Outcome(1.0, 0))
    return (time.process_time() - began) / polls * 1e6


def geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def show(rows: list[common.Plain]) -> None:
    halves = (
        ("all groups", rows),
        ("development", [row for row in rows if not row["held out"]]),
        ("held out", [row for row in rows if row["held out"]]),
    )
    common.heading("Cost as a share of the best fixed interval in hindsight: geomean (worst)")
    lines = []
    for name, some in halves:
        cells = [
            f"{geomean([row[c] for row in some]):.3f} ({max(row[c] for row in some):.2f})"
            for c in COLUMNS
        ]
        lines.append((name, *cells))
    for share in PRICES:
        some = [row for row in rows if row["price"] == share]
        cells = [
            f"{geomean([row[c] for row in some]):.3f} ({max(row[c] for row in some):.2f})"
            for c in COLUMNS
        ]
        lines.append((f"a poll worth {share:.0%}", *cells))
    common.table(("", *COLUMNS), lines)
    coarse = geomean([row["completion"] / row["coarse"] for row in rows])
    print(f"\nAgainst the best of 60 fixed intervals instead of all: {coarse:.3f}")
    usual, proportional = (geomean([row[c] for row in rows]) for c in ("first", "first, 15 %"))
    print(
        f"First {FIRST} runs, over the usual back-off: {usual:.3f}, over 15 %: {proportional:.3f}"
    )


def goals(rows: list[common.Plain], what: str) -> list[common.Goal]:
    all_cases = [row["completion"] for row in rows]
    held = [row["completion"] for row in rows if row["held out"]]
    decision = sum(row["seconds"] for row in rows) / sum(row["polls"] for row in rows) * 1e6
    first = geomean([row["first"] for row in rows])
    return [
        common.Goal(f"{what}, geomean of best fixed", geomean(all_cases), 0.92, "×"),
        common.Goal(f"{what}, geomean, groups held out", geomean(held), 0.92, "×"),
        common.Goal(f"{what}, worst case", max(all_cases), 1.15, "×"),
        common.Goal(f"{what}, first five runs over the usual back-off", first, 1.0, "×"),
        common.Goal("a decision of Completion, mean with all planning", decision, 50.0, "µs"),
        common.Goal("a decision of Completion, planned before", lookups(), 50.0, "µs"),
    ]


def main() -> None:
    options = common.options(__doc__ or "", traces=True)
    folder = options.folder or common.traces_folder()
    machine, versions = common.machine(common.HERE), common.versions()
    common.show(machine, versions)
    groups = load(folder, RUNS_QUICK if options.quick else RUNS)
    print(f"groups  {len(groups)}, {sum(map(len, groups.values())):,} runs")
    others = common.Others()
    rows = [measure(case) for case in cases(groups)]
    show(rows)
    others.show()
    facts = {"machine": machine, "versions": versions, "cases": rows}
    made_up = all(name.startswith(MADE_UP) for name in groups)
    what = "Completion on made-up runs" if made_up else "Completion"
    common.finish(facts, goals(rows, what), options.json)


if __name__ == "__main__":
    main()
