"""Rules: a condition, how long it must hold, and who hears of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

from pollwise.alerts.conditions import Condition
from pollwise.alerts.quiet import Quiet
from pollwise.durations import Duration, seconds, short, shown
from pollwise.errors import ConfigError, did_you_mean
from pollwise.runtime.jobs import checked_name

#: How urgent an alert is, for channels and people.
SEVERITIES = ("info", "warning", "critical")
SEVERITY = "warning"
#: Limits: confirmations, the shortest time between two repetitions, and rules of one target.
CONFIRMATIONS_MAX = 1000
REPEAT_MIN = 10.0
RULES_MAX = 50


@dataclass(frozen=True, slots=True, init=False)
class AlertRule:
    """When an alert of a target opens, and who hears of it.

        AlertRule("down", lasting="5m", repeat="1h", to=["ops"])

    when: the condition: "down", "breaker open", "changed", "stale 10m", or a comparison such as
        "latency > 2s".
    lasting: how long the condition must hold. In files the key is `for`.
    confirmations: number of polls in a row after which it must hold.
    repeat: send again every so often while the alert is open and not acknowledged; None: never.
    to: names of channels; empty for those of the target's group or of the fleet.
    severity: info, warning or critical.
    quiet: hours in which its notices wait, besides those of the channels.
    """

    when: str
    lasting: float
    confirmations: int
    repeat: float | None
    to: tuple[str, ...]
    severity: str
    quiet: Quiet | None
    condition: Condition
    #: Identifies the rule among those of its target; saved with its open alert.
    key: str

    def __init__(
        self,
        when: str,
        *,
        lasting: Duration = 0,
        confirmations: int = 1,
        repeat: Duration | None = None,
        to: Sequence[str] | str = (),
        severity: str = SEVERITY,
        quiet: str | Quiet | None = None,
    ) -> None:
        condition = Condition.parsed(when)
        wait = seconds(lasting, f"alert {shown(when)}: for")
        if isinstance(confirmations, bool) or not isinstance(confirmations, int):
            raise ConfigError(
                f"alert {shown(when)}: confirmations = {shown(confirmations)} must be a whole "
                "number"
            )
        if not 1 <= confirmations <= CONFIRMATIONS_MAX:
            raise ConfigError(
                f"alert {shown(when)}: confirmations = {confirmations} must be from 1 to "
                f"{CONFIRMATIONS_MAX}"
            )
        again = None
        if repeat is not None:
            again = seconds(repeat, f"alert {shown(when)}: repeat", positive=True)
            if again < REPEAT_MIN:
                raise ConfigError(
                    f"alert {shown(when)}: repeat = {shown(repeat)} must be at least "
                    f"{short(REPEAT_MIN)}"
                )
        if not isinstance(quiet, (str, Quiet, NoneType)):
            raise ConfigError(f"alert {shown(when)}: quiet = {shown(quiet)} must be text")
        if severity not in SEVERITIES:
            raise ConfigError(
                f"alert {shown(when)}: severity = {shown(severity)} is unknown; "
                f"{did_you_mean(str(severity), SEVERITIES)}"
            )
        if condition.kind == "changed" and (wait or again or confirmations > 1):
            raise ConfigError(
                f"alert {shown(when)}: a change is sent once, at once; leave out for, repeat and "
                "confirmations"
            )
        if condition.kind == "stale" and confirmations > 1:
            raise ConfigError(
                f"alert {shown(when)}: no poll confirms that a target is stale; leave out "
                "confirmations"
            )
        put = object.__setattr__
        put(self, "when", str(condition))
        put(self, "lasting", wait)
        put(self, "confirmations", confirmations)
        put(self, "repeat", again)
        put(self, "to", _channels(when, to))
        put(self, "severity", severity)
        put(self, "quiet", Quiet.parsed(quiet) if isinstance(quiet, str) else quiet)
        put(self, "condition", condition)
        put(self, "key", f"{condition} for {short(wait)}" if wait else str(condition))


def checked_rules(rules: object, name: str) -> tuple[AlertRule, ...]:
    """The rules of one target: each an AlertRule or the text of its condition.

    name: of whom, for errors.
    """
    if isinstance(rules, (str, AlertRule)):
        rules = [rules]
    if not isinstance(rules, Iterable):
        raise ConfigError(f"{name}: alerts = {shown(rules)} must be a list of rules")
    found: dict[str, AlertRule] = {}
    for each in rules:
        try:
            rule = AlertRule(each) if isinstance(each, str) else each
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
        if not isinstance(rule, AlertRule):
            raise ConfigError(f"{name}: {shown(each)} is not an AlertRule")
        if rule.key in found:
            raise ConfigError(
                f"{name}: two alerts on {rule.key!r}; name all channels in the `to` of one of them"
            )
        found[rule.key] = rule
    if len(found) > RULES_MAX:
        raise ConfigError(f"{name}: {len(found)} alerts are more than the {RULES_MAX} allowed")
    return tuple(found.values())


def _channels(when: Any, to: Sequence[str] | str) -> tuple[str, ...]:
    names = [to] if isinstance(to, str) else to
    if not isinstance(names, Sequence):
        raise ConfigError(f"alert {shown(when)}: to = {shown(to)} must be a list of channels")
    return tuple(
        dict.fromkeys(checked_name(each, f"alert {shown(when)}: to", ConfigError) for each in names)
    )
