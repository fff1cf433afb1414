"""Events of a fleet and its targets."""

from __future__ import annotations

import logging
from dataclasses import field
from typing import ClassVar, NamedTuple

from pollwise.runtime.events.base import Event, event


@event
class FleetStarted(Event):
    """A fleet starts polling. `source` is the name of the fleet here and below."""

    level: ClassVar[int] = logging.INFO

    targets: int
    concurrency: int
    strategy: str
    budget: float | None


@event
class FleetStopping(Event):
    """A fleet starts no more polls and finishes the `polls` in progress within the grace."""

    level: ClassVar[int] = logging.INFO

    polls: int
    grace: float


@event
class FleetStopped(Event):
    """A fleet stopped; `cancelled` polls were in progress and are repeated later."""

    level: ClassVar[int] = logging.INFO

    cancelled: int


@event
class BudgetShort(Event):
    """Fixed intervals, rechecks and max_intervals need more polls a second than the budget."""

    level: ClassVar[int] = logging.WARNING

    asked: float
    budget: float


@event
class FleetOrdered(Event):
    """An order was carried out: retry, close-breaker, pause, resume or poll-now.

    targets: names of the targets, at most 20. count: number of targets.
    by: who gave it: `cli`, `api` or `view`, and what is known of the person.
    """

    level: ClassVar[int] = logging.INFO

    order: str
    targets: tuple[str, ...]
    count: int
    by: str


@event
class FleetSettingsChanged(Event):
    """Polling settings were changed while the fleet ran; `by` is as for `FleetOrdered`.

    changes: each as key=value; without a value, the change was undone.
    """

    level: ClassVar[int] = logging.INFO

    changes: tuple[str, ...]
    by: str


class TargetTally(NamedTuple):
    """Counts of the targets of one type and one group that a node polls.

    states: number of targets in each state. breakers: the same for each state of the breaker.
    never: number that never succeeded, and are neither paused nor quiet.
    down: number whose failures are confirmed. stale: number that are older than they should be.
    due: number that wait for a slot, their host or the budget. overdue: number of those that wait
    for more than 5 seconds. paused, quiet: number that are not polled on purpose.
    staleness: age of the oldest last success of those that are not paused or quiet; None if there
    is none. score: the highest staleness score, 0 to 1, of those.
    """

    type: str
    group: str
    targets: int
    states: tuple[tuple[str, int], ...]
    breakers: tuple[tuple[str, int], ...]
    never: int
    down: int
    stale: int
    due: int
    overdue: int
    paused: int
    quiet: int
    staleness: float | None
    score: float


@event
class FleetCounted(Event):
    """The targets were counted, by type and group; only if something subscribed to this event.

    depth: number of planned polls. due: number of polls that wait for a slot, host or budget.
    """

    tallies: tuple[TargetTally, ...]
    depth: int
    due: int


@event
class FleetTargetsChanged(Event):
    """The file of targets was read again, or definitions in the store were changed.

    added, changed, removed: how many targets. targets: their names, at most 20.
    by: `file`, `SIGHUP`, or who changed the store as for `FleetOrdered`.
    """

    level: ClassVar[int] = logging.INFO

    added: int
    changed: int
    removed: int
    targets: tuple[str, ...]
    by: str


@event
class FleetReloadFailed(Event):
    """The file of targets was changed and is wrong; the targets from before are still polled."""

    level: ClassVar[int] = logging.ERROR

    path: str
    error: str


@event
class TargetEvent(Event):
    """An event of one target. `type` is its probe type, `group` its group, if it has one."""

    target: str
    type: str
    group: str = field(default="", kw_only=True)


@event
class TargetAdded(TargetEvent):
    """A target was added to a fleet."""


@event
class TargetRemoved(TargetEvent):
    """A target was removed from a fleet."""


@event
class TargetPolling(TargetEvent):
    """A poll of a target starts, `late` seconds after its due time."""

    late: float


@event
class TargetPolled(TargetEvent):
    """A poll of a target ended: `changed`, `unchanged`, `failed`, or `dropped` without a result.

    delay: seconds until its next poll. depth: number of planned polls. due: number of those that
    waited for a slot when last counted. max_interval: the longest interval of the target.
    """

    result: str
    took: float
    delay: float
    depth: int
    due: int = 0
    max_interval: float = 0.0


@event
class TargetChanged(TargetEvent):
    """A reading changed."""

    level: ClassVar[int] = logging.INFO

    summary: str


@event
class TargetFailed(TargetEvent):
    """A poll failed, the last of `failures` in a row; the next poll is after `delay`."""

    level: ClassVar[int] = logging.WARNING

    error: str
    failures: int
    delay: float


@event
class TargetRecovered(TargetEvent):
    """A poll succeeded after `failures` failures in a row."""

    level: ClassVar[int] = logging.INFO

    failures: int


@event
class TargetStateChanged(TargetEvent):
    """The state of a target changed: closed, confirming, backing off, open, half-open or dead.

    Its breaker is open if the state is open or dead, half-open while a target that was open is
    polled, else closed. before: the state before; empty if the state was read from the store.
    """

    state: str
    before: str = ""


@event
class TargetBreakerOpened(TargetEvent):
    """The breaker of a target opened: it is polled less often.

    error: of the last of `failures` in a row. delay: seconds until its next poll. A target that
    becomes dead without that is reported by `TargetDead` alone.
    """

    level: ClassVar[int] = logging.WARNING

    error: str
    failures: int
    delay: float


@event
class TargetDead(TargetEvent):
    """A target is dead; it is polled again after `delay`."""

    level: ClassVar[int] = logging.ERROR

    error: str
    permanent: bool
    delay: float


@event
class TargetStuck(TargetEvent):
    """A poll still runs after its cancellation at the deadline; its slot was replaced."""

    level: ClassVar[int] = logging.ERROR

    took: float


@event
class AlertOpened(TargetEvent):
    """An alert opened: the condition `when` held for long enough.

    alert: its id. severity: info, warning or critical. summary: why, for people.
    """

    level: ClassVar[int] = logging.WARNING

    alert: str
    when: str
    severity: str
    summary: str


@event
class AlertClosed(TargetEvent):
    """An alert closed: its condition does not hold any more, after `lasted` seconds."""

    level: ClassVar[int] = logging.INFO

    alert: str
    when: str
    severity: str
    lasted: float


@event
class NoticeSent(TargetEvent):
    """A channel sent a notice.

    notice: opened, repeated, closed or changed. alert: the id of the alert; "" for a change.
    delay: seconds since what the notice is about, or since the end of quiet hours.
    """

    level: ClassVar[int] = logging.INFO

    channel: str
    notice: str
    alert: str
    delay: float


@event
class NoticeFailed(TargetEvent):
    """A channel could not send a notice; it is tried again, unless the error is permanent."""

    level: ClassVar[int] = logging.WARNING

    channel: str
    notice: str
    alert: str
    attempt: int
    error: str
