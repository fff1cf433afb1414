"""What may be shown of a definition, and a fingerprint that shows whether it was changed."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Any

from pollwise.runtime.redact import HIDDEN, is_secret, shown_url, without_hidden, without_secrets

_VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
#: What may stand beside a variable in a value that would otherwise be hidden.
_BESIDE = re.compile(r"\s*(?:Bearer|Basic|Token)?\s*", re.IGNORECASE)


def shown_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """A definition as it may be shown, without secrets. Variables are shown by their name."""
    return {key: _shown(key, each) for key, each in table.items()}


def _shown(key: str, value: Any) -> Any:
    if key == "labels" or not isinstance(value, (str, list, dict)):
        return HIDDEN if is_secret(key) else value
    if isinstance(value, list):
        return [_shown(key, each) for each in value]
    if isinstance(value, dict):  # headers, an environment, arguments: any may be secret
        return {name: _without_secret(each) for name, each in value.items()}
    if is_secret(key) or key in ("webhook", "body"):
        return _without_secret(value)
    if "://" in value:
        return shown_url(value)
    return without_secrets(without_hidden(value))


def _without_secret(value: Any) -> Any:
    """HIDDEN, unless the secret part of the value is a variable."""
    if isinstance(value, (bool, int, float)):
        return value
    named = isinstance(value, str) and _VARIABLE.search(value) is not None
    if named and _BESIDE.fullmatch(_VARIABLE.sub("", str(value))):
        return value
    return HIDDEN


def digests_of(group: Mapping[str, Any]) -> dict[str, str]:
    """What a group gives to the fingerprints of its targets."""
    return {key: _digest(key, each, None) for key, each in group.items() if "," not in key}


def fingerprint(
    group: Mapping[str, Any], table: Mapping[str, Any], digests: Mapping[str, str]
) -> str:
    """A short text that shows which keys of a definition were changed, and nothing else about it.

    Made of what may be shown, so it reveals no secret, and a changed secret does not change it.
    digests: those of the group.
    """
    merged = {
        **digests,
        **{
            key: _digest(key, group.get(key), each)
            for key, each in table.items()
            if "," not in key and key != "name"  # definitions of one name are compared
        },
    }
    return ",".join([f"{key}:{digest}" for key, digest in sorted(merged.items())])


def _digest(key: str, *values: Any) -> str:
    plain = repr([_in_order(_shown(key, each)) for each in values])
    return f"{zlib.crc32(plain.encode(errors='backslashreplace')):08x}"


def _in_order(value: Any) -> Any:
    """The value with the keys of its tables in order."""
    if isinstance(value, dict):
        return {key: _in_order(value[key]) for key in sorted(value)}
    return [_in_order(each) for each in value] if isinstance(value, list) else value


def changed_keys(before: str, after: str) -> list[str]:
    """The keys that differ between two fingerprints."""
    one, other = (
        dict(each.rsplit(":", 1) for each in text.split(",") if ":" in each)
        for text in (before, after)
    )
    return sorted(key for key in {*one, *other} if one.get(key) != other.get(key))
