"""Shared by the tests of the command line: commands in this process, and in processes."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import queue
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any
from unittest import mock

from pollwise.cli import main
from tests.support.forked import Forked

#: A child that has not done its work after this many seconds fails its test.
PATIENCE = 240.0
#: A terminal's control sequences.
SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|[@-Z\\-_])")


@dataclass(frozen=True)
class Result:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The only document on standard output."""
        assert self.out.endswith("\n")
        assert self.out.count("\n") == 1
        return json.loads(self.out, parse_constant=_no_constant)


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def pollwise(*words: object, stdin: bytes = b"", encoding: str = "utf-8") -> Result:
    """Run a command in this process as a shell would: through `main`, with pipes."""
    out, err = io.BytesIO(), io.BytesIO()
    with (
        warnings.catch_warnings(),
        mock.patch.object(sys, "argv", ["pollwise", *map(str, words)]),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8")),
        contextlib.redirect_stdout(io.TextIOWrapper(out, encoding, write_through=True)),
        contextlib.redirect_stderr(io.TextIOWrapper(err, encoding, write_through=True)),
    ):
        code: object = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        assert isinstance(code, int)
        return Result(code, out.getvalue().decode(encoding), err.getvalue().decode(encoding))


def good(*words: object, stdin: bytes = b"") -> Result:
    """Run a command that must succeed."""
    result = pollwise(*words, stdin=stdin)
    assert result.code == 0, result.err
    return result


def files(folder: Path) -> dict[str, bytes | None]:
    """Everything under a folder, with its contents; None for a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts
    }


def plain(text: str) -> str:
    """The text that a terminal shows, without colours and movements."""
    return SEQUENCE.sub("", text)


class Lines:
    """The lines of a stream, each read within a deadline."""

    def __init__(self, stream: IO[str]) -> None:
        self.all: list[str] = []
        self._next: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self.all.append(line.rstrip("\n"))
                self._next.put(self.all[-1])
        self._next.put(None)

    def until(self, pattern: str) -> re.Match[str]:
        """The next line in which `pattern` is found."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                line = self._next.get(timeout=max(deadline - time.monotonic(), 0))
            except queue.Empty:
                raise AssertionError(f"no {pattern!r} in time, but {self.all}") from None
            assert line is not None, f"the stream ended without {pattern!r}: {self.all}"
            found = re.search(pattern, line)
            if found:
                return found

    def join(self) -> list[str]:
        self._thread.join(PATIENCE)
        return self.all


class Command:
    """`python -m pollwise …` as a process; it is ended at the end of the block."""

    def __init__(self, *words: object, env: dict[str, str] | None = None) -> None:
        self._process = Forked(["-m", "pollwise", *words], env={**os.environ, **(env or {})})
        self.out = Lines(self._process.stdout)
        self.err = Lines(self._process.stderr)

    def __enter__(self) -> Command:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self.send(signal.SIGTERM)  # so that it ends its own children
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(PATIENCE)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """Wait for its end and return its exit code; then `out.all` and `err.all` are complete."""
        code = self._process.wait(PATIENCE)
        self.out.join()
        self.err.join()
        return code

    def stopped(self) -> int:
        """Like `end`, after a SIGTERM."""
        self.send(signal.SIGTERM)
        return self.end()


def is_alive(pid: int) -> bool:
    """True if a process runs; False for one that has ended and was not waited for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


class Screen:
    """A command in its own terminal, with a number of columns and rows."""

    def __init__(self, columns: int, rows: int, *words: object, env: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pollwise", *map(str, words)],
            env={**os.environ, "TERM": "xterm", **env},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self._bytes = b""

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(PATIENCE)
        os.close(self._master)

    @property
    def raw(self) -> str:
        return self._bytes.decode(errors="replace")

    @property
    def lines(self) -> list[str]:
        """All that was ever drawn, line by line."""
        return plain(self.raw).replace("\r", "\n").splitlines()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._master, keys.encode())

    @property
    def settings(self) -> list[Any]:
        """The settings of the terminal, such as whether it shows what is typed."""
        return termios.tcgetattr(self._master)

    def until(self, pattern: str) -> None:
        """Read until `pattern` was drawn."""
        deadline = time.monotonic() + PATIENCE
        while not re.search(pattern, plain(self.raw)):
            assert self._read(deadline), f"no {pattern!r}, but:\n{plain(self.raw)}"

    def end(self) -> int:
        """Read to the end and return the exit code."""
        deadline = time.monotonic() + PATIENCE
        while self._read(deadline):
            pass
        return self._process.wait(PATIENCE)

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(deadline - time.monotonic(), 0))
        assert ready, f"nothing more in time, after:\n{plain(self.raw)}"
        try:
            chunk = os.read(self._master, 65536)
        except OSError:  # the other end is closed
            return False
        self._bytes += chunk
        return bool(chunk)
