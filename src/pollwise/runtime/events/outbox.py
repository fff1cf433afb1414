"""What happens to relays, their records and keys."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from pollwise.runtime.events.base import Event


@dataclass(frozen=True, slots=True)
class RelayEvent(Event):
    """Something that happened in a relay. The source is "outbox:" and the outbox's name."""

    level: ClassVar[int] = logging.INFO

    relay: str


@dataclass(frozen=True, slots=True)
class RelayStarted(RelayEvent):
    """A relay begins to poll an outbox; `run` is its name with the mark of this run."""

    handlers: tuple[str, ...]
    concurrency: int
    strategy: str
    instance: str = ""


@dataclass(frozen=True, slots=True)
class RelayStopping(RelayEvent):
    """A relay claims no more and finishes what it holds."""

    running: int
    grace: float


@dataclass(frozen=True, slots=True)
class RelayStopped(RelayEvent):
    """A relay holds nothing any more; `given_back` keys went back before their run was over."""

    given_back: int


@dataclass(frozen=True, slots=True)
class RelayStandsBy(RelayEvent):
    """A newer relay has handlers that this one lacks: it claims nothing while that one lives."""

    level: ClassVar[int] = logging.WARNING

    newer: str
    missing: tuple[str, ...]
    instance: str = ""


@dataclass(frozen=True, slots=True)
class RelayResumed(RelayEvent):
    """The newer relay is gone, and this one claims again."""


@dataclass(frozen=True, slots=True)
class HandlersDiffer(RelayEvent):
    """An older relay that lives has handlers that this one lacks: are they to be gone?"""

    level: ClassVar[int] = logging.WARNING

    older: str
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PatternUnmatched(RelayEvent):
    """At the start, no record in the outbox is of a kind that this pattern matches."""

    level: ClassVar[int] = logging.WARNING

    handler: str
    pattern: str
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecordEvent(RelayEvent):
    """Something that happened to one record."""

    level: ClassVar[int] = logging.DEBUG

    record: str
    kind: str
    key: str | None


@dataclass(frozen=True, slots=True)
class RecordHandled(RecordEvent):
    """All handlers of a record are done, `lag` seconds after it was put."""

    lag: float
    took: float


@dataclass(frozen=True, slots=True)
class RecordRetried(RecordEvent):
    """A handler failed, and is tried again after `delay`; the key waits for it."""

    level: ClassVar[int] = logging.WARNING

    handler: str
    attempt: int
    error: str
    delay: float
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class RecordSnoozed(RecordEvent):
    """A handler asked to be called again after `delay`; no attempt was used."""

    handler: str
    delay: float


@dataclass(frozen=True, slots=True)
class RecordFellBack(RecordEvent):
    """A handler gave up, and its fallback did what there was to do."""

    level: ClassVar[int] = logging.WARNING

    handler: str
    attempt: int
    error: str


@dataclass(frozen=True, slots=True)
class RecordUnhandled(RecordEvent):
    """No handler matches a record; it is looked at again after `delay`. Told once a kind."""

    level: ClassVar[int] = logging.WARNING

    delay: float


@dataclass(frozen=True, slots=True)
class RecordDead(RecordEvent):
    """A handler gave up on a record, and none is left to be tried again."""

    level: ClassVar[int] = logging.ERROR

    error: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class KeyBlocked(RelayEvent):
    """The records behind a dead one wait until somebody retries or skips it."""

    level: ClassVar[int] = logging.ERROR

    key: str
    record: str


@dataclass(frozen=True, slots=True)
class KeyGivenBack(RelayEvent):
    """A key went back with `records` of its run unfinished."""

    key: str | None
    records: int
    reason: str


@dataclass(frozen=True, slots=True)
class KeyLost(RelayEvent):
    """A lease ran out under a relay; what its handlers did in this run is done again elsewhere."""

    level: ClassVar[int] = logging.WARNING

    key: str | None
    record: str


@dataclass(frozen=True, slots=True)
class OutboxMeasured(RelayEvent):
    """What is in an outbox; looked up once a minute, if anybody listens to it."""

    level: ClassVar[int] = logging.DEBUG

    ready: int
    leased: int
    waiting: int
    dead: int
    keys_blocked: int
    behind: int
    oldest_age: float
