"""Results of tasks and handlers: kept for their time, then deleted by running workers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pollwise import Job, Retry, Worker
from pollwise.errors import JobFailed
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.executor.control.pruning import PRUNE_RESULTS_EVERY
from pollwise.runtime.jobs import RESULT_TTL, NewJob
from tests.support.kit import CountedMemory, Seen, make_queue, options, virtually, working


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_task_keeps_its_result_for_an_hour(store: str, tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        queue: Any = make_queue(store, tmp_path, clock)
        worker = Worker(queue, events=Seen().events)

        @worker.task
        async def double(n: int) -> int:
            return 2 * n

        async with working(worker, options()):
            job = await double.options(unique="u").put(4)
            assert await job.result("1m") == 8
            again = await double.options(unique="u").put(4)
            assert again.id != job.id, "the result prolongs `unique`"
            assert await again.result("1m") == 8
            await asyncio.sleep(RESULT_TTL / 2)
            assert await job.result("1m") == 8
            await asyncio.sleep(RESULT_TTL)
            with pytest.raises(JobFailed, match="does not exist") as failed:
                await job.result("1m")
            assert failed.value.state is None
            assert (await queue.stats()).done == 0, "the worker did not delete it"
        await queue.close()

    virtually(main)


def test_who_keeps_what() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = CountedMemory(clock=clock)
        worker = Worker(queue, events=Seen().events)

        @worker.task(result_ttl=0)
        async def none() -> str:
            return "none"

        @worker.task(result_ttl=None)
        def neither() -> str:
            return "none"

        @worker.handle("plain")
        async def plain(job: Job) -> str:
            return "plain"

        @worker.handle("asked", result_ttl="2h")
        async def asked(job: Job) -> Any:
            return job.payload

        async with working(worker, options()):
            put = await queue.put([NewJob(k, {}) for k in ("none", "neither", "plain")])
            [kept] = await queue.put(NewJob("asked", {"a": 1}))
            assert await queue.result(kept, "1m") == {"a": 1}
            gone = await queue.wait(put, "1m")
            assert [type(each) for each in gone.values()] == [JobFailed] * 3
            await asyncio.sleep(1.9 * RESULT_TTL)
            assert await queue.result(kept, "1m") == {"a": 1}

    virtually(main)


def test_a_result_that_cannot_be_kept_makes_the_job_dead() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = CountedMemory(clock=clock)
        worker = Worker(queue, events=Seen().events)
        runs: list[str] = []

        @worker.handle("odd", result_ttl="1h")
        async def odd(job: Job) -> Any:
            runs.append(job.id)
            return {1, 2}

        async with working(worker, options()):
            [job_id] = await queue.put(NewJob("odd"))
            with pytest.raises(JobFailed, match="result of kind 'odd' is not JSON") as failed:
                await queue.result(job_id, "1m")
            assert failed.value.state == "dead"
            assert runs == [job_id], "to run it again does not help"

    virtually(main)


def broken(password: str) -> None:
    raise ValueError("it is broken")  # password=hunter2


def test_a_failure_has_its_traceback() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = CountedMemory(clock=clock)
        worker = Worker(queue, events=Seen().events)

        @worker.task(retry=Retry.exponential("1s", attempts=2))
        def fails() -> None:
            broken("hunter" * 2)

        async with working(worker, options()):
            job = await fails.put()
            with pytest.raises(JobFailed, match="is dead: ValueError: it is broken") as failed:
                await job.result("1m")
            text = failed.value.traceback
            assert text is not None
            assert "in fails" in text
            assert "in broken" in text
            assert "test_results.py" in text
            assert "hunterhunter" not in text
            assert "hunter2" not in text, "values and secrets stay in the worker"
            assert failed.value.__notes__ == [f"In the worker:\n{text}"]
            info = await job.info()
            assert info is not None
            assert info.traceback == text
            assert [each.traceback is None for each in info.errors] == [True, False]

    virtually(main)


def test_a_cancelled_run_is_told_to_who_waits() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = CountedMemory(clock=clock)
        worker = Worker(queue, events=Seen().events)
        begun = asyncio.Event()

        @worker.task
        async def long() -> None:
            begun.set()
            await asyncio.sleep(3600)

        async with working(worker, options()):
            job = await long.put()
            await begun.wait()
            assert await job.cancel() == "leased"
            with pytest.raises(JobFailed) as failed:
                await job.result("10m")
            assert failed.value.state == "cancelled"

    virtually(main)


def test_a_quiet_worker_seldom_prunes() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = CountedMemory(clock=clock)
        worker = Worker(queue, events=Seen().events)

        @worker.task
        async def nothing() -> None:
            pass

        async with working(worker, options()):
            await asyncio.sleep(PRUNE_RESULTS_EVERY * 10.5)
            assert queue.calls["prune"] <= 12
        plain = CountedMemory(clock=clock)
        worker = Worker(plain, events=Seen().events)

        @worker.handle("plain")
        async def handler(job: Job) -> None:
            pass

        async with working(worker, options()):
            await plain.put(NewJob("plain"))
            await asyncio.sleep(PRUNE_RESULTS_EVERY * 10)
            assert plain.calls["prune"] == 0, "it keeps nothing"

    virtually(main)
