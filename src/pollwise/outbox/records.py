"""The values of the outbox: records to put and to handle, claims of keys, and their settlements."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal

from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError, JobError, OutboxError
from pollwise.runtime.decoding import decode, decode_job
from pollwise.runtime.jobs import (
    checked_delay,
    checked_moment,
    checked_name,
    encode,
    repr_without,
    storable,
)

#: The longest header value, in characters, and the maximum size of all headers, in bytes of JSON.
HEADER_LENGTH_MAX = 4000
HEADERS_BYTES_MAX = 16 * 1024
#: The lane of handlers that name none, in an outbox that has lanes.
DEFAULT_LANE = "default"
#: The longest progress that a relay keeps with a record, in bytes.
PROGRESS_BYTES_MAX = 16 * 1024
#: Between the name of a relay and its random suffix, by which relays of the same name differ.
RELAY_SEPARATOR = "#"

RecordState = Literal["ready", "leased", "waiting", "dead", "done", "delayed"]
#: In this order, because stores send a state as its place here.
RECORD_STATES: tuple[RecordState, ...] = (
    "ready", "leased", "waiting", "dead", "done", "delayed",
)  # fmt: skip
KeyAction = Literal["give_back", "retry", "dead"]
KEY_ACTIONS: tuple[KeyAction, ...] = ("give_back", "retry", "dead")

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to put: an event that handlers receive after its transaction is committed.

    kind: what happened, such as "order.placed"; the patterns of handlers match it.
    payload: any JSON value; also with models of pydantic, dataclasses, Decimal, datetime, UUID and
        Enum in it. It is encoded here, so later changes to it do not reach the outbox.
    key: records with the same key are handled one at a time, in order.
    headers: strings by name that travel with the record, such as a trace context or a tenant.
    delay, at: handled at the earliest after this time or at this moment (an aware datetime or
        seconds since 1970); give one of the two. Until then it holds up no other record. When it
        is due it takes its old place: before the records of its key that are not handled yet.
    unique: put once. While a record with the same `unique` is in the outbox, waiting, dead or
        kept, a second put returns the id of the first; with another kind or payload it is refused
        with `UniqueConflict`.
    """

    kind: str
    payload: Any = None
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: _NO_HEADERS)
    delay: Duration = 0.0
    at: datetime | float | None = None
    unique: str | None = None
    #: The payload and the headers as JSON text.
    encoded: str = field(init=False, repr=False, compare=False)
    encoded_headers: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        checked_name(self.kind, "kind", OutboxError)
        if self.key is not None:
            checked_name(self.key, "key", OutboxError)
        if self.unique is not None:
            checked_name(self.unique, "unique", OutboxError)
        if self.delay or self.at is not None:
            self._check_time()
        object.__setattr__(self, "encoded", encode(self.payload, self.kind))
        headers = _checked_headers(self.headers)
        object.__setattr__(self, "headers", headers)
        object.__setattr__(self, "encoded_headers", _encoded_headers(headers))

    def _check_time(self) -> None:
        if self.delay and self.at is not None:
            raise OutboxError(f"give delay = {self.delay!r} or at = {self.at!r}, not both")
        try:
            if self.at is not None:
                object.__setattr__(self, "at", checked_moment(self.at, "at"))
            object.__setattr__(self, "delay", checked_delay(self.delay))
        except JobError as error:
            raise OutboxError(str(error)) from None

    def due_at(self, now: float) -> float:
        """When it may be handled, in seconds since 1970; never in the past."""
        if self.at is not None:
            return max(checked_moment(self.at, "at"), now)
        return now + seconds(self.delay)

    @property
    def plain(self) -> bool:
        """Whether it has neither a delay nor a `unique`."""
        return not self.delay and self.at is None and self.unique is None

    @property
    def size(self) -> int:
        """The size of the payload in bytes of JSON."""
        return len(self.encoded.encode())

    def with_encoded(self, encoded: str) -> NewRecord:
        """A copy with another text of the payload, such as an encrypted one."""
        sealed = copy(self)
        object.__setattr__(sealed, "encoded", encoded)
        return sealed

    def with_trace(self, headers: Mapping[str, str]) -> NewRecord:
        """A copy with more headers; the record itself if they do not fit."""
        try:
            return replace(self, headers={**self.headers, **headers})
        except OutboxError:
            return self


@dataclass(frozen=True, slots=True)
class Record:
    """A record as its handler receives it.

    id: unique in its outbox and the same at each attempt, so consumers can detect duplicates.
    attempt: which attempt of this handler it is; 1 is the first.
    created_at: when it was put, in seconds since 1970, by the store's clock; for one that was put
        with a delay, when it was due.
    unreadable: why the payload or the headers cannot be decoded; the payload is then its text. A
        relay calls no handler for such a record: it is dead.
    sealed: what to show in place of the payload, because it was encrypted; else None.
    locked: why the payload cannot be decoded by this process: a key or a codec is missing. A relay
        tries again later.
    """

    id: str
    outbox: str
    kind: str
    payload: Any
    key: str | None
    headers: Mapping[str, str]
    created_at: float
    attempt: int = 0
    unreadable: str | None = None
    sealed: str | None = None
    locked: str | None = None

    def __repr__(self) -> str:
        return repr_without(self)


@dataclass(frozen=True, slots=True)
class HeldRecord:
    """A record inside a claim. Its attempt is 0: attempts are counted per handler, in `progress`.

    progress: what the handlers have done, as the relay wrote it; "" at first. Stores only keep it.
    retried: an operator retried the dead record, so its attempts start again from zero. True until
        a settlement writes progress.
    copy: the id of its row, if it is a lane's copy of the record.
    """

    record: Record
    progress: str = ""
    retried: bool = False
    copy: str = ""

    @property
    def row(self) -> int:
        """The number of its row in the store."""
        return int(self.copy or self.record.id)


@dataclass(frozen=True, slots=True)
class KeyClaim:
    """The first few records of a key, in order, under a lease.

    key: None for a record without a key, which is claimed alone.
    token: the fencing token; a newer claim of the same key makes this one invalid.
    until: when the lease ends, in seconds since 1970, by the store's clock.
    records: at least one.
    lapses: how many leases on this key expired in a row before this claim. Above 0 only if the
        relays that held it died or hung.
    lane: the lane whose copies of records these are; "" for the records themselves.
    """

    key: str | None
    token: int
    relay: str
    until: float
    records: tuple[HeldRecord, ...]
    lapses: int = 0
    lane: str = ""

    @property
    def name(self) -> str:
        """Identifies what was claimed: "=" and the key, or "#" and the id of the only record.

        With the lane behind it, if there is one.
        """
        name = f"#{self.records[0].record.id}" if self.key is None else f"={self.key}"
        return f"{name}\n{self.lane}" if self.lane else name


@dataclass(frozen=True, slots=True)
class KeySettlement:
    """How a claim ends.

    done: the number of completed records, counted from the first.
    action: what happens to the other records. "give_back": the key can be claimed again at once.
        "retry": the next record, records[done], is retried after `delay`. "dead": that record is
        dead, with `error` as the reason.
    progress: what to store with records[done]; None leaves it unchanged.
    lanes: for each completed record, the lanes that are to handle it, each with the progress to
        begin with. The record is completed when all its lanes have completed their copies of it.
    """

    claim: KeyClaim
    done: int
    action: KeyAction = "give_back"
    delay: float = 0.0
    error: str | None = None
    progress: str | None = None
    lanes: tuple[Mapping[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.action not in KEY_ACTIONS:
            raise ConfigError(f"action = {self.action!r} must be one of {', '.join(KEY_ACTIONS)}")
        length = len(self.claim.records)
        most = length if self.action == "give_back" else length - 1
        if not 0 <= self.done <= most:
            raise ConfigError(
                f"done = {self.done!r} must be from 0 to {most}: the claim has {length} records, "
                f"and the action is {self.action!r}"
            )
        if self.progress is not None:
            if self.done == length:
                raise ConfigError("progress was given, but all records of the claim are done")
            if len(self.progress.encode()) > PROGRESS_BYTES_MAX:
                raise ConfigError(f"progress is longer than {PROGRESS_BYTES_MAX} bytes")
        if self.lanes and (self.claim.lane or len(self.lanes) != self.done):
            raise ConfigError(
                f"lanes has {len(self.lanes)} entries for {self.done} completed records of the "
                f"lane {self.claim.lane!r}; give one for each record, and none in a lane"
            )
        object.__setattr__(self, "delay", seconds(self.delay, "delay"))
        object.__setattr__(self, "error", storable(self.error))


@dataclass(frozen=True, slots=True)
class RecordInfo:
    """A record as operators see it.

    since: when its state began; for a leased, waiting or delayed record, when that state ends.
    relay: the relay that holds its lease.
    lane: the lane that is to handle it, if the outbox has lanes. A record is shown once per lane.
    place: its place in the outbox, as `after` for the next page.
    why: what it waits for.
    """

    record: Record
    state: RecordState
    since: float
    error: str | None
    progress: str
    relay: str | None = None
    lane: str = ""
    place: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class RecordsFound:
    """A page of records.

    next: pass it as `after` to go on; None at the end. A page can be short, even empty, and still
        have a next one: few of the examined records matched.
    examined: how many records the store examined.
    """

    records: list[RecordInfo]
    next: str | None
    examined: int


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Kept records by kind, by key, and by when they were put: from `since` on, before `until`."""

    kind: str | None = None
    key: str | None = None
    since: float | None = None
    until: float | None = None

    def matches(self, record: Record) -> bool:
        return (
            self.kind in (None, record.kind)
            and self.key in (None, record.key)
            and (self.since is None or record.created_at >= self.since)
            and (self.until is None or record.created_at < self.until)
        )


def why_waiting(
    state: RecordState,
    error: str | None,
    relay: str | None,
    before: str,
    its_error: str | None,
    *,
    open_transaction: bool = False,
) -> str:
    """What a record waits for, for operators.

    before: the id of the record of its key that must be handled first; its_error: the last error
        of that one.
    open_transaction: a transaction that is still open may put a record of its key before it.
    """
    if state == "waiting":
        return f"its retry, after: {error}" if error else "its retry"
    if state == "delayed":
        return "its time"
    if state == "leased":
        return f"the relay {relay}"
    if state != "ready":
        return ""
    if before:
        return f"record {before} of its key{f': {its_error}' if its_error else ''}"
    return "an open transaction that may put a record of its key" if open_transaction else ""


@dataclass(frozen=True, slots=True)
class OutboxStats:
    """How many records are in each state.

    ready: to be handled, including those that wait behind another record of their key.
    leased, waiting: the first records of keys that a relay holds, and that wait for a retry.
    keys_blocked: keys whose first record is dead; behind: the ready records that wait for them.
    oldest_age: the age in seconds of the oldest record that is due and neither done nor dead.
    delayed: records that are not due yet.
    lanes: the counts of each lane, if the outbox has lanes, and under "" those of records that are
        in no lane yet. The other counts are the sums of these: a record counts once per lane.
    capped: the names of the counts that are lower bounds: the store stopped counting there.
    """

    ready: int
    leased: int
    waiting: int
    dead: int
    done: int
    keys_blocked: int
    behind: int
    oldest_age: float | None
    delayed: int = 0
    lanes: Mapping[str, OutboxStats] = field(default_factory=dict)
    capped: frozenset[str] = frozenset()

    def with_lanes(self, lanes: Mapping[str, OutboxStats]) -> OutboxStats:
        """The sums of these counts, of records that are in no lane yet, and those of the lanes."""
        lanes = {"": self, **lanes}
        all_of_them = lanes.values()
        ages = [each.oldest_age for each in all_of_them if each.oldest_age is not None]
        sums = {
            name: sum(getattr(each, name) for each in all_of_them)
            for name in (*RECORD_STATES, "keys_blocked", "behind")
        }
        capped = frozenset[str]().union(*(each.capped for each in all_of_them))
        return OutboxStats(**sums, oldest_age=max(ages, default=None), lanes=lanes, capped=capped)


@dataclass(frozen=True, slots=True)
class BlockedKey:
    """A key whose first record is dead; `behind` is how many records wait for it."""

    key: str
    record_id: str
    kind: str
    error: str | None
    since: float
    behind: int
    lane: str = ""


@dataclass(frozen=True, slots=True)
class RelayInfo:
    """A live relay.

    handlers: the patterns of each handler, by its name.
    started_at, seen_at: in seconds since 1970, by the store's clock.
    newer: it was started after the relay that asked.
    """

    relay: str
    handlers: Mapping[str, tuple[str, ...]]
    started_at: float
    seen_at: float
    newer: bool

    @property
    def lived(self) -> float:
        """How long it is known to have lived, in seconds."""
        return self.seen_at - self.started_at


def outbox_of(outbox: str, lane: str) -> str:
    """The name in the tables for the copies of a lane; no outbox can have such a name."""
    return f"{outbox}\x1e{lane}" if lane else outbox


def stored_record(
    seq: int, outbox: str, kind: str, payload: str, key: str | None, headers: str | None, at: float
) -> Record:
    """A record from the columns of a store."""
    decoded = decode_job(payload)
    found, unreadable = _NO_HEADERS, decoded.unreadable
    if headers and headers != "{}":
        try:
            given = dict(decode(headers))
            found = {name: str(value) for name, value in given.items()}
        except (ValueError, TypeError):
            unreadable = unreadable or f"its headers are not a JSON object: {headers[:200]}"
    return Record(str(seq), outbox, kind, decoded.payload, key, found, at, unreadable=unreadable)


def _checked_headers(headers: object) -> Mapping[str, str]:
    if headers is _NO_HEADERS:
        return _NO_HEADERS
    if not isinstance(headers, Mapping):
        raise OutboxError(f"headers = {headers!r} must be a mapping of strings to strings")
    for name, value in headers.items():
        checked_name(name, "the name of a header", OutboxError)
        if not isinstance(value, str) or not value.isprintable():
            raise OutboxError(f"the header {name!r} = {value!r} must be a printable string")
        if len(value) > HEADER_LENGTH_MAX:
            raise OutboxError(
                f"the header {name!r} has {len(value)} characters; the limit is {HEADER_LENGTH_MAX}"
            )
    return MappingProxyType(dict(headers)) if headers else _NO_HEADERS


def _encoded_headers(headers: Mapping[str, str]) -> str:
    if not headers:
        return "{}"
    text = json.dumps(dict(headers), ensure_ascii=False, separators=(",", ":"))
    if len(text.encode()) > HEADERS_BYTES_MAX:
        raise OutboxError(
            f"the headers have {len(text.encode())} bytes of JSON; the limit is "
            f"{HEADERS_BYTES_MAX}. Put data into the payload."
        )
    return text


def writer_of(relay: str) -> str:
    """The name under which a relay writes history: its suffix, and its name."""
    name, _, suffix = relay.rpartition(RELAY_SEPARATOR)
    return f"{suffix} {name}"


def claim_of(end: KeySettlement) -> tuple[str, int]:
    """The name and the token of a settlement's claim."""
    return end.claim.name, end.claim.token
