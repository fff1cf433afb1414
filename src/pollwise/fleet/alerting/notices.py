"""What is sent about an alert or a change: its payload, one notice for each channel."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from pollwise.alerts.channels.base import Channel
from pollwise.alerts.rules import AlertRule
from pollwise.alerts.settings import Alerts
from pollwise.alerts.texts import line_of
from pollwise.alerts.values import Alert, Notice, NoticeEvent, ended_before
from pollwise.fleet.targets import Reading, Target

#: The longest summary of an alert, in characters.
SUMMARY_MAX = 500
#: How often quiet hours may follow one another. If they leave no time free, a notice does not wait.
_QUIET_MAX = 20


def alert_id(target: str, rule: str, opened_at: float) -> str:
    """The id of an alert: sorted by when it opened, to the millisecond."""
    digest = hashlib.blake2b(f"{target}\n{rule}".encode("utf-8", "surrogatepass"), digest_size=4)
    return f"{max(int(opened_at * 1000), 0):012x}{digest.hexdigest()}"


def notices_of(
    alert: Alert,
    event: NoticeEvent,
    number: int,
    at: float,
    target: Target,
    reading: Reading | None,
    channels: Iterable[str],
    settings: Alerts,
    fleet: str,
    summary: str,
) -> list[Notice]:
    """The notices of an alert, for channels that exist.

    number: how often it was sent, this time included. at: the time, in seconds since 1970.

    In the quiet hours of a channel or of the rule, an opening waits for their end, and a repetition
    is left out. The end of an alert is left out if its opening was not sent.
    """
    payload = {
        **_about(target, fleet, event, alert.when, alert.severity, at),
        "alert": alert.id,
        "since": alert.since,
        "lasted": max(at - alert.since, 0.0),
        "summary": summary,
        "facts": {} if reading is None else dict(reading.facts),
        "after": None if reading is None else plain(reading),
    }
    rule = next((each for each in target.alerts if each.key == alert.rule), None)
    made = []
    for name in channels:
        channel = settings.channels.get(name)
        if channel is None:  # it was removed from the settings
            continue
        not_before = _not_before(channel, rule, alert.severity, at)
        opening = _not_before(channel, rule, alert.severity, alert.opened_at)
        if (event == "repeated" and not_before is not None) or (
            event == "closed" and ended_before(at, opening)
        ):
            continue
        id = f"{alert.id}:{event}:{number}:{name}"
        sent = complete(payload, id, settings)
        made.append(Notice(id, alert.id, target.name, name, event, sent, not_before))
    return made


def change_notices(
    target: Target,
    rule: AlertRule | None,
    before: Reading,
    after: Reading,
    at: float,
    channels: Iterable[str],
    settings: Alerts,
    fleet: str,
) -> list[Notice]:
    """The notices of a changed reading."""
    severity = "info" if rule is None else rule.severity
    payload = {
        **_about(target, fleet, "changed", "changed", severity, at),
        "alert": "",
        "summary": after.summary[:SUMMARY_MAX],
        "facts": dict(after.facts),
        "before": plain(before),
        "after": plain(after),
    }
    if after.diff:
        payload["diff"] = after.diff
    seen = repr((target.name, at, before.value, after.value))
    change = hashlib.sha256(seen.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    made = []
    for name in channels:
        channel = settings.channels.get(name)
        if channel is not None:
            id = f"{change}:{name}"
            sent = complete(payload, id, settings)
            not_before = _not_before(channel, rule, severity, at)
            made.append(Notice(id, "", target.name, name, "changed", sent, not_before))
    return made


def _not_before(channel: Channel, rule: AlertRule | None, severity: str, at: float) -> float | None:
    """When a notice may be sent: outside the quiet hours of its channel and of its rule."""
    quiet = None if rule is None else rule.quiet
    free = at
    for _ in range(_QUIET_MAX):  # the end of one may be within the other
        ends = (channel.not_before(severity, free), None if quiet is None else quiet.ends(free))
        later = max((end for end in ends if end is not None), default=free)
        if later == free:
            return None if free == at else free
        free = later
    return None


def complete(payload: Mapping[str, Any], id: str, settings: Alerts) -> dict[str, Any]:
    """A payload with what is made from it: its id, the link and the text."""
    made = {"id": id, **payload}
    if settings.link is not None:
        made["link"] = settings.link(made)
    made["text"] = line_of(made)
    return made


def plain(reading: Reading) -> dict[str, Any]:
    """A reading as plain values."""
    kept = reading.kept()
    return {key: kept.get(key) for key in ("value", "changed_at", "facts", "summary")}


def _about(
    target: Target, fleet: str, event: NoticeEvent, when: str, severity: str, at: float
) -> dict[str, Any]:
    return {
        "event": event,
        "fleet": fleet,
        "target": target.name,
        "type": target.type,
        "group": target.group,
        "labels": dict(target.labels),
        "when": when,
        "severity": severity,
        "at": at,
    }
