"""The bus: sinks subscribe to classes of events, and emitting one calls them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from functools import cache
from typing import Any

from pollwise.runtime.events import controller, fleet, jobs, outbox, polling, schedules
from pollwise.runtime.events.base import Event
from pollwise.runtime.redact import without_secrets_inside

logger = logging.getLogger("pollwise")

Sink = Callable[[Any], None]
#: The files of events, in the order of the reference.
_FILES = (polling, jobs, schedules, outbox, controller, fleet)
#: Fields with the texts of exceptions, in which URLs may hold passwords.
_TEXTS = {"error", "reason", "traceback"}
#: Fields that are seconds since 1970, which people cannot read.
_MOMENTS = {"tick", "first"}


def action_of(kind: type[Event]) -> str:
    """The name of an event in logs: PollFailed -> "poll_failed"."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in kind.__name__).lstrip("_")


def log(event: Event) -> None:
    """Log an event: the sink behind the logs. The record has `action` and `fields` attributes."""
    if not logger.isEnabledFor(event.level):
        return
    action = action_of(type(event))
    values = {f.name: getattr(event, f.name) for f in fields(event)}
    for name in values.keys() & _TEXTS:
        values[name] = without_secrets_inside(str(values[name]))
    traceback = values.pop("traceback", "")
    text = " ".join(f"{name}={_shown_field(name, value)}" for name, value in values.items())
    if traceback:
        text += f"\n{traceback}"
        values["traceback"] = traceback
    logger.log(event.level, "%s %s", action, text, extra={"action": action, "fields": values})


def _shown_field(name: str, value: object) -> str:
    if name in _MOMENTS and isinstance(value, float):
        return datetime.fromtimestamp(value, UTC).isoformat()
    return shown_value(value)


def shown_value(value: object) -> str:
    """A value of a field as one word, or quoted."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    text = str(value)
    return text if text and " " not in text and text.isprintable() else repr(text)


class Events:
    """The bus. `emit` calls every sink that subscribed to the event's class, in order.

    A sink that raises is logged once and never disturbs the loop. Events of level INFO and above
    are logged from the start; `quiet=True` turns that off.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._subscriptions: list[tuple[Sink, tuple[type[Event], ...]]] = []
        self._sinks: dict[type[Event], tuple[Sink, ...]] = {}
        self._broken: dict[int, Sink] = {}  # by identity: a sink need not be hashable
        if not quiet:
            self.subscribe(log, *_told_events())

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
        """True if a sink subscribed to this class; if not, the event need not be built."""
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


@cache
def all_events() -> tuple[type[Event], ...]:
    """Every event class that is emitted, in the order of the files."""
    # Not from `__subclasses__`: users may define events of their own, and a dataclass with slots
    # leaves the class it was made from there until the garbage is collected.
    named = [value for file in _FILES for value in vars(file).values()]
    kinds = [kind for kind in named if isinstance(kind, type) and issubclass(kind, Event)]
    bases = {base for kind in kinds for base in kind.__bases__}
    return tuple(kind for kind in kinds if kind is not Event and kind not in bases)


@cache
def _told_events() -> tuple[type[Event], ...]:
    """Those of level INFO and above."""
    return tuple(kind for kind in all_events() if kind.level >= logging.INFO)
