"""Typed tasks: arguments and results are checked, and calls are put as jobs."""

from __future__ import annotations

import asyncio
import enum
import inspect
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from pollwise import Job, NewJob, Retry, Task, Worker, from_context, task_ref
from pollwise.errors import ContextFailed, HandlerError, JobError, JobFailed, PayloadError
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.worker.arguments import JOB_OPTIONS
from tests.support.kit import Seen, options, virtually, working


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Size:
    width: int
    height: Decimal


class Order(BaseModel):
    id: UUID
    at: datetime
    sizes: list[Size]


def made(clock: VirtualClock) -> tuple[Worker, MemoryQueue]:
    queue = MemoryQueue(clock=clock, keep="1h")
    return Worker(queue, events=Seen().events), queue


ORDER = Order(id=UUID(int=7), at=datetime(2026, 1, 2, tzinfo=UTC), sizes=[Size(3, Decimal("1.50"))])


def test_arguments_and_results_come_back_as_their_types() -> None:
    async def main(clock: VirtualClock) -> None:
        worker, _ = made(clock)
        seen: list[Any] = []

        @worker.task
        async def ship(order: Order, colour: Colour = Colour.RED, note: str | None = None) -> Size:
            seen.append((order, colour, note))
            return order.sizes[0]

        @worker.task("sizes.count")
        def count(sizes: list[Size], factor: Decimal) -> dict[str, Decimal]:
            return {"area": sizes[0].width * sizes[0].height * factor}

        async with working(worker, options()):
            shipped = await ship.put(ORDER, note="fragile")
            counted = await count.put(sizes=ORDER.sizes, factor=Decimal(2))
            assert await shipped.result("1m") == Size(3, Decimal("1.50"))
            assert await counted.result("1m") == {"area": Decimal("9.00")}
            assert await shipped.state() == "done"
        assert seen == [(ORDER, Colour.RED, "fragile")]

    virtually(main)


def test_called_directly_a_task_is_its_function() -> None:
    worker = Worker("memory://")

    @worker.task()
    async def double(number: int) -> int:
        """Twice the number."""
        return 2 * number

    @worker.task()
    def triple(number: int) -> int:
        return 3 * number

    assert asyncio.run(double(4)) == 8
    assert triple(4) == 12
    assert (double.__name__, double.__doc__) == ("double", "Twice the number.")
    assert isinstance(double, Task)
    assert worker.kinds == ("double", "triple")


def test_the_options_that_errors_know_are_those_of_a_task() -> None:
    assert ("self", *JOB_OPTIONS) == tuple(inspect.signature(Task.options).parameters)


def test_a_lambda_needs_a_name() -> None:
    worker = Worker("memory://")
    with pytest.raises(HandlerError, match="a lambda has no name; name the task"):
        worker.task(lambda: 1)
    worker.task("one")(lambda: 1)
    assert worker.kinds == ("one",)


@pytest.mark.parametrize(
    ("args", "given", "said"),
    [
        ((), {}, "missing a required argument: 'image'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"hight": 3}, "unexpected keyword argument 'hight'"),
        (("seven",), {}, "image: Input should be a valid integer"),
        ((1,), {"job": 3}, "unexpected keyword argument 'job'"),
        ((), {"imag": 3}, "missing a required argument: 'image'; it has no argument 'imag'"),
        ((1,), {"delay": "3m"}, "options of the job are given as .options(delay=…).put(…)"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_put(
    args: tuple[Any, ...], given: dict[str, Any], said: str
) -> None:
    async def main(clock: VirtualClock) -> None:
        worker, queue = made(clock)

        @worker.task()
        async def resize(image: int, job: Job, width: int = 800) -> None: ...

        with pytest.raises(PayloadError, match="the task 'resize'") as caught:
            await resize.put(*args, **given)
        assert said in str(caught.value)
        assert (await queue.stats()).ready == 0

    virtually(main)


def test_a_payload_that_no_longer_fits_is_dead_in_the_end_with_the_reason() -> None:
    async def main(clock: VirtualClock) -> None:
        worker, queue = made(clock)
        ran: list[int] = []

        @worker.task(retry=Retry.fixed("1s", attempts=5))
        async def resize(image: int) -> None:
            ran.append(image)

        async with working(worker, options()):
            old = await task_ref("resize", queue).put(picture=7)
            good = await task_ref("resize", queue).options(key="k").put(image=8)
            with pytest.raises(JobFailed, match=r"image: Field required; picture: Extra") as failed:
                await old.result("1h")
            await good.result("1m")
        assert (failed.value.state, failed.value.job_id) == ("dead", old.id)
        info = await old.info()
        assert info is not None
        assert info.job.attempt == 1, "what was given back is no attempt"
        assert ran == [8]

    virtually(main)


def test_a_put_without_a_payload_gives_a_task_no_arguments() -> None:
    """As `pollwise queue put URL tidy` does, and `pollwise schedule add` without a payload."""

    async def main(clock: VirtualClock) -> None:
        worker, queue = made(clock)
        ran: list[bool] = []

        @worker.task
        async def tidy(deep: bool = True) -> None:
            ran.append(deep)

        async with working(worker, options()):
            ids = await queue.put([NewJob("tidy"), NewJob("tidy", [1])])
            await queue.wait(ids, "1h")
        assert ran == [True]
        info = await queue.get(ids[1])
        assert info is not None
        assert info.error is not None
        assert "it must be an object with the arguments by name; these are deep" in info.error

    virtually(main)


def test_a_result_that_does_not_fit_is_dead_with_the_reason() -> None:
    async def main(clock: VirtualClock) -> None:
        worker, _ = made(clock)

        @worker.task()
        async def lie() -> int:
            return "many"  # type: ignore[return-value]

        async with working(worker, options()):
            job = await lie.put()
            with pytest.raises(JobFailed, match="the result of the task 'lie' does not fit"):
                await job.result("1m")

    virtually(main)


def test_an_error_is_raised_where_the_result_is_waited_for() -> None:
    async def main(clock: VirtualClock) -> None:
        worker, _ = made(clock)

        @worker.task(retry=Retry.never())
        async def fail() -> None:
            raise ValueError("no such image")

        async with working(worker, options()):
            with pytest.raises(JobFailed, match="is dead: ValueError: no such image"):
                await (await fail.put()).result("1m")

    virtually(main)


def test_waiting_ends_with_its_timeout_and_the_job_goes_on() -> None:
    async def main(clock: VirtualClock) -> None:
        worker, _ = made(clock)

        @worker.task()
        async def slow() -> str:
            await clock.sleep(60)
            return "done"

        async with working(worker, options()):
            job = await slow.put()
            with pytest.raises(TimeoutError, match="job 1 has not ended within 10s; it goes on"):
                await job.result("10s")
            assert await job.result() == "done"

    virtually(main)


def test_options_are_those_of_a_job_and_a_handle_cancels() -> None:
    async def main(clock: VirtualClock) -> None:
        worker, queue = made(clock)

        @worker.task()
        async def resize(image: int) -> None: ...

        chosen = resize.options(delay="10m", key="img", unique="img-7", headers={"a": "b"})
        first, again = await chosen.put(7), await chosen.put(7)
        assert first.id == again.id
        info = await first.info()
        assert info is not None
        assert (info.state, info.job.key, info.job.headers) == ("delayed", "img", {"a": "b"})
        assert await first.cancel() == "cancelled"
        with pytest.raises(JobFailed, match="is cancelled"):
            await first.result()
        await queue.put([resize.job(n) for n in range(3)])
        assert (await queue.stats()).ready == 3

    virtually(main)


def test_a_context_is_set_up_once_and_given_to_handlers() -> None:
    async def main(clock: VirtualClock) -> None:
        worker, queue = made(clock)
        story: list[str] = []

        @worker.context
        async def app() -> AsyncIterator[dict[str, int]]:
            story.append("up")
            yield {"pool": 5}
            story.append("down")

        @worker.task()
        async def add(number: int, app: dict[str, int] = from_context) -> int:
            return app["pool"] + number

        @worker.handle("plain")
        def plain(job: Job, pool: dict[str, int] = from_context) -> None:
            story.append(f"{job.kind} {pool['pool']}")

        for _ in range(2):
            async with working(worker, options()):
                assert await (await add.put(1)).result("1m") == 6
                await (await task_ref("plain", queue).put()).result("1m")
        assert story == ["up", "plain 5", "down"] * 2
        assert await add(1, app={"pool": 1}) == 2
        with pytest.raises(HandlerError, match="already has a context"):
            worker.context(app)

    virtually(main)


def test_a_context_that_fails_ends_the_run() -> None:
    async def main(clock: VirtualClock) -> None:
        worker, _ = made(clock)
        worker.handle("x")(print)

        @worker.context
        async def app() -> AsyncIterator[None]:
            raise OSError("no database")
            yield

        with pytest.raises(ContextFailed, match="OSError: no database"):
            await worker.run(options())

    virtually(main)


def test_what_cannot_be_a_task_is_refused() -> None:
    worker = Worker("memory://")

    def many(*numbers: int) -> None: ...

    def odd(thing: Worker) -> None: ...

    def gone(thing: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    for function, said in (
        (many, r"takes \*numbers, which has no name in a payload"),
        (odd, "the arguments of the task 'odd' cannot be JSON"),
        (gone, "annotations of the task 'gone' cannot be read: name 'Missing'"),
    ):
        with pytest.raises(HandlerError, match=said):
            worker.task(function)
    assert worker.kinds == ()
    with pytest.raises(JobError, match="by name"):
        asyncio.run(task_ref("x", "memory://").put(1))


def test_types_are_checked_by_mypy(tmp_path: Path) -> None:
    file = tmp_path / "typed.py"
    file.write_text(
        "from pollwise import Job, Worker\n"
        "worker = Worker('memory://')\n"
        "@worker.task()\n"
        "async def resize(image: int, width: int = 800) -> bytes: return b''\n"
        "@worker.task\n"
        "def plain(job: Job, x: int) -> str: return ''\n"
        "async def main() -> None:\n"
        "    a: bytes = await (await resize.put(image=7)).result()\n"
        "    b: str = await (await plain.options(delay=1).put(3)).result()\n"
        "    c: bytes = await resize(7)\n"
        "    await resize.put('seven')\n"
        "    await plain.put()\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--no-pretty", "--no-error-summary"]
    run = subprocess.run([*command, str(file)], capture_output=True, text=True, check=False)
    lines = [line.partition("typed.py:")[2] for line in run.stdout.splitlines() if "error" in line]
    assert [line.partition(": ")[0] for line in lines] == ["11", "12"], run.stdout
