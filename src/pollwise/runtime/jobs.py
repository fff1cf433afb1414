"""A job's life as values: NewJob (to put), Job and Claim (being run), Settlement (how it ends)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError, JobError, PayloadError, PollwiseError

#: The longest kind, key and unique, in characters.
NAME_LENGTH_MAX = 200
#: The longest delay of a job, in seconds: ten years.
DELAY_MAX = 10 * 365 * 86400.0
#: Priorities run from -PRIORITY_MAX to PRIORITY_MAX.
PRIORITY_MAX = 1000
#: The longest error or reason that is kept with a job, in characters.
ERROR_LENGTH_MAX = 2000
#: The longest lease, in seconds.
MAX_LEASE = 7 * 86400.0
#: How deep a payload may nest, so that decoding never depends on the depth of the caller's stack.
DEPTH_MAX = 200

State = Literal["ready", "delayed", "blocked", "leased", "dead", "done"]
STATES: tuple[State, ...] = ("ready", "delayed", "blocked", "leased", "dead", "done")
SettlementAction = Literal["done", "retry", "dead"]
ACTIONS: tuple[SettlementAction, ...] = ("done", "retry", "dead")


class NewJob:
    """A job to put.

    kind: picks the handler.
    payload: any JSON value. It is encoded here, so later changes to it do not reach the queue.
    key: jobs with the same key run one at a time, in the order they were put.
    priority: higher runs first; 0 unless given.
    delay, run_at: earliest run, from now or as a moment (an aware datetime or seconds since 1970);
        give one of the two.
    unique: put once. A second job with the same `unique`, kind and payload is the same job; with
        another kind or payload it is refused with `UniqueConflict`. This lasts until the job is
        done, or for as long as finished jobs are kept.
    """

    __slots__ = (
        "delay", "encoded", "key", "kind", "payload", "priority", "run_at", "size", "unique",
    )  # fmt: skip

    def __init__(
        self,
        kind: str,
        payload: Any = None,
        *,
        key: str | None = None,
        priority: int = 0,
        delay: Duration = 0,
        run_at: datetime | float | None = None,
        unique: str | None = None,
    ) -> None:
        self.kind = checked_name(kind, "kind")
        self.payload = payload
        self.encoded = encode(payload, kind)
        self.size = len(self.encoded.encode())
        self.key = None if key is None else checked_name(key, "key")
        self.unique = None if unique is None else checked_name(unique, "unique")
        self.priority = _checked_priority(priority)
        self.delay = _checked_delay(delay)
        self.run_at = None if run_at is None else _checked_moment(run_at)
        if self.run_at is not None and self.delay:
            raise JobError(f"give delay = {delay!r} or run_at = {run_at!r}, not both")

    def due_at(self, now: float) -> float:
        """When it may run, in seconds since 1970; never in the past."""
        return max(self.run_at, now) if self.run_at is not None else now + self.delay

    def __repr__(self) -> str:
        return f"NewJob({self.kind!r}, {self.payload!r})"


@dataclass(frozen=True, slots=True)
class Job:
    """A job as its handler sees it. `attempt` is 1 on the first run. Times are since 1970."""

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


@dataclass(frozen=True, slots=True)
class Claim:
    """A job under a lease. A newer claim of the same job makes the token invalid.

    receipt: the store's own name for the claim, if it has one.
    """

    job: Job
    token: int
    worker: str
    until: float
    receipt: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A job as a view shows it: its state, who holds it until when, and its last error."""

    job: Job
    state: State
    since: float
    worker: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Settlement:
    """How a claim ends.

    counted: whether the attempt counts; False for a job that was given back or snoozed.
    """

    claim: Claim
    action: SettlementAction
    delay: float = 0.0
    error: str | None = None
    counted: bool = True

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise ConfigError(f"action = {self.action!r} must be one of {', '.join(ACTIONS)}")
        object.__setattr__(self, "delay", seconds(self.delay, "delay"))
        object.__setattr__(self, "error", storable(self.error))

    @classmethod
    def done(cls, claim: Claim) -> Settlement:
        """The work is finished."""
        return cls(claim, "done")

    @classmethod
    def retry(cls, claim: Claim, delay: Duration = 0, error: str | None = None) -> Settlement:
        """It failed; run it again after `delay`."""
        return cls(claim, "retry", seconds(delay, "delay"), error)

    @classmethod
    def give_back(cls, claim: Claim, delay: Duration = 0) -> Settlement:
        """It was not run, or not to its end, for no fault of the job."""
        return cls(claim, "retry", seconds(delay, "delay"), None, counted=False)

    @classmethod
    def dead(cls, claim: Claim, error: str) -> Settlement:
        """It will not run again unless an operator retries it."""
        return cls(claim, "dead", error=error)


def encode(payload: Any, kind: str) -> str:
    """Encode a payload as JSON text, or say what in it is not JSON."""
    try:
        text = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()  # half of a surrogate pair is text in Python and nowhere else
        if text.count("[") + text.count("{") > DEPTH_MAX and _deeper_than(payload, DEPTH_MAX):
            raise ValueError(f"it nests deeper than {DEPTH_MAX} levels")
        return text
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(
            f"the payload of kind {kind!r} is not JSON: {error}. Use only dict, list, str, int, "
            "float (no NaN), bool and None; encode anything else yourself."
        ) from None


def same_payload(one: str, other: str) -> bool:
    """True if two encoded payloads are the same JSON; the order of keys does not matter."""
    return one == other or _canonical(one) == _canonical(other)


def checked_name(value: object, name: str, error: type[PollwiseError] = JobError) -> str:
    """Check a kind, key or unique: text of 1 to NAME_LENGTH_MAX printable characters."""
    if not isinstance(value, str) or not value or not value.isprintable():
        raise error(
            f"{name} = {value!r} must be text of at least one character, all of them printable"
        )
    if len(value) > NAME_LENGTH_MAX:
        raise error(
            f"{name} = {value[:20]!r}… has {len(value)} characters; at most {NAME_LENGTH_MAX}"
        )
    return value


def _checked_priority(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > PRIORITY_MAX:
        raise JobError(
            f"priority = {value!r} must be a whole number from -{PRIORITY_MAX} to {PRIORITY_MAX}"
        )
    return value


def _checked_delay(value: Duration) -> float:
    try:
        delay = seconds(value, "delay")
    except ValueError as error:
        raise JobError(str(error)) from None
    if delay > DELAY_MAX:
        raise JobError(f"delay = {value!r} is above the limit of ten years")
    return delay


def _checked_moment(value: datetime | float) -> float:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise JobError(
                f"run_at = {value!r} has no time zone; use datetime.now(timezone.utc) "
                "or .astimezone()"
            )
        return value.timestamp()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e11:
        raise JobError(f"run_at = {value!r} must be an aware datetime or seconds since 1970")
    return float(value)


def storable(error: str | None) -> str | None:
    """Shorten and escape an error text so that every store can keep it."""
    if error is None:
        return None
    text = str(error)[:ERROR_LENGTH_MAX].replace("\0", "\\0")
    return text.encode("utf-8", "backslashreplace").decode()[:ERROR_LENGTH_MAX]


def _canonical(encoded: str) -> str:
    return json.dumps(json.loads(encoded), sort_keys=True)  # text, for 1 == True == 1.0 in Python


def _deeper_than(payload: Any, levels: int) -> bool:
    depth, layer = 0, [payload]
    while layer := [value for value in layer if isinstance(value, (dict, list, tuple))]:
        depth += 1
        if depth > levels:
            return True
        layer = [
            child
            for value in layer
            for child in (value.values() if isinstance(value, dict) else value)
        ]
    return False
