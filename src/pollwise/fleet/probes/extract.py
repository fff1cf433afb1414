"""Extracts the reading from an answer: its digest, a value at a JSON path, or a regex group.

The answer is checked before: what its values must be (`checks`), and what it must not contain
(`absent`).
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pollwise.alerts.patterns import Pattern
from pollwise.durations import shown
from pollwise.errors import ConfigError
from pollwise.fleet.probes.checks import CHECKS_MAX, ValueCheck
from pollwise.fleet.probes.json_paths import Path, follow, json_path
from pollwise.fleet.probes.options import ProbeOptions, failed


def digest(raw: bytes) -> str:
    return f"sha256:{hashlib.sha256(raw).hexdigest()}"


class Extract:
    """Extracts the reading's value from an answer, by the options `json` or `regex`, and checks it
    by `checks` and `absent`."""

    __slots__ = ("absent", "checks", "path", "pattern", "written")

    def __init__(self, options: ProbeOptions, *, checked: bool = True) -> None:
        self.checks: tuple[ValueCheck, ...] = _checks(options) if checked else ()
        self.absent: Pattern | None = options.pattern("absent") if checked else None
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
        if self.checks or self.absent is not None:
            await self.check(raw, encoding)
        if self.path is not None:
            value = self._at_path(raw)
            return value, f"{self.written} = {value[:80]}"
        if self.pattern is not None:
            value = await self._matched(raw, encoding)
            return value, value[:80]
        return digest(raw), f"{len(raw):,} bytes"

    async def check(self, raw: bytes, encoding: str = "utf-8") -> None:
        """Raise ProbeError if the answer is not as it must be."""
        if self.checks:
            document = _document(raw)
            for check in self.checks:
                wrong = check.failing(document)
                if wrong is not None:
                    raise failed(wrong)
        if self.absent is not None and await self.absent.search(raw, encoding) is not None:
            raise failed(f"the answer contains {shown(self.absent.text)}, and must not (absent)")

    def _at_path(self, raw: bytes) -> str:
        assert self.path is not None  # noqa: S101 (for the type checker)
        try:
            found = follow(_document(raw), self.path)
        except LookupError:
            raise failed(f"the answer has nothing at {self.written}") from None
        return found if isinstance(found, str) else json.dumps(found, sort_keys=True)

    async def _matched(self, raw: bytes, encoding: str) -> str:
        assert self.pattern is not None  # noqa: S101
        found = await self.pattern.search(raw, encoding)
        if found is None:
            raise failed(f"the answer does not match {shown(self.pattern.text)}")
        return found


def _document(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):  # RecursionError: deeply nested brackets
        raise failed("the answer is not valid JSON") from None


def _checks(options: ProbeOptions) -> tuple[ValueCheck, ...]:
    given = options.raw("checks")
    listed = [given] if isinstance(given, str) else () if given is None else given
    if not isinstance(listed, (list, tuple)) or len(listed) > CHECKS_MAX:
        options.wrong("checks", f"must be a list of at most {CHECKS_MAX} texts: 'status == UP'")
        return ()
    found = []
    for each in listed:
        try:
            found.append(ValueCheck(each))
        except ConfigError as error:
            options.wrong("checks", f"= {error}")
    return tuple(found)
