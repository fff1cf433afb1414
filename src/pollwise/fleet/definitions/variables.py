"""`${NAME}` in a definition stands for an environment variable, `$${` for a plain `${`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pollwise.runtime.redact import hide

_VARIABLE = re.compile(r"\$(\$)?\{([^{}\n]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def replaced(
    table: Mapping[str, Any],
    environment: Mapping[str, str],
    missing: Callable[[str, str], None],
    written: Callable[[str], str] = str,
) -> dict[str, Any]:
    """A table whose `${NAME}` are replaced. `missing` is called with the key and the name of each
    variable that is not set. The values are never shown from then on.

    written: how a value is written in a text, such as escaped in a URL.
    """

    def variable(found: re.Match[str], key: str) -> str:
        escaped, name = found.groups()
        if escaped or not _NAME.fullmatch(name):  # not a variable: part of an expression, say
            return found[0].removeprefix("$") if escaped else found[0]
        value = environment.get(name)
        if value is None:
            missing(key, name)
            return "-"
        hide(value)
        text = written(value)
        hide(text)
        return text

    def inside(value: Any, key: str) -> Any:
        if isinstance(value, str) and "${" in value:
            return _VARIABLE.sub(lambda found: variable(found, key), value)
        if isinstance(value, list):
            return [inside(each, key) for each in value]
        if isinstance(value, dict):
            return {name: inside(each, key) for name, each in value.items()}
        return value

    return {key: inside(each, key) for key, each in table.items()}
