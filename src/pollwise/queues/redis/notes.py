"""The notes and the history of a queue in Redis, as arguments and answers of the scripts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from pollwise.queues.limits.record import limits_from
from pollwise.queues.notes import (
    NOTES_MAX,
    NewNote,
    Note,
    NoteWritten,
    ScheduleSwap,
    ScheduleSwapped,
    Topic,
)
from pollwise.queues.redis.layout import packed_job
from pollwise.runtime.rollups.keeping import HISTORY_HOURS_KEPT
from pollwise.runtime.rollups.rows import HistoryRange, HistoryRow

#: Runs the script of this name.
Run = Callable[..., Awaitable[Any]]


def time_text(now: float | None) -> str:
    """An imposed time as the scripts take it."""
    return "" if now is None else repr(now)


def _kept_for(now: float | None) -> str:
    """After how many seconds the server deletes a history that nobody writes any more.

    Not under an imposed time: the server's own would be another.
    """
    return str(int(HISTORY_HOURS_KEPT)) if now is None else ""


def _written(rows: Iterable[HistoryRow]) -> list[str | int]:
    return [part for row in rows for part in row]


def _limits_read(note: NewNote) -> str:
    """The part of a note of limits that claims read; empty if it has no limits. The scripts do not
    check it."""
    if note.topic != "limits" or note.value is None:
        return ""
    found = limits_from(note.name, note.value)
    return "" if found is None else found.to_note(plain=True)


class RedisNotes:
    """The notes and the history of one queue; `run` runs a script of this queue.

    now: the imposed time; None for the server's own.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    async def write(self, note: NewNote, now: float | None) -> NoteWritten:
        ttl = "" if note.ttl is None else repr(note.ttl)
        done, answer, stamp = await self._run(
            "notes", "write", time_text(now), note.topic, note.name, note.value or "", ttl,
            NOTES_MAX[note.topic], note.answer or "", _limits_read(note), _kept_for(now),
            *_written(note.history),
        )  # fmt: skip
        return NoteWritten(bool(done), answer.decode() or None, stamp.decode() or None)

    async def swap_schedule(
        self, swap: ScheduleSwap, now: float | None, layout: int
    ) -> ScheduleSwapped:
        there, stays = swap.expected is not None, swap.value is not None
        put = [] if swap.job is None else packed_job(swap.job, swap.job.encoded)
        done, exists, value, job_id = await self._run(
            "schedule", time_text(now), swap.topic, swap.name, int(there), swap.expected or "",
            int(stays), swap.value or "", swap.tail, "" if swap.ttl is None else repr(swap.ttl),
            swap.stamp or "", layout, *put,
        )  # fmt: skip
        found = value.decode() if exists else None
        return ScheduleSwapped(bool(done), found, job_id.decode() or None)

    async def read(self, topics: Sequence[Topic], now: float | None) -> list[Note]:
        found = [
            part.decode() for part in await self._run("notes", "read", time_text(now), *topics)
        ]
        return [Note(*found[n : n + 3]) for n in range(0, len(found), 3)]

    async def read_history(self, ranges: Sequence[HistoryRange]) -> list[list[HistoryRow]]:
        """The rows of each range, all from the same moment."""
        asked: list[str | int] = []
        for each in ranges:
            limit = "" if each.limit is None else each.limit
            asked += [each.level, each.since, each.until, limit]
        answer = iter(await self._run("history", "read", *asked))
        return [
            [
                HistoryRow(each.level, next(answer), next(answer).decode(), next(answer).decode())
                for _ in range(next(answer))
            ]
            for each in ranges
        ]

    async def replace_history(
        self, old: Sequence[HistoryRow], new: Sequence[HistoryRow], now: float | None
    ) -> bool:
        keys = [part for row in old for part in row.key]
        asked = (_kept_for(now), len(old), *keys, *_written(new))
        return bool(await self._run("history", "replace", *asked))
