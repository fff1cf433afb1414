"""Handlers for a process pool, and a worker with them. Marks are files in a folder."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from pollwise import (
    Cancelled,
    Job,
    Reject,
    Retry,
    Snooze,
    Worker,
    WorkerRunOptions,
    from_context,
    results_before,
)

#: Ends a handler that would wait for ever.
PATIENCE = 240.0
worker = Worker(os.environ.get("QUEUE_URL", "memory://"))


class Own(Exception):
    """An error of the program."""


@dataclass
class Point:
    x: int
    y: int


@worker.context
async def shared() -> AsyncIterator[dict[str, int]]:
    yield {"process": os.getpid()}
    if "LEFT" in os.environ:
        Path(os.environ["LEFT"], str(os.getpid())).touch()


def wait_for(path: Path) -> None:
    until = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > until:
            raise TimeoutError(path)
        time.sleep(0.01)  # real time: another process decides


@worker.task(process=True)
def add(first: Point, second: Point) -> Point:
    return Point(first.x + second.x, first.y + second.y)


@worker.task(process=True)
def grow(numbers: list[int], before: list[list[int]] = results_before) -> list[int]:
    return [*numbers, len(before)]


@worker.task(process=True)
async def where(job: Job, context: dict[str, int] = from_context) -> list[int]:
    await asyncio.sleep(0)
    return [os.getpid(), context["process"], job.attempt]


@worker.task(process=True)
def meet(folder: str, name: str, others: int) -> int:
    """Ends when others run at the same time."""
    Path(folder, name).write_text(str(os.getpid()))
    until = time.monotonic() + PATIENCE
    while len(list(Path(folder).iterdir())) < others:
        if time.monotonic() > until:
            raise TimeoutError(name)
    return os.getpid()


@worker.task(process=True, retry=Retry.fixed("10ms", attempts=2))
def die(job: Job, how: str) -> int:
    """Kills its process at the first attempt."""
    if job.attempt == 1:
        if how == "exit":
            os._exit(3)
        os.kill(os.getpid(), getattr(signal, how))
        time.sleep(PATIENCE)  # real time: the signal ends it
    return job.attempt


@worker.task(process=True, retry=Retry.fixed("10ms", attempts=3, exclude=Own))
def fail(how: str) -> None:
    if how == "own":
        raise Own("of the program")
    if how == "reject":
        raise Reject("never")
    if how == "exit":
        sys.exit(4)
    if how == "snooze":
        raise Snooze("1h")
    if how == "cancelled":
        raise Cancelled("enough")
    logging.getLogger("cpu").warning("about to fail: %s", how)
    raise OSError(5, how)


@worker.task(process=True, retry=Retry.never())
def misuse(how: str, folder: str) -> int:
    """Does to the socket of the worker what no handler should do."""
    [connection] = [fd for fd in range(3, 100) if is_socket(fd)][:1]
    if how == "write":
        os.write(connection, (5).to_bytes(8) + b"{{{{{")
        wait_for(Path(folder, "go"))
    copy = os.dup(connection) if how == "daemon" else connection
    child = os.fork()
    if child == 0:
        if how == "daemon":
            os.setsid()
            wait_for(Path(folder, "go"))
        os._exit(is_socket(copy))
    if how == "daemon":
        os._exit(5)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def is_socket(fd: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False


@worker.task(process=True, timeout="1s", retry=Retry.never())
def hang(folder: str) -> None:
    """Hangs together with a process that it started."""
    with subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({PATIENCE})"]) as child:
        Path(folder, "begun.part").write_text(f"{os.getpid()} {child.pid}")
        Path(folder, "begun.part").rename(Path(folder, "begun"))
        child.wait()


@worker.handle("slow", process=True)
def slow(job: Job) -> None:
    """Ends when the file `go` exists."""
    folder = Path(job.payload)
    (folder / "begun.part").write_text(str(os.getpid()))
    (folder / "begun.part").rename(folder / "begun")
    wait_for(folder / "go")
    (folder / "ended").touch()


@worker.task(process=True)
def steps(job: Job, folder: str) -> bool:
    """Reports more often than reports are passed on, and waits until its newest one is stored."""
    for n in range(1000):
        job.progress(n / 1000, f"step {n}")
    wait_for(Path(folder, "seen"))
    job.progress(1.0)
    return job.cancel_requested


@worker.task
def thread() -> int:
    return os.getpid()


if __name__ == "__main__":
    asyncio.run(worker.run(WorkerRunOptions(cpu_processes=2, lease="2s", grace="60s")))
