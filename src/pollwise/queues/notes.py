"""Notes: small named records of a queue beside its jobs, with one mechanism in every store.

There are six topics:

- pauses, by kind
- workers: each stores a record of itself, so that operators see which workers there are
- orders: what an operator asks of a worker
- schedules, by name
- limits, by kind
- breakers that are not closed, by kind

A note has a name within its topic, and a value that is JSON. Those of workers,
orders and breakers expire after a time. The note of a progress report is something else: a text in
a job's record.

A store implements `_write_note` and `_read_notes`, and leaves paused kinds out of its claims. One
that keeps schedules or breakers implements `_swap_schedule` too, which compares and sets a note.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from pollwise.errors import ConfigError, Unsupported
from pollwise.queues.capabilities import WHY_NOT
from pollwise.queues.presence import PRESENCE_EVERY, WorkerInfo
from pollwise.runtime.executor.starting import MAX_CONCURRENCY, check_whole
from pollwise.runtime.jobs import ERROR_LENGTH_MAX, Claim, NewJob, checked_name, storable
from pollwise.runtime.rollups.keeping import HistoryTable, KeptHistory
from pollwise.runtime.rollups.rows import HistoryRange, HistoryRow, checked_rows
from pollwise.runtime.store import WorkStore

if TYPE_CHECKING:
    from pollwise.queues.schedules.calls import Schedules, TickResult

Topic = Literal["pauses", "workers", "orders", "schedules", "limits", "breakers"]
TOPICS: tuple[Topic, ...] = ("pauses", "workers", "orders", "schedules", "limits", "breakers")
#: How many notes of a topic a queue can have.
NOTES_MAX: Mapping[str, int] = {
    "pauses": 1000, "workers": 10_000, "orders": 10_000, "schedules": 1000,
    "limits": 1000, "breakers": 1000,
}  # fmt: skip
#: The largest value of a note, in bytes of JSON.
NOTE_VALUE_MAX = 32 * 1024
#: Times from the year 9999 on, in seconds since 1970, cannot be shown.
TIME_MAX = 253_370_000_000.0
#: The name of the pause of a whole queue, and of the note with the stamp of the last change of
#: schedules; no kind and no schedule has it.
WHOLE = ""
_WITH_REQUIREMENT = re.compile(r"(.+)#[0-9a-f]{16}")
#: The broadcast that schedules of a queue were changed.
SCHEDULES_CHANGED = "#schedules"
#: How long an order waits for its worker, in seconds: as long as a worker may stay unseen.
ORDER_KEPT = 600.0
#: More pollers than any queue has workers: a hint for this number reaches all of them.
EVERYBODY = 100_000


class Note(NamedTuple):
    """A note as a store returns it; its value is JSON."""

    topic: str
    name: str
    value: str


class NewNote(NamedTuple):
    """A note to write.

    value: JSON; None deletes the note.
    ttl: seconds after which it expires; None: never.
    answer: a topic in which the note of the same name is returned, in the same round trip.
    history: rows of history to write, in the same round trip.
    """

    topic: Topic
    name: str
    value: str | None
    ttl: float | None = None
    answer: Topic | None = None
    history: tuple[HistoryRow, ...] = ()


class NoteWritten(NamedTuple):
    """The result of a write.

    done: the note was written, or it was there to delete; False if there was no room for it.
    answer: the value of the note that was asked for, if there is one.
    stamp: that of the last change of schedules, if a note was asked for.
    """

    done: bool
    answer: str | None = None
    stamp: str | None = None


class ScheduleSwap(NamedTuple):
    """A note to replace if it is unchanged, and a job to put in the same transaction.

    expected: its value as the caller read it; None: there is none.
    value: the new one; None deletes it. With a job, its id and `tail` are added to the value.
    job: checked and sealed.
    ttl: seconds after which the note expires; None: never.
    stamp: the new stamp of the last change of schedules; None keeps the old one.
    topic: of the note; a job and a stamp are for schedules.
    """

    name: str
    expected: str | None
    value: str | None
    tail: str = ""
    job: NewJob | None = None
    ttl: float | None = None
    stamp: str | None = None
    topic: Topic = "schedules"


class ScheduleSwapped(NamedTuple):
    """The result of a swap: whether it was done, the value of the note now, and the job's id."""

    done: bool
    value: str | None
    job: str | None = None


class KeptSchedules(NamedTuple):
    """The schedules of a queue as one call read them: notes by name, and the stamp of the last
    change."""

    notes: Mapping[str, str]
    stamp: str | None


@dataclass(frozen=True, slots=True)
class PauseInfo:
    """Who paused a kind or a queue, why, and when (seconds since 1970)."""

    by: str
    why: str
    at: float


class NotedStore(KeptHistory, WorkStore[Claim]):
    """The calls of a queue that are about the queue and its workers, not about jobs."""

    #: The same as `Queue.capabilities` and `Queue.schedules`.
    capabilities: ClassVar[Any]
    schedules: Schedules
    #: How often an idle worker writes its record at most, in seconds; less often for a store that
    #: bills each call.
    idle_presence: ClassVar[float] = PRESENCE_EVERY

    async def pause(self, kind: str | None = None, *, by: str = "", why: str = "") -> None:
        """Stop handing out jobs of a kind, or of the whole queue, until `resume`.

        Claims that begin after this call do not get them (object stores: after a second).
        Puts go on, and so do jobs that run or are claimed already. Paused jobs stay `ready`.
        A second pause replaces who and why.

        by, why: for the people who find the queue paused.
        """
        self._check_can_pause()
        texts = {"by": by, "why": why}
        for name, text in texts.items():
            if not isinstance(text, str) or len(text) > ERROR_LENGTH_MAX:
                raise ConfigError(
                    f"{name} must be text of at most {ERROR_LENGTH_MAX} characters, not "
                    f"{str(text)[:40]!r}"
                )
        told = PauseInfo(storable(by) or "", storable(why) or "", self.clock.epoch())
        await self._pause(_pause_name(kind), told)

    async def resume(self, kind: str | None = None) -> bool:
        """End a pause; workers start at once. Returns False if there was none.

        Without a kind, the pause of the whole queue ends; paused kinds stay paused.
        """
        self._check_can_pause()
        ended = await self._resume(_pause_name(kind))
        if ended:
            self._give_hints(EVERYBODY, None)  # also to those who wait for `build#<hash>`
        return ended

    async def paused(self) -> dict[str | None, PauseInfo]:
        """The pauses by kind; None is the whole queue."""
        self._check_can_pause()
        return dict(sorted((await self._paused()).items(), key=lambda each: each[0] or ""))

    async def workers(self) -> list[WorkerInfo]:
        """The running workers, by name, as their last records describe them.

        A worker writes its record at most once a minute. The record expires after three
        minutes (half an hour if the worker was idle, on an object store), and is deleted when the
        worker stops.
        """
        self._check_presence()
        return sorted(await self._workers(), key=lambda info: (info.name, info.started_at))

    async def set_concurrency(self, worker: str, concurrency: int) -> int:
        """Change how many handlers a running worker runs at a time, until it restarts.

        The worker learns of it within seconds by a broadcast, or with its next record within about
        a minute. Returns how many workers have this name.
        """
        self._check_presence()
        checked_name(worker, "worker", ConfigError)
        if concurrency == 0:
            raise ConfigError("concurrency = 0: to stop work, pause the queue or a kind instead")
        check_whole(concurrency, "concurrency", 1, MAX_CONCURRENCY)
        count = await self._order(worker, concurrency)
        self._hints.broadcast(order_broadcast(worker))
        return count

    async def record_worker(
        self, info: WorkerInfo, ttl: float, history: Sequence[HistoryRow] = ()
    ) -> int | None:
        """Store a worker's record for `ttl` seconds; return the concurrency it is asked to have.

        Workers call it after a poll, because object stores read orders in the listing of a claim.

        history: what it did since its last record, in the same call.
        """
        self._check_presence()
        return await self._record_worker(info, ttl, self._checked_history(info, history))

    async def forget_worker(self, info: WorkerInfo, history: Sequence[HistoryRow] = ()) -> None:
        """Delete the record of a worker that stops, and store its last history."""
        self._check_presence()
        await self._forget_worker(info, self._checked_history(info, history))

    # What an `http://` queue does in one request each

    async def _pause(self, name: str, pause: PauseInfo) -> None:
        value = _encoded(asdict(pause))
        written = await self._write_note(NewNote("pauses", name, value))
        if not written.done:
            raise ConfigError(
                f"{self.url} has {NOTES_MAX['pauses']} paused kinds, which is the limit; pause the "
                "whole queue instead"
            )

    async def _resume(self, name: str) -> bool:
        return (await self._write_note(NewNote("pauses", name, None))).done

    async def _paused(self) -> dict[str | None, PauseInfo]:
        notes = await self._read_notes(["pauses"])
        return {note.name or None: pause_from(_decoded(note.value)) for note in notes}

    async def _workers(self) -> list[WorkerInfo]:
        notes = await self._read_notes(["workers"])
        infos = (WorkerInfo.from_value(_decoded(note.value)) for note in notes)
        return [info for info in infos if info is not None]

    async def _order(self, worker: str, concurrency: int) -> int:
        infos = await self._workers()
        found = [info for info in infos if info.name == worker]
        if not found:
            raise ConfigError(_no_such_worker(worker, [info.name for info in infos]))
        for info in found:
            value = _encoded({"concurrency": concurrency})
            await self._write_note(NewNote("orders", info.note_name, value, ORDER_KEPT))
        return len(found)

    async def _record_worker(
        self, info: WorkerInfo, ttl: float, history: tuple[HistoryRow, ...]
    ) -> int | None:
        value = _encoded(info.to_value())
        note = NewNote("workers", info.note_name, value, ttl, "orders", history)
        written = await self._write_note(note)
        self.schedules.stamp = written.stamp
        return order_from(written.answer)

    async def _forget_worker(self, info: WorkerInfo, history: tuple[HistoryRow, ...]) -> None:
        await self._write_note(NewNote("workers", info.note_name, None, history=history))

    # What a store implements

    async def _write_note(self, note: NewNote) -> NoteWritten:
        """Write or delete a note, and delete those of its topic that have expired.

        It is not done if the topic has NOTES_MAX others, or if there was nothing to delete. Rows of
        history are written in any case, and replace those of the same interval and writer.
        """
        raise self._cannot("keep notes")

    async def _read_notes(self, topics: Sequence[Topic]) -> list[Note]:
        """The notes of these topics that have not expired."""
        raise self._cannot("keep notes")

    async def _swap_schedule(self, swap: ScheduleSwap) -> ScheduleSwapped:
        """Replace a note if it is as expected, and put the job, or do nothing."""
        raise self._cannot("keep schedules")

    async def _read_schedules(self) -> KeptSchedules:
        notes = {note.name: note.value for note in await self._read_notes(["schedules"])}
        stamp = notes.pop(WHOLE, None)
        return KeptSchedules(notes, stamp)

    async def _put_tick(self, name: str, value: str, undeclared: bool) -> TickResult:
        return await self.schedules.put_tick_here(name, value, undeclared)

    async def _read_history(self, ranges: Sequence[HistoryRange]) -> list[list[HistoryRow]]:
        raise self._cannot("keep history")

    async def _replace_history(self, old: Sequence[HistoryRow], new: Sequence[HistoryRow]) -> bool:
        raise self._cannot("keep history")

    def _check_can_pause(self) -> None:
        if not self.capabilities.pause:
            raise self._cannot("be paused")

    def _check_presence(self) -> None:
        if not self.capabilities.presence:
            raise self._cannot("keep records of its workers")

    def _check_history(self) -> None:
        if not self.capabilities.history:
            raise self._cannot("keep history")

    def _checked_history(
        self, info: WorkerInfo, rows: Sequence[HistoryRow]
    ) -> tuple[HistoryRow, ...]:
        if rows:
            self._check_history()
        return checked_rows(rows, info.note_name)

    def _cannot(self, what: str) -> Unsupported:
        why = f": {WHY_NOT[what]}" if what in WHY_NOT else ""
        return Unsupported(
            f"{self.url} cannot {what}{why}; choose a store that can, such as SQLite, Postgres or "
            "Redis"
        )


class MemoryNotes(NotedStore):
    """Notes in dictionaries of this process."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        # By topic and name, the value and until when.
        self._notes: dict[str, dict[str, tuple[str, float]]] = {topic: {} for topic in TOPICS}
        self._history = HistoryTable()

    async def _write_note(self, note: NewNote) -> NoteWritten:
        of_topic = self._live_notes(note.topic)
        if note.value is None:
            done = of_topic.pop(note.name, None) is not None
        elif done := note.name in of_topic or len(of_topic) < NOTES_MAX[note.topic]:
            until = float("inf") if note.ttl is None else self._now() + note.ttl
            of_topic[note.name] = note.value, until
        self._history.write(note.history)
        if note.answer is None:
            return NoteWritten(done)
        answer = self._live_notes(note.answer).get(note.name)
        stamp = self._notes["schedules"].get(WHOLE)
        return NoteWritten(
            done, None if answer is None else answer[0], None if stamp is None else stamp[0]
        )

    async def _swap_schedule(self, swap: ScheduleSwap) -> ScheduleSwapped:
        of_topic = self._live_notes(swap.topic)
        found = of_topic.get(swap.name)
        now_value = None if found is None else found[0]
        if now_value != swap.expected:
            return ScheduleSwapped(False, now_value)
        value, job_id = swap.value, None
        if swap.job is not None:
            [job_id], _ = await self._put([swap.job])
            value = f"{value}{job_id}{swap.tail}"
        if value is None:
            of_topic.pop(swap.name, None)
        else:
            until = float("inf") if swap.ttl is None else self._now() + swap.ttl
            of_topic[swap.name] = value, until
        if swap.stamp is not None:
            of_topic[WHOLE] = swap.stamp, float("inf")
        return ScheduleSwapped(True, value, job_id)

    async def _read_notes(self, topics: Sequence[Topic]) -> list[Note]:
        return [
            Note(topic, name, value)
            for topic in topics
            for name, (value, _) in self._live_notes(topic).items()
        ]

    async def _read_history(self, ranges: Sequence[HistoryRange]) -> list[list[HistoryRow]]:
        return [self._history.read(asked) for asked in ranges]

    async def _replace_history(self, old: Sequence[HistoryRow], new: Sequence[HistoryRow]) -> bool:
        return self._history.replace(old, new)

    def _without_paused(self, kinds: Iterable[str]) -> Iterable[str]:
        paused = self._notes["pauses"]
        return without_paused(kinds, paused) if paused else kinds

    def _live_notes(self, topic: str) -> dict[str, tuple[str, float]]:
        """The notes of a topic, after those that have expired were deleted."""
        of_topic, now = self._notes[topic], self._now()
        for name in [name for name, (_, until) in of_topic.items() if until <= now]:
            del of_topic[name]
        return of_topic

    @abstractmethod
    def _now(self) -> float:
        """The time, in seconds since 1970."""

    @abstractmethod
    async def _put(self, jobs: list[NewJob]) -> tuple[list[str], int]: ...


def without_paused(kinds: Iterable[str], paused: Collection[str]) -> list[str]:
    """The kinds that are not paused, given the names of the pauses."""
    if WHOLE in paused:
        return []
    return [each for each in kinds if each not in paused and plain_kind(each) not in paused]


def plain_kind(kind: str) -> str:
    """A kind without the hash of a requirement: `build` for `build#0123456789abcdef`.

    A controller puts jobs that require something with such a kind, see `matching`. A pause of
    `build` applies to all of them.
    """
    found = _WITH_REQUIREMENT.fullmatch(kind)
    return kind if found is None else found[1]


def order_broadcast(worker: str) -> str:
    """The kind of the broadcast about an order to a worker."""
    return f"#order-{sha256(worker.encode('utf-8', 'replace')).hexdigest()[:16]}"


def order_from(value: str | None) -> int | None:
    """The concurrency that an order asks for; None if there is none, or it is not understood."""
    asked = None if value is None else _decoded(value).get("concurrency")
    if isinstance(asked, int) and not isinstance(asked, bool) and 1 <= asked <= MAX_CONCURRENCY:
        return asked
    return None


def pause_from(value: Mapping[str, Any]) -> PauseInfo:
    """A pause from its value; whatever is missing is empty."""
    at: Any = value.get("at")
    by, why = (str(value.get(name) or "")[:ERROR_LENGTH_MAX] for name in ("by", "why"))
    known = type(at) in (int, float) and 0 <= at < TIME_MAX
    return PauseInfo(by, why, float(at) if known else 0.0)


def _pause_name(kind: str | None) -> str:
    return WHOLE if kind is None else checked_name(kind, "kind", ConfigError)


def _no_such_worker(worker: str, names: Sequence[str]) -> str:
    near = get_close_matches(worker, names, n=3, cutoff=0.4) or sorted(set(names))[:3]
    advice = f"did you mean {' or '.join(map(repr, near))}?" if near else "no worker is running"
    return f"no worker {worker!r} is running; {advice}"


def _encoded(value: Mapping[str, Any]) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    size = len(text.encode("utf-8", "replace"))
    if size > NOTE_VALUE_MAX:
        raise ConfigError(f"a note of {size} bytes is above the limit of {NOTE_VALUE_MAX}")
    return text


def _decoded(text: str) -> dict[str, Any]:
    """The value of a note; empty if it is not valid."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
