"""Stores in a process that forks after it used them, and in several threads at once."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from typing import Any

import pytest

import pollwise
from pollwise.errors import StoreError
from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.hints import Hint
from pollwise.runtime.jobs import NewJob, Settlement
from tests.storage import fork_child

#: Seconds after which what should have happened fails its test.
PATIENCE = 240.0
STORES = ("sqlite", "outbox on sqlite", "postgres", "outbox on postgres", "redis", "http", "sqs")


def forked(url: str, how: str) -> str:
    """What the parent and the child said."""
    words = [sys.executable, "-W", "error::ResourceWarning", fork_child.__file__, url, how]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.endswith("ok\n"), ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize("store", STORES)
def test_parent_and_child_both_go_on_after_a_fork(store: str, url_of: Any) -> None:
    assert forked(url_of(store), "new") == "ok\n"


def test_the_event_loop_of_the_parent_is_refused_in_the_child(url_of: Any) -> None:
    # Only here: other stores hold their sockets in the event loop, so that asyncio itself may take
    # answers of the parent before the child's first call is refused.
    said = forked(url_of("postgres"), "same")
    assert "before the process forked" in said
    assert "asyncio.run" in said


def test_object_storage_is_refused_in_a_child_of_a_process_that_used_it(url_of: Any) -> None:
    said = forked(url_of("folder"), "new")
    assert said.startswith("refused: this process was forked from one that had used object storage")


# Threads


class OtherThread(threading.Thread):
    """Runs a coroutine on an event loop of its own."""

    def __init__(self, work: Any) -> None:
        super().__init__(daemon=True)
        self.work = work
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            asyncio.run(self.work)
        except BaseException as error:
            self.error = error


async def beside(work: Any) -> BaseException | None:
    """Run a coroutine on another thread's event loop; return its error."""
    thread = OtherThread(work)
    await asyncio.to_thread(thread.join, PATIENCE)
    assert not thread.is_alive(), "it hangs"
    return thread.error


# The connections of an event loop that has ended cannot be closed any more.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("store", ["memory", "folder", "postgres", "redis", "http", "sqs"])
def test_a_second_thread_at_the_same_time_is_refused(store: str, url_of: Any) -> None:
    queue: Queue = MemoryQueue() if store == "memory" else pollwise.open(url_of(store))

    async def use() -> None:
        await queue.put(NewJob("job"))
        await queue.stats()

    async def main() -> None:
        await use()
        error = await beside(use())
        assert isinstance(error, StoreError), repr(error)
        assert "in use by the event loop of another thread; open a queue" in str(error)
        await use()

    asyncio.run(main())
    thread = OtherThread(use())  # one after the other is fine
    thread.join(PATIENCE)
    assert thread.error is None, repr(thread.error)

    async def last() -> None:
        await use()
        await queue.close()

    asyncio.run(last())
    gc.collect()


def test_threads_may_share_a_queue_in_sqlite(url_of: Any) -> None:
    threads, each = 4, 25
    queue = pollwise.open(url_of("sqlite"))

    async def work() -> None:
        for _ in range(each):
            await queue.put(NewJob("job"))
            claims = await queue.claim("w", 1, "60s")
            await queue.settle([Settlement.done(claim) for claim in claims])

    async def main() -> None:
        errors = await asyncio.gather(*(beside(work()) for _ in range(threads)), work())
        assert errors == [None] * (threads + 1)
        while claims := await queue.claim("w", 100, "60s"):
            await queue.settle([Settlement.done(claim) for claim in claims])
        stats = await queue.stats()
        assert (stats.ready, stats.leased, stats.dead) == (0, 0, 0)
        await queue.close()

    asyncio.run(main())


def test_a_put_in_one_thread_ends_a_pause_in_another(url_of: Any) -> None:
    queue, hint, asleep = pollwise.open(url_of("sqlite")), Hint(), threading.Event()

    async def pause() -> None:
        queue.hints().join(hint)
        queue.hints().asleep(hint)
        asleep.set()
        assert await hint.wait(PATIENCE), "the hint did not end the pause"

    async def main() -> None:
        await queue.stats()
        pausing = OtherThread(pause())
        await asyncio.to_thread(asleep.wait, PATIENCE)
        await queue.put(NewJob("job"))
        await asyncio.to_thread(pausing.join, PATIENCE / 2)
        assert not pausing.is_alive(), "it was not woken"
        assert pausing.error is None
        await queue.close()

    asyncio.run(main())
