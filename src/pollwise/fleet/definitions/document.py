"""Parses the text of fleet.toml; tables of targets that were parsed before are not parsed again.

tomllib needs 25 µs for a table of five lines, so 2.5 s for 100,000 targets, at each start, at each
reload and in each command. Here the tables of targets are parsed one by one: a plain text by a
regular expression, and any other line by tomllib, once for all lines that are equal. That needs a
fifth of the time. Whatever is not a plain list of lines is left to tomllib as a whole: `parse`
gives what `tomllib.loads` gives, or raises what it raises.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_TARGET = re.compile(r"^[ \t]*\[\[[ \t]*target[ \t]*\]\][ \t]*(?:#[^\n]*)?$", re.MULTILINE)
_HEADER = re.compile(r"^[ \t]*\[.*\][ \t]*(?:#[^\n]*)?$", re.MULTILINE)
_OF_TARGET = re.compile(r"[ \t]*\[target\.")
#: Characters that TOML refuses, also in comments.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
#: A key with a text that has no escapes.
_PLAIN = re.compile(r'[ \t]*([A-Za-z0-9_-]+)[ \t]*=[ \t]*"([^"\\\n]*)"[ \t]*')


@dataclass(frozen=True, slots=True)
class Document:
    """The tables of a file.

    pieces: the text of each target's table, in their order; empty if the file was not taken apart.
    """

    tables: dict[str, Any]
    pieces: tuple[str, ...] = ()


def parse(text: str, known: Mapping[str, dict[str, Any]] | None = None) -> Document:
    """The tables of a text; tomllib.TOMLDecodeError if it is not valid TOML.

    known: tables that were parsed before, by their pieces.
    """
    text = text.replace("\r\n", "\n")
    # Only in a text of several lines, a line could look like a header and not be one.
    if '"""' not in text and "'''" not in text and not _CONTROL.search(text):
        try:
            found = _taken_apart(text, known or {})
        except tomllib.TOMLDecodeError:  # tomllib knows the line in the whole text
            found = None
        if found is not None:
            return found
    return Document(tomllib.loads(text))


def _taken_apart(text: str, known: Mapping[str, dict[str, Any]]) -> Document | None:
    """The document from its pieces; None if they do not stand for themselves."""
    starts = [each.start() for each in _TARGET.finditer(text)]
    if not starts:
        return None
    rest, pieces = [text[: starts[0]]], []
    for begin, end in zip(starts, [*starts[1:], len(text)], strict=True):
        piece = text[begin:end]
        if piece.count("[") > 2:  # a list, or another header
            own = _end_of_target(piece)
            if own is None:
                return None
            if own < len(piece):
                rest.append(piece[own:])
                piece = piece[:own]
        pieces.append(piece)
    others = tomllib.loads("".join(rest))
    if "target" in others:
        return None
    values: dict[str, tuple[str, Any]] = {}
    targets = [known.get(piece) or _table_of(piece, values) for piece in pieces]
    return Document({**others, "target": targets}, tuple(pieces))


def _end_of_target(piece: str) -> int | None:
    """Where another section begins in the text from one target to the next; None if the target
    goes on after it."""
    headers = _HEADER.finditer(piece)
    next(headers)  # its own
    for header in headers:
        if not _OF_TARGET.match(header[0]):
            if any("target" in each[0] for each in (header, *headers)):
                return None
            return header.start()
    return len(piece)


def _table_of(piece: str, values: dict[str, tuple[str, Any]]) -> dict[str, Any]:
    """The table of one target. values: what lines stand for, by their text."""
    table: dict[str, Any] = {}
    for line in _lines(piece):
        plain = _PLAIN.fullmatch(line)
        if plain is not None:
            key, value = plain.groups()
        elif line in values:
            key, value = values[line]
        else:
            try:
                [(key, value)] = tomllib.loads(line).items()
            except (tomllib.TOMLDecodeError, ValueError):
                return _by_tomllib(piece)  # a value of several lines, or a table of its own
            if "." in line.partition("=")[0]:  # a dotted key or a header: its table may go on
                return _by_tomllib(piece)
            values[line] = key, value
        if key in table:
            return _by_tomllib(piece)  # which refuses it
        table[key] = value
    return table


def _lines(piece: str) -> Iterator[str]:
    """The lines of a table without its header, empty lines and comments."""
    for line in piece.split("\n")[1:]:
        bare = line.lstrip(" \t")
        if bare and not bare.startswith("#"):
            yield line


def _by_tomllib(piece: str) -> dict[str, Any]:
    [table] = tomllib.loads(piece)["target"]
    return dict(table)
