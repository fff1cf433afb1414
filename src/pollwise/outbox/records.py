"""A record's life as values: NewRecord (asked for), Record (at work), KeyClaim and KeyEnd."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from pollwise.durations import seconds
from pollwise.errors import ConfigError, OutboxError
from pollwise.runtime.jobs import checked_name, encode, storable

#: The longest value of a header, in characters, and the most of all headers, in bytes of JSON.
HEADER_LENGTH_MAX = 4000
HEADERS_BYTES_MAX = 16 * 1024
#: The longest progress that a relay keeps with a record, in bytes.
PROGRESS_BYTES_MAX = 16 * 1024

RecordState = Literal["ready", "leased", "waiting", "dead", "done"]
RECORD_STATES: tuple[RecordState, ...] = ("ready", "leased", "waiting", "dead", "done")
KeyVerdict = Literal["free", "retry", "dead"]
KEY_VERDICTS: tuple[KeyVerdict, ...] = ("free", "retry", "dead")

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to put: an event, told to handlers once its transaction is committed.

    kind: what happened, such as "order.placed"; handlers are picked by patterns on it.
    payload: any JSON value. It is encoded here, so later changes to it do not reach the outbox.
    key: records with the same key are handled one at a time, in order.
    headers: text by name, carried along: a trace context, a tenant.
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
        """The payload's bytes of JSON."""
        return len(self.encoded.encode())

    def with_headers(self, headers: Mapping[str, str]) -> NewRecord:
        """The same with more headers; those it has already stay as they are."""
        return NewRecord(self.kind, self.payload, self.key, {**headers, **self.headers})


@dataclass(frozen=True, slots=True)
class Record:
    """A record as its handler sees it.

    id: the same at each attempt, and unique in its outbox: consumers can drop repeats by it.
    attempt: which run of this handler it is, 1 the first time.
    created_at: when it was put, in seconds since 1970, by the clock of the store.
    """

    id: str
    outbox: str
    kind: str
    payload: Any
    key: str | None
    headers: Mapping[str, str]
    created_at: float
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """A record inside a claim. Its attempt is 0: attempts are counted by handler, in `progress`.

    progress: how far the handlers are, as the relay wrote it; "" at first. Stores do not read it.
    fresh: it was dead and is to be tried again: attempts begin anew. True from a `retry` until a
        settlement writes progress.
    """

    record: Record
    progress: str = ""
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class KeyClaim:
    """The first few records of a key, in order, under a lease.

    key: None for a record without a key, which is claimed by itself.
    token: fences: a newer claim of the same key makes this one worthless.
    until: when the lease ends, in seconds since 1970, by the clock of the store.
    run: at least one record.
    lapses: how often in a row a lease on this key ran out before this claim: 0, unless whoever
        held it died or stood still.
    """

    key: str | None
    token: int
    relay: str
    until: float
    run: tuple[Held, ...]
    lapses: int = 0

    @property
    def name(self) -> str:
        """What tells this claim's line of records from others: its key, or its only record."""
        return f"#{self.run[0].record.id}" if self.key is None else f"={self.key}"


@dataclass(frozen=True, slots=True)
class KeyEnd:
    """How a claim ends.

    done: so many records of the run, from its front, are completed.
    verdict: what becomes of the rest. "free": the key may be claimed again at once. "retry":
        the next record, run[done], is to be tried again after `delay`. "dead": it is dead, with
        `error` as the reason.
    progress: what to keep with run[done]; None leaves it as it was.
    """

    claim: KeyClaim
    done: int
    verdict: KeyVerdict = "free"
    delay: float = 0.0
    error: str | None = None
    progress: str | None = None

    def __post_init__(self) -> None:
        if self.verdict not in KEY_VERDICTS:
            raise ConfigError(f"verdict = {self.verdict!r} is none of {', '.join(KEY_VERDICTS)}")
        length = len(self.claim.run)
        most = length if self.verdict == "free" else length - 1
        if not 0 <= self.done <= most:
            raise ConfigError(
                f"done = {self.done!r} must be from 0 to {most}: the run has {length} records, "
                f"and the verdict is {self.verdict!r}"
            )
        if self.progress is not None:
            if self.done == length:
                raise ConfigError("progress was given, but no record of the run is left")
            if len(self.progress.encode()) > PROGRESS_BYTES_MAX:
                raise ConfigError(f"progress is longer than {PROGRESS_BYTES_MAX} bytes")
        object.__setattr__(self, "delay", seconds(self.delay, "delay"))
        object.__setattr__(self, "error", storable(self.error))


@dataclass(frozen=True, slots=True)
class RecordInfo:
    """A record as a view shows it.

    since: when it came into its state; for a leased or waiting one, when that ends.
    relay: who holds it.
    """

    record: Record
    state: RecordState
    since: float
    error: str | None
    progress: str
    relay: str | None = None


@dataclass(frozen=True, slots=True)
class OutboxStats:
    """How many records are in which state.

    ready: to be handled, those that stand behind another record of their key included.
    leased, waiting: keys held by a relay, and keys whose first record waits for a retry: of each
        its first record is counted here.
    keys_blocked: keys whose first record is dead; behind: the ready records that wait for them.
    oldest_age: how old the oldest record is that is neither done nor dead, in seconds.
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
    """A key whose first record is dead, and how many records wait behind it."""

    key: str
    record_id: str
    kind: str
    error: str | None
    since: float
    behind: int


@dataclass(frozen=True, slots=True)
class RelayInfo:
    """A relay that is alive, and its handlers: their patterns by name.

    started_at, seen_at: in seconds since 1970, by the clock of the store.
    newer: it was started after the one that asks.
    """

    relay: str
    handlers: Mapping[str, tuple[str, ...]]
    started_at: float
    seen_at: float
    newer: bool


def decoded_payload(text: str) -> Any:
    """A payload; its text, where the database takes it for JSON and Python does not.

    Any program may have put it, and it must not stand in the way of all others.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # so many digits, so deep
        return text


def decoded_headers(text: str | None) -> Mapping[str, str]:
    """The headers of a record as a store keeps them; whoever wrote them, text by name."""
    if not text or text == "{}":
        return _NO_HEADERS
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return _NO_HEADERS
    if not found or not isinstance(found, dict):
        return _NO_HEADERS
    return {str(name): str(value) for name, value in found.items()}


def _checked_headers(headers: object) -> Mapping[str, str]:
    if headers is _NO_HEADERS:
        return _NO_HEADERS
    if not isinstance(headers, Mapping):
        raise OutboxError(f"headers = {headers!r} must be a mapping of text to text")
    for name, value in headers.items():
        checked_name(name, "the name of a header", OutboxError)
        if not isinstance(value, str) or not value.isprintable():
            raise OutboxError(f"the header {name!r} = {value!r} must be printable text")
        if len(value) > HEADER_LENGTH_MAX:
            raise OutboxError(
                f"the header {name!r} has {len(value)} characters; at most {HEADER_LENGTH_MAX}"
            )
    return MappingProxyType(dict(headers)) if headers else _NO_HEADERS


def _encoded_headers(headers: Mapping[str, str]) -> str:
    if not headers:
        return "{}"
    text = json.dumps(dict(headers), ensure_ascii=False, separators=(",", ":"))
    if len(text.encode()) > HEADERS_BYTES_MAX:
        raise OutboxError(
            f"the headers have {len(text.encode())} bytes of JSON; at most {HEADERS_BYTES_MAX}: "
            "put data into the payload"
        )
    return text
