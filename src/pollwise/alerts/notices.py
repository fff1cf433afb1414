"""Notices as records of an outbox: one kind per channel, and one key per alert and channel."""

from __future__ import annotations

import hashlib
from typing import Any

from pollwise.alerts.values import Notice
from pollwise.outbox.records import NewRecord
from pollwise.runtime.jobs import NAME_LENGTH_MAX

#: How long sent notices are kept. A notice that is put again within this time is not sent again.
NOTICES_KEPT = "1d"
_KIND = "notice."


def outbox_of_alerts(fleet: str) -> str:
    """The name of the outbox with the notices of a fleet."""
    name = f"fleet-{fleet}-alerts"
    return name if len(name) <= NAME_LENGTH_MAX else f"fleet-{_digest(fleet)}-alerts"


def kind_of(channel: str) -> str:
    """The kind of the records for a channel, which is the pattern of its handler."""
    kind = f"{_KIND}{channel}"
    return kind if len(kind) <= NAME_LENGTH_MAX else f"{_KIND}{_digest(channel)}"


def record_of(notice: Notice) -> NewRecord:
    """The record of a notice. Those of one alert, or of one target's changes, are sent in order."""
    about = notice.alert or f"target {notice.target}"
    payload: dict[str, Any] = {
        "id": notice.id,
        "alert": notice.alert,
        "target": notice.target,
        "channel": notice.channel,
        "event": notice.event,
        "not_before": notice.not_before,
        "payload": dict(notice.payload),
    }
    return NewRecord(
        kind_of(notice.channel),
        payload,
        key=_short(f"{about} {notice.channel}"),
        at=notice.not_before,
        unique=_short(notice.id),
    )


def notice_of(payload: Any) -> Notice:
    """The notice in the payload of a record."""
    return Notice(**payload)


def _short(text: str) -> str:
    return text if len(text) <= NAME_LENGTH_MAX and text.isprintable() else _digest(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
