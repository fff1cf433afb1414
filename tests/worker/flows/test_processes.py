"""Flows in real worker processes, which are killed; and in the processes of a worker."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from pollwise import group
from pollwise.errors import JobFailed
from pollwise.queues.memory import MemoryQueue
from tests.support.forked import Forked
from tests.support.kit import Seen, options, working
from tests.worker.children import cpu, flowing

#: Only a hang lasts as long.
PATIENCE = 240.0
CHILD = Path(flowing.__file__)
FLOWS = 40


def test_flows_go_on_though_their_workers_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db?synchronous=off"
    monkeypatch.setattr(flowing.worker, "queue", url)
    started: list[Forked] = []

    def start() -> Forked:
        started.append(Forked([CHILD], env={**os.environ, "QUEUE_URL": url}, err=False))
        return started[-1]

    def up(worker: Forked) -> Forked:
        assert worker.stdout.readline() == "up\n"
        return worker

    flows = [
        group([flowing.square.s(n + each) for each in range(5)])
        .then(flowing.total, on_failure=flowing.told)
        .then(group([flowing.square, flowing.look.s()]))
        .put_sync()
        for n in range(FLOWS)
    ]
    failing = (
        group([flowing.square.s(2), flowing.refuse.s(3)])
        .then(flowing.total, on_failure=flowing.told)
        .put_sync()
    )
    workers = [start(), start()]
    try:
        for n in (0, FLOWS // 3, 2 * FLOWS // 3):
            flows[n].result(PATIENCE)
            killed = up(workers.pop(0))
            killed.kill()
            assert killed.wait(PATIENCE) == -signal.SIGKILL
            workers.append(start())
        for n, flow in enumerate(flows):
            expected = sum((n + each) ** 2 for each in range(5))
            assert flow.result(PATIENCE) == [expected**2, [expected]]
        with pytest.raises(JobFailed, match="ValueError: 3 is refused"):
            failing.result(PATIENCE)
        queue = flowing.worker.sync_queue()
        assert queue.result(failing.ids[3], PATIENCE) == "ValueError: 3 is refused"
        for flow in flows:
            view = flow.view()
            assert view is not None
            ended = [each.info.state for each in view.jobs if not each.on_failure]
            assert ended == ["done"] * 8
            assert [e.info.state for e in view.jobs if e.on_failure] == ["cancelled"]
        assert set(failing.cancel().values()) == {"done", "dead", "cancelled"}
        for worker in map(up, workers):
            worker.terminate()
            assert worker.wait(PATIENCE) == 0
    finally:
        for worker in started:
            worker.close()


def test_handlers_in_processes_get_results() -> None:
    async def main() -> None:
        queue = MemoryQueue()
        cpu.worker.queue, cpu.worker.events = queue, Seen().events
        async with working(cpu.worker, options(cpu_processes=1)):
            handle = await cpu.grow.s([7]).then(cpu.grow).put()
            assert await handle.result(PATIENCE) == [7, 0, 1]

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
