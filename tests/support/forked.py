"""Python processes that start warm: forked from a process that has imported the product.

A command takes half a second of CPU to start, nearly all of it for imports. `Forked` is a separate
process with its own folder, environment, arguments, signals and exit code. Tests of what a start
imports or compiles start a cold process.
"""

from __future__ import annotations

import atexit
import io
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import types
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO
from unittest import mock

#: What the commands and the examples of the documentation import.
WARM = [
    "pollwise.cli.queue.commands", "pollwise.cli.outbox.commands", "pollwise.cli.fleet.commands",
    "pollwise.cli.worker.commands", "pollwise.cli.lab.commands", "pollwise.cli.keys",
    "pollwise.cli.config", "pollwise.cli.queue.jobs", "pollwise.queues.sqlite.queue",
    "pollwise.queues.postgres.queue", "pollwise.queues.redis.queue", "pollwise.outbox.relay",
    "pollwise.cli.serve", "pollwise.controller.controller", "pollwise.controller.http.app",
    "pollwise.worker", "pollwise.fleet", "uvicorn", "httpx", "psycopg", "redis.asyncio",
    "typer._adapters",
]  # fmt: skip

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(WARM)


class Forked:
    """`python …` as `subprocess.Popen` would start it, with pipes for what it prints.

    words: `-W error` or nothing, then `-m module` or the path of a script, then its arguments.
    out, err: False prints where this process prints.
    log: what it prints goes to this file, all of it.
    folder: where it runs, by default here. session: it has a session of its own, as a daemon has.
    """

    def __init__(
        self,
        words: Sequence[object],
        *,
        env: Mapping[str, str] | None = None,
        out: bool = True,
        err: bool = True,
        log: IO[bytes] | None = None,
        folder: Path | None = None,
        session: bool = False,
    ) -> None:
        out, err = out and log is None, err and log is None
        here = (1, 2) if log is None else (log.fileno(), log.fileno())
        self.stdout: IO[str]
        self.stderr: IO[str]
        self.stdout, out_end = _pipe() if out else (io.StringIO(), os.dup(here[0]))
        self.stderr, err_end = _pipe() if err else (io.StringIO(), os.dup(here[1]))
        with Connection(out_end, readable=False) as to_out:
            with Connection(err_end, readable=False) as to_err:
                given = [str(word) for word in words]
                environment = dict(os.environ if env is None else env)
                self._process = _context.Process(
                    target=_run,
                    args=(given, str(folder or Path.cwd()), environment, to_out, to_err, session),
                )
                # It would import the program of this process again: pytest.
                with mock.patch.dict(sys.modules, __main__=types.ModuleType("__main__")):
                    self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return self._process.exitcode

    def communicate(self, timeout: float) -> tuple[str, str]:
        """The rest of its output until it ends, read in parallel so that no pipe fills up."""
        with ThreadPoolExecutor(2) as readers:
            both = [readers.submit(stream.read) for stream in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            return both[0].result(), both[1].result()

    def close(self) -> None:
        """End it if it still runs, and close the pipes."""
        self.kill()
        self._process.join()
        self.stdout.close()
        self.stderr.close()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            # It may have ended: the fork server has reaped it, but not reported that yet.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _pipe() -> tuple[IO[str], int]:
    begin, end = os.pipe()
    return open(begin, encoding="utf-8"), end  # noqa: PTH123


def _run(
    words: list[str],
    folder: str,
    environ: dict[str, str],
    out: Connection,
    err: Connection,
    session: bool,
) -> None:
    """What the forked process does: act as `python …`, and run the program."""
    if session:
        os.setsid()
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    out.close()
    err.close()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    if words[:2] == ["-W", "error"]:
        warnings.simplefilter("error")
        words = words[2:]
    try:
        if words[0] == "-m":
            module = find_spec(f"{words[1]}.__main__")
            assert module is not None
            sys.argv = [str(module.origin), *words[2:]]
            sys.path.insert(0, folder)
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            sys.path.insert(0, str(Path(words[0]).resolve().parent))
            runpy.run_path(words[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()
