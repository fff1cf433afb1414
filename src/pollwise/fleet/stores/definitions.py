"""Definitions of targets that a fleet's store keeps: the contract, and what both stores share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pollwise.errors import ConfigError

#: The longest definition, as JSON, in bytes; and the most definitions of a fleet.
DEFINITION_MAX = 64 * 1024
DEFINITIONS_MAX = 100_000
#: How long a removed definition is remembered, in seconds. A node that could not reach the store
#: for longer would go on polling it until it is restarted.
REMOVED_KEPT = 90 * 86400.0


@dataclass(frozen=True, slots=True)
class StoredDefinition:
    """The table of a target in the store, with its `${NAME}` as written.

    table: None if it was removed.
    version: the change of the fleet's definitions that made it. by, at: who made it, and when.
    """

    name: str
    table: Mapping[str, Any] | None
    version: int
    by: str
    at: float


class DefinitionConflict(ConfigError):
    """Definitions that somebody else changed in the meantime, or that exist already."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names: tuple[str, ...] = tuple(names)
        listed = ", ".join(map(repr, names[:5])) + (", …" if len(names) > 5 else "")
        super().__init__(
            f"target {listed} was defined or changed by somebody else; read it again, and repeat "
            "the change if it is still right"
        )


class TooManyDefinitions(ConfigError):
    """The store has no room for more definitions."""

    def __init__(self) -> None:
        super().__init__(
            f"a store keeps at most {DEFINITIONS_MAX} definitions of a fleet; remove some, or put "
            "targets into the file"
        )


def encoded(name: str, table: Mapping[str, Any] | None) -> str | None:
    """A definition as JSON; ConfigError if it is too long."""
    if table is None:
        return None
    text = json.dumps(dict(table), separators=(",", ":"), allow_nan=False)
    if len(text.encode()) > DEFINITION_MAX:
        raise ConfigError(
            f"target {name!r}: its definition is longer than {DEFINITION_MAX} bytes as JSON"
        )
    return text


def decoded(name: str, text: str | None, version: int, by: str, at: float) -> StoredDefinition:
    """The definition of a row. Invalid JSON, written by hand, counts as an empty table."""
    table: Any = None
    if text is not None:
        try:
            table = json.loads(text)
        except (ValueError, RecursionError):
            table = {}
        table = table if isinstance(table, dict) else {}
    return StoredDefinition(name, table, version, by, at)


def storable(by: str) -> str:
    """Who made a change, as text that every store accepts."""
    return by.replace("\0", "").encode(errors="backslashreplace").decode()
