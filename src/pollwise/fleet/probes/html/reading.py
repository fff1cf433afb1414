"""Has pages read by processes that are killed when a page takes too long."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pollwise.fleet.probes.options import failed
from pollwise.platforms.loops import no_programs
from pollwise.platforms.processes import own_group
from pollwise.runtime.executor.background import to_its_end

#: Maximum number of processes that read pages; each reads one at a time.
PROCESSES_MAX = 2
#: Time limit of reading one page, in seconds; a usual page takes milliseconds.
READ_WITHIN = 10.0
#: A process is replaced after this many pages, so that its memory does not grow.
PAGES_MAX = 1000
#: The longest answer of a process, in bytes: the kept text and the diff, as JSON.
ANSWER_MAX = 1024 * 1024
_CHILD = Path(__file__).with_name("child.py")


#: What a process gets of the environment; not its secrets, because it parses what others wrote.
_PASSED = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME", "SYSTEMROOT", "LANG")


class PageReaders:
    """The processes of one event loop. They are started when they are needed, and kept."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(PROCESSES_MAX)
        self._idle: list[_PageReader] = []
        self._closed = False

    async def read(self, asked: Mapping[str, Any], page: bytes) -> dict[str, Any]:
        """The answer of `child.answered`; ProbeError if the page takes too long."""
        async with self._free:
            reader = self._idle.pop() if self._idle else _PageReader()
            try:
                answer = await reader.ask(asked, page)
            except BaseException:
                await reader.kill()
                raise
            if self._closed or reader.pages >= PAGES_MAX:
                await reader.kill()
            else:
                self._idle.append(reader)
        if "error" in answer:
            raise failed(str(answer["error"]))
        return answer

    async def aclose(self) -> None:
        self._closed = True
        while self._idle:
            await self._idle.pop().kill()


class _PageReader:
    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self.pages = 0

    async def ask(self, asked: Mapping[str, Any], page: bytes) -> dict[str, Any]:
        if self._process is None:
            await self._start()
        self.pages += 1
        return await self._said({**asked, "size": len(page)}, page)

    async def _start(self) -> None:
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                str(_CHILD),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                limit=ANSWER_MAX,
                env=_environment(),
                **own_group(),  # Ctrl-C is for the fleet
            )
        except NotImplementedError:
            raise failed(str(no_programs("a probe of HTML")), permanent=True) from None
        except OSError as error:
            raise failed(f"no process to parse pages could be started: {error.strerror}") from None
        # Not part of the time for the page: a busy machine may take seconds to start Python.
        if not await self._process.stdout.readline():  # type: ignore[union-attr]
            raise failed("the process that parses pages did not start")

    async def _said(self, asked: Mapping[str, Any], page: bytes) -> dict[str, Any]:
        process = self._process
        assert process is not None  # noqa: S101 - for the type checker
        assert process.stdin is not None  # noqa: S101
        assert process.stdout is not None  # noqa: S101
        try:
            async with asyncio.timeout(READ_WITHIN):
                with suppress(ConnectionError):  # it ended; the empty answer says so
                    process.stdin.write(json.dumps(asked).encode() + b"\n")
                    process.stdin.write(page)
                    await process.stdin.drain()
                line = await process.stdout.readline()
        except TimeoutError:
            raise failed(
                f"the page takes longer than {READ_WITHIN:g} s to parse; it may be hostile"
            ) from None
        if not line.endswith(b"\n"):
            raise failed("the process that parses pages ended while it parsed this page")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await to_its_end(asyncio.ensure_future(self._process.wait()))


def _environment() -> dict[str, str]:
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    return {**passed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
