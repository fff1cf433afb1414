"""The metrics of fleets. The label sets of a removed target are removed too."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from pollwise.runtime import events
from pollwise.runtime.events import Event, TargetEvent

RESULTS = ("changed", "unchanged", "failed")
CLOSED, HALF_OPEN, OPEN = 0, 1, 2
_BREAKERS = {"open": OPEN, "dead": OPEN}
_OF_A_TARGET = (
    "pollwise_fleet_poll_duration_seconds",
    "pollwise_fleet_poll_staleness_seconds",
    "pollwise_fleet_breaker_state",
    "pollwise_fleet_stuck_total",
    "pollwise_fleet_action_failed_total",
)

Key = tuple[str, str, str]  # fleet, type, target


class FleetMetrics:
    """The fleet metrics of the Prometheus sink."""

    def __init__(
        self,
        metrics: Mapping[str, Any],
        registry: Any,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics = metrics
        self._registry = registry
        self._shown: set[str] = set()
        self._now = now
        self._succeeded_at: dict[Key, float] = {}
        self._states: dict[Key, str] = {}  # of targets that are not closed
        self._in_progress: Tally[tuple[str, str]] = Tally()
        self._depths: dict[str, tuple[int, int]] = {}  # planned, due
        self.react: dict[type[Event], Callable[[Any], None]] = {
            events.TargetAdded: self._known,
            events.TargetRemoved: self._removed,
            events.TargetPolling: self._polling,
            events.TargetPolled: self._polled,
            events.TargetStateChanged: self._state,
            events.TargetStuck: partial(self._count, "pollwise_fleet_stuck_total"),
            events.ActionFailed: partial(self._count, "pollwise_fleet_action_failed_total"),
            events.FleetStopped: self._stopped,
        }

    def _known(self, event: TargetEvent) -> None:
        key = _key(event)
        if key not in self._succeeded_at:
            self._succeeded_at[key] = self._now()
            gauge = self._metrics["pollwise_fleet_poll_staleness_seconds"]
            gauge.labels(event.type, event.target).set_function(partial(self._age, key))

    def _age(self, key: Key) -> float:
        now = self._now()
        return now - self._succeeded_at.get(key, now)

    def _polling(self, event: events.TargetPolling) -> None:
        self._in_progress[event.source, event.type] += 1
        self._show_in_progress(event.type)
        if self._states.get(_key(event)) in _BREAKERS:
            self._breaker(event, HALF_OPEN)

    def _polled(self, event: events.TargetPolled) -> None:
        self._in_progress[event.source, event.type] -= 1
        self._show_in_progress(event.type)
        self._depths[event.source] = event.depth, event.due
        self._show_depths()
        if event.result not in RESULTS:  # dropped: it may have been removed
            return
        self._known(event)
        if event.result != "failed":
            self._succeeded_at[_key(event)] = self._now()
        elif self._states.get(_key(event)) in _BREAKERS:
            self._breaker(event, OPEN)
        total = self._metrics["pollwise_fleet_poll_total"]
        total.labels(event.type, event.target, event.result).inc()
        duration = self._metrics["pollwise_fleet_poll_duration_seconds"]
        duration.labels(event.type, event.target).observe(event.took)

    def _state(self, event: events.TargetStateChanged) -> None:
        key = _key(event)
        if event.state == "closed":
            self._states.pop(key, None)
        else:
            self._states[key] = event.state
        self._breaker(event, _BREAKERS.get(event.state, CLOSED))
        self._show_dead()

    def _breaker(self, event: TargetEvent, state: int) -> None:
        gauge = self._metrics["pollwise_fleet_breaker_state"]
        gauge.labels(event.type, event.target).set(state)

    def _count(self, name: str, event: TargetEvent) -> None:
        self._metrics[name].labels(event.type, event.target).inc()

    def _show_in_progress(self, kind: str) -> None:
        count = sum(n for (_, each), n in self._in_progress.items() if each == kind)
        self._metrics["pollwise_fleet_inflight"].labels(kind).set(count)

    def _show_dead(self) -> None:
        dead = sum(each == "dead" for each in self._states.values())
        self._show("pollwise_fleet_dead_targets", dead)

    def _show_depths(self) -> None:
        planned, due = map(sum, zip(*self._depths.values(), strict=True))
        self._show("pollwise_fleet_queue_depth", planned)
        self._show("pollwise_fleet_due", due)

    def _show(self, name: str, count: int) -> None:
        if name not in self._shown:
            self._registry.register(self._metrics[name])
            self._shown.add(name)
        self._metrics[name].set(count)

    def _removed(self, event: TargetEvent) -> None:
        self._delete(_key(event))
        self._show_dead()

    def _stopped(self, event: events.FleetStopped) -> None:
        for key in [key for key in self._succeeded_at if key[0] == event.source]:
            self._delete(key)
        for source, kind in list(self._in_progress):
            if source == event.source:
                del self._in_progress[source, kind]
                self._show_in_progress(kind)
                if not any(each == kind for _, each in self._in_progress):
                    self._metrics["pollwise_fleet_inflight"].remove(kind)
        self._depths.pop(event.source, None)
        if not self._depths:
            for name in self._shown:
                self._registry.unregister(self._metrics[name])
            self._shown.clear()
            return
        self._show_depths()
        self._show_dead()

    def _delete(self, key: Key) -> None:
        self._succeeded_at.pop(key, None)
        self._states.pop(key, None)
        _, kind, target = key
        for name in _OF_A_TARGET:
            with suppress(KeyError):
                self._metrics[name].remove(kind, target)
        for result in RESULTS:
            with suppress(KeyError):
                self._metrics["pollwise_fleet_poll_total"].remove(kind, target, result)


def _key(event: TargetEvent) -> Key:
    return event.source, event.type, event.target
