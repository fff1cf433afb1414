"""Targets that are defined through the API and the command line: what they may do.

A person who may change targets need not be trusted with the machine that polls them. So such a
target cannot run code there, and cannot use the environment of the polling process, unless the
settings allow it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pollwise.core.strategies.freshness import Freshness
from pollwise.durations import short, shown
from pollwise.errors import ConfigError
from pollwise.fleet.definitions.table import TargetTables, WrongDefinition
from pollwise.fleet.probes import is_probe_type
from pollwise.fleet.targets import Target
from pollwise.runtime.redact import HIDDEN

#: The probe types that only talk to the network. All others may run code on the polling machine, or
#: open files and databases there.
NETWORK_TYPES = frozenset(
    (
        "certificate", "dns", "feed", "grpc", "html", "http", "imap", "ping", "prometheus", "smtp",
        "steps", "tcp", "websocket",
    )
)  # fmt: skip
#: The shortest interval of targets of the API, in seconds, unless the settings lower it.
MIN_INTERVAL = 1.0
#: How deep the tables and lists of a definition may be nested.
DEPTH_MAX = 6
_NO_FILES = (
    "ca opens a file of the polling machine; put it into a group of the file, or set "
    "fleet.api_may_run on the polling nodes"
)


@dataclass(frozen=True, slots=True)
class StoredRules:
    """What targets that are defined in the store may do.

    may_run: they may run code: have a type that is not in NETWORK_TYPES.
    variables: the environment variables that they may use, themselves or by their group; None for
        all.
    min_interval: the shortest interval that they may have, in seconds.
    """

    may_run: bool = False
    variables: frozenset[str] | None = frozenset()
    min_interval: float = MIN_INTERVAL

    def allows(self, variable: str) -> bool:
        return self.variables is None or variable in self.variables

    @classmethod
    def of(
        cls, may_run: bool, variables: str | None, min_interval: float = MIN_INTERVAL
    ) -> StoredRules:
        """The rules of the settings. variables: names, separated by commas or spaces."""
        names = frozenset(re.split(r"[,\s]+", (variables or "").strip())) - {""}
        return cls(may_run, names, min_interval)


#: For views: the nodes check what is allowed.
ANYTHING = StoredRules(may_run=True, variables=None, min_interval=0.0)


class StoredTables(TargetTables):
    """Reads the tables of targets that are defined in the store."""

    origin: ClassVar[str] = "api"

    def __init__(
        self,
        rules: StoredRules,
        groups: Mapping[str, Mapping[str, Any]],
        environment: Mapping[str, str] | None = None,
        *,
        for_views: bool = False,
    ) -> None:
        every = os.environ if environment is None else environment
        allowed = {name: each for name, each in every.items() if rules.allows(name)}
        super().__init__(allowed, for_views=for_views)
        self._rules = rules
        self._file_groups = groups

    def read(self, table: Mapping[str, Any]) -> Target:
        """The target of a table; WrongDefinition lists everything that is wrong with it."""
        self.problems.clear()
        if not self._rules.may_run and _names_file(table):  # before anything looks at that path
            raise WrongDefinition([_NO_FILES])
        self.groups: dict[str, dict[str, Any]] = {
            name: {} for name in self._file_groups
        }  # they exist
        group = table.get("group")
        if isinstance(group, str) and group in self._file_groups:
            # The target's own keys replace those of its group, and with them their variables.
            inherited = {
                key: each
                for key, each in self._file_groups[group].items()
                if key not in table or isinstance(each, dict)
            }
            self.add_group(group, inherited)
        target = self.target(table)
        if target is None or self.problems:
            raise WrongDefinition(list(dict.fromkeys(what for _, what in self.problems)))
        self._check_pace(target)
        return target

    def _check_pace(self, target: Target) -> None:
        """Refuse a target that would be polled too often."""
        least = self._rules.min_interval
        given = target.strategy(Freshness()).min_interval
        if given < least:
            what = (
                f"target {target.name!r}: it could be polled every {short(given)}, and targets "
                f"that are not in the file at most every {short(least)}; give a longer interval or "
                "min_interval, put the target into the file, or lower fleet.api_min_interval on "
                "the polling nodes"
            )
            raise WrongDefinition([what])

    def may_be_unset(self, name: str) -> bool:
        return self._rules.allows(name)

    def unset_variable(self, name: str) -> str:
        if self._rules.allows(name):
            return super().unset_variable(name)
        return (
            f"targets that are not in the file may not use the environment variable {name}; name "
            "it in the setting fleet.api_variables of the polling nodes, or write $${ for ${"
        )

    def refused(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if self._rules.may_run:
            return
        advice = "put the target into the file, or set fleet.api_may_run on the polling nodes"
        kind = given.get("type")
        if isinstance(kind, str) and kind not in NETWORK_TYPES and is_probe_type(kind):
            yield "type", f"type = {shown(kind)} can run code on the polling machine; {advice}"


def checked_table(given: Mapping[str, Any]) -> dict[str, Any]:
    """A definition as it is kept: without keys that have no value. ConfigError if it is nested too
    deep, or has a placeholder where a hidden value was shown."""
    table = {key: each for key, each in given.items() if each is not None}
    if not is_encodable(table):
        raise ConfigError("a text has half of a surrogate pair, which cannot be kept; correct it")
    for key, each in table.items():
        if _depth(each, DEPTH_MAX) > DEPTH_MAX:
            raise ConfigError(f"{shown(key)} is nested deeper than {DEPTH_MAX} levels")
        if _has_placeholder(each):
            raise ConfigError(
                f"{shown(key)} has {HIDDEN} where a secret was hidden; give the value itself, or "
                "better ${NAME} for an environment variable of the polling nodes"
            )
    return table


def _names_file(table: Mapping[str, Any]) -> bool:
    steps = table.get("steps")
    inside = steps if isinstance(steps, list) else ()
    return any("ca" in each for each in (table, *inside) if isinstance(each, Mapping))


def is_encodable(value: Any) -> bool:
    """False if a text in plain values has half of a surrogate pair: JSON allows that, UTF-8 not."""
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return False
    return True


def _depth(value: Any, most: int) -> int:
    if most < 0 or not isinstance(value, (dict, list)):
        return 0 if most >= 0 else 1
    inside = value.values() if isinstance(value, dict) else value
    return 1 + max((_depth(each, most - 1) for each in inside), default=0)


def _has_placeholder(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_placeholder, value.values()))
    if isinstance(value, list):
        return any(map(_has_placeholder, value))
    return isinstance(value, str) and HIDDEN in value
