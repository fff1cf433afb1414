"""A task changes while jobs wait: workers of the old and of the new program run side by side."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from pollwise import Job, Retry, Task, Worker, from_context, task_ref
from pollwise.errors import JobFailed, PayloadError
from pollwise.events import JobDead, JobRetried
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import WorkerStarted
from pollwise.worker.declared import unfit
from tests.support.kit import Seen, options, virtually, working


def program(queue: MemoryQueue, name: str, ran: list[str]) -> tuple[Worker, Task[..., Any, Any]]:
    """The old program, or the new one, whose task has one more argument and has lost another."""
    seen = Seen()
    worker = Worker(queue, name=name, events=seen.events)
    if name.startswith("old"):

        @worker.task(retry=Retry.never())
        async def resize(image: int, colour: str) -> None:
            ran.append(name)

        return worker, resize

    @worker.task("resize", retry=Retry.never())
    async def changed(image: int, width: int) -> None:
        ran.append(name)

    return worker, changed


class Counting(MemoryQueue):
    capabilities = replace(MemoryQueue.capabilities, uncounted=False)


ARGUMENTS: dict[str, dict[str, Any]] = {
    "old": {"image": 7, "colour": "red"},
    "new": {"image": 7, "width": 80},
}


@pytest.mark.parametrize("puts", ["old", "new"])
def test_a_rolling_deploy_kills_no_job(puts: str) -> None:
    """A job is put while only workers of the other program run, and one of its own starts later."""

    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock, keep="1h")
        ran: list[str] = []
        other, _ = program(queue, "new" if puts == "old" else "old", ran)
        own, task = program(queue, puts, ran)
        async with AsyncExitStack() as running:
            await running.enter_async_context(working(other, options()))
            job = await task.put(**ARGUMENTS[puts])
            await clock.sleep(300)
            info = await job.info()
            assert info is not None
            assert info.state in ("ready", "delayed", "leased"), info.error
            await running.enter_async_context(working(own, options()))
            await job.result("5m")
            info = await job.info()
        assert ran == [puts]
        assert info is not None
        assert info.job.attempt == 1, "no attempt was used up"

    virtually(main)


def test_both_programs_may_run_for_days() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock, keep="1h")
        ran: list[str] = []
        old, _ = program(queue, "old", ran)
        new, task = program(queue, "new", ran)
        async with working(old, options()), working(new, options()):
            for _ in range(20):  # some of them are claimed by the old one first
                jobs = [await task.put(**ARGUMENTS["new"]) for _ in range(3)]
                for job in jobs:
                    await job.result("1h")
                await clock.sleep(600)
        assert ran == ["new"] * 60

    virtually(main)


def test_what_no_running_worker_declares_otherwise_is_dead_in_the_end() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock, keep="1h")
        seen = Seen()
        alike: list[Worker] = []
        for name in ("one", "two"):  # two of the same program are no reason to wait
            worker = Worker(queue, name=name, events=seen.events)

            @worker.context
            async def app() -> AsyncIterator[None]:
                yield None

            @worker.task
            async def resize(image: int, job: Job, app: Any = from_context) -> None: ...

            alike.append(worker)
        began = clock.now()
        async with working(alike[0], options()), working(alike[1], options()):
            job = await task_ref("resize", queue).put(picture=7)
            with pytest.raises(JobFailed, match=r"image: Field required; picture: Extra"):
                await job.result("1h")
        assert unfit.UNFIT_FOR <= clock.now() - began < 2 * unfit.UNFIT_FOR
        assert len(seen.of(JobDead)) == 1
        assert "picture: Extra" in seen.of(JobRetried)[0].error
        assert len(seen.of(WorkerStarted)) == 2

    virtually(main)


def test_an_earlier_change_does_not_shorten_the_time_of_the_next_one() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock, keep="1h")
        worker, _ = program(queue, "old", [])
        async with working(worker, options()):
            for _ in range(2):
                began = clock.now()
                with pytest.raises(JobFailed):
                    await (await task_ref("resize", queue).put(picture=7)).result("1h")
                assert clock.now() - began >= unfit.UNFIT_FOR
                await clock.sleep(86400)

    virtually(main)


def test_a_store_that_counts_each_claim_keeps_the_reason() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = Counting(clock=clock, keep="1h")
        worker, _ = program(queue, "old", [])
        async with working(worker, options()):
            job = await task_ref("resize", queue).put(picture=7)
            with pytest.raises(JobFailed, match="picture: Extra"):
                await job.result("1h")

    virtually(main)


def test_a_task_takes_the_rest_of_its_arguments() -> None:
    async def main(clock: VirtualClock) -> None:
        queue = MemoryQueue(clock=clock, keep="1h")
        worker = Worker(queue, events=Seen().events)
        got: list[Any] = []

        @worker.task("resize")
        async def function(image: int, job: Job, width: int = 800, **rest: float) -> None:
            got.append((image, width, rest))

        resize: Any = function

        async with working(worker, options()):
            for job in (
                await resize.put(7, dpi=72, zoom="1.5"),
                await resize.put(8, width=9),
                await task_ref("resize", queue).put(image=1, argument_0=2),
            ):
                await job.result("1m")
            with pytest.raises(PayloadError, match="dpi: Input should be a valid number"):
                await resize.put(7, dpi="many")
            with pytest.raises(PayloadError, match=r"\.options\(delay=…\)"):
                await resize.put(7, delay=9)
            with pytest.raises(PayloadError, match="the worker fills in 'job'"):
                await resize.put(7, job=9)
        assert got == [
            (7, 800, {"dpi": 72.0, "zoom": 1.5}),
            (8, 9, {}),
            (1, 800, {"argument_0": 2}),
        ]

    virtually(main)


def test_a_signature_is_of_the_arguments_and_their_types() -> None:
    def of(function: Any) -> str:
        task: Task[..., Any, Any] = Worker("memory://").task("kind")(function)
        return task.signature()

    async def base(image: int, width: int = 800) -> None: ...
    async def same(image: int, job: Job, width: int = 900) -> object: ...
    async def retyped(image: str, width: int = 800) -> None: ...
    async def longer(image: int, width: int = 800, dpi: int = 72) -> None: ...
    async def needed(image: int, width: int) -> None: ...
    async def open_ended(image: int, width: int = 800, **rest: Any) -> None: ...
    async def undescribed(image: int, width: Secret) -> None: ...

    assert of(base) == of(same)
    others = [of(each) for each in (base, retyped, longer, needed, open_ended, undescribed)]
    assert len(set(others)) == len(others)


class Secret:
    """A type without a JSON schema."""

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(lambda value: value)
