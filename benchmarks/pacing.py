"""What each strategy costs on real traffic, against the best fixed interval chosen in hindsight.

    python benchmarks/pacing.py [DIR] [--quick] [--json FILE] [--out PICTURE]

For every trace in DIR (else in $POLLWISE_TRACES; else the workloads that ship with the lab) and ρ
in 0.3, 1, 3, 10: the price of a poll over that of a waiting item-second is set so that the best
interval for the mean rate λ, √(2·ratio/λ), is ρ/λ: about ρ items arrive between two polls. Cost is
polls · ratio + waiting, as a share of what the best fixed interval in hindsight costs. Polls are
instantaneous, without jitter, and find everything that arrived.

Rivals are tried at their defaults, scaled so that the middle of their bounds is that interval, and
tuned in hindsight: the cheapest of about 80 settings for each case, which no one could have known.
Worth is not tuned. Stamps that are rounded (to seconds, say) get seeded jitter of one step, else
polls on whole seconds would meet them by accident.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np  # noqa: E402

from benchmarks import common  # noqa: E402 - see there
from benchmarks.pacing_sections import promises, restart  # noqa: E402
from pollwise import Adaptive, BatchFill, Ewma, Fixed, Strategy, Worth  # noqa: E402
from pollwise.lab.replay import limits  # noqa: E402
from pollwise.lab.replay.base import Replay, Situation, Trace  # noqa: E402
from pollwise.lab.replay.engine import replay  # noqa: E402
from pollwise.lab.replay.fast import lean  # noqa: E402
from pollwise.lab.traces import reading as traces  # noqa: E402
from pollwise.lab.traces import synthetic  # noqa: E402

RHOS = (0.3, 1.0, 3.0, 10.0)
EVENTS, EVENTS_QUICK = 20_000, 3_000
SEED = 1
#: Worth's bounds as multiples of the best interval for the mean rate: wide, so that they decide
#: nothing.
FLOOR, CEILING = 1e-3, 1e3
#: Where a full run draws its picture unless told otherwise.
PICTURE = common.HERE / "pacing.svg"
BLIND = Situation(timestamps=False)
SEEING = Situation(timestamps=True)


@dataclass(frozen=True)
class Case:
    """One trace at one ρ. `ratio` is the price of a poll in waiting item-seconds."""

    trace: Trace
    rho: float
    ratio: float
    interval: float
    fixed: float
    optimum: float

    def share(self, done: Replay) -> float:
        return done.cost(self.ratio, 1.0) / self.fixed

    def worth(self, ratio: float | None = None) -> Worth:
        return Worth(
            poll_cost=self.ratio if ratio is None else ratio,
            wait_cost=1.0,
            min_interval=self.interval * FLOOR,
            max_interval=self.interval * CEILING,
        )


def load(folder: Path | None, events: int) -> list[Trace]:
    if folder is None:
        found = [synthetic.workload(name, seed=SEED) for name in synthetic.WORKLOADS]
    else:
        kinds = {".gz", ".csv", ".ndjson"}  # a file of durations is no trace
        paths = sorted(
            p for p in folder.iterdir() if p.suffix in kinds and "durations" not in p.name
        )
        found = [traces.read(path, name=path.name.split(".")[0]) for path in paths]
    return [cut(off_the_grid(trace), events) for trace in found]


def off_the_grid(trace: Trace) -> Trace:
    """Spread stamps over the step they are rounded to: a second, where all are whole; else what
    they are usually apart, where one in ten shares its stamp with the one before it."""
    gaps = np.diff(trace.arrivals)
    if not np.any(trace.arrivals % 1):
        step = 1.0
    elif np.mean(gaps == 0) >= 0.1:
        step = float(np.median(gaps[gaps > 0]))
    else:
        return trace
    rng = np.random.default_rng(SEED)
    arrivals = np.sort(trace.arrivals + rng.uniform(0.0, step, len(trace.arrivals)))
    arrivals -= arrivals[0]
    return Trace(trace.name, arrivals, max(trace.span, float(arrivals[-1])))


def cut(trace: Trace, events: int) -> Trace:
    arrivals = trace.arrivals[:events]
    return Trace(trace.name, arrivals, float(arrivals[-1]))


def cases(found: list[Trace]) -> Iterator[Case]:
    for trace in found:
        for rho in RHOS:
            ratio = rho**2 / (2 * trace.rate)
            _, fixed = limits.best_fixed(trace.arrivals, ratio, trace.span)
            best = limits.optimum(trace.arrivals, ratio).cost
            yield Case(trace, rho, ratio, rho / trace.rate, fixed, best)


def scaled(strategy: Strategy, case: Case) -> Strategy:
    """A rival at its defaults, with the middle of its bounds at the case's interval."""
    by = case.interval / math.sqrt(strategy.min_interval * strategy.max_interval)
    if isinstance(strategy, Ewma):
        return ewma(by, strategy.alpha)
    return type(strategy)(strategy.min_interval * by, strategy.max_interval * by)  # type: ignore[call-arg]


def ewma(by: float, alpha: float) -> Ewma:
    return Ewma(
        idle_interval=20 * by, low_interval=15 * by, medium_interval=10 * by, high_interval=5 * by,
        very_high_interval=by, half_life=30 * by, alpha=alpha,
    )  # fmt: skip


def grid(case: Case) -> list[Strategy]:
    """The settings to choose from in hindsight: 44 of Adaptive, 24 of BatchFill, 14 of Ewma."""
    t = case.interval
    bounds = [
        (low * t, high * t)
        for low in (0.03, 0.1, 0.3, 0.6)
        for high in (0.7, 1.0, 1.5, 2.5, 5.0, 10.0)
        if low < high
    ]
    settings: list[Strategy] = [
        Adaptive(low, high, backoff_multiplier=m) for low, high in bounds for m in (1.4, 3.0)
    ]
    settings = settings[:44]
    settings += [BatchFill(low, high, batch_size=b) for low, high in bounds[::2] for b in (2, 10)]
    settings += [ewma(t * by / 5, a) for by in (0.2, 0.4, 0.7, 1, 1.5, 2.5, 4) for a in (0.1, 0.3)]
    return settings


def rivals(case: Case) -> dict[str, float]:
    shares = {
        f"{s.name} default": case.share(replay(case.trace, scaled(s, case)))
        for s in (Adaptive(), BatchFill(), Ewma())
    }
    tuned = [(case.share(replay(case.trace, s)), s) for s in grid(case)]
    for name in ("adaptive", "batch_fill", "ewma"):
        shares[f"{name} tuned"] = min(share for share, s in tuned if s.name == name)
    shares["best tuned"] = min(share for share, _ in tuned)
    return shares


def at_equal_polls(case: Case) -> tuple[float, float, float]:
    """Worth with the polls of the best fixed interval: its mean, p95 and max wait over theirs."""
    interval, _ = limits.best_fixed(case.trace.arrivals, case.ratio, case.trace.span)
    fixed = replay(case.trace, Fixed(interval))
    ratio = case.ratio
    done = replay(case.trace, case.worth(ratio), SEEING)
    for _ in range(5):
        if abs(done.polls / fixed.polls - 1) < 0.01:
            break
        ratio *= (done.polls / fixed.polls) ** 2  # polls go as one over the root of the ratio
        done = replay(case.trace, case.worth(ratio), SEEING)
    return (
        done.mean_wait / fixed.mean_wait,
        done.wait(0.95) / fixed.wait(0.95),
        done.wait(1.0) / fixed.wait(1.0),
    )


def geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def replay_overhead(case: Case) -> float:
    """Seconds a poll of the replay takes that are not the strategy's."""
    began = time.perf_counter()
    done = lean(case.trace, Fixed(case.interval), SEEING)
    return (time.perf_counter() - began) / done.polls


def measure(case: Case, quick: bool) -> common.Plain:
    """All figures of one case."""
    began = time.perf_counter()
    seeing = replay(case.trace, case.worth(), SEEING)
    took = time.perf_counter() - began - seeing.polls * replay_overhead(case)
    blind = replay(case.trace, case.worth(), BLIND)
    facts: common.Plain = {
        "trace": case.trace.name,
        "rho": case.rho,
        "worth": case.share(seeing),
        "worth blind": case.share(blind),
        "optimum": case.optimum / case.fixed,
        "polls": seeing.polls,
        "microseconds a decision": took / seeing.polls * 1e6,
        **rivals(case),
    }
    if not quick:
        facts[EQUAL] = at_equal_polls(case)
    return facts


COLUMNS = (
    "worth", "worth blind", "adaptive tuned", "batch_fill tuned", "ewma tuned", "best tuned",
    "adaptive default", "batch_fill default", "ewma default", "optimum",
)  # fmt: skip


def show(rows: list[common.Plain]) -> None:
    common.heading("Cost as a share of the best fixed interval in hindsight")
    lines = [
        (row["trace"], f"{row['rho']:g}", *(f"{row[column]:.3f}" for column in COLUMNS))
        for row in rows
    ]
    common.table(("trace", "rho", *COLUMNS), lines)
    common.heading("Over all cases")
    lines = []
    for column in COLUMNS:
        values = [row[column] for row in rows]
        above = sum(value > 1.02 for value in values) / len(values)
        limit = geomean([row[column] / row["optimum"] for row in rows])
        lines.append(
            (column, f"{geomean(values):.3f}", f"{max(values):.3f}", f"{above:.0%}", f"{limit:.2f}")
        )
    common.table(("strategy", "geomean", "worst", "above 1.02", "over the optimum"), lines)
    equal = [row[EQUAL] for row in rows if EQUAL in row]
    if equal:
        common.heading("Worth at the polls of the best fixed interval: waits over its waits")
        names = ("mean", "p95", "max")
        common.table(
            ("wait", "geomean", "worst"),
            [
                (name, f"{geomean([e[n] for e in equal]):.3f}", f"{max(e[n] for e in equal):.3f}")
                for n, name in enumerate(names)
            ],
        )


EQUAL = "equal polls: mean, p95, max"


def draw(rows: list[common.Plain], path: Path) -> None:
    """Each case a line: Worth, the best tuned rival and the optimum, as shares of best fixed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ordered = sorted(rows, key=lambda row: float(row["worth"]))
    figure, axes = pyplot.subplots(figsize=(9, 0.19 * len(rows) + 1.6), layout="constrained")
    y = list(range(len(ordered)))
    marks = (
        ("optimum", "clairvoyant optimum", "#9aa5b1", "|"),
        ("best tuned", "best rival, tuned in hindsight", "#d97706", "o"),
        ("worth blind", "Worth without timestamps", "#93c5fd", "o"),
        ("worth", "Worth", "#2563eb", "o"),
    )
    for column, label, colour, mark in marks:
        axes.scatter([row[column] for row in ordered], y, c=colour, marker=mark, s=26, label=label)
    axes.axvline(1.0, color="#1f2933", linewidth=0.8)
    axes.set_yticks(y, [f"{row['trace']}  ρ={row['rho']:g}" for row in ordered], fontsize=7)
    axes.set_xlabel("cost as a share of the best fixed interval, chosen in hindsight")
    axes.legend(loc="lower right", frameon=False, fontsize=8)
    axes.grid(axis="x", color="#e4e7eb")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def goals(rows: list[common.Plain], quick: bool, found: list[Trace]) -> list[common.Goal]:
    seeing, blind = [r["worth"] for r in rows], [r["worth blind"] for r in rows]
    behind = [r["worth"] / r["best tuned"] for r in rows]
    decisions = [r["microseconds a decision"] for r in rows]
    return [
        common.Goal("Worth, geomean of best fixed", geomean(seeing), 0.76, "×"),
        common.Goal("Worth, worst case", max(seeing), 1.03, "×"),
        common.Goal("Worth without timestamps, geomean", geomean(blind), 0.80, "×"),
        common.Goal("Worth without timestamps, worst case", max(blind), 1.05, "×"),
        common.Goal("Worth over best tuned rival, geomean", geomean(behind), 0.95, "×"),
        common.Goal("Worth over best tuned rival, worst", max(behind), 1.05, "×"),
        common.Goal("a decision, mean", sum(decisions) / len(decisions), 20.0, "µs"),
        *promises.goals(found, quick),
        *restart.goals(found, quick),
    ]


def main() -> None:
    options = common.options(__doc__ or "", traces=True)
    folder = options.folder or common.traces_folder()
    machine, versions = common.machine(common.HERE), common.versions()
    common.show(machine, versions)
    print(f"traces  {folder.name if folder else 'the workloads of the lab'}")
    found = load(folder, EVENTS_QUICK if options.quick else EVENTS)
    rows = []
    for case in cases(found):
        rows.append(measure(case, options.quick))
        if sys.stderr.isatty():
            print(f"{case.trace.name} ρ={case.rho:g} {rows[-1]['worth']:.3f}", file=sys.stderr)
    show(rows)
    picture = options.out or (None if options.quick else PICTURE)
    if picture is not None:
        draw(rows, picture)
        print(f"\npicture: {picture.name}")
    facts = {"machine": machine, "versions": versions, "cases": rows}
    common.finish(facts, goals(rows, options.quick, found), options.json)


if __name__ == "__main__":
    main()
