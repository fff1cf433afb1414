"""Comparisons of the lab that viewers run: each in a process of its own, bounded and cancellable.

Results are kept in memory for a while, each under its own address. The web process itself loads
neither numpy nor numba: the process answers with plain values.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pollwise.platforms.loops import no_programs
from pollwise.platforms.signals import CPU_LIMIT
from pollwise.runtime.clock import Clock
from pollwise.web.view import Refused

#: How many comparisons run at a time, of all viewers together; of one viewer one.
RUNS_AT_ONCE = 2
#: How many results are kept, and for how long, in seconds.
RUNS_KEPT = 20
KEPT_FOR = 6 * 3600.0
#: How long a comparison may run, in seconds, and how much memory it may have, in bytes.
TIME_LIMIT = 180.0
MEMORY_LIMIT = 2 * 1024**3
#: The longest answer of a process, in bytes.
ANSWER_MAX = 8 * 1024**2
#: One thread each: libraries would reserve memory for one on every core.
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)


def lab_missing() -> bool:
    """True if the extra `lab` is not installed."""
    return find_spec("numpy") is None or find_spec("numba") is None


@dataclass(frozen=True, slots=True)
class ComparisonRequest:
    """What to compare.

    title: of the trace. trace: as `pollwise.lab.process` reads it.
    strategies: separated by commas. price, wait_price: as on the command line.
    about: sentences on how the trace was made. measured: what the queue's own workers did, if the
        trace is theirs.
    back: the address of the form that asked for it, filled in as it was.
    folder: with the uploaded file; deleted when the comparison has ended.
    """

    title: str
    trace: Mapping[str, Any]
    strategies: str
    price: str
    wait_price: str
    about: tuple[str, ...] = ()
    measured: Mapping[str, Any] | None = None
    back: str = ""
    folder: Path | None = None


@dataclass(slots=True, eq=False)
class ComparisonRun:
    """A comparison that runs or has ended: `running`, `done`, `failed` or `cancelled`.

    progress: how many replays are done, of how many; None before the first.
    facts: the facts of the lab's report, once it is done. error: why it failed.
    report: what its page shows, once it was drawn.
    """

    id: str
    who: str
    asked: ComparisonRequest
    began_at: float
    state: str = "running"
    progress: tuple[int, int] | None = None
    facts: Mapping[str, Any] | None = None
    report: Mapping[str, Any] | None = None
    error: str = ""
    ended_at: float | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)


class Comparisons:
    """The comparisons of all viewers."""

    def __init__(self, clock: Clock, time_limit: float = TIME_LIMIT) -> None:
        self._clock = clock
        self._time_limit = time_limit
        self._runs: dict[str, ComparisonRun] = {}

    def newest(self) -> list[ComparisonRun]:
        """The results that are kept, the newest first."""
        self._forget_old()
        return list(reversed(self._runs.values()))

    def get(self, run_id: str) -> ComparisonRun | None:
        self._forget_old()
        return self._runs.get(run_id)

    def check_room(self, who: str) -> None:
        """Raise `Refused` if a viewer cannot start a comparison now."""
        running = [run for run in self._runs.values() if run.state == "running"]
        if any(run.who == who for run in running):
            raise Refused("Your last comparison still runs. Wait for it, or cancel it.")
        if len(running) >= RUNS_AT_ONCE:
            raise Refused(
                f"{RUNS_AT_ONCE} comparisons run already, which is the maximum. Try again soon."
            )

    def start(self, who: str, asked: ComparisonRequest) -> ComparisonRun:
        """Start a comparison. Raises `Refused` if there is no room for it."""
        self.check_room(who)
        run = ComparisonRun(secrets.token_urlsafe(9), who, asked, self._clock.epoch())
        self._runs[run.id] = run
        run.task = asyncio.ensure_future(self._run(run))
        run.task.add_done_callback(lambda task: self._note_end(run, task.cancelled()))
        self._forget_old()
        return run

    async def cancel(self, run: ComparisonRun) -> bool:
        """Stop a comparison and its process; False if it had ended."""
        if run.task is None or run.task.done():
            return False
        run.task.cancel()
        with suppress(asyncio.CancelledError):
            await run.task
        return True

    def remove(self, run: ComparisonRun) -> None:
        """Forget a comparison that has ended."""
        if run.state != "running":
            self._runs.pop(run.id, None)

    async def close(self) -> None:
        """Stop all of them."""
        for run in list(self._runs.values()):
            await self.cancel(run)

    def _forget_old(self) -> None:
        ended = [run for run in self._runs.values() if run.ended_at is not None]
        oldest = self._clock.epoch() - KEPT_FOR
        excess = len(self._runs) - RUNS_KEPT
        for place, run in enumerate(ended):
            if place < excess or (run.ended_at or 0.0) < oldest:
                del self._runs[run.id]

    async def _run(self, run: ComparisonRun) -> None:
        try:
            async with asyncio.timeout(self._time_limit):
                await self._compare(run)
        except TimeoutError:
            run.error = _too_long(self._time_limit)
        except NotImplementedError:
            run.error = f"The comparison failed: {no_programs('it')}."
        except (OSError, ValueError) as error:
            run.error = f"The comparison failed: {error}"

    def _note_end(self, run: ComparisonRun, cancelled: bool) -> None:
        """It has ended, perhaps before it began."""
        run.state = "cancelled" if cancelled else "failed" if run.facts is None else "done"
        run.ended_at = self._clock.epoch()
        if run.asked.folder is not None:
            shutil.rmtree(run.asked.folder, ignore_errors=True)

    async def _compare(self, run: ComparisonRun) -> None:
        asked = run.asked
        request = {
            "trace": dict(asked.trace),
            "strategies": asked.strategies,
            "price": asked.price,
            "wait_price": asked.wait_price,
            "memory": MEMORY_LIMIT,
            "seconds": self._time_limit,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "pollwise.lab.process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=ANSWER_MAX,
            env={**os.environ, **ONE_THREAD},
        )
        try:
            assert process.stdin is not None  # noqa: S101
            assert process.stdout is not None  # noqa: S101
            with suppress(ConnectionError):
                process.stdin.write(json.dumps(request).encode())
                await process.stdin.drain()
            process.stdin.close()
            async for line in process.stdout:
                self._take(run, json.loads(line))
            code = await process.wait()
            if run.facts is None and not run.error:
                run.error = self._why_ended(code)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _take(self, run: ComparisonRun, said: Mapping[str, Any]) -> None:
        if "progress" in said:
            done, of = said["progress"]
            run.progress = (done, of)
        elif "facts" in said:
            run.facts = said["facts"]
        else:
            run.error = str(said["error"])

    def _why_ended(self, code: int) -> str:
        if CPU_LIMIT is not None and code == -CPU_LIMIT:
            return _too_long(self._time_limit)
        return (
            f"The process of the comparison ended with code {code} and no answer. It may have "
            "needed too much memory: use a shorter trace, or fewer strategies."
        )


def _too_long(limit: float) -> str:
    return (
        f"The comparison took longer than {limit:g} s. Use a shorter trace, or longer intervals; "
        "`pollwise lab compare` has no limit."
    )
