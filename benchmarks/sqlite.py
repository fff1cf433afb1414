"""Pollwise on SQLite compared with Huey on SQLite: jobs and puts a second, idling, and pickup.

Both run one worker process with 8 concurrent handlers, on the same disk, in turns. Huey gets its
best sensible setting: threads (its handlers are plain functions), no results stored, no periodic
tasks, no log. `fsync off` is SQLite's `synchronous = OFF` for both, `fsync on` is FULL; idling and
pickup use the default of each, which is FULL for both.

A difference in Huey's favour: Huey deletes a job before it runs it, one write per job, so a killed
worker loses the jobs that it ran. Pollwise claims under a lease and deletes afterwards, two writes
per job, shared by a batch.
"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import common  # noqa: E402 - see there
from benchmarks.common import Child, Goal, each, heading, median, number, percentile  # noqa: E402

SIDES = ("pollwise", "huey")
TABLES = {"pollwise": "pollwise_jobs", "huey": "task"}
#: The names of the same setting for Huey and for Pollwise.
FSYNC = {
    ("pollwise", "off"): ["--synchronous", "off"],
    ("pollwise", "on"): ["--synchronous", "full"],
    ("huey", "off"): ["--fsync", "off"],
    ("huey", "on"): ["--fsync", "on"],
}
#: Pollwise's min_interval, and how often it checks for changes by other processes, in ms.
FLOOR = 100


@dataclass(frozen=True)
class Scale:
    """How much is measured: for a figure, or in a quick run."""

    jobs: int
    runs: int
    side_runs: int
    puts: int
    put_turns: int
    idle: float
    rounds: int
    workers: int


FULL = Scale(
    jobs=20_000, runs=5, side_runs=3, puts=200, put_turns=40, idle=25.0, rounds=2, workers=5
)
QUICK = Scale(jobs=5_000, runs=3, side_runs=1, puts=200, put_turns=6, idle=8.0, rounds=1, workers=3)


@dataclass(frozen=True)
class Setup:
    """One way to run a worker. aside: shown for completeness, without a goal."""

    side: str
    fsync: str
    what: str
    arguments: tuple[str, ...] = ()
    aside: bool = False

    @property
    def name(self) -> str:
        return f"{self.side}, fsync {self.fsync}, {self.what}"

    @property
    def told(self) -> list[str]:
        return [*FSYNC[self.side, self.fsync], *self.arguments]


DEFAULT, AHEAD, PLAIN = "async handler", "async, prefetch=200", "plain function"
HUEY = "8 threads"


def setups(fsync: str) -> list[Setup]:
    ways = [
        Setup("huey", fsync, HUEY),
        Setup("pollwise", fsync, DEFAULT),
        Setup("pollwise", fsync, AHEAD, ("--prefetch", "200")),
        Setup("pollwise", fsync, PLAIN, ("--plain",), aside=True),
    ]
    if fsync == "off":
        normal = ("--synchronous", "normal")
        ways += [
            Setup("pollwise", fsync, "async, synchronous=normal", normal, aside=True),
            Setup("huey", fsync, "1 thread", ("--threads", "1"), aside=True),
        ]
    return ways


@dataclass
class Bench:
    """Where everything is measured, and by which programs."""

    folder: Path
    scale: Scale
    pythons: dict[str, Path]
    facts: dict[str, Any] = field(default_factory=dict)

    def child(self, side: str, command: str, *arguments: object) -> Child:
        script = common.PEERS / f"{side}_worker.py"
        return Child([self.pythons[side], script, command, *map(str, arguments)])

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.db"


# Jobs a second


@dataclass
class Work:
    """The results of the runs of one setup."""

    rates: list[float] = field(default_factory=list)
    settled: list[float] = field(default_factory=list)
    first_after: list[float] = field(default_factory=list)
    cpu_per_job: list[float] = field(default_factory=list)
    peak_memory: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return median(self.rates)


def measure_work(bench: Bench) -> dict[str, Work]:
    """Handle a full queue; every turn runs every setup, forwards or backwards.

    One run of each beforehand does not count: it warms up the machine and its caches.
    """
    jobs = bench.scale.jobs
    for side in SIDES:
        with bench.child(side, "fill", bench.file(f"filled-{side}"), "--jobs", jobs) as child:
            child.hear()
    found: dict[str, Work] = {}
    for side, what in (("huey", HUEY), ("pollwise", DEFAULT)):
        work_once(bench, Setup(side, "off", what), Work())
    for turn in range(bench.scale.runs):
        ways = [way for fsync in ("off", "on") for way in setups(fsync)]
        for way in ways if turn % 2 == 0 else reversed(ways):
            if not way.aside or turn < bench.scale.side_runs:
                work_once(bench, way, found.setdefault(way.name, Work()))
    return found


def work_once(bench: Bench, way: Setup, work: Work) -> None:
    jobs = bench.scale.jobs
    path = fresh_copy(bench.file(f"filled-{way.side}"), bench.file("work"))
    with bench.child(way.side, "work", path, "--jobs", jobs, *way.told) as child:
        said = child.hear(timeout=300)
        work.peak_memory.append(child.memory("VmHWM"))
    with closing(sqlite3.connect(path)) as connection:
        (left,) = connection.execute(f"SELECT count(*) FROM {TABLES[way.side]}").fetchone()
    if left:
        raise RuntimeError(f"{way.name}: {left} of {jobs} jobs are left over")
    work.rates.append((jobs - 1) / (said["last"] - said["first"]))
    work.settled.append(jobs / (said["settled"] - said["first"]))
    work.first_after.append(said["first"] - child.started)
    work.cpu_per_job.append(said["cpu"] / jobs)


def fresh_copy(source: Path, target: Path) -> Path:
    """A copy that is already on the disk, so that the first fsync of the run need not write it."""
    for old in target.parent.glob(f"{target.name}*"):
        old.unlink()
    shutil.copyfile(source, target)
    with target.open("rb+") as file:
        os.fsync(file.fileno())
    return target


def show_work(bench: Bench, found: dict[str, Work]) -> dict[str, float]:
    heading(f"Jobs a second: {bench.scale.jobs:,} empty jobs, 1 process, 8 concurrent handlers")
    print("From the first to the last job handled; the median of the runs. `settled` counts")
    print("until the last job is off the disk too. The first run of each side is not counted.\n")
    rows, ratios = [], {}
    for fsync in ("off", "on"):
        huey = found[Setup("huey", fsync, HUEY).name].rate
        for way in setups(fsync):
            work = found[way.name]
            if way.side == "pollwise":
                ratios[f"jobs/s, fsync {fsync}, {way.what}"] = work.rate / huey
            rows.append(
                [
                    way.name,
                    number(work.rate),
                    f"{work.rate / huey:.2f}",
                    number(median(work.settled)) if way.side == "pollwise" else "-",
                    f"{median(work.cpu_per_job) * 1e6:.0f}",
                    f"{median(work.peak_memory):.0f}",
                    f"{median(work.first_after) * 1e3:.0f}",
                    each(work.rates),
                ]
            )
    head = ["", "jobs/s", "× Huey", "settled", "CPU µs/job", "peak MiB", "first ms", "all runs"]
    common.table(head, rows)
    print(
        "\n`CPU`: of all threads, after the first job began. `first`: from the start of the process"
    )
    print("to its first job.")
    bench.facts["work"] = {name: vars(work) | {"rate": work.rate} for name, work in found.items()}
    return ratios


# Puts a second


def measure_puts(bench: Bench) -> dict[str, list[float]]:
    """Puts a second. The setups take short turns, so that a moment in which other programs use the
    machine affects all of them.
    """
    found: dict[str, list[float]] = {}
    for fsync in ("off", "on"):
        puts = bench.scale.puts if fsync == "off" else bench.scale.puts // 4
        ways: list[tuple[str, str, int, list[str]]] = [
            ("huey", "one at a time", puts, []),
            ("pollwise", "one at a time", puts, []),
            ("pollwise", "one at a time without an event loop", puts, ["--sync"]),
            ("pollwise", "100 at a time", puts * 10, ["--batch", "100"]),
        ]
        with ExitStack() as stack:
            crew: dict[str, tuple[Child, int]] = {}
            for side, what, jobs, more in ways:
                path = bench.file(f"put-{side}-{fsync}{''.join(more)}")
                told = ["--jobs", jobs, *FSYNC[side, fsync], *more]
                child = stack.enter_context(bench.child(side, "put", path, *told))
                child.hear()
                crew[f"{side}, fsync {fsync}, {what}"] = child, jobs
            for turn in range(bench.scale.put_turns):
                for name in list(crew) if turn % 2 == 0 else reversed(crew):
                    child, jobs = crew[name]
                    found.setdefault(name, []).append(jobs / child.ask("go")["seconds"])
    return found


def show_puts(bench: Bench, found: dict[str, list[float]]) -> dict[str, float]:
    heading("Puts a second: one producer, one transaction a put or a batch")
    ratios, rows = {}, []
    for name in sorted(found):
        side, fsync, what = name.split(", ")
        ratio = median(found[name]) / median(found[f"huey, {fsync}, one at a time"])
        if side == "pollwise":
            ratios[f"puts/s, {fsync}, {what}"] = ratio
        rates = sorted(found[name])
        ends = f"{number(rates[0])} to {number(rates[-1])}"
        rows.append([name, number(median(rates)), f"{ratio:.2f}", ends])
    common.table(["", "puts/s", "× Huey", "slowest and fastest turn"], rows)
    bench.facts["puts"] = found
    return ratios


# Idling, and pickup after it


@dataclass
class Idler:
    """An idle worker with a file of its own, and the process that puts into it."""

    kind: str
    child: Child
    put: Callable[[], float]
    cpu: list[float] = field(default_factory=list)
    statements: list[int] = field(default_factory=list)

    def look(self) -> None:
        self.cpu.append(self.child.cpu())
        self.statements.append(self.child.ask("count")["statements"])


@dataclass
class Idle:
    """The results of the idle workers of one kind: rates of the whole time and of its second
    half."""

    cpu_percent: list[float] = field(default_factory=list)
    per_minute: list[float] = field(default_factory=list)
    per_minute_late: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    pickup_ms: list[float] = field(default_factory=list)


HERE, ACROSS = "pollwise, put in its process", "pollwise, put by another process"
HUEY_ACROSS, HUEY_TUNED = "huey, put by another process", "huey, polling every 0.1 s"


def measure_idle(bench: Bench) -> dict[str, Idle]:
    """Let several workers idle at a time, each on its own file, then put one job into each."""
    found = {kind: Idle() for kind in (HERE, ACROSS, HUEY_ACROSS, HUEY_TUNED)}
    with ExitStack() as stack:
        idlers = list(start_idlers(bench, stack))
        for turn in range(bench.scale.rounds):
            time.sleep(1)
            half = bench.scale.idle / 2
            for idler in idlers:
                idler.cpu.clear()
                idler.statements.clear()
                idler.look()
            for _ in range(2):
                time.sleep(half)
                for idler in idlers:
                    idler.look()
            for idler in idlers:
                if turn == 0:
                    note_idle(found[idler.kind], idler, bench.scale.idle)
                # At any time between two polls of the worker, not always just after one.
                time.sleep(random.uniform(0.0, FLOOR / 1000))
                found[idler.kind].pickup_ms.append(idler.put() * 1000)
    return found


def note_idle(idle: Idle, idler: Idler, lasted: float) -> None:
    began, middle, ended = idler.statements
    idle.cpu_percent.append((idler.cpu[-1] - idler.cpu[0]) / lasted * 100)
    idle.per_minute.append((ended - began) / lasted * 60)
    idle.per_minute_late.append((ended - middle) / (lasted / 2) * 60)
    idle.memory.append(idler.child.memory())


def start_idlers(bench: Bench, stack: ExitStack) -> Iterator[Idler]:
    count = bench.scale.workers
    kinds: list[tuple[str, str, int, list[str]]] = [
        ("pollwise", HERE, count, []),
        ("pollwise", ACROSS, count, []),
        ("huey", HUEY_ACROSS, count, []),
        ("huey", HUEY_TUNED, 1, ["--delay", "0.1"]),
    ]
    for place, (side, kind, number_of, told) in enumerate(kinds):
        files = [bench.file(f"idle-{place}-{n}") for n in range(number_of)]
        workers = [stack.enter_context(bench.child(side, "idle", f, *told)) for f in files]
        for worker in workers:
            worker.hear()
        putter = None
        if kind != HERE:
            putter = stack.enter_context(bench.child(side, "putter", *files))
            putter.hear()
        for n, worker in enumerate(workers):
            yield Idler(kind, worker, putting(worker, putter, n))


def putting(worker: Child, putter: Child | None, place: int) -> Callable[[], float]:
    def put() -> float:
        """Put a job; returns the time from just before that to its handler's start."""
        if putter is None:
            worker.tell("put")
            said = worker.hear() | worker.hear()
        else:
            said = putter.ask(str(place)) | worker.hear()
        took: float = said["started"] - said["sent"]
        return took

    return put


def show_idle(bench: Bench, found: dict[str, Idle]) -> dict[str, float]:
    scale = bench.scale
    heading(f"Idle for {scale.idle:g} s, after a second to settle")
    print("CPU in percent of one core, the worst of the workers. SQL statements a minute, over the")
    print("whole time and over its second half, because Huey's 8 threads are still backing off.\n")
    rows = [
        [
            kind,
            f"{max(idle.cpu_percent):.3f}",
            number(median(idle.per_minute)),
            number(median(idle.per_minute_late)),
            f"{median(idle.memory):.0f}",
            each(idle.cpu_percent),
        ]
        for kind, idle in found.items()
    ]
    head = ["", "CPU %", "statements/min", "late", "memory MiB", "CPU % of each worker"]
    common.table(head, rows)
    heading(f"Pickup after {scale.idle:g} s of idling: from before the put to the handler's start")
    rows = [
        [
            kind,
            number(median(idle.pickup_ms)),
            number(max(idle.pickup_ms)),
            each(sorted(idle.pickup_ms)),
        ]
        for kind, idle in found.items()
    ]
    common.table(["", "p50 ms", "max ms", "all, sorted"], rows)
    bench.facts["idle"] = {kind: vars(idle) for kind, idle in found.items()}
    pollwise, huey = found[ACROSS], found[HUEY_ACROSS]
    return {
        "idle CPU": max(pollwise.cpu_percent) / max(huey.cpu_percent),
        "idle statements": median(pollwise.per_minute) / median(huey.per_minute),
        "pickup across processes, p50": median(pollwise.pickup_ms) / median(huey.pickup_ms),
        "pickup across processes, max": max(pollwise.pickup_ms) / max(huey.pickup_ms),
    }


# The whole benchmark


def losses(work: dict[str, Work], ratios: dict[str, float]) -> list[str]:
    """Where Huey is better in this run."""
    found = [
        f"{name}: {ratio:.2f} × Huey's"
        for name, ratio in ratios.items()
        if (ratio < 1 if "/s" in name else ratio > 1)
    ]
    for fsync in ("off", "on"):
        huey = work[Setup("huey", fsync, HUEY).name]
        pollwise = work[Setup("pollwise", fsync, DEFAULT).name]
        for name, ours, theirs, unit in (
            ("peak memory", median(pollwise.peak_memory), median(huey.peak_memory), "MiB"),
            ("CPU a job", median(pollwise.cpu_per_job) * 1e6, median(huey.cpu_per_job) * 1e6, "µs"),
            ("start to first job", median(pollwise.first_after), median(huey.first_after), "s"),
        ):
            if ours > theirs:
                against = f"{number(ours)} {unit} against {number(theirs)} {unit}"
                found.append(f"{name}, fsync {fsync}, {DEFAULT}: {against}")
    return found


def goals(ratios: dict[str, float], idle: dict[str, Idle]) -> list[Goal]:
    jobs = [
        Goal(f"SQLite jobs/s, fsync {fsync}, {shown}", ratios[key], 3, "× Huey", least=True)
        for fsync in ("off", "on")
        for shown, key in (
            ("defaults", f"jobs/s, fsync {fsync}, {DEFAULT}"),
            ("prefetch=200", f"jobs/s, fsync {fsync}, {AHEAD}"),
        )
    ]
    puts = [
        Goal(f"SQLite single puts, fsync off{how}", ratios[key], 0.8, "× Huey", least=True)
        for how, key in (
            ("", "puts/s, fsync off, one at a time"),
            (", sync", "puts/s, fsync off, one at a time without an event loop"),
        )
    ]
    worst = max([*idle[ACROSS].cpu_percent, *idle[HERE].cpu_percent])
    return [
        *jobs,
        *puts,
        Goal("SQLite idle CPU, worst worker", worst, 0.1, "%"),
        Goal("SQLite pickup in one process, p50", median(idle[HERE].pickup_ms), 5, "ms"),
        Goal("SQLite pickup across processes, max", max(idle[ACROSS].pickup_ms), FLOOR, "ms"),
    ]


def run(bench: Bench) -> Sequence[Goal]:
    work = measure_work(bench)
    ratios = show_work(bench, work)
    ratios |= show_puts(bench, measure_puts(bench))
    idle = measure_idle(bench)
    ratios |= show_idle(bench, idle)
    heading("Where Huey is better")
    print("\n".join(losses(work, ratios)) or "Nowhere, in this run.")
    bench.facts["ratios"] = ratios
    bench.facts["pickup_p95_ms"] = {k: percentile(i.pickup_ms, 0.95) for k, i in idle.items()}
    return goals(ratios, idle)


def main() -> None:
    options = common.options("Pollwise on SQLite against Huey on SQLite.")
    huey = common.peer("huey")
    with common.work_folder() as folder:
        scale = QUICK if options.quick else FULL
        bench = Bench(folder, scale, {"pollwise": Path(sys.executable), "huey": huey})
        machine = common.machine(folder)
        versions = common.versions(huey=common.peer_version("huey"))
        common.show(machine, versions)
        bench.facts |= {"machine": machine, "versions": versions, "scale": vars(scale)}
        others = common.Others()
        reached = run(bench)
        bench.facts["others_percent"] = others.show()
    common.finish(bench.facts, reached, options.json)


if __name__ == "__main__":
    main()
