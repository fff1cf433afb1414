"""Pollwise on Postgres and on Redis, compared with the queues that Python programs use there.

PgQueuer, procrastinate, SAQ and Huey on Postgres 18, taskiq, Dramatiq, SAQ, Huey and Celery on
Valkey 9, each in its own environment and in its best sensible configuration: queue_peers/*.py have
it, with the reasons. All run on the same servers on the same machine, one after the other: Postgres
with `synchronous_commit = off` and fsync on, Valkey without persistence. A worker is one process.
Every run starts with a new store, and checks that each job was handled once and none is left.

Differences: Huey, taskiq's list and Celery (by default) remove a job from the store before they run
it, so a killed worker loses the jobs that it ran; PgQueuer writes a log of what it did.

    benchmarks/queues.py --only work,idle --peers pgqueuer,dramatiq
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import common  # noqa: E402 - see there
from benchmarks.common import Goal, heading, listed, median, percentile  # noqa: E402
from benchmarks.queue_sections.backlog import measure_backlog  # noqa: E402
from benchmarks.queue_sections.kit import SETUPS, Bench, Setup  # noqa: E402
from benchmarks.queue_sections.latency import (  # noqa: E402
    Idle,
    Loaded,
    Patience,
    measure_idle,
    measure_load,
)
from benchmarks.queue_sections.notify import measure_notify  # noqa: E402
from benchmarks.queue_sections.rates import (  # noqa: E402
    BATCHES,
    Crew,
    Work,
    best,
    measure_growth,
    measure_puts,
    measure_work,
)
from benchmarks.queue_sections.results import measure_results  # noqa: E402
from tests.support.servers import Servers  # noqa: E402

OURS = {"postgres": "pollwise postgres", "redis": "pollwise redis"}


@dataclass(frozen=True)
class Scale:
    """How much is measured: for a figure, or in a quick run."""

    work_seconds: float
    work_runs: int
    put_seconds: float
    put_runs: int
    idle: Patience
    load_seconds: float
    same_load: float
    growth: tuple[int, ...]
    growth_seconds: float
    growth_idle: float
    backlog: tuple[int, ...]
    backlog_seconds: float
    claims: int
    writers: tuple[int, ...]
    notify_seconds: float
    notify_runs: int
    results: int


FULL = Scale(
    work_seconds=2.5, work_runs=3, put_seconds=1.0, put_runs=3,
    idle=Patience(settle=10, watch=60, pause=25, rounds=2, samples=20, crew=3),
    load_seconds=2.5, same_load=200,
    growth=(1, 4, 16), growth_seconds=2.0, growth_idle=6,
    backlog=(1_000, 10_000, 100_000, 1_000_000), backlog_seconds=2.5, claims=100,
    writers=(1, 4, 16), notify_seconds=2, notify_runs=2, results=200,
)  # fmt: skip
QUICK = Scale(
    work_seconds=0.5, work_runs=1, put_seconds=0.3, put_runs=1,
    idle=Patience(settle=3, watch=3, pause=3, rounds=1, samples=10, crew=1),
    load_seconds=1, same_load=200,
    growth=(1, 4), growth_seconds=0.7, growth_idle=3,
    backlog=(1_000, 30_000), backlog_seconds=0, claims=20,
    writers=(1, 4), notify_seconds=0.4, notify_runs=1, results=40,
)  # fmt: skip
SECTIONS = ("puts", "work", "load", "idle", "growth", "backlog", "notify", "results")
#: A quick run leaves out what takes many processes, or long.
QUICK_SECTIONS = ("puts", "work", "idle", "backlog", "results")


@dataclass
class Found:
    """The results of the sections; empty for a section that was left out."""

    puts: dict[str, dict[str, float]] = field(default_factory=dict)
    work: dict[str, Work] = field(default_factory=dict)
    load: dict[str, dict[str, Loaded]] = field(default_factory=dict)
    idle: dict[str, Idle] = field(default_factory=dict)
    growth: dict[str, dict[int, Crew]] = field(default_factory=dict)
    backlog: dict[str, dict[int, float]] = field(default_factory=dict)
    notify: dict[str, dict[str, float]] = field(default_factory=dict)
    results: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def rates(self) -> dict[str, float]:
        return {name: work.rate for name, work in self.work.items()}

    def alone(self) -> dict[str, Crew]:
        """The results of one process, busy and idle."""
        return {
            name: Crew(work.rate, *(median(v) for v in (idle.asked, idle.cpu_percent, idle.memory)))
            for name, work in self.work.items()
            if (idle := self.idle.get(name)) and idle.asked
        }


def measure(bench: Bench, scale: Scale, sections: Sequence[str]) -> Found:
    found = Found()

    def notify() -> dict[str, dict[str, float]]:
        ours = [setup for setup in bench.main if setup.name == OURS["postgres"]]
        if not ours:
            return {}
        return measure_notify(
            bench, ours[0], scale.writers, scale.notify_seconds, scale.notify_runs
        )

    steps: dict[str, Callable[[], Any]] = {
        "puts": lambda: measure_puts(bench, scale.put_seconds, scale.put_runs),
        "work": lambda: measure_work(bench, scale.work_seconds, scale.work_runs),
        "load": lambda: measure_load(bench, found.rates, scale.same_load, scale.load_seconds),
        "idle": lambda: measure_idle(bench, scale.idle),
        "growth": lambda: measure_growth(
            bench, scale.growth_seconds, scale.growth, scale.growth_idle, found.alone()
        ),
        "backlog": lambda: measure_backlog(
            bench, scale.backlog, scale.backlog_seconds, scale.claims
        ),
        "notify": notify,
        "results": lambda: measure_results(bench, scale.results, bench.servers.folder),
    }
    for name in sections:
        began = time.monotonic()
        setattr(found, name, steps[name]())
        took = time.monotonic() - began
        bench.facts.setdefault("seconds", {})[name] = took
        print(f"\n({name}: {took:.0f} s)", flush=True)
    return found


# Goals


def goals(bench: Bench, found: Found) -> list[Goal]:
    rates, setups = found.rates, bench.setups
    reached = []
    for store, least, pickup, asked, unit in (
        ("postgres", 2.0, 5.0, 0.05, "statements/s"),
        ("redis", 3.0, 1.5, 0.2, "commands/s"),
    ):
        ours, shown = OURS[store], store.capitalize()
        ahead = max(
            (
                rate
                for name, rate in rates.items()
                if name in {ours, f"pollwise prefetch=1000 {store}"}
            ),
            default=0.0,
        )
        name, theirs = best(rates, setups, store)
        if ours in rates and name:
            what = f"{shown} jobs/s, × {name.removesuffix(f' {store}')}"
            reached.append(Goal(f"{what}, defaults", rates[ours] / theirs, least, "×", least=True))
            reached.append(Goal(f"{what}, best of ours", ahead / theirs, least, "×", least=True))
        untuned = "pgqueuer batch=10 postgres"
        if store == "postgres" and ours in rates and untuned in rates and name != untuned:
            by = rates[ours] / rates[untuned]
            reached.append(Goal("Postgres jobs/s, × pgqueuer by default", by, least, "×", True))
        pgqueuer = found.puts.get("pgqueuer batch=100 postgres", {}).get("single")
        for how in ("", "sync "):
            single = found.puts.get(f"pollwise {how}postgres", {}).get("single")
            if store == "postgres" and single and pgqueuer:
                what = f"Postgres {how}put, 1 a call, × pgqueuer"
                reached.append(Goal(what, single / pgqueuer, 1.0, "×", True))
        theirs_put = found.puts.get("procrastinate postgres", {})
        for what in ("batch", "large"):
            if store == "postgres" and what in theirs_put and what in found.puts.get(ours, {}):
                by = found.puts[ours][what] / theirs_put[what]
                name = f"Postgres put, {BATCHES[what]} a call, × procrastinate"
                reached.append(Goal(name, by, 5.0, "×", True))
        idle = found.idle.get(ours)
        if idle and idle.pickup_ms:
            p50 = percentile(idle.pickup_ms, 0.5)
            reached.append(Goal(f"{shown} pickup when idle, p50", p50, pickup, "ms"))
            late = percentile(idle.late_pickup_ms, 0.5)
            reached.append(Goal(f"{shown} pickup after idling, p50", late, pickup, "ms"))
        if idle and idle.asked:
            most = max(idle.asked)
            reached.append(Goal(f"{shown} idle, worst process", most, asked, unit))
        claims = found.backlog.get(ours, {})
        if len(claims) > 1:
            small, large = min(claims), max(claims)
            grown = claims[large] / claims[small]
            name = f"{shown} claim at {large:,} ÷ at {small:,}"
            reached.append(Goal(name, grown, 1.5, "×"))
    for store, each in found.results.items():
        name = f"{store.capitalize()} result to a waiter, p50"
        reached.append(Goal(name, each["p50"], 10.0, "ms"))
    return reached


#: What is compared, whether more is better, its unit, and each setup's value.
Compared = tuple[str, bool, str, dict[str, float]]


def compared(found: Found) -> Iterator[Compared]:
    yield "jobs/s", True, "jobs/s", found.rates
    for way in BATCHES:
        rates = {name: puts[way] for name, puts in found.puts.items() if way in puts}
        yield f"put, {way}", True, "jobs/s", rates
    for what, column, share, unit in (
        ("pickup when idle, p50", "pickup_ms", 0.5, "ms"),
        ("pickup when idle, p99", "pickup_ms", 0.99, "ms"),
        ("pickup after idling, p50", "late_pickup_ms", 0.5, "ms"),
        ("pickup after idling, longest", "late_pickup_ms", 1.0, "ms"),
        ("idle load", "asked", 0.5, "asked/s"),
        ("idle CPU", "cpu_percent", 0.5, "%"),
        ("idle memory", "memory", 0.5, "MiB"),
    ):
        lists = {name: getattr(idle, column) for name, idle in found.idle.items()}
        yield what, False, unit, {n: percentile(v, share) for n, v in lists.items() if v}
    for load, at in (("same", "at the same load"), ("half", "at half of its jobs/s")):
        for share_of in ("p50", "p99"):
            latencies = {n: getattr(v[load], share_of) for n, v in found.load.items() if load in v}
            yield f"pickup {at}, {share_of}", False, "ms", latencies
    peaks = {n: median([run.peak_memory for run in work.runs]) for n, work in found.work.items()}
    yield "peak memory", False, "MiB", peaks
    for count in sorted({count for crews in found.growth.values() for count in crews}):
        crews = {name: each[count] for name, each in found.growth.items() if count in each}
        rates = {name: crew.rate for name, crew in crews.items()}
        yield f"jobs/s, {count} processes", True, "jobs/s", rates
        loads = {name: crew.idle_asked for name, crew in crews.items()}
        yield f"idle load, {count} processes", False, "asked/s", loads


def losses(bench: Bench, found: Found) -> list[str]:
    """Where a peer is better than Pollwise on the same store in this run."""
    lines = []
    for what, more, unit, values in compared(found):
        for setup in bench.main:
            mine, theirs = values.get(OURS[setup.store]), values.get(setup.name)
            if setup.ours or mine is None or theirs is None or mine == theirs:
                continue
            if (theirs > mine) == more:
                lines.append(common.loss(what, setup.name, theirs, mine, unit))
    return lines


# The whole benchmark


def parse() -> argparse.Namespace:
    parser = common.parser(__doc__, SECTIONS)
    parser.add_argument(
        "--peers",
        metavar="NAMES",
        help="only these beside Pollwise, such as pgqueuer,taskiq; or none",
    )
    parser.add_argument("--stores", metavar="NAMES", help="only postgres or only redis")
    given = parser.parse_args()
    given.only = listed(parser, "--only", given.only, SECTIONS)
    given.stores = listed(parser, "--stores", given.stores, tuple(OURS))
    peers = tuple(dict.fromkeys(setup.peer for setup in SETUPS if not setup.ours))
    given.peers = [] if given.peers == "none" else listed(parser, "--peers", given.peers, peers)
    return given


def chosen(given: argparse.Namespace) -> list[Setup]:
    setups = []
    for setup in SETUPS:
        wanted = setup.ours or given.peers is None or setup.peer in given.peers
        if given.quick and given.peers is None:
            wanted = setup.strong
        if wanted and (given.stores is None or setup.store in given.stores):
            setups.append(setup)
    return setups


def version_of(setup: Setup) -> str:
    python = common.peer(setup.environment)
    code = f"from importlib.metadata import version; print(version({setup.package!r}))"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout


def main() -> None:
    given = parse()
    scale = QUICK if given.quick else FULL
    sections = given.only or (QUICK_SECTIONS if given.quick else SECTIONS)
    setups = chosen(given)
    peers = {setup.package: version_of(setup).strip() for setup in setups if not setup.ours}
    with Servers() as servers:
        bench = Bench(servers, setups)
        machine = common.machine(servers.folder)
        versions = common.versions(**bench.stores(), **peers)
        common.show(machine, versions)
        bench.facts |= {"machine": machine, "versions": versions, "quick": given.quick}
        others = common.Others()
        found = measure(bench, scale, sections)
        heading("Where a peer is better than Pollwise")
        lost = losses(bench, found)
        print("\n".join(lost) or "Nowhere, in this run.")
        if bench.failed:
            heading("What failed")
            print("\n".join(f"{name}: {why}" for name, why in bench.failed.items()))
        bench.facts |= {"losses": lost, "failed": bench.failed}
        bench.facts["others_percent"] = others.show()
        reached = goals(bench, found)
    common.finish(bench.facts, reached, given.json)
    if any(name.startswith("pollwise") for name in bench.failed):
        sys.exit("Pollwise failed in a section: see above")


if __name__ == "__main__":
    main()
