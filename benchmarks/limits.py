"""What limits cost, whether fair turns keep a large group from delaying small ones, and how exactly
a rate is kept while workers are killed. On SQLite (with fsync), Postgres and Valkey.

    throughput  One worker with 10 concurrent handlers and empty jobs: without limits, and with
                limits that do not slow it: global ones, and 50 at a time for each of 100 groups.
    turns       Ten small groups put a job now and then; the handlers take 10 to 30 ms. Their pickup
                when they are alone, and when a group with a large backlog shares the kind. With
                fair turns alone, all handlers are busy, and a job waits for the next that is free.
                With a limit for each group that is below the concurrency, handlers stay free.
    full        Very many groups have all the jobs they may run, and more that wait. What a claim
                costs that finds nothing, and one that takes a job of another kind; the pickup of a
                group that is free, by a worker; and how long such a group waits at most after a
                change of the limits, while claims look at all groups again.
    rate        Four workers share a rate, and each is killed in turn, every few seconds. Jobs that
                started in each window of a minute; a job that starts again counts again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import common  # noqa: E402 - see there
from benchmarks.common import Child, Goal, heading, median, number, percentile  # noqa: E402
from pollwise import Concurrency, Job, NewJob, Rate, Worker, WorkerRunOptions, open  # noqa: E402
from pollwise.runtime.jobs import Settlement  # noqa: E402
from tests.support.servers import Servers  # noqa: E402

SECTIONS = ("throughput", "turns", "full", "rate")
STORES = ("SQLite", "Postgres", "Valkey")
KIND = "empty"
GROUPS = [f"group-{n}" for n in range(100)]
#: The limits of the kind in each throughput run; the others are compared with the first. All of
#: them let more jobs run than the worker has handlers.
WAYS: dict[str, dict[str, Any]] = {
    "without": {},
    "1,000 at a time": {"limit": Concurrency(1000)},
    "a million a second": {"limit": Rate(1_000_000, per="1s")},
    "50 at a time each": {"limit": Concurrency(50, by="group")},
    "fair": {"fair_by": "group"},
}
GLOBAL = ("1,000 at a time", "a million a second")

#: How the large group shares the kind with the small ones.
SHARES: dict[str, dict[str, Any]] = {
    "fair": {"fair_by": "group"},
    "5 at a time each": {"limit": Concurrency(5, by="group")},
}
HOT, SMALL = "hot", [f"small-{n}" for n in range(10)]
#: Groups beside full ones: so many that hardly two jobs of one meet.
FREE = [f"free-{n}" for n in range(1000)]
#: How long a handler takes, in seconds. Equal times would free all handlers at the same moment.
HANDLER = (0.01, 0.03)
#: Seconds between two puts of the small groups.
APART = 0.01
WORKERS = 4
AMOUNT, BURST_SHARE = 6000, 0.05


def say(**facts: object) -> None:
    os.write(1, json.dumps(facts).encode() + b"\n")


async def fill(url: str, jobs: int, groups: list[str], payload: Any = None) -> None:
    async with open(url) as queue:
        places = itertools.cycle(groups)
        for done in range(0, jobs, 1000):
            batch = [
                NewJob(KIND, payload, limit_group=next(places))
                for _ in range(min(1000, jobs - done))
            ]
            await queue.put(batch)


async def state(url: str, limits: dict[str, Any]) -> None:
    async with open(url) as queue:
        await queue.migrate()
        if limits:
            await queue.limits.set(KIND, **limits)


# The child processes: workers that print when jobs start.


def work_through(url: str, jobs: int) -> None:
    """Handle this many empty jobs, and print the time from the first to the last."""
    worker = Worker(url, WorkerRunOptions(concurrency=10))
    moments: list[float] = []

    @worker.handle(KIND)
    async def empty(job: Job) -> None:
        moments.append(time.monotonic())
        if len(moments) == jobs:
            worker.stop()

    asyncio.run(worker.run())
    say(seconds=moments[-1] - moments[0])


def work_slowly(url: str) -> None:
    """Print the pickup of each job that carries the time of its put."""
    worker = Worker(url, WorkerRunOptions(concurrency=10))

    @worker.handle(KIND)
    async def slow(job: Job) -> None:
        if job.payload is not None:
            say(pickup=time.monotonic() - job.payload)
        await asyncio.sleep(random.uniform(*HANDLER))

    asyncio.run(worker.run())


def work_at_rate(url: str, log: str) -> None:
    """Append the time of each start to a file, in one write, so that a kill loses none."""
    worker = Worker(url, WorkerRunOptions(concurrency=10, lease="5s"))
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @worker.handle(KIND)
    async def start(job: Job) -> None:
        os.write(file, f"{time.monotonic()}\n".encode())

    asyncio.run(worker.run())


CHILDREN: dict[str, Callable[..., None]] = {
    "through": work_through,
    "slowly": work_slowly,
    "rate": work_at_rate,
}


def child(what: str, *arguments: object) -> Child:
    return Child([sys.executable, __file__, "--child", what, *map(str, arguments)])


# The sections


class Places:
    """A new, empty queue on each store."""

    def __init__(self, servers: Servers, folder: Path) -> None:
        self._servers, self._folder = servers, folder
        self._numbers = itertools.count()

    def url(self, store: str) -> str:
        n = next(self._numbers)
        if store == "SQLite":
            return f"sqlite:///{self._folder}/{n}.db"
        if store == "Postgres":
            return self._servers.postgres().create_database(f"limits_{n}")
        redis = self._servers.redis()
        return f"{redis.url()}?queue=limits-{n}"


def throughput(places: Places, store: str, quick: bool) -> dict[str, list[float]]:
    """Jobs a second in each way, in several rounds; the ways take turns."""
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    jobs, rounds = (3000, 1) if quick else (40_000, 3)
    for _ in range(rounds):
        for way, limits in WAYS.items():
            url = places.url(store)
            asyncio.run(state(url, limits))
            asyncio.run(fill(url, jobs, GROUPS))
            with child("through", url, jobs) as worker:
                rates[way].append(jobs / worker.hear(300)["seconds"])
    return rates


def turns(places: Places, store: str, share: str, backlog: int, samples: int) -> list[float]:
    """Seconds from put to start of the small groups' jobs, beside a backlog of the hot group."""
    url = places.url(store)
    asyncio.run(state(url, SHARES[share]))
    asyncio.run(fill(url, backlog, [HOT]))
    with child("slowly", url) as worker:
        return asyncio.run(_put_small(url, worker, samples))


async def _put_small(
    url: str, worker: Child, samples: int, groups: list[str] = SMALL
) -> list[float]:
    picked = []
    chosen = random.Random(7)
    async with open(url) as queue:
        await queue.put(NewJob(KIND, time.monotonic(), limit_group=groups[0]))
        await asyncio.to_thread(worker.hear)  # it has started
        for _ in range(samples):
            await asyncio.sleep(chosen.expovariate(1 / APART))
            await queue.put(NewJob(KIND, time.monotonic(), limit_group=chosen.choice(groups)))
        for _ in range(samples):
            picked.append((await asyncio.to_thread(worker.hear))["pickup"])
    return picked


def full_groups(places: Places, store: str, groups: int, samples: int) -> dict[str, list[float]]:
    """Seconds of claims and pickups beside this many full groups."""
    url = places.url(store)
    asyncio.run(state(url, {"limit": Concurrency(1, by="group")}))
    asyncio.run(fill(url, 2 * groups, [f"full-{n:06}" for n in range(groups)]))
    found = asyncio.run(_claims_beside_full(url, groups, samples))
    with child("slowly", url) as worker:
        found["a free group's pickup"] = asyncio.run(_put_small(url, worker, samples, FREE))
    found["after a change"] = [asyncio.run(_after_a_change(url))]
    return found


async def _claims_beside_full(url: str, groups: int, samples: int) -> dict[str, list[float]]:
    took: dict[str, list[float]] = {"a claim of nothing": [], "a claim of another kind": []}
    async with open(url) as queue:
        leased = 0
        while leased < groups:
            claims = await queue.claim("full", 1000, 86_400, kinds=[KIND])
            assert claims, f"{leased} of {groups} groups have a job to run"
            leased += len(claims)
        for _ in range(5):  # groups leave, and the last pass over all of them ends
            assert not await queue.claim("idle", 10, 60, kinds=[KIND])
        for name, put in (("a claim of nothing", 0), ("a claim of another kind", 1)):
            for _ in range(samples):
                await queue.put([NewJob("other")] * put)
                began = time.monotonic()
                claims = await queue.claim("idle", 10, 60, kinds=[KIND, "other"])
                took[name].append(time.monotonic() - began)
                assert len(claims) == put
                await queue.settle([Settlement.done(claim) for claim in claims])
    return took


async def _after_a_change(url: str) -> float:
    """Seconds from a change of the limits until the last group, which is free, has its job."""
    async with open(url) as queue:
        await queue.limits.set(KIND, [Concurrency(1, by="group"), Concurrency(10**6)])
        await queue.put(NewJob(KIND, limit_group="last"))
        began = time.monotonic()
        while not await queue.claim("w", 10, 60, kinds=[KIND]):
            pass
        return time.monotonic() - began


def kept_rate(places: Places, store: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Starts in windows of a minute, or of a third of a short run, under kills."""
    url, log = places.url(store), folder / f"starts-{store}"
    window = min(60.0, seconds / 3)
    amount = round(AMOUNT * window / 60)
    asyncio.run(state(url, {"limit": Rate(amount, per=window)}))
    asyncio.run(fill(url, round(amount * (seconds / window + 2)), GROUPS[:1]))
    chosen = random.Random(11)
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(child("rate", url, log)) for _ in range(WORKERS)]
        _wait_for_lines(log, 1)
        began, kills = time.monotonic(), 0
        while time.monotonic() - began < seconds + 2:
            time.sleep(3)
            victim = chosen.randrange(WORKERS)
            os.kill(workers[victim].pid, signal.SIGKILL)
            kills += 1
            workers[victim] = stack.enter_context(child("rate", url, log))
    moments = sorted(float(line) for line in log.read_text().splitlines())
    # The first burst comes from the quiet time before; the end is cut off, because workers end
    # there.
    counts = [
        bisect_left(moments, at + window) - place
        for place, at in enumerate(moments)
        if at + window < began + seconds
    ]
    return {
        "rate": amount, "window": window, "kills": kills,
        "least": min(counts), "most": max(counts), "mean": sum(counts) / len(counts),
    }  # fmt: skip


def _wait_for_lines(log: Path, lines: int) -> None:
    until = time.monotonic() + 60
    while not log.exists() or log.read_text().count("\n") < lines:
        if time.monotonic() > until:
            raise TimeoutError("no worker started a job within a minute")
        time.sleep(0.01)


def show_throughput(rates: dict[str, dict[str, list[float]]]) -> Iterator[Goal]:
    heading("Throughput with limits that do not slow it, jobs/s (share of that without)")
    rows = []
    for store, ways in rates.items():
        plain = median(ways["without"])
        shares = {way: median(each) / plain for way, each in ways.items()}
        for way, each in ways.items():
            rows.append([f"{store}, {way}", number(median(each)), f"{shares[way] * 100:.0f} %"])
        for way in GLOBAL:
            yield Goal(f"throughput, {store}, {way}", shares[way] * 100, 70, "%", least=True)
    common.table(["", "jobs/s", "share"], rows)


def show_turns(found: dict[str, dict[str, dict[int, list[float]]]], backlog: int) -> Iterator[Goal]:
    heading("Pickup of small groups' jobs beside a large group, ms")
    rows = []
    for store, shares in found.items():
        for share, each in shares.items():
            alone, beside = each[0], each[backlog]
            for name, took in (("alone", alone), (f"beside {backlog:,} jobs", beside)):
                cells = [number(value * 1000) for value in (median(took), percentile(took, 0.95))]
                rows.append([f"{store}, {share}, {name}", *cells])
            goal = median(beside) / median(alone)
            yield Goal(f"pickup beside a large group, {store}, {share}, median", goal, 2, "×")
    common.table(["", "median", "p95"], rows)


def show_full(found: dict[str, dict[int, dict[str, list[float]]]]) -> Iterator[Goal]:
    heading("Beside full groups, ms")
    rows = []
    for store, sizes in found.items():
        for size, took in sizes.items():
            for name, each in took.items():
                cells = [number(value * 1000) for value in (median(each), percentile(each, 0.95))]
                rows.append([f"{store}, {size:,} groups, {name}", *cells])
            beside = f"beside {size:,} full groups, {store}"
            idle, pickup = median(took["a claim of nothing"]), median(took["a free group's pickup"])
            yield Goal(f"idle claim {beside}, median", idle * 1000, 5, "ms")
            yield Goal(f"pickup of a free group {beside}, median", pickup * 1000, 50, "ms")
    common.table(["", "median", "p95"], rows)


def show_rate(found: dict[str, dict[str, Any]]) -> Iterator[Goal]:
    heading("Starts in each window, under kills of four workers")
    rows = []
    for store, each in found.items():
        rate = each["rate"]
        off = max(each["most"] - rate, rate - each["least"]) / rate * 100
        names = ("rate", "window", "kills", "least", "mean", "most")
        rows.append([store, *(number(each[name], 4) for name in names)])
        yield Goal(f"rate, {store}, furthest from it", off, 5, "%")
    head = ["", "rate", "window, s", "kills", "least", "mean", "most"]
    common.table(head, rows)


def main() -> None:
    parser = common.parser(__doc__, SECTIONS)
    parser.add_argument("--stores", metavar="NAMES", help=f"only these of {','.join(STORES)}")
    given = parser.parse_args()
    sections = common.listed(parser, "--only", given.only, SECTIONS) or SECTIONS
    stores = common.listed(parser, "--stores", given.stores, STORES) or STORES
    goals: list[Goal] = []
    facts: dict[str, Any] = {}
    with Servers() as servers, common.work_folder() as folder:
        facts |= {"machine": common.machine(folder), "versions": common.versions()}
        common.show(facts["machine"], facts["versions"])
        others, places = common.Others(), Places(servers, folder)
        if "throughput" in sections:
            rates = {store: throughput(places, store, given.quick) for store in stores}
            goals += show_throughput(rates)
            facts["throughput"] = rates
        if "turns" in sections:
            backlog, samples = (20_000, 100) if given.quick else (1_000_000, 500)
            pickups = {
                store: {
                    share: {
                        size: turns(places, store, share, size, samples) for size in (0, backlog)
                    }
                    for share in SHARES
                }
                for store in stores
            }
            goals += show_turns(pickups, backlog)
            facts["turns"] = pickups
        if "full" in sections:
            sizes, samples = ((1000, 3000), 20) if given.quick else ((10_000, 100_000), 100)
            full = {
                store: {size: full_groups(places, store, size, samples) for size in sizes}
                for store in stores
            }
            goals += show_full(full)
            facts["full"] = full
        if "rate" in sections:
            seconds = 12.0 if given.quick else 180.0
            kept = {store: kept_rate(places, store, folder, seconds) for store in stores}
            goals += show_rate(kept)
            facts["rate"] = kept
        facts["others_percent"] = others.show()
    common.finish(facts, goals, given.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        what, *arguments = sys.argv[2:]
        CHILDREN[what](*[int(each) if each.isdecimal() else each for each in arguments])
    else:
        main()
