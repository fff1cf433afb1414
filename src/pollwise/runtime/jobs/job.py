"""A job's life as values: Job and Claim (being run), Settlement (how it ends).

A job is one record in its queue's store. `JobInfo` shows the whole record.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Generator, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal

from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError, JobError, PayloadError
from pollwise.runtime.decoding import CutText
from pollwise.runtime.executor.control.run_control import WithRunControl, control_of
from pollwise.runtime.jobs.fields import DELAY_MAX, storable
from pollwise.runtime.payloads.encoding import encode

#: The longest traceback that is kept with an error, in characters.
TRACEBACK_LENGTH_MAX = 4096
#: How many errors are kept with a job: the last ones.
ERRORS_KEPT = 5
#: The largest result of a job, in bytes of JSON.
MAX_RESULT_BYTES = 1024 * 1024
#: How long the result of a task is kept unless it says otherwise, in seconds.
RESULT_TTL = 3600.0
#: The longest note of a progress report, in characters.
PROGRESS_NOTE_MAX = 500
#: A job whose leases ran out this many times in a row is a suspect: it is claimed alone.
LAPSES_ALONE = 2
#: The longest lease, in seconds.
MAX_LEASE = 7 * 86400.0

State = Literal["ready", "delayed", "blocked", "leased", "dead", "done", "cancelled"]
#: In this order, because stores keep a state as its place here.
STATES: tuple[State, ...] = (
    "ready", "delayed", "blocked", "leased", "dead", "done", "cancelled",
)  # fmt: skip
#: The states of a job that has ended; only an operator changes them.
ENDED: tuple[State, ...] = STATES[4:]
SettlementAction = Literal["done", "retry", "dead", "cancelled", "give_back"]
#: In this order, because stores are sent an action as its place here.
ACTIONS: tuple[SettlementAction, ...] = ("done", "retry", "dead", "cancelled", "give_back")
#: The headers of a job in a claim that a client sent back without them.
UNKNOWN_HEADERS: Mapping[str, str] = MappingProxyType({})
#: How stores word the error of a run whose lease ran out.
_LAPSED = re.compile(r"the lease of (.+) ran out", re.DOTALL)
#: Stands between an error and its traceback in the text that a store keeps.
TRACEBACK_FOLLOWS = "\n\x1e"


class _Reported:
    """The result of `job.progress`, for async handlers to await, which gives other tasks a turn."""

    def __await__(self) -> Generator[None]:
        yield


_REPORTED = _Reported()


@dataclass(frozen=True, slots=True)
class Job(WithRunControl):
    """A job as its handler sees it. `attempt` is 1 on the first run. Times: seconds since 1970.

    unreadable: why the payload or the headers cannot be decoded; the payload is then its text. A
        worker does not run such a job: it settles it as dead.
    sealed: what to show in place of the payload, because it was encrypted; else None.
    locked: why the payload cannot be decoded by this process: a key or a codec is missing. A worker
        gives such a job back.
    """

    id: str
    queue: str
    kind: str
    payload: Any
    key: str | None
    priority: int
    attempt: int
    created_at: float
    run_at: float
    unique: str | None
    headers: Mapping[str, str] = field(default_factory=dict)
    unreadable: str | None = None
    sealed: str | None = None
    locked: str | None = None

    def __repr__(self) -> str:
        return repr_without(self)

    def progress(self, fraction: float | None = None, note: str | None = None) -> Awaitable[None]:
        """Report how far this run is: a fraction from 0 to 1, a note, or both.

        In an async handler `await job.progress(0.4, "page 3 of 8")`, in a plain one the same
        without await. It never waits for the store: the newest report is written within about a
        second, and not more often. It does nothing for a job that is not being run by a worker.

        Raises JobError for a value that is not allowed. A note is cut to PROGRESS_NOTE_MAX
        characters.
        """
        if note is not None and not isinstance(note, str):
            raise JobError(f"note = {note!r} must be text, or None")
        if fraction is None and note is None:
            raise JobError("give a fraction, as in job.progress(0.4), a note, or both")
        progress = Progress(fraction, note)
        if (control := control_of(self)) is not None:
            control.report(progress)
        return _REPORTED

    @property
    def cancel_requested(self) -> bool:
        """True if this run should stop: somebody asked to cancel the job, or the worker gave the
        run up (its timeout is over, its lease is lost).

        For plain handlers, which cannot be interrupted: a plain handler that has seen True and
        returns settles its job as cancelled. An async handler gets `CancelledError`.
        """
        control = control_of(self)
        return control is not None and control.should_stop()


@dataclass(frozen=True, slots=True)
class Claim:
    """A job under a lease. A newer claim of the same job makes the token invalid.

    receipt: the store's own name for the claim, if it has one.
    suspect: its last leases ran out, LAPSES_ALONE or more in a row. It may have killed its workers,
        so it was claimed alone, and should run alone.
    size: of its payload, in bytes or characters of JSON; 0 if unknown.
    lapsed_from: the worker whose lease of this job ran out just before; "" if none did.
    """

    job: Job
    token: int
    worker: str
    until: float
    receipt: str = field(default="", repr=False)
    suspect: bool = False
    size: int = field(default=0, repr=False, compare=False)
    lapsed_from: str = field(default="", repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: a fraction from 0 to 1, a note, or both.

    at: when it was reported; the store sets it.
    """

    fraction: float | None = None
    note: str | None = None
    at: float = 0.0

    def __post_init__(self) -> None:
        value = self.fraction
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1
        ):
            raise JobError(f"fraction = {value!r} must be a number from 0 to 1, or None")
        note = storable(self.note)
        object.__setattr__(self, "note", None if note is None else note[:PROGRESS_NOTE_MAX])


@dataclass(frozen=True, slots=True)
class JobFailure:
    """Why an attempt of a job failed, and when.

    traceback: where the error came from, if it made the job dead and is known.
    """

    at: float
    attempt: int
    error: str
    traceback: str | None = None

    @classmethod
    def stored(cls, at: float, attempt: int, text: str) -> JobFailure:
        """Read the text that a store keeps; see `Settlement.failure`."""
        error, found, traceback = text.partition(TRACEBACK_FOLLOWS)
        return cls(at, attempt, error, traceback if found else None)


@dataclass(frozen=True, slots=True)
class JobInfo:
    """The whole record of a job.

    since: when the state began; for a leased job when it was claimed, for a delayed one when it is
        due.
    worker: who holds it, or whose settlement ended it.
    errors: why its last attempts failed, the newest last; at most ERRORS_KEPT.
    claimed_at: when its current or last run was claimed.
    progress: of the current or last run.
    cancel: it runs, and somebody asked to cancel it.
    result: what the run returned, for as long as it is kept.
        In lists, a payload or a result of more than LISTED_MAX characters of JSON is a `CutText`:
        its beginning, as text. `Queue.get` returns the whole.
    claim: its present claim; None if it is not leased, and always None over HTTP.
    """

    job: Job
    state: State
    since: float
    worker: str | None
    errors: tuple[JobFailure, ...] = ()
    claimed_at: float | None = None
    progress: Progress | None = None
    cancel: bool = False
    result: Any = field(default=None, repr=False)
    claim: Claim | None = field(default=None, repr=False)

    def cut(self, payload: CutText | None, result: CutText | None) -> JobInfo:
        """The record as a list has it, with the beginning of its payload, result, or both."""
        info = self
        if payload is not None:
            job = replace(info.job, payload=payload)
            claim = None if info.claim is None else replace(info.claim, job=job)
            info = replace(info, job=job, claim=claim)
        return info if result is None else replace(info, result=result)

    @property
    def cut_parts(self) -> list[str]:
        """Which of "payload" and "result" are only beginnings, because they are in a list."""
        values = {"payload": self.job.payload, "result": self.result}
        return [name for name, value in values.items() if type(value) is CutText]

    @property
    def error(self) -> str | None:
        """The newest error."""
        return self.errors[-1].error if self.errors else None

    @property
    def traceback(self) -> str | None:
        """The traceback of the newest error, if it made the job dead and is known."""
        return self.errors[-1].traceback if self.errors else None


@dataclass(frozen=True, slots=True)
class Renewal:
    """The result of a renewal: the ids of jobs whose lease is lost, and of jobs to cancel."""

    lost: tuple[str, ...] = ()
    cancel: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Settlement:
    """How a claim ends. `result` is JSON text.

    keep: how many seconds the record of a job that is done or cancelled is kept for callers that
        wait for its result, even if the queue keeps no finished jobs; None: as long as finished
        jobs. It does not prolong `unique`.
    traceback: where the error came from; it is kept if the job is dead.
    """

    claim: Claim
    action: SettlementAction
    delay: float = 0.0
    error: str | None = None
    result: str | None = None
    keep: float | None = None
    traceback: str | None = None

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise ConfigError(f"action = {self.action!r} must be one of {', '.join(ACTIONS)}")
        # Most settlements have none of these, and setting a field of a frozen class takes time.
        if type(self.delay) is not float or self.delay != 0.0:
            object.__setattr__(self, "delay", seconds(self.delay, "delay"))
        if self.error is not None:
            object.__setattr__(self, "error", storable(self.error))
        if self.keep is not None:
            object.__setattr__(self, "keep", _checked_keep(self.keep, self.action))
        if self.traceback is not None:
            text = storable(self.traceback, TRACEBACK_LENGTH_MAX)
            object.__setattr__(self, "traceback", text or None)
        if self.result is not None and len(self.result.encode()) > MAX_RESULT_BYTES:
            raise PayloadError(
                f"the result of job {self.claim.job.id} has more than {MAX_RESULT_BYTES} bytes of "
                "JSON; store it elsewhere and return a reference to it"
            )

    @classmethod
    def done(cls, claim: Claim, result: Any = None, *, keep: Duration | None = None) -> Settlement:
        """The work is finished. `result` is any JSON value; None means that there is none.

        keep: how long the job is kept for its result, even if the queue keeps no finished jobs.
        """
        text = None if result is None else encode(result, claim.job.kind, "result")
        return cls(claim, "done", result=text, keep=_keep_for(keep))

    @classmethod
    def retry(cls, claim: Claim, delay: Duration = 0, error: str | None = None) -> Settlement:
        """The run failed; run the job again after `delay`."""
        return cls(claim, "retry", seconds(delay, "delay"), error)

    @classmethod
    def give_back(cls, claim: Claim, delay: Duration = 0) -> Settlement:
        """The job did not run, or not to its end, without its fault: not an attempt."""
        return cls(claim, "give_back", seconds(delay, "delay"))

    @classmethod
    def dead(cls, claim: Claim, error: str, traceback: str | None = None) -> Settlement:
        """The job does not run again unless an operator retries it."""
        return cls(claim, "dead", error=error, traceback=traceback)

    @classmethod
    def cancelled(
        cls, claim: Claim, error: str | None = None, *, keep: Duration | None = None
    ) -> Settlement:
        """The run was stopped because somebody asked to cancel the job. `keep` is as in `done`."""
        return cls(claim, "cancelled", error=error, keep=_keep_for(keep))

    @property
    def comes_back(self) -> bool:
        """True if the job runs again."""
        return self.action in ("retry", "give_back")

    @property
    def failure(self) -> str | None:
        """The error as a store keeps it: the text of a dead job ends with its traceback."""
        if self.traceback is None or self.error is None or self.action != "dead":
            return self.error
        return f"{self.error}{TRACEBACK_FOLLOWS}{self.traceback}"

    def outlasting(self, keep: float | None) -> float | None:
        """Return `keep` of the settlement if it is longer than this one of the queue, else None."""
        return self.keep if keep is None or (self.keep or 0.0) > keep else None


def _keep_for(keep: Duration | None) -> float | None:
    """The seconds of a `keep`; None if there is none, or no time."""
    return None if keep is None else seconds(keep, "keep") or None


def _checked_keep(keep: float, action: str) -> float:
    kept = seconds(keep, "keep", positive=True)
    if action not in ("done", "cancelled"):
        raise ConfigError(
            f"keep = {keep!r} is for jobs that are done or cancelled, not for {action}"
        )
    if kept > DELAY_MAX:
        raise ConfigError(f"keep = {keep!r} is above the limit of ten years")
    return kept


def worker_of_lapse(error: str | None) -> str:
    """The worker that an error names as the one whose lease ran out; "" for any other error."""
    found = _LAPSED.fullmatch(error or "")
    return found[1] if found else ""


def repr_without(item: Any) -> str:
    """The `repr` of a job or record, without a payload that was encrypted."""
    shown = {each.name: getattr(item, each.name) for each in fields(item)}
    if item.sealed is not None:
        shown["payload"] = item.sealed
    values = ", ".join(f"{name}={value!r}" for name, value in shown.items())
    return f"{type(item).__name__}({values})"
