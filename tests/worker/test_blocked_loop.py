"""A handler that blocks the event loop is named while it does. On the real clock."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

from pollwise.core.retry import Retry
from pollwise.observe.prometheus import PrometheusSink
from pollwise.outbox import NewRecord, Outbox, OutboxRunOptions
from pollwise.outbox.stores.memory import MemoryOutboxStore
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.events import JobDead, JobLost, LoopBlocked, LoopResumed
from pollwise.runtime.jobs import Job, NewJob
from pollwise.worker import Worker
from tests.support.kit import Seen, options, until


class Freezes:
    """A handler that blocks its event loop until the watchdog has noticed it."""

    def __init__(self, seen: Seen) -> None:
        self.noticed = threading.Event()
        seen.events.subscribe(lambda event: self.noticed.set(), LoopBlocked)

    async def __call__(self, item: object) -> None:
        self.compute()

    def compute(self) -> None:
        assert self.noticed.wait(30)


def test_the_job_and_its_line_are_reported_while_the_loop_is_blocked() -> None:
    async def main() -> None:
        queue, seen = MemoryQueue(), Seen()
        worker = Worker(queue, events=seen.events)
        worker.handle("freeze")(Freezes(seen))
        worker.handle("fine")(lambda job: None)
        await queue.put([NewJob("fine"), NewJob("freeze")])
        task = asyncio.ensure_future(worker.run(options(lease="1s")))
        await until(lambda: bool(seen.of(LoopResumed)))
        worker.stop()
        await task
        [blocked], [resumed] = seen.of(LoopBlocked), seen.of(LoopResumed)
        assert blocked.work == resumed.work == "job 2 of kind freeze"
        assert "in compute" in blocked.traceback
        assert "pollwise/runtime" not in blocked.traceback
        assert resumed.seconds >= blocked.seconds >= 0.5

    asyncio.run(main())


def test_a_job_that_was_lost_by_it_says_so_when_it_dies(tmp_path: Path) -> None:
    async def main() -> None:
        path, seen = tmp_path / "jobs.db", Seen()
        queue = SqliteQueue(path, synchronous="off")
        worker = Worker(queue, events=seen.events)
        stolen, sink = threading.Event(), PrometheusSink()
        sink.subscribe(seen.events)

        def steal() -> None:
            """Claim the job when its lease is over, as another worker would; do nothing with it."""

            async def claimed() -> None:
                async with SqliteQueue(path, synchronous="off") as other:
                    while not await other.claim("other", 1, "1s"):
                        time.sleep(0.05)  # real time: a lease has to run out in the database

            asyncio.run(claimed())
            stolen.set()

        @worker.handle("freeze", retry=Retry.fixed("1s", attempts=2))
        async def freeze(job: Job) -> None:
            threading.Thread(target=steal, daemon=True).start()
            assert stolen.wait(30)

        await queue.put(NewJob("freeze"))
        task = asyncio.ensure_future(worker.run(options(lease="1s")))
        await until(lambda: bool(seen.of(JobDead)), 60)
        labels = {"queue": "default", "kind": "freeze"}
        assert sink.registry.get_sample_value("pollwise_worker_lease_lapsed_total", labels) == 1
        worker.stop()
        await task
        [lost] = seen.of(JobLost)
        here = f"blocked the event loop at {__file__}"
        assert lost.reason.startswith(f"its handler {here}:")
        [dead] = seen.of(JobDead)
        assert f"lost its lease 2 times; in this worker, its handler {here}:" in dead.error
        [info] = await queue.jobs("dead")
        assert info.error == dead.error
        await queue.close()

    asyncio.run(main())


def test_a_relay_reports_the_record() -> None:
    async def main() -> None:
        store, seen = MemoryOutboxStore(), Seen()
        outbox = Outbox(
            store, options=OutboxRunOptions(signals=False, lease="1s"), events=seen.events
        )
        outbox.handle("*", name="freezes")(Freezes(seen))
        await store.put([NewRecord("order.placed", 1, "k")])
        async with outbox.running():
            await until(lambda: bool(seen.of(LoopResumed)))
        assert [event.work for event in seen.of(LoopBlocked)] == ["record 1 of kind order.placed"]

    asyncio.run(main())


def test_nothing_is_watched_while_nothing_runs() -> None:
    async def main() -> None:
        queue, seen = MemoryQueue(), Seen()
        worker = Worker(queue, events=seen.events)
        worker.handle("x")(lambda job: None)
        task = asyncio.ensure_future(worker.run(options(lease="1s")))
        await until(lambda: bool(worker.state()))
        assert not watchdogs()
        await queue.put(NewJob("x"))
        await until(lambda: bool(watchdogs()))
        worker.stop()
        await task
        for thread in watchdogs():
            await asyncio.to_thread(thread.join, 20)
        assert not watchdogs()

    asyncio.run(main())


def watchdogs() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "pollwise-watchdog"]
