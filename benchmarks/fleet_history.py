"""The history of a fleet: its size, its cost per poll, and the speed of its views.

    python benchmarks/fleet_history.py [--quick] [--json FILE]

(a) A thousand targets for 90 days and a hundred thousand for one, each polled every five minutes
and down for about ten minutes every three days. The polls are given to the trackers of the targets,
and what is finished goes to the stores once an hour, as a running fleet would save it. On Postgres
the hours are vacuumed every ten of them: autovacuum would do so when a twentieth was replaced, but
not within the minutes of this benchmark. (b) A fleet
in virtual time whose probes answer at once, on SQLite, with history and without: CPU time of a
poll, in turns. (c) The views of the web interface and of the commands, on the thousand targets.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, ClassVar

sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import common  # noqa: E402 - see there
from benchmarks.common import Goal, Plain, heading, number, table  # noqa: E402
from pollwise.fleet import Fleet, FleetRunOptions, Reading, Target  # noqa: E402
from pollwise.fleet.history.recorder import extras_of  # noqa: E402
from pollwise.fleet.history.tracker import TargetTracker  # noqa: E402
from pollwise.fleet.history.values import DAY, HOUR  # noqa: E402
from pollwise.fleet.history.views import (  # noqa: E402
    incidents,
    strips,
    target_history,
    uptimes,
)
from pollwise.fleet.stores.base import FleetStore, SavedTarget  # noqa: E402
from pollwise.fleet.stores.postgres.store import PostgresFleetStore  # noqa: E402
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore  # noqa: E402
from pollwise.runtime.clock import VirtualClock  # noqa: E402
from pollwise.runtime.events import Events  # noqa: E402
from tests.support.servers import Postgres, Servers  # noqa: E402

START = 1_767_225_600.0
EVERY = 300.0
#: An outage every three days, of ten minutes, on average.
OUTAGE_EVERY, OUTAGE_LASTS = 3 * DAY, 600.0
CONFIRMED = 3
SIZES = ((1_000, 90), (100_000, 1))
SIZES_QUICK = ((100, 10), (2_000, 1))
#: In hours.
VACUUM_EVERY = 10
#: Targets in a save, as in a running fleet.
BATCH = 5_000
#: Targets, polls of each, and rounds of the comparison.
FLEET, POLLS, ROUNDS = 2_000, 30, 7
TIMES = 7
#: On a page of targets.
PAGE = 50
#: Bytes for each target, µs for each poll, and ms.
SIZE_GOALS = {"sqlite": 25_000.0, "postgres": 50_000.0}
COST_GOAL, VIEW_GOAL = 10.0, 50.0


class Polled:
    """A target that is polled every five minutes, and quickly while a failure is confirmed."""

    __slots__ = ("down_until", "failing", "failures", "next", "outage", "tracker")

    def __init__(self, name: str, random: Random) -> None:
        self.next = START + random.random() * EVERY
        self.tracker = TargetTracker(name, int(self.next * 1000))
        self.outage = START + random.expovariate(1 / OUTAGE_EVERY)
        self.down_until = self.outage + random.expovariate(1 / OUTAGE_LASTS)
        self.failing: float | None = None
        self.failures = 0

    def poll_until(self, end: float, random: Random) -> int:
        polls = 0
        while self.next < end:
            at = self.next
            ok = not self.outage <= at < self.down_until
            if ok and at >= self.down_until:
                self.outage = at + random.expovariate(1 / OUTAGE_EVERY)
                self.down_until = self.outage + random.expovariate(1 / OUTAGE_LASTS)
            self.failures = 0 if ok else self.failures + 1
            self.failing = None if ok else self.failing or at
            confirming = 0 < self.failures < CONFIRMED
            self.next = at + (5.0 if confirming else EVERY)
            self.tracker.polled(
                at,
                0.05 * 2.0 ** random.gauss(0.0, 0.7),
                ok=ok,
                changed=False,
                value="sha256:…",
                failing_since=self.failing,
                down_since=self.failing if self.failures >= CONFIRMED else None,
                error="ConnectError: connection refused by shop.example.org:443",
                planned=self.next,
                slack=30.0,
                covered=None,
            )
            polls += 1
        return polls


async def filled(
    stores: dict[str, FleetStore], targets: int, days: int, vacuum: Callable[[], object]
) -> Plain:
    """Poll the targets, and save what is finished; returns how long each part took."""
    random = Random(1)
    every = [Polled(f"https://shop-{n}.example.org/", random) for n in range(targets)]
    spent: dict[str, float] = dict.fromkeys(("polls", *stores), 0.0)
    polls = rows = 0
    for hour in range(days * 24):
        if hour % VACUUM_EVERY == VACUUM_EVERY - 1:
            vacuum()
        started = time.process_time()
        end = START + (hour + 1) * HOUR
        for each in every:
            polls += each.poll_until(end, random)
        spent["polls"] += time.process_time() - started
        for begin in range(0, targets, BATCH):
            batch = every[begin : begin + BATCH]
            taken = [(each.tracker, each.tracker.take()) for each in batch]
            extras = extras_of(taken)
            rows += sum(len(some) for _, some in taken)
            # The state is saved once, at the end: here only the history counts.
            last = hour == days * 24 - 1
            saved = [
                SavedTarget(each.tracker.target, more={"history": each.tracker.kept()})
                for each in (batch if last else batch[:1])
            ]
            for name, store in stores.items():
                started = time.perf_counter()
                await store.save(saved, extras)
                spent[name] += time.perf_counter() - started
    return {"polls": polls, "rows": rows, "spent": spent}


def sqlite_bytes(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        found = connection.execute(
            "SELECT sum(pgsize) FROM dbstat WHERE name LIKE 'pollwise_fleet_rollups' "
            "OR name LIKE 'pollwise_fleet_periods' OR name LIKE 'pollwise_fleet_incidents' "
            "OR name LIKE '%pollwise_fleet_history_targets%'"
        ).fetchone()
    return int(found[0])


def postgres_bytes(server: Postgres, database: str) -> int:
    [(found,)] = server.execute(
        "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'pollwise' "
        "AND c.relname IN ('fleet_rollups', 'fleet_hours', 'fleet_periods', "
        "'fleet_history_targets')",
        dbname=database,
    )
    return int(found)


async def sizes(server: Postgres, folder: Path, quick: bool) -> tuple[Plain, list[Goal]]:
    facts: Plain = {}
    goals: list[Goal] = []
    rows: list[tuple[str, ...]] = []
    views: dict[str, dict[str, float]] = {}
    for place, (targets, days) in enumerate(SIZES_QUICK if quick else SIZES):
        path, database = folder / f"{place}.db", f"history_{place}"
        postgres = PostgresFleetStore(server.create_database(database), timeout="120s")
        await postgres.migrate()
        stores: dict[str, FleetStore] = {"sqlite": SqliteFleetStore(path), "postgres": postgres}
        vacuum = partial(server.execute, "VACUUM pollwise.fleet_hours", dbname=database)
        found = await filled(stores, targets, days, vacuum)
        end = START + days * DAY
        if place == 0:
            views = {name: await viewed(store, end) for name, store in stores.items()}
        for store in stores.values():
            await store.close()
        found["bytes"] = {
            "sqlite": sqlite_bytes(path), "postgres": postgres_bytes(server, database),
        }  # fmt: skip
        what = f"{targets:,} targets, {days} {'day' if days == 1 else 'days'}"
        facts[what] = found
        for name, size in found["bytes"].items():
            took = found["spent"][name] / found["rows"] * 1e6
            each = size / targets
            rows.append((f"{what}, {name}", f"{size / 1e6:,.0f}", f"{each:,.0f}", number(took, 2)))
            goals.append(Goal(f"history of {what}, {name}", each, SIZE_GOALS[name], "bytes/target"))
        cost = found["spent"]["polls"] / found["polls"] * 1e6
        print(f"{what}: {found['polls']:,} polls, {found['rows']:,} rows, {cost:.1f} µs a poll")
    heading("How large the history gets")
    table(("", "MB", "bytes/target", "µs/row"), rows)
    facts["views"] = views
    heading(f"Views, in ms, on the first of these; pages of {PAGE} targets")
    table(("", *views), [
        (name, *(number(views[store][name], 3) for store in views)) for name in views["sqlite"]
    ])  # fmt: skip
    goals += [
        Goal(f"slowest view, {store}", max(times.values()), VIEW_GOAL, "ms")
        for store, times in views.items()
    ]
    return facts, goals


async def viewed(store: FleetStore, now: float) -> dict[str, float]:
    names = [f"https://shop-{n}.example.org/" for n in range(PAGE)]
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "uptimes of a page": lambda: uptimes(store, names, now),
        "strips of a page, 90 days": lambda: strips(store, names, now),
        "strips of a page, 48 hours": lambda: strips(store, names, now, cells=48, seconds=HOUR),
        "one target, 7 days": lambda: target_history(store, names[0], now - 7 * DAY, now),
        "one target, 90 days": lambda: target_history(store, names[0], now - 90 * DAY, now),
        "100 incidents": lambda: incidents(store, now - 30 * DAY, now),
    }
    found = {}
    for name, call in calls.items():
        times = []
        for _ in range(TIMES):
            started = time.perf_counter()
            assert await call()
            times.append((time.perf_counter() - started) * 1000)
        found[name] = common.median(times)
    return found


# Cost per poll


class WithoutHistory(SqliteFleetStore):
    """The same store as before there was a history."""

    keeps_history: ClassVar[bool] = False


def polled_fleet(folder: Path, kind: type[SqliteFleetStore], polls: int) -> float:
    """The CPU time of a poll, in seconds; saving included."""
    clock = VirtualClock(START)
    reading = Reading("sha256:" + "a" * 64, facts={"status": 200, "ms": 12.5}, summary="200 OK")

    async def probe(target: Target, context: object) -> Reading:
        return reading

    async def main() -> float:
        path = folder / f"{kind.__name__}-{time.monotonic_ns()}.db"
        store = kind(path, clock=clock)
        options = FleetRunOptions(signals=False, seed=1)
        fleet = Fleet(options, store=store, clock=clock, events=Events(quiet=True))
        fleet.add(*(Target(f"target {n}", probe, "60s") for n in range(FLEET)))
        running = asyncio.ensure_future(fleet.run())
        await clock.sleep(120)  # all were polled, and saved once
        before, started = fleet.state(targets=False).polls, time.process_time()
        await clock.sleep(60.0 * polls)
        took = time.process_time() - started
        count = fleet.state(targets=False).polls - before
        fleet.stop()
        await running
        await store.close()
        return took / count

    return clock.run(main())


def tracker_bytes() -> float:
    """The memory of a target's open history, after half an hour of polls."""
    random = Random(2)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        every = [Polled(f"target {n}", random) for n in range(1_000)]
        trackers = []
        for each in every:
            each.poll_until(START + HOUR / 2, random)
            trackers.append(each.tracker)
        del every, each
        after, _ = tracemalloc.get_traced_memory()
        return (after - before) / len(trackers)
    finally:
        tracemalloc.stop()


def costs(folder: Path, quick: bool) -> tuple[Plain, list[Goal]]:
    kinds = (WithoutHistory, SqliteFleetStore)
    found: dict[type, list[float]] = {kind: [] for kind in kinds}
    for _ in range(3 if quick else ROUNDS):
        for kind in kinds:
            found[kind].append(polled_fleet(folder, kind, POLLS // 3 if quick else POLLS) * 1e6)
    without, kept = (common.median(found[kind]) for kind in kinds)
    memory = tracker_bytes()
    heading("CPU time of a poll of a fleet on SQLite, saving included, in µs")
    table(("", "median", "each"), [
        ("without history", number(without), common.each(found[WithoutHistory])),
        ("with history", number(kept), common.each(found[SqliteFleetStore])),
    ])  # fmt: skip
    print(f"\nThe open history of a target takes {memory:,.0f} bytes of memory.")
    facts = {"without": found[WithoutHistory], "with": found[SqliteFleetStore], "memory": memory}
    return facts, [
        Goal("history per poll, CPU", kept - without, COST_GOAL, "µs"),
        Goal("open history of a target, memory", memory, 1_500.0, "bytes"),
    ]


def main() -> None:
    options = common.options(__doc__ or "")
    machine, versions = common.machine(common.HERE), common.versions()
    common.show(machine, versions)
    others = common.Others()
    with common.work_folder() as folder, Servers() as servers:
        server = servers.postgres()
        cost, cost_goals = costs(folder, options.quick)
        size, size_goals = asyncio.run(sizes(server, folder, options.quick))
    facts: Plain = {"machine": machine, "versions": versions, "sizes": size, "cost": cost}
    facts["others_busy"] = others.show()
    common.finish(facts, [*size_goals, *cost_goals], options.json)


if __name__ == "__main__":
    main()
