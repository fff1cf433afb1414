"""What the hot statements of SQLite cost: an index for each, and no growth with the backlog.

Cost is counted in steps of SQLite's virtual machine, so that the tests do not depend on the
machine they run on.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pollwise.queues.notes import NewNote
from pollwise.queues.sqlite import pages, store
from pollwise.queues.sqlite.limits import kinds as kinds_module
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.queues.sqlite.store import SqliteStore
from pollwise.queues.views import MEASURED_MAX, METERED_MAX, JobFilter
from pollwise.runtime.jobs import STATES, NewJob, Settlement
from pollwise.testing import VirtualClock
from pollwise.worker import measuring
from tests.support.sqlite_cost import Meter, plan_of

STATEMENTS = SqliteStore(Path("jobs.db"), "default", synchronous="off", create=False)._sql
#: Parts of statements.
NO_STATEMENTS = (
    "claim_arm", "with_error", "columns", "walk", "count_kinds", "chosen", "claim_group",
)  # fmt: skip


def sql_of(name: str) -> str:
    """A statement as it is run: the claims are put together from parts."""
    if name == "best_of_arms":
        return STATEMENTS[name].replace("{arms}", STATEMENTS["chosen"])
    if name not in ("claim", "claim_arm"):
        return STATEMENTS[name].replace("{narrow}", "").replace("{order}", "")
    arm = " UNION ALL ".join(STATEMENTS["claim_arm"].replace("{n}", n) for n in "012")
    return STATEMENTS["claim"].replace("{arms}", arm).replace("{more}", STATEMENTS["claim_group"])


@pytest.mark.parametrize("name", sorted({*STATEMENTS} - {*NO_STATEMENTS}))
def test_statements_use_an_index(name: str) -> None:
    plan = plan_of("pollwise.queues.sqlite", sql_of(name))
    scans = [step for step in plan if re.search(r"SCAN (pollwise_jobs|other)", step)]
    assert not scans, f"{name} reads the whole table: {plan}"
    if name.startswith(("walk", "count")):
        assert not [step for step in plan if "TEMP B-TREE" in step], f"{name} sorts: {plan}"


Backlog = Callable[[SqliteQueue, int], Awaitable[Any]]


async def behind_a_key(queue: SqliteQueue, count: int) -> None:
    await queue.put(NewJob("mine", key="blocked"))
    await queue.claim("other", 1, 1e5)
    await queue.put([NewJob("mine", key="blocked") for _ in range(count)])


async def of_other_kinds(queue: SqliteQueue, count: int) -> None:
    await queue.put([NewJob(f"other{n % 3}", priority=5) for n in range(count)])


async def delayed(queue: SqliteQueue, count: int) -> None:
    await queue.put([NewJob("mine", delay=1e6 + n) for n in range(count)])


async def leased(queue: SqliteQueue, count: int) -> None:
    await queue.put([NewJob("mine") for _ in range(count)])
    assert len(await queue.claim("other", count, 1e5)) == count


async def dead(queue: SqliteQueue, count: int) -> None:
    await queue.put([NewJob("mine") for _ in range(count)])
    claims = await queue.claim("other", count, 1e5)
    await queue.settle([Settlement.dead(claim, "broken") for claim in claims])


async def unique(queue: SqliteQueue, count: int) -> None:
    await queue.put([NewJob("other", unique=str(n)) for n in range(count)])


async def ready(queue: SqliteQueue, count: int) -> None:
    await queue.put([NewJob("mine", priority=-1) for _ in range(count)])


async def other_queues(queue: SqliteQueue, count: int) -> None:
    async with SqliteQueue(queue.path, "another", clock=queue.clock, synchronous="off") as other:
        await other.put([NewJob("mine", key=f"key{n % 5}") for n in range(count)])


BACKLOGS: list[Backlog] = [
    behind_a_key, of_other_kinds, delayed, leased, dead, unique, ready, other_queues,
]  # fmt: skip


async def costs(queue: SqliteQueue) -> dict[str, int]:
    """The steps of each call of a job's life."""
    meter, spent = Meter(), {}
    with meter.reading(queue._store.connect()):
        assert await queue.claim("w", 5, 60, kinds=["none"]) == []
    spent["empty claim"] = meter.steps
    jobs = [NewJob("mine", n, priority=9, key=f"own{n}", unique=f"own{n}") for n in range(4)]
    with meter.reading(queue._store.connect()):
        ids = await queue.put(jobs)
    spent["put"] = meter.steps
    with meter.reading(queue._store.connect()):
        assert await queue.put(jobs[:1]) == ids[:1]
    spent["put of a twin"] = meter.steps
    with meter.reading(queue._store.connect()):
        claims = await queue.claim("w", 4, 60, kinds=["mine", "none"])
    assert [claim.job.id for claim in claims] == ids
    spent["claim"] = meter.steps
    with meter.reading(queue._store.connect()):
        await queue.renew(claims, 60)
    spent["renew"] = meter.steps
    with meter.reading(queue._store.connect()):
        assert await queue.get(ids[0]) is not None
    spent["get"] = meter.steps
    for action, settlements in {
        "give back": [Settlement.give_back(claims[3])],
        "retry": [Settlement.retry(claims[2], 60, "again")],
        "done": [Settlement.done(claims[0])],
        "dead": [Settlement.dead(claims[1], "broken")],
    }.items():
        with meter.reading(queue._store.connect()):
            await queue.settle(settlements)
        spent[action] = meter.steps
    with meter.reading(queue._store.connect()):
        claims = await queue.claim("w", 1, 60)
    assert [claim.job.id for claim in claims] == ids[3:]
    spent["claim of any kind"] = meter.steps
    return spent


VIEWS = [
    *(JobFilter(state, limit=5) for state in (None, *STATES)),
    JobFilter(key="blocked"), JobFilter(error="none"), JobFilter(kinds=("none",)),
    JobFilter("dead", error="BROKEN", limit=5), JobFilter(older_than=1e9),
]  # fmt: skip


async def view_costs(queue: SqliteQueue) -> dict[str, int]:
    """The steps of each view: of a page, the first and the next one."""
    meter, spent = Meter(), {}
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "stats": partial(queue.stats, 50), "stats by kind": partial(queue.stats_by_kind, 100, 50),
        "names": queue.names,
    }  # fmt: skip
    for chosen in VIEWS:
        calls[f"{chosen}"] = partial(queue.page, chosen)
        after = (await queue.page(chosen)).next
        calls[f"{chosen}, next"] = partial(queue.page, replace(chosen, after=after))
    calls["drop"] = partial(queue.drop, JobFilter("dead", limit=5))
    calls["retry"] = partial(queue.retry, JobFilter("dead", limit=5))
    calls["cancel"] = partial(queue.cancel, JobFilter(limit=5))
    for name, call in calls.items():
        with meter.reading(queue._store.connect()):
            await call()
        spent[name] = meter.steps
    return spent


@pytest.mark.parametrize("backlog", BACKLOGS, ids=lambda backlog: backlog.__name__)
def test_views_cost_the_same_whatever_waits(
    tmp_path: Path, backlog: Backlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the limits, which are lower here, nothing more is read."""
    monkeypatch.setattr(pages, "EXAMINED_MAX", 50)
    monkeypatch.setattr(pages, "STEP", 25)
    monkeypatch.setattr(pages, "PAGE_TIME", 1e9)
    few = measure(tmp_path / "few.db", backlog, 300, view_costs)
    many = measure(tmp_path / "many.db", backlog, 1500, view_costs)
    grown = {name: (few[name], many[name]) for name in few if many[name] > 1.2 * few[name] + 200}
    assert not grown


Costs = Callable[[SqliteQueue], Awaitable[dict[str, int]]]


def measure(path: Path, backlog: Backlog, count: int, costs: Costs = costs) -> dict[str, int]:
    clock = VirtualClock()

    async def main() -> dict[str, int]:
        queue = SqliteQueue(path, clock=clock, synchronous="off")
        try:
            await queue.stats()
            await backlog(queue, count)
            return await costs(queue)
        finally:
            await queue.close()

    return clock.run(main())


@pytest.mark.parametrize("backlog", BACKLOGS, ids=lambda backlog: backlog.__name__)
def test_calls_do_not_cost_more_with_a_backlog(tmp_path: Path, backlog: Backlog) -> None:
    small = measure(tmp_path / "small.db", backlog, 20)
    large = measure(tmp_path / "large.db", backlog, 3000)
    grown = {call: (small[call], large[call]) for call in small if large[call] > small[call] * 1.2}
    assert not grown, f"steps with a backlog of 20 and of 3000: {grown}"


def test_a_key_costs_the_same_however_long_its_line(tmp_path: Path) -> None:
    async def main(count: int) -> dict[str, int]:
        queue = SqliteQueue(tmp_path / f"{count}.db", synchronous="off", clock=clock)
        meter, spent = Meter(), {}
        try:
            await queue.put([NewJob("mine", key="k") for _ in range(count)])
            with meter.reading(queue._store.connect()):
                await queue.put(NewJob("mine", key="k"))
            spent["put"] = meter.steps
            for action in (Settlement.done, lambda claim: Settlement.dead(claim, "broken")):
                with meter.reading(queue._store.connect()):
                    [claim] = await queue.claim("w", 5, 60)
                spent[f"claim {len(spent)}"] = meter.steps
                with meter.reading(queue._store.connect()):
                    await queue.settle([action(claim)])
                spent[f"settle {len(spent)}"] = meter.steps
            with meter.reading(queue._store.connect()):
                assert await queue.retry() == 1
            spent["retry"] = meter.steps
            return spent
        finally:
            await queue.close()

    clock = VirtualClock()
    small, large = clock.run(main(20)), clock.run(main(3000))
    grown = {call: (small[call], large[call]) for call in small if large[call] > small[call] * 1.2}
    assert not grown, f"steps with 20 and with 3000 jobs of a key: {grown}"


def test_a_claim_costs_in_proportion_to_what_it_gets(tmp_path: Path) -> None:
    async def main(size: int) -> tuple[int, int]:
        queue = SqliteQueue(tmp_path / f"{size}.db", synchronous="off", clock=clock)
        meter = Meter()
        try:
            await queue.put([NewJob("mine", n) for n in range(5000)])
            with meter.reading(queue._store.connect()):
                claims = await queue.claim("w", size, 60, kinds=["mine"])
            claimed = meter.steps
            with meter.reading(queue._store.connect()):
                await queue.settle([Settlement.done(claim) for claim in claims])
            return claimed, meter.steps
        finally:
            await queue.close()

    clock = VirtualClock()
    few, many = clock.run(main(50)), clock.run(main(2000))
    for call, one, other in zip(("claim", "settle"), few, many, strict=True):
        a_job, of_many = one / 50, other / 2000
        assert of_many < a_job * 1.5, (
            f"{call}: {a_job:.0f} steps a job of 50, {of_many:.0f} of 2000"
        )


def test_a_slice_of_a_prune_costs_no_more_with_a_backlog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PRUNE_SLICE", 10)
    clock, meter = VirtualClock(), Meter()

    async def steps(name: str, results: int, due: int) -> list[int]:
        async with SqliteQueue(
            tmp_path / f"{name}.db", "q", clock=clock, keep=5, synchronous="off"
        ) as queue:
            await queue.put([NewJob("x", unique=f"r{n}") for n in range(results)])
            claims = await queue.claim("w", results or 1, 60)
            await queue.settle([Settlement.done(each, 1, keep=1e6) for each in claims])
            await clock.sleep(1)
            await queue.cancel(await queue.put([NewJob("x") for _ in range(due)]))
            await clock.sleep(60)
            spent = []
            for _ in range(5):
                with meter.reading(queue._store.connect()):
                    assert await queue.prune() == 10
                spent.append(meter.steps)
            while await queue.prune() == 10:
                pass
            assert (await queue.stats()).done == results
            again = await queue.put([NewJob("x", unique=f"r{n}") for n in range(results)])
            assert len(await queue.jobs("ready", limit=1000)) == len(again), "their unique is free"
            return spent

    async def main() -> None:
        few, many = await steps("few", 0, 55), await steps("many", 0, 2000)
        kept = await steps("kept", 500, 2000)
        assert max(many) <= 1.1 * max(few)
        # Once at first, and once to look back.
        assert max(kept[2:]) <= 1.1 * max(few), "each slice begins at the first that stays"

    clock.run(main())


def test_a_claim_of_any_of_many_kinds_is_bounded(tmp_path: Path) -> None:
    clock, meter = VirtualClock(), Meter()

    async def steps(count: int) -> int:
        path = tmp_path / f"{count}.db"
        async with SqliteQueue(path, "q", clock=clock, synchronous="off") as queue:
            for at in range(0, count, 10_000):
                await queue.put([NewJob(f"k{n}") for n in range(at, min(at + 10_000, count))])
            with meter.reading(queue._store.connect()):
                assert len(await queue.claim("w", 5, 60)) == 5
            return meter.steps

    async def main() -> None:
        few, many = await steps(2_000), await steps(20_000)
        assert many <= 1.2 * few

    clock.run(main())


@pytest.mark.parametrize("named", [False, True])
def test_jobs_of_very_many_kinds_are_claimed_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    monkeypatch.setattr(kinds_module, "MOST_KINDS", 3)
    clock = VirtualClock()

    async def main() -> None:
        async with SqliteQueue(tmp_path / "jobs.db", "q", clock=clock, synchronous="off") as queue:
            names = [f"k{n % 10}" for n in range(40)]
            ids = await queue.put([NewJob(name, priority=-(n % 7)) for n, name in enumerate(names)])
            kinds = sorted(set(names)) if named else None
            order = sorted(range(40), key=lambda n: (n % 7, n))
            first = await queue.claim("w", 3, 60, kinds=kinds)
            assert [claim.job.id for claim in first] == [ids[n] for n in order[:3]]
            rest = await queue.claim("w", 100, 60, kinds=kinds)
            assert {claim.job.id for claim in rest} == {ids[n] for n in order[3:]}

    clock.run(main())


def test_claims_of_any_kind_come_to_all_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds_module, "KINDS_EXAMINED", 10)
    clock = VirtualClock()

    async def main() -> None:
        async with SqliteQueue(tmp_path / "jobs.db", "q", clock=clock, synchronous="off") as queue:
            await queue.put([NewJob(f"k{n}") for _ in range(50) for n in range(95)])
            found: set[str] = set()
            for _ in range(12):
                found |= {claim.job.kind for claim in await queue.claim("w", 100, 60)}
            assert len(found) == 95
            while claims := await queue.claim("w", 100, 60):
                found |= {claim.job.id for claim in claims}
            assert (await queue.stats()).ready == 0

    clock.run(main())


@pytest.mark.parametrize("state", ["ready", "delayed", "dead"])
def test_a_measurement_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """Metrics measure again and again, so they count up to some number only."""
    monkeypatch.setattr(measuring, "EXAMINED_BY_KIND", 100)
    monkeypatch.setattr(SqliteQueue, "measured_max", 400)
    clock, meter = VirtualClock(), Meter()
    assert METERED_MAX <= 50_000 < MEASURED_MAX

    async def steps(count: int) -> int:
        path = tmp_path / f"{count}.db"
        async with SqliteQueue(path, "q", clock=clock, synchronous="off") as queue:
            if state == "dead":
                await dead(queue, count)
            else:
                delay = 60 if state == "delayed" else 0
                await queue.put([NewJob(f"k{n % 5}", delay=delay) for n in range(count)])
            with meter.reading(queue._store.connect()):
                measured = await measuring.QueueMeasurer("q").measured(queue)
            assert sum(dict(each.counts)[state] for each in measured.kinds) >= 400
            return meter.steps

    async def main() -> None:
        few, many = await steps(2_500), await steps(9_500)
        assert many <= 1.2 * few

    clock.run(main())


def test_one_claim_takes_the_jobs_of_all_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds_module, "KINDS_EXAMINED", 10)
    monkeypatch.setattr(kinds_module, "MOST_KINDS", 3)
    clock = VirtualClock()

    async def main() -> None:
        async with SqliteQueue(tmp_path / "jobs.db", "q", clock=clock, synchronous="off") as queue:
            await queue.put([NewJob(f"k{n}") for n in range(95)])
            assert len(await queue.claim("w", 100, 60)) == 95

    clock.run(main())


def test_a_record_of_a_worker_is_written_without_the_others(tmp_path: Path) -> None:
    clock, meter = VirtualClock(), Meter()

    async def steps(workers: int) -> int:
        path = tmp_path / f"{workers}.db"
        async with SqliteQueue(path, "q", clock=clock, synchronous="off") as queue:
            rows = [("q", "workers", f"w{n}", "{}", 1e10) for n in range(workers)]
            connection = queue._store.connect()
            connection.executemany("INSERT INTO pollwise_notes VALUES (?, ?, ?, ?, ?)", rows)
            await queue._write_note(NewNote("workers", "mine", "1", 60))
            with meter.reading(connection):
                assert (await queue._write_note(NewNote("workers", "mine", "2", 60))).done
            return meter.steps

    async def main() -> None:
        few, many = await steps(100), await steps(5000)
        assert many <= 1.2 * few

    clock.run(main())
