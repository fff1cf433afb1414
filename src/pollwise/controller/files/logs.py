"""The logs of jobs: appended by offset, bounded, read by range, followed.

A log is one stream of bytes, that of all runs of its job after one another. A run counts its own
bytes from 0, so that a worker needs to know nothing of the runs before; what it sends twice is
kept once. The state keeps the bytes, so every controller serves every log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from pollwise.controller.http.answers import HttpError
from pollwise.controller.state.base import LOG_READ_MAX, ControllerState
from pollwise.controller.state.values import LogPlace, RunRow
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.runtime.loop import Batch, LoopOptions, PollLoop

#: How much one read of a follower takes, in bytes.
PIECE = 64 * 1024
#: How a follower looks by itself: what another controller got gives no sign here.
LOOKS = Adaptive("250ms", "2s")
#: After how many seconds of nothing a follower is told so: its connection may be gone.
BEAT = 2.0
#: The most bytes of one append.
APPEND_MAX = LOG_READ_MAX
#: An attempt's number fits below this.
_ATTEMPTS = 1 << 20


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of a followed log; `end` is the offset behind it, from where to go on."""

    end: int
    data: bytes


class LogsStop(Exception):
    """The controller stops, and a log that is followed has not ended: it goes on elsewhere."""


class Logs:
    """The logs of a state's jobs, each up to `limit` bytes."""

    def __init__(self, state: ControllerState, limit: int) -> None:
        self._state = state
        self._limit = limit
        self._followers: dict[str, set[PollLoop[LogChunk | None]]] = {}
        self._closing = False
        mark = f"\n[pollwise: the log is cut here, at its limit of {limit} bytes]\n"
        self._end_mark = mark.encode()

    async def append(self, run: RunRow, offset: int, data: bytes) -> LogPlace | None:
        """Append what a run sent from its byte `offset` on; None if it is not the newest run.

        HttpError (409) when bytes before it are missing: `expected` says from where to send.
        """
        if offset < 0 or len(data) > APPEND_MAX:
            raise HttpError(
                413 if offset >= 0 else 422,
                "log_too_long" if offset >= 0 else "invalid",
                f"a piece of log from {offset} with {len(data)} bytes cannot be appended",
                f"Send offsets of 0 or more and at most {APPEND_MAX} bytes at a time.",
            )
        part = run.round * _ATTEMPTS + min(run.attempt, _ATTEMPTS - 1)
        begin = f"[pollwise: attempt {run.attempt}]\n".encode()
        place = await self._state.append_log(
            run.job_id, part, offset, data, self._limit, self._end_mark, begin
        )
        if place is None:
            return None
        received = place.received if place.part == part else 0
        if offset > received:
            raise HttpError(
                409,
                "log_gap",
                f"the log of this run has {received} bytes; a piece from {offset} leaves a gap",
                f"Send from offset {received} on.",
                {"X-Log-Offset": str(received)},
            )
        self.notify(run.job_id)
        return place

    async def place(self, job_id: str) -> LogPlace | None:
        return await self._state.log_place(job_id)

    async def read(self, job_id: str, start: int, stop: int) -> AsyncIterator[bytes]:
        """The bytes from `start` to before `stop`, in pieces, as far as there are any."""
        while start < stop:
            data = await self._state.read_log(job_id, start, min(stop - start, LOG_READ_MAX))
            if not data:
                return
            yield data
            start += len(data)

    async def follow(self, job_id: str, start: int = 0) -> AsyncIterator[LogChunk | None]:
        """Pieces from `start` on as they come, until the job has ended and all was given.

        A piece ends with a whole character of UTF-8. None now and then, when nothing came: so that
        a connection can be kept open, and is noticed when it is not. Where the controller stops,
        `LogsStop` is raised: there may be more.
        """
        follower = _Follower(self._state, job_id, max(start, 0))
        options = LoopOptions(clock=self._state.clock, spread=False)
        loop = PollLoop(follower.look, LOOKS, f"log:{job_id}", options)
        self._followers.setdefault(job_id, set()).add(loop)
        coming: asyncio.Task[Sequence[LogChunk | None]] | None = None
        try:
            while not self._closing:
                coming = asyncio.ensure_future(_next_of(loop))
                while not (await asyncio.wait([coming], timeout=BEAT))[0]:
                    yield None
                for piece in coming.result():
                    if piece is None:
                        return
                    yield piece
            raise LogsStop
        finally:
            loop.stop()
            if coming is not None:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
            followers = self._followers[job_id]
            followers.discard(loop)
            if not followers:
                del self._followers[job_id]

    def stop_waiting(self) -> None:
        """End all followers, and let none wait: the controller stops."""
        self._closing = True
        for followers in self._followers.values():
            for loop in followers:
                loop.stop()

    def notify(self, job_id: str) -> None:
        """Something came, or the job ended: its followers look at once."""
        for loop in self._followers.get(job_id, ()):
            loop.hint()


class _Follower:
    """What one follower has yet to be given of a log: a source of the poll loop."""

    def __init__(self, state: ControllerState, job_id: str, start: int) -> None:
        self._state = state
        self._job_id = job_id
        self._start = start

    async def look(self, _: float) -> Batch[LogChunk | None]:
        """The next piece; None behind the last one of a job that has ended."""
        place = await self._state.log_place(self._job_id)  # first: if it ended, all is there
        final = place is None or place.ended
        data = await self._state.read_log(self._job_id, self._start, PIECE)
        whole = data if final and len(data) < PIECE else data[: whole_characters(data)]
        if whole:
            self._start += len(whole)
            return Batch((LogChunk(self._start, whole),), 1)
        return Batch((None,) if final else (), 1)


async def _next_of(loop: PollLoop[LogChunk | None]) -> Sequence[LogChunk | None]:
    """The next of a log; nothing when its loop was stopped."""
    try:
        return await anext(loop)
    except StopAsyncIteration:
        return ()


def whole_characters(data: bytes) -> int:
    """How many bytes there are up to the end of the last whole character of UTF-8.

    Bytes that are no UTF-8 count as whole: they get no better by waiting.
    """
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:  # the first byte of a character
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if length > back and byte < 0xF8 else len(data)
    return len(data)
