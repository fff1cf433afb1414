"""Polling of groups of targets: `[fleet.groups.NAME.polling]`, so that a rollout can be staged.

The settings of a group override those of `[fleet.polling]`, wherever either is written; for one
key, the layers decide as everywhere. Users choose the names of groups, so their keys and variables
are recognised by their form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pollwise.core.strategies.base import Strategy
from pollwise.core.strategies.freshness import Freshness
from pollwise.errors import ConfigError, did_you_mean
from pollwise.settings.values import BooleanReader, DurationReader, ValueReader

if TYPE_CHECKING:
    from pollwise.settings.layers import GivenValue, Layer

TABLE = "fleet.groups"
FLEET = "fleet.polling"
_START = f"{TABLE}."
#: The settings that a group can have.
READERS: Mapping[str, ValueReader] = {
    "enabled": BooleanReader(),
    "base_interval": DurationReader(),
    "min_interval": DurationReader(),
    "max_interval": DurationReader(),
}
#: Maximum number of groups listed in an error.
LISTED = 10
_NAMES = "|".join(READERS)
_KEY = re.compile(rf"fleet\.groups\.(?P<group>.+)\.polling\.(?P<name>{_NAMES})(?P<ms>_ms)?")
_TABLE = re.compile(r"fleet\.groups(?:\.(?P<group>.+?)(?P<polling>\.polling)?)?")
_VARIABLE = re.compile(
    rf"POLLWISE_FLEET_GROUPS_(?P<group>.+)_POLLING_(?P<name>{_NAMES.upper()})(?P<ms>_MS)?"
)


@dataclass(frozen=True, slots=True)
class GroupPolling:
    """What a group sets for its targets; None where it uses the fleet's setting."""

    enabled: bool | None = None
    base_interval: float | None = None
    min_interval: float | None = None
    max_interval: float | None = None

    def strategy(self, fleets: Strategy) -> Strategy:
        """The strategy of the targets of this group."""
        if self.base_interval is self.min_interval is self.max_interval is None:
            return fleets
        over = fleets if isinstance(fleets, Freshness) else Freshness()
        return over.adjusted(self.base_interval, self.min_interval, self.max_interval)

    def rows(self, group: str) -> Iterator[tuple[str, str]]:
        """Its settings, as pairs of key and text."""
        for name, reader in READERS.items():
            value = getattr(self, name)
            if value is not None:
                yield key_of(group, name), reader.text(value)


def key_of(group: str, name: str) -> str:
    return f"{_START}{group}.polling.{name}"


def parsed_key(written: str) -> tuple[str, bool] | None:
    """The key, and whether it is in milliseconds; None if it does not belong to a group."""
    found = _KEY.fullmatch(written)
    if found is None or (found["ms"] and found["name"] == "enabled"):
        return None
    return key_of(found["group"], found["name"]), bool(found["ms"])


def is_table(written: str) -> bool:
    return _TABLE.fullmatch(written) is not None and not written.endswith(".polling.polling")


def advice(written: str) -> str | None:
    """A correction of a wrong key in a group's table; None if it does not belong to a group."""
    if not written.startswith(_START):
        return None
    return f"is not a setting; [{TABLE}.NAME.polling] has {', '.join(READERS)}"


def parsed_variable(name: str, groups: Sequence[str]) -> str | None:
    """The key of an environment variable; a known group with this spelling is preferred."""
    found = _VARIABLE.fullmatch(name)
    if found is None or (found["ms"] and found["name"] == "ENABLED"):
        return None
    known = {re.sub(r"\W", "_", group).upper(): group for group in groups}
    group = known.get(found["group"], found["group"].lower())
    return key_of(group, found["name"].lower()) + (found["ms"] or "").lower()


def groups_in(layers: Sequence[Layer]) -> list[str]:
    """The names of the groups with settings in any layer, in their order."""
    found: dict[str, None] = {}
    for layer in layers:
        for key in layer:
            match = _KEY.fullmatch(key)
            if match:
                found[match["group"]] = None
    return list(found)


def is_of_group(key: str) -> bool:
    return key.startswith(_START)


def resolve_groups(
    layers: Sequence[Layer], fleets: Strategy | None, problems: list[str]
) -> tuple[dict[str, GroupPolling], dict[str, GivenValue]]:
    """The polling of each group, and the values used for it; errors are added to `problems`."""
    used: dict[str, GivenValue] = {}
    for layer in layers:
        used.update({key: given for key, given in layer.items() if is_of_group(key)})
    values: dict[str, dict[str, Any]] = {}
    for key, given in used.items():
        match = _KEY.fullmatch(key)
        if match is None:
            continue
        try:
            value = READERS[match["name"]].read(given.value)
        except ValueError as error:
            problems.append(f"{given} {error}")
            continue
        values.setdefault(match["group"], {})[match["name"]] = value
    groups = {}
    for group in groups_in(layers):
        polling = GroupPolling(**values.get(group, {}))
        try:
            if fleets is not None:
                polling.strategy(fleets)
        except ConfigError as error:
            problems.append(_in_settings_words(str(error), group, used))
        groups[group] = polling
    return groups, used


def unknown_groups(
    groups: Iterable[str], known: Iterable[str], origins: Mapping[str, str]
) -> list[str]:
    """An error for each of `groups` that is not known: its settings would have no effect.

    origins: where each setting comes from, by its key.
    """
    listed = sorted(set(known))
    found = []
    for group in groups:
        if group in listed:
            continue
        start = f"{_START}{group}.polling."
        where = dict.fromkeys(origin for key, origin in origins.items() if key.startswith(start))
        origin = f" ({', '.join(where)})" if where else ""
        found.append(f"[{TABLE}.{group}.polling]{origin}: {no_group(group, listed)}")
    return found


def no_group(group: str, known: Sequence[str]) -> str:
    """An error for an unknown group, with the nearest known one."""
    if known:
        there = f"there are {', '.join(map(repr, known[:LISTED]))}" + ", …" * (len(known) > LISTED)
    else:
        there = "no target is in any group; write group = '…' in its table of fleet.toml"
    return f"no target is in a group {group!r}; {did_you_mean(group, known, there)}"


def _in_settings_words(error: str, group: str, used: Mapping[str, GivenValue]) -> str:
    """Replace each argument named in an error by its full key and origin."""

    def word(found: re.Match[str]) -> str:
        name = found[1]
        given = used.get(key_of(group, name))
        if given is not None:
            return str(given)
        return f"{name} = {READERS[name].text(float(found[2]))} (as for all targets)"

    return re.sub(rf"\b({_NAMES}) = ([\d.e+-]+)", word, error)
