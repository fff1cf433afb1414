"""Queues for code without an event loop: every store, threads, forks, the end of a program."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

import pollwise
from pollwise import NewJob, SyncQueue, Worker, task_ref
from pollwise.errors import (
    ConfigError,
    JobError,
    JobFailed,
    PayloadError,
    StoreError,
    StoreUnavailable,
    UniqueConflict,
    Unsupported,
)
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.runtime.hints import Hint
from pollwise.runtime.home import background_loop
from pollwise.runtime.jobs import Settlement
from tests.storage import sync_child
from tests.support.kit import options
from tests.support.servers import Postgres

#: Seconds after which what should have happened fails its test.
PATIENCE = 240.0
STORES = ("memory", "sqlite", "folder", "postgres", "redis", "http", "sqs")


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[SyncQueue]:
    with pollwise.open_sync(f"sqlite:///{tmp_path}/jobs.db?synchronous=off&keep=1h") as queue:
        yield queue


def settle(url: str, result: Any) -> None:
    """Finish a job as a worker of another program would."""

    async def main() -> None:
        async with pollwise.open(url) as queue:
            [claim] = await queue.claim("elsewhere", 1, "60s")
            await queue.settle([Settlement.done(claim, result)])

    asyncio.run(main())


@pytest.mark.parametrize("store", STORES)
def test_every_store_takes_jobs_and_shows_them(store: str, url_of: Any) -> None:
    url = "memory://" if store == "memory" else url_of(store)
    with pollwise.open_sync(url) as queue:
        [first] = queue.put(NewJob("mail", {"to": "a"}))
        others = queue.put([NewJob("mail", {"to": n}) for n in range(3)])
        assert len({first, *others}) == 4
        if store == "sqs":
            with pytest.raises(Unsupported):
                queue.result(first, "1s")
            return
        info = queue.get(first)
        assert info is not None
        assert (info.job.payload, info.state) == ({"to": "a"}, "ready")
        assert queue.cancel([first]) == {first: "cancelled"}
        assert {each.job.id for each in queue.jobs("ready")} == set(others)
        assert queue.stats().ready == 3
        assert set(queue.stats_by_kind()) == {"mail"}
        assert (queue.retry(), queue.drop()) == (0, 0)
        queue.pause("mail", by="me")
        assert queue.paused()["mail"].by == "me"
        queue.resume("mail")
        assert (queue.paused(), queue.workers()) == ({}, [])


def test_a_result_is_waited_for(queue: SyncQueue) -> None:
    [job_id] = queue.put(NewJob("double", 4))
    with pytest.raises(TimeoutError, match=f"job {job_id} has not ended within 10ms"):
        queue.result(job_id, timeout="10ms")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(queue.result, job_id, "240s")
        settle(f"{queue.url}&keep=1h", 8)
        assert waiting.result(PATIENCE) == 8
    [gone] = queue.put(NewJob("double", 4))
    queue.cancel([gone])
    with pytest.raises(JobFailed, match="cancelled"):
        queue.result(gone)


def test_what_is_wrong_is_raised_where_the_call_is(queue: SyncQueue, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="expected a NewJob"):
        queue.put([{"kind": "mail"}])  # type: ignore[list-item]
    queue.put(NewJob("mail", 1, unique="once"))
    with pytest.raises(UniqueConflict, match="once"):
        queue.put(NewJob("mail", 2, unique="once"))
    assert queue.put(NewJob("mail", 1, unique="once")) == [queue.jobs()[0].job.id]
    with pytest.raises(ConfigError, match="state = 'lost'"):
        queue.jobs("lost")  # type: ignore[arg-type]
    with pollwise.open_sync(f"sqlite:///{tmp_path}/small.db?max_payload_bytes=8") as small:
        with pytest.raises(PayloadError, match="max_payload_bytes is 8"):
            small.put(NewJob("mail", "too long for that"))
        assert small.put([]) == []
    with pytest.raises(StoreError, match=r"small\.db.* is closed; open it again"):
        small.put(NewJob("mail"))
    small.close()  # again
    with pytest.raises(ConfigError, match="no queue has the scheme"):
        pollwise.open_sync("mysql://db")
    with pollwise.open_sync(f"sqlite:///{tmp_path}/none.db", create=False) as missing:
        with pytest.raises(StoreError, match="there is no database"):
            missing.put(NewJob("mail"))


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_all_that_threads_put_arrives(store: str, url_of: Any) -> None:
    threads, each = 8, 40
    with pollwise.open_sync(url_of(store)) as queue, ThreadPoolExecutor(threads) as pool:

        def put(thread: int) -> list[str]:
            ids = []
            for n in range(each):
                batch = [NewJob("job", [thread, n, m]) for m in range(1 + n % 2)]
                ids += queue.put(batch)
                assert queue.get(ids[-1]) is not None
            return ids

        put_ids = [job_id for ids in pool.map(put, range(threads)) for job_id in ids]
        found = [each.job for each in queue.jobs(limit=1000)]
    assert sorted(job.id for job in found) == sorted(put_ids)
    assert len({tuple(job.payload) for job in found}) == threads * each * 3 // 2


def test_it_may_be_called_where_an_event_loop_runs(queue: SyncQueue) -> None:
    async def notebook() -> None:
        [job_id] = queue.put(NewJob("cell"))
        assert queue.get(job_id) is not None
        queue.cancel([job_id])
        with pytest.raises(JobFailed):
            queue.result(job_id, "1m")

    asyncio.run(notebook())


def test_a_call_from_the_loop_that_answers_is_refused(queue: SyncQueue) -> None:
    async def inside() -> None:
        queue.stats()

    with pytest.raises(StoreError, match="await the async call instead"):
        asyncio.run_coroutine_threadsafe(inside(), background_loop()).result(PATIENCE)


def test_an_interrupted_wait_ends(queue: SyncQueue) -> None:
    """Ctrl+C in the thread that waits."""
    [job_id] = queue.put(NewJob("never"))
    words = [sys.executable, sync_child.__file__, "interrupt", queue.url, job_id]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ran.stdout, ran.returncode) == ("KeyboardInterrupt\n", 0), ran.stderr


@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
def test_parent_and_children_put_after_a_fork_as_under_a_prefork_server(
    store: str, url_of: Any
) -> None:
    url = url_of(store)
    words = [sys.executable, "-W", "error::ResourceWarning", sync_child.__file__, "fork", url]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ran.stdout, ran.returncode) == ("ok\n", 0), ran.stdout + ran.stderr
    with pollwise.open_sync(url) as queue:
        whose = [each.job.payload for each in queue.jobs(limit=1000)]
    assert {one: whose.count(one) for one in whose} == {
        "before": sync_child.PUTS,
        "parent": sync_child.PUTS,
        "child 0": sync_child.PUTS,
        "child 1": sync_child.PUTS,
    }


def test_a_program_ends_while_its_store_does_not_answer(url_of: Any) -> None:
    words = [sys.executable, sync_child.__file__, "silent", "redis"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ran.stdout, ran.returncode) == ("at its end\n", 0), ran.stderr


# Postgres in the calling thread


def test_puts_on_postgres_are_made_in_the_calling_thread(
    url_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pollwise.open_sync(url_of("postgres")) as queue:
        queue.put(NewJob("first"))  # checks the tables
        made = queue._queue
        assert isinstance(made, PostgresQueue)
        monkeypatch.setattr(made, "put", None)
        [one] = queue.put(NewJob("plain", {"n": 1}, priority=7, headers={"a": "b"}))
        two = queue.put([NewJob("key", n, key="k") for n in range(2)])
        [late] = queue.put(NewJob("late", delay="1h"))
        monkeypatch.undo()
        assert len({one, *two, late}) == 4
        again = queue.put([NewJob("once", unique="u"), NewJob("once", unique="u")])
        assert again[0] == again[1]
        info = queue.get(one)
        assert info is not None
        job = info.job
        assert (job.payload, job.priority, job.headers) == ({"n": 1}, 7, {"a": "b"})
        assert job.created_at == job.run_at
        states = [queue.get(each).state for each in (one, *two, late)]  # type: ignore[union-attr]
        assert states == ["ready", "ready", "blocked", "delayed"]


def test_a_worker_is_hinted_at_what_other_threads_put_on_postgres(url_of: Any) -> None:
    """The pause lasts for minutes, so only hints can end it: of the first put, and of later ones
    that are too soon for a hint in their own transaction.
    """
    url = url_of("postgres")
    woken = threading.Semaphore(0)

    async def main() -> None:
        async with pollwise.open(url) as there:
            hints, hint = there.hints(), Hint(frozenset(["job"]))
            hints.join(hint)
            while True:
                hints.asleep(hint)
                assert await there.clock.sleep(PATIENCE, hint), "no hint came"
                hints.awake(hint)
                if hints.proven_at is not None:
                    woken.release()

    sleeping = asyncio.run_coroutine_threadsafe(main(), background_loop())
    with pollwise.open_sync(url) as queue:
        for _ in range(3):
            for _ in range(3):
                queue.put(NewJob("job"))
            while woken.acquire(blocking=False):
                pass
            queue.put(NewJob("job"))
            assert woken.acquire(timeout=PATIENCE)
    sleeping.cancel()


def test_no_hint_is_lost_when_a_program_puts_and_ends(url_of: Any, postgres: Postgres) -> None:
    """A script that puts and exits must not leave a worker asleep."""
    with (
        psycopg.connect(postgres.dsn(), autocommit=True) as listening,
        pollwise.open_sync(url_of("postgres")) as queue,
    ):
        made = queue._queue
        assert isinstance(made, PostgresQueue)
        listening.execute(f'LISTEN "{made._transport.channel}"')
        for _ in range(5):
            queue.put(NewJob("job"))
        queue.close()
        hinted = 0
        while hinted < 5:
            for notice in listening.notifies(timeout=PATIENCE, stop_after=1):
                word, _, _, count, *_ = json.loads(notice.payload)
                hinted += count if word == "hint" else 0
    assert hinted == 5


def test_a_broken_connection_is_opened_again(url_of: Any, postgres: Postgres) -> None:
    with pollwise.open_sync(f"{url_of('postgres')}&application_name=cut") as queue:
        for _ in range(3):
            queue.put(NewJob("job"))
        postgres.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE application_name = 'cut'"
        )
        queue.put(NewJob("job"))
        assert queue.stats().ready == 4


def test_a_put_that_waits_for_too_long_is_cancelled_at_the_server(
    url_of: Any, postgres: Postgres
) -> None:
    url = url_of("postgres")
    with pollwise.open_sync(f"{url}&timeout=300ms") as queue:
        for _ in range(2):
            queue.put(NewJob("job"))
        with psycopg.connect(postgres.dsn()) as rude:
            rude.execute("LOCK TABLE pollwise.jobs IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(StoreUnavailable, match=r"did not answer within timeout = 0\.3 s"):
                queue.put(NewJob("late"))
    with pollwise.open_sync(url) as queue:
        assert set(queue.stats_by_kind()) == {"job"}


# Tasks


def in_thread(worker: Worker) -> tuple[threading.Thread, threading.Event]:
    """Run a worker in a thread of its own."""
    started = threading.Event()

    async def main() -> None:
        async with worker.running(options()):
            started.set()
            await asyncio.to_thread(stop.wait)

    stop = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert started.wait(PATIENCE)
    return thread, stop


def tasks_of(worker: Worker) -> Any:
    @worker.task
    def double(number: int) -> int:
        return 2 * number

    @worker.task
    def double_twice(number: int) -> int:
        job = double.put_sync(number)  # a plain function runs in a thread
        return 2 * job.result("240s")

    @worker.task
    async def in_the_loop(number: int) -> str:
        try:
            return double.put_sync(number).id
        except StoreError as error:
            return str(error)

    return double, double_twice, in_the_loop


@pytest.mark.parametrize("store", ["url", "object", "memory url", "memory"])
def test_tasks_are_put_without_an_event_loop(store: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db?synchronous=off&keep=1h"
    given: Any = {
        "url": url,
        "object": pollwise.open(url) if store == "object" else None,
        "memory url": "memory://?keep=1h",
        "memory": MemoryQueue(keep="1h"),
    }[store]
    worker = Worker(given)
    double, double_twice, in_the_loop = tasks_of(worker)
    early = double.put_sync(3)  # the worker does not run yet
    assert early.state() == "ready"
    cancelled = double.options(delay="1h").put_sync(number=4)
    assert cancelled.cancel() == "cancelled"
    with pytest.raises(PayloadError, match="number"):
        double.put_sync("three")
    thread, stop = in_thread(worker)
    try:
        assert early.result("240s") == 6
        assert double_twice.put_sync(5).result("240s") == 20
        said = in_the_loop.put_sync(1).result("240s")
        assert "await the async call instead: `await double.put" in said
        with pytest.raises(JobFailed, match="cancelled"):
            cancelled.result("1s")
        info = early.info()
        assert info is not None
        assert info.result == 6
        assert repr(early) == f"<job {early.id}>"
    finally:
        stop.set()
        thread.join(PATIENCE)
    if isinstance(given, str):
        worker.sync_queue().close()
    else:
        asyncio.run(given.close())


def test_a_task_is_put_by_name_without_an_event_loop(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    resize = task_ref("resize", url)
    job = resize.options(delay="1h").put_sync(image=7)
    assert job.state() == "delayed"
    assert job.info().job.payload == {"image": 7}  # type: ignore[union-attr]
    with pytest.raises(JobError, match="by name"):
        resize.put_sync(7)
    shared = resize.sync_queue()
    assert shared is task_ref("other", url).sync_queue() is Worker(url).sync_queue()
    shared.close()
    assert job.cancel() == "cancelled"  # opened again
    resize.sync_queue().close()
    asyncio.run(resize.close())


def test_an_object_that_belongs_to_an_event_loop_is_refused(url_of: Any) -> None:
    queue = pollwise.open(url_of("folder"))
    with pytest.raises(ConfigError, match="give its URL instead"):
        task_ref("resize", queue).put_sync(image=7)
    asyncio.run(queue.close())
