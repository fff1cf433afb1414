"""Alerts as plain values, for the API and commands."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pollwise.alerts.values import Alert
from pollwise.durations import shown
from pollwise.errors import ConfigError

#: The longest note of an acknowledgement, in characters.
NOTE_MAX = 500


def alert_json(alert: Alert) -> dict[str, Any]:
    """An alert as plain values, with how long it lasted."""
    return {**asdict(alert), "lasted": alert.lasted}


def checked_note(note: object) -> str:
    """The note of an acknowledgement; ConfigError if it is none."""
    if not isinstance(note, str) or len(note) > NOTE_MAX:
        raise ConfigError(f"note = {shown(note)} must be text of at most {NOTE_MAX} characters")
    return note.strip()
