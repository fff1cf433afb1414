"""Writes tables of targets as fleet.toml."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def written(tables: Iterable[Mapping[str, Any]]) -> str:
    """The text of a file with these targets, and an empty table for each of their groups."""
    tables = list(tables)
    groups = dict.fromkeys(each["group"] for each in tables if "group" in each)
    parts = [f"[group.{_key(group)}]\n" for group in groups]
    for table in tables:
        lines = [f"{_key(key)} = {_value(each)}" for key, each in table.items()]
        parts.append("\n".join(["[[target]]", *lines, ""]))
    return "\n".join(parts)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        pairs = (f"{_key(key)} = {_value(each)}" for key, each in value.items())
        return f"{{ {', '.join(pairs)} }}"
    return repr(value)


def _text(value: str) -> str:
    plain = value.encode(errors="replace").decode()
    return json.dumps(plain, ensure_ascii=False).replace("\x7f", "\\u007f")
