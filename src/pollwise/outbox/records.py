"""The values of the outbox: records to put and to handle, claims of keys, and their settlements."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from pollwise.durations import seconds
from pollwise.errors import ConfigError, OutboxError
from pollwise.runtime.decoding import decode, decode_job
from pollwise.runtime.jobs import checked_name, encode, storable

#: The longest header value, in characters, and the maximum size of all headers, in bytes of JSON.
HEADER_LENGTH_MAX = 4000
HEADERS_BYTES_MAX = 16 * 1024
#: The longest progress that a relay keeps with a record, in bytes.
PROGRESS_BYTES_MAX = 16 * 1024

RecordState = Literal["ready", "leased", "waiting", "dead", "done"]
RECORD_STATES: tuple[RecordState, ...] = ("ready", "leased", "waiting", "dead", "done")
KeyAction = Literal["give_back", "retry", "dead"]
KEY_ACTIONS: tuple[KeyAction, ...] = ("give_back", "retry", "dead")

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to put: an event that handlers receive after its transaction is committed.

    kind: what happened, such as "order.placed"; the patterns of handlers match it.
    payload: any JSON value. It is encoded here, so later changes to it do not reach the outbox.
    key: records with the same key are handled one at a time, in order.
    headers: strings by name that travel with the record, such as a trace context or a tenant.
    """

    kind: str
    payload: Any = None
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: _NO_HEADERS)
    #: The payload and the headers as JSON text.
    encoded: str = field(init=False, repr=False, compare=False)
    encoded_headers: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        checked_name(self.kind, "kind", OutboxError)
        if self.key is not None:
            checked_name(self.key, "key", OutboxError)
        object.__setattr__(self, "encoded", encode(self.payload, self.kind))
        headers = _checked_headers(self.headers)
        object.__setattr__(self, "headers", headers)
        object.__setattr__(self, "encoded_headers", _encoded_headers(headers))

    @property
    def size(self) -> int:
        """The size of the payload in bytes of JSON."""
        return len(self.encoded.encode())

    def with_headers(self, headers: Mapping[str, str]) -> NewRecord:
        """A copy with more headers; the record's own headers win."""
        return NewRecord(self.kind, self.payload, self.key, {**headers, **self.headers})


@dataclass(frozen=True, slots=True)
class Record:
    """A record as its handler receives it.

    id: unique in its outbox and the same at each attempt, so consumers can detect duplicates.
    attempt: which attempt of this handler it is; 1 is the first.
    created_at: when it was put, in seconds since 1970, by the store's clock.
    unreadable: why the payload or the headers cannot be decoded; the payload is then its text. A
        relay calls no handler for such a record: it is dead.
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


@dataclass(frozen=True, slots=True)
class HeldRecord:
    """A record inside a claim. Its attempt is 0: attempts are counted per handler, in `progress`.

    progress: what the handlers have done, as the relay wrote it; "" at first. Stores only keep it.
    retried: an operator retried the dead record, so its attempts start again from zero. True until
        a settlement writes progress.
    """

    record: Record
    progress: str = ""
    retried: bool = False


@dataclass(frozen=True, slots=True)
class KeyClaim:
    """The first few records of a key, in order, under a lease.

    key: None for a record without a key, which is claimed alone.
    token: the fencing token; a newer claim of the same key makes this one invalid.
    until: when the lease ends, in seconds since 1970, by the store's clock.
    records: at least one.
    lapses: how many leases on this key expired in a row before this claim. Above 0 only if the
        relays that held it died or hung.
    """

    key: str | None
    token: int
    relay: str
    until: float
    records: tuple[HeldRecord, ...]
    lapses: int = 0

    @property
    def name(self) -> str:
        """Identifies what was claimed: "=" and the key, or "#" and the id of the only record."""
        return f"#{self.records[0].record.id}" if self.key is None else f"={self.key}"


@dataclass(frozen=True, slots=True)
class KeySettlement:
    """How a claim ends.

    done: the number of completed records, counted from the first.
    action: what happens to the other records. "give_back": the key can be claimed again at once.
        "retry": the next record, records[done], is retried after `delay`. "dead": that record is
        dead, with `error` as the reason.
    progress: what to store with records[done]; None leaves it unchanged.
    """

    claim: KeyClaim
    done: int
    action: KeyAction = "give_back"
    delay: float = 0.0
    error: str | None = None
    progress: str | None = None

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
        object.__setattr__(self, "delay", seconds(self.delay, "delay"))
        object.__setattr__(self, "error", storable(self.error))


@dataclass(frozen=True, slots=True)
class RecordInfo:
    """A record as operators see it.

    since: when its state began; for a leased or waiting record, when that state ends.
    relay: the relay that holds its lease.
    """

    record: Record
    state: RecordState
    since: float
    error: str | None
    progress: str
    relay: str | None = None


@dataclass(frozen=True, slots=True)
class OutboxStats:
    """How many records are in each state.

    ready: to be handled, including those that wait behind another record of their key.
    leased, waiting: the first records of keys that a relay holds, and that wait for a retry.
    keys_blocked: keys whose first record is dead; behind: the ready records that wait for them.
    oldest_age: the age in seconds of the oldest record that is neither done nor dead.
    """

    ready: int
    leased: int
    waiting: int
    dead: int
    done: int
    keys_blocked: int
    behind: int
    oldest_age: float | None


@dataclass(frozen=True, slots=True)
class BlockedKey:
    """A key whose first record is dead; `behind` is how many records wait for it."""

    key: str
    record_id: str
    kind: str
    error: str | None
    since: float
    behind: int


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
