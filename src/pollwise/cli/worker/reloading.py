"""`pollwise worker --reload`: run the worker in a process that is replaced when code changes.

The process that watches imports nothing of the program: an error in the code ends only the
worker's process, and the next change starts it again.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

from pollwise.cli.running import (
    PROGRAM,
    RECYCLED,
    import_from_here,
    note,
    start_process,
    without_options,
)
from pollwise.errors import ConfigError, MissingExtra
from pollwise.platforms import loops, signals
from pollwise.platforms.system import not_on_windows
from pollwise.runtime.signals import stopping_on_signals

#: How long handlers may go on after code has changed, in seconds; then their jobs are given back.
RELOAD_GRACE = 5.0
#: The same at a stop.
STOP_GRACE = 0.5
#: How long the process may then take to give jobs back, in seconds; then it is killed.
END_WITHIN = 20.0
#: Changes of this file count too, not only those of Python files.
SETTINGS = "pollwise.toml"
#: The maximum number of changed files that are named.
FILES_SHOWN = 3


def run_reloading(target: str, folders: list[Path] | None) -> int:
    """Run this command without `--reload` until a signal; returns the exit code.

    folders: what to watch; None for the current folder and that of the target's module.
    """
    not_on_windows("--reload", "restart the worker yourself when code changes")
    try:
        import watchfiles  # noqa: F401
    except ImportError:
        raise MissingExtra("--reload", "reload") from None
    words = [word for word in without_options(sys.argv[1:], "--reload-dir") if word != "--reload"]
    watched = [folder.resolve() for folder in folders] if folders else folders_of(target)
    for folder in watched:
        if not folder.is_dir():
            raise ConfigError(f"--reload-dir {folder} is not a folder")
    return loops.run(Reloader([*PROGRAM, *words], watched).run())


def folders_of(target: str) -> list[Path]:
    """The current folder, and that of the target's module if it is elsewhere."""
    import_from_here()
    here = Path.cwd()
    top = target.partition(":")[0].partition(".")[0]
    spec = None
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(top) if top.isidentifier() else None
    places = [] if spec is None else [*(spec.submodule_search_locations or ())]
    if spec is not None and not places and spec.has_location and spec.origin:
        places = [str(Path(spec.origin).parent)]
    libraries = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
    elsewhere = [
        Path(place).resolve()
        for place in places
        if not place.startswith(libraries) and not Path(place).resolve().is_relative_to(here)
    ]
    return [here, *elsewhere]


class Reloader:
    """One process of the same command, started again when a file changes.

    command: its command line. folders: what is watched.
    """

    def __init__(self, command: list[str], folders: list[Path]) -> None:
        self._command = command
        self._folders = folders
        self._changed: set[Path] = set()
        self._happened = asyncio.Event()  # a file changed, or a signal came
        self._over = asyncio.Event()
        # Nothing is ever written to this pipe: it closes when this process ends, however that
        # happens.
        self._life, self._life_held = os.pipe()

    async def run(self) -> int:
        """Run until a signal."""
        watching = asyncio.ensure_future(self._watch())
        await asyncio.sleep(0)  # from now on no change is missed
        process: asyncio.subprocess.Process | None = None
        try:
            with stopping_on_signals(self._stop):
                while not self._over.is_set() and not watching.done():
                    self._changed.clear()
                    self._happened.clear()
                    process = await self._started()
                    await self._until_change(process)
                    await _ended(process, STOP_GRACE if self._over.is_set() else RELOAD_GRACE)
        finally:
            self._over.set()
            if process is not None:
                await _ended(process, STOP_GRACE)
            await asyncio.wait([watching])
            os.close(self._life_held)
            os.close(self._life)
        watching.result()  # why files cannot be watched, if so
        return 0

    def _stop(self) -> None:
        self._over.set()
        self._happened.set()

    async def _watch(self) -> None:
        from watchfiles import PythonFilter, awatch

        python = PythonFilter()

        def wanted(change: object, path: str) -> bool:
            return Path(path).name == SETTINGS or python(change, path)  # type: ignore[arg-type]

        try:
            async for changes in awatch(*self._folders, watch_filter=wanted, stop_event=self._over):
                self._changed |= {Path(path) for _, path in changes}
                self._happened.set()
        finally:
            self._happened.set()

    async def _started(self) -> asyncio.subprocess.Process:
        folders = ", ".join(map(str, self._folders))
        note(logging.INFO, "watching", f"restart on changes in {folders}", folders=folders)
        # Bytecode has the time of its source in whole seconds: a second change may be missed.
        return await start_process(self._command, self._life, PYTHONDONTWRITEBYTECODE="1")

    async def _until_change(self, process: asyncio.subprocess.Process) -> None:
        """Wait for a change or a signal. A process that ended by itself waits for one, too."""
        happened = asyncio.ensure_future(self._happened.wait())
        ended = asyncio.ensure_future(process.wait())
        await asyncio.wait([happened, ended], return_when=asyncio.FIRST_COMPLETED)
        if ended.done() and not happened.done() and process.returncode != RECYCLED:
            code = process.returncode
            text = f"the worker ended with code {code}; it starts again when a file changes"
            note(logging.WARNING, "worker_ended", text, code=code)
            await happened
        for task in (happened, ended):
            task.cancel()
        if self._changed:
            names = sorted(path.name for path in self._changed)
            more = "" if len(names) <= FILES_SHOWN else f" and {len(names) - FILES_SHOWN} more"
            shown = ", ".join(names[:FILES_SHOWN]) + more
            note(logging.INFO, "reloading", f"{shown} changed: restart", files=shown)


async def _ended(process: asyncio.subprocess.Process, grace: float) -> None:
    """End a process: its handlers may go on for the grace, then it gives their jobs back."""
    for number, within in (
        (signals.TERMINATE, grace),
        (signals.TERMINATE, END_WITHIN),  # the second signal ends the worker's own grace
        (signals.KILL, None),
    ):
        if process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(number)
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await process.wait()
