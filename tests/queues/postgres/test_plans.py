"""What the statements of a queue read does not grow with its backlog, whatever the statistics say.

Each is called with a batch while few and while many jobs wait in each state. A plan that walks an
index, instead of looking the batch up in it, reads more with many.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pollwise.queues.limits.record import Concurrency, Limit, Rate
from pollwise.queues.notes import NewNote
from pollwise.queues.postgres import pages
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.queues.views import JobFilter
from pollwise.runtime.jobs import (
    UNKNOWN_HEADERS,
    Claim,
    NewJob,
    Progress,
    Settlement,
    State,
)
from pollwise.runtime.rollups.rows import HistoryRange, HistoryRow
from pollwise.storage.postgres.params import numbers
from tests.queues.benches import migrated
from tests.support.servers import Postgres
from tests.support.touched import STATISTICS, Statistics, Touched, analyze, grown, prepare

BATCH = 40
SMALL, LARGE = 300, 3_000
#: Groups that wait. A claim examines all of them, so there are always as many.
GROUPS = 100

#: Statements that are not looked at, and why.
APART = {
    **dict.fromkeys(("version", "versions", "may_vacuum", "vacuum", "send", "tokens"), "upkeep"),
    "drop": "for tables without flows",
    "all_compensated": "it reads all dead jobs, which are all retried",
    "limit_use": "it reads up to 10,000 jobs, for a page",
}
JOBS = (
    "INSERT INTO {schema}.jobs (queue, kind, payload, created_at, run_at, since, state, key,"
    ' "unique", limit_group, flow, waits, held_key, expires_at, token)'
    " SELECT 'q', '{kind}', 'null', i, i, {since}, {state}, {key}, {unique}, {group}, {flow},"
    " {waits}, {held}, {expires}, 7 FROM generate_series({at}, {to}) AS i"
)
PLAIN: dict[str, Any] = {
    "kind": "job", "since": "i", "state": 0, "key": "NULL", "unique": "NULL", "group": "NULL",
    "flow": "NULL", "waits": "NULL", "held": "NULL", "expires": "NULL",
}  # fmt: skip
FAR = "1e12 + i"
#: Jobs of all states.
WAITING: list[dict[str, Any]] = [
    {},
    {"kind": "any", "unique": "'waits ' || i"},
    {"kind": "turns", "group": f"'g' || lpad((i % {GROUPS})::text, 3, '0')"},
    {"kind": "other", "state": 1, "since": FAR, "key": "'front ' || i", "flow": "'flow ' || i"},
    {"kind": "other", "state": 2, "key": "'front ' || i"},
    {"kind": "other", "state": 2, "key": "'front 1'"},
    {"kind": "other", "state": 2, "waits": 1, "held": "''", "flow": "'flow ' || i"},
    {"kind": "other", "state": 2, "waits": 1, "held": "'front ' || i", "flow": "'flow ' || i"},
    {"kind": "other", "state": 3, "since": FAR, "group": "'x' || i"},
    {"kind": "other", "state": 4, "flow": "'flow ' || i"},
    {"kind": "other", "state": 5, "flow": "'flow ' || i", "since": FAR},
    {"kind": "other", "state": 6, "expires": FAR, "since": FAR},
]
#: Beside them.
MORE = """
INSERT INTO {schema}.links (before, after, place, on_failure)
SELECT 1e9 + i, 2e9 + i, i, i % 2 = 0 FROM generate_series({at}, {to}) AS i;
INSERT INTO {schema}.limit_groups (queue, kind, limit_group, full_at)
SELECT 'q', 'none', 'g' || i, 0 FROM generate_series({at} * 5, {to} * 5) AS i;
INSERT INTO {schema}.history (queue, level, at, writer, value)
SELECT 'q', 0, i, 'w' || i % 7, '1' FROM generate_series({at}, {to}) AS i;
INSERT INTO {schema}.notes (queue, topic, name, value)
SELECT 'other', 'workers', 'w' || i, '1' FROM generate_series({at}, {to}) AS i;
INSERT INTO {schema}.limit_turns (queue, kind)
SELECT 'other', 'k' || i FROM generate_series({at}, {to}) AS i
"""


def fill(schema: str, at: int, to: int) -> list[str]:
    place = {"schema": schema, "at": at, "to": to}
    jobs = [JOBS.format_map({**PLAIN, **place, **each}) for each in WAITING]
    return [*jobs, *MORE.format_map(place).split(";")]


async def take(queue: PostgresQueue, jobs: list[NewJob], **options: Any) -> list[Claim]:
    """Put a batch before all others, and claim it."""
    for job in jobs:
        job.priority = 9
    await queue.put(jobs)
    claims = await queue.claim("w", BATCH, 600, kinds=[jobs[0].kind], **options)
    assert len(claims) == len(jobs), f"{len(claims)} of {jobs[0].kind}"
    return claims


def some(kind: str, key: str | None = None, unique: str | None = None) -> list[NewJob]:
    return [
        NewJob(kind, n, key=key and f"{key} {n}", unique=unique and f"{unique} {n}")
        for n in range(BATCH)
    ]


async def settle_all_ways(queue: PostgresQueue, touched: Touched, tag: str) -> None:
    await queue.settle([Settlement.done(each) for each in await take(queue, some("job"))])
    claims = await take(queue, some("job", key=f"key {tag}"))
    await queue.renew(claims, 600, {claims[0].job.id: Progress(0.5)})
    with touched.of("keyed"):
        await queue.settle([Settlement.done(each) for each in claims])
    ways: list[Callable[[Claim], Settlement]] = [
        Settlement.done, Settlement.cancelled, Settlement.give_back,
        lambda claim: Settlement.retry(claim, 1e6), lambda claim: Settlement.dead(claim, "x"),
    ]  # fmt: skip
    claims = await take(queue, some(f"mixed {tag}", key=f"key {tag}", unique=f"all {tag}"))
    await queue.cancel([each.job.id for each in claims[:5]])
    with touched.of("mixed"):
        await queue.settle([ways[n % 5](each) for n, each in enumerate(claims)])
    claims = await take(queue, some("job", key=f"key {tag} 2"))
    unknown = [replace(c, job=replace(c.job, headers=UNKNOWN_HEADERS)) for c in claims]
    await queue.settle([Settlement.done(each) for each in unknown])


async def use_flows(queue: PostgresQueue, touched: Touched) -> None:
    for how in ("done", "dead", "cancelled"):
        first = [NewJob("job", n, priority=9) for n in range(BATCH // 4)]
        after = [NewJob("flow", n, after=[each], key=f"{how} {n}") for n, each in enumerate(first)]
        failed = [NewJob("flow", n, after=[each], on_failure=True) for n, each in enumerate(first)]
        with touched.of("flow"):
            put = await queue.put([*first, *after, *failed, NewJob("flow", after=after)])
            claims = await queue.claim("w", len(first), 600, kinds=["job"])
            assert {each.job.id for each in claims} == set(put[: len(first)])
            await queue.flow(put[0])
            await queue.predecessors(put[-1])
        with touched.of(f"flow {how}"):
            if how == "done":
                await queue.settle([Settlement.done(each) for each in claims])
                assert len(await queue.claim("w", BATCH, 600, kinds=["flow"])) == len(after)
            elif how == "dead":
                await queue.settle([Settlement.dead(each, "x") for each in claims])
                await queue.retry(put[: len(first)], anyway=True)
                claims = await queue.claim("w", len(first), 600, kinds=["job"])
                await queue.settle([Settlement.dead(each, "x") for each in claims])
                assert await queue.drop(put[: len(first)]) == len(first)
            else:
                await queue.cancel(put[: len(first)])
                await queue.settle([Settlement.cancelled(each) for each in claims])
                await queue.cancel(put)


async def use_limits(queue: PostgresQueue, touched: Touched) -> None:
    await queue.limits.set("plain", [Concurrency(BATCH), Rate(10**6, 1)])
    grouped: list[Limit] = [Concurrency(GROUPS, by="tenant"), Rate(10**6, 3600)]
    await queue.limits.set("turns", [*grouped, Rate(1, 3600, by="tenant")])
    with touched.of("of a limited kind"):
        claims = await take(queue, some("plain"))
        await queue.renew(claims, 600)
        lapse = f"UPDATE {queue.schema}.jobs SET since = 1 WHERE kind = 'plain' AND state = 3"
        await queue.database.connections.rows(lapse.encode())
        with touched.of("late"):
            assert not (await queue.renew(claims, 600)).lost
        await queue.settle([Settlement.done(each) for each in claims])
    with touched.of("of groups"):
        claims = []
        for _ in range(GROUPS // BATCH + 2):
            claims += await queue.claim("w", BATCH, 600, kinds=["turns"])
        assert len(claims) == GROUPS, "then all groups are full"
        await queue.limits.use("turns")
        await queue.settle([Settlement.give_back(each) for each in claims])
    await queue.prune()
    await queue.limits.remove("turns")
    await queue.limits.remove("plain")


async def use_the_rest(queue: PostgresQueue, touched: Touched, tag: str) -> None:
    jobs = some("job", unique=f"unique {tag}", key=f"line {tag}")
    put = await queue.put(jobs)
    assert await queue.put(jobs) == put
    await queue.put([NewJob("job", "new", unique=f"unique {tag} {n}", key=f"line {tag} {n}",
                            replace=True, delay=60) for n in range(BATCH)])  # fmt: skip
    [(seq,)] = await queue.database.rows("put_one", queue._one_params(NewJob("job")))
    assert seq
    await queue.database.rows("unlink", [numbers([10**9 + n for n in range(BATCH)])])
    await queue.get(put[0])
    await queue.arrivals(put[0], 20)
    await queue.endings(put)
    await queue.stats(50)
    await queue.stats_by_kind(50)
    await queue.names()
    states: list[State] = ["leased", "ready", "delayed", "blocked", "dead", "done"]
    for state in states:
        with touched.of(state):
            await queue.page(JobFilter(state, limit=20))
    with touched.of("key"):
        await queue.page(JobFilter(key="front 1", limit=20))
    await queue.cancel(put)
    dead = await take(queue, some(f"dead {tag}", key=f"dead {tag}"))
    await queue.settle([Settlement.dead(each, "x") for each in dead])
    ids = [each.job.id for each in dead]
    assert await queue.retry(ids) == BATCH
    claims = await queue.claim("w", 7, 600)  # any kind
    await queue.settle([Settlement.give_back(each) for each in claims])
    await queue.schedules.set("s", NewJob("job"), every="1h")
    await queue.schedules.run("s")
    await queue.schedules.remove("s")
    rows = [HistoryRow(0, 10**9 + n, "w", "1") for n in range(BATCH)]
    note = NewNote("workers", "w", "1", 60, history=tuple(rows))
    await queue._write_note(note)
    await queue._write_note(NewNote("workers", "w", None))
    await queue._read_notes(["workers", "pauses"])
    await queue._read_history([HistoryRange(0, 10**9, 2 * 10**9, 50)])
    new = [HistoryRow(1, 10**9, "", "1")]
    assert await queue._replace_history(rows, new)
    assert await queue._replace_history(new, [])


async def use_everything(queue: PostgresQueue, keeping: PostgresQueue) -> dict[str, int]:
    """The most that each statement read."""
    await queue.database.check()
    await keeping.database.check()
    touched = Touched(queue.database)
    touched_keeping = Touched(keeping.database)
    tag = uuid.uuid4().hex
    await settle_all_ways(queue, touched, f"{tag} a")
    await settle_all_ways(keeping, touched_keeping, f"{tag} b")
    await use_flows(queue, touched)
    await use_flows(keeping, touched_keeping)
    await use_limits(queue, touched)
    await use_the_rest(queue, touched, tag)
    lists = {name for name in queue.database.sql if name.startswith("list ")}  # alike
    called = touched.called | lists | APART.keys()
    assert set(queue.database.sql) - called == set(), "not called here"
    for label in [each for each in touched.most if each.startswith("limit_use")]:
        del touched.most[label]
    keeps = {f"{name} (kept)": count for name, count in touched_keeping.most.items()}
    return {**touched.most, **keeps}


@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("server", ["postgres", "postgres_oldest"])
def test_no_statement_reads_more_with_a_backlog(
    server: str,
    statistics: Statistics,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "EXAMINED_MAX", 50)
    found: Postgres = request.getfixturevalue(server)
    schema = f"plans_{statistics}"
    dsn = migrated(found.dsn(), schema)
    prepare(found, schema, fill(schema, 1, 100), statistics)

    async def use() -> dict[str, int]:
        async with (
            PostgresQueue(dsn, "q", schema=schema, connections=1, timeout="5m") as queue,
            PostgresQueue(
                dsn, "q", schema=schema, connections=1, timeout="5m", keep=1e9
            ) as keeping,
        ):
            return await use_everything(queue, keeping)

    read = []
    for at, to in ((1, SMALL), (SMALL + 1, LARGE)):
        for statement in fill(schema, at, to):
            found.execute(statement)
        found.execute(f"DELETE FROM {schema}.limit_groups WHERE kind = 'turns'")
        if statistics == "fresh":
            analyze(found, schema)
        read.append(asyncio.run(use()))
    more = grown(*read)
    assert not more, "\n".join(more)
