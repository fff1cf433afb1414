"""Everything the runtime tells: frozen events, and the bus that sinks subscribe to.

Metrics, logs and views are sinks. The classes are API: the reference is made from these files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from pollwise.runtime.events import controller, fleet, jobs, outbox, polling
from pollwise.runtime.events.base import (
    Event,
)
from pollwise.runtime.events.controller import (
    AgentJobEvent,
    ControllerCounted,
    HintPushed,
    JobDelivered,
    JobGivenUp,
    JobLapsed,
    JobReported,
    JobSubmitted,
    PollAnswered,
    PushChanged,
    RequestAnswered,
    WorkerGone,
    WorkerRegistered,
)
from pollwise.runtime.events.fleet import (
    ActionFailed,
    BudgetShort,
    FleetOrdered,
    FleetSettingsChanged,
    FleetStarted,
    FleetStopped,
    TargetAdded,
    TargetChanged,
    TargetCondition,
    TargetDead,
    TargetEvent,
    TargetFailed,
    TargetPolled,
    TargetPolling,
    TargetRecovered,
    TargetRemoved,
    TargetStuck,
)
from pollwise.runtime.events.jobs import (
    JobDead,
    JobDone,
    JobEvent,
    JobGivenBack,
    JobLost,
    JobRetried,
    JobSnoozed,
    JobStarted,
    JobUnhandled,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from pollwise.runtime.events.outbox import (
    HandlersDiffer,
    KeyBlocked,
    KeyGivenBack,
    KeyLost,
    OutboxMeasured,
    PatternUnmatched,
    RecordDead,
    RecordEvent,
    RecordFellBack,
    RecordHandled,
    RecordRetried,
    RecordSnoozed,
    RecordUnhandled,
    RelayEvent,
    RelayResumed,
    RelayStandsBy,
    RelayStarted,
    RelayStopped,
    RelayStopping,
)
from pollwise.runtime.events.polling import (
    BreakerChanged,
    ChoreFailed,
    HintsLost,
    HintsProven,
    PaceChanged,
    PollFailed,
    PollFinished,
    PollRecovered,
)

__all__ = [
    "ActionFailed",
    "AgentJobEvent",
    "BreakerChanged",
    "BudgetShort",
    "ChoreFailed",
    "ControllerCounted",
    "Event",
    "Events",
    "FleetOrdered",
    "FleetSettingsChanged",
    "FleetStarted",
    "FleetStopped",
    "HandlersDiffer",
    "HintPushed",
    "HintsLost",
    "HintsProven",
    "JobDead",
    "JobDelivered",
    "JobDone",
    "JobEvent",
    "JobGivenBack",
    "JobGivenUp",
    "JobLapsed",
    "JobLost",
    "JobReported",
    "JobRetried",
    "JobSnoozed",
    "JobStarted",
    "JobSubmitted",
    "JobUnhandled",
    "KeyBlocked",
    "KeyGivenBack",
    "KeyLost",
    "OutboxMeasured",
    "PaceChanged",
    "PatternUnmatched",
    "PollAnswered",
    "PollFailed",
    "PollFinished",
    "PollRecovered",
    "PushChanged",
    "RecordDead",
    "RecordEvent",
    "RecordFellBack",
    "RecordHandled",
    "RecordRetried",
    "RecordSnoozed",
    "RecordUnhandled",
    "RelayEvent",
    "RelayResumed",
    "RelayStandsBy",
    "RelayStarted",
    "RelayStopped",
    "RelayStopping",
    "RequestAnswered",
    "TargetAdded",
    "TargetChanged",
    "TargetCondition",
    "TargetDead",
    "TargetEvent",
    "TargetFailed",
    "TargetPolled",
    "TargetPolling",
    "TargetRecovered",
    "TargetRemoved",
    "TargetStuck",
    "WorkerGone",
    "WorkerRegistered",
    "WorkerStarted",
    "WorkerStopped",
    "WorkerStopping",
    "action_of",
    "all_events",
    "log",
]

logger = logging.getLogger("pollwise")

Sink = Callable[[Any], None]
#: The files of events, in the order of the reference.
_FILES = (polling, jobs, outbox, controller, fleet)


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
    """Every event class that is emitted, in the order of the files."""
    # Not from `__subclasses__`: others may have classes of their own, and of a dataclass with
    # slots the class it was made from stays there until the garbage is collected.
    named = [value for file in _FILES for value in vars(file).values()]
    kinds = [kind for kind in named if isinstance(kind, type) and issubclass(kind, Event)]
    return [
        kind
        for kind in kinds
        if kind is not Event and not any(kind in other.__bases__ for other in kinds)
    ]
