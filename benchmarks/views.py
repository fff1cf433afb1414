"""What views cost when a queue holds ten million jobs: counts, pages of every filter, bulk actions.

For each store and each state, a queue gets ten million jobs of that state (written by SQL) and a
thousand of each other state. Then every call is made several times, and the median counts: `stats`,
`stats_by_kind`, `names`, the first page, one from the middle and the last page of each filter, and
a bulk action on a thousand jobs. A middle page begins at a computed place; a last page is found
from a place near the end. The pages of the web interface are requested as by a browser, each after
the interface was made to forget what it had read of the queue.

With `--before COMMIT` it also compares puts, claims and settlements, single and in batches, with
those of that commit, in turns within one run, on a queue of each store with few jobs in it. The
figures are CPU time, on Postgres including that of the server, because the clock is not reliable on
a busy machine.

"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

import httpx  # noqa: E402

import pollwise.web  # noqa: E402
from benchmarks import common  # noqa: E402 - see there
from benchmarks.common import Goal, heading, number  # noqa: E402
from pollwise.queues.base import Queue  # noqa: E402
from pollwise.queues.urls import open_queue  # noqa: E402
from pollwise.queues.views import JobFilter, to_cursor  # noqa: E402
from pollwise.runtime.jobs import STATES, State  # noqa: E402
from tests.support.daemons import version_of  # noqa: E402
from tests.support.servers import Postgres, Servers, newest_postgres  # noqa: E402

JOBS, QUICK = 10_000_000, 100_000
#: The number of jobs of each other state.
FEW = 1_000
#: How often each call is made.
TIMES = 5
#: In milliseconds.
STATS_GOAL, KINDS_GOAL, PAGE_GOAL, BULK_GOAL, WEB_GOAL = 20.0, 50.0, 50.0, 1000.0, 200.0
MIXES: tuple[State, ...] = ("ready", "delayed", "blocked", "dead", "done")
STORES = ("sqlite", "postgres")
ROUNDS, ROUNDS_QUICK = 15, 5

#: The columns of a job in both stores, for the number n in state {code}. Ten kinds, three
#: priorities, an error for the dead, and a key for those that are blocked.
COLUMNS = (
    'queue, kind, payload, state, priority, since, run_at, created_at, attempt, "key", worker,'
    " claimed_at, errors"
)
SELECTED = """
    'default', 'kind-' || (n % 10), '{{"image": ' || n || ', "width": 800}}', {code}, n % 3,
    CASE {code} WHEN 1 THEN {now} + 3600 + n * 0.001 WHEN 3 THEN {now} + 600 + n * 0.001
                ELSE {now} - 100000 + n * 0.001 END,
    CASE {code} WHEN 1 THEN {now} + 3600 + n * 0.001 ELSE {now} - 100000 + n * 0.001 END,
    {now} - 100000 + n * 0.001, CASE WHEN {code} < 3 THEN 0 ELSE 1 END,
    CASE WHEN {code} = 2 THEN 'key-' || (n % 1000) END,
    CASE WHEN {code} > 2 THEN 'worker-' || (n % 20) END,
    CASE WHEN {code} > 2 THEN {now} - 100 END,
    CASE WHEN {code} = 4 THEN {error} END
"""
ERROR = """'[[1.5, 1, "Timeout after ' || (n % 100) || ' s"]]'"""


@dataclass(frozen=True)
class Figure:
    store: str
    mix: str
    what: str
    ms: float
    goal: float


# Filling


def fill_sqlite(path: Path, mix: State, jobs: int, now: float) -> None:
    asyncio.run(_touched(f"sqlite:///{path}"))
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA synchronous = off")
        rows = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
            " AND tbl_name = 'pollwise_jobs'"
        ).fetchall()
        for name, _ in rows:
            connection.execute(f"DROP INDEX {name}")
        for code, count in counts(mix, jobs):
            select = SELECTED.format(code=code, now=now, error=ERROR)
            connection.execute(
                f"WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers"
                f" WHERE n < {count}) INSERT INTO pollwise_jobs ({COLUMNS})"
                f" SELECT {select} FROM numbers"
            )
        for _, sql in rows:
            connection.execute(sql)
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def _touched(url: str) -> None:
    async with open_queue(url) as queue:
        await queue.migrate()
        await queue.stats()


def fill_postgres(server: Postgres, mix: State, jobs: int, now: float) -> None:
    asyncio.run(_touched(server.dsn()))
    indexes = server.execute(
        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'pollwise'"
        " AND tablename = 'jobs' AND indexname <> 'jobs_pkey'"
    )
    for name, _ in indexes:
        server.execute(f"DROP INDEX pollwise.{name}")
    for code, count in counts(mix, jobs):
        select = SELECTED.format(code=code, now=now, error=f"({ERROR})::jsonb")
        server.execute(
            f"INSERT INTO pollwise.jobs ({COLUMNS}) SELECT {select}"
            f" FROM generate_series(1, {count}) AS n"
        )
    for _, sql in indexes:
        server.execute(sql)
    server.execute("VACUUM pollwise.jobs")  # as autovacuum would soon do


def counts(mix: State, jobs: int) -> list[tuple[int, int]]:
    return [(code, jobs if state == mix else FEW) for code, state in enumerate(STATES)]


# Measuring


def filters() -> dict[str, JobFilter]:
    """The filters that are measured, by name."""
    made = {f"state {state}": JobFilter(state) for state in STATES}
    made["all"] = JobFilter()
    made["kind"] = JobFilter(kinds=("kind-7",))
    made["dead of a kind"] = JobFilter("dead", kinds=("kind-7",))
    made["key"] = JobFilter(key="key-7")
    made["error"] = JobFilter("dead", error="TIMEOUT AFTER 42")
    made["no such error"] = JobFilter(error="no job has this error")
    made["no such kind"] = JobFilter(kinds=("no-such-kind",))
    made["worker"] = JobFilter(worker="worker-7")
    made["older than a day"] = JobFilter(older_than=86400.0)
    made["newer than an hour"] = JobFilter(newer_than=3600.0)
    return made


def made_up(mix: State, share: float, jobs: int, now: float) -> str | None:
    """A place in the large part of a queue, after this share of it."""
    n = int(jobs * share)
    past = now - 100000 + n * 0.001
    if mix == "ready":
        return to_cursor(["ready", f"kind-{int(share * 10) % 10}", 1, past, n])
    if mix == "delayed":
        return to_cursor(["delayed", now + 3600 + n * 0.001, 1, n])
    if mix == "blocked":
        return to_cursor(["blocked", f"key-{int(share * 1000) % 1000}", n])
    return to_cursor([mix, now - 100000 + (jobs - n) * 0.001, jobs - n])


async def measured(
    store: str, mix: State, url: str, jobs: int, now: float, times: int
) -> list[Figure]:
    found: list[Figure] = []

    async def note(what: str, goal: float, call: Callable[[], Awaitable[Any]]) -> Any:
        taken, answer = [], None
        await call()
        for _ in range(times):
            began = time.perf_counter()
            answer = await call()
            taken.append((time.perf_counter() - began) * 1000)
        found.append(Figure(store, mix, what, common.median(taken), goal))
        return answer

    async with open_queue(url) as queue:
        await note("stats", STATS_GOAL, queue.stats)
        await note("stats by kind", KINDS_GOAL, queue.stats_by_kind)
        await note("names", STATS_GOAL, queue.names)
        for name, chosen in filters().items():
            page = await note(f"{name}, first page", PAGE_GOAL, partial(queue.page, chosen))
            for part, share in (("middle", 0.5), ("late", 0.999)):
                if chosen.state in (None, mix) and (chosen.key is None or mix == "dead"):
                    if chosen.worker is not None and mix in ("ready", "delayed", "blocked"):
                        continue
                    there = replace(chosen, after=made_up(mix, share, jobs, now))
                    await note(f"{name}, {part} page", PAGE_GOAL, partial(queue.page, there))
            if chosen.state not in (None, mix):
                last = await last_page(queue, chosen, page.next)
                await note(f"{name}, last page", PAGE_GOAL, partial(queue.page, last))
        await web(queue, note, mix)
        await bulk(queue, note, mix)
    return found


async def web(queue: Queue, note: Callable[..., Awaitable[Any]], mix: State) -> None:
    """The pages of the web interface about a queue."""
    slug, [first] = queue.name, (await queue.page(JobFilter(mix, limit=1))).jobs
    addresses = {
        "overview": "/",
        "queue": f"/queues/{slug}",
        **{f"{state} jobs": f"/queues/{slug}?state={state}" for state in STATES},
        "jobs of a kind": f"/queues/{slug}?kind=kind-7",
        "no such error": f"/queues/{slug}?error=no+job+has+this+error",
        "job": f"/queues/{slug}/jobs/{first.job.id}",
        "workers": "/workers",
    }

    with tempfile.TemporaryDirectory() as folder:
        state = f"sqlite:///{folder}/state.db"
        made = pollwise.web.app(queue, authorise=pollwise.web.everybody, state=state)
        transport = httpx.ASGITransport(made)
        async with made, httpx.AsyncClient(transport=transport, base_url="http://web") as browser:

            async def visit(path: str) -> None:
                made.web.sources.queues[slug].forget()
                (await browser.get(path)).raise_for_status()

            for name, path in addresses.items():
                await note(f"web, {name}", WEB_GOAL, partial(visit, path))


async def last_page(queue: Queue, chosen: JobFilter, after: str | None) -> JobFilter:
    while after is not None:
        chosen = replace(chosen, after=after)
        after = (await queue.page(chosen)).next
    return chosen


async def bulk(queue: Queue, note: Callable[..., Awaitable[Any]], mix: State) -> None:
    """A bulk action, each time on the next thousand jobs."""
    chosen = JobFilter(mix, limit=1000)
    act = queue.drop if mix in ("dead", "done") else queue.cancel
    after: str | None = None

    async def call() -> None:
        nonlocal after
        after = (await act(replace(chosen, after=after))).next

    await note(f"{act.__name__} 1,000 {mix}", BULK_GOAL, call)
    if mix == "dead":
        await note("retry 1,000 dead", BULK_GOAL, lambda: queue.retry(chosen))


def show(figures: list[Figure]) -> list[Goal]:
    """Print the slowest of each kind of call, each as a goal."""
    goals = []
    kinds: dict[tuple[str, str, str], list[Figure]] = {}
    for each in figures:
        kind = "a page" if each.goal == PAGE_GOAL and "page" in each.what else each.what
        kind = "a bulk action on 1,000" if each.goal == BULK_GOAL else kind
        kind = "a page of the web interface" if each.goal == WEB_GOAL else kind
        kinds.setdefault((each.store, each.mix, kind), []).append(each)
    for (store, mix, kind), some in kinds.items():
        worst = max(some, key=lambda each: each.ms)
        which = f" ({worst.what})" if kind.startswith("a ") else ""
        name = f"{store}, {mix}: {kind}{which}, the slowest of {len(some)}"
        if len(some) == 1:
            name = f"{store}, {mix}: {kind}{which}"
        goals.append(Goal(name, worst.ms, worst.goal, "ms"))
    return goals


# Compared with the version before

RATES = """
import asyncio, json, sys, time
from pathlib import Path
from pollwise.queues.urls import open_queue
from pollwise.runtime.jobs import NewJob, Settlement

def clock(server):
    # The CPU seconds of this process, and of each process of the server.
    spent = {0: time.process_time()}
    if server:
        for pid in Path(f"/proc/{server}/task/{server}/children").read_text().split():
            spent[pid] = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    return spent

async def main(url, rounds, server):
    found = {}
    async with open_queue(url) as queue:
        await queue.migrate()
        def note(name, count, began):
            ended = clock(server)
            spent = sum(ended[each] - began.get(each, 0.0) for each in ended)
            found[name] = count / spent
        for name, batches, size in (("single", rounds, 1), ("batches of 100", rounds // 10, 100)):
            began = clock(server)
            for n in range(batches):
                await queue.put([NewJob("job", {"n": n}) for _ in range(size)])
            note(f"put, {name}", batches * size, began)
            began, held = clock(server), []
            for _ in range(batches):
                held.append(await queue.claim("w", size, 60))
            note(f"claim, {name}", batches * size, began)
            began = clock(server)
            for claims in held:
                await queue.settle([Settlement.done(claim) for claim in claims])
            note(f"settle, {name}", batches * size, began)
    print(json.dumps(found))

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""


def compared(before: str, servers: Servers, stores: list[str], quick: bool) -> list[Goal]:
    """The rates of this version ÷ those of the version before, each the best of rounds in turns."""
    goals = []
    rounds = ROUNDS_QUICK if quick else ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "old"
        old.mkdir()
        archive = subprocess.run(
            ["git", "archive", before, "src"], check=True, capture_output=True, cwd=common.ROOT
        )
        subprocess.run(["tar", "x", "-C", str(old)], input=archive.stdout, check=True)
        server = None
        if "postgres" in stores:
            server = servers.postgres(fsync="off", autovacuum="off")
        for store in stores:
            heading(f"{store}: this version ÷ {before}, jobs per second of CPU time")
            rates: dict[str, dict[str, float]] = {"new": {}, "old": {}}
            for at in range(rounds):
                paths = {"new": common.ROOT / "src", "old": old / "src"}
                for name in ("new", "old") if at % 2 else ("old", "new"):
                    url, pid = f"sqlite:///{folder}/{name}-{at}.db?synchronous=off", 0
                    if server is not None and store == "postgres":
                        url, pid = server.create_database(f"{name}_{at}"), server.pid
                    jobs = 200 if quick else 1000
                    for what, rate in child(paths[name], url, jobs, pid).items():
                        rates[name][what] = max(rate, rates[name].get(what, 0.0))
            for what, rate in rates["new"].items():
                ratio = rate / rates["old"][what]
                goal = Goal(f"{store}: {what} ÷ before", ratio, 0.95, "×", True)
                print(f"{goal.name:40} {number(goal.measured)}")
                goals.append(goal)
    return goals


def child(path: Path, url: str, rounds: int, server: int) -> dict[str, float]:
    command = [sys.executable, "-c", RATES, url, str(rounds), str(server)]
    made = subprocess.run(
        command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(path)}
    )
    rates: dict[str, float] = json.loads(made.stdout)
    return rates


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a short run, about a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--jobs", type=int, help=f"how many jobs ({JOBS:,})")
    parser.add_argument("--stores", help=f"only these of {','.join(STORES)}")
    parser.add_argument("--mixes", help=f"only these of {','.join(MIXES)}; none for none")
    parser.add_argument("--before", metavar="COMMIT", help="compare rates with this commit")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    given.stores = common.listed(parser, "--stores", given.stores, STORES) or list(STORES)
    none = given.mixes == "none"
    given.mixes = [] if none else common.listed(parser, "--mixes", given.mixes, MIXES) or MIXES
    return given


def main() -> None:
    given = parse()
    jobs = given.jobs or (QUICK if given.quick else JOBS)
    facts: dict[str, Any] = {"quick": given.quick, "jobs": jobs}
    figures: list[Figure] = []
    goals: list[Goal] = []
    with Servers() as servers:
        facts["machine"] = common.machine(servers.folder)
        facts["versions"] = common.versions(postgres=version_of(newest_postgres() / "postgres"))
        common.show(facts["machine"], facts["versions"])
        for store in given.stores:
            for mix in given.mixes:
                heading(f"{store}: {jobs:,} {mix} jobs, and {FEW:,} of each other state")
                some = measured_mix(servers, store, mix, jobs)
                for each in some:
                    print(f"{each.what:40} {number(each.ms):>8} ms", flush=True)
                figures += some
        goals += show(figures)
        if given.before:
            goals += compared(given.before, servers, given.stores, given.quick)
    facts["figures"] = [vars(each) for each in figures]
    common.finish(facts, goals, given.json)


def measured_mix(servers: Servers, store: str, mix: State, jobs: int) -> list[Figure]:
    now = time.time()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=servers.folder) as folder:
        if store == "sqlite":
            path = Path(folder) / "jobs.db"
            fill_sqlite(path, mix, jobs, now)
            url = f"sqlite:///{path}?synchronous=off&keep=30d"
            print(f"filled in {time.monotonic() - began:.0f} s", flush=True)
            return asyncio.run(measured(store, mix, url, jobs, now, TIMES))
        server = servers.postgres(fsync="off", max_wal_size="8GB", shared_buffers="256MB")
        try:
            fill_postgres(server, mix, jobs, now)
            print(f"filled in {time.monotonic() - began:.0f} s", flush=True)
            return asyncio.run(measured(store, mix, server.dsn(keep="30d"), jobs, now, TIMES))
        finally:
            server.close()


if __name__ == "__main__":
    main()
