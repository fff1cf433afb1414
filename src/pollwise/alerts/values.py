"""The values of alerts: what is open, since when, and what is sent about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

AlertState = Literal["open", "closed"]
#: What a notice is about: an alert that opened, is still open, or closed; or a changed reading,
#: which opens nothing.
NoticeEvent = Literal["opened", "repeated", "closed", "changed"]


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert, open or closed. Times are in seconds since 1970.

    id: the same if the alert is found again after a crash.
    rule: which rule of its target opened it.
    when: the condition, as written.
    since: when the condition began to hold; it opened at `opened_at`.
    summary: one line for people.
    acknowledged_by: who knows about it; no repetition is sent any more.
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


@dataclass(frozen=True, slots=True)
class Notice:
    """One message about an alert, for one channel. `payload` is JSON.

    id: the same if it is put again, so that it is sent once.
    not_before: sent at the earliest then, in seconds since 1970, such as after quiet hours.
    """

    id: str
    alert: str
    target: str
    channel: str
    event: NoticeEvent
    payload: Mapping[str, Any] = field(default_factory=dict)
    not_before: float | None = None
