"""Records the arrivals of a live queue or outbox in a trace file, to replay your own traffic.

A poll lists the jobs after the last one seen, oldest first, in pages of 1,000: one read of the
store, no claim, no write. Polls come every `every`, backing off to 8 times that while nothing
arrives; a full page is followed by the next at once. The recorder takes no hints, because a hint
that wakes the recorder would not wake a worker.

A job that was put, run and deleted between two polls is missed. If jobs are short, let the queue
keep finished ones for a while (`?keep=1h`): then none is missed, and polls can be rare. The same is
true of an outbox and its records.

The records of an outbox become visible when their transactions end, which may be in another order
than they were put. So each poll of an outbox lists the last seconds again.
"""

from __future__ import annotations

import asyncio
import csv
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError
from pollwise.outbox.stores.base import OutboxStore
from pollwise.queues.base import Queue
from pollwise.runtime.loop import poll
from pollwise.runtime.store import MAX_PAGE
from pollwise.storage.ids import place_after

#: The longest pause while nothing arrives, as a multiple of `every`.
BACK_OFF = 8
#: How long after its put a record may become visible, in seconds: the longest transaction.
LATE_MAX = 5.0
HEADER = "created_at,id"
_FROM = "# recorded from "
#: More than the longest line: a stamp and a job's id.
_TAIL = 64 * 1024


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a job or record was put, and its id."""

    at: float
    id: str


class _Listing(Protocol):
    async def new(self) -> list[Arrival]:
        """What arrived since the last call; MAX_PAGE of them mean that there may be more."""


async def record(
    source: Queue | OutboxStore,
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
    file = await asyncio.to_thread(_Recording, Path(path), source.url)
    listing: _Listing = (
        _JobListing(source, file.last_id)
        if isinstance(source, Queue)
        else _RecordListing(source, file.last_id)
    )
    recorded = 0
    polls = poll(
        listing.new,
        Adaptive(pause, BACK_OFF * pause),
        capacity=MAX_PAGE,
        name=f"record {source.name}",
        clock=source.clock,
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


class _JobListing:
    """The jobs of a queue, in the order in which they were put."""

    def __init__(self, queue: Queue, after: str | None) -> None:
        self._queue, self._after = queue, after

    async def new(self) -> list[Arrival]:
        page = await self._queue.arrivals(self._after, MAX_PAGE)
        if page:
            self._after = page[-1].job.id
        return [Arrival(info.job.created_at, info.job.id) for info in page]


class _RecordListing:
    """The records of an outbox; those of the last seconds are listed again and compared.

    A record with lanes is listed once for each; it arrived once. Its id is the number of its first
    place, so one that is not above `_before` was seen.
    """

    def __init__(self, store: OutboxStore, after: str | None) -> None:
        self._store = store
        self._before = place_after(after)
        self._seen: set[int] = set()

    async def new(self) -> list[Arrival]:
        found: list[Arrival] = []
        place, settled = str(self._before) if self._before else None, True
        while len(found) < MAX_PAGE:
            page = await self._store.records(limit=MAX_PAGE, after=place)
            latest = self._store.clock.epoch() - LATE_MAX
            for info in page:
                number = int(info.record.id)
                settled = settled and info.record.created_at < latest
                if number > self._before and number not in self._seen:
                    self._seen.add(number)
                    found.append(Arrival(info.record.created_at, info.record.id))
                    if len(found) == MAX_PAGE:
                        break
                if settled:
                    self._before = max(self._before, int(info.place))
            if len(page) < MAX_PAGE:
                break
            place = page[-1].place
        self._seen = {number for number in self._seen if number > self._before}
        return found


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

    def append(self, page: Sequence[Arrival]) -> None:
        """Write a page of jobs at once."""
        lines = io.StringIO()
        rows = csv.writer(lines, lineterminator="\n")
        for each in page:
            # Clocks of several processes differ a little, but a trace must be in order.
            self._last_at = max(self._last_at, each.at)
            rows.writerow((repr(self._last_at), each.id))
        try:
            with self._path.open("a", encoding="utf-8", newline="") as file:
                file.write(lines.getvalue())
        except OSError as error:
            raise self._unwritable(error) from None

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
