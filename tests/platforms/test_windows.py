"""The package on a simulated Windows: what must work there does, and the rest says why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.private import write_private
from tests.support.systems import on_windows


def told(code: str, *words: str) -> Any:
    """What the code prints, as JSON."""
    run = on_windows(code, *words)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def test_the_simulation_takes_away_what_windows_lacks() -> None:
    found = told("""
import json
def raised(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__

async def reader():
    asyncio.get_running_loop().add_reader(0, print)

async def program():
    await asyncio.create_subprocess_exec("true", pass_fds=[1])

calls = [lambda: __import__("fcntl"), lambda: os.fork, lambda: signal.SIGKILL,
         lambda: asyncio.run(reader()), lambda: asyncio.run(program())]
print(json.dumps([raised(call) for call in calls]))
""")
    assert found == [
        "ModuleNotFoundError", "AttributeError", "AttributeError", "NotImplementedError",
        "AssertionError",
    ]  # fmt: skip


def test_every_module_can_be_imported() -> None:
    found = told("""
import importlib, json, pkgutil, pollwise
from pollwise.errors import MissingExtra

failed, count = {}, 0
# The modules of Django need a project, and the rest programs.
LEFT_OUT = ("pollwise.contrib.django.", "pollwise.__main__", "pollwise.agent.commands.supervisor")
for name in pollwise.__all__:
    getattr(pollwise, name)
for module in pkgutil.walk_packages(pollwise.__path__, "pollwise.", failed.get):
    if not module.name.startswith(LEFT_OUT):
        count += 1
        try:
            importlib.import_module(module.name)
        except MissingExtra:
            pass
        except Exception as error:
            failed[module.name] = repr(error)
print(json.dumps([count, failed]))
""")
    count, failed = found
    assert failed == {}
    assert count > 700


WORK = """
import json, threading, pollwise

async def poll():
    found = iter(([], [1], [2]))

    async def fetch():
        return next(found)

    async for batch in pollwise.poll(fetch, pollwise.Fixed(0.001)):
        if batch == [2]:
            return batch

worker = pollwise.Worker(pollwise.open(sys.argv[1]))
ran = []

@worker.handle("plain")
def plain(job):
    ran.append([job.payload, threading.current_thread() is threading.main_thread()])
    signal.raise_signal(STOP)

async def work():
    await worker.queue.put(pollwise.NewJob("plain", 1))
    await worker.run()

polled = asyncio.run(poll())
asyncio.run(work())
print(json.dumps([polled, ran]))
"""


@pytest.mark.parametrize("stop", ["SIGINT", "SIGTERM", "SIGBREAK"])
def test_polling_and_a_worker_on_sqlite_run_until_ctrl_c(stop: str, tmp_path: Path) -> None:
    code = WORK.replace("STOP", f"signal.{stop}")
    polled, ran = told(code, f"sqlite:///{tmp_path / 'jobs.db'}")
    assert polled == [2]
    assert ran == [[1, False]]


def test_calls_that_block_share_a_loop_in_the_background(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    assert told(
        """
import json, pollwise
from pollwise.runtime.home import background_loop, run_in

queue = pollwise.open(sys.argv[1])
(job,) = run_in(background_loop(), queue.put(pollwise.NewJob("a", {})))
print(json.dumps([len(job) > 0, pollwise.until_sync(lambda: True, name="x", poll_cost=1)]))
""",
        url,
    ) == [True, True]


CLI = """
import contextlib, io, json
from pollwise.cli import main

def command(*words):
    sys.argv = ["pollwise", *words]
    out, said = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as end:
            code = end.code
    return [code, out.getvalue(), " ".join(said.getvalue().split())]
"""
JOBS = """
from pollwise import Worker
worker = Worker("sqlite:///jobs.db")

@worker.handle("x")
def x(job): ...
"""


def test_commands_work_or_say_why_not(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    write_private(tmp_path / "token", "x" * 40)
    (tmp_path / "watch.toml").write_text(
        '[[target]]\nname = "a"\ntype = "command"\nrun = ["true"]\n'
        '[[target]]\nname = "b"\ntype = "systemd"\nunit = "a.service"\n'
    )
    commands = [
        ["--help"],
        ["worker", "--help"],
        ["worker", "jobs:worker", "--once"],
        ["queue", "stats", "sqlite:///jobs.db"],
        ["worker", "jobs:worker", "--processes", "2"],
        ["worker", "jobs:worker", "--reload"],
        ["agent", "--controller", "http://localhost:1", "--token-file", "token", "--", "python"],
        ["fleet", "run", "--file", "watch.toml"],
    ]
    code = f"{CLI}\nos.chdir(sys.argv[1])\nsys.path.insert(0, sys.argv[1])\n"
    code += f"print(json.dumps([command(*words) for words in {commands!r}]))"
    *fine, processes, reload, agent, fleet = told(code, str(tmp_path))
    assert [each[0] for each in fine] == [0, 0, 0, 0], fine
    assert "Usage" in fine[0][1]
    assert processes[0] == reload[0] == agent[0] == 2
    assert "--processes 2 needs Linux or macOS, and this is Windows; start" in processes[2]
    assert "--reload needs Linux or macOS, and this is Windows; restart" in reload[2]
    assert "an agent needs Linux or macOS, and this is Windows; run it there" in agent[2]
    assert fleet[0] == 2
    assert (fleet[1] + fleet[2]).count("needs Linux or macOS, and this is Windows") == 2


def test_handlers_in_processes_are_refused_when_they_are_added() -> None:
    said = told("""
import json, pollwise

worker = pollwise.Worker("sqlite:///jobs.db")

def work(job): ...

try:
    worker.handle("work", process=True)(work)
except pollwise.errors.HandlerError as error:
    print(json.dumps(str(error)))
""")
    assert "that needs Linux or macOS; leave process=True out" in said


def test_postgres_in_the_usual_loop_is_refused_before_it_connects() -> None:
    usual, commands = told("""
import json
from pollwise.errors import ConfigError
from pollwise.platforms import loops
from pollwise.storage.postgres.wire import WireConnection

async def main():
    try:
        await WireConnection.connect("host=127.0.0.1 port=1")
    except ConfigError as error:
        return str(error)

async def loop():
    return type(asyncio.get_running_loop()).__name__

print(json.dumps([asyncio.run(main()), loops.run(loop())]))
""")
    assert "Postgres cannot be used in the ProactorEventLoop" in usual
    assert "asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)" in usual
    assert commands == "SelectorEventLoop"  # psycopg is installed here
