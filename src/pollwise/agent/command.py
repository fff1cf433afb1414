"""One command: its output kept, ended by signal, never left running."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pollwise.runtime.clock import Clock

#: As much output is read at once, in bytes.
PIECE = 65536
#: How long output is waited for after the end of a command that left processes, in seconds.
LINGER = 2.0


@dataclass(frozen=True)
class CommandResult:
    """How a command ended: its exit code, or why it did not start; `why` it was stopped, if so."""

    exit_code: int | None
    error: str | None = None
    why: str | None = None


class Stop:
    """Asks a job to end.

    why: "cancel", or that it is not ours any more: "lost", "given back". That counts for more.
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
        """Until it is asked for; or only until the job is not ours any more."""
        await (self._over if over else self._asked).wait()


class Command:
    """A command at work in a folder.

    output: gets what it writes, stdout and stderr as they come.
    """

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        environ: Mapping[str, str],
        output: Callable[[bytes], None],
        *,
        timeout: float | None,
        kill_after: float,
        clock: Clock,
    ) -> None:
        self._words = words
        self._folder = folder
        self._environ = environ
        self._output = output
        self._timeout = timeout
        self._kill_after = kill_after
        self._clock = clock

    async def run(self, stop: Stop) -> CommandResult:
        """Run it to its end, or until it is stopped."""
        # A pipe of our own: asyncio's would have the end of a command wait for the end of all who
        # inherited it, and what a command leaves behind may stay for long.
        output, inner = os.pipe()
        reading = _PipeReader(output, self._output)
        try:
            with (self._folder / "payload.json").open("rb") as payload:
                process = await asyncio.create_subprocess_exec(
                    *self._words,
                    stdin=payload,
                    stdout=inner,
                    stderr=asyncio.subprocess.STDOUT,
                    cwd=self._folder,
                    env=dict(self._environ),
                    start_new_session=True,  # a group of its own, to be ended as a whole
                )
        except OSError as error:
            reading.close()
            return CommandResult(None, f"the command could not be started: {error}")
        finally:
            os.close(inner)
        try:
            why = await self._wait(process, stop)
        finally:
            _kill(process.pid, signal.SIGKILL)  # and whatever it left behind
            await process.wait()
            await reading.end(LINGER)
        code = process.returncode
        return CommandResult(code, _error(code, why, self._timeout), why)

    async def _wait(self, process: asyncio.subprocess.Process, stop: Stop) -> str | None:
        """Wait for its end; see to it when it is asked for or overdue. Why that was."""
        ended = asyncio.ensure_future(process.wait())
        asked = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait(
                [ended, asked], timeout=self._timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if ended.done():
                return None
            overdue = stop.why is None
            _kill(process.pid, signal.SIGTERM)
            await asyncio.wait([ended], timeout=self._kill_after)
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
        """Wait for the rest, but not for long."""
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
