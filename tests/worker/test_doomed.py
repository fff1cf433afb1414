"""Worker processes that die of a job, or stand still: what they claimed ahead comes to no harm."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pollwise import Job, Worker, WorkerRunOptions
from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.urls import open_queue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import JobGivenBack
from pollwise.runtime.jobs import LAPSES_ALONE, Claim, NewJob
from tests.support.forked import Forked
from tests.support.kit import Seen

CHILD = Path(__file__).parent / "children" / "doomed.py"


@contextmanager
def child(url: str, log: Path, name: str) -> Iterator[Forked]:
    process = Forked([CHILD, url, log, name], out=False, err=False)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def lines(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text("utf-8").splitlines()]


async def until(what: Callable[[], bool | Awaitable[bool]]) -> None:
    while True:
        found = what()
        if found if isinstance(found, bool) else await found:
            return
        await asyncio.sleep(0.02)  # real time: other processes are at it


async def only_dead_are_left(queue: Queue) -> bool:
    stats = await queue.stats()
    return stats.dead > 0 and not (stats.ready or stats.delayed or stats.leased)


@pytest.mark.timeout(120)
def test_a_job_that_kills_its_workers_dies_alone(shared_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    jobs = [NewJob("poison", 0), *(NewJob("quick", n) for n in range(1, 120))]

    async def main() -> None:
        async with open_queue(shared_url) as queue:
            await queue.migrate()
            await queue.put(jobs)
            deaths = 0
            while not await only_dead_are_left(queue):
                with child(shared_url, log, f"w{deaths}") as process:

                    async def ended(process: Forked = process) -> bool:
                        return process.poll() is not None or await only_dead_are_left(queue)

                    await until(ended)
                    deaths += process.poll() is not None
            [dead] = await queue.jobs("dead")
            assert dead.job.kind == "poison"
            assert deaths == LAPSES_ALONE + 2  # its Retry allows two attempts
        ran = [(payload, attempt) for _, kind, payload, attempt in lines(log) if kind == "quick"]
        assert {int(payload) for payload, _ in ran} == set(range(1, 120))
        assert {attempt for _, attempt in ran} == {"1"}, "an innocent job lost an attempt"

    asyncio.run(main())


@pytest.mark.timeout(60)
@pytest.mark.parametrize("shared_url", ["sqlite", "postgres", "redis"], indirect=True)
def test_jobs_claimed_ahead_do_not_start_after_a_stall(shared_url: str, tmp_path: Path) -> None:
    """While a worker stands still, another runs what it had claimed, and the next of the key."""
    log, gate = tmp_path / "log", tmp_path / "gate"
    log.touch()
    ran: list[str] = []

    async def main() -> None:
        async with open_queue(shared_url) as queue:
            await queue.migrate()
            await queue.put([NewJob("gate", str(gate)), NewJob("quick", "first", key="k")])
            with child(shared_url, log, "stalls") as process:
                # The keyed job is claimed with the other, and waits behind it.
                await until(lambda: "gate" in log.read_text("utf-8"))
                assert (await queue.stats()).leased == 2
                process.send_signal(signal.SIGSTOP)
                await queue.put(NewJob("quick", "second", key="k"))
                other = Worker(queue, name="other")

                @other.handle("quick")
                async def quick(job: Job) -> None:
                    ran.append(job.payload)
                    if len(ran) == 2:
                        other.stop()

                await other.run(WorkerRunOptions(signals=False))
                assert ran == ["first", "second"]
                gate.touch()
                process.send_signal(signal.SIGCONT)
                await queue.put(NewJob("quick", "last"))
                await until(lambda: "last" in log.read_text("utf-8"))
        assert [payload for _, kind, payload, _ in lines(log) if kind == "quick"] == ["last"]

    asyncio.run(main())


class Late(MemoryQueue):
    """Answers a claim long after it was made."""

    late = 0.0

    async def _claim(self, *args: Any) -> list[Claim]:
        claims = await super()._claim(*args)
        await self.clock.sleep(self.late)
        return claims


@pytest.mark.parametrize("stall", ["suspended", "late answer"])
def test_after_a_stall_a_lease_is_renewed_before_the_start(stall: str) -> None:
    """A suspended machine, whose event loop sees no time pass; an answer that comes late."""
    clock, ran = VirtualClock(), list[str]()

    async def main() -> None:
        queue = Late(clock=clock)
        await queue.put([NewJob("job", "first"), NewJob("job", "second")])
        worker = Worker(queue, WorkerRunOptions(concurrency=1, prefetch=5, signals=False))

        @worker.handle("job")
        async def handle(job: Job) -> None:
            ran.append(job.payload)
            await clock.sleep(1)

        if stall == "late answer":
            queue.late = 61.0
        running = asyncio.ensure_future(worker.run())
        await clock.advance(0.5)
        if stall == "suspended":
            assert ran == ["first"]
            clock._epoch += 3600
        else:
            await clock.advance(60)
            assert ran == []
        queue.late = 0.0
        assert len(await queue.claim("other", 5, 1000)) == 2
        await clock.advance(10)
        assert ran == (["first"] if stall == "suspended" else [])
        worker.stop()
        await running

    clock.run(main())


def test_nothing_else_starts_while_a_suspect_is_held() -> None:
    """What was claimed ahead is given back, and nothing is claimed until it is settled."""
    clock, starts, seen = VirtualClock(), dict[Any, float](), Seen()

    async def main() -> None:
        queue = MemoryQueue(clock=clock)
        await queue.put(NewJob("job", "suspect"))
        for lease in [1] * (LAPSES_ALONE - 1) + [3]:
            assert await queue.claim("dies", 1, lease, ahead=True)
            await clock.advance(1)
        await queue.put([NewJob("job", n) for n in range(4)])
        options = WorkerRunOptions(concurrency=2, prefetch=4, signals=False)
        worker, began = Worker(queue, options, events=seen.events), clock.now()

        @worker.handle("job")
        async def handle(job: Job) -> None:
            starts[job.payload] = clock.now() - began
            await clock.sleep(5)

        running = asyncio.ensure_future(worker.run())
        await clock.advance(1)
        assert sorted(starts) == [0, 1]
        assert (await queue.stats()).leased == 5  # two run, two wait here, and the other's lease
        await clock.advance(30)
        assert starts["suspect"] >= starts[0] + 5
        assert min(starts[2], starts[3]) >= starts["suspect"] + 5
        given_back = seen.of(JobGivenBack)
        assert [each.reason for each in given_back] == [given_back[0].reason] * 2
        assert "alone" in given_back[0].reason
        worker.stop()
        await running

    clock.run(main())
