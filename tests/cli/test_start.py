"""Signals while a command starts: it has begun nothing yet, and ends without a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pollwise.cli import LONG_RUNNING
from pollwise.platforms import signals

#: Only a hang lasts as long.
PATIENCE = 240.0
STOPS = "import sys\nprint('importing', flush=True)\nsys.stdin.read()\n"


def run_until(folder: Path, number: signal.Signals, *words: str) -> tuple[int, str]:
    """The exit code and the errors of a command that gets a signal in the middle of an import."""
    with subprocess.Popen(
        [sys.executable, "-m", "pollwise", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, errors


@pytest.mark.parametrize("words", LONG_RUNNING, ids=" ".join)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_while_the_command_itself_is_imported(
    words: tuple[str, ...], number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "typer.py").write_text(STOPS)
    code, errors = run_until(tmp_path, number, *words, "shop:worker")
    assert (code, errors) == (0, f"stopped by {number.name} before it began\n")


@pytest.mark.parametrize("words", [("worker", "shop:worker"), ("outbox", "run", "shop:outbox")])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_while_the_program_is_imported(
    words: tuple[str, ...], number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(STOPS)
    code, errors = run_until(tmp_path, number, *words)
    assert (code, errors) == (0, f"stopped by {number.name} before it began\n")


def test_commands_that_end_by_themselves_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text(STOPS)
    code, _ = run_until(tmp_path, signal.SIGTERM, "queue", "stats", "sqlite:///jobs.db")
    assert code == -signal.SIGTERM


def test_handlers_of_others_stay_and_the_usual_ones_come_back() -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    own = signal.getsignal(signal.SIGTERM)
    interrupts = signal.getsignal(signal.SIGINT)
    try:
        with signals.ending_the_start():
            assert signal.getsignal(signal.SIGTERM) is own
            assert signal.getsignal(signal.SIGINT) is signals.end_start
        assert signal.getsignal(signal.SIGTERM) is own
        assert signal.getsignal(signal.SIGINT) is interrupts
    finally:
        signal.signal(signal.SIGTERM, before)
