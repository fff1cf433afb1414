"""Pollwise, for benchmarks/fleet.py: `ours.py cycle|run TARGETS POLLS [BUDGET]`.

cycle: only the scheduler: which target is due, its pacer, its next time. No event loop, no probe.
run: a whole fleet in virtual time, with event loop, task switches, deadlines and an empty probe.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from pathlib import Path
from random import Random

from pollwise.core.agenda import Agenda
from pollwise.core.strategies.freshness import Freshness
from pollwise.fleet import Fleet, FleetRunOptions, ProbeContext, Reading, Target
from pollwise.fleet.engine.budget import FleetBudget
from pollwise.fleet.engine.failures import FailureRules
from pollwise.fleet.engine.running_target import RunningTarget
from pollwise.fleet.engine.scheduler import Scheduler
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import Events

INTERVAL = 10.0


def resident() -> int:
    """The resident memory, in bytes."""
    text = Path("/proc/self/statm").read_text(encoding="ascii")
    return int(text.split()[1]) * 4096


done = 0


async def probe(target: Target, context: ProbeContext) -> Reading:
    global done
    done += 1
    return Reading("0123456789abcdef0123456789abcdef", facts={"status": 200}, summary="200 OK")


def targets(count: int) -> list[Target]:
    return [Target(f"https://example.org/{n}", probe, host=None) for n in range(count)]


def strategy() -> Freshness:
    return Freshness(INTERVAL, INTERVAL / 2, 30 * INTERVAL)


def cycle(count: int, polls: int, budget: float | None) -> dict[str, float]:
    scheduler = Scheduler(FailureRules(), 4, FleetBudget(budget) if budget else None, Random(1))
    pace = strategy()
    scheduler.add([RunningTarget(each, probe, None, pace) for each in targets(count)], 0.0)
    same, other = Reading("same"), Reading("other")
    random, now = Random(2).random, 0.0
    gc.collect()
    begun = time.process_time()
    for _ in range(polls):
        now = max(now, scheduler.next_start(now))
        entry = scheduler.take(now)
        assert entry is not None
        scheduler.succeeded(entry, same if random() < 0.8 else other, now, now)
    cpu = time.process_time() - begun
    alone = agenda(list(scheduler.entries.values()), polls)
    return {"cpu": cpu, "polls": polls, "agenda": alone, "operations": polls}


def agenda(entries: list[RunningTarget], operations: int) -> float:
    """The CPU time of putting and taking alone, in seconds."""
    it: Agenda[RunningTarget] = Agenda(ties=lambda entry: entry.target.name)
    dues = Random(3)
    for entry in entries:
        it.upsert(entry, dues.random() * INTERVAL)
    begun = time.process_time()
    for _ in range(operations // 2):
        first = it.pop_due(it.first_due())
        assert first is not None
        it.upsert(first.key, first.due + INTERVAL * (1 + dues.random()))
    return time.process_time() - begun


def run(count: int, polls: int, budget: float | None) -> dict[str, float]:
    clock = VirtualClock()

    async def main() -> dict[str, float]:
        gc.collect()
        empty = resident()
        begun = time.process_time()
        options = FleetRunOptions(strategy=strategy(), budget=budget, signals=False, seed=1)
        fleet = Fleet(options, clock=clock, events=Events(quiet=True))
        fleet.add(*targets(count))
        running = asyncio.ensure_future(fleet.run())
        await asyncio.sleep(0)
        started = time.process_time() - begun
        every = count / budget if budget else INTERVAL
        await asyncio.sleep(every * min(1.05, 2e5 / count))  # each once, if there are few
        gc.collect()
        full = resident()
        before, begun = done, time.process_time()
        while done - before < polls:
            await asyncio.sleep(every * polls / count / 8)
        cpu, polled = time.process_time() - begun, done - before
        fleet.stop()
        await running
        return {
            "cpu": cpu,
            "polls": polled,
            "memory": (full - empty) / count,
            "start": started / count,
        }

    return clock.run(main())


if __name__ == "__main__":
    what, count, polls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    budget = float(sys.argv[4]) if len(sys.argv) > 4 else None
    print(json.dumps((cycle if what == "cycle" else run)(count, polls, budget)))
