"""Pickup: from just before a put to the start of the handler; and the cost of idling.

All setups idle at the same time, each worker on a store of its own: a database, or a Valkey. So a
minute of idling takes one minute, and a job for one worker does not disturb the others.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from benchmarks import common
from benchmarks.common import heading, median, number, percentile
from benchmarks.queue_sections.kit import Bench, Peer, Setup, Watch, watch, workers

#: The longest pause between puts into two idle workers, in seconds.
GAP = 0.05


@dataclass
class Idler:
    """An idle worker on its own store, and the process that puts into it."""

    setup: Setup
    worker: Peer
    putter: Peer
    watch: Watch

    def put(self) -> float:
        """Put a job; returns the milliseconds until its handler began."""
        self.putter.ask("one")
        limit = time.monotonic() + 30
        while time.monotonic() < limit:
            for latency in self.worker.ask("latencies")["latencies"]:
                return float(latency) * 1000
            time.sleep(0.005)
        raise TimeoutError(f"{self.setup.name} did not pick up a job within 30 s")


@dataclass
class Idle:
    """The results of a setup's idle workers. asked: statements, or commands, a second."""

    asked: list[float] = field(default_factory=list)
    transactions: list[float] = field(default_factory=list)
    cpu_percent: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    pickup_ms: list[float] = field(default_factory=list)
    late_pickup_ms: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Patience:
    """settle: the time before watching begins. watch: its length. pause, rounds: idling before a
    pickup.

    samples: pickups by each worker. crew: workers of a setup.
    """

    settle: float
    watch: float
    pause: float
    rounds: int
    samples: int
    crew: int


def measure_idle(bench: Bench, patience: Patience) -> dict[str, Idle]:
    found: dict[str, Idle] = {}
    with ExitStack() as stack:
        idlers = list(start(bench, stack, patience.crew))
        for idler in idlers:
            found.setdefault(idler.setup.name, Idle())
        time.sleep(patience.settle)
        look(idlers, found, patience.watch)
        for turn in range(patience.rounds):
            if turn or patience.watch < patience.pause:
                time.sleep(patience.pause)
            visit(bench, idlers, lambda idler: found[idler.setup.name].late_pickup_ms)
        for _ in range(patience.samples):
            visit(bench, idlers, lambda idler: found[idler.setup.name].pickup_ms)
    bench.facts["idle"] = {name: vars(idle) for name, idle in found.items()}
    show_idle(bench, found, patience)
    return found


def start(bench: Bench, stack: ExitStack, crew: int) -> Iterator[Idler]:
    for setup in bench.main:
        for _ in range(crew):
            with bench.guard(setup, "idling"):
                if setup.store == "postgres":
                    url = bench.fresh(setup)
                    watching = watch(bench.postgres, url)
                else:
                    server = bench.servers.redis()
                    url = bench.prepare(setup, server.url())
                    watching = watch(server, url)
                worker = stack.enter_context(bench.child(setup, "work", url))
                worker.hear()
                putter = stack.enter_context(bench.child(setup, "putter", url))
                putter.hear()
                worker.tell("go")
                yield Idler(setup, worker, putter, watching)


def look(idlers: Sequence[Idler], found: dict[str, Idle], seconds: float) -> None:
    """Watch all idle workers at the same time."""
    before = []
    for idler in idlers:
        idler.watch.begin()
        before.append((time.monotonic(), idler.worker.cpu()))
    time.sleep(seconds)
    for idler, (began, cpu) in zip(idlers, before, strict=True):
        lasted = time.monotonic() - began
        used = idler.worker.cpu() - cpu
        asked, transactions = idler.watch.end()
        idle = found[idler.setup.name]
        idle.asked.append(asked / lasted)
        idle.transactions.append(transactions / lasted)
        idle.cpu_percent.append(used / lasted * 100)
        idle.memory.append(idler.worker.memory())


def visit(bench: Bench, idlers: list[Idler], kept: Any) -> None:
    """One pickup by each worker, one after the other. A worker that fails is not tried again."""
    for idler in idlers[:]:
        idlers.remove(idler)
        with bench.guard(idler.setup, "pickup"):
            time.sleep(random.uniform(0.0, GAP))
            kept(idler).append(idler.put())
            idlers.append(idler)


def show_idle(bench: Bench, found: dict[str, Idle], patience: Patience) -> None:
    heading(f"Idle for {patience.watch:g} s, after {patience.settle:g} s to settle")
    print("Per process: statements (Postgres) or commands (Redis) a second, transactions a second,")
    print("CPU in percent of one core, memory.\n")
    rows = [
        [
            name,
            number(median(idle.asked)),
            number(median(idle.transactions)) if "postgres" in name else "-",
            f"{median(idle.cpu_percent):.3f}",
            f"{median(idle.memory):.0f}",
        ]
        for name, idle in found.items()
        if idle.asked
    ]
    common.table(["", "asked/s", "tx/s", "CPU %", "memory MiB"], rows)
    heading("Pickup when idle, in ms: from just before the put to the start of the handler")
    print(f"About a second between two jobs; and after {patience.pause:g} s without any.\n")
    rows = []
    for name, idle in found.items():
        if idle.pickup_ms and idle.late_pickup_ms:
            late = idle.late_pickup_ms
            rows.append(
                [
                    name,
                    *(number(percentile(idle.pickup_ms, share)) for share in (0.5, 0.99)),
                    str(len(idle.pickup_ms)),
                    number(percentile(late, 0.5)),
                    number(max(late)),
                    str(len(late)),
                ]
            )
    after = f"after {patience.pause:g} s"
    common.table(["", "p50", "p99", "jobs", f"{after}: p50", "max", "jobs"], rows)


# Under load


@dataclass
class Loaded:
    """Pickup at half of the setup's own jobs a second, and at a rate that is the same for all."""

    rate: float
    put: float
    p50: float
    p99: float


def measure_load(
    bench: Bench, rates: dict[str, float], same: float, seconds: float
) -> dict[str, dict[str, Loaded]]:
    found: dict[str, dict[str, Loaded]] = {}
    for setup in bench.main:
        half = rates.get(setup.name, setup.pace) / 2
        with (
            bench.guard(setup, "load"),
            bench.ground(setup) as url,
            workers(bench, setup, url, 1) as (worker,),
            bench.child(setup, "putter", url) as putter,
        ):
            putter.hear()
            worker.tell("go")
            putter.ask("one")
            await_handled(worker, 1, "the first job")  # Celery takes seconds to start
            for what, rate in (("same", same), ("half", half)):
                loaded = load(worker, putter, rate, seconds)
                found.setdefault(setup.name, {})[what] = loaded
    bench.facts["load"] = {
        name: {what: vars(loaded) for what, loaded in each.items()} for name, each in found.items()
    }
    show_load(found, same, seconds)
    return found


def load(worker: Peer, putter: Peer, rate: float, seconds: float) -> Loaded:
    worker.ask("forget")
    put = putter.ask(f"load {rate} {seconds}", timeout=seconds + 60)["put"]
    await_handled(worker, put, f"a load of {rate:.0f} jobs/s")
    latencies = [each * 1000 for each in worker.ask("latencies")["latencies"]]
    return Loaded(rate, put / seconds, percentile(latencies, 0.5), percentile(latencies, 0.99))


def await_handled(worker: Peer, jobs: int, what: str) -> None:
    limit = time.monotonic() + 30
    while worker.ask("count")["handled"] < jobs:
        if time.monotonic() > limit:
            raise TimeoutError(f"{what}: not done 30 s later")
        time.sleep(0.05)


def show_load(found: dict[str, dict[str, Loaded]], same: float, seconds: float) -> None:
    heading(
        f"Pickup under load, in ms: {seconds:g} s at {same:g} jobs/s, and at half of its jobs/s"
    )
    print("One producer puts the due jobs every 10 ms in one call. `put/s` is its real rate: if")
    print("it is lower than asked, the producer could not put faster beside worker and server.\n")
    rows = []
    for name, each in found.items():
        cells = [name]
        for what in ("same", "half"):
            loaded = each.get(what)
            if loaded is None:
                cells += ["-"] * (2 if what == "same" else 4)
                continue
            if what == "half":
                cells += [number(loaded.rate), number(loaded.put)]
            cells += [number(loaded.p50), number(loaded.p99)]
        rows.append(cells)
    head = ["", f"at {same:g}/s: p50", "p99", "half jobs/s", "put/s", "p50", "p99"]
    common.table(head, rows)
