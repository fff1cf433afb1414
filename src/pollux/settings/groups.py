"""Polling of groups of targets: `[fleet.groups.NAME.polling]`, so that a rollout can be staged.

What a group sets beats what `[fleet.polling]` sets for all, wherever either was written; for one
key, the layers decide as everywhere. The groups are named by whoever writes them, so their keys and
variables are known by their form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pollux.core.freshness import Freshness
from pollux.core.strategy import Strategy
from pollux.errors import ConfigError
from pollux.settings.values import Reader, Span, Truth

if TYPE_CHECKING:
    from pollux.settings.layers import Given, Layer

TABLE = "fleet.groups"
FLEET = "fleet.polling"
_START = f"{TABLE}."
#: What a group can have of its own, and the argument of `Freshness` that it is.
READERS: Mapping[str, Reader] = {
    "enabled": Truth(), "base_interval": Span(), "min_interval": Span(), "max_interval": Span(),
}  # fmt: skip
_NAMES = "|".join(READERS)
_KEY = re.compile(rf"fleet\.groups\.(?P<group>.+)\.polling\.(?P<name>{_NAMES})(?P<ms>_ms)?")
_TABLE = re.compile(r"fleet\.groups(?:\.(?P<group>.+?)(?P<polling>\.polling)?)?")
_VARIABLE = re.compile(
    rf"POLLUX_FLEET_GROUPS_(?P<group>.+)_POLLING_(?P<name>{_NAMES.upper()})(?P<ms>_MS)?"
)


@dataclass(frozen=True, slots=True)
class GroupPolling:
    """What a group sets for its targets; None where it goes with the fleet."""

    enabled: bool | None = None
    base_interval: float | None = None
    min_interval: float | None = None
    max_interval: float | None = None

    def strategy(self, fleets: Strategy) -> Strategy:
        """What paces the targets of this group."""
        if self.base_interval is self.min_interval is self.max_interval is None:
            return fleets
        over = fleets if isinstance(fleets, Freshness) else Freshness()
        floor = over.floor if self.min_interval is None else self.min_interval
        ceiling = over.ceiling if self.max_interval is None else self.max_interval
        if self.max_interval is None:
            ceiling = max(ceiling, floor)
        if self.min_interval is None:
            floor = min(floor, ceiling)
        base = self.base_interval
        return Freshness(min(max(over.base, floor), ceiling) if base is None else base,
                         floor, ceiling)  # fmt: skip

    def rows(self, group: str) -> Iterator[tuple[str, str]]:
        """What it sets, by key, as text."""
        for name, reader in READERS.items():
            value = getattr(self, name)
            if value is not None:
                yield key_of(group, name), reader.text(value)


def key_of(group: str, name: str) -> str:
    return f"{_START}{group}.polling.{name}"


def parsed_key(written: str) -> tuple[str, bool] | None:
    """The key that is written, and whether in milliseconds; None when it is no group's."""
    found = _KEY.fullmatch(written)
    if found is None or (found["ms"] and found["name"] == "enabled"):
        return None
    return key_of(found["group"], found["name"]), bool(found["ms"])


def is_table(written: str) -> bool:
    return _TABLE.fullmatch(written) is not None and not written.endswith(".polling.polling")


def advice(written: str) -> str | None:
    """What to write in a group's table instead; None when it is no group's."""
    if not written.startswith(_START):
        return None
    return f"is no setting; [{TABLE}.NAME.polling] has {', '.join(READERS)}"


def parsed_variable(name: str, groups: Sequence[str]) -> str | None:
    """The key that a variable stands for. Of groups known by then it means the one so spelt."""
    found = _VARIABLE.fullmatch(name)
    if found is None or (found["ms"] and found["name"] == "ENABLED"):
        return None
    known = {_as_variable(group): group for group in groups}
    group = known.get(found["group"], found["group"].lower())
    return key_of(group, found["name"].lower()) + (found["ms"] or "").lower()


def groups_in(layers: Sequence[Layer]) -> list[str]:
    """The names of the groups that some layer sets something for, in their order."""
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
) -> tuple[dict[str, GroupPolling], dict[str, Given]]:
    """Each group's polling, and what was used for it; what is wrong is added to `problems`."""
    used: dict[str, Given] = {}
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
            given_here = [str(used[key]) for key, _ in polling.rows(group)]
            problems.append(f"[{TABLE}.{group}.polling] {error} (given: {', '.join(given_here)})")
        groups[group] = polling
    return groups, used


def _as_variable(group: str) -> str:
    return re.sub(r"\W", "_", group).upper()
