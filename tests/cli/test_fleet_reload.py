"""`pollwise fleet run` reads its file again: on SIGHUP, and when it was changed."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.cli.console import Command
from tests.cli.fleets import STORE
from tests.support.daemons import wait_until

TARGET = '[[target]]\nname = "{name}"\ntype = "command"\nrun = ["true"]\ninterval = "1h"\n'


@pytest.fixture
def file(folder: Path) -> Path:
    path = folder / "fleet.toml"
    path.write_text(TARGET.format(name="a"))
    return path


def test_sighup_and_a_change_reload_the_file_and_a_wrong_one_changes_nothing(file: Path) -> None:
    with Command("fleet", "run", "--store", STORE) as command:
        command.err.until("fleet_started")
        file.write_text(TARGET.format(name="a") + TARGET.format(name="b"))
        command.send(signal.SIGHUP)
        command.err.until("fleet_targets_changed .*added=1 changed=0 removed=0 targets=b by=SIGHUP")
        file.write_text("[[target]]\nname = 7\n")
        command.send(signal.SIGHUP)
        command.err.until("fleet_reload_failed .*name = 7 must be printable text")
        file.write_text(TARGET.format(name="b"))
        command.err.until("fleet_targets_changed .*added=0 changed=0 removed=1 targets=a by=file")
        assert command.stopped() == 0


def test_the_end_of_its_terminal_still_stops_a_fleet(file: Path) -> None:
    master, slave = pty.openpty()
    log = file.with_name("log")
    with log.open("w") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "pollwise", "fleet", "run", "--store", STORE],
            stdin=slave,
            stderr=err,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
    os.close(slave)
    try:
        wait_until(lambda: "fleet_started" in log.read_text(), "a start", within=30)
        process.send_signal(signal.SIGHUP)  # the terminal is still there
        wait_until(lambda: "by=SIGHUP" in log.read_text(), "a reload", within=30)
        os.close(master)
        assert process.wait(30) == 0
        assert "fleet_stopped" in log.read_text()
    finally:
        process.kill()
        process.wait(30)
