"""What limits cost on SQLite, in steps of its virtual machine: the same on every machine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pollwise.queues.limits.plan import Line
from pollwise.queues.limits.record import Concurrency, Limit, Rate
from pollwise.queues.memory.limits import LimitedKind
from pollwise.queues.memory.queue import MemoryQueue
from pollwise.queues.sqlite.limits.claims import SWEPT_AT_ONCE
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.jobs import NewJob, Settlement
from pollwise.testing import VirtualClock
from tests.support.sqlite_cost import Meter

LIMITS: dict[str, tuple[list[Limit], dict[str, Any]]] = {
    "fair": ([], {"fair_by": "tenant"}),
    "number": ([Concurrency(50)], {}),
    "number for each": ([Concurrency(9, by="tenant")], {}),
    "rate": ([Rate(5000, burst=5000)], {}),
    "rate for each": ([Rate(5000, by="tenant", burst=5000)], {}),
}


def hot(count: int) -> list[NewJob]:
    return [NewJob("job", limit_group="hot") for _ in range(count)]


def measure(path: Path, count: int, limits: list[Limit], options: Mapping[str, Any]) -> list[int]:
    """The steps of some claims and settlements while a group has this many jobs."""
    clock = VirtualClock()

    async def main() -> list[int]:
        queue = SqliteQueue(path, clock=clock, synchronous="off")
        meter, spent = Meter(), []
        try:
            await queue.limits.set("job", limits, **options)
            await queue.put(hot(count))
            await queue.put([NewJob("job", limit_group=g) for g in "abcdef" for _ in range(9)])
            for _ in range(2 * count // SWEPT_AT_ONCE + 2):  # the new jobs are examined
                await queue.settle([Settlement.done(c) for c in await queue.claim("w", 1, 60)])
            for _ in range(3):
                with meter.reading(queue._store.connect()):
                    claims = await queue.claim("w", 5, 60, kinds=["job", "none"])
                assert len(claims) == 5
                spent.append(meter.steps)
                with meter.reading(queue._store.connect()):
                    await queue.settle([Settlement.done(claim) for claim in claims])
                spent.append(meter.steps)
            return spent
        finally:
            await queue.close()

    return clock.run(main())


@pytest.mark.parametrize("limits", LIMITS)
def test_a_claim_costs_the_same_however_many_jobs_a_group_has(tmp_path: Path, limits: str) -> None:
    few = measure(tmp_path / "few.db", 40, *LIMITS[limits])
    many = measure(tmp_path / "many.db", 3000, *LIMITS[limits])
    assert all(two <= 1.2 * one + 50 for one, two in zip(few, many, strict=True)), (few, many)


def test_other_kinds_pay_nothing(tmp_path: Path) -> None:
    async def main(name: str) -> dict[str, int]:
        queue = SqliteQueue(tmp_path / f"{name}.db", synchronous="off", clock=clock)
        meter, spent = Meter(), {}
        try:
            await queue.put([NewJob("plain", n) for n in range(5)])
            if name == "limited":
                await queue.limits.set("job", Concurrency(1, by="tenant"))
                await queue.put(hot(500))
            calls: dict[str, Callable[[], Awaitable[Any]]] = {
                "put": lambda: queue.put(NewJob("plain")),
                "claim": lambda: queue.claim("w", 5, 60, kinds=["plain"]),
                "claim of nothing": lambda: queue.claim("w", 5, 60, kinds=["none"]),
            }
            for call, made in calls.items():
                with meter.reading(queue._store.connect()):
                    await made()
                spent[call] = meter.steps
            return spent
        finally:
            await queue.close()

    clock = VirtualClock()
    without, beside = clock.run(main("free")), clock.run(main("limited"))
    grown = {
        call: (without[call], beside[call])
        for call in without
        if beside[call] > 1.1 * without[call]
    }
    assert not grown, f"steps without limits, and beside them: {grown}"


def test_the_put_of_a_plain_job_runs_no_trigger(tmp_path: Path) -> None:
    """A trigger on INSERT, even one that is not entered, makes each put slower by a third."""

    async def main() -> None:
        queue = SqliteQueue(tmp_path / "q.db", synchronous="off", clock=clock)
        try:
            await queue.put(NewJob("plain"))
            store = queue._store
            explain = "EXPLAIN " + store._sql["put"]
            steps = store.connect().execute(explain, store._values(NewJob("plain"), 0.0)).fetchall()
            assert "Insert" in {step[1] for step in steps}
            assert "Program" not in {step[1] for step in steps}
        finally:
            await queue.close()

    clock = VirtualClock()
    clock.run(main())


def idle(path: Path, full: int, limit: Limit) -> list[int]:
    """The steps of claims while this many groups wait and are full: without a job to start, and
    when one group is free; and of the settlement of that job."""
    clock = VirtualClock()

    async def main() -> list[int]:
        queue = SqliteQueue(path, clock=clock, synchronous="off")
        meter, spent = Meter(), []
        try:
            await queue.limits.set("job", limit)
            names = [f"tenant {n:05}" for n in range(full)]
            await queue.put([NewJob("job", limit_group=name) for name in names for _ in range(2)])
            while await queue.claim("w", 1000, 60):
                pass
            for free in (None, "a", "z"):
                if free:
                    await queue.put(NewJob("job", limit_group=free))
                with meter.reading(queue._store.connect()):
                    claims = await queue.claim("w", 5, 60)
                assert len(claims) == bool(free)
                spent.append(meter.steps)
                with meter.reading(queue._store.connect()):
                    await queue.settle([Settlement.done(claim) for claim in claims])
                spent.append(meter.steps)
            return spent
        finally:
            await queue.close()

    return clock.run(main())


@pytest.mark.parametrize(
    "limit", [Concurrency(1, by="tenant"), Rate(1, 900, by="tenant")], ids=["number", "rate"]
)
def test_full_groups_cost_a_claim_nothing(tmp_path: Path, limit: Limit) -> None:
    few, many = idle(tmp_path / "few.db", 20, limit), idle(tmp_path / "many.db", 3000, limit)
    assert all(two <= 1.2 * one + 50 for one, two in zip(few, many, strict=True)), (few, many)


def test_full_groups_cost_a_claim_in_memory_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    examined: list[str] = []
    line = LimitedKind._line

    def counted(kind: LimitedKind, group: str) -> Line:
        examined.append(group)
        return line(kind, group)

    monkeypatch.setattr(LimitedKind, "_line", counted)

    async def main() -> None:
        queue = MemoryQueue(clock=clock)
        await queue.limits.set("job", Concurrency(1, by="tenant"))
        names = [f"tenant {n}" for n in range(3000)]
        await queue.put([NewJob("job", limit_group=name) for name in names for _ in range(2)])
        while await queue.claim("w", 500, 60):
            pass
        examined.clear()
        assert await queue.claim("w", 500, 60) == []
        assert examined == []
        await queue.put(NewJob("job", limit_group="free"))
        [claim] = await queue.claim("w", 500, 60)
        await queue.settle([Settlement.done(claim)])
        assert await queue.claim("w", 500, 60) == []
        assert examined == ["free"]

    clock = VirtualClock()
    clock.run(main())
