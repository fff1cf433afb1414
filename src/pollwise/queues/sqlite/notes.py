"""The notes of a queue in a SQLite file, and the schedules and limits that are kept in them."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from pollwise.queues.limits.record import KindLimits
from pollwise.queues.limits.use import LimitUse
from pollwise.queues.notes import (
    NOTES_MAX,
    WHOLE,
    NewNote,
    Note,
    NoteWritten,
    ScheduleSwap,
    ScheduleSwapped,
    Topic,
)
from pollwise.queues.sqlite import limits as limits_package
from pollwise.queues.sqlite.limits.claims import SqliteLimits
from pollwise.runtime.jobs import NewJob
from pollwise.storage.sql import statements
from pollwise.storage.sqlite.file import SqliteFile, transaction
from pollwise.storage.sqlite.history import SqliteHistory

#: No limit to the number of notes.
_MANY = 2**63 - 1


class SqliteNotes(SqliteFile):
    """The notes of one queue in a file."""

    package = __package__
    version_table = "pollwise_schema"
    holds = "queue"

    def __init__(self, path: Path, queue: str, *, synchronous: str, create: bool) -> None:
        super().__init__(path, synchronous=synchronous, create=create, queue=queue)
        self._queue = queue
        self._sql = self._sql | statements(limits_package.__name__)
        self._limits = SqliteLimits(self._rows)
        self.history: SqliteHistory = SqliteHistory(self, "pollwise_history", "queue", queue)

    @abstractmethod
    def put(self, now: float, jobs: Sequence[NewJob]) -> tuple[list[str], int]:
        """Put jobs, in the open transaction if there is one; return their ids, and how many are
        new."""

    def write_note(self, now: float, note: NewNote) -> NoteWritten:
        values = {"topic": note.topic, "name": note.name}
        with transaction(self.connect()):
            self._rows("delete_gone_notes", topic=note.topic, now=now)
            if note.value is None:
                rows = self._rows("delete_note", **values)
            else:
                until = None if note.ttl is None else now + note.ttl
                most = NOTES_MAX[note.topic]
                rows = self._rows("note", **values, value=note.value, until=until, most=most)
            if note.topic == "limits" and note.value is None:
                self._limits.removed(note.name, now)
            self.history.write(note.history)
            found = self._value_of(now, note.answer, note.name)
            stamp = None if note.answer is None else self._value_of(now, "schedules", WHOLE)
        return NoteWritten(bool(rows), found, stamp)

    def _value_of(self, now: float, topic: str | None, name: str) -> str | None:
        rows = self._rows("read_note", topic=topic, name=name, now=now)
        return rows[0][0] if rows else None

    def read_notes(self, now: float, topics: Sequence[Topic]) -> list[Note]:
        return [Note(*row) for row in self._rows("read_notes", topics=json.dumps(topics), now=now)]

    def swap_schedule(self, now: float, swap: ScheduleSwap) -> ScheduleSwapped:
        found = self._value_of(now, swap.topic, swap.name)
        if found != swap.expected:  # without the lock: of many workers, all but one end here
            return ScheduleSwapped(False, found)
        value, job_id = swap.value, None
        with transaction(self.connect()):
            found = self._value_of(now, swap.topic, swap.name)
            if found != swap.expected:
                return ScheduleSwapped(False, found)
            if swap.job is not None:
                [job_id], _ = self.put(now, [swap.job])
                value = f"{value}{job_id}{swap.tail}"
            until = None if swap.ttl is None else now + swap.ttl
            notes = [(swap.name, value, until)]
            if swap.stamp is not None:
                notes.append((WHOLE, swap.stamp, None))
            for name, text, end in notes:
                values = {"topic": swap.topic, "name": name}
                if text is None:
                    self._rows("delete_note", **values)
                else:
                    self._rows("note", **values, value=text, until=end, most=_MANY)
        return ScheduleSwapped(True, value, job_id)

    def limit_use(self, now: float, limits: KindLimits, groups: int) -> LimitUse:
        return self._limits.use(limits, groups, now)
