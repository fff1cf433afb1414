"""Alerts: the time from a poll that saw an outage until its notice is sent.

    python benchmarks/alerts.py [--quick] [--json FILE]

(a) Ten thousand targets on one node, each polled about every 20 seconds, with a rule on `down`.
Targets go down and up at random. The latency is from the end of the poll that confirms the outage
until the channel has the notice; the state and the notice are saved in between. On SQLite and on
Postgres, in real time. (b) A thousand of them go down together. (c) CPU time of a poll of a target
with a rule that never holds, and without a rule.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import common  # noqa: E402 - see there
from benchmarks.common import Goal, Plain, heading, number, table  # noqa: E402
from pollwise.alerts.channels.base import Channel  # noqa: E402
from pollwise.alerts.settings import Alerts  # noqa: E402
from pollwise.alerts.values import Notice  # noqa: E402
from pollwise.fleet import FailureRules, Fleet, FleetRunOptions, Reading, Target  # noqa: E402
from pollwise.fleet.stores.base import FleetStore  # noqa: E402
from pollwise.fleet.stores.postgres.store import PostgresFleetStore  # noqa: E402
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore  # noqa: E402
from pollwise.runtime.clock import VirtualClock  # noqa: E402
from pollwise.runtime.events import Events  # noqa: E402
from tests.support.servers import Servers  # noqa: E402

TARGETS, TARGETS_QUICK = 10_000, 1_000
EVERY = 20.0
#: How long the random outages are measured, in seconds, and how many begin per second.
LASTS, LASTS_QUICK, RATE = 60.0, 15.0, 10.0
AT_ONCE, AT_ONCE_QUICK = 1_000, 100
#: Seconds; and µs for each poll.
LATENCY_GOAL, BURST_GOAL, COST_GOAL = 2.0, 10.0, 5.0
COST_TARGETS, COST_POLLS, ROUNDS = 1_000, 30, 5


class Timed(Channel):
    """Records when each target's outage was sent."""

    def __init__(self) -> None:
        super().__init__("timed", {})
        self.sent: dict[str, float] = {}

    async def _send(self, notice: Notice) -> None:
        if notice.event == "opened":
            self.sent[notice.target] = time.monotonic()


class World:
    """Targets that are down or up, and when a poll first saw each outage."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.seen: dict[str, float] = {}

    async def probe(self, target: Target, _: Any) -> Reading:
        if target.name in self.down:
            self.seen.setdefault(target.name, time.monotonic())
            raise ConnectionError("no answer")
        return Reading("up")


async def latencies(store: FleetStore, count: int, lasts: float, burst: int) -> Plain:
    world, channel, random = World(), Timed(), Random(5)
    # The first failure counts, so that only the latency of alerts is measured.
    rules = FailureRules(confirmations=0)
    options = FleetRunOptions(rules=rules, concurrency=200, signals=False, seed=1)
    alerts = Alerts([channel], to=["timed"])
    fleet = Fleet(options, store=store, events=Events(quiet=True), alerts=alerts)
    names = [f"t{number}" for number in range(count)]
    fleet.add(*(Target(name, world.probe, EVERY, alerts=["down"]) for name in names))
    running = asyncio.create_task(fleet.run())
    await asyncio.sleep(EVERY + 2.0)
    chosen = random.sample(names, min(int(lasts * RATE), count // 2))
    for name in chosen:
        world.down.add(name)
        await asyncio.sleep(1.0 / RATE)
    await _all_sent(channel, world, set(chosen))
    single = [channel.sent[name] - world.seen[name] for name in chosen]
    together = random.sample([name for name in names if name not in world.down], burst)
    world.down.update(together)
    for name in together:
        fleet.poll_now(name)
    began = time.monotonic()
    await _all_sent(channel, world, set(together))
    took = max(channel.sent[name] for name in together) - began
    fleet.stop()
    await running
    return {
        "outages": len(single),
        "p50_s": common.percentile(single, 0.5),
        "p95_s": common.percentile(single, 0.95),
        "most_s": max(single),
        "burst": burst,
        "burst_s": took,
    }


async def _all_sent(channel: Timed, world: World, names: set[str]) -> None:
    async with asyncio.timeout(10 * EVERY):
        while not names <= channel.sent.keys():
            await asyncio.sleep(0.05)


def poll_cost(rules: list[str]) -> float:
    """CPU seconds of one poll in virtual time."""
    clock = VirtualClock()

    async def probe(target: Target, _: Any) -> Reading:
        return Reading("1", facts={"ms": 5})

    async def main() -> float:
        options = FleetRunOptions(signals=False, seed=1)
        fleet = Fleet(options, clock=clock, events=Events(quiet=True))
        names = (f"t{number}" for number in range(COST_TARGETS))
        fleet.add(*(Target(name, probe, 10.0, alerts=rules) for name in names))
        running = asyncio.ensure_future(fleet.run())
        await asyncio.sleep(20)
        began, polls = time.process_time(), fleet.state(targets=False).polls
        await asyncio.sleep(10.0 * COST_POLLS)
        took = time.process_time() - began
        polls = fleet.state(targets=False).polls - polls
        fleet.stop()
        await running
        return took / polls

    return clock.run(main())


def costs() -> Plain:
    without, down, value = [], [], []
    for _ in range(ROUNDS):  # in turns, so that a busy moment of the machine affects all of them
        without.append(poll_cost([]))
        down.append(poll_cost(["down"]))
        value.append(poll_cost(["down", "value > 5", "ms > 2s"]))
    plain, one, three = (1e6 * min(each) for each in (without, down, value))
    heading("CPU of a poll, µs")
    rows = [("no rule", plain), ("down", one), ("three rules", three)]
    table(["rules", "µs"], [[name, number(each)] for name, each in rows])
    return {"no_rule_us": plain, "down_us": one, "three_rules_us": three}


async def measured(folder: Path, dsn: str, quick: bool) -> dict[str, Plain]:
    count, lasts = (TARGETS_QUICK, LASTS_QUICK) if quick else (TARGETS, LASTS)
    burst = AT_ONCE_QUICK if quick else AT_ONCE
    postgres = PostgresFleetStore(dsn, "alerts benchmark")
    await postgres.migrate()
    stores: dict[str, FleetStore] = {
        "sqlite": SqliteFleetStore(folder / "fleet.db"),
        "postgres": postgres,
    }
    found = {}
    for name, store in stores.items():
        found[name] = await latencies(store, count, lasts, burst)
        await store.close()
    heading(f"From the poll that saw an outage to its notice, {count:,} targets")
    head = ["store", "outages", "p50 s", "p95 s", "most s", f"{burst:,} at once, s"]
    keys = ("p50_s", "p95_s", "most_s", "burst_s")
    table(
        head,
        [
            [name, str(each["outages"]), *(number(each[key]) for key in keys)]
            for name, each in found.items()
        ],
    )
    return found


def main() -> None:
    options = common.options(__doc__ or "")
    machine, versions = common.machine(common.HERE), common.versions()
    common.show(machine, versions)
    others = common.Others()
    cost = costs()
    with common.work_folder() as folder, Servers() as servers:
        found = asyncio.run(measured(folder, servers.postgres().dsn(), options.quick))
    goals = [
        Goal(f"alert latency p95 on {name}", each["p95_s"], LATENCY_GOAL, "s")
        for name, each in found.items()
    ]
    goals += [
        Goal(f"{each['burst']:,} alerts at once on {name}", each["burst_s"], BURST_GOAL, "s")
        for name, each in found.items()
    ]
    more = cost["down_us"] - cost["no_rule_us"]
    goals.append(Goal("a rule that does not hold, per poll", more, COST_GOAL, "µs"))
    facts: Plain = {"machine": machine, "versions": versions, "latency": found, "cost": cost}
    facts["others_busy"] = others.show()
    common.finish(facts, goals, options.json)


if __name__ == "__main__":
    main()
