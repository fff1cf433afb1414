"""The notes of a queue in Postgres."""

from __future__ import annotations

from collections.abc import Sequence

from pollwise.queues.notes import (
    NOTES_MAX,
    NewNote,
    Note,
    NoteWritten,
    ScheduleSwap,
    ScheduleSwapped,
    Topic,
)
from pollwise.storage.postgres.database import Database
from pollwise.storage.postgres.history import written_columns
from pollwise.storage.postgres.params import number, text, texts


class PostgresNotes:
    """The notes of one queue."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._name = name

    async def write(self, note: NewNote) -> NoteWritten:
        ttl, most = note.ttl, NOTES_MAX[note.topic]
        params = [
            text(self._name),
            text(note.topic),
            text(note.name),
            text(note.value),
            None if ttl is None else number(ttl),
            number(most),
            text(note.answer),
            self._database.now(),
        ]
        # Deleting is not repeated: a second call would say that there was nothing to delete.
        name = "limit_note" if note.topic == "limits" and note.value is not None else "note"
        if note.history:
            name = "note_with_history"
            params += written_columns(note.history)
        [row] = await self._database.rows(name, params, safe=note.value is not None)
        return NoteWritten(*row)

    async def read(self, topics: Sequence[Topic]) -> list[Note]:
        params = [text(self._name), texts(topics), self._database.now()]
        return [Note(*row) for row in await self._database.rows("read_notes", params, safe=True)]

    async def swap_schedule(self, swap: ScheduleSwap) -> ScheduleSwapped:
        job, ttl = swap.job, swap.ttl
        run_at = None if job is None else job.run_at
        params = [
            text(self._name),
            text(swap.topic),
            text(swap.name),
            text(swap.expected),
            text(swap.value),
            text(swap.tail),
            None if ttl is None else number(ttl),
            text(swap.stamp),
            None if job is None else text(job.kind),
            None if job is None else text(job.encoded),
            None if job is None else number(job.priority),
            None if run_at is None else number(run_at),
            None if job is None else text(job.key),
            None if job is None else text(job.encoded_headers),
            self._database.now(),
        ]
        [row] = await self._database.rows("swap_schedule", params)
        return ScheduleSwapped(*row)
