"""The metrics of fleets: by type and group, and on demand by target too.

Counters and histograms come from the events of polls. Gauges over many targets come from
`FleetCounted`, so that they agree with the fleet's API. The label sets of a removed target and of a
stopped fleet are removed too.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from pollwise.core.strategies.freshness import staleness_score
from pollwise.observe.instruments import Instruments, MetricSeries
from pollwise.runtime import events
from pollwise.runtime.events import Event, TargetEvent, TargetTally

BREAKER_STATES = {"closed": 0, "half-open": 1, "open": 2}
RESULTS = ("changed", "unchanged", "failed")
#: The breaker of a target in these states; in others it is closed.
BREAKERS = {"half-open": "half-open", "open": "open", "dead": "open"}
#: The gauges that a count sets, and the field of a tally.
COUNTED = {
    "pollwise_fleet_targets": "targets",
    "pollwise_fleet_never_targets": "never",
    "pollwise_fleet_down_targets": "down",
    "pollwise_fleet_stale_targets": "stale",
    "pollwise_fleet_paused_targets": "paused",
    "pollwise_fleet_quiet_targets": "quiet",
    "pollwise_fleet_due": "due",
    "pollwise_fleet_overdue": "overdue",
}
DEAD, BREAKER = "pollwise_fleet_dead_targets", "pollwise_fleet_breakers"
STALENESS, SCORE = "pollwise_fleet_poll_staleness_seconds", "pollwise_fleet_staleness_score"
DEPTH, IN_FLIGHT = "pollwise_fleet_queue_depth", "pollwise_fleet_inflight"
STATE, CHANGES = "pollwise_fleet_breaker_state", "pollwise_fleet_breaker_change_total"
TOTAL, DURATION = "pollwise_fleet_poll_total", "pollwise_fleet_poll_duration_seconds"
STUCK = "pollwise_fleet_stuck_total"
_OF_A_TARGET = (DURATION, STALENESS, SCORE, STATE)

Group = tuple[str, str]  # type, group
Key = tuple[str, str, str, str]  # fleet, type, group, target


class _Target:
    """What is known of one target, if metrics are by target."""

    __slots__ = ("max_interval", "since", "succeeded")

    def __init__(self, since: float) -> None:
        #: Time of the last success, else since when it is known.
        self.since = since
        self.succeeded = False
        self.max_interval = 0.0


class FleetMetrics:
    """The fleet metrics of a sink."""

    def __init__(
        self,
        metrics: Instruments,
        now: Callable[[], float] = time.monotonic,
        *,
        by_target: bool = False,
    ) -> None:
        self._metrics = metrics
        self._now = now
        self._by_target = by_target
        self._targets: dict[Key, _Target] = {}
        #: The series of polls, which are used with every poll: looking up labels is slow.
        self._polls: dict[tuple[str, ...], tuple[MetricSeries, MetricSeries]] = {}
        self._groups: dict[str, set[Group]] = {}  # those that polls of a fleet made known
        self._tallies: dict[str, dict[Group, tuple[TargetTally, float]]] = {}
        self._in_progress: Tally[tuple[str, str]] = Tally()
        self._depths: dict[str, int] = {}
        self.react: dict[type[Event], Callable[[Any], None]] = {
            events.TargetPolling: self._polling,
            events.TargetPolled: self._polled,
            events.TargetStuck: partial(self._count, STUCK),
            events.TargetStateChanged: self._state,
            events.AlertOpened: partial(self._alert, "opened"),
            events.AlertClosed: partial(self._alert, "closed"),
            events.NoticeSent: self._sent,
            events.NoticeFailed: partial(self._notice, "failed"),
            events.FleetCounted: self._counted,
            events.FleetStopped: self._stopped,
        }
        if by_target:
            self.react |= {
                events.TargetAdded: self._added,
                events.TargetRemoved: lambda event: self._delete(_key(event)),
            }

    # Polls

    def _polling(self, event: events.TargetPolling) -> None:
        self._in_progress[event.source, event.type] += 1
        self._show_in_progress(event.type)

    def _polled(self, event: events.TargetPolled) -> None:
        self._in_progress[event.source, event.type] -= 1
        self._show_in_progress(event.type)
        self._show_depth(event.source, event.depth)
        if event.result not in RESULTS:  # dropped: it may have been removed
            return
        if self._by_target:
            target = self._known(event)
            target.max_interval = event.max_interval
            if event.result != "failed":
                target.since, target.succeeded = self._now(), True
        labels = self._labels(event)
        series = self._polls.get((*labels, event.result))
        if series is None:
            total = self._metrics[TOTAL].labels(*labels, event.result)
            series = self._polls[*labels, event.result] = (
                total, self._metrics[DURATION].labels(*labels),
            )  # fmt: skip
        series[0].inc()
        series[1].observe(event.took)

    def _count(self, name: str, event: TargetEvent) -> None:
        self._metrics[name].labels(*self._labels(event)).inc()

    def _labels(self, event: TargetEvent) -> tuple[str, ...]:
        group = event.type, event.group
        known = self._groups.setdefault(event.source, set())
        if group not in known:
            known.add(group)
            self._begin(group)
        return (*group, event.target) if self._by_target else group

    def _begin(self, group: Group) -> None:
        """Let the counters of a group begin at 0, because a rate needs to see the first increase;
        those of targets would be too many."""
        for state in BREAKER_STATES:
            self._metrics[CHANGES].labels(*group, state)
        if not self._by_target:
            self._metrics[STUCK].labels(*group)
            for result in RESULTS:
                self._metrics[TOTAL].labels(*group, result)

    def _alert(self, result: str, event: events.AlertOpened | events.AlertClosed) -> None:
        alerts = self._metrics["pollwise_fleet_alert_total"]
        for each in ("opened", "closed"):
            alerts.labels(each, event.severity)
        alerts.labels(result, event.severity).inc()

    def _notice(self, result: str, event: events.NoticeSent | events.NoticeFailed) -> None:
        notices = self._metrics["pollwise_fleet_notice_total"]
        for each in ("sent", "failed"):
            notices.labels(event.channel, each)
        notices.labels(event.channel, result).inc()

    def _sent(self, event: events.NoticeSent) -> None:
        self._notice("sent", event)
        delay = self._metrics["pollwise_fleet_notice_delay_seconds"]
        delay.labels(event.channel).observe(event.delay)

    def _show_in_progress(self, kind: str) -> None:
        count = sum(n for (_, each), n in self._in_progress.items() if each == kind)
        self._metrics[IN_FLIGHT].labels(kind).set(count)

    def _show_depth(self, source: str, depth: int) -> None:
        self._depths[source] = depth
        self._metrics.set_alone(DEPTH, sum(self._depths.values()))

    # Targets

    def _added(self, event: events.TargetAdded) -> None:
        self._known(event)

    def _known(self, event: TargetEvent) -> _Target:
        key = _key(event)
        found = self._targets.get(key)
        if found is None:
            found = self._targets[key] = _Target(self._now())
            labels = self._labels(event)
            self._metrics[STALENESS].labels(*labels).set_function(partial(self._age, found))
            self._metrics[SCORE].labels(*labels).set_function(partial(self._score, found))
        return found

    def _age(self, target: _Target) -> float:
        return self._now() - target.since

    def _score(self, target: _Target) -> float:
        if not target.succeeded or not target.max_interval:
            return 1.0
        return staleness_score(self._age(target), target.max_interval)

    def _state(self, event: events.TargetStateChanged) -> None:
        state = BREAKERS.get(event.state, "closed")
        labels = self._labels(event)
        if event.before and BREAKERS.get(event.before, "closed") != state:
            self._metrics[CHANGES].labels(*labels[:2], state).inc()
        if self._by_target:
            self._metrics[STATE].labels(*labels).set(BREAKER_STATES[state])

    # Counts

    def _counted(self, event: events.FleetCounted) -> None:
        now = self._now()
        before = self._tallies.get(event.source, {})
        found = {(each.type, each.group): (each, now) for each in event.tallies}
        self._tallies[event.source] = found
        self._show_depth(event.source, event.depth)
        for group in before.keys() | found.keys():
            self._show_group(group)

    def _show_group(self, group: Group) -> None:
        """Show the sums of all fleets of this process; removes a group without targets."""
        counted = [each[group] for each in self._tallies.values() if group in each]
        if not counted:
            for name in (*COUNTED, DEAD, *(() if self._by_target else (STALENESS, SCORE))):
                self._remove(name, *group)
            self._metrics[BREAKER].remove_by_labels({"type": group[0], "group": group[1]})
            return
        tallies = [tally for tally, _ in counted]
        for name, field in COUNTED.items():
            total = sum(getattr(each, field) for each in tallies)
            self._metrics[name].labels(*group).set(total)
        dead = sum(dict(each.states)["dead"] for each in tallies)
        self._metrics[DEAD].labels(*group).set(dead)
        breakers: Tally[str] = sum((Tally(dict(each.breakers)) for each in tallies), Tally())
        for state, _ in tallies[0].breakers:
            self._metrics[BREAKER].labels(*group, state).set(breakers[state])
        if self._by_target:
            return
        self._metrics[SCORE].labels(*group).set(max(each.score for each in tallies))
        since = [at - each.staleness for each, at in counted if each.staleness is not None]
        if since:
            age = partial(self._age_since, min(since))
            self._metrics[STALENESS].labels(*group).set_function(age)
        else:
            self._remove(STALENESS, *group)

    def _age_since(self, at: float) -> float:
        return self._now() - at

    # Removing

    def _stopped(self, event: events.FleetStopped) -> None:
        source = event.source
        for key in [key for key in self._targets if key[0] == source]:
            self._delete(key, counters=not self._metrics.keeps_counters)
        for group in self._tallies.pop(source, {}):
            self._show_group(group)
        for group in self._groups.pop(source, set()):
            if not any(group in each for each in self._groups.values()):
                self._forget(group)
        for at, kind in list(self._in_progress):
            if at == source:
                del self._in_progress[at, kind]
                self._show_in_progress(kind)
                if not any(each == kind for _, each in self._in_progress):
                    self._metrics[IN_FLIGHT].remove(kind)
        if self._depths.pop(source, None) is not None:
            left = sum(self._depths.values()) if self._depths else None
            self._metrics.set_alone(DEPTH, left)

    def _forget(self, group: Group) -> None:
        """Remove the series of polls of a group."""
        for labels in [labels for labels in self._polls if labels[:2] == group]:
            del self._polls[labels]
        counters = () if self._metrics.keeps_counters else (TOTAL, STUCK, CHANGES)
        for name in (DURATION, *counters):
            self._metrics[name].remove_by_labels({"type": group[0], "group": group[1]})

    def _delete(self, key: Key, *, counters: bool = True) -> None:
        self._targets.pop(key, None)
        labels = key[1:]
        for name in _OF_A_TARGET:
            self._remove(name, *labels)
        for result in RESULTS:
            self._polls.pop((*labels, result), None)
        if counters:
            self._remove(STUCK, *labels)
            for result in RESULTS:
                self._remove(TOTAL, *labels, result)

    def _remove(self, name: str, *labels: str) -> None:
        with suppress(KeyError):
            self._metrics[name].remove(*labels)


def _key(event: TargetEvent) -> Key:
    return event.source, event.type, event.group, event.target
