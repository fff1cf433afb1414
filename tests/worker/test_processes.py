"""Handlers in processes: they run beside each other, are killed, and die alone."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from pollwise import Job, NewJob, Worker
from pollwise.errors import HandlerError, JobFailed
from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import WorkerStopping
from pollwise.runtime.jobs import Progress
from pollwise.worker.processes.places import process_call
from pollwise.worker.processes.pool import _JOB_FIELDS, ProcessPool
from tests.support.daemons import wait_until
from tests.support.kit import Seen, options, working
from tests.worker.children import cpu

#: Only a hang lasts as long.
PATIENCE = 240.0


def is_gone(pid: int) -> bool:
    """True if a process does not run any more; a zombie that nobody reaped counts as running."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def has_ended(pid: int) -> bool:
    """As `is_gone`, but a zombie counts: its parent may be the init of a container."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not happened():
            await asyncio.sleep(0.01)  # real time: another process is at work


@asynccontextmanager
async def at_work(**chosen: Any) -> AsyncIterator[MemoryQueue]:
    """The worker of `children/cpu.py` on a queue in memory."""
    queue = MemoryQueue(keep="1h")
    cpu.worker.queue, cpu.worker.events = queue, Seen().events
    async with working(cpu.worker, options(**{"cpu_processes": 2, **chosen})):
        yield queue


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), PATIENCE))


async def error_of(queue: Queue, job_id: str) -> str:
    with pytest.raises(JobFailed) as failed:
        await queue.result(job_id, PATIENCE)
    return str(failed.value)


def test_tasks_give_results_and_share_a_context_in_each_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEFT", str(tmp_path))

    async def main() -> None:
        async with at_work(cpu_processes=1):
            added = await cpu.add.put(cpu.Point(1, 2), second=cpu.Point(3, 4))
            assert await added.result(PATIENCE) == cpu.Point(4, 6)
            found = [await (await cpu.where.put()).result(PATIENCE) for _ in range(2)]
            assert await (await cpu.thread.put()).result(PATIENCE) == os.getpid()
        [one, two] = found
        assert one == two == [one[0], one[0], 1]  # one process for both, with one context
        assert one[0] != os.getpid()
        assert {path.name for path in tmp_path.iterdir()} == {str(one[0]), str(os.getpid())}
        assert is_gone(one[0])

    run(main)


def test_two_jobs_run_at_the_same_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with at_work():
            jobs = [await cpu.meet.put(str(tmp_path), name, 2) for name in ("one", "two")]
            processes = {await job.result(PATIENCE) for job in jobs}
        assert len(processes) == 2
        assert all(map(is_gone, processes))

    run(main)


def test_a_process_that_dies_fails_its_own_job_only(tmp_path: Path) -> None:
    async def main() -> None:
        async with at_work() as queue:
            [other] = await queue.put(NewJob("slow", str(tmp_path)))
            await until((tmp_path / "begun").exists)
            died = "the process of the handler of kind 'die'"
            for how, told in (
                ("SIGSEGV", "was killed by SIGSEGV"),
                ("SIGKILL", "was killed by SIGKILL; the system may have run out of memory"),
                ("exit", "ended with exit code 3"),
            ):
                job = await cpu.die.put(how)
                assert await job.result(PATIENCE) == 2  # retried in another process
                info = await job.info()
                assert info is not None
                assert [each.error for each in info.errors] == [f"HandlerCrashed: {died} {told}"]
            (tmp_path / "go").touch()
            await queue.result(other, PATIENCE)
        assert (tmp_path / "ended").exists()

    run(main)


def test_a_misused_socket_fails_its_own_job_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "asyncio")

    async def main() -> None:
        async with at_work(cpu_processes=1) as queue:
            for how, told in (
                ("daemon", "ended with exit code 5"),  # what it left holds the socket open
                ("write", "was killed: something in it wrote to the socket"),
            ):
                job = await cpu.misuse.put(how, str(tmp_path))
                assert told in await error_of(queue, job.id)
            job = await cpu.misuse.put("fork", str(tmp_path))
            assert await job.result(PATIENCE) == 0  # a fork cannot write between its messages
        (tmp_path / "go").touch()
        assert not caplog.records

    run(main)


def test_errors_are_treated_as_in_the_worker_itself(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def main() -> None:
        async with at_work() as queue:
            jobs = {how: await cpu.fail.put(how) for how in ("own", "reject", "exit", "os")}
            snoozed = await cpu.fail.put("snooze")
            jobs["cancelled"] = await cpu.fail.put("cancelled")
            texts = {how: await error_of(queue, job.id) for how, job in jobs.items()}
            infos = {how: await job.info() for how, job in jobs.items()}
            attempts = {how: info and info.job.attempt for how, info in infos.items()}
            assert "Own: of the program" in texts["own"]  # excluded by its Retry
            assert "never" in texts["reject"]
            assert "SystemExit: 4" in texts["exit"]
            assert "OSError: [Errno 5] os" in texts["os"]
            assert attempts == {"own": 1, "reject": 1, "exit": 3, "os": 3, "cancelled": 1}
            assert await jobs["cancelled"].state() == "cancelled"
            assert "enough" in texts["cancelled"]
            assert await snoozed.state() == "delayed"

    run(main)
    logged = [record for record in caplog.records if record.name == "cpu"]
    assert [record.getMessage() for record in logged] == ["about to fail: os"] * 3
    assert os.getpid() not in {record.process for record in logged}


def test_progress_is_passed_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with at_work() as queue:
            job = await cpu.steps.put(str(tmp_path))

            async def progress() -> Progress | None:
                info = await queue.get(job.id)
                return None if info is None else info.progress

            while (found := await progress()) is None or found.note != "step 999":
                await asyncio.sleep(0.01)  # real time: another process is at work
            assert found.fraction == 0.999
            (tmp_path / "seen").touch()
            assert await job.result(PATIENCE) is False

    run(main)


def test_a_timeout_kills_the_process_and_what_it_started(tmp_path: Path) -> None:
    async def main() -> None:
        async with at_work() as queue:
            job = await cpu.hang.put(str(tmp_path))
            error = await error_of(queue, job.id)
            assert "ran longer than its timeout of 1 s; its process was killed" in error
            if (tmp_path / "begun").exists():  # else it was killed before it began its own
                process, started = map(int, (tmp_path / "begun").read_text().split())
                assert is_gone(process)
                await until(lambda: has_ended(started))

    run(main)


def test_a_cancel_kills_the_process(tmp_path: Path) -> None:
    async def main() -> None:
        async with at_work(lease="1s") as queue:
            [job] = await queue.put(NewJob("slow", str(tmp_path)))
            await until((tmp_path / "begun").exists)
            await queue.cancel([job])
            assert "cancelled" in await error_of(queue, job)
            assert is_gone(int((tmp_path / "begun").read_text()))
        assert not (tmp_path / "ended").exists()

    run(main)


def test_a_stop_lets_a_job_finish_and_ends_the_processes(tmp_path: Path) -> None:
    async def main() -> None:
        async with at_work(grace="200s") as queue:
            [job] = await queue.put(NewJob("slow", str(tmp_path)))
            await until((tmp_path / "begun").exists)
            process = int((tmp_path / "begun").read_text())
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(process, number)  # as a service manager may, to all processes
            cpu.worker.events.subscribe(lambda _: (tmp_path / "go").touch(), WorkerStopping)
        assert (tmp_path / "ended").exists()
        info = await queue.get(job)
        assert info is not None
        assert (info.state, info.job.attempt) == ("done", 1)
        assert is_gone(process)

    run(main)


def test_a_stop_kills_what_outlasts_the_grace(tmp_path: Path) -> None:
    async def main() -> None:
        async with at_work(grace=0) as queue:
            [job] = await queue.put(NewJob("slow", str(tmp_path)))
            await until((tmp_path / "begun").exists)
        info = await queue.get(job)
        assert info is not None
        assert info.state == "ready"  # given back
        assert is_gone(int((tmp_path / "begun").read_text()))

    run(main)


def test_jobs_for_busy_processes_leave_their_places_to_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with at_work(cpu_processes=1, concurrency=4) as queue:
            (tmp_path / "two").mkdir()
            [one] = await queue.put(NewJob("slow", str(tmp_path)))
            await until((tmp_path / "begun").exists)
            waiting = await queue.put([NewJob("slow", str(tmp_path / "two"))] * 8)
            for _ in range(3):
                assert await (await cpu.thread.put()).result(PATIENCE) == os.getpid()
            assert {info.job.id for info in await queue.jobs("ready")} == set(waiting)
            (tmp_path / "go").touch()
            (tmp_path / "two" / "go").touch()
            for job in (one, *waiting):
                await queue.result(job, PATIENCE)

    run(main)


def test_a_process_that_died_while_idle_or_grew_is_replaced() -> None:
    async def main() -> None:
        calls = {"where": process_call("where", inspect.unwrap(cpu.where), task=True)}
        pool = ProcessPool(1, calls, cpu.shared, None, Clock())
        job = Job("1", "default", "where", {}, None, 0, 1, 0.0, 0.0, None)

        async def where() -> int:
            async with pool.place("where", True) as call:
                process: int = (await call(job))[0]
                return process

        first = await where()
        os.kill(first, signal.SIGKILL)
        await until(lambda: has_ended(first))
        second = await where()
        assert await where() == second
        pool._max_memory = 1
        assert await where() == second
        third = await where()
        assert len({first, second, third}) == 3
        await pool.close()
        assert all(map(is_gone, (first, second, third)))

    run(main)


def test_a_script_works_and_dies_with_its_processes(tmp_path: Path) -> None:
    """Run as a program, its functions are in `__main__`. Killed, it leaves no process behind."""
    database = tmp_path / "jobs.db"
    environment = {**os.environ, "QUEUE_URL": f"sqlite:///{database}"}
    script = subprocess.Popen([sys.executable, cpu.__file__], env=environment)
    try:

        async def main() -> None:
            async with SqliteQueue(database) as queue:
                await queue.put(NewJob("slow", str(tmp_path)))

        run(main)
        wait_until((tmp_path / "begun").exists, "the job")
        process = int((tmp_path / "begun").read_text())
        assert not is_gone(process)
        script.kill()
        script.wait(PATIENCE)
        wait_until(lambda: has_ended(process), "the end of its process")
    finally:
        script.kill()
        script.wait(PATIENCE)


def test_a_process_gets_every_field_of_a_job_that_can_run() -> None:
    names = {each.name for each in fields(Job)} - {"unreadable", "locked"}  # such a job is not run
    assert set(_JOB_FIELDS) == names


# What cannot run in a process


def elsewhere(job: Job) -> None: ...


renamed = elsewhere
del elsewhere


def test_what_no_process_can_import_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(MemoryQueue())

    def local(job: Job) -> None: ...

    with pytest.raises(HandlerError, match=r"inside another function.* the top level of a mod"):
        worker.handle("local", process=True)(local)
    with pytest.raises(HandlerError, match="or a lambda"):
        worker.handle("nameless", process=True)(lambda job: None)
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    monkeypatch.delattr(main, "__file__", raising=False)
    monkeypatch.setattr(cpu.wait_for, "__module__", "__main__")
    with pytest.raises(HandlerError, match=r"'wait_for'|wait_for of kind.*interactive session"):
        worker.task("waits", process=True)(cpu.wait_for)
    assert worker.kinds == ()
    worker.handle("renamed", process=True)(renamed)
    with pytest.raises(HandlerError, match=r"'renamed' cannot run in a process: .* is not"):
        asyncio.run(worker.run())
