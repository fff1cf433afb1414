"""A cancel reaches handlers in another process by a broadcast, where a store has a channel."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pollwise.queues.base import Queue
from pollwise.queues.http.queue import HttpQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.queues.urls import open_queue
from pollwise.runtime.clock import Clock
from pollwise.runtime.jobs import JobInfo, NewJob
from tests.cli.console import Lines
from tests.queues.http.stub import Served, make_api, make_app
from tests.support.private import write_private

CHILD = Path(__file__).parent / "children" / "cancellable.py"
KINDS = ("async", "plain")


@contextmanager
def child(url: str) -> Iterator[Lines]:
    """A worker process; what it tells."""
    process = subprocess.Popen([sys.executable, str(CHILD), url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield Lines(process.stdout)
    finally:
        process.kill()
        process.wait(240)


async def shown(queue: Queue, job_id: str) -> JobInfo:
    info = await queue.get(job_id)
    assert info is not None
    return info


async def cancel_each(url: str, queue: Queue, *others: Queue, proof: bool = True) -> None:
    """Cancel jobs that run in another process, through each of these queues in turn."""
    await queue.migrate()
    with child(url) as told:
        if proof:
            await asyncio.to_thread(told.until, "HintsProven")
        for each in (queue, *others):
            ids = await queue.put([NewJob(kind) for kind in KINDS])
            for _ in KINDS:
                await asyncio.to_thread(told.until, "JobStarted")
            while (await shown(queue, ids[0])).progress is None:
                await asyncio.sleep(0.02)  # real time: the other process writes it
            began = time.monotonic()
            assert await each.cancel(ids) == dict.fromkeys(ids, "leased")
            for _ in KINDS:
                await asyncio.to_thread(told.until, "JobCancelled")
            print(f"{each.url}: cancelled after {time.monotonic() - began:.3f} s")
            for job_id in ids:
                while (info := await shown(queue, job_id)).state == "leased":
                    await asyncio.sleep(0.02)  # real time: the other process settles it
                assert info.state == "cancelled"


@pytest.mark.parametrize("shared_url", ["sqlite", "postgres", "redis"], indirect=True)
def test_from_another_process(shared_url: str) -> None:
    url = f"{shared_url}&keep=1h"

    async def main() -> None:
        async with open_queue(url) as queue:
            await cancel_each(url, queue, proof=not url.startswith("sqlite"))

    asyncio.run(main())


def test_over_http_from_a_client_and_from_the_store(tmp_path: Path) -> None:
    token = tmp_path / "token"
    write_private(token, "admin")
    store = tmp_path / "jobs.db"

    async def main(url: str) -> None:
        async with (
            HttpQueue(url, token_file=token, keep="1h") as queue,
            SqliteQueue(store, keep="1h", synchronous="off") as itself,
        ):
            await cancel_each(f"{url}?token_file={token}&keep=1h", queue, itself)

    with Served(lambda: make_app(make_api(store, Clock()))) as served:
        asyncio.run(main(served.url))
