"""Events of polls, hints, breakers and chores."""

from __future__ import annotations

import logging
from typing import ClassVar

from pollwise.runtime.events.base import Event, event


@event
class PollFinished(Event):
    """A poll returned. Empty polls are counted by metrics, but neither logged nor traced.

    average: the moving average of a strategy that has one. Then the commands log it, at debug.
    """

    found: int
    capacity: int | None
    took: float
    interval: float
    delay: float
    hold: float
    hinted: bool
    average: float | None = None
    forecast: float | None = None


@event
class PollFailed(Event):
    """A poll raised. The next follows after `delay`, set by the retry and not by the pacer."""

    level: ClassVar[int] = logging.WARNING

    error: str
    failures: int
    delay: float


@event
class PollRecovered(Event):
    """A poll succeeded after `failures` failures in a row."""

    level: ClassVar[int] = logging.INFO

    failures: int


@event
class PaceChanged(Event):
    """A pacer changed course: back-off, speed-up, reset, class or decay."""

    what: str
    before: float | str
    after: float | str


@event
class PaceRestored(Event):
    """A loop goes on from the pace that was saved `age` seconds ago.

    problem: why it does not, and starts to learn again; "" if it does.
    """

    level: ClassVar[int] = logging.INFO

    age: float
    problem: str


@event
class WindowPassed(Event):
    """A source listed only new items, as many as it ever did: older ones may be lost unseen.

    listed: how many it listed. Poll more often, or have the source list more.
    """

    level: ClassVar[int] = logging.WARNING

    listed: int


@event
class BreakerChanged(Event):
    """The breaker of a kind, or of an outbox's handler, opened, went half-open or closed."""

    level: ClassVar[int] = logging.WARNING

    kind: str
    state: str


@event
class ChoreFailed(Event):
    """A recurring chore (lease renewal, retention) raised; it runs again at its next turn.

    failures: how often it failed in a row; 0 if that is not counted. needed: the part that
    added the chore cannot work without it.
    """

    level: ClassVar[int] = logging.WARNING

    chore: str
    error: str
    failures: int = 0
    needed: bool = False


@event
class ChoreRecovered(Event):
    """A recurring chore succeeded after `failures` failures in a row."""

    level: ClassVar[int] = logging.INFO

    chore: str
    failures: int


@event
class ThreadsAbandoned(Event):
    """The number of threads whose handlers timed out and still run; each occupies a place."""

    threads: int
    places: int


@event
class PlacesTaken(Event):
    """Threads of handlers that timed out occupy all places: nothing runs until one returns."""

    level: ClassVar[int] = logging.ERROR

    threads: int


@event
class PlacesFree(Event):
    """A thread returned after all places were taken: work goes on. `threads` still occupy one."""

    level: ClassVar[int] = logging.INFO

    threads: int


@event
class LoopBlocked(Event):
    """A handler blocks the event loop: no lease is renewed, and jobs may run again elsewhere.

    `work` is its job or record, `seconds` the time without a sign of life so far. Emitted while the
    loop is blocked, so from another thread.
    """

    level: ClassVar[int] = logging.ERROR

    work: str
    seconds: float
    traceback: str = ""


@event
class LoopResumed(Event):
    """The event loop runs again, after about `seconds` in which a handler blocked it."""

    level: ClassVar[int] = logging.WARNING

    work: str
    seconds: float


@event
class RunRecycled(Event):
    """A worker or a relay stops, because its process should be replaced by a fresh one."""

    level: ClassVar[int] = logging.INFO

    reason: str


@event
class HandlerStuck(Event):
    """A handler did not end within `after` seconds after a stop or its timeout cancelled it.

    Its lease is renewed until it ends or the process ends. `work` is its job or record.
    """

    level: ClassVar[int] = logging.ERROR

    work: str
    after: float


@event
class HintsProven(Event):
    """A check of the hint channel came back after `took`: pauses may use the long interval."""

    level: ClassVar[int] = logging.INFO

    took: float


@event
class JournalGrew(Event):
    """The write-ahead log of a SQLite file has this many bytes: a long reader keeps it.

    It is emitted again when the log has doubled. SQLite uses the log again, and cuts it, after that
    transaction has ended.
    """

    level: ClassVar[int] = logging.WARNING

    size: int
    reason: str
    advice: str


@event
class HintsLost(Event):
    """Hints no longer arrive; until they do, pauses use the strategy's own intervals."""

    level: ClassVar[int] = logging.WARNING

    reason: str
    advice: str
