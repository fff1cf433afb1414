"""Puts a second, jobs a second, and how jobs a second and idle load grow with processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks import common
from benchmarks.common import Child, heading, median, number
from benchmarks.queue_sections.kit import (
    Bench,
    Run,
    Setup,
    drain,
    short,
    watch,
    workers,
)

#: The number of jobs of one put, by its name.
BATCHES = {"single": 1, "batch": 100, "large": 1000}
#: The number of jobs of one turn when several setups put single jobs in turns.
TURN = 100
#: Seconds from the last job until idling is watched, because Pollwise backs off for so long.
SETTLE, SETTLE_PEER = 7.0, 2.0


def best(rates: dict[str, float], setups: Sequence[Setup], store: str) -> tuple[str, float]:
    """The fastest peer on a store, and its rate; NaN if none was measured."""
    theirs = {
        setup.name: rates[setup.name]
        for setup in setups
        if setup.store == store and not setup.ours and setup.name in rates
    }
    name = max(theirs, key=lambda each: theirs[each], default="")
    return name, theirs.get(name, float("nan"))


# Puts a second


def measure_puts(bench: Bench, seconds: float, runs: int) -> dict[str, dict[str, float]]:
    """One producer: one job per call, and many per call in the fastest way of the peer."""
    found: dict[str, dict[str, list[float]]] = {}
    for turn in range(runs):
        for setup in putting(bench) if turn % 2 == 0 else reversed(putting(bench)):
            with bench.guard(setup, "puts"):
                rates = found.setdefault(setup.name, {})
                for what, batch in BATCHES.items():
                    if batch == 1 or (batch > 100 and not setup.bulk):
                        continue  # a longer loop is not faster
                    rate = put_rate(bench, setup, batch, setup.bulk or 4_000, seconds)
                    rates.setdefault(what, []).append(rate)
    for name, singles in single_rates(bench, int(runs * seconds * 10)).items():
        found.setdefault(name, {})["single"] = singles
    medians = {
        name: {what: median(values) for what, values in rates.items() if values}
        for name, rates in found.items()
        if "batch" in rates
    }
    bench.facts["puts"] = {"runs": found, "median": medians}
    show_puts(bench, medians, found)
    return medians


def putting(bench: Bench) -> list[Setup]:
    """The setups whose puts are measured: Pollwise without an event loop too."""
    ours = [replace(setup, way="sync") for setup in bench.main if setup.ours]
    return [*bench.main, *ours]


def single_rates(bench: Bench, turns: int) -> dict[str, list[float]]:
    """Puts a second with one job per call. The setups take short turns, so that a moment in which
    other programs use the machine affects all of them.
    """
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        crew: dict[str, Child] = {}
        for setup in putting(bench):
            with bench.guard(setup, "puts"):
                url = stack.enter_context(bench.ground(setup))
                told = ("--jobs", TURN, "--batch", 1)
                child = stack.enter_context(bench.child(setup, "put", url, *told))
                child.hear()
                crew[setup.name] = child
        for turn in range(turns):
            for name in list(crew) if turn % 2 == 0 else reversed(crew):
                said = crew[name].ask("go")
                found.setdefault(name, []).append(TURN / (said["ended"] - said["began"]))
    return found


def put_rate(
    bench: Bench,
    setup: Setup,
    batch: int,
    guess: float,
    seconds: float,
    writers: int = 1,
    listener: Setup | None = None,
) -> float:
    """The puts a second of this many producers together; `guess`: about what they reach.

    listener: a worker that runs meanwhile.
    """
    jobs = max(int(guess * seconds / writers) // batch, 1) * batch
    with bench.ground(setup) as url, ExitStack() as stack:
        told = ("--jobs", jobs, "--batch", batch)
        crew = [stack.enter_context(bench.child(setup, "put", url, *told)) for _ in range(writers)]
        for child in crew:
            child.hear()
        if listener is not None:
            (worker,) = stack.enter_context(workers(bench, listener, url, 1))
            worker.tell("go")
            time.sleep(0.5)
        for child in crew:
            child.tell("go")
        said = [child.hear(timeout=120) for child in crew]
    lasted = max(each["ended"] for each in said) - min(each["began"] for each in said)
    return float(jobs * writers / lasted)


def show_puts(
    bench: Bench,
    medians: dict[str, dict[str, float]],
    found: dict[str, dict[str, list[float]]],
) -> None:
    heading(f"Puts a second: one producer, {', '.join(map(str, BATCHES.values()))} jobs a call")
    print("Many at a time with the peer's call for that (*), or concurrently or in a loop. × is")
    print("Pollwise's rate divided by the peer's.\n")
    rows = []
    for setup in putting(bench):
        rates = medians.get(setup.name)
        if not rates:
            continue
        ours = medians.get(f"pollwise {setup.store}", {})
        cells = [setup.name + (" *" if setup.bulk else "")]
        for what in BATCHES:
            known = what in rates
            cells += (
                [number(rates[what]), ratio(ours.get(what), rates[what])] if known else ["-"] * 2
            )
        rows.append([*cells, short(found[setup.name]["batch"])])
    head = [cell for batch in BATCHES.values() for cell in (f"{batch} a call", "×")]
    common.table(["", *head, "all runs of 100"], rows)


def ratio(ours: float | None, theirs: float) -> str:
    return "-" if ours is None else f"{ours / theirs:.2f}"


# Jobs a second


@dataclass
class Work:
    runs: list[Run] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return median([run.rate for run in self.runs])

    def facts(self) -> dict[str, Any]:
        return {"rate": self.rate, "runs": [vars(run) for run in self.runs]}


def measure_work(bench: Bench, seconds: float, runs: int) -> dict[str, Work]:
    """A backlog is handled to its end by one process; forwards, then backwards through the list.

    A setup that is far from the fastest gets two runs.
    """
    found: dict[str, Work] = {}
    broken = set()
    for turn in range(runs):
        for setup in bench.setups if turn % 2 == 0 else bench.setups[::-1]:
            if setup.name in broken or (turn > 1 and not (setup.strong or setup.aside)):
                continue
            broken.add(setup.name)
            with bench.guard(setup, "jobs"):
                jobs = int(setup.pace * seconds)
                found.setdefault(setup.name, Work()).runs.append(work_once(bench, setup, jobs, 1))
                broken.discard(setup.name)
    found = {name: work for name, work in found.items() if work.runs}
    bench.facts["work"] = {name: work.facts() for name, work in found.items()}
    show_work(bench, found)
    return found


def work_once(bench: Bench, setup: Setup, jobs: int, processes: int) -> Run:
    with bench.ground(setup, jobs) as url, workers(bench, setup, url, processes) as crew:
        return drain(bench, setup, url, crew, jobs)


def show_work(bench: Bench, found: dict[str, Work]) -> None:
    heading("Jobs a second: empty jobs, one process, from the first to the last job handled")
    print("The median of the runs. `settled`: until the store holds none of them, noticed up to")
    print("0.1 s late. CPU of the worker's process and of the whole server, µs a job.")
    print("× is Pollwise's rate (default settings) divided by the peer's.\n")
    rows = []
    for setup in bench.setups:
        work = found.get(setup.name)
        if work is None:
            continue
        ours = found.get(f"pollwise {setup.store}")
        rows.append(
            [
                setup.name,
                number(work.rate),
                ratio(ours.rate if ours else None, work.rate),
                number(median([run.settled for run in work.runs])),
                f"{median([run.cpu_per_job for run in work.runs]) * 1e6:.0f}",
                f"{median([run.server_cpu_per_job for run in work.runs]) * 1e6:.0f}",
                f"{median([run.peak_memory for run in work.runs]):.0f}",
                f"{work.runs[0].jobs:,}",
                short([run.rate for run in work.runs]),
            ]
        )
    head = ["", "jobs/s", "×", "settled", "CPU", "server CPU", "peak MiB", "jobs", "all runs"]
    common.table(head, rows)


# Growth with processes


@dataclass
class Crew:
    """The results of some worker processes: busy, and idle afterwards."""

    rate: float
    idle_asked: float
    idle_cpu: float
    memory: float


def measure_growth(
    bench: Bench,
    seconds: float,
    processes: Sequence[int],
    idle: float,
    known: dict[str, Crew],
) -> dict[str, dict[int, Crew]]:
    """The same backlog for 1, 4 and 16 processes; then they idle, and the store is watched.

    known: the result of one process, if another section has measured it.
    """
    found: dict[str, dict[int, Crew]] = {}
    for setup in bench.main:
        settle = SETTLE if setup.ours else SETTLE_PEER
        for count in processes:
            if count == 1 and setup.name in known:
                found.setdefault(setup.name, {})[1] = known[setup.name]
                continue
            with bench.guard(setup, f"{count} processes"):
                crew = grow(bench, setup, count, int(setup.pace * seconds), settle, idle)
                found.setdefault(setup.name, {})[count] = crew
    bench.facts["growth"] = {
        name: {str(count): vars(crew) for count, crew in crews.items()}
        for name, crews in found.items()
    }
    show_growth(found, processes, idle)
    return found


def grow(bench: Bench, setup: Setup, count: int, jobs: int, settle: float, idle: float) -> Crew:
    with bench.ground(setup, jobs) as url, workers(bench, setup, url, count) as crew:
        run = drain(bench, setup, url, crew, jobs)
        time.sleep(settle)
        watching = watch(bench.postgres if setup.store == "postgres" else bench.redis, url)
        watching.begin()
        cpu, began = sum(child.cpu() for child in crew), time.monotonic()
        time.sleep(idle)
        lasted = time.monotonic() - began
        used = sum(child.cpu() for child in crew) - cpu
        asked, _ = watching.end()
        memory = sum(child.memory() for child in crew)
        return Crew(run.rate, asked / lasted, used / lasted * 100, memory)


def show_growth(found: dict[str, dict[int, Crew]], processes: Sequence[int], idle: float) -> None:
    heading(f"With {', '.join(map(str, processes))} worker processes")
    print("All start together on one backlog. Idle: statements or commands a second of all of them")
    print(
        f"together, and their CPU in percent of one core, over {idle:g} s once they have settled."
    )
    print("One process: as above, if it was measured there.\n")
    columns = [f"{{}}, {count}" for count in processes]
    head = ["", *(c.format("jobs/s") for c in columns), *(c.format("asked/s") for c in columns)]
    head += [c.format("CPU %") for c in columns]
    rows = []
    for name, crews in found.items():
        cells = [name]
        for what, digits in (("rate", 3), ("idle_asked", 3), ("idle_cpu", 2)):
            for count in processes:
                crew = crews.get(count)
                cells.append(number(getattr(crew, what), digits) if crew else "-")
        rows.append(cells)
    common.table(head, rows)
