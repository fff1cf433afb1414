"""One command: reads its output, ends it with signals, and never leaves it running."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pollwise.platforms import processes, signals

#: How much output is read at once, in bytes.
PIECE = 65536
#: How long to wait for output after a command ended, if a process keeps the pipe, in seconds.
LINGER = 2.0
#: How long a supervisor may take to kill all processes, in seconds.
SUPERVISOR_WITHIN = 10.0
SUPERVISOR = str(Path(__file__).with_name("supervisor.py"))
#: How often processes without a supervisor are looked for and killed.
END_TRIES = 20


@dataclass(frozen=True)
class CommandResult:
    """How a command ended: its exit code, or why it did not start; `why` it was stopped."""

    exit_code: int | None
    error: str | None = None
    why: str | None = None


class Stop:
    """Asks a job to end.

    why: "cancel"; or "lost" or "given back" if the job is no longer ours, which takes precedence.
    """

    def __init__(self) -> None:
        self.why: str | None = None
        self._asked = asyncio.Event()
        self._over = asyncio.Event()

    def ask(self, why: str) -> None:
        if why != "cancel" and not self._over.is_set():
            self.why = why
            self._over.set()
        elif self.why is None:
            self.why = why
        self._asked.set()

    async def wait(self, *, over: bool = False) -> None:
        """Wait until the job is asked to end; with `over`, until it is no longer ours."""
        await (self._over if over else self._asked).wait()


@dataclass(frozen=True)
class Command:
    """A command that runs in a folder, under a supervisor that ends all that it starts.

    output: receives what it writes to stdout and stderr.
    user: "uid:gid:name" of its user; "" for the agent's.
    """

    words: Sequence[str]
    folder: Path
    environ: Mapping[str, str]
    output: Callable[[bytes], None]
    timeout: float | None
    kill_after: float
    user: str = ""

    async def run(self, stop: Stop) -> CommandResult:
        """Run it until it ends or is stopped."""
        # With asyncio's own pipe, a command would end only when all processes that inherited the
        # pipe have ended, and one that could not be killed may run for long.
        output, output_in = os.pipe()
        status, status_in = os.pipe()
        control_out, control = os.pipe()
        reading = _PipeReader(output, self.output)
        supervisor = [sys.executable, "-I", "-S", SUPERVISOR, str(control_out), str(status_in)]
        try:
            with (self.folder / "payload.json").open("rb") as payload:
                process = await asyncio.create_subprocess_exec(
                    *supervisor,
                    self.user,
                    *self.words,
                    stdin=payload,
                    stdout=output_in,
                    stderr=asyncio.subprocess.STDOUT,
                    cwd=self.folder,
                    env=dict(self.environ),
                    pass_fds=(control_out, status_in),
                    **processes.own_group(),
                )
        except OSError as error:
            reading.close()
            os.close(control)
            os.close(status)
            return CommandResult(None, f"the command could not be started: {error}")
        finally:
            for pipe in (output_in, status_in, control_out):
                os.close(pipe)
        try:
            why = await self._wait(process, control, stop)
        finally:
            os.close(control)  # now the supervisor kills everything
            told = await self._ended(process, status)
            await reading.end(LINGER)
        if "error" in told:
            return CommandResult(None, f"the command could not be started: {told['error']}")
        if told.get("left"):
            self.output(f"\n[pollwise: {told['left']} processes could not be ended]\n".encode())
        code = told.get("code", -signals.KILL)
        return CommandResult(code, _error(code, why, self.timeout), why)

    async def _wait(
        self, process: asyncio.subprocess.Process, control: int, stop: Stop
    ) -> str | None:
        """Wait for its end, and end it when asked to or overdue; the reason, if so."""
        ended = asyncio.ensure_future(process.wait())
        asked = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait(
                [ended, asked], timeout=self.timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if ended.done():
                return None
            overdue = stop.why is None
            with suppress(OSError):
                os.write(control, b"T")
            await asyncio.wait([ended], timeout=self.kill_after)
            return "timeout" if overdue and stop.why in (None, "cancel") else stop.why
        finally:
            for task in (ended, asked):
                task.cancel()

    async def _ended(self, process: asyncio.subprocess.Process, status: int) -> dict[str, Any]:
        """Wait until the supervisor has killed all processes; what it reports."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(SUPERVISOR_WITHIN):
                    await process.wait()
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            os.set_blocking(status, False)
            with suppress(OSError, ValueError):
                # The first line: a command that could not be started has ended as well.
                told: dict[str, Any] = json.loads(os.read(status, PIECE).partition(b"\n")[0])
                return told
        finally:
            os.close(status)
        # The command has killed its supervisor. What it started has the job's environment.
        await asyncio.to_thread(end_processes, self.folder)
        return {}


def processes_of(folder: Path) -> list[int]:
    """The processes of jobs whose folder is this one or in it, by the environment they inherit.

    Only Linux shows the environment; on other systems none is found, and they end by themselves.
    """
    return processes.with_variable(b"POLLWISE_WORK=" + os.fsencode(folder.absolute()))


def end_processes(folder: Path) -> None:
    """Kill the processes of jobs whose folder is this one or in it."""
    for _ in range(END_TRIES):
        found = processes_of(folder)
        if not found:
            return
        processes.kill_all(found)


class _PipeReader:
    """Reads a pipe until its end."""

    def __init__(self, file: int, output: Callable[[bytes], None]) -> None:
        self._file = file
        self._give = output
        self._over = asyncio.Event()
        os.set_blocking(file, False)
        asyncio.get_running_loop().add_reader(file, self._read)

    def _read(self) -> None:
        try:
            piece = os.read(self._file, PIECE)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if piece:
            self._give(piece)
        else:
            self.close()

    async def end(self, within: float) -> None:
        """Wait for the rest, at most this long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._over.wait()
        self.close()

    def close(self) -> None:
        if not self._over.is_set():
            self._over.set()
            asyncio.get_running_loop().remove_reader(self._file)
            os.close(self._file)


def _error(code: int | None, why: str | None, timeout: float | None) -> str | None:
    if why == "timeout":
        return f"the command ran longer than its timeout of {timeout:g} s and was ended"
    if why is not None or code == 0 or code is None:
        return None
    if code < 0:
        return f"the command was ended by {signals.name_of(-code)}"
    return f"the command ended with exit code {code}"
