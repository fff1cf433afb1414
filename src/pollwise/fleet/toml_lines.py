"""Where things stand in a TOML file, and all that is wrong with its writing.

Python's parser tells values but no lines, and stops at the first mistake. So the text is cut into
its statements first (a header, or a key with its value, over as many lines as it takes). Where the
whole cannot be parsed, each statement is parsed by itself; those that are wrong are told, and
blanked out, so that the rest can be checked as well.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Problem = tuple[int, str]

_TOKEN = re.compile(
    r'''
    (?P<long>"""(?:[^\\]|\\.)*?"{3,5} | \'\'\'.*?\'{3,5})
    | (?P<string>"(?:[^"\\\n]|\\[^\n])*" | '[^'\n]*')
    | (?P<comment>\#[^\n]*)
    | (?P<open>[\[{]) | (?P<close>[\]}])
    | (?P<newline>\n)
    | (?P<other>[^"'\#\[\]{}\n]+ | .)
    ''',
    re.DOTALL | re.VERBOSE,
)
# No list holds such a line: a bracket that was left open ends before it.
_HEADER_LINE = re.compile(r"[ \t]*\[(?:\[[ \t]*target[ \t]*\]\]|(?:target|group)\.)")
_KEY = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*(\.)?""")
_PLACE = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)")
#: So many mistakes that only the whole file shows (a key twice) are told.
_CLASHES_MAX = 100

Table = tuple[str, int | str]


@dataclass(slots=True)
class Statement:
    """One header, or one key with its value. `keys` is empty where it cannot be read."""

    line: int
    begin: int
    end: int
    header: bool
    keys: tuple[str, ...]
    text: str


@dataclass(slots=True)
class Lines:
    """The lines of tables and of their keys; a table is ("target", its number) or ("group", name).

    >>> Lines.of('[[target]]\\nname = "a"').key(("target", 0), "name")
    2
    """

    tables: dict[Table, int] = field(default_factory=dict)
    keys: dict[tuple[Table, str], int] = field(default_factory=dict)
    tops: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> Lines:
        lines = cls()
        table: Table | None = None
        below = False  # in a table inside the table
        targets = -1
        for each in statements(text):
            if not each.keys:
                continue
            if not each.header:
                if table is None:
                    lines.tops.setdefault(each.keys[0], each.line)
                elif not below:
                    lines.keys.setdefault((table, each.keys[0]), each.line)
                continue
            lines.tops.setdefault(each.keys[0], each.line)
            table, below = None, len(each.keys) > 1
            if each.keys[0] == "target":
                if each.text.startswith("[[") and not below:
                    targets += 1
                table = ("target", targets)
                inner = each.keys[1:]
            elif each.keys[0] == "group" and below:
                table, below = ("group", each.keys[1]), len(each.keys) > 2
                inner = each.keys[2:]
            else:
                continue
            lines.tables.setdefault(table, each.line)
            if inner:
                lines.keys.setdefault((table, inner[0]), each.line)
        return lines

    def table(self, table: Table) -> int:
        """Where a table begins; one written in a line, where its list does."""
        return self.tables.get(table) or self.tops.get(table[0], 1)

    def key(self, table: Table, key: str) -> int:
        """Where a key of a table stands, else where its table begins."""
        return self.keys.get((table, key)) or self.table(table)


def parsed(text: str) -> tuple[dict[str, Any], list[Problem], Lines]:
    """What a file says as far as it can be read, what is wrong with the rest, and its lines."""
    try:
        return tomllib.loads(text), [], Lines.of(text)
    except tomllib.TOMLDecodeError:
        pass
    problems: list[Problem] = []
    every = list(statements(text))
    skipping = False
    for each in every:
        if each.header:
            skipping = False
        if skipping:
            text = _blanked(text, each)
            continue
        said = _mistake(each)
        if said is not None:
            problems.append(said)
            text = _blanked(text, each)
            # What follows a header that cannot be read belongs to nobody.
            skipping = each.header
    for _ in range(_CLASHES_MAX):
        try:
            return tomllib.loads(text), sorted(problems), Lines.of(text)
        except tomllib.TOMLDecodeError as error:
            line, what = _told(error, text.count("\n") + 1)
            problems.append((line, what))
            guilty = [each for each in statements(text) if each.line <= line]
            if not guilty:
                break
            text = _blanked(text, guilty[-1])
    return {}, sorted(problems), Lines.of(text)


def statements(text: str) -> Iterator[Statement]:
    """The statements of a TOML text, in order. Broken ones end with their line."""
    line, depth = 1, 0
    begun: tuple[int, int] | None = None
    for token in _TOKEN.finditer(text):
        kind, at = token.lastgroup, token.start()
        if kind == "newline":
            if begun is not None and (depth <= 0 or _HEADER_LINE.match(text, token.end())):
                yield _statement(text, *begun, at)
                begun, depth = None, 0
            line += 1
            continue
        if kind == "comment" or (kind == "other" and not token[0].strip()):
            continue
        if begun is None:
            begun = (line, at)
        if kind == "open":
            depth += 1
        elif kind == "close":
            depth -= 1
        elif kind == "long":
            line += token[0].count("\n")
    if begun is not None:
        yield _statement(text, *begun, len(text))


def _statement(text: str, line: int, begin: int, end: int) -> Statement:
    body = text[begin:end]
    stripped = body.lstrip()
    begin += len(body) - len(stripped)
    header = stripped.startswith("[")
    return Statement(line, begin, end, header, _keys(stripped.lstrip("[")), stripped)


def _keys(text: str) -> tuple[str, ...]:
    found: list[str] = []
    at = 0
    while (each := _KEY.match(text, at)) is not None:
        found.append(next(part for part in each.groups()[:3] if part is not None))
        at = each.end()
        if each[4] is None:
            return tuple(found)
    return ()


def _mistake(statement: Statement) -> Problem | None:
    try:
        tomllib.loads(statement.text)
    except tomllib.TOMLDecodeError as error:
        line, what = _told(error, statement.text.rstrip().count("\n") + 1)
        return statement.line + line - 1, what
    return None


def _told(error: tomllib.TOMLDecodeError, last: int) -> Problem:
    said = str(error)
    place = _PLACE.search(said)
    line = int(place[1]) if place is not None and place[1] is not None else last
    what = _PLACE.sub("", said)
    return line, f"is no TOML: {what[:1].lower()}{what[1:]}"


def _blanked(text: str, statement: Statement) -> str:
    gone = re.sub(r"[^\n]", " ", text[statement.begin : statement.end])
    return text[: statement.begin] + gone + text[statement.end :]
