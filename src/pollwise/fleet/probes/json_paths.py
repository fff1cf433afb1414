"""JSON paths: names and indexes, from the top.

a.b[0].c        the member c of the first element of b in a
items[-1].id    the last element's id
a["odd.name"]   a name with dots, brackets or spaces
[2]             an element of a list at the top
"""

from __future__ import annotations

import re
from typing import Any

from pollwise.durations import shown
from pollwise.errors import ConfigError

_STEP = re.compile(
    r"""(?P<dot>\.)?(?P<name>[^\s.\[\]"']+)|\[(?P<index>-?\d{1,9})\]|\["(?P<quoted>[^"]*)"\]"""
)
Path = tuple[str | int, ...]


def json_path(text: str) -> Path:
    """The steps of a path; ConfigError if it is not valid.

    >>> json_path('a.b[0]["odd.name"]')
    ('a', 'b', 0, 'odd.name')
    """
    steps: list[str | int] = []
    at = 0
    if text == "$" or text.startswith(("$.", "$[")):
        whole = text[1:].removeprefix(".") or "[0] for the first element of a list"
        raise ConfigError(f"{shown(text)} begins with $, which is not needed here; write {whole}")
    while at < len(text):
        step = _STEP.match(text, at)
        named = step and step["name"] is not None
        # A dot is only allowed between two names.
        if step is None or (named and bool(step["dot"]) != bool(steps)):
            raise ConfigError(
                f'{shown(text)} is not a JSON path; write it as a.b[0].c or a["odd.name"]'
            )
        if named:
            steps.append(step["name"])
        else:
            steps.append(int(step["index"]) if step["index"] is not None else step["quoted"])
        at = step.end()
    if not steps:
        raise ConfigError("the path is empty; write it as a.b[0].c")
    return tuple(steps)


def follow(document: Any, path: Path) -> Any:
    """The value at a path; LookupError if there is none."""
    for step in path:
        fits = isinstance(document, list) if isinstance(step, int) else isinstance(document, dict)
        if not fits:
            raise LookupError(step)
        document = document[step]
    return document
