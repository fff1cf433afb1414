"""A shop that ran for hours of virtual time, for pages to show: its queues, its outbox, its fleet.

Real workers, relays and a real fleet run on SQLite, with seeded arrivals, failures and outages, so
that the shop is always the same. It is left in the middle of its work: jobs run, some are dead,
a kind is paused, a key is blocked, a target is down.

    shop = Shop.open_for(folder, hours=24)
    web = pollwise.web.app(*shop.queues, authorise=pollwise.web.everybody, clock=shop.clock)
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import Callable
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from pollwise.core.retry import Retry
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.errors import ProbeError
from pollwise.fleet import Fleet, FleetRunOptions, Target
from pollwise.fleet.probes.function import as_probe
from pollwise.fleet.stores.urls import open_store as open_fleet_store
from pollwise.fleet.targets import Reading
from pollwise.outbox import NewRecord, Outbox, OutboxRunOptions
from pollwise.outbox.stores.urls import open_store as open_outbox_store
from pollwise.queues.base import Queue
from pollwise.queues.urls import open_queue
from pollwise.runtime.clock import Clock, VirtualClock
from pollwise.runtime.events import Events
from pollwise.runtime.jobs import Job, NewJob
from pollwise.worker import Worker, WorkerRunOptions

#: The time at which the shop is shown: a Tuesday, 14:30 UTC.
LOOKED_AT = 1_773_153_000.0
SEED = 17


class StandingClock(Clock):
    """A clock whose date does not change, so that pages repeat exactly; `now` goes on."""

    def epoch(self) -> float:
        return LOOKED_AT

    def imposed(self) -> float | None:
        return LOOKED_AT


@dataclass(frozen=True)
class Shop:
    """The data of the shop. queues: URLs. clock: the time at which it is shown."""

    queues: tuple[str, ...]
    outbox: str
    fleet: str
    clock: Clock

    @classmethod
    def open_for(cls, folder: Path, hours: float) -> Shop:
        """Make a shop that was open for some hours."""
        shop = cls(
            tuple(f"sqlite:///{folder}/shop.db?queue={name}&keep=7d" for name in QUEUES),
            f"sqlite:///{folder}/shop.db?keep=1d",
            f"sqlite:///{folder}/fleet.db?fleet=pages",
            StandingClock(),
        )
        with TemporaryDirectory() as scratch:
            clock = VirtualClock(LOOKED_AT - hours * 3600.0)
            clock.run(_live(Path(scratch), folder, clock, hours))
        return shop


async def _live(place: Path, folder: Path, clock: VirtualClock, hours: float) -> None:
    """Run the shop for some hours, and copy its databases in the middle of the work."""
    url = f"sqlite:///{place}/shop.db"
    ends = clock.epoch() + hours * 3600.0
    parts = [_work(f"{url}?keep=7d&synchronous=off&queue={q}", q, clock, ends) for q in QUEUES]
    parts += [_relay(f"{url}?keep=1d", clock, ends)]
    parts += [_watch(f"sqlite:///{place}/fleet.db?fleet=pages", clock, ends)]
    tasks = [asyncio.ensure_future(part) for part in parts]
    await clock.advance(hours * 3600.0)
    for name in ("shop.db", "fleet.db"):
        with (
            closing(sqlite3.connect(place / name)) as source,
            closing(sqlite3.connect(folder / name)) as copy,
        ):
            source.backup(copy)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


# Queues

QUEUES = ("orders", "mail", "reports")
#: By queue: its kinds, the jobs a minute of each at noon, and how long a job takes.
KINDS: dict[str, dict[str, tuple[float, float]]] = {
    "orders": {"charge_card": (4.0, 0.9), "reserve_stock": (4.0, 0.15), "ship": (2.0, 1.8)},
    "mail": {"send_receipt": (5.0, 0.35), "newsletter": (0.4, 0.2), "sms": (0.3, 0.2)},
    "reports": {"daily_report": (0.05, 40.0), "thumbnail": (1.2, 2.5)},
}
#: A kind that no worker handles, and a kind that is paused.
UNHANDLED = "sms"
PAUSED = ("mail", "newsletter")


class CardDeclined(Exception):
    """The bank says no."""

    permanent = True


async def _work(url: str, name: str, clock: VirtualClock, ends: float) -> None:
    rng = Random(f"{SEED} {name}")
    queue = open_queue(url, clock=clock)
    options = WorkerRunOptions(
        polling=Adaptive("200ms", "10s"), concurrency=4, signals=False, seed=1
    )
    async with queue, AsyncExitStack() as stack:
        for n in (1, 2):
            worker = _worker(queue, name, n, rng, clock)
            await stack.enter_async_context(worker.running(options))
        while (left := ends - clock.epoch()) > 60.0:
            if name == PAUSED[0] and 2340 < left <= 2400:
                await queue.pause(PAUSED[1], by="ada", why="the subject line has a typo")
            await queue.put(
                job
                for kind, (most, _) in KINDS[name].items()
                for job in _arrivals(kind, most * _busyness(clock.epoch()), rng)
            )
            await clock.advance(60.0)
        if name == "reports":
            days = (f"2026-03-{day:02}" for day in range(8, 11))
            await queue.put(NewJob("daily_report", {"day": day}) for day in days)
        first = next(iter(KINDS[name]))
        await queue.put(NewJob(first, _payload(rng), delay=f"{n}h") for n in (1, 2))
        await clock.advance(ends - clock.epoch() - 0.7)
        await queue.put(NewJob(kind, _payload(rng)) for kind in list(KINDS[name]) * 4)
        await clock.advance(3600.0)


def _worker(queue: Queue, name: str, n: int, rng: Random, clock: Clock) -> Worker:
    worker = Worker(queue, name=f"{name}-{n}", events=Events(quiet=True), clock=clock)
    for kind, (_, takes) in KINDS[name].items():
        if kind != UNHANDLED:
            retry = Retry.exponential("5s", "30s", attempts=3)
            worker.handle(kind, retry=retry)(_handler(kind, takes, rng, clock))
    return worker


def _handler(kind: str, takes: float, rng: Random, clock: Clock) -> Callable[[Job], Any]:
    async def handle(job: Job) -> dict[str, Any]:
        steps = 20 if takes > 10 else 1
        for step in range(steps):
            if steps > 1:
                await job.progress(step / steps, f"page {step + 1} of {steps}")
            await clock.sleep(rng.expovariate(steps / takes))
        if kind == "charge_card" and rng.random() < 0.01:
            raise CardDeclined("the bank declined the card: insufficient funds")
        if kind == "ship" and rng.random() < 0.03:
            raise ConnectionError("carrier.example answered 503: maintenance until 15:00")
        if kind == "thumbnail" and job.payload["image"].endswith("7.heic"):
            raise ValueError(f"cannot identify image file {job.payload['image']!r}")
        return {"ok": True, "ref": f"{kind}-{job.id}"}

    return handle


def _arrivals(kind: str, rate: float, rng: Random) -> list[NewJob]:
    count, left = 0, math.exp(-rate)
    p = rng.random()
    while p > left:
        count += 1
        p *= rng.random()
    keyed = kind in ("charge_card", "ship")
    jobs = []
    for _ in range(count):
        payload = _payload(rng)
        key = f"order-{payload['order']}" if keyed else None
        jobs.append(NewJob(kind, payload, key=key, headers={"tenant": rng.choice(TENANTS)}))
    return jobs


TENANTS = ("north", "south", "west")


def _payload(rng: Random) -> dict[str, Any]:
    order = rng.randrange(10_000, 99_999)
    return {
        "order": order,
        "customer": {"id": rng.randrange(1000), "name": rng.choice(["Ada", "Grace", "Edsger"])},
        "items": [{"sku": f"SKU-{rng.randrange(999):03}", "count": rng.randrange(1, 4)}],
        "total": round(rng.uniform(5, 250), 2),
        "image": f"upload/{order}.{'heic' if rng.random() < 0.15 else 'jpg'}",
        "card_token": "tok_never_shown",
        "express": rng.random() < 0.2,
    }


def _busyness(epoch: float) -> float:
    """How busy the shop is at a time of the day, from 0.1 at night to 1."""
    hour = epoch % 86400 / 3600
    return 0.1 + 0.9 * max(math.sin((hour - 6) / 16 * math.pi), 0.0)


# The outbox

#: Keys whose records the broker refuses.
REFUSED = ("order-40404", "order-50505")


async def _relay(url: str, clock: VirtualClock, ends: float) -> None:
    rng = Random(f"{SEED} outbox")
    store = open_outbox_store(url, clock=clock)
    await store.migrate()
    outbox = Outbox(store, relay="relay-1", events=Events(quiet=True), clock=clock)

    @outbox.handle("*", retry=Retry.exponential("2s", "10s", attempts=3))
    async def publish(record: Any) -> None:
        await clock.sleep(0.05)
        if record.key in REFUSED:
            raise ValueError("broker refused the message: 413 payload too large")

    async with outbox.running(OutboxRunOptions(signals=False, seed=1)):
        while (left := ends - clock.epoch()) > 0:
            count = round(6 * _busyness(clock.epoch()) * rng.random())
            records = [
                NewRecord("order.placed", {"order": n}, f"order-{n}")
                for n in (rng.randrange(10_000, 99_999) for _ in range(count))
            ]
            if 1740 < left <= 1800:
                records += [
                    NewRecord(kind, {"order": int(key[6:])}, key)
                    for key in REFUSED
                    for kind in ("order.placed", "order.paid", "order.shipped")
                ]
            if records:
                await store.put(records)
            await clock.advance(60.0)


# The fleet

GROUPS = {"shop": 8, "api": 6, "partners": 10, "machines": 12}


async def _watch(url: str, clock: VirtualClock, ends: float) -> None:
    store = open_fleet_store(url, clock=clock)
    options = FleetRunOptions(seed=SEED)
    events = Events(quiet=True)
    fleet = Fleet(options, store=store, name="pages", node="node-1", clock=clock, events=events)

    def probe_of(group: str, n: int) -> Any:
        rng = Random(f"{SEED} {group} {n}")

        async def probe(target: Target) -> Reading:
            took = rng.uniform(0.02, 0.35)
            await clock.sleep(took)
            left = ends - clock.epoch()
            if (group, n) == ("partners", 3) and left < 1500:
                raise ProbeError("connection refused")
            if (group, n) == ("api", 2) and left < 90:
                raise ProbeError("no answer within 10 s")
            version = int(clock.epoch() // (1800 * (n + 1)))
            facts = {"status": 200, "ms": round(took * 1000)}
            return Reading(str(version), facts=facts, summary=f"version {version}")

        return probe

    for group, count in GROUPS.items():
        for n in range(1, count + 1):
            fleet.add(Target(f"{group}-{n:02}", as_probe(probe_of(group, n)), group=group))
    # Polling for hours would take the most time of all parts, and pages show only the last hour.
    await clock.advance(max(ends - clock.epoch() - 3600.0, 0.0))
    await fleet.run()
