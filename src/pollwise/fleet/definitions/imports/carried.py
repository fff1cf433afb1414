"""What an import found, and what the modules of this folder share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pollwise.errors import ConfigError, MissingExtra
from pollwise.fleet.definitions.table import TargetTables
from pollwise.fleet.targets import NAME_MAX

#: The largest export, in bytes, and the most values in it: an alias in YAML may stand for many.
FILE_MAX = 32 * 1024 * 1024
VALUES_MAX = 2_000_000
#: How deep values may be nested. Parsers written in C crash at some depth.
DEPTH_MAX = 100


@dataclass
class ImportedTargets:
    """The targets of an export as tables, and what could not be carried over."""

    tables: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)

    def note(self, name: object, what: str) -> None:
        self.notes.append(f"{_printable(name)!r}: {what}")

    def add(self, name: object, table: Mapping[str, Any], group: object = None) -> None:
        """Add a target, under a name of its own, if its definition is correct."""
        plain = _printable(name) or "target"
        if plain in self._names and group:
            plain = f"{_printable(group)}: {plain}"[:NAME_MAX]
        unique, number = plain, 2
        while unique in self._names:
            unique, number = f"{plain[: NAME_MAX - 8]} ({number})", number + 1
        made = {"name": unique, **{key: each for key, each in table.items() if each is not None}}
        if group:
            made["group"] = _printable(group)
        reader = TargetTables(for_views=True)
        if reader.target(made) is None or reader.problems:
            for _, what in reader.problems:
                self.notes.append(f"{what}; not imported")
            return
        self._names.add(unique)
        self.tables.append(made)

    def each(self, entries: Any, what: str, take: Callable[[dict[str, Any]], None]) -> None:
        """Take each table of a list; what is not a table is noted."""
        if not isinstance(entries, list):
            raise ConfigError(f"{what} is not a list; is this the right kind of file?")
        for number, entry in enumerate(entries, 1):
            if isinstance(entry, dict):
                take(entry)
            else:
                self.note(f"{what} {number}", "is not a table; not imported")


def loaded(path: Path) -> Any:
    """The content of a JSON or YAML file, with limits."""
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    if len(raw) > FILE_MAX:
        raise ConfigError(f"{path} is larger than {FILE_MAX} bytes")
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        content = _yaml(raw, path)
    _count(content, path)
    return content


def _yaml(raw: bytes, path: Path) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise MissingExtra("reading YAML", "import") from error
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _weigh(yaml, raw, loader, path)
        return yaml.load(raw, loader)  # noqa: S506 - one of the two safe loaders
    except ConfigError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f" in line {mark.line + 1}"
        raise ConfigError(f"{path} is neither JSON nor YAML{line}") from None


def _weigh(yaml: Any, raw: bytes, loader: Any, path: Path) -> None:
    """Refuse what would be too large or too deep, before anything is made of it: an alias counts as
    many values as it stands for, also where it is merged."""
    sizes: dict[str, int] = {}
    inside: list[tuple[str | None, int]] = [(None, 0)]  # the anchor of each level, and its values
    for event in yaml.parse(raw, loader):
        if isinstance(event, yaml.CollectionStartEvent):
            if len(inside) > DEPTH_MAX:
                raise ConfigError(f"{path} is nested deeper than {DEPTH_MAX} levels")
            inside.append((event.anchor, 1))
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = inside.pop()
        elif isinstance(event, yaml.AliasEvent):
            anchor, size = None, sizes.get(event.anchor, 1)
            if any(event.anchor == each for each, _ in inside):  # it stands for what it is in
                raise _too_many(path)
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1
        else:
            continue
        if anchor is not None:
            sizes[anchor] = size
        around, count = inside[-1]
        inside[-1] = around, count + size
        if count + size > VALUES_MAX:
            raise _too_many(path)


def _too_many(path: Path) -> ConfigError:
    return ConfigError(f"{path} has more than {VALUES_MAX} values; import it in parts")


def _count(content: Any, path: Path) -> None:
    left, count = [content], 0
    while left:
        count += 1
        if count > VALUES_MAX:
            raise _too_many(path)
        value = left.pop()
        if isinstance(value, (dict, list)):
            left += value.values() if isinstance(value, dict) else value


def table_of(value: object) -> dict[Any, Any]:
    """A table; empty for anything else."""
    return value if isinstance(value, dict) else {}


def text(value: object) -> str | None:
    """A text that is not empty; None for anything else. Plain `${` stays plain."""
    return value.replace("${", "$${") if isinstance(value, str) and value else None


def number(value: object) -> float | None:
    """A positive number."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e7
    return float(value) if good else None  # type: ignore[arg-type]


def seconds_text(value: object) -> str | None:
    """A number of seconds as a duration: 60 is "60s"."""
    found = number(value)
    return None if found is None else f"{found:g}s"


def codes(given: Iterable[object]) -> list[int] | None:
    """Status codes from numbers and ranges such as "200-299"; None for all of 2xx."""
    found: set[int] = set()
    for each in given:
        first, _, last = str(each).partition("-")
        if first.strip().isdigit() and (last or first).strip().isdigit():
            found.update(range(max(int(first), 100), min(int(last or first), 599) + 1))
    return None if not found or found == set(range(200, 300)) else sorted(found)


def texts(given: object) -> dict[str, str] | None:
    """A table of texts; other values are written as text."""
    if not isinstance(given, dict):
        return None
    return {str(key): str(each).replace("${", "$${") for key, each in given.items()} or None


def _printable(value: object) -> str:
    plain = "".join(each if each.isprintable() else " " for each in str(value))
    return plain.strip()[:NAME_MAX]
