"""Progress that handlers report: the newest value is stored, once a second, in one call for all."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from pollwise.errors import JobError, Unsupported
from pollwise.queues.capabilities import Capabilities
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import ChoreFailed, JobDead, JobDone, JobLost
from pollwise.runtime.jobs import Claim, Job, JobInfo, NewJob, Progress, Renewal
from pollwise.worker import Worker
from tests.support.kit import CountedMemory, Seen, options, until, virtually, working

LEASE = 60.0
#: Real seconds within which what is waited for has to happen.
PATIENCE = 240.0


class Noted(CountedMemory):
    """Notes when progress was written, and which."""

    written: list[tuple[float, dict[str, Any]]]

    async def _renew(
        self, claims: list[Claim], lease: float, progress: Mapping[str, Progress]
    ) -> Renewal:
        if progress:
            said = {job_id: each.fraction or each.note for job_id, each in progress.items()}
            self.written.append((self.clock.now(), said))
        return await super()._renew(claims, lease, progress)


class Reporting:
    """A worker on a queue that notes progress."""

    def __init__(self, clock: VirtualClock, kind: type[Noted] = Noted, **given: Any) -> None:
        self.queue = kind(clock=clock, **{"keep": "1d", **given})
        self.queue.written = []
        self.seen = Seen()
        self.worker = Worker(self.queue, name="w", events=self.seen.events)

    @property
    def values(self) -> list[Any]:
        """What was written, without times."""
        return [value for _, said in self.queue.written for value in said.values()]

    async def put(self, *payloads: object) -> list[str]:
        return await self.queue.put([NewJob("x", payload) for payload in payloads])

    async def info(self, job_id: str) -> JobInfo:
        info = await self.queue.get(job_id)
        assert info is not None
        return info

    async def fraction(self, job_id: str) -> float | None:
        progress = (await self.info(job_id)).progress
        return None if progress is None else progress.fraction

    async def ended(self, *kinds: Any, count: int = 1) -> None:
        await until(lambda: len(self.seen.of(*(kinds or (JobDone,)))) >= count)


def test_reports_of_all_jobs_are_one_call_a_second() -> None:
    async def main(clock: VirtualClock) -> None:
        it = Reporting(clock)

        @it.worker.handle("x")
        async def handler(job: Job) -> None:
            for step in range(1, 1001):
                await job.progress(step / 1000, f"step {step}")
                await asyncio.sleep(0.01)

        ids = await it.put(1, 2, 3)
        async with working(it.worker, options(lease=LEASE, concurrency=3)):
            await until(lambda: len(it.queue.written) == 5)
            for job_id in ids:
                progress = (await it.info(job_id)).progress
                assert progress is not None
                assert progress.fraction is not None
                assert progress.fraction == pytest.approx(0.5, abs=0.02)
                assert progress.note == f"step {round(progress.fraction * 1000)}"
            await it.ended(count=3)
        times = [at for at, _ in it.queue.written]
        apart = [later - earlier for earlier, later in itertools.pairwise(times) if later < 10]
        assert all(gap >= 1.0 for gap in apart), apart
        assert 10 <= len(times) <= 12, "one a second, and the last reports"
        assert all(len(said) == 3 for _, said in it.queue.written)
        assert it.queue.calls["renew"] == len(times), "and no renewal besides"

    virtually(main)


def test_nothing_is_written_when_there_is_nothing_to_say() -> None:
    async def main(clock: VirtualClock) -> None:
        it = Reporting(clock)

        @it.worker.handle("x")
        async def handler(job: Job) -> None:
            if job.payload == "says the same":
                for _ in range(990):
                    await job.progress(0.5)
                    await asyncio.sleep(0.1)
            else:
                await asyncio.sleep(99)

        await it.put("says the same", "says nothing")
        async with working(it.worker, options(lease=LEASE)):
            await it.ended(count=2)
        assert it.values == [0.5]
        assert it.queue.calls["renew"] == 1 + 98 // (LEASE / 3), "one apart from the regular ones"

    virtually(main)


def test_a_report_rides_on_a_renewal_that_is_due() -> None:
    async def main(clock: VirtualClock) -> None:
        it = Reporting(clock)

        @it.worker.handle("x")
        async def handler(job: Job) -> None:
            await asyncio.sleep(LEASE / 3 - 0.3)
            await job.progress(note="just before a renewal")
            await asyncio.sleep(5)

        await it.put(1)
        async with working(it.worker, options(lease=LEASE)):
            await it.ended()
        assert it.values == ["just before a renewal"]
        assert it.queue.calls["renew"] == 1

    virtually(main)


def test_a_short_job_writes_nothing() -> None:
    async def main(clock: VirtualClock) -> None:
        it = Reporting(clock)

        @it.worker.handle("x")
        async def handler(job: Job) -> None:
            for step in range(5):
                await job.progress(step / 5)
                await asyncio.sleep(0.1)

        await it.put(*range(20))
        async with working(it.worker, options(lease=LEASE, concurrency=20)):
            await it.ended(count=20)
        assert it.queue.written == []

    virtually(main)


@pytest.mark.parametrize("keep", ["1d", None])
def test_the_last_report_is_kept_with_a_job_that_is_kept(keep: str | None) -> None:
    async def main(clock: VirtualClock) -> None:
        it = Reporting(clock, keep=keep)

        @it.worker.handle("x")
        async def handler(job: Job) -> None:
            await job.progress(0.1)
            await asyncio.sleep(2)
            await job.progress(0.9)

        [job_id] = await it.put(1)
        async with working(it.worker, options(lease=LEASE)):
            await it.ended()
        if keep is not None:
            assert await it.fraction(job_id) == 0.9
        assert it.values == ([0.1, 0.9] if keep else [0.1])

    virtually(main)


def test_the_last_report_of_a_dead_job_is_kept() -> None:
    async def main(clock: VirtualClock) -> None:
        it = Reporting(clock, keep=None)

        @it.worker.task
        async def x(job: Job) -> None:
            await job.progress(0.1)
            await asyncio.sleep(2)
            await job.progress(0.9, "page 9")
            raise ValueError("no such page")

        handle = await x.put()
        async with working(it.worker, options(lease=LEASE)):
            await it.ended(JobDead)
            await until(lambda: it.queue.calls["settle"] >= 1)
        progress = (await it.info(handle.id)).progress
        assert progress is not None
        assert (progress.fraction, progress.note) == (0.9, "page 9")

    virtually(main)


def test_a_renewal_that_fails_loses_no_report() -> None:
    async def main(clock: VirtualClock) -> None:
        it = Reporting(clock)

        @it.worker.handle("x")
        async def handler(job: Job) -> None:
            await job.progress(0.3)
            await asyncio.sleep(LEASE)

        [job_id] = await it.put(1)
        it.queue.failing = ["renew"]
        async with working(it.worker, options(lease=LEASE)):
            await until(lambda: bool(it.seen.of(ChoreFailed)))
            it.queue.failing = []
            await until(lambda: bool(it.queue.written), LEASE / 3 + 1)
            assert await it.fraction(job_id) == 0.3

    virtually(main)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"fraction": 1.1}, "fraction = 1.1"),
        ({"fraction": float("nan")}, "fraction = nan"),
        ({"fraction": True}, "fraction = True"),
        ({"fraction": "0.5"}, "fraction = '0.5'"),
        ({"fraction": 0.5, "note": 7}, "note = 7"),
        ({}, "give a fraction"),
    ],
)
def test_a_bad_value_raises_in_the_handler(given: dict[str, Any], words: str) -> None:
    job = Job("1", "q", "x", None, None, 0, 1, 0.0, 0.0, None)
    with pytest.raises(JobError, match=words.replace(".", r"\.")):
        job.progress(**given)


def test_a_job_that_no_worker_runs_reports_nothing() -> None:
    async def main() -> None:
        job = Job("1", "q", "x", None, None, 0, 1, 0.0, 0.0, None)
        await job.progress(0.5, "by hand")
        assert not job.cancel_requested

    asyncio.run(main())


def test_a_report_after_the_end_of_the_run_is_dropped() -> None:
    async def main(clock: VirtualClock) -> None:
        it, kept = Reporting(clock), list[Job]()

        @it.worker.handle("x")
        async def handler(job: Job) -> None:
            kept.append(job)

        await it.put(1)
        async with working(it.worker, options(lease=LEASE)):
            await it.ended()
            await kept[0].progress(0.5)
            assert kept[0].cancel_requested, "its run is over"
            await clock.advance(LEASE)
        assert it.queue.written == []

    virtually(main)


def test_a_plain_handler_reports_from_its_thread() -> None:
    async def main() -> None:
        queue, written = MemoryQueue(keep="1d"), threading.Event()
        worker = Worker(queue)

        @worker.handle("x")
        def handler(job: Job) -> None:
            for step in range(1000):
                job.progress(step / 1000, "in a thread")
            written.wait(PATIENCE)

        [job_id] = await queue.put(NewJob("x"))
        async with working(worker, options(lease="1h")), asyncio.timeout(PATIENCE):
            while (info := await queue.get(job_id)) is None or info.progress is None:
                await asyncio.sleep(0.02)  # real time: a thread is at work
            written.set()
        assert (info.progress.fraction, info.progress.note) == (0.999, "in a thread")

    asyncio.run(main())


class Forgetful(Noted):
    """A store that cannot keep progress, and says so."""

    capabilities = Capabilities(progress=False)


class LateRefusal(Noted):
    """Learns only at the call that it cannot keep progress, as an http:// queue does."""

    async def renew(
        self, claims: Iterable[Claim], lease: Any, progress: Mapping[str, Progress] | None = None
    ) -> Renewal:
        if progress:
            raise Unsupported("the controller's store cannot keep the progress of a run")
        return await super().renew(claims, lease)


def test_a_store_that_cannot_keep_progress_refuses_it() -> None:
    async def main(clock: VirtualClock) -> None:
        it, refused = Reporting(clock, Forgetful), list[str]()

        @it.worker.handle("x")
        async def handler(job: Job) -> None:
            with pytest.raises(Unsupported) as caught:
                await job.progress(0.5)
            refused.append(str(caught.value))

        await it.put(1)
        async with working(it.worker, options(lease=LEASE)):
            await it.ended()
        assert "memory" in refused[0]
        assert "choose a store that can" in refused[0]

    virtually(main)


def test_a_late_refusal_costs_no_lease() -> None:
    async def main(clock: VirtualClock) -> None:
        it, refused = Reporting(clock, LateRefusal), list[str]()

        @it.worker.handle("x")
        async def handler(job: Job) -> None:
            for step in range(10):
                try:
                    await job.progress(step / 10)
                except Unsupported as error:
                    refused.append(str(error))
                await asyncio.sleep(LEASE / 2)

        await it.put(1)
        async with working(it.worker, options(lease=LEASE)):
            await it.ended()
        assert len(refused) == 9, "from the second report on"
        assert not it.seen.of(JobLost, ChoreFailed)

    virtually(main)
