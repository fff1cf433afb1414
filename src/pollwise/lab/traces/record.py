"""Records the arrivals of a live queue in a trace file, to replay your own traffic.

A poll lists the jobs after the last one seen, oldest first, in pages of 1,000: one read of the
store, no claim, no write. Polls come every `every`, backing off to 8 times that while nothing
arrives; a full page is followed by the next at once. The recorder takes no hints, because a hint
that wakes the recorder would not wake a worker.

A job that was put, run and deleted between two polls is missed. If jobs are short, let the queue
keep finished ones for a while (`?keep=1h`): then none is missed, and polls can be rare.
"""

from __future__ import annotations

import asyncio
import csv
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError
from pollwise.queues.base import Queue
from pollwise.runtime.jobs import JobInfo
from pollwise.runtime.loop import poll
from pollwise.runtime.store import MAX_PAGE

#: The longest pause while nothing arrives, as a multiple of `every`.
BACK_OFF = 8
HEADER = "created_at,id"
_FROM = "# recorded from "
#: More than the longest line: a stamp and a job's id.
_TAIL = 64 * 1024


async def record(
    queue: Queue,
    path: str | Path,
    *,
    every: Duration = "1s",
    until: Duration | None = None,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Append arrivals to the file until cancelled, or for the time `until`; return their number.

    The first poll finds what the queue already holds. An existing file is continued after its last
    job, so a recording survives restarts; half a line from a crash is cut off. Each page is written
    before the next poll. `progress` gets the number recorded so far.
    """
    pause = seconds(every, "every", positive=True)
    length = None if until is None else seconds(until, "until", positive=True)
    file = await asyncio.to_thread(_Recording, Path(path), queue.url)
    recorded = 0

    async def list_jobs() -> list[JobInfo]:
        return await queue.jobs(limit=MAX_PAGE, after=file.last_id)

    polls = poll(
        list_jobs,
        Adaptive(pause, BACK_OFF * pause),
        capacity=MAX_PAGE,
        name=f"record {queue.name}",
        clock=queue.clock,
        spread=False,
    )
    over = asyncio.get_running_loop().call_later(length, polls.stop) if length else None
    try:
        async for page in polls:
            await asyncio.to_thread(file.append, page)
            recorded += len(page)
            if progress is not None:
                progress(recorded)
    finally:
        if over is not None:
            over.cancel()
        polls.stop()
    return recorded


class _Recording:
    """The file: its last job, and appending to it."""

    def __init__(self, path: Path, url: str) -> None:
        self._path = path
        self.last_id: str | None = None
        self._last_at = 0.0
        if path.suffix == ".gz":
            raise ConfigError(
                f"{path}: a recording grows line by line; name it .csv and compress it later"
            )
        try:
            if path.exists() and path.stat().st_size:
                self._resume(url)
            else:
                path.write_text(f"{_FROM}{url}\n{HEADER}\n", encoding="utf-8")
        except OSError as error:
            raise self._unwritable(error) from None

    def append(self, page: Sequence[JobInfo]) -> None:
        """Write a page of jobs at once."""
        lines = io.StringIO()
        rows = csv.writer(lines, lineterminator="\n")
        for info in page:
            # Clocks of several processes differ a little, but a trace must be in order.
            self._last_at = max(self._last_at, info.job.created_at)
            rows.writerow((repr(self._last_at), info.job.id))
        try:
            with self._path.open("a", encoding="utf-8", newline="") as file:
                file.write(lines.getvalue())
        except OSError as error:
            raise self._unwritable(error) from None
        self.last_id = page[-1].job.id

    def _unwritable(self, error: OSError) -> ConfigError:
        return ConfigError(f"{self._path} cannot be written: {error.strerror}")

    def _resume(self, url: str) -> None:
        with self._path.open("rb+") as file:
            begin = file.readline().decode("utf-8", "replace").rstrip("\n")
            header = file.readline().decode("utf-8", "replace").rstrip("\n")
            if not begin.startswith(_FROM) or header != HEADER:
                raise ConfigError(
                    f"{self._path} is not a recording to continue; name another file, or remove it"
                )
            if begin != f"{_FROM}{url}":
                raise ConfigError(
                    f"{self._path} records {begin.removeprefix(_FROM)}, not {url}; name another "
                    "file: job ids of two queues do not mix"
                )
            data = file.tell()
            size = file.seek(0, os.SEEK_END)
            begins = max(data, size - _TAIL)
            file.seek(begins)
            tail = file.read()
            whole = tail[: tail.rfind(b"\n") + 1]
            file.truncate(begins + len(whole))
        lines = whole.decode("utf-8", "replace").splitlines()
        if lines:
            self._take_up(lines[-1])

    def _take_up(self, line: str) -> None:
        try:
            at, self.last_id = next(csv.reader([line]))
            self._last_at = float(at)
        except ValueError:
            raise ConfigError(
                f"{self._path} ends in {line!r}, which is not an arrival; name another file, or "
                "delete that line"
            ) from None
