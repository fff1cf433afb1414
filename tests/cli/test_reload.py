"""`pollwise worker --reload`: new code runs, wrong code is shown, and nothing is left behind."""

from __future__ import annotations

import builtins
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from pollwise.cli.worker.reloading import folders_of
from tests.cli.console import Command, good, is_alive, pollwise
from tests.support.daemons import wait_until

URL = "sqlite:///jobs.db"
SHOP = """
import asyncio, os
import pollwise
import prices

worker = pollwise.Worker("sqlite:///jobs.db")

@worker.handle("greet")
async def greet(job):
    print(prices.TEXT, job.payload, os.getpid(), flush=True)

@worker.handle("slow")
async def slow(job):
    print("begun", prices.TEXT, os.getpid(), flush=True)
    await asyncio.Event().wait()
"""


@pytest.fixture(autouse=True)
def shop(folder: Path) -> None:
    (folder / "shop.py").write_text(SHOP)
    (folder / "prices.py").write_text("TEXT = 'one'\n")


def replace(path: Path, text: str) -> None:
    """As editors write: at once."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def test_new_code_runs_and_wrong_code_waits_for_the_next_change(folder: Path) -> None:
    with Command("worker", "shop:worker", "--reload") as worker:
        good("queue", "put", URL, "greet", "1")
        first = int(worker.out.until(r"^one 1 (\d+)")[1])
        replace(folder / "prices.py", "TEXT = 'two'\n")
        worker.err.until(r"prices\.py changed: restart")
        good("queue", "put", URL, "greet", "2")
        second = int(worker.out.until(r"^two 2 (\d+)")[1])
        assert first != second
        replace(folder / "prices.py", "TEXT = 'three\n")
        worker.err.until("SyntaxError: unterminated string")
        worker.err.until("the worker ended with code 2; it starts again when a file changes")
        good("queue", "put", URL, "greet", "3")
        replace(folder / "prices.py", "TEXT = 'four'\n")
        third = int(worker.out.until(r"^four 3 (\d+)")[1])
        worker.send(signal.SIGINT)
        assert worker.end() == 0
    assert not any(map(is_alive, (first, second, third)))


def test_a_job_that_does_not_end_is_given_back_and_a_kill_leaves_nothing(folder: Path) -> None:
    words = ["--reload", "--reload-dir", ".", "--set", "worker.grace=0s"]
    with Command("worker", "shop:worker", *words) as worker:
        good("queue", "put", URL, "slow")
        worker.out.until("^begun one")
        replace(folder / "prices.py", "TEXT = 'two'\n")
        process = int(worker.out.until(r"^begun two (\d+)")[1])
        os.kill(worker.pid, signal.SIGKILL)
        worker.end()
        wait_until(lambda: not is_alive(process), "the end of the worker")


def test_the_folders_of_code_are_watched(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "books").mkdir()
    (elsewhere / "books" / "__init__.py").write_text("raise RuntimeError('not imported here')\n")
    monkeypatch.syspath_prepend(elsewhere)
    assert folders_of("shop:worker") == [folder]
    assert folders_of("books.jobs:worker") == [folder, elsewhere / "books"]
    assert folders_of("typer:worker") == folders_of("json:worker") == [folder]
    assert folders_of("no such:worker") == folders_of("nowhere:worker") == [folder]


def test_what_cannot_be_reloaded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["--processes", "2"], ["--once"]):
        refused = pollwise("worker", "shop:worker", "--reload", *words)
        assert (refused.code, "--reload runs one process" in refused.err) == (2, True)
    refused = pollwise("worker", "shop:worker", "--reload", "--reload-dir", "nowhere")
    assert (refused.code, "nowhere is not a folder" in refused.err) == (2, True)
    refused = pollwise("worker", "shop:worker", "--reload-dir", ".")
    assert (refused.code, "--reload-dir needs --reload" in refused.err) == (2, True)
    real = builtins.__import__

    def without(name: str, *given: Any, **named: Any) -> Any:
        if name == "watchfiles":
            raise ImportError(name)
        return real(name, *given, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    missing = pollwise("worker", "shop:worker", "--reload")
    assert missing.code == 2
    assert "--reload needs an extra: pip install 'pollwise[reload]'" in missing.err
