"""Every queue keeps the contract; and the suite notices when one does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from pollwise.queues.base import ClaimRequest, Queue
from pollwise.queues.capabilities import Capabilities
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.jobs import NewJob, Settlement
from pollwise.testing import VirtualClock, conformance
from pollwise.testing.conformance import CHECKS, Bench, Check, exercise, name_of, run
from tests.queues.benches import MemoryBench, PostgresBench, RedisBench, SqliteBench
from tests.support.servers import Postgres

#: What travels between sockets takes real time, which the virtual clock would jump over.
IN_REAL_TIME = ("put_elsewhere_ends_a_pause", "cancel_elsewhere_is_broadcast")


STORES = ("memory", "sqlite", "redis", "redis_oldest", "postgres", "postgres_oldest")


@pytest.fixture
def make_bench(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[VirtualClock], Bench]:
    if request.param == "memory":
        return MemoryBench
    if request.param == "sqlite":
        return lambda clock: SqliteBench(clock, tmp_path / "jobs.db")
    server = request.getfixturevalue(request.param)
    if isinstance(server, Postgres):
        return lambda clock: PostgresBench(clock, server.dsn())
    return lambda clock: RedisBench(clock, server.url())


def cases() -> Iterator[Any]:
    """Each store and check. Of the oldest servers, one check in three; `make soak` runs all."""
    for store in STORES:
        for n, check in enumerate(CHECKS):
            rare = pytest.mark.soak if store.endswith("oldest") and n % 3 else ()
            yield pytest.param(store, check, id=f"{store}-{name_of(check)}", marks=rare)


@pytest.mark.parametrize(("make_bench", "check"), [*cases()], indirect=["make_bench"])
def test_contract(make_bench: Callable[[VirtualClock], Bench], check: Check) -> None:
    clock = VirtualClock()
    bench = make_bench(clock)
    if name_of(check) in IN_REAL_TIME and isinstance(bench, (RedisBench, PostgresBench)):
        asyncio.run(run(check, bench.in_real_time()))
    else:
        clock.run(run(check, bench))


def test_exercise_reports_on_every_check() -> None:
    clock = VirtualClock()
    report = clock.run(exercise(lambda: MemoryBench(clock)))
    assert report.ok, report
    assert len(report.passed) + len(report.skipped) == len(CHECKS)
    assert set(report.skipped) == {
        "what_a_store_cannot_do_is_refused",
        "flows_are_refused_where_there_are_none",
        "put_elsewhere_ends_a_pause",
        "cancel_elsewhere_is_broadcast",
    }


def test_every_check_says_what_it_checks() -> None:
    assert len({name_of(check) for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        first = (check.__doc__ or "").strip()
        assert first.endswith("."), f"{check.__name__} says in one sentence which clause it is"


class Modest(MemoryQueue):
    """Denies all that can be denied."""

    capabilities = Capabilities(
        **{f.name: False for f in fields(Capabilities) if f.type == "bool"}, hints="none"
    )


def test_a_queue_that_denies_everything_is_asked_for_the_rest() -> None:
    class ModestBench(MemoryBench):
        async def queue(self, **options: Any) -> Queue:
            self._queue = self._queue or self.keep(Modest(clock=self.clock, **options))
            return self._queue

    clock = VirtualClock()
    report = clock.run(exercise(lambda: ModestBench(clock)))
    # `get` is each store's own to refuse; this one can.
    assert set(report.failed) <= {"what_a_store_cannot_do_is_refused"}, report
    for name in ("put_claim_settle", "lease_runs_out", "retry_waits", "give_back", "retry_some"):
        assert name in report.passed


# Queues that break the contract in one way each, and a check that must notice.


class Unfenced(MemoryQueue):
    """Any token fits."""

    def _held(self, claim: Any) -> Any:
        record = self._records.get(int(claim.job.id))
        return record if record and record.state in ("leased", "ready") else None


class LastInFirstOut(MemoryQueue):
    async def _claim(self, asked: ClaimRequest) -> Any:
        return list(reversed(await super()._claim(asked)))


class Greedy(MemoryQueue):
    """Takes one more than the limit."""

    async def _claim(self, asked: ClaimRequest) -> Any:
        return await super()._claim(replace(asked, limit=asked.limit + 1))


class HalfPut(MemoryQueue):
    """Puts one by one, so that a conflict leaves a part behind."""

    async def _put(self, jobs: list[NewJob]) -> tuple[list[str], int]:
        parts = [await super(HalfPut, self)._put([job]) for job in jobs]
        return [job_id for [job_id], _ in parts], sum(fresh for _, fresh in parts)


class Keyless(MemoryQueue):
    """Forgets keys, so that they run in parallel."""

    def _enter(self, record: Any, now: float) -> None:
        record.key = None
        super()._enter(record, now)


class Strict(MemoryQueue):
    """Counts a give-back as an attempt."""

    async def _settle(self, settlements: list[Settlement]) -> list[str]:
        return await super()._settle(
            [replace(s, action="retry") if s.action == "give_back" else s for s in settlements]
        )


class Deaf(MemoryQueue):
    """Tells nobody about a put."""

    def _give_hints(self, count: int, kinds: Iterable[str] | None = None) -> None:
        pass


class Loud(MemoryQueue):
    """Wakes everybody."""

    def _give_hints(self, count: int, kinds: Iterable[str] | None = None) -> None:
        super()._give_hints(100)


class Stranding(MemoryQueue):
    """Waits after it has claimed, and forgets what it holds when it is cancelled there."""

    async def _claim(self, *args: Any) -> Any:
        claims = await super()._claim(*args)
        await asyncio.sleep(0)
        return claims


class Silent(MemoryQueue):
    """Settles what it can and keeps quiet about the rest."""

    async def _settle(self, settlements: list[Settlement]) -> list[str]:
        await super()._settle(settlements)
        return []


class Immortal(MemoryQueue):
    """Redrives without fresh attempts."""

    async def _retry(self, ids: Any) -> int:
        attempts = {record.seq: record.attempt for record in self._ended(ids, ("dead",))}
        count = await super()._retry(ids)
        for seq, attempt in attempts.items():
            self._records[seq].attempt = attempt
        return count


class Unlimited(MemoryQueue):
    """Keeps limits, and does not look at them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._limits.sync = lambda: False  # type: ignore[method-assign]


class Unfair(MemoryQueue):
    """Always begins with the first group."""

    async def _claim(self, asked: ClaimRequest) -> Any:
        for kind in self._limits.kinds.values():
            kind.use.turn, kind.use.left = "", 0
        return await super()._claim(asked)


BROKEN: dict[type[MemoryQueue], str] = {
    Unfenced: "late_settle_is_refused",
    LastInFirstOut: "first_in_first_out",
    Greedy: "claim_limit",
    HalfPut: "unique_conflict_in_a_batch",
    Keyless: "key_one_at_a_time",
    Strict: "give_back_does_not_count",
    Deaf: "put_ends_a_pause",
    Loud: "a_herd_is_not_woken",
    Stranding: "cancelled_claim_claims_nothing",
    Silent: "lost_names_the_refused",
    Immortal: "retry_all",
    Unlimited: "limit_of_jobs_at_a_time",
    Unfair: "turns_go_on_with_the_next_claim",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_queue_is_noticed(
    broken: type[MemoryQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    [check] = [each for each in CHECKS if name_of(each) == BROKEN[broken]]
    monkeypatch.setattr(conformance, "CHECKS", [check])

    class BrokenBench(MemoryBench):
        async def queue(self, **options: Any) -> Queue:
            self._queue = self._queue or self.keep(broken(clock=self.clock, **options))
            return self._queue

    clock = VirtualClock()
    report = clock.run(exercise(lambda: BrokenBench(clock)))
    assert BROKEN[broken] in report.failed, report
    assert f"FAILED {BROKEN[broken]}" in str(report)
    message = str(report.failed[BROKEN[broken]])
    assert len(message) > 20, f"the failure says too little: {message!r}"
