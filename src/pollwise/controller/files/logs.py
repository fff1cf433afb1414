"""The logs of jobs: append by offset up to a limit, read by range, follow.

A log is one stream of bytes: those of all runs of the job, one after the other. A run counts its
own bytes from 0, so a worker need not know about earlier runs; bytes that are sent twice are stored
once. The bytes are in the state, so every controller serves every log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from pollwise.controller.attempts import Attempt, attempts_of
from pollwise.controller.http.answers import HttpError
from pollwise.controller.state.base import LOG_READ_MAX, ControllerState
from pollwise.controller.state.values import LogPlace
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.runtime.jobs import Claim, JobInfo
from pollwise.runtime.loop import Batch, LoopOptions, PollLoop

#: How many bytes a follower reads at a time.
PIECE = 64 * 1024
#: How a follower polls: appends at another controller send no hint here.
FOLLOW = Adaptive("250ms", "2s")
#: After how many seconds without bytes a follower gets None, to test its connection.
BEAT = 2.0
#: The most bytes of one append.
APPEND_MAX = LOG_READ_MAX

#: Returns the folder of a job; returns whether a job has ended.
FolderOf = Callable[[str], str]
HasEnded = Callable[[str], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of a followed log; `end` is the offset after it."""

    end: int
    data: bytes


class LogsStop(Exception):
    """The controller stops before a followed log has ended."""


class Logs:
    """The logs of jobs, each up to `limit` bytes."""

    def __init__(
        self, state: ControllerState, limit: int, folder_of: FolderOf, has_ended: HasEnded
    ) -> None:
        self._state = state
        self._limit = limit
        self._folder_of = folder_of
        self._has_ended = has_ended
        self._followers: dict[str, set[PollLoop[LogChunk | None]]] = {}
        self._closing = False
        mark = f"\n[pollwise: the log is cut here, at its limit of {limit} bytes]\n"
        self._end_mark = mark.encode()

    async def append(self, claim: Claim, offset: int, data: bytes) -> LogPlace | None:
        """Append what a run sent from its byte `offset` on; None if it is not the newest run.

        409 if bytes before it are missing: `X-Log-Offset` says from where to send.
        """
        if offset < 0 or len(data) > APPEND_MAX:
            raise HttpError(
                413 if offset >= 0 else 422,
                "log_too_long" if offset >= 0 else "invalid",
                f"{len(data)} bytes at offset {offset} cannot be appended to a log",
                f"Send an offset of 0 or more, and at most {APPEND_MAX} bytes at a time.",
            )
        job, part = claim.job, claim.token  # tokens of a job grow with each claim
        begin = f"[pollwise: attempt {job.attempt}]\n".encode()
        place = await self._state.append_log(
            self._folder_of(job.id),
            part,
            offset,
            data,
            self._limit,
            self._end_mark,
            begin,
            job.attempt,
            claim.worker,
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
        for loop in self._followers.get(job.id, ()):
            loop.hint()
        return place

    async def place(self, job_id: str) -> LogPlace:
        return await self._state.log_place(self._folder_of(job_id))

    async def attempts(self, info: JobInfo, most: int) -> list[Attempt]:
        """The attempts of a job that may have up to `most`, with their parts of the log."""
        job_id = info.job.id
        runs = await self._state.log_runs(self._folder_of(job_id))
        return attempts_of(info, runs, (await self.place(job_id)).size, most)

    async def part(self, job_id: str, attempt: int) -> tuple[int, int] | None:
        """Where the log of an attempt begins and ends; of several with this number the newest."""
        runs = await self._state.log_runs(self._folder_of(job_id))
        ends = [*(run.start for run in runs[1:]), (await self.place(job_id)).size]
        for run, end in reversed(list(zip(runs, ends, strict=False))):
            if run.attempt == attempt:
                return run.start, end
        return None

    async def read(self, job_id: str, start: int, stop: int) -> AsyncIterator[bytes]:
        """The bytes from `start` up to `stop`, in pieces, as far as they exist."""
        folder = self._folder_of(job_id)
        while start < stop:
            data = await self._state.read_log(folder, start, min(stop - start, LOG_READ_MAX))
            if not data:
                return
            yield data
            start += len(data)

    async def follow(self, job_id: str, start: int = 0) -> AsyncIterator[LogChunk | None]:
        """Pieces from `start` on as they arrive, until the job has ended and all were yielded.

        A piece ends with a whole character of UTF-8. Yields None when nothing came for a while, so
        that a dead connection is noticed. Raises `LogsStop` if the controller stops first.
        """
        follower = _Follower(
            self._state, self._folder_of(job_id), max(start, 0), lambda: self._has_ended(job_id)
        )
        options = LoopOptions(clock=self._state.clock, spread=False)
        loop = PollLoop(follower.poll, FOLLOW, f"log:{job_id}", options)
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
        """End all followers, because the controller stops."""
        self._closing = True
        for followers in self._followers.values():
            for loop in followers:
                loop.stop()


class _Follower:
    """The rest of a log for one follower: a source of the poll loop."""

    def __init__(
        self,
        state: ControllerState,
        folder: str,
        start: int,
        has_ended: Callable[[], Awaitable[bool]],
    ) -> None:
        self._state = state
        self._folder = folder
        self._start = start
        self._has_ended = has_ended

    async def poll(self, _: float) -> Batch[LogChunk | None]:
        """The next piece; None after the last one of a job that has ended."""
        final = await self._has_ended()  # first: if it has, its log is complete
        data = await self._state.read_log(self._folder, self._start, PIECE)
        whole = data if final and len(data) < PIECE else data[: whole_characters(data)]
        if whole:
            self._start += len(whole)
            return Batch((LogChunk(self._start, whole),), 1)
        return Batch((None,) if final else (), 1)


async def _next_of(loop: PollLoop[LogChunk | None]) -> Sequence[LogChunk | None]:
    """The next pieces of a log; none if its loop was stopped."""
    try:
        return await anext(loop)
    except StopAsyncIteration:
        return ()


def whole_characters(data: bytes) -> int:
    """The number of bytes up to the end of the last whole character of UTF-8.

    Bytes that are not UTF-8 count as whole characters.
    """
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:  # the first byte of a character
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if length > back and byte < 0xF8 else len(data)
    return len(data)
