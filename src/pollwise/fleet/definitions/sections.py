"""Reads what fleet.toml says about alerts: channels, rules, routes and maintenance windows.

[channel.ops]
type = "apprise"
url = "${OPS_URL}"

[alerts]
to = ["ops"]

[group.shop]
alerts = ["down", { when = "latency > 2s", for = "5m", to = ["shop"] }]
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pollwise.alerts.channels.base import Channel
from pollwise.alerts.channels.table import read_channel
from pollwise.alerts.quiet import Quiet
from pollwise.alerts.rules import RULES_MAX, AlertRule
from pollwise.alerts.settings import Alerts
from pollwise.alerts.texts import Template
from pollwise.alerts.windows import MaintenanceWindow, read_window
from pollwise.durations import shown
from pollwise.errors import ConfigError, did_you_mean
from pollwise.fleet.probes import facts_of

#: The maximum number of channels: the progress of a notice has a place for each.
CHANNELS_MAX = 50
#: The keys of [alerts], and those of a rule. The first are also defaults of all channels.
_DEFAULTS = ("quiet", "quiet_except")
_ALERTS_KEYS = ("link", "to", *_DEFAULTS)
_RULE_KEYS = ("confirmations", "for", "quiet", "repeat", "severity", "to", "when")

#: Called with the number of a table in its section, if there is one, and what is wrong with it.
Wrong = Callable[[int | None, str], None]


def maintenance_of(
    document: Mapping[str, Any],
    targets: Collection[str],
    groups: Collection[str],
    now: float,
    wrong: Wrong,
) -> tuple[MaintenanceWindow, ...]:
    """The windows of `[[maintenance]]`, with ids by their place in the file."""
    tables = document.get("maintenance", [])
    if not isinstance(tables, list):
        wrong(None, "maintenance is not a list of tables; write [[maintenance]]")
        return ()
    found = []
    for number, table in enumerate(tables):

        def refuse(what: str, number: int = number) -> None:
            wrong(number, f"maintenance: {what}")

        window = read_window(table, now, refuse, targets=targets, groups=groups, from_file=True)
        if window is not None:
            # The same at each reading, so that a reload of the same file changes nothing.
            found.append(replace(window, id=f"file-{number + 1}", made_at=0.0))
    return tuple(found)


def alerts_of(
    channels: Mapping[str, Mapping[str, Any]],
    given: Mapping[str, Any],
    wrong: Callable[[str | None, str], None],
    *,
    for_views: bool,
) -> Alerts:
    """The channels of `[channel.NAME]`, with the routes of `[alerts]`.

    wrong: called with the name of a channel, or None for [alerts], and what is wrong with it.
    for_views: nothing is sent, so no channel is made: what it needs may be missing.
    """

    def checked(read: Callable[[], Any]) -> Any:
        try:
            return read()
        except ConfigError as error:
            wrong(None, str(error))
            return None

    for key in given:
        if key not in _ALERTS_KEYS:
            wrong(None, f"{key} is not known; {did_you_mean(key, _ALERTS_KEYS)}")
    to = checked(lambda: names_of(given.get("to", []), "to", channels))
    link = checked(lambda: Template(given["link"], "link")) if "link" in given else None
    if "quiet" in given and checked(lambda: Quiet.parsed(given["quiet"])) is None:
        given = {key: each for key, each in given.items() if key != "quiet"}
    if len(channels) > CHANNELS_MAX:
        wrong(None, f"{len(channels)} channels are more than the {CHANNELS_MAX} allowed")
        return Alerts()
    if for_views:
        return Alerts()
    defaults = {key: given[key] for key in _DEFAULTS if key in given}
    found: list[Channel] = []
    for name, table in channels.items():

        def refuse(what: str, name: str = name) -> None:
            wrong(name, what)

        channel = read_channel(name, {**defaults, **table}, refuse)
        if channel is not None:
            found.append(channel)
    made = {each.name for each in found}
    routes = [each for each in to or () if each in made]
    return Alerts(found, to=routes, link=link)


def rules_of(
    given: object,
    to: Sequence[str],
    type: str | None,
    channels: Collection[str] | None,
    wrong: Callable[[str], None],
) -> tuple[AlertRule, ...]:
    """The rules in the `alerts` of a target: texts such as "down", and tables.

    to: the channels of rules that name none. type: of the probe, whose facts rules may use; None if
    it is not known. channels: the names of all channels; None does not check them.
    """
    listed = [given] if isinstance(given, (str, Mapping)) else given
    if not isinstance(listed, list):
        wrong(f"alerts = {shown(given)} must be a list of conditions and tables")
        return ()
    if len(listed) > RULES_MAX:
        wrong(f"alerts: {len(listed)} rules are more than the {RULES_MAX} allowed")
        return ()
    found: dict[str, AlertRule] = {}
    for each in listed:
        rule = _rule(each, to, channels, wrong)
        if rule is None:
            continue
        try:
            if rule.condition.kind == "field" and type is not None:
                rule.condition.check(facts_of(type), "alerts: when")
        except ConfigError as error:
            wrong(str(error))
        if rule.key in found:
            wrong(f"alerts: two rules on {rule.key!r}; name all channels in the to of one of them")
        found[rule.key] = rule
    return tuple(found.values())


def _rule(
    given: object,
    to: Sequence[str],
    channels: Collection[str] | None,
    wrong: Callable[[str], None],
) -> AlertRule | None:
    table = {"when": given} if isinstance(given, str) else given
    if not isinstance(table, Mapping):
        wrong(f"alerts: {shown(given)} must be a condition, or a table with when")
        return None
    sound = True
    for key in table:
        if key not in _RULE_KEYS:
            wrong(f"alerts: {key} is not a key of a rule; {did_you_mean(key, _RULE_KEYS)}")
            sound = False
    if "when" not in table:
        wrong("alerts: when is missing: the condition, such as 'down'")
        return None
    arguments = {"lasting" if key == "for" else key: each for key, each in table.items()}
    try:
        arguments["to"] = names_of(table.get("to", list(to)), "alerts: to", channels)
        return AlertRule(**arguments) if sound else None
    except ConfigError as error:
        wrong(str(error) if str(error).startswith("alert") else f"alerts: {error}")
        return None


def names_of(given: object, key: str, channels: Collection[str] | None) -> list[str]:
    """The names of channels under a key; ConfigError if one does not exist."""
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, (list, tuple)) or not all(isinstance(each, str) for each in names):
        raise ConfigError(f"{key} = {shown(given)} must be a list of names of channels")
    for each in names:
        if channels is not None and each not in channels:
            near = did_you_mean(each, channels, f"write [channel.{each}]")
            raise ConfigError(f"{key}: there is no channel {each!r}; {near}")
    return list(names)
