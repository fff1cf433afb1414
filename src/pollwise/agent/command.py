"""One command: reads its output, ends it with signals, and never leaves it running."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: How much output is read at once, in bytes.
PIECE = 65536
#: How long to wait for output after a command ended and left processes behind, in seconds.
LINGER = 2.0


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
    """A command that runs in a folder.

    output: receives what it writes to stdout and stderr.
    """

    words: Sequence[str]
    folder: Path
    environ: Mapping[str, str]
    output: Callable[[bytes], None]
    timeout: float | None
    kill_after: float

    async def run(self, stop: Stop) -> CommandResult:
        """Run it until it ends or is stopped."""
        # With asyncio's own pipe, a command would end only when all processes that inherited the
        # pipe have ended, and those that it left behind may run for long.
        output, inner = os.pipe()
        reading = _PipeReader(output, self.output)
        try:
            with (self.folder / "payload.json").open("rb") as payload:
                process = await asyncio.create_subprocess_exec(
                    *self.words,
                    stdin=payload,
                    stdout=inner,
                    stderr=asyncio.subprocess.STDOUT,
                    cwd=self.folder,
                    env=dict(self.environ),
                    start_new_session=True,  # its own process group, which is ended as a whole
                )
        except OSError as error:
            reading.close()
            return CommandResult(None, f"the command could not be started: {error}")
        finally:
            os.close(inner)
        try:
            why = await self._wait(process, stop)
        finally:
            _kill(process.pid, signal.SIGKILL)  # and the processes that it left behind
            await process.wait()
            await reading.end(LINGER)
        code = process.returncode
        return CommandResult(code, _error(code, why, self.timeout), why)

    async def _wait(self, process: asyncio.subprocess.Process, stop: Stop) -> str | None:
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
            _kill(process.pid, signal.SIGTERM)
            await asyncio.wait([ended], timeout=self.kill_after)
            return "timeout" if overdue and stop.why in (None, "cancel") else stop.why
        finally:
            for task in (ended, asked):
                task.cancel()


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


def _kill(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _error(code: int | None, why: str | None, timeout: float | None) -> str | None:
    if why == "timeout":
        return f"the command ran longer than its timeout of {timeout:g} s and was ended"
    if why is not None or code == 0 or code is None:
        return None
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"the command was ended by {name}"
    return f"the command ended with exit code {code}"
