"""A schedule as its queue keeps it: a note, whose value is JSON and ends with the id of a job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, get_args

from pollwise.core.grid import spread
from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError, PollwiseError
from pollwise.queues.notes import NOTE_VALUE_MAX, TIME_MAX
from pollwise.queues.schedules.when import When
from pollwise.runtime.decoding import decode, same_payload
from pollwise.runtime.jobs import DELAY_MAX, NewJob, checked_name, storable
from pollwise.runtime.jobs.new_job import FLOW_HEADER

CatchUp = Literal["one", "all", "none"]
Overlap = Literal["skip", "queue"]
Origin = Literal["code", "calls"]
#: The headers of a job that say which schedule put it, and for which tick.
SCHEDULE_HEADER, TICK_HEADER = "pollwise-schedule", "pollwise-tick"
#: The longest text that says who set a schedule, in characters.
BY_LENGTH_MAX = 200
#: How many bytes of a note are left for the id of a job and for what ticks add; and how many of
#: these are for ticks.
NOTE_ROOM, TICK_ROOM = 1000, 400
#: The tick whose header is the longest, because of its fraction.
_LONGEST_TICK = 0.5


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule. Times are seconds since 1970.

    name: unique in its queue.
    when: its ticks.
    kind, payload, key, priority, headers: as in its jobs, which have two more headers:
        SCHEDULE_HEADER and TICK_HEADER (in UTC, as in 2026-12-24T08:00:00+00:00).
    catch_up: what happens with ticks that no worker put in time. "one": one job for all of them;
        "all": a job for each of the last CATCH_UP_MAX; "none": no job.
    overlap: "skip": no job at a tick while the job of the tick before has not ended; "queue": a
        job at each tick.
    jitter: the jobs are delayed by up to this many seconds, each by a share that is fixed by the
        name and the tick.
    paused: it puts nothing until it is resumed.
    origin: "code" if a worker sets it at its start, "calls" if somebody set it.
    by: who set it.
    next_at: its next tick; None if there is none.
    last_tick, last_put: its last tick, and when its job was put.
    last_job: the id of that job.
    """

    name: str
    when: When
    kind: str
    payload: Any
    key: str | None = None
    priority: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    catch_up: CatchUp = "one"
    overlap: Overlap = "skip"
    jitter: float = 0.0
    paused: bool = False
    origin: Origin = "calls"
    by: str = ""
    set_at: float = 0.0
    next_at: float | None = None
    last_tick: float | None = None
    last_put: float | None = None
    last_job: str | None = None

    def late(self, now: float) -> float:
        """How many seconds the next tick is overdue; 0 if it is not."""
        return 0.0 if self.paused or self.next_at is None else max(now - self.next_at, 0.0)

    def job(self, tick: float | None = None) -> NewJob:
        """The job of a tick, or one to run now. Its payload is as it is stored."""
        headers = {**self.headers, SCHEDULE_HEADER: self.name}
        run_at = None
        if tick is not None:
            headers[TICK_HEADER] = datetime.fromtimestamp(tick, UTC).isoformat()
            run_at = tick + self.jitter * spread(f"{self.name} {tick!r}")
        return NewJob(
            self.kind, self.payload, key=self.key, priority=self.priority, run_at=run_at,
            headers=headers,
        )  # fmt: skip

    def same_definition(self, other: Schedule) -> bool:
        """True if both put the same jobs at the same times."""
        same = ("when", "kind", "key", "priority", "headers", "catch_up", "overlap", "jitter")
        return all(getattr(self, each) == getattr(other, each) for each in same) and same_payload(
            json.dumps(self.payload), json.dumps(other.payload)
        )

    def to_value(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        when = {"cron": self.when.cron, "every": self.when.every, "at": self.when.at}
        names = (name for name in self.__slots__ if name not in ("when", "headers"))
        shown = {name: getattr(self, name) for name in names}
        return {**shown, **when, "tz": self.when.tz, "headers": dict(self.headers)}


class NoteText(NamedTuple):
    """The value of a schedule's note, in two parts: between them is the id of its last job."""

    head: str
    tail: str

    def with_job(self, job_id: str | None) -> str:
        """The whole value. A client can send any text as the id."""
        return f"{self.head}{json.dumps(job_id or '', ensure_ascii=False)[1:-1]}{self.tail}"


def chosen_overlap(overlap: str | None, catch_up: str) -> str:
    """The overlap that a caller gave, or the one that fits. Raises ConfigError."""
    if overlap == "skip" and catch_up == "all":
        raise ConfigError(
            "catch_up = 'all' and overlap = 'skip' contradict each other: of several missed ticks "
            "only the first would get a job. Leave overlap out; jobs with a key run one at a time"
        )
    return overlap if overlap is not None else "queue" if catch_up == "all" else "skip"


def checked_schedule(
    name: str,
    job: NewJob,
    when: When,
    *,
    catch_up: str = "one",
    overlap: str = "skip",
    jitter: Duration = 0,
) -> Schedule:
    """A new schedule, from what a caller gave. Raises ConfigError."""
    checked_name(name, "name", ConfigError)
    if not isinstance(job, NewJob):
        raise ConfigError(f"expected a NewJob, got {job!r}; give NewJob(kind, payload)")
    if job.unique is not None or job.delay or job.run_at is not None:
        raise ConfigError(
            f"the job of the schedule {name!r} has unique, delay or run_at; leave these out: a "
            "schedule decides when its jobs run, and `overlap` whether several may wait"
        )
    for value, allowed, what in ((catch_up, CatchUp, "catch_up"), (overlap, Overlap, "overlap")):
        if value not in get_args(allowed):
            choices = " or ".join(map(repr, get_args(allowed)))
            raise ConfigError(f"{what} = {value!r} is unknown; give {choices}")
    delay = seconds(jitter, "jitter")
    if delay > DELAY_MAX:
        raise ConfigError(f"jitter = {jitter!r} is above the limit of ten years")
    # Headers that were copied from a job of a flow would keep its jobs as if they were in one.
    headers = {each: text for each, text in job.headers.items() if each != FLOW_HEADER}
    made = Schedule(
        name, when, job.kind, decode(job.encoded), job.key, job.priority, headers,
        catch_up, overlap, delay,  # type: ignore[arg-type]
    )  # fmt: skip
    made.job(_LONGEST_TICK)  # refuses headers that are too large together with ours
    return made


def note_of(schedule: Schedule, room: int = NOTE_ROOM) -> NoteText:
    """A schedule as the value of its note. Raises ConfigError if it is too large.

    room: how many bytes must be left; less for a schedule that was accepted and then ticked.
    """
    value = {
        name: value
        for name, value in schedule.to_value().items()
        if name == "payload" or (name not in ("name", "last_job") and value not in (None, {}, ""))
    }
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    size = len(text.encode("utf-8", "replace"))
    if size > NOTE_VALUE_MAX - room:
        raise ConfigError(
            f"the schedule {schedule.name!r} has {size} bytes of JSON; at most "
            f"{NOTE_VALUE_MAX - room}. Store large data elsewhere and put a reference to it into "
            "the payload"
        )
    return NoteText(f'{text[:-1]},"last_job":"', '"}')


def schedule_from(name: str, text: str) -> Schedule | None:
    """Read a note, which another process wrote; None if it is not valid."""
    try:
        return checked_note(name, text)
    except ConfigError:
        return None


def checked_note(name: str, text: str) -> Schedule:
    """Read a note that somebody sends. Raises ConfigError."""
    try:
        value = decode(text)
        when = When.checked(
            value.get("cron"),
            value.get("every"),
            value.get("at"),
            None if value.get("every") is not None else value.get("tz"),
        )
        job = NewJob(
            value["kind"], value.get("payload"), key=value.get("key"),
            priority=value.get("priority", 0), headers=value.get("headers"),
        )  # fmt: skip
        made = checked_schedule(
            name, job, when, catch_up=value.get("catch_up", "one"),
            overlap=value.get("overlap", "skip"), jitter=value.get("jitter", 0),
        )  # fmt: skip
        return replace(
            made,
            paused=value.get("paused") is True,
            origin="code" if value.get("origin") == "code" else "calls",
            by=_text(value.get("by")) or "",
            set_at=_moment(value.get("set_at")) or 0.0,
            next_at=_moment(value.get("next_at")),
            last_tick=_moment(value.get("last_tick")),
            last_put=_moment(value.get("last_put")),
            last_job=_text(value.get("last_job")) or None,
        )
    except PollwiseError as error:
        raise ConfigError(f"the value of the schedule {name!r} is not valid: {error}") from None
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ConfigError(
            f"the value of the schedule {name!r} is not JSON as Pollwise writes it"
        ) from None


def _moment(value: object) -> float | None:
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if known and 0 <= value < TIME_MAX else None  # type: ignore[arg-type,operator]


def _text(value: object) -> str | None:
    return storable(value, BY_LENGTH_MAX) if isinstance(value, str) else None
