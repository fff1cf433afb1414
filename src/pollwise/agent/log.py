"""The log of a job: written to disk, sent in batches, resumed after lost answers.

Memory holds one batch, and a short tail if the disk is full, however much the command writes and
however long the network is down.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from pathlib import Path
from random import random

from pollwise.agent.link import ControllerLink, JobNotOurs
from pollwise.core.retry import Retry
from pollwise.errors import StoreUnavailable
from pollwise.platforms.files import NO_FOLLOW, NOT_INHERITED
from pollwise.queues.http.client import NoAnswer, RequestRefused
from pollwise.runtime.clock import Clock

logger = logging.getLogger("pollwise")

#: The most bytes of one job's output; what follows is counted and dropped.
LOG_MAX = 64 * 1024 * 1024
#: The most bytes of one request, and how long output is collected for it, in seconds.
BATCH = 256 * 1024
GATHER = 0.5
#: The most bytes in memory that could not be written to a full disk.
TAIL_MAX = 64 * 1024
#: How a failed request is retried.
RETRY = Retry.exponential("1s", max_delay="30s", attempts=None)


class Patience:
    """How long to repeat a request that the controller answers with errors; None for ever.

    Without an answer there is no end: the network may be down for days.
    """

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._since: float | None = None

    def over(self, error: StoreUnavailable, now: float) -> bool:
        """True if the controller has answered nothing but errors for the limit."""
        if isinstance(error, NoAnswer):
            self._since = None
            return False
        self._since = now if self._since is None else self._since
        return self._limit is not None and now - self._since >= self._limit

    def delay(self, failures: int) -> float:
        """The seconds until the next try."""
        delay = RETRY.delay(failures, random())
        return delay if self._limit is None else min(delay, self._limit)


class Log:
    """Writes one job's log and sends it to the controller.

    give_up_after: how long the controller may answer with errors once the command has ended.
    """

    def __init__(
        self,
        path: Path,
        link: ControllerLink,
        job_id: str,
        clock: Clock,
        give_up_after: float | None = None,
    ) -> None:
        self._link = link
        self._give_up_after = give_up_after
        self._job_id = job_id
        self._clock = clock
        # Opened once: the command may put a FIFO or a link in its place.
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | NO_FOLLOW | NOT_INHERITED
        self._file = os.open(path, flags, 0o600)
        self._size = 0
        self._on_disk = 0
        self._tail = bytearray()  # after what is on disk
        self._sent = 0
        self._dropped = 0
        self._wanted = True
        self._written = asyncio.Event()
        self._ended = False
        self._sending = asyncio.ensure_future(self._send_all())

    def write(self, data: bytes) -> None:
        """Write some output; never waits, never raises."""
        room = LOG_MAX - self._size
        if len(data) > room:
            self._dropped += len(data) - room
            data = data[:room]
        self._append(data)

    def _append(self, data: bytes, *, ours: bool = False) -> None:
        written = 0
        if not self._tail:
            with suppress(OSError):  # a full disk must not stop the command
                written = os.pwrite(self._file, data, self._on_disk)
                self._on_disk += written
        kept = data[written:]
        if not ours:
            kept = kept[: max(TAIL_MAX - len(self._tail), 0)]
        self._tail += kept
        self._dropped += len(data) - written - len(kept)
        self._size = self._on_disk + len(self._tail)
        self._written.set()

    def note(self, text: str) -> None:
        """Add a line of our own, even beyond the limit of the command's output."""
        self._append(f"[pollwise: {text}]\n".encode(), ours=True)

    async def end(self) -> None:
        """Send the rest; returns when the controller has everything, or takes no more."""
        if self._dropped:
            cut = f"\n[pollwise: {self._dropped} bytes of output were left out]\n"
            self._append(cut.encode(), ours=True)
        self._ended = True
        self._written.set()
        await self._sending

    async def close(self) -> None:
        """Stop, even if something was not sent."""
        self._sending.cancel()
        await asyncio.gather(self._sending, return_exceptions=True)
        os.close(self._file)

    async def _send_all(self) -> None:
        failures = 0
        patience = Patience(self._give_up_after)
        while True:
            if self._sent >= self._size:
                if self._ended:
                    return
                self._written.clear()
                await self._written.wait()
                if not self._ended and self._size - self._sent < BATCH:
                    await self._gather()
                continue
            try:
                await self._send_batch()
                failures, patience = 0, Patience(self._give_up_after)
            except (JobNotOurs, RequestRefused):
                return  # the job is over, or its log is refused
            except StoreUnavailable as error:
                failures += 1
                if self._ended and patience.over(error, self._clock.now()):
                    logger.warning(
                        "job %s: the rest of its log is not sent: %s", self._job_id, error,
                        extra={"action": "log_not_sent", "fields": {"job": self._job_id}},
                    )  # fmt: skip
                    return
                await self._clock.sleep(patience.delay(failures))
            if not self._wanted:
                return

    async def _gather(self) -> None:
        """Wait for more output, unless the command has ended."""
        until = self._clock.now() + GATHER
        while not self._ended and (left := until - self._clock.now()) > 0:
            self._written.clear()
            try:
                async with asyncio.timeout(left):
                    await self._written.wait()
            except TimeoutError:
                return
            if self._size - self._sent >= BATCH:
                return

    async def _send_batch(self) -> None:
        data = self._read(self._sent, min(BATCH, self._size - self._sent))
        received, self._wanted = await self._link.log(self._job_id, self._sent, data)
        # Continue where the controller is: it may have got what was not confirmed.
        self._sent = min(max(received, 0), self._size)

    def _read(self, start: int, count: int) -> bytes:
        if start >= self._on_disk:
            start -= self._on_disk
            return bytes(self._tail[start : start + count])
        count = min(count, self._on_disk - start)
        # Less is there if the command has shortened the file.
        return os.pread(self._file, count, start) or b"?" * count
