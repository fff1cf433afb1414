"""The controller: polls a second, fleets of workers, memory, and how soon a job is picked up.

One process serves with one event loop on one core, as `pollwise serve` does, on SQLite with fsync;
another process sends the requests from another core. The cost of polls is the CPU time of the
server, which stays the same on a busy machine. It is compared with a bare ASGI endpoint on the same
uvicorn, which does nothing: the limit. The rates by the clock are printed too.

A fleet is a number of workers that poll at the pace that the controller suggests, each poll on a
new connection; p99 is from before the connection until the answer is read.

Pickup is from before the request that puts the job until a worker has it, so it includes the
put with its fsync. By push it is measured for a minimal client, for `pollwise agent`, for a
`Worker` on an `http://` queue, and while a thousand workers listen.

    benchmarks/controller.py --only rates,push
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import common  # noqa: E402 - see there
from benchmarks.common import Child, Goal, Plain, heading, median, number, percentile  # noqa: E402

SECTIONS_FOLDER = common.HERE / "controller_sections"
SECTIONS = ("rates", "puts", "work", "fleets", "memory", "push", "pickup")
#: How long an empty claim of the controller is reused, in seconds; and no poll is too soon here.
UNLIMITED = {"min_interval": 0}
#: The minimum time between two empty polls of a worker, in seconds, unless the section sets it.
MIN_INTERVAL = 5.0
#: The kind that `hammer` polls for, and its number of connections.
WORKERS, CONNECTIONS = 200, 32
#: How many workers take jobs and report them at the same time.
CREWS = (1, 8, 32)
#: How many jobs one request puts.
PUT_LISTS = (1, 500)


@dataclass(frozen=True)
class Scale:
    """How much is measured: for a figure, or in a quick run."""

    rate_seconds: float
    rate_runs: int
    jobs: int
    fleet_seconds: float
    fleets: tuple[int, ...]
    paces: tuple[tuple[str, float | None], ...]
    known: int
    samples: int
    listening: int
    polling_samples: int


FULL = Scale(
    rate_seconds=4, rate_runs=4, jobs=5_000, fleet_seconds=30, fleets=(1_000, 10_000),
    paces=(("as suggested", None), ("30 s", 30.0), ("5 s", 5.0)),
    known=10_000, samples=100, listening=1_000, polling_samples=3,
)  # fmt: skip
QUICK = Scale(
    rate_seconds=0.7, rate_runs=2, jobs=2_000, fleet_seconds=5, fleets=(1_000, 10_000),
    paces=(("as suggested", None),), known=3_000, samples=20, listening=100, polling_samples=1,
)  # fmt: skip


class Controller:
    """A server in its own process."""

    def __init__(self, child: Child, port: int) -> None:
        self.child = child
        self.port = port

    def command(self, *words: Any, timeout: float = 300.0) -> Any:
        return self.child.ask(json.dumps(words), timeout)["value"]


@contextmanager
def serving(store: Path | str, **options: Any) -> Iterator[Controller]:
    script = SECTIONS_FOLDER / "serve.py"
    with Child([sys.executable, script, str(store), json.dumps(options)]) as child:
        yield Controller(child, int(child.hear()["value"]))


def prepare(store: Path, workers: Path, count: int) -> None:
    """Register this many workers, quickly."""
    with serving(f"{store}?synchronous=off") as hasty:
        hasty.command("workers", count, str(workers))


def load(do: str, port: int, timeout: float = 600.0, **given: Any) -> Plain:
    """The results of the process that sends the requests."""
    return _asked("load.py", {"do": do, "port": port, **given}, timeout)


def _asked(script: str, given: Plain, timeout: float = 600.0) -> Plain:
    with Child([sys.executable, SECTIONS_FOLDER / script, json.dumps(given)]) as child:
        return child.hear(timeout)


def measured(server: Controller, work: Callable[[], Plain]) -> Plain:
    """The result of some work, and the CPU seconds that the server spent on it."""
    before, began = server.child.cpu(), time.monotonic()
    found = work()
    wall = time.monotonic() - began
    return {**found, "cpu": server.child.cpu() - before, "wall": wall}


# Polls a second


def measure_rates(folder: Path, scale: Scale) -> Plain:
    """Empty polls, compared with a bare endpoint, in turns."""
    heading("Polls a second, one core")
    rates: dict[str, list[Plain]] = {}
    workers = folder / "workers.json"
    common_options = {"seconds": scale.rate_seconds, "connections": CONNECTIONS}
    with (
        serving("bare") as bare,
        serving("bare route") as route,
        serving(folder / "rates.db", **UNLIMITED) as ours,
    ):
        ours.command("workers", WORKERS, str(workers))
        known = {"workers": str(workers), **common_options}
        ways: dict[str, tuple[Controller, Plain]] = {
            "bare endpoint": (bare, common_options),
            "bare Starlette route": (route, common_options),
            "empty, 200": (ours, known),
            "empty, 304": (ours, {**known, "unchanged": True}),
        }
        for server, given in ways.values():  # to warm up
            load("hammer", server.port, **{**given, "seconds": 0.3})
        for _ in range(scale.rate_runs):
            for name, (server, given) in ways.items():
                run = measured(server, lambda s=server, g=given: load("hammer", s.port, **g))  # type: ignore[misc]
                rates.setdefault(name, []).append(_rate(name, run))
    limit = median([run["per_cpu"] for run in rates["bare endpoint"]])
    rows = []
    found: Plain = {}
    for name, runs in rates.items():
        per_cpu = median([run["per_cpu"] for run in runs])
        by_clock = median([run["rate"] for run in runs])
        p99 = median([run["p99_ms"] for run in runs])
        found[name] = {"per_cpu": per_cpu, "rate": by_clock, "share": per_cpu / limit, "runs": runs}
        rows.append(
            (name, number(per_cpu), f"{100 * per_cpu / limit:.0f} %", number(by_clock), number(p99))
        )
    common.table(("", "polls a CPU second", "of bare", "polls/s", "p99 ms"), rows)
    print(f"p99 is that of {CONNECTIONS} connections that poll without a pause.")
    return found


def _rate(name: str, run: Plain) -> Plain:
    count = sum(run["answered"].values())
    wanted = "304" if name.endswith("304") else "200"
    if run["answered"].get(wanted, 0) < 0.98 * count:
        sys.exit(f"{name}: answers were {run['answered']}")
    return {
        "per_cpu": count / run["cpu"],
        "rate": count / run["seconds"],
        "p99_ms": run["p99_ms"],
    }


def measure_puts(folder: Path, scale: Scale) -> Plain:
    """Jobs that are put one by one, and in lists."""
    heading("Jobs put a second, one core")
    rows, found = [], {}
    with serving(folder / "puts.db") as ours:
        token = ours.command("token")
        for size in PUT_LISTS:
            ask = {"token": token, "size": size, "jobs": scale.jobs * (4 if size > 1 else 1)}
            run = measured(ours, lambda ask=ask: load("put", ours.port, **ask))  # type: ignore[misc]
            rate, per_cpu = run["jobs"] / run["seconds"], run["jobs"] / run["cpu"]
            found[str(size)] = {"rate": rate, "per_cpu": per_cpu, "p99_ms": run["p99_ms"]}
            how = "one by one, 32 at a time" if size == 1 else f"in lists of {size:,}"
            rows.append((how, number(rate), number(per_cpu), number(run["p99_ms"])))
    common.table(("on SQLite, with fsync", "jobs/s", "jobs a CPU second", "p99 ms"), rows)
    return found


def measure_work(folder: Path, scale: Scale) -> Plain:
    """Polls that report a job and take the next."""
    heading("Polls that take a job and report the one before")
    workers = folder / "work.json"
    rows, found = [], {}
    for crew in CREWS:
        with serving(folder / f"work{crew}.db", **UNLIMITED) as ours:
            ours.command("workers", crew, str(workers))
            ours.command("jobs", scale.jobs)
            ask = {"workers": str(workers), "jobs": scale.jobs}
            run = measured(ours, lambda ask=ask, ours=ours: load("work", ours.port, **ask))  # type: ignore[misc]
        rate, per_cpu = run["jobs"] / run["seconds"], run["jobs"] / run["cpu"]
        found[str(crew)] = {"rate": rate, "per_cpu": per_cpu, "p99_ms": run["p99_ms"]}
        who = "one worker" if crew == 1 else f"{crew} workers"
        rows.append((who, number(rate), number(per_cpu), number(run["p99_ms"])))
    common.table(("on SQLite, with fsync", "jobs/s", "jobs a CPU second", "p99 ms"), rows)
    return found


# Fleets


def measure_fleets(folder: Path, scale: Scale) -> Plain:
    heading("Fleets at the suggested pace, nothing to do")
    rows, found = [], {}
    for count in scale.fleets:
        store, workers = folder / f"fleet{count}.db", folder / f"fleet{count}.json"
        prepare(store, workers, count)
        with serving(store) as ours:
            for name, pace in scale.paces:
                told = load("greet", ours.port, workers=str(workers))["told"]  # now all are idle
                time.sleep(MIN_INTERVAL)  # otherwise the first polls would be too soon
                ask: Plain = {"workers": str(workers), "seconds": scale.fleet_seconds}
                ask |= {"pace": pace, "told": told}
                run = measured(ours, lambda ask=ask, ours=ours: load("fleet", ours.port, **ask))  # type: ignore[misc]
                share = 100 * run["cpu"] / run["wall"]
                said = run["answered"]
                found[f"{count} {name}"] = {**run, "cpu_percent": share}
                how = f"{name} ({run['pace']:g} s)" if pace is None else f"every {name}"
                rows.append((
                    f"{count:,} workers, {how}", number(run["polls"] / scale.fleet_seconds),
                    f"{share:.2f} %", number(run["p50_ms"]), number(run["p99_ms"]),
                    ", ".join(f"{status}: {times}" for status, times in sorted(said.items())),
                ))  # fmt: skip
    common.table(("", "polls/s", "CPU of one core", "p50 ms", "p99 ms", "answers"), rows)
    print("A worker that polls sooner than suggested ignores the suggestion.")
    return found


def measure_memory(folder: Path, scale: Scale) -> Plain:
    """The memory of a known worker, as a restarted controller learns it from its polls."""
    heading("Memory a known worker")
    store, workers = folder / "memory.db", folder / "memory.json"
    prepare(store, workers, scale.known)
    warm = scale.known // 5
    with serving(store) as ours:
        load("greet", ours.port, workers=str(workers), count=warm)
        before, few = ours.command("memory"), ours.command("known")
        load("greet", ours.port, workers=str(workers), skip=warm)
        after, many = ours.command("memory"), ours.command("known")
    each = (after - before) / (many - few)
    print(
        f"{number(each / 1024)} KiB: from {before / 2**20:.1f} MiB with {few:,} workers "
        f"to {after / 2**20:.1f} MiB with {many:,}"
    )
    return {"bytes": each, "before": before, "after": after, "few": few, "many": many}


# Pickup


#: The clients that push is measured for, and their names in the results.
PUSHED = {
    "push": "a bare client",
    "agent": "pollwise agent",
    "worker": "a Worker, http:// queue",
    "many": "one of many that listen",
}


def measure_push(folder: Path, scale: Scale) -> Plain:
    heading("Pickup of a job by push")
    found, rows = {}, []
    with serving(folder / "push.db") as ours:
        token = ours.command("token")
        for way, who in PUSHED.items():
            ask = {"port": ours.port, "token": token, "way": way, "samples": scale.samples}
            run = found[way] = _asked("pickup.py", ask | {"hands": scale.listening})
            hints = run["hints"] / len(run["picked_ms"])
            shown = who.replace("many", f"{scale.listening:,}")
            rows.append((shown, *_picked(run), f"{hints:.1f}" if way in ("push", "many") else ""))
    columns = ("", "jobs", "p50 ms", "p99 ms", "longest ms", "submission p50 ms", "hints a job")
    common.table(columns, rows)
    return found


def measure_pickup(folder: Path, scale: Scale) -> Plain:
    heading("Pickup of a job by held polls and by polling")
    found, rows = {}, []
    with serving(folder / "pickup.db") as ours:
        token = ours.command("token")
        for way, samples, at_once in (
            ("long poll", scale.samples, 1),
            ("polling", scale.polling_samples, 20),
        ):
            ask = {"port": ours.port, "token": token, "way": way, "samples": samples}
            run = found[way] = _asked("pickup.py", ask | {"at_once": at_once})
            rows.append((way, *_picked(run), f"{run['told_s']:g} s" if run["told_s"] else ""))
    columns = ("", "jobs", "p50 ms", "p99 ms", "longest ms", "submission p50 ms", "suggested")
    common.table(columns, rows)
    return found


def _picked(run: Plain) -> tuple[str, ...]:
    took = run["picked_ms"]
    figures = percentile(took, 0.5), percentile(took, 0.99), max(took), run["submitting_ms"]
    return str(len(took)), *map(number, figures)


# Goals


def goals(found: Plain) -> list[Goal]:
    reached = []
    for name in ("empty, 200", "empty, 304"):
        if "rates" in found:
            share = 100 * found["rates"][name]["share"]
            what = f"polls, {name}, of a bare endpoint (CPU time)"
            reached.append(Goal(what, share, 50, "%", least=True))
    if "puts" in found:
        rate = found["puts"][str(PUT_LISTS[-1])]["rate"]
        reached.append(Goal("jobs put in lists, one core", rate, 3_000, "jobs/s", least=True))
    fleets = found.get("fleets", {})
    for name, run in fleets.items():
        if name == "10000 as suggested":
            what = "10,000 workers at the suggested pace, CPU of one core"
            reached.append(Goal(what, run["cpu_percent"], 50, "%"))
    if "memory" in found:
        kib = found["memory"]["bytes"] / 1024
        reached.append(Goal("memory a known worker", kib, 4, "KiB"))
    for way, run in found.get("push", {}).items():
        p50 = percentile(run["picked_ms"], 0.5)
        reached.append(Goal(f"pickup by push, {PUSHED[way]}, p50", p50, 10, "ms"))
    if "pickup" in found:
        polling = found["pickup"]["polling"]
        longest = max(polling["picked_ms"]) / 1000
        told = polling["told_s"]
        # The answer takes some milliseconds too, which no interval includes.
        reached.append(Goal("pickup by polling, longest", longest, told + 0.1, "s"))
    return reached


def parse() -> argparse.Namespace:
    parser = common.parser(__doc__, SECTIONS)
    given = parser.parse_args()
    given.only = common.listed(parser, "--only", given.only, SECTIONS) or SECTIONS
    return given


def measure(folder: Path, scale: Scale, sections: Sequence[str]) -> Plain:
    steps = {
        "rates": measure_rates,
        "puts": measure_puts,
        "work": measure_work,
        "fleets": measure_fleets,
        "memory": measure_memory,
        "push": measure_push,
        "pickup": measure_pickup,
    }
    found: Plain = {}
    for name in sections:
        began = time.monotonic()
        found[name] = steps[name](folder, scale)
        print(f"\n({name}: {time.monotonic() - began:.0f} s)", flush=True)
    return found


def main() -> None:
    given = parse()
    scale = QUICK if given.quick else FULL
    with common.work_folder() as folder:
        machine = common.machine(folder)
        used = {name: version(name) for name in ("uvicorn", "starlette", "fastapi", "uvloop")}
        versions = common.versions(**used)
        common.show(machine, versions)
        others = common.Others()
        found = measure(folder, scale, given.only)
    facts: Plain = {"machine": machine, "versions": versions, "quick": given.quick, **found}
    facts["others_percent"] = others.show()
    common.finish(facts, goals(found), given.json)


if __name__ == "__main__":
    main()
