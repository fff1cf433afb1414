"""Everything the runtime tells: frozen events, and the bus that sinks subscribe to.

Metrics, logs and views are sinks. The classes are API: the reference is made from this file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

logger = logging.getLogger("pollux")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. `source` names the queue or poll it happened to."""

    #: The level it is logged at. What happens all the time is debug, which is not even built
    #: unless a sink asks for it.
    level: ClassVar[int] = logging.DEBUG

    source: str


@dataclass(frozen=True, slots=True)
class PollFinished(Event):
    """A poll came back. An empty one is counted by metrics and neither logged nor traced."""

    found: int
    capacity: int | None
    took: float
    interval: float
    delay: float
    hold: float
    hinted: bool


@dataclass(frozen=True, slots=True)
class PollFailed(Event):
    """A poll raised. The next comes after `delay`, by the loop's retry, not by its pacer."""

    level: ClassVar[int] = logging.WARNING

    error: str
    failures: int
    delay: float


@dataclass(frozen=True, slots=True)
class PollRecovered(Event):
    """A poll came back after `failures` that had not."""

    level: ClassVar[int] = logging.INFO

    failures: int


@dataclass(frozen=True, slots=True)
class PaceChanged(Event):
    """A pacer turned: back-off, speed-up, reset, class or decay."""

    what: str
    before: float | str
    after: float | str


@dataclass(frozen=True, slots=True)
class WorkerStarted(Event):
    """A worker begins to poll."""

    level: ClassVar[int] = logging.INFO

    worker: str
    kinds: tuple[str, ...]
    concurrency: int
    strategy: str


@dataclass(frozen=True, slots=True)
class WorkerStopping(Event):
    """A worker claims no more and finishes what it holds."""

    level: ClassVar[int] = logging.INFO

    worker: str
    running: int
    grace: float


@dataclass(frozen=True, slots=True)
class WorkerStopped(Event):
    """A worker holds nothing any more; `given_back` jobs went back to the queue."""

    level: ClassVar[int] = logging.INFO

    worker: str
    given_back: int


@dataclass(frozen=True, slots=True)
class JobEvent(Event):
    """Something that happened to one job."""

    worker: str
    job: str
    kind: str
    attempt: int


@dataclass(frozen=True, slots=True)
class JobStarted(JobEvent):
    """A handler begins; the job had `waited` since it was due."""

    waited: float


@dataclass(frozen=True, slots=True)
class JobDone(JobEvent):
    """A handler returned."""

    took: float


@dataclass(frozen=True, slots=True)
class JobRetried(JobEvent):
    """A handler failed, and its job comes back after `delay`."""

    level: ClassVar[int] = logging.WARNING

    error: str
    delay: float
    took: float
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class JobSnoozed(JobEvent):
    """A handler asked for its job to come back after `delay`; no attempt was used."""

    delay: float


@dataclass(frozen=True, slots=True)
class JobDead(JobEvent):
    """A job went to the dead letters."""

    level: ClassVar[int] = logging.ERROR

    error: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class JobGivenBack(JobEvent):
    """A job went back unfinished, because its worker stops or its kind's breaker opened."""

    level: ClassVar[int] = logging.INFO

    reason: str


@dataclass(frozen=True, slots=True)
class JobUnhandled(JobEvent):
    """A store that cannot pick kinds gave a job that has no handler here; it went back."""

    level: ClassVar[int] = logging.WARNING

    delay: float


@dataclass(frozen=True, slots=True)
class JobLost(JobEvent):
    """A lease ran out under a worker; whatever its handler did, the job is no longer its."""

    level: ClassVar[int] = logging.WARNING


@dataclass(frozen=True, slots=True)
class RelayEvent(Event):
    """Something that happened in a relay. The source is "outbox:" and the outbox's name."""

    level: ClassVar[int] = logging.INFO

    relay: str


@dataclass(frozen=True, slots=True)
class RelayStarted(RelayEvent):
    """A relay begins to poll an outbox."""

    handlers: tuple[str, ...]
    concurrency: int
    strategy: str


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
class KeyUnblocked(RelayEvent):
    """Somebody retried or skipped the dead record of a key, which goes on."""

    key: str


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


@dataclass(frozen=True, slots=True)
class BreakerChanged(Event):
    """The breaker of a kind, or of an outbox's handler, opened, went half-open or closed."""

    level: ClassVar[int] = logging.WARNING

    kind: str
    state: str


@dataclass(frozen=True, slots=True)
class ChoreFailed(Event):
    """A recurring chore (lease renewal, retention) raised; it comes again at its next turn."""

    level: ClassVar[int] = logging.WARNING

    chore: str
    error: str


@dataclass(frozen=True, slots=True)
class HintsProven(Event):
    """A message sent the way hints travel came back after `took`: the long ceiling may be used."""

    level: ClassVar[int] = logging.INFO

    took: float


@dataclass(frozen=True, slots=True)
class HintsLost(Event):
    """Hints do not arrive any more; polls go by their strategy's own ceiling until they do."""

    level: ClassVar[int] = logging.WARNING

    reason: str
    advice: str


@dataclass(frozen=True, slots=True)
class WorkerRegistered(Event):
    """A worker registered with the controller."""

    level: ClassVar[int] = logging.INFO

    worker: str
    name: str


@dataclass(frozen=True, slots=True)
class WorkerGone(Event):
    """The controller remembers a worker no longer: it unregistered, or was silent for long."""

    level: ClassVar[int] = logging.INFO

    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class PollAnswered(Event):
    """The controller answered a worker's poll: job, empty, unchanged or too_soon."""

    worker: str
    result: str
    found: int
    took: float


@dataclass(frozen=True, slots=True)
class PushChanged(Event):
    """A worker's WebSocket was opened or closed; `connections` are open now."""

    worker: str
    connections: int


@dataclass(frozen=True, slots=True)
class HintPushed(Event):
    """A worker was told by its WebSocket that looking may pay off now."""

    worker: str


@dataclass(frozen=True, slots=True)
class JobSubmitted(Event):
    """A job came in over HTTP."""

    job: str
    kind: str


@dataclass(frozen=True, slots=True)
class AgentJobEvent(Event):
    """Something that happened to a job in the hands of a worker behind the controller."""

    worker: str
    job: str
    kind: str
    attempt: int


@dataclass(frozen=True, slots=True)
class JobDelivered(AgentJobEvent):
    """A job went to a worker, having `waited` since it was submitted or last given back."""

    waited: float
    again: bool = False


@dataclass(frozen=True, slots=True)
class JobReported(AgentJobEvent):
    """A worker said how a job ended: done, failed, dead or cancelled."""

    result: str
    took: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class JobReassigned(AgentJobEvent):
    """A worker was silent for too long, and its job goes to another."""

    level: ClassVar[int] = logging.WARNING


@dataclass(frozen=True, slots=True)
class JobGivenUp(AgentJobEvent):
    """A job used up its attempts without a word from its workers, and is dead."""

    level: ClassVar[int] = logging.ERROR

    error: str


@dataclass(frozen=True, slots=True)
class ControllerCounted(Event):
    """How many jobs, workers and held polls there are, counted because somebody asked."""

    jobs: tuple[tuple[str, int], ...]
    online: int
    offline: int
    held: int


@dataclass(frozen=True, slots=True)
class RequestAnswered(Event):
    """The controller answered a request that is no poll."""

    method: str
    route: str
    status: int
    took: float


Sink = Callable[[Any], None]


def action_of(kind: type[Event]) -> str:
    """The name of an event in logs: PollFailed -> "poll_failed"."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in kind.__name__).lstrip("_")


def log(event: Event) -> None:
    """The sink that logs: one record an event, with its `action` and `fields` as attributes."""
    if not logger.isEnabledFor(event.level):
        return
    action = action_of(type(event))
    values = {f.name: getattr(event, f.name) for f in fields(event)}
    traceback = values.pop("traceback", "")
    text = " ".join(f"{name}={_shown(value)}" for name, value in values.items())
    if traceback:
        text += f"\n{traceback}"
        values["traceback"] = traceback
    logger.log(event.level, "%s %s", action, text, extra={"action": action, "fields": values})


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    text = str(value)
    return text if text and " " not in text and text.isprintable() else repr(text)


class Events:
    """The bus. `emit` calls every sink that subscribed to the event's class, in order.

    A sink that raises is logged once and never disturbs the loop. What is worth a person's notice
    (information and above) is logged from the start; `quiet=True` leaves that out.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._subscriptions: list[tuple[Sink, tuple[type[Event], ...]]] = []
        self._sinks: dict[type[Event], tuple[Sink, ...]] = {}
        self._broken: dict[int, Sink] = {}  # by identity: a sink need not be hashable
        if not quiet:
            self.subscribe(log, *(kind for kind in all_events() if kind.level >= logging.INFO))

    def subscribe(self, sink: Sink, *to: type[Event]) -> Callable[[], None]:
        """Call `sink` with each event of the classes `to` (all, when none is named).

        Returns a function that ends the subscription.
        """
        subscription = (sink, to or (Event,))
        self._subscriptions.append(subscription)
        self._sinks.clear()

        def unsubscribe() -> None:
            # By identity: the same sink may have subscribed twice.
            self._subscriptions = [s for s in self._subscriptions if s is not subscription]
            self._sinks.clear()

        return unsubscribe

    def wants(self, kind: type[Event]) -> bool:
        """Whether anybody listens to events of this class; spares building them otherwise."""
        return bool(self._sinks_of(kind))

    def emit(self, event: Event) -> None:
        for sink in self._sinks_of(type(event)):
            try:
                sink(event)
            except Exception:
                if id(sink) not in self._broken:
                    self._broken[id(sink)] = sink
                    logger.exception(
                        "an event sink failed and is not reported again: %r on %s",
                        sink,
                        type(event).__name__,
                    )

    def _sinks_of(self, kind: type[Event]) -> tuple[Sink, ...]:
        sinks = self._sinks.get(kind)
        if sinks is None:
            sinks = tuple(sink for sink, to in self._subscriptions if issubclass(kind, to))
            self._sinks[kind] = sinks
        return sinks


def all_events() -> list[type[Event]]:
    """Every event class that is emitted, in the order of this file."""
    # Not from `__subclasses__`: others may have classes of their own, and of a dataclass with
    # slots the class it was made from stays there until the garbage is collected.
    kinds = [k for k in globals().values() if isinstance(k, type) and issubclass(k, Event)]
    return [kind for kind in kinds if not any(kind in other.__bases__ for other in kinds)]
