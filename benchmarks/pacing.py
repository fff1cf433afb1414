"""What each strategy costs on real traffic, compared with the best fixed interval in hindsight.

    python benchmarks/pacing.py [DIR] [--quick] [--json FILE] [--out PICTURE]

For every trace in DIR (else in $POLLWISE_TRACES; else the workloads that ship with the lab) and ρ
in 0.3, 1, 3, 10: the price of a poll over that of a waiting item-second is set so that the best
interval for the mean rate λ, √(2·ratio/λ), is ρ/λ: about ρ items arrive between two polls. Cost is
polls · ratio + waiting, as a share of what the best fixed interval in hindsight costs. Polls are
instantaneous, without jitter, and find everything that arrived.

The other strategies are tried at their defaults, scaled so that the middle of their bounds is that
interval, and tuned in hindsight: the cheapest of about 80 settings for each case, which nobody can
know in advance. Worth is not tuned. The first 500 and 2,000 items of each trace are replayed too.

Worth was developed with half of the traces: of those in DIR, sorted by name, the first, the third
and so on. The others were held out. Figures are shown for both halves.

Rounded stamps (to seconds, for example) get seeded jitter of one step. Otherwise polls on whole
seconds would meet them by chance. Cases run in one process per core; decisions are timed in CPU
time.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np  # noqa: E402

from benchmarks import common  # noqa: E402 - see there
from benchmarks.pacing_sections import promises, restart, stamps  # noqa: E402
from pollwise import Adaptive, BatchFill, Ewma, Fixed, Strategy, Worth  # noqa: E402
from pollwise.lab.replay import limits  # noqa: E402
from pollwise.lab.replay.base import Replay, Situation, Trace  # noqa: E402
from pollwise.lab.replay.engine import replay  # noqa: E402
from pollwise.lab.replay.fast import lean  # noqa: E402
from pollwise.lab.report.drawing import Caption, Dot, Drawing, Stroke  # noqa: E402
from pollwise.lab.traces import reading as traces  # noqa: E402
from pollwise.lab.traces import synthetic  # noqa: E402

RHOS = (0.3, 1.0, 3.0, 10.0)
#: How many items of each trace are replayed; the last is the whole benchmark.
LENGTHS, LENGTHS_QUICK = (500, 2_000, 20_000), (500, 2_000)
#: What the cost should be at each length: its geometric mean and its worst case.
AIMS = {500: (0.92, 1.25), 2_000: (0.86, 1.15), 20_000: (0.84, 1.03)}
#: And the cost divided by that of the best other strategy, tuned in hindsight.
OVER_TUNED = 0.93
HALVES = ("developed with", "held out")
SEED = 1
#: Worth's bounds as multiples of the best interval for the mean rate: wide, so that they decide
#: nothing.
FLOOR, CEILING = 1e-3, 1e3
#: Where a full run draws its picture by default.
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
    half: str

    def share(self, done: Replay) -> float:
        return done.cost(self.ratio, 1.0) / self.fixed

    def worth(self, ratio: float | None = None) -> Worth:
        return Worth(
            poll_cost=self.ratio if ratio is None else ratio,
            wait_cost=1.0,
            min_interval=self.interval * FLOOR,
            max_interval=self.interval * CEILING,
        )


def load(folder: Path | None) -> list[Trace]:
    if folder is None:
        found = [synthetic.workload(name, seed=SEED) for name in synthetic.WORKLOADS]
    else:
        kinds = {".gz", ".csv", ".ndjson"}  # a file of durations is not a trace
        paths = sorted(
            p for p in folder.iterdir() if p.suffix in kinds and "durations" not in p.name
        )
        found = [traces.read(path, name=path.name.split(".")[0]) for path in paths]
    return [off_the_grid(trace) for trace in found]


def off_the_grid(trace: Trace) -> Trace:
    """Spread stamps over the step that they are rounded to: a second if all are whole; otherwise,
    if one in ten equals the stamp before it, the usual distance between them."""
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


def case_of(place: int, trace: Trace, rho: float) -> Case:
    """The case of the trace at this place of the folder."""
    ratio = rho**2 / (2 * trace.rate)
    _, fixed = limits.best_fixed(trace.arrivals, ratio, trace.span)
    best = limits.optimum(trace.arrivals, ratio).cost
    return Case(trace, rho, ratio, rho / trace.rate, fixed, best, HALVES[place % 2])


def scaled(strategy: Strategy, case: Case) -> Strategy:
    """Another strategy at its defaults, with the middle of its bounds at the case's interval."""
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
    """The seconds per poll that the replay itself takes."""
    began = time.process_time()
    done = lean(case.trace, Fixed(case.interval), SEEING)
    return (time.process_time() - began) / done.polls


def measure(place: int, trace: Trace, rho: float, *, equal: bool) -> common.Plain:
    """All figures of one case; `equal`: also with the polls of the best fixed interval."""
    case = case_of(place, trace, rho)
    began = time.process_time()
    seeing = replay(case.trace, case.worth(), SEEING)
    took = time.process_time() - began - seeing.polls * replay_overhead(case)
    blind = replay(case.trace, case.worth(), BLIND)
    facts: common.Plain = {
        "trace": case.trace.name,
        "half": case.half,
        "rho": case.rho,
        "worth": case.share(seeing),
        "worth blind": case.share(blind),
        "optimum": case.optimum / case.fixed,
        "polls": seeing.polls,
        "microseconds a decision": took / seeing.polls * 1e6,
        **rivals(case),
    }
    if equal:
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
    ordered = sorted(rows, key=lambda row: float(row["worth"]), reverse=True)
    marks = (
        ("optimum", "clairvoyant optimum", "axis"),
        ("best tuned", "best rival, tuned in hindsight", "adaptive"),
        ("worth blind", "Worth without timestamps", "batch_fill"),
        ("worth", "Worth", "worth"),
    )
    left, right, top, line = 260.0, 880.0, 60.0, 19.0
    bottom = top + line * len(ordered)
    most = max(1.05, *(float(row[column]) for row in ordered for column, _, _ in marks))
    drawing = Drawing(900.0, bottom + 50.0)
    for n, (_, label, role) in enumerate(marks):
        at = (20.0 + 215.0 * n, 24.0)
        drawing.add(Dot(at, 4.0, role), Caption((at[0] + 9, 28.0), label, "ink", 12, "start"))

    def x(share: float) -> float:
        return left + (right - left) * share / most

    for tenth in range(0, int(most * 10) + 1, 2):
        share, role = tenth / 10, "limit" if tenth == 10 else "grid"
        drawing.add(
            Stroke([(x(share), top - 12), (x(share), bottom)], role),
            Caption((x(share), bottom + 16), f"{share:g}", "quiet", 11),
        )
    about = "cost as a share of the best fixed interval, chosen in hindsight"
    drawing.add(Caption(((left + right) / 2, bottom + 38), about, "ink", 12))
    for n, row in enumerate(ordered):
        y = top + line * n
        name = f"{row['trace']}  ρ={row['rho']:g}"
        drawing.add(Caption((left - 10, y + 4), name, "ink", 11, "end"))
        drawing.add(*(Dot((x(float(row[c])), y), 4.0, role, title=c) for c, _, role in marks))
    path.write_bytes(drawing.svg_file())


def show_lengths(rows: dict[int, list[common.Plain]]) -> None:
    """What Worth costs at each length, for each half of the traces."""
    common.heading("Worth on the first items of each trace: cost over the best fixed interval")
    lines = []
    for length, every in rows.items():
        for half in HALVES:
            part = [row for row in every if row["half"] == half]
            figures = [
                fold([row[column] for row in part])
                for column in ("worth", "worth blind")
                for fold in (geomean, max)
            ]
            figures.append(geomean([row["worth"] / row["best tuned"] for row in part]))
            lines.append((f"{length:,}", half, *(f"{figure:.3f}" for figure in figures)))
    heads = ("geomean", "worst", "without timestamps", "worst", "over the best tuned rival")
    common.table(("items", "half", *heads), lines)


def goals(rows: dict[int, list[common.Plain]]) -> Iterator[common.Goal]:
    for length, every in rows.items():
        geometric, worst = AIMS[length]
        for half in HALVES:
            part = [row for row in every if row["half"] == half]
            costs = [row["worth"] for row in part]
            behind = geomean([row["worth"] / row["best tuned"] for row in part])
            name = f"{length:,} items, {half}"
            yield common.Goal(f"{name}: geomean of best fixed", geomean(costs), geometric, "×")
            yield common.Goal(f"{name}: worst", max(costs), worst, "×")
            yield common.Goal(f"{name}: over best tuned rival", behind, OVER_TUNED, "×")
    longest = rows[max(rows)]
    blind = [row["worth blind"] for row in longest]
    decisions = [row["microseconds a decision"] for row in longest]
    yield common.Goal("without timestamps, geomean of best fixed", geomean(blind), 0.80, "×")
    yield common.Goal("without timestamps, worst", max(blind), 1.05, "×")
    yield common.Goal("a decision, mean", sum(decisions) / len(decisions), 20.0, "µs")


def main() -> None:
    options = common.options(__doc__ or "", traces=True)
    folder = options.folder or common.traces_folder()
    machine, versions = common.machine(common.HERE), common.versions()
    common.show(machine, versions)
    print(f"traces  {folder.name if folder else 'the workloads of the lab'}")
    whole = load(folder)
    lengths = LENGTHS_QUICK if options.quick else LENGTHS
    found = [cut(trace, max(lengths)) for trace in whole]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        pending: dict[int, list[Future[common.Plain]]] = {
            length: [
                pool.submit(measure, place, cut(trace, length), rho, equal=equal)
                for place, trace in enumerate(whole)
                for rho in RHOS
            ]
            for length in reversed(lengths)
            for equal in [not options.quick and length == max(lengths)]
        }
        parts = (stamps, promises, restart)
        promised = [goal for part in parts for goal in part.goals(found, options.quick)]
        rows = {length: [each.result() for each in pending[length]] for length in lengths}
    longest = rows[max(lengths)]
    show(longest)
    show_lengths(rows)
    picture = options.out or (None if options.quick else PICTURE)
    if picture is not None:
        draw(longest, picture)
        print(f"\npicture: {picture.name}")
    facts = {
        "machine": machine,
        "versions": versions,
        "cases": [row | {"items": length} for length, every in rows.items() for row in every],
    }
    common.finish(facts, [*goals(rows), *promised], options.json)


if __name__ == "__main__":
    main()
