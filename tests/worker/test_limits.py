"""Limits through tasks and workers: groups of jobs, what is set at the start, what is claimed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import pollwise
from pollwise import Concurrency, Rate
from pollwise.errors import ConfigError, HandlerError, JobError, PayloadError, Unsupported
from pollwise.queues.base import Queue
from pollwise.queues.capabilities import Capabilities
from pollwise.queues.limits.record import kind_limits
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import ChoreFailed, LimitsChanged
from pollwise.runtime.jobs import Job, NewJob
from pollwise.worker import Worker
from tests.support.kit import Seen, make_queue, options, virtually

STORES = ("memory", "sqlite")


class Size(Enum):
    SMALL = "small"
    TWO = 2


# The group of a job


@pytest.mark.parametrize(
    ("hint", "value", "group"),
    [
        (str, "acme", "acme"),
        (int, 7, "7"),
        (bool, True, "true"),
        (UUID, UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Size, Size.SMALL, "small"),
        (Size, Size.TWO, "2"),
        (date, date(2026, 7, 1), "2026-07-01"),
        (str | None, None, None),
        (str, "", None),
    ],
)
@pytest.mark.parametrize("by_default", [False, True])
def test_the_group_is_the_value_of_the_argument(
    hint: Any, value: Any, group: str | None, by_default: bool
) -> None:
    worker = Worker("memory://")

    async def send(to: str = "x", tenant: Any = value) -> None: ...

    send.__annotations__["tenant"] = hint
    task = worker.task(limit=Concurrency(5, by="tenant"))(send)
    assert (task.job() if by_default else task.job(tenant=value)).limit_group == group


def test_a_value_that_is_no_group_is_refused() -> None:
    worker = Worker("memory://")

    @worker.task(fair_by="sizes")
    async def send(sizes: Any) -> None: ...

    with pytest.raises(PayloadError, match=r"'sizes' of the task 'send' .* value is \[1, 2\]"):
        send.job([1, 2])
    with pytest.raises(PayloadError, match=r"value is 1\.5"):
        send.job(1.5)
    with pytest.raises(JobError, match=r"limit_group = .* has 201 characters"):
        send.job("x" * 201)


def test_options_name_another_group() -> None:
    worker = Worker("memory://")

    @worker.task(limit=Rate(100, per="1m", by="tenant"))
    async def send(tenant: str) -> None: ...

    assert send.options(limit_group="b").job("a").limit_group == "b"
    assert send.options(key="k").job("a").limit_group == "a"
    with pytest.raises(PayloadError, match=r"given as \.options\(limit_group=…\)"):
        send.job("a", limit_group="b")  # type: ignore[call-arg]


def test_a_task_by_its_name_has_the_same_group() -> None:
    ref = pollwise.task_ref("send", "memory://", limit_by="tenant")
    assert ref.job(tenant="acme", to="x").limit_group == "acme"
    assert ref.job(tenant=UUID(int=5)).limit_group == str(UUID(int=5))
    assert ref.job(tenant=None).limit_group is None
    assert ref.options(limit_group="b", priority=2).job().limit_group == "b"
    with pytest.raises(PayloadError, match="limited by its argument 'tenant': give it"):
        ref.job(to="x")


def test_the_job_of_a_schedule_has_its_group() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock, keep="1d")
        worker = Worker(queue, events=Seen().events)
        groups = []

        @worker.schedule(every="1h", args={"tenant": "acme"})
        @worker.task(limit=Concurrency(1, by="tenant"))
        async def tidy(tenant: str) -> None:
            [use] = await queue.limits.use("tidy")
            groups.extend([each.group for each in use.groups if each.running])

        async with worker.running():
            await clock.advance(5000)
        assert groups == ["acme"]

    virtually(main)


# Declarations


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"limit": Concurrency(5, by="tenent")}, "by 'tenent', .* it has tenant, size"),
        ({"fair_by": "job"}, "by 'job', which is not an argument"),
        ({"limit": Concurrency(5, by="tenant"), "fair_by": "size"}, "several arguments"),
        ({"limit": 5}, "limit = 5 must be a Rate or a Concurrency"),
        ({"limit": "100/1m"}, "limit = '100/1m' must be a Rate or a Concurrency"),
        ({"weights": {"acme": 3}}, "has no limit"),
        ({"fair_by": "tenant", "weights": ["acme"]}, r"weights = \['acme'\] must be groups"),
        ({"limit": Concurrency(5), "weights": {"acme": 3}}, "no effect without groups"),
    ],
)
def test_wrong_limits_are_refused_at_the_declaration(given: dict[str, Any], told: str) -> None:
    worker = Worker("memory://")

    async def send(job: Job, tenant: str, size: int = 1) -> None: ...

    with pytest.raises((HandlerError, ConfigError), match=told):
        worker.task(**given)(send)
    assert worker.kinds == ()


def test_a_store_that_cannot_keep_limits_refuses_at_the_start() -> None:
    class Unlimited(MemoryQueue):
        capabilities = Capabilities(long_poll=True, limits=False)

    async def main(clock: VirtualClock) -> None:
        worker = Worker(Unlimited(clock=clock))
        worker.handle("send", limit=Concurrency(5))(lambda job: None)
        with pytest.raises(Unsupported, match="cannot keep limits: it cannot count the jobs"):
            await worker.run(options())

    virtually(main)


# What a worker sets


def worker_with(queue: Queue, seen: Seen, name: str, **limits: Any) -> Worker:
    worker = Worker(queue, options(), name=name, events=seen.events)

    @worker.task("send", **limits)
    async def send(tenant: str = "") -> None: ...

    return worker


@pytest.mark.parametrize("store", STORES)
def test_the_worker_that_starts_last_sets_the_limits(store: str, tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        async with make_queue(store, tmp_path, clock) as queue:
            seen = Seen()
            await queue.limits.set("other", Concurrency(1))
            stated: list[tuple[str, dict[str, Any]]] = [
                ("a", {"limit": Concurrency(5)}),
                ("b", {"limit": Concurrency(5)}),  # the same: nothing is written
                ("c", {"limit": Rate(100, by="tenant"), "weights": {"acme": 3}}),
                ("d", {}),
            ]
            for name, limits in stated:
                async with worker_with(queue, seen, name, **limits).running():
                    await clock.advance(1)
                kept = {each.kind: each for each in await queue.limits.list()}
                assert kept.pop("other").origin == "calls"
                limit = limits.pop("limit", None)
                wanted = limit and kind_limits("send", limit, **limits)
                assert wanted is None or wanted.same_as(kept["send"])
                assert [each.origin for each in kept.values()] == ["code"] * bool(wanted)
            changes = [(each.worker, each.kind, each.change) for each in seen.of(LimitsChanged)]
            assert changes == [("a", "send", "set"), ("c", "send", "set"), ("d", "send", "removed")]
            assert seen.of(LimitsChanged)[0].limits == "5 at a time"

    virtually(main)


def test_limits_that_somebody_set_stay_unless_the_code_has_others() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, seen = MemoryQueue(clock=clock), Seen()
        await queue.limits.set("send", Concurrency(2))
        async with worker_with(queue, seen, "a").running():
            await clock.advance(1)
        [kept] = await queue.limits.list()
        assert (kept.most, kept.origin) == (2, "calls")
        async with worker_with(queue, seen, "b", limit=Concurrency(2)).running():
            await clock.advance(1)
        [kept] = await queue.limits.list()
        assert kept.origin == "code"  # so that it goes when the code has none

    virtually(main)


def test_nothing_is_claimed_before_the_limits_are_set() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, seen = MemoryQueue(clock=clock), Seen()
        await queue.put([NewJob("send", {}) for _ in range(20)])
        most, running = 0, 0
        worker = Worker(queue, options(concurrency=20), events=seen.events)

        @worker.task(limit=Concurrency(3))
        async def send() -> None:
            nonlocal most, running
            running += 1
            most = max(most, running)
            await asyncio.sleep(1)
            running -= 1

        async with worker.running():
            await clock.advance(60)
        assert most == 3
        assert (await queue.stats()).ready == 0
        assert not seen.of(ChoreFailed)

    virtually(main)


# What a worker claims


async def settled_down(clock: VirtualClock) -> None:
    await clock.advance(5)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("prefetch", [None, 0, 50])
def test_kinds_with_limits_are_claimed_for_free_handlers_only(
    store: str, prefetch: int | None, tmp_path: Path
) -> None:
    async def main(clock: VirtualClock) -> None:
        async with make_queue(store, tmp_path, clock) as queue:
            worker = Worker(queue, options(concurrency=4, prefetch=prefetch), events=Seen().events)
            end = asyncio.Event()

            @worker.task(limit=Concurrency(30))
            async def limited() -> None:
                await end.wait()

            @worker.task
            async def plain() -> None:
                await end.wait()

            await queue.put([limited.job() for _ in range(30)])
            await queue.put([plain.job() for _ in range(30)])
            async with worker.running():
                await settled_down(clock)
                leased = Counter(info.job.kind for info in await queue.jobs("leased"))
                assert leased == {"limited": 4}  # nothing waits here, also not of the other kind
                end.set()
                await clock.advance(60)
            assert (await queue.stats()).ready == 0

    virtually(main)


def test_other_kinds_are_claimed_ahead_while_a_limit_is_used_up() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        worker = Worker(queue, options(concurrency=4, prefetch=10), events=Seen().events)
        end = asyncio.Event()

        @worker.task(limit=Concurrency(1))
        async def limited() -> None:
            await end.wait()

        @worker.task
        async def plain() -> None:
            await end.wait()

        await queue.put([limited.job() for _ in range(30)])
        await queue.put([plain.job() for _ in range(30)])
        async with worker.running():
            await settled_down(clock)
            leased = Counter(info.job.kind for info in await queue.jobs("leased"))
            assert leased["limited"] == 1
            assert leased["plain"] >= 3
            end.set()
            await clock.advance(60)
        assert (await queue.stats()).ready == 0

    virtually(main)


@pytest.mark.parametrize(
    ("took", "prefetch", "waits"), [(0.001, None, True), (0.001, 50, False), (0.1, None, False)]
)
def test_short_runs_of_limited_kinds_are_claimed_ahead(
    took: float, prefetch: int | None, waits: bool
) -> None:
    """Then a claim takes longer than they would wait."""

    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        worker = Worker(queue, options(concurrency=2, prefetch=prefetch), events=Seen().events)
        leased: list[int] = []

        @worker.task(limit=Concurrency(100))
        async def limited() -> None:
            await asyncio.sleep(took)
            leased.append((await queue.stats()).leased)

        await queue.put([limited.job() for _ in range(200)])
        async with worker.running():
            await clock.advance(60)
        assert len(leased) == 200
        assert (2 < max(leased) <= 24) if waits else max(leased) == 2

    virtually(main)


def test_a_run_that_takes_long_ends_claims_ahead_and_other_limited_kinds_get_their_turn() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        worker = Worker(queue, options(concurrency=2), events=Seen().events)
        began: list[float] = []
        slow = False

        @worker.task(limit=Concurrency(100))
        async def short() -> None:
            await asyncio.sleep(1 if slow else 0.001)

        @worker.task(limit=Concurrency(100))
        async def long() -> None:
            began.append(clock.now())
            await asyncio.sleep(2)

        for _ in range(2):
            await queue.put([short.job() for _ in range(5000)])
        async with worker.running():
            await clock.advance(1)
            asked = clock.now()
            await queue.put([long.options(priority=1).job() for _ in range(2)])
            await clock.advance(1)
            assert len(began) == 2
            assert max(began) - asked < 0.5
            slow = True
            await clock.advance(40)
            assert (await queue.stats()).leased == 2

    virtually(main)


def test_a_backlog_of_another_kind_does_not_keep_limited_jobs_waiting() -> None:
    """What is claimed ahead is worked off first, and then the next free handler is for the jobs
    that are first in the store."""

    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        worker = Worker(queue, options(concurrency=2), events=Seen().events)
        began: list[float] = []

        @worker.task(limit=Concurrency(2))
        async def limited() -> None:
            began.append(clock.now())

        @worker.task
        async def plain() -> None:
            await asyncio.sleep(0.001)

        for _ in range(3):
            await queue.put([plain.job() for _ in range(10_000)])
        async with worker.running():
            await clock.advance(2)
            asked = clock.now()
            await queue.put([limited.options(priority=1).job() for _ in range(10)])
            await clock.advance(3)
            assert len(began) == 10
            assert max(began) - asked < 1.5
            assert (await queue.stats(30_000)).ready > 1000  # the backlog is still there

    virtually(main)


def test_a_rate_is_kept_by_workers_and_neither_polls_for_single_starts() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        began: list[float] = []

        async def call() -> None:
            began.append(clock.now())

        workers = [Worker(queue, options(), name=name, events=Seen().events) for name in "ab"]
        tasks = [worker.task(limit=Rate(600, per="1m"))(call) for worker in workers]
        await queue.put([tasks[0].job() for _ in range(3000)])
        async with workers[0].running(), workers[1].running():
            await clock.advance(180)
        whole = Counter(int((at - began[0]) // 60) for at in began)
        assert all(abs(whole[minute] - 600) <= 30 for minute in range(3)), whole

    virtually(main)


def test_groups_take_turns() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        worker = Worker(queue, options(concurrency=1, prefetch=0), events=Seen().events)
        order: list[str] = []

        @worker.task(fair_by="tenant", weights={"b": 2})
        async def send(tenant: str) -> None:
            order.append(tenant)

        await queue.put([send.job("hot") for _ in range(500)])
        await queue.put([send.job(tenant) for tenant in ("a", "b") for _ in range(10)])
        async with worker.running():
            await clock.advance(30)
        assert len(order) == 520
        assert max(i for i, tenant in enumerate(order) if tenant == "a") < 50
        assert max(i for i, tenant in enumerate(order) if tenant == "b") < 30

    virtually(main)


def test_a_single_run_leaves_what_a_rate_does_not_allow() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        worker = Worker(queue, events=Seen().events)

        @worker.task(limit=Rate(10, per="1h", burst=4))
        async def call() -> None: ...

        await queue.put([call.job() for _ in range(9)])
        summary = await worker.run_once(options())
        assert (summary.done, summary.runs, summary.limited) == (4, 4, {"call": 5})
        assert str(summary).endswith("0 lost; 5 wait for a limit (call)")
        assert (await queue.stats()).ready == 5

    virtually(main)


def test_a_single_run_waits_for_places_of_a_concurrency() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        worker = Worker(queue, events=Seen().events)

        @worker.task(limit=Concurrency(2))
        async def call() -> None:
            await asyncio.sleep(1)

        await queue.put([call.job() for _ in range(9)])
        summary = await worker.run_once(options())
        assert (summary.done, summary.limited) == (9, {})

    virtually(main)


def test_handlers_state_limits_too() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock)
        worker = Worker(queue, options(concurrency=10), events=Seen().events)
        most, running = Counter[str](), Counter[str]()

        @worker.handle("send", limit=[Concurrency(5), Concurrency(2, by="tenant")])
        async def send(job: Job) -> None:
            running[job.payload] += 1
            most[job.payload] = max(most[job.payload], running[job.payload])
            await asyncio.sleep(1)
            running[job.payload] -= 1

        await queue.put(
            [NewJob("send", group, limit_group=group) for group in "abcd" for _ in range(6)]
        )
        async with worker.running():
            await clock.advance(60)
        assert most == dict.fromkeys("abcd", 2)
        assert (await queue.stats()).ready == 0

    virtually(main)


@pytest.fixture
def refused() -> Callable[..., Any]:
    async def refuse(*_: object) -> Any:
        raise pollwise.errors.StoreError("the token does not allow this")

    return refuse


def test_limits_that_cannot_be_set_are_mentioned_and_jobs_run(
    refused: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(clock: VirtualClock) -> None:
        queue, seen = MemoryQueue(clock=clock), Seen()
        monkeypatch.setattr(queue.limits, "keep", refused)
        worker = worker_with(queue, seen, "a", limit=Concurrency(1))
        await queue.put(NewJob("send", {}))
        async with worker.running():
            await clock.advance(1)
        [failed] = seen.of(ChoreFailed)
        assert failed.chore == "limits"
        assert failed.error.endswith("the token does not allow this")
        assert (await queue.stats()).ready == 0

    virtually(main)


def test_code_without_an_event_loop_sets_and_sees_limits(tmp_path: Path) -> None:
    with pollwise.open_sync(f"sqlite:///{tmp_path}/jobs.db") as queue:
        made = queue.limits.set("send", Concurrency(5, by="tenant"))
        queue.put([NewJob("send", limit_group="acme"), NewJob("send", limit_group="tiny")])
        assert queue.limits.list() == [made]
        [use] = queue.limits.use("send", groups=1)
        assert (use.waiting, len(use.groups)) == (2, 1)
        assert queue.limits.remove("send")
        assert queue.limits.use() == []
