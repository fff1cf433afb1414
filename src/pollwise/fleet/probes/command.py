"""Command: the output of a program, and whether it succeeds.

    [[target]]
    name = "certificates of the mesh"
    type = "command"
    run = ["mesh", "certs", "--json"]
    json = "[0].serial"

No shell is used unless `run` names one. The program runs in its own process group: at the timeout,
it and all its children are killed.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from pollwise.core.outcome import Plain
from pollwise.fleet.probes.extract import Extract
from pollwise.fleet.probes.options import ProbeOptions, failed
from pollwise.fleet.targets import ProbeContext, Reading, Target
from pollwise.platforms.processes import kill_group, own_group
from pollwise.platforms.signals import name_of
from pollwise.platforms.system import is_windows

OUTPUT_MAX = 1024 * 1024
#: Seconds that output is still read after the program ended, if a child keeps it open.
LINGER = 0.5
#: How much of stderr is kept, in bytes, and shown, in characters.
_COMPLAINT_KEPT = 4096
_COMPLAINT_MAX = 200
_NO_ENV: Mapping[str, str] = MappingProxyType({})


FACTS = {
    "value": "the value at `json` or the group of `regex`; else a digest of the output",
    "exit": "the exit code",
    "ms": "milliseconds until the program ended",
    "bytes": "size of the output",
}


class CommandProbe:
    """Runs a program. Options: run (a list of words, or text that is split like in a shell),
    expect (exit codes, 0), json, regex, checks, absent, limit, folder, env (added to the
    environment)."""

    __slots__ = ("_env", "_expect", "_extract", "_folder", "_limit", "_words")

    def __init__(self, target: Target) -> None:
        options = ProbeOptions(target)
        check_system(options)
        self._words = _checked_words(options)
        self._expect = options.codes("expect", (0,), 0, 255, "an exit code such as 0")
        self._extract = Extract(options)
        self._limit = options.size("limit", OUTPUT_MAX)
        self._folder = options.text("folder") or None
        if self._folder is not None and not Path(self._folder).is_dir():
            options.wrong("folder", f"= {self._folder!r} is not a folder")
        self._env = options.texts("env")
        options.finish()

    async def __call__(self, target: Target, context: ProbeContext) -> Reading:
        loop = asyncio.get_running_loop()
        began = loop.time()
        name = self._words[0]
        ended = await run_program(self._words, self._limit, self._folder, self._env)
        facts: dict[str, Plain] = {
            "exit": ended.status,
            "ms": round((loop.time() - began) * 1000, 1),
            "bytes": len(ended.output),
        }
        if ended.status not in self._expect:
            raise failed(f"{name!r} {ended.how}{ended.complaint}")
        value, summary = await self._extract(ended.output)
        if len(self._expect) > 1:
            value = f"exit {ended.status} {value}"
        return Reading(value, None, facts, f"exit {ended.status}, {summary}")


def check_system(options: ProbeOptions) -> None:
    """Refuse a probe that runs programs on Windows: their children could not be killed."""
    if is_windows():
        options.wrong("type", "needs Linux or macOS, and this is Windows; use another one")


class EndedProgram(NamedTuple):
    """A program that ended: its exit code, its output, and its last line on stderr.

    how: for people, "exited with 1". complaint: to be appended, ": no such file", or "".
    """

    status: int | None
    output: bytes
    how: str
    complaint: str


async def run_program(
    words: Sequence[str], limit: int, folder: str | None = None, env: Mapping[str, str] = _NO_ENV
) -> EndedProgram:
    """Run a program without a shell; `env` is added to the environment.

    A cancelled call, and output of more than `limit` bytes, kill it and its children.
    """
    name = words[0]
    try:
        transport, program = await asyncio.get_running_loop().subprocess_exec(
            lambda: _Program(limit),
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=folder,
            env={**os.environ, **env} if env else None,
            **own_group(),
        )
    except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
        raise failed(f"{name!r} cannot be run: {error.strerror}", permanent=True) from None
    except OSError as error:  # too many processes or open files: transient
        raise failed(f"{name!r} could not be started: {error.strerror}") from None
    try:
        await program.settled.wait()
        if not program.too_much:
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER):
                    await program.silent.wait()
    finally:
        await _killed(transport, program)
    if program.too_much:
        raise failed(f"{name!r} printed more than {limit:,} bytes; raise limit", permanent=True)
    status = transport.get_returncode()
    return EndedProgram(
        status, b"".join(program.output), _ended(status), _last_line(program.complaint)
    )


class _Program(asyncio.SubprocessProtocol):
    """The output of a program, bounded, and its end.

    asyncio's own `Process.wait` would wait for every child that keeps a pipe open.
    """

    def __init__(self, limit: int) -> None:
        self.output: list[bytes] = []
        self.complaint = bytearray()
        self.too_much = False
        self.exited = asyncio.Event()
        #: It exited, or must be killed.
        self.settled = asyncio.Event()
        #: There will be no more output.
        self.silent = asyncio.Event()
        self._left = limit
        self._pipes = 2

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd != 1:
            self.complaint += data
            del self.complaint[:-_COMPLAINT_KEPT]
            return
        self._left -= len(data)
        if self._left < 0:
            self.too_much = True
            self.output.clear()
            self.settled.set()
        else:
            self.output.append(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._pipes -= 1
        if not self._pipes:
            self.silent.set()

    def process_exited(self) -> None:
        self.exited.set()
        self.settled.set()


async def _killed(transport: asyncio.SubprocessTransport, program: _Program) -> None:
    """Kill what is left of the process group, including children that outlive the program.

    The id of a group is not reused while any process of it is alive; if all are gone, it was free
    only for a moment.
    """
    kill_group(transport.get_pid())
    try:
        # A killed program ends at once; another cancellation must not leave it unreaped.
        await asyncio.shield(asyncio.ensure_future(program.exited.wait()))
    finally:
        transport.close()  # also the pipes, which others may still hold open


def _checked_words(options: ProbeOptions) -> tuple[str, ...]:
    given = options.raw("run")
    if isinstance(given, str):
        try:
            words = tuple(shlex.split(given))
        except ValueError as error:
            options.wrong("run", f"cannot be split into words: {error}")
            return ("-",)
    else:
        words = options.words("run")
    if not words or not words[0]:
        options.wrong("run", "is missing" if given is None else "has no program")
        return ("-",)
    if any("\0" in word for word in words):
        options.wrong("run", "contains a NUL character")
    return words


def _ended(status: int | None) -> str:
    if status is not None and status < 0:
        return f"was killed by {name_of(-status)}"
    return f"exited with {status}"


def _last_line(complaint: bytearray) -> str:
    lines = complaint.decode("utf-8", "replace").strip().splitlines()
    return f": {lines[-1].strip()[:_COMPLAINT_MAX]}" if lines else ""


make = CommandProbe
