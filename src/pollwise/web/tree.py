"""A JSON value as a tree that folds, and as text. Both are bounded, whatever the value is.

Payloads are hostile: every text is escaped, and characters that do not print, such as those that
turn the direction of writing, are shown as `\\u202e`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from markupsafe import Markup

from pollwise.web.redaction import Redacted
from pollwise.web.texts import number

#: How many levels, entries of a list or object, and values in all, a tree shows.
LEVELS_SHOWN = 40
ENTRIES_SHOWN = 100
VALUES_SHOWN = 2000
#: How many characters of a text are shown at once, and after a click.
TEXT_SHOWN = 300
TEXT_FOLDED = 5000
#: How many characters all folded texts of a tree have together.
TEXTS_FOLDED = 100_000
#: Levels that are open at first, unless they have more entries than this.
LEVELS_OPEN = 2
ENTRIES_OPEN = 25
#: How many characters of JSON text a page shows.
RAW_SHOWN = 20_000


def tree(value: object, name: str) -> Markup:
    """The value as nested lists that fold.

    name: the beginning of the ids of its parts, so that what a reader opened stays open.
    """
    return Markup('<ul class="tree">{}</ul>').format(_BoundedTree().entry(None, value, name, 0))


def raw(value: object, most: int = RAW_SHOWN) -> tuple[str, bool]:
    """The value as indented JSON text of at most `most` characters, and whether it was cut."""
    parts, length = [], 0
    try:
        for part in json.JSONEncoder(ensure_ascii=False, indent=2).iterencode(value):
            parts.append(part if len(part) <= most else part[: most + 1])
            length += len(part)
            if length > most:
                break
    except RecursionError:
        return "".join(parts)[:most], True
    return "".join(parts)[:most], length > most


class _BoundedTree:
    """Counts the values and the characters of one tree."""

    def __init__(self) -> None:
        self._left = VALUES_SHOWN
        self._characters_left = TEXTS_FOLDED

    def entry(self, key: str | int | None, value: object, path: str, level: int) -> Markup:
        """One line: the key, and the value or a list of its entries."""
        self._left -= 1
        label = (
            Markup("")
            if key is None
            else Markup('<span class="name">{}</span>: ').format(_key(key))
        )
        if isinstance(value, Redacted):
            hidden = Markup('<li>{}<span class="redacted">{}</span></li>')
            return hidden.format(label, str(value))
        if isinstance(value, str) and len(value) > TEXT_SHOWN:
            return self._long_text(label, value, path)
        if not isinstance(value, (dict, list, tuple)) or not value:
            return Markup("<li>{}{}</li>").format(label, _scalar(value))
        about = _about(value)
        if level >= LEVELS_SHOWN or self._left <= 0:
            return Markup('<li>{}<span class="quiet">{}, not shown</span></li>').format(
                label, about
            )
        is_open = level < LEVELS_OPEN and (level == 0 or len(value) <= ENTRIES_OPEN)
        return Markup(
            '<li><details id="{}"{}><summary>{}<span class="quiet">{}</span></summary>'
            "<ul>{}</ul></details></li>"
        ).format(
            path,
            Markup(" open") if is_open else "",
            label,
            about,
            Markup("").join(self._entries(value, path, level)),
        )

    def _entries(self, value: Any, path: str, level: int) -> Iterator[Markup]:
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        shown = 0
        for key, each in islice(entries, ENTRIES_SHOWN):
            if self._left <= 0:
                break
            yield self.entry(key, each, f"{path}-{shown}", level + 1)
            shown += 1
        if len(value) > shown:
            yield Markup('<li class="quiet">{} more</li>').format(number(len(value) - shown))

    def _long_text(self, label: Markup, value: str, path: str) -> Markup:
        """A long text: its beginning, and more of it after a click."""
        begins = Markup(
            '{}<span class="text">"{}…"</span> <span class="quiet">{} characters</span>'
        ).format(label, visible(value[: TEXT_SHOWN // 2]), number(len(value)))
        shown = value[: min(TEXT_FOLDED, self._characters_left)]
        if not shown:
            return Markup("<li>{}</li>").format(begins)
        self._characters_left -= len(shown)
        more = len(value) - len(shown)
        rest = Markup('<span class="quiet">{} more characters</span>').format(number(more))
        return Markup(
            '<li><details id="{}"><summary>{}</summary><pre>{}</pre>{}</details></li>'
        ).format(path, begins, visible(shown, keep="\n\t"), rest if more else "")


def _about(value: Any) -> str:
    count = number(len(value))
    if isinstance(value, dict):
        return "{1 field}" if len(value) == 1 else f"{{{count} fields}}"
    return "[1 entry]" if len(value) == 1 else f"[{count} entries]"


def _key(key: str | int) -> str:
    if isinstance(key, int):
        return str(key)
    shown = visible(key[:TEXT_SHOWN])
    return shown if len(key) <= TEXT_SHOWN else f"{shown}…"


def _scalar(value: object) -> Markup:
    if isinstance(value, str):
        return Markup('<span class="text">"{}"</span>').format(visible(value))
    if isinstance(value, (dict, list, tuple)):
        return Markup('<span class="quiet">{}</span>').format(
            "{}" if isinstance(value, dict) else "[]"
        )
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = "a value that is not JSON"
    if len(text) > TEXT_SHOWN:
        text = f"{text[:TEXT_SHOWN]}… ({number(len(text))} digits)"
    return Markup('<span class="value">{}</span>').format(text)


def visible(text: str, keep: str = "") -> str:
    """Text with escapes for the characters that do not print, except those to keep.

    >>> visible("a\\tb\\u202ec")
    'a\\\\tb\\\\u202ec'
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    code = ord(character)
    short = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character)
    return short or (f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}")
