"""Extracts the reading from an answer: its digest, a value at a JSON path, or a regex group.

A JSON path consists of names and indexes, from the top:

    a.b[0].c        the member c of the first element of b in a
    items[-1].id    the last element's id
    a["odd.name"]   a name with dots, brackets or spaces
    [2]             an element of a list at the top
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from pollwise.alerts.patterns import Pattern
from pollwise.durations import shown
from pollwise.errors import ConfigError
from pollwise.fleet.probes.options import ProbeOptions, failed

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


def digest(raw: bytes) -> str:
    return f"sha256:{hashlib.sha256(raw).hexdigest()}"


class Extract:
    """Extracts the reading's value from an answer, by the options `json` or `regex`."""

    __slots__ = ("path", "pattern", "written")

    def __init__(self, options: ProbeOptions) -> None:
        options.only_one("json", "regex")
        self.pattern: Pattern | None = options.pattern("regex")
        self.written: str = options.text("json")
        self.path: Path | None = None
        if options.has("json"):
            try:
                self.path = json_path(self.written)
            except ConfigError as error:
                options.wrong("json", f"= {error}")

    async def __call__(self, raw: bytes, encoding: str = "utf-8") -> tuple[str, str]:
        """The value, and a summary for people."""
        if self.path is not None:
            value = self._at_path(raw)
            return value, f"{self.written} = {value[:80]}"
        if self.pattern is not None:
            value = await self._matched(raw, encoding)
            return value, value[:80]
        return digest(raw), f"{len(raw):,} bytes"

    def _at_path(self, raw: bytes) -> str:
        assert self.path is not None  # noqa: S101 (for the type checker)
        try:
            document = json.loads(raw)
        except (ValueError, RecursionError):  # RecursionError: deeply nested brackets
            raise failed("the answer is not valid JSON") from None
        try:
            found = follow(document, self.path)
        except LookupError:
            raise failed(f"the answer has nothing at {self.written}") from None
        return found if isinstance(found, str) else json.dumps(found, sort_keys=True)

    async def _matched(self, raw: bytes, encoding: str) -> str:
        assert self.pattern is not None  # noqa: S101
        found = await self.pattern.search(raw, encoding)
        if found is None:
            raise failed(f"the answer does not match {shown(self.pattern.text)}")
        return found
