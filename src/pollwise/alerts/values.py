"""The values of alerts: what is open, since when, and what is sent about it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pollwise.durations import shown
from pollwise.errors import ConfigError

AlertState = Literal["open", "closed"]
ALERT_STATES: tuple[AlertState, ...] = ("open", "closed")
#: How long closed alerts are kept, in seconds, and how many of one target.
ALERTS_KEPT = 90 * 86400.0
ALERTS_PER_TARGET = 200
#: The longest note of an acknowledgement, in characters.
NOTE_MAX = 500
#: The largest page of alerts.
PAGE_MAX = 1000
#: What a notice is about: an alert that opened, is still open, or closed; or a changed reading,
#: which opens nothing.
NoticeEvent = Literal["opened", "repeated", "closed", "changed"]


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert, open or closed. Times are in seconds since 1970.

    id: unique in its fleet, and sorted by when the alerts opened.
    rule: which rule of its target opened it.
    when: the condition, as written.
    since: when the condition began to hold; it opened at `opened_at`.
    summary: one line for people.
    acknowledged_by: who acknowledged it; it is not repeated any more.
    sent: number of notices that were put for each channel together.
    """

    id: str
    target: str
    group: str | None
    rule: str
    when: str
    severity: str
    state: AlertState
    since: float
    opened_at: float
    closed_at: float | None = None
    summary: str = ""
    acknowledged_at: float | None = None
    acknowledged_by: str | None = None
    note: str = ""
    sent: int = 0
    last_sent_at: float | None = None

    @property
    def lasted(self) -> float | None:
        """How long its condition held; None while it is open."""
        return None if self.closed_at is None else max(self.closed_at - self.since, 0.0)


#: Looks up alerts by their ids; those that do not exist are left out.
FindAlerts = Callable[[Sequence[str]], Awaitable[list[Alert]]]


@dataclass(frozen=True, slots=True)
class AlertFilter:
    """Which alerts to list: all that match what is given, newest first.

    state: "open" or "closed". target, group: names.
    after: `AlertPage.next` of the page before.
    """

    state: AlertState | None = None
    target: str | None = None
    group: str | None = None
    limit: int = 100
    after: str | None = None

    def __post_init__(self) -> None:
        if self.state not in (None, *ALERT_STATES):
            raise ConfigError(f"state = {self.state!r} must be 'open' or 'closed'")
        if isinstance(self.limit, bool) or not isinstance(self.limit, int):
            raise ConfigError(f"limit = {self.limit!r} must be a whole number")
        if not 1 <= self.limit <= PAGE_MAX:
            raise ConfigError(f"limit = {self.limit} must be from 1 to {PAGE_MAX}")

    def matches(self, alert: Alert) -> bool:
        return (
            self.state in (None, alert.state)
            and self.target in (None, alert.target)
            and self.group in (None, alert.group)
            and (self.after is None or alert.id < self.after)
        )


@dataclass(frozen=True, slots=True)
class AlertPage:
    """Some of the alerts that match a filter, newest first.

    next: pass it as `AlertFilter.after` to go on; None at the end.
    """

    alerts: list[Alert]
    next: str | None

    @classmethod
    def of(cls, found: list[Alert], limit: int) -> AlertPage:
        """The page of alerts that were read with a limit of one more."""
        more = len(found) > limit
        page = found[:limit]
        return cls(page, page[-1].id if more else None)


@dataclass(frozen=True, slots=True)
class Notice:
    """One message about an alert, for one channel. `payload` is JSON.

    id: the same if it is put again, so that it is sent once.
    not_before: the earliest time to send it, in seconds since 1970, such as after quiet hours.
    """

    id: str
    alert: str
    target: str
    channel: str
    event: NoticeEvent
    payload: Mapping[str, Any] = field(default_factory=dict)
    not_before: float | None = None


def alert_json(alert: Alert) -> dict[str, Any]:
    """An alert as plain values, with how long it lasted."""
    return {**asdict(alert), "lasted": alert.lasted}


def checked_note(note: object) -> str:
    """The note of an acknowledgement; ConfigError if it is not valid."""
    if not isinstance(note, str) or len(note) > NOTE_MAX:
        raise ConfigError(f"note = {shown(note)} must be text of at most {NOTE_MAX} characters")
    return note.strip()


def ended_before(closed_at: float | None, not_before: float | None) -> bool:
    """True if an alert closed before the notice of its opening could be sent."""
    return closed_at is not None and not_before is not None and closed_at <= not_before
