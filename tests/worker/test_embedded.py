"""A worker inside a web application, as the page on workers shows it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from pollwise.errors import HandlerError
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import JobDone, WorkerStopped
from pollwise.runtime.jobs import NewJob
from pollwise.worker import Worker
from tests.cli import console
from tests.cli.console import Lines
from tests.support.kit import Seen, options, until_empty, virtually

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "worker.md"
#: FastAPI takes seconds to import on a busy machine.
PATIENCE = 240.0
#: The same with a task of its own, whose worker might take the signals.
TASK = """
import asyncio

from app import FastAPI, asynccontextmanager, background, order, queue


@asynccontextmanager
async def lifespan(app):
    async with queue:
        running = asyncio.ensure_future(background.run())
        yield
        background.stop()
        await running


app = FastAPI(lifespan=lifespan)
app.post("/orders/{number}")(order)
"""


@pytest.mark.parametrize("how", ["app", "task"])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_uvicorn_keeps_its_signals_and_the_worker_stops_with_it(
    how: str, loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "PATIENCE", PATIENCE)
    found = re.search(r'```python title="app.py"\n(.*?)```', PAGE.read_text("utf-8"), re.DOTALL)
    assert found
    (tmp_path / "app.py").write_text(found[1], "utf-8")
    (tmp_path / "task.py").write_text(TASK, "utf-8")
    server = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", f"{how}:app", "--port", "0", "--loop", loop],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdout
    assert server.stderr
    out, err = Lines(server.stdout), Lines(server.stderr)
    try:
        url = err.until(r"running on (http://[\d.:]+)")[1]
        for number in range(3):
            request = urllib.request.Request(f"{url}/orders/{number}", method="POST")
            urllib.request.urlopen(request, timeout=PATIENCE).close()
            out.until(f"receipt {number}")
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) in (0, -signal.SIGTERM)  # uvicorn raises it again at its end
        assert "Application shutdown complete" in "\n".join(err.join())
    finally:
        server.kill()
        server.wait(PATIENCE)


def test_a_worker_runs_during_the_block_and_stops_at_its_end() -> None:
    async def main(clock: VirtualClock) -> None:
        queue, seen = MemoryQueue(clock=clock), Seen()
        worker = Worker(queue, options(), events=seen.events)
        with pytest.raises(HandlerError, match="no handler"):
            async with worker.running():
                raise AssertionError("it cannot start")
        worker.handle("x")(lambda job: None)
        async with worker.running() as same:
            assert same is worker
            assert worker.state()
            await queue.put(NewJob("x"))
            await until_empty(queue)
        assert worker.state() == {}
        assert len(seen.of(JobDone)) == len(seen.of(WorkerStopped)) == 1
        async with worker.running():
            await queue.put(NewJob("x"))
            await until_empty(queue)
        assert len(seen.of(JobDone)) == 2

    virtually(main)
