"""The pytest plugin: its fixtures are there in this run too, because Pollwise is installed."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import pollwise
from pollwise import Job, NewJob, Rate, Reject, Retry, Worker, from_context, task_ref
from pollwise.errors import ConfigError, JobFailed
from pollwise.testing import RecordingQueue, SteppedClock, WorkerTesters
from tests.worker.children import cpu

#: As programs have it: made with the URL of a store that a test cannot reach.
worker = Worker("postgresql://nowhere.invalid/shop")
ran: list[Any] = []


@worker.context
async def shared() -> AsyncIterator[str]:
    yield "shared"


@worker.task(retry=Retry.fixed("10m", attempts=3))
async def charge(order: UUID, amount: int = 1, context: str = from_context) -> str:
    ran.append((order, amount, context))
    if amount < 0:
        raise ValueError("negative")
    if amount > 100:
        raise Reject("too much")
    await mail.put(order=order)
    return "charged"


@worker.task
def mail(order: UUID) -> None:
    ran.append(order)


@worker.task
def summed(charges: list[str]) -> str:
    return ", ".join(charges)


@worker.task
def told(error: str) -> None:
    ran.append(error)


@worker.handle("again")
async def again(job: Job) -> None:
    await worker.queue_for_puts().put(NewJob("again", delay=job.payload or 0))


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


ORDER = UUID(int=7)


def test_a_sync_test_puts_runs_and_asserts(
    pollwise_queue: RecordingQueue, pollwise_worker: WorkerTesters
) -> None:
    shop = pollwise_worker(worker)
    job = charge.put_sync(ORDER, amount=5)
    pollwise_queue.assert_put(charge, order=ORDER)
    put = pollwise_queue.assert_put("charge", amount=5)
    assert put.id == job.id
    pollwise_queue.assert_not_put(mail)
    assert ran == []
    summary = shop.run_all_sync()
    assert summary.done == 2  # the charge, and the mail that it put
    assert ran == [(ORDER, 5, "shared"), ORDER]
    assert job.result("1s") == "charged"
    assert [each.job.payload for each in pollwise_queue.puts_of(mail)] == [{"order": str(ORDER)}]
    with pytest.raises(AssertionError, match=r"no job was put as charge\(amount=6\); 2 were put: "):
        pollwise_queue.assert_put(charge, amount=6)
    with pytest.raises(AssertionError, match=r"a job was put as mail\(\); 2 were put"):
        pollwise_queue.assert_not_put(mail)


def test_a_queue_that_nothing_uses_says_so(pollwise_queue: RecordingQueue) -> None:
    with pytest.raises(AssertionError, match=r"nothing was put here; `pollwise_worker\("):
        pollwise_queue.assert_put(charge)


def test_a_test_with_an_event_loop_awaits(
    pollwise_queue: RecordingQueue, pollwise_worker: WorkerTesters, virtual_clock: SteppedClock
) -> None:
    async def main() -> None:
        shop = pollwise_worker(worker)
        began = virtual_clock.epoch()
        await charge.options(delay="2h").put(ORDER)
        assert (await shop.run_all()).done == 0
        assert (await shop.run_all(delayed=True)).done == 2
        assert virtual_clock.epoch() == began + 7200
        await virtual_clock.advance("1m")
        assert virtual_clock.epoch() == began + 7260
        with pytest.raises(ConfigError, match="this test has an event loop"):
            shop.run_all_sync()

    asyncio.run(main())


def test_errors_of_handlers_are_raised_unless_they_are_expected(
    pollwise_queue: RecordingQueue, pollwise_worker: WorkerTesters, virtual_clock: SteppedClock
) -> None:
    shop = pollwise_worker(worker)
    charge.put_sync(ORDER, -1)
    with pytest.raises(ValueError, match="negative"):
        shop.run_all_sync()
    assert shop.run_all_sync().failed == 0  # its retry is due in ten minutes
    virtual_clock.skip("10m")
    assert shop.run_all_sync(raises=False).retried == 1
    summary = shop.run_all_sync(delayed=True, raises=False)
    assert (summary.retried, summary.dead, len(ran)) == (0, 1, 3)
    charge.put_sync(ORDER, 101)
    assert shop.run_all_sync().dead == 1  # a Reject is meant


def test_time_goes_on_from_run_to_run(
    virtual_clock: SteppedClock, pollwise_worker: WorkerTesters
) -> None:
    began = virtual_clock.epoch()
    virtual_clock.run(asyncio.sleep(60))  # real time: none passes
    virtual_clock.skip(1)
    virtual_clock.run(virtual_clock.advance("1m"))
    assert virtual_clock.epoch() == began + 121
    at = datetime.fromtimestamp(began + 200, tz=None).astimezone()
    shop = pollwise_worker(worker)
    mail.options(run_at=at).put_sync(ORDER)
    assert shop.run_all_sync().done == 0
    assert shop.run_all_sync(delayed=True).done == 1
    assert virtual_clock.epoch() == began + 200


@pytest.mark.parametrize("delay", [0, 60])
def test_jobs_that_always_come_back_fail(
    delay: int, pollwise_queue: RecordingQueue, pollwise_worker: WorkerTesters
) -> None:
    shop = pollwise_worker(worker)
    worker.sync_queue().put(NewJob("again", delay))
    with pytest.raises(AssertionError, match=r"still .* after 1000 runs"):
        shop.run_all_sync(delayed=True)


def test_what_was_there_before_is_there_again(
    pollwise_queue: RecordingQueue, pollwise_worker: WorkerTesters
) -> None:
    before = worker.queue, worker.clock
    charge_elsewhere = task_ref("charge", "postgresql://nowhere.invalid/shop")
    shown = repr(charge_elsewhere)
    shop = pollwise_worker(worker)
    pollwise_queue.use_in(charge_elsewhere)
    assert worker.queue != before[0]
    charge_elsewhere.put_sync(order=str(ORDER))
    pollwise_queue.assert_put(charge_elsewhere, order=ORDER)
    assert shop.run_all_sync().done == 2
    pollwise_queue.release_all()
    assert (worker.queue, worker.clock, repr(charge_elsewhere)) == (*before, shown)
    with pytest.raises(ConfigError, match=r"give a pollwise\.Worker or a task_ref"):
        pollwise_queue.use_in(mail)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"give a pollwise\.Worker"):
        pollwise_worker("shop:worker")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="must be a queue, such as a MemoryQueue"):
        with worker.using("memory://"):  # type: ignore[arg-type]
            pass


class TestProgramWithAClockOfItsOwn:
    @pytest.fixture
    def virtual_clock(self) -> str:
        return "the clock of the program"

    def test_it_does_not_disturb(
        self, virtual_clock: str, pollwise_queue: RecordingQueue, pollwise_worker: WorkerTesters
    ) -> None:
        assert virtual_clock == "the clock of the program"
        tested = pollwise_worker(worker)
        charge.options(delay="1h").put_sync(ORDER)
        assert tested.run_all_sync(delayed=True).done == 2
        assert tested.clock is pollwise_queue.clock


def test_a_handler_in_a_process_is_waited_for(pollwise_worker: WorkerTesters) -> None:
    jobs = pollwise_worker(cpu.worker)
    job = cpu.add.put_sync(cpu.Point(1, 2), cpu.Point(3, 4))
    assert jobs.run_all_sync().done == 1
    assert job.result("1s") == cpu.Point(4, 6)


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "testing.md"
FILES = re.compile(r'^```python title="([\w.]+)"\n(.*?)^```', re.MULTILINE | re.DOTALL)
ASYNC = """
import pytest
from test_shop import charges

@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_in_an_event_loop(anyio_backend, pollwise_worker):
    await charges(pollwise_worker)
"""


def test_the_fixtures_come_with_the_package(tmp_path: Path) -> None:
    """In a project of its own, which is that of the page, beside another plugin for async tests."""
    for name, text in FILES.findall(PAGE.read_text("utf-8")):
        (tmp_path / name).write_text(text)
    (tmp_path / "test_async.py").write_text(ASYNC)
    environment = {**os.environ, "PYTEST_ADDOPTS": "-p no:valkey -p no:schemathesis"}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", str(tmp_path)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "3 passed" in run.stdout


def test_time_moves_to_the_next_start_of_a_rate(
    virtual_clock: SteppedClock, pollwise_worker: WorkerTesters
) -> None:
    slow = Worker("sqlite:///never-opened.db")

    @slow.task(limit=[Rate(60, per="1m"), Rate(2, per="1h", by="tenant")])
    async def call(tenant: str) -> None: ...

    tester = pollwise_worker(slow)
    began = virtual_clock.epoch()
    for tenant in "aaab":
        call.put_sync(tenant)
    assert tester.run_all_sync().done == 2
    assert tester.run_all_sync(delayed=True).done == 2
    assert 3600 <= virtual_clock.epoch() - began < 3610


def test_a_flow_runs_to_its_end(
    pollwise_queue: RecordingQueue, pollwise_worker: WorkerTesters
) -> None:
    shop = pollwise_worker(worker)
    charges = pollwise.group([charge.s(ORDER, amount=5), charge.s(ORDER, amount=6)])
    flow = charges.then(summed).put_sync()
    failing = charge.s(ORDER, amount=200).then(summed.s([]), on_failure=told).put_sync()
    pollwise_queue.assert_put(charge, amount=6)
    put = pollwise_queue.assert_put(summed)
    assert [each.kind for each in put.job.after] == ["charge"]
    assert shop.run_all_sync().done == 6  # three charges less one, their mails, and what follows
    assert flow.result("1s") == "charged, charged"
    with pytest.raises(JobFailed, match="too much"):
        failing.result("1s")
    assert "too much" in ran
