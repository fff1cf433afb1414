"""Events of relays, their records and keys."""

from __future__ import annotations

import logging
from dataclasses import field
from typing import ClassVar

from pollwise.runtime.events.base import Event, event


@event
class RelayEvent(Event):
    """An event of a relay. The source is "outbox:" and the outbox's name."""

    level: ClassVar[int] = logging.INFO

    relay: str


@event
class RelayStarted(RelayEvent):
    """A relay begins to poll an outbox; `instance` is its name with a random suffix."""

    handlers: tuple[str, ...]
    concurrency: int
    strategy: str
    instance: str = ""


@event
class RelayStopping(RelayEvent):
    """A relay claims no more keys and finishes those it holds."""

    running: int
    grace: float


@event
class RelayStopped(RelayEvent):
    """A relay has stopped; it gave `given_back` unfinished keys back."""

    given_back: int


@event
class RelayStandsBy(RelayEvent):
    """A newer relay has handlers that this relay lacks; this one claims nothing while it lives."""

    level: ClassVar[int] = logging.WARNING

    newer: str
    missing: tuple[str, ...]
    instance: str = ""


@event
class RelayResumed(RelayEvent):
    """The newer relay is gone, and this one claims again."""


@event
class HandlersDiffer(RelayEvent):
    """A live older relay has handlers that this relay lacks: were they removed on purpose?"""

    level: ClassVar[int] = logging.WARNING

    older: str
    missing: tuple[str, ...]


@event
class PatternUnmatched(RelayEvent):
    """At the start of a relay, this pattern matches none of the records in the outbox."""

    level: ClassVar[int] = logging.WARNING

    handler: str
    pattern: str
    kinds: tuple[str, ...]


@event
class RecordEvent(RelayEvent):
    """An event of one record."""

    level: ClassVar[int] = logging.DEBUG

    record: str
    kind: str
    key: str | None
    #: The lane, if the outbox has lanes.
    lane: str = field(default="", kw_only=True)


@event
class RecordHandled(RecordEvent):
    """All handlers of a record are done, `lag` seconds after it was put."""

    lag: float
    took: float
    #: Those that returned; others fell back.
    handlers: tuple[str, ...] = ()


@event
class RecordRetried(RecordEvent):
    """A handler failed and is retried after `delay`; the key waits for it."""

    level: ClassVar[int] = logging.WARNING

    handler: str
    attempt: int
    error: str
    delay: float
    traceback: str = ""


@event
class RecordSnoozed(RecordEvent):
    """A handler asked to be called again after `delay`; this uses no attempt."""

    handler: str
    delay: float


@event
class RecordFellBack(RecordEvent):
    """A handler gave up, and its fallback handled the record."""

    level: ClassVar[int] = logging.WARNING

    handler: str
    attempt: int
    error: str


@event
class RecordUnhandled(RecordEvent):
    """No handler matches a record; it is retried after `delay`. Emitted once per kind."""

    level: ClassVar[int] = logging.WARNING

    delay: float


@event
class RecordLocked(RecordEvent):
    """A relay has no key or codec for the payload of a record; it tries again after `delay`.

    No attempt is used. Emitted at most once a minute per reason.
    """

    level: ClassVar[int] = logging.ERROR

    reason: str
    delay: float


@event
class RecordDead(RecordEvent):
    """A handler gave up on a record, and no other handler has attempts left."""

    level: ClassVar[int] = logging.ERROR

    error: str
    traceback: str = ""
    #: Those that returned, and those that gave up.
    handlers: tuple[str, ...] = ()
    gave_up: tuple[str, ...] = ()


@event
class KeyBlocked(RelayEvent):
    """The records behind a dead one wait until an operator retries or drops it."""

    level: ClassVar[int] = logging.ERROR

    key: str
    record: str
    lane: str = field(default="", kw_only=True)


@event
class KeyGivenBack(RelayEvent):
    """A relay gave a key back with `records` unfinished records."""

    key: str | None
    records: int
    reason: str
    lane: str = field(default="", kw_only=True)


@event
class KeyLost(RelayEvent):
    """A relay lost the lease of a key; another relay handles the records of this claim again."""

    level: ClassVar[int] = logging.WARNING

    key: str | None
    record: str
    lane: str = field(default="", kw_only=True)


@event
class OutboxMeasured(RelayEvent):
    """The records in an outbox by state, and its live relays; once a minute, if anyone listens.

    With lanes, once for each, and for the records that are in no lane yet ("").
    """

    level: ClassVar[int] = logging.DEBUG

    ready: int
    leased: int
    waiting: int
    dead: int
    keys_blocked: int
    behind: int
    oldest_age: float
    lane: str = field(default="", kw_only=True)
    relays: int = field(default=0, kw_only=True)
