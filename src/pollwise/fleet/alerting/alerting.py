"""Follows the polls of a fleet and the time, opens and closes alerts, and writes their notices.

After each poll of a target with rules, its rules take a step. What happens by time alone (a
condition has held long enough, a repetition is due, a target became stale) is on one agenda with
one timer. A target with a condition that must hold for some time is polled when that time ends, so
that an alert never opens on an old reading.

Decisions are saved with the target, in one transaction with its state. So a crash loses a whole
decision or nothing of it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from pollwise.alerts.conditions import Sighting
from pollwise.alerts.lifecycle import CALM, LifeEvent, RuleState, due, step
from pollwise.alerts.maintenance import Maintenance, NoMaintenance
from pollwise.alerts.rules import SEVERITY, AlertRule
from pollwise.alerts.settings import NO_ALERTS, Alerts
from pollwise.alerts.values import Alert, FindAlerts, Notice
from pollwise.core.agenda import Agenda
from pollwise.durations import short
from pollwise.errors import PollwiseError
from pollwise.fleet.alerting.notices import SUMMARY_MAX, alert_id, change_notices, notices_of
from pollwise.fleet.alerting.parents import Parents
from pollwise.fleet.engine.observing import Observation, event_of
from pollwise.fleet.engine.running_target import AGENDA, GONE, RunningTarget
from pollwise.fleet.engine.scheduler import Scheduler
from pollwise.fleet.stores.base import FleetStore
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import AlertClosed, AlertOpened, Events

#: How long after the end of `for` an alert opens although the poll at that time has not ended, in
#: seconds beyond the target's timeout.
LATE = 1.0
#: How often to look again at an alert that waits, in seconds: for the end of maintenance, which can
#: come early, for its target's parents, or for an acknowledgement.
AGAIN = 5.0

#: The states of a target whose breaker is open after its poll.
BROKEN = ("open", "dead")

#: Keeps an alert and its notices; they are saved with the target.
Keep = Callable[[RunningTarget, Alert | None, Sequence[Notice]], None]


class _Known(NamedTuple):
    """What is left of a rule that was removed, for the end of its alert."""

    key: str
    when: str
    severity: str = SEVERITY


class Alerting:
    """The alerts of one run. A `PollObserver`.

    keep: takes what was decided. changes: channels that hear of every change.
    """

    def __init__(
        self,
        fleet: str,
        scheduler: Scheduler,
        store: FleetStore | None,
        clock: Clock,
        bus: Events,
        keep: Keep,
        find: FindAlerts,
        settings: Alerts = NO_ALERTS,
        changes: tuple[str, ...] = (),
        maintenance: Maintenance | None = None,
    ) -> None:
        self.settings = settings
        self.changes = changes
        self.maintenance: Maintenance | NoMaintenance = maintenance or NoMaintenance()
        self._fleet = fleet
        self._scheduler = scheduler
        self._clock = clock
        self._bus = bus
        self._keep = keep
        self._find = find
        self._loop = asyncio.get_running_loop()
        self._agenda: Agenda[RunningTarget] = Agenda()
        self._timer: asyncio.TimerHandle | None = None
        self._began = self._loop.time()
        #: Alerts that are due to be repeated, while the store is asked for acknowledgements.
        self._repeating: dict[RunningTarget, None] = {}
        self._asking: asyncio.Task[None] | None = None
        #: Targets whose alerts maintenance holds back.
        self._maintained: set[RunningTarget] = set()
        self.pump: Callable[[], None] = lambda: None
        self._parents = Parents(scheduler, store, clock, self._poll_now, self._freed)

    # Targets

    def joined(self, entry: RunningTarget) -> None:
        """A target is polled here from now on: continue where its saved state was. Alerts whose
        rules do not exist any more are closed."""
        rules = {rule.key: rule for rule in entry.target.alerts}
        for key, state in list((entry.alerts or {}).items()):
            if key not in rules:
                self._forget_rule(entry, key, state)
        if rules:
            self._plan(entry)

    def removed(self, entry: RunningTarget) -> None:
        """A target was removed: its alerts are closed."""
        for key, state in list((entry.alerts or {}).items()):
            self._forget_rule(entry, key, state)
        self.left(entry)

    def left(self, entry: RunningTarget) -> None:
        """A target is not polled here any more."""
        self._agenda.remove(entry)
        self._maintained.discard(entry)
        self._repeating.pop(entry, None)
        self._parents.forget(entry)

    def _forget_rule(self, entry: RunningTarget, key: str, state: RuleState) -> None:
        if state.alert is not None:
            self._closed(entry, _Known(key, key), state, "its rule or its target was removed")
        if entry.alerts is not None:
            entry.alerts.pop(key, None)

    def close(self) -> None:
        """Stop the timer and what runs in the background."""
        if self._timer is not None:
            self._timer.cancel()
        if self._asking is not None:
            self._asking.cancel()
        self._parents.close()

    # Polls

    def observed(self, entry: RunningTarget, seen: Observation) -> None:
        rules = entry.target.alerts
        if seen.changed and (self.changes or rules):
            self._changed(entry, seen)
        self._parents.polled(entry)
        if not rules:
            return
        reading = entry.reading if seen.ok else None
        sighting = Sighting(
            seen.ok,
            entry.down_since is not None,
            seen.changed,
            seen.took,
            None if reading is None else reading.value,
            {} if reading is None else reading.facts,
            self._scheduler.rules.state(entry.failures, dead=entry.dead, asked=False) in BROKEN,
        )
        now = self._loop.time()
        for rule in rules:
            kind = rule.condition.kind
            if kind == "changed":
                continue
            holds = rule.condition.holds(sighting)
            state = (entry.alerts or {}).get(rule.key, CALM)
            if state is CALM and not holds:
                continue
            since = entry.down_since if kind == "down" and holds else None
            self._step(entry, rule, state, now, holds, since, sighting)
        self._plan(entry)

    def _changed(self, entry: RunningTarget, seen: Observation) -> None:
        if seen.before is None or entry.reading is None:
            return
        at, target = seen.at + self._scheduler.offset, entry.target
        to = dict.fromkeys(self.changes)
        rule = next((each for each in target.alerts if each.condition.kind == "changed"), None)
        if rule is not None:
            to |= dict.fromkeys(self.settings.route(rule, target.group))
        if to and not self._covered(entry):
            notices = change_notices(
                target, rule, seen.before, entry.reading, at, to, self.settings, self._fleet
            )
            if notices:
                self._keep(entry, None, notices)

    # Steps

    def _step(
        self,
        entry: RunningTarget,
        rule: AlertRule,
        state: RuleState,
        now: float,
        holds: bool | None,
        since: float | None = None,
        sighting: Sighting | None = None,
    ) -> None:
        new, event = step(rule, state, now, holds, since=since)
        if event == "opened":
            free = self._free(entry, new.since or now, now)
            if not free:
                new, event = step(rule, state, now, holds, since=since, free=free)
        elif event == "repeated":
            new, event = step(rule, state, now, holds, since=since, free=None)
            self._repeating[entry] = None
            self._ask_for_acknowledgements()
        if event == "opened":
            new = self._opened(entry, rule, new, _reason(entry, rule, sighting, now))
        elif event == "closed":
            reading = entry.reading
            self._closed(entry, rule, state, "" if reading is None else reading.summary)
        self._set(entry, rule.key, new)

    def _set(self, entry: RunningTarget, key: str, state: RuleState) -> None:
        if entry.alerts is None:
            entry.alerts = {}
        if state == CALM:
            entry.alerts.pop(key, None)
            if not entry.alerts:
                self._maintained.discard(entry)
                self._parents.forget(entry)
        else:
            entry.alerts[key] = state

    def _opened(
        self, entry: RunningTarget, rule: AlertRule, state: RuleState, summary: str
    ) -> RuleState:
        target, at = entry.target, self._clock.epoch()
        to = self.settings.route(rule, target.group)
        state = replace(state, alert=alert_id(target.name, rule.key, at), to=to)
        alert = self._alert(entry, rule, state, summary)
        self._put_notices(entry, alert, "opened", state, summary)
        facts = (alert.id, rule.when, rule.severity, alert.summary)
        self._bus.emit(event_of(AlertOpened, self._fleet, target, *facts))
        return state

    def _closed(
        self, entry: RunningTarget, rule: AlertRule | _Known, state: RuleState, summary: str
    ) -> None:
        target, at = entry.target, self._clock.epoch()
        state = replace(state, sent=state.sent + 1)
        alert = self._alert(entry, rule, state, summary)
        alert = replace(alert, state="closed", closed_at=at, last_sent_at=at)
        self._put_notices(entry, alert, "closed", state, summary)
        facts = (alert.id, rule.when, rule.severity, alert.lasted or 0.0)
        self._bus.emit(event_of(AlertClosed, self._fleet, target, *facts))

    def _alert(
        self, entry: RunningTarget, rule: AlertRule | _Known, state: RuleState, summary: str
    ) -> Alert:
        offset, target = self._scheduler.offset, entry.target
        return Alert(
            state.alert or "",
            target.name,
            target.group,
            rule.key,
            rule.when,
            rule.severity,
            "open",
            (state.opened_at if state.since is None else state.since) + offset,
            state.opened_at + offset,
            summary=summary[:SUMMARY_MAX],
            sent=state.sent,
            last_sent_at=state.sent_at + offset,
        )

    def _put_notices(
        self,
        entry: RunningTarget,
        alert: Alert,
        event: LifeEvent,
        state: RuleState,
        summary: str,
    ) -> None:
        # The last reading says nothing about a poll that failed.
        reading = entry.reading if entry.failing_since is None else None
        notices = notices_of(
            alert, event, state.sent, self._clock.epoch(), entry.target, reading, state.to,
            self.settings, self._fleet, summary[:SUMMARY_MAX],
        )  # fmt: skip
        self._keep(entry, alert, notices)

    # What holds alerts back

    def _free(self, entry: RunningTarget, since: float, now: float) -> bool | None:
        """True if an alert of a target may open now."""
        if self._covered(entry):
            self._maintained.add(entry)
            return False
        if not entry.target.behind:
            return True
        return self._parents.allow(entry, since, now)

    def _covered(self, entry: RunningTarget) -> bool:
        target = entry.target
        epoch = self._loop.time() + self._scheduler.offset
        return self.maintenance.covers(target.name, target.group, epoch) is not None

    def _freed(self, entry: RunningTarget) -> None:
        """A parent of a target is up again: poll the target, and decide by that poll."""
        if self._here(entry):
            self._agenda.upsert(entry, self._loop.time())
            self._set_timer()
            self._poll_now(entry)

    def _poll_now(self, entry: RunningTarget) -> None:
        if not entry.paused:
            self._scheduler.poll_now(entry, self._loop.time())
            self._loop.call_soon(self.pump)  # not in the middle of the poll that called this

    # Time

    def _plan(self, entry: RunningTarget) -> None:
        """Put a target on the agenda for what happens to its alerts by time alone; and plan its
        poll for when a condition has held long enough."""
        first = math.inf
        states = entry.alerts or {}
        for rule in entry.target.alerts:
            state = states.get(rule.key, CALM)
            if rule.condition.kind == "stale" and state.since is None:
                first = min(first, self._stale_at(entry, rule))
            elif state.since is not None:
                first = min(first, self._due(entry, rule, state))
        if entry in self._maintained:
            first = min(first, self._loop.time() + AGAIN)
        if first < math.inf:
            self._agenda.upsert(entry, first)
            self._set_timer()
        else:
            self._agenda.remove(entry)

    def _due(self, entry: RunningTarget, rule: AlertRule, state: RuleState) -> float:
        at, now = due(rule, state), self._loop.time()
        if at <= now:
            return now + AGAIN  # it waits for something
        if state.alert is None and rule.condition.kind != "stale" and at < math.inf:
            self._poll_by(entry, at)
            return at + entry.target.timeout + LATE
        return at

    def _poll_by(self, entry: RunningTarget, at: float) -> None:
        """Poll a target at `at` unless it is polled before."""
        waits = entry.paused or entry.until == -math.inf or entry in self._scheduler.deferred
        if entry.place == AGENDA and entry.due > at and not waits:
            entry.due = at
            self._scheduler.agenda.upsert(entry, at, entry.target.priority)
            self._loop.call_soon(self.pump)

    def _stale_at(self, entry: RunningTarget, rule: AlertRule) -> float:
        success = entry.succeeded_at
        return (self._began if success is None else success) + rule.condition.after

    def _set_timer(self) -> None:
        first = self._agenda.first_due()
        if self._timer is not None:
            if self._timer.when() <= first:
                return
            self._timer.cancel()
            self._timer = None
        if first < math.inf:
            self._timer = self._loop.call_at(first, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = self._loop.time()
        while (head := self._agenda.pop_due(now)) is not None:
            if self._here(head.key):
                self._time_passed(head.key, now)
        self._set_timer()

    def _here(self, entry: RunningTarget) -> bool:
        return entry.place != GONE and entry.until > self._loop.time()

    def _time_passed(self, entry: RunningTarget, now: float) -> None:
        resting = entry.paused or entry in self._scheduler.deferred
        if entry in self._maintained and not self._covered(entry):
            self._maintained.discard(entry)
            self._poll_now(entry)  # its alerts need a new poll to open
        for rule in entry.target.alerts:
            state = (entry.alerts or {}).get(rule.key, CALM)
            if rule.condition.kind == "stale":
                stale_at = self._stale_at(entry, rule)
                if state.alert is None and (resting or now < stale_at):
                    continue
                self._step(entry, rule, state, now, True, stale_at)
            elif state.since is not None and (state.alert is not None or not resting):
                self._step(entry, rule, state, now, None)
        if resting and not entry.alerts:
            self._agenda.upsert(entry, now + AGAIN)  # it may be resumed
        else:
            self._plan(entry)

    # Repetitions

    def _ask_for_acknowledgements(self) -> None:
        if self._asking is None or self._asking.done():
            self._asking = self._loop.create_task(self._repeat())

    async def _repeat(self) -> None:
        """Repeat the alerts that are due and that nobody acknowledged."""
        while self._repeating:
            entries = list(self._repeating)
            ids = [
                state.alert
                for entry in entries
                for state in (entry.alerts or {}).values()
                if state.alert is not None
            ]
            known: set[str] = set()
            with suppress(PollwiseError):  # a repetition too many is better than none
                known = await self._acknowledged(ids)
            now = self._loop.time()
            for entry in entries:
                self._repeating.pop(entry, None)
                if self._here(entry):
                    self._repeat_alerts(entry, known, now)
                    self._plan(entry)

    async def _acknowledged(self, ids: Sequence[str]) -> set[str]:
        return {each.id for each in await self._find(ids) if each.acknowledged_at is not None}

    def _repeat_alerts(self, entry: RunningTarget, known: set[str], now: float) -> None:
        for rule in entry.target.alerts:
            state = (entry.alerts or {}).get(rule.key, CALM)
            if state.alert is None:
                continue
            if state.alert in known and not state.acknowledged:
                state = replace(state, acknowledged=True)
                self._set(entry, rule.key, state)
                self._keep(entry, None, ())
            new, event = step(rule, state, now, free=not self._covered(entry))
            if event == "repeated":
                summary = _reason(entry, rule, None, now)
                alert = self._alert(entry, rule, new, summary)
                self._put_notices(entry, alert, "repeated", new, summary)
                self._set(entry, rule.key, new)


def _reason(entry: RunningTarget, rule: AlertRule, sighting: Sighting | None, now: float) -> str:
    """Why an alert is open, for people."""
    condition = rule.condition
    if condition.kind == "down":
        return entry.error or "the target is down"
    if condition.kind == "breaker":
        return entry.error or "the breaker of the target is open"
    if condition.kind == "stale":
        success = entry.succeeded_at
        if success is None:
            return "no poll ever succeeded"
        return f"no success for {short(float(round(now - success)))}"
    if sighting is None:
        return rule.when
    if condition.field == "latency":
        return f"latency is {short(sighting.latency)} ({condition.op} {condition.text})"
    found = sighting.value if condition.field == "value" else sighting.facts.get(condition.field)
    text = found.decode(errors="replace") if isinstance(found, bytes) else str(found)
    return f"{condition.field} is {text} ({condition.op} {condition.text})"
