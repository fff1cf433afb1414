"""Reads a part of an HTML page, in a process of its own that can be killed.

A page can make any parser of HTML slow: an element with 100,000 attributes takes minutes. So the
process of the fleet never parses one. The parent starts this file as a program; it writes a line of
JSON and then the page to stdin, and reads a line of JSON from stdout. Nothing of Pollwise is
imported here, so that the process starts quickly.
"""

from __future__ import annotations

import codecs
import difflib
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

#: The longest text that is kept to be compared with the next one, and the longest diff, in bytes.
CONTENT_MAX = 32 * 1024
DIFF_MAX = 4 * 1024
#: The longest line of a diff, in characters.
LINE_MAX = 400
#: Texts that differ in more lines are not aligned: the old lines are shown, then the new ones.
ALIGNED_MAX = 300
#: The longest text that is a value as it is, in characters; of a longer one it is the digest.
VALUE_MAX = 256
#: The longest line of a request, in bytes.
REQUEST_MAX = 1024 * 1024
#: Memory of this process, in bytes.
MEMORY_MAX = 2 * 1024**3
PATTERN_MEMORY_MAX = 8 * 1024 * 1024

#: Elements whose text nobody sees.
_HIDDEN = frozenset(("head", "noscript", "script", "style", "template"))
#: Elements inside a line; all others begin and end one.
_INLINE = frozenset((
    "a", "abbr", "b", "bdi", "bdo", "big", "button", "cite", "code", "data", "del", "dfn", "em",
    "font", "i", "img", "input", "ins", "kbd", "label", "mark", "q", "rp", "rt", "ruby", "s",
    "samp", "small", "span", "strike", "strong", "sub", "sup", "time", "tt", "u", "var", "wbr",
))  # fmt: skip
#: Cells of a table stand in one line, apart.
_CELLS = frozenset(("td", "th"))
_SPACE = re.compile(r"\s+")
#: Characters that could steer a terminal, or show text in another order.
_CONTROL = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069]")
_CHARSET = re.compile(
    rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_:.-]{1,40})", re.IGNORECASE
)


def main() -> None:
    """Say that this process is ready, then answer requests until stdin ends."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what libraries print must not get between the lines
    _limit_memory()
    selected("", "p", None)  # imports the parser
    out.write(b"{}\n")
    while line := sys.stdin.buffer.readline(REQUEST_MAX):
        asked = json.loads(line)
        raw = sys.stdin.buffer.read(asked["size"])
        try:
            said = answered(asked, raw)
        except MemoryError:
            said = {"error": "the page needs too much memory"}
        out.write(json.dumps(said).encode() + b"\n")


def answered(asked: Mapping[str, Any], raw: bytes) -> dict[str, Any]:
    """The answer to a request.

    asked: selector, attribute (of the elements, instead of their text), ignore (patterns of text
        to leave out), regex (the part of the text that counts), encoding (if the server said it),
        before (the text to compare with).
    """
    texts = selected(_decoded(raw, asked.get("encoding")), asked["selector"], asked["attribute"])
    if not texts:
        return {"matches": 0}
    text = normalised("\n".join(texts), asked.get("ignore") or ())
    if asked.get("regex"):
        found = _compiled(asked["regex"]).search(text.encode("utf-8", "replace"))
        if found is None:
            return {"matches": len(texts), "unmatched": True}
        taken = (found[1] if found.re.groups else found[0]) or b""
        text = taken.decode("utf-8", "replace")
    content, before = bounded(text, CONTENT_MAX), asked.get("before")
    value = text if len(text) <= VALUE_MAX else _digest(text)
    diff = ""
    if before is not None and value != asked.get("value"):
        diff = diff_of(before, content)
    return {
        "matches": len(texts),
        "value": value,
        "content": content,
        "diff": diff,
        "length": len(text),
    }


def selected(page: str, selector: str, attribute: str | None) -> list[str]:
    """The text, or the attribute, of each element that a selector matches."""
    from selectolax.lexbor import LexborHTMLParser

    found = LexborHTMLParser(page).css(selector)
    if attribute:
        return [each.attributes[attribute] or "" for each in found if attribute in each.attributes]
    seen: set[int] = set()
    # An element inside another one that was selected has been read with it.
    return ["".join(_pieces(each, seen)) for each in found if each.mem_id not in seen]


def check_selector(selector: str) -> None:
    """Raise ValueError if a selector is not valid CSS."""
    from selectolax.lexbor import LexborHTMLParser, SelectolaxError

    try:
        LexborHTMLParser("<p></p>").css(selector)
    except SelectolaxError:
        raise ValueError(selector) from None


def _pieces(root: Any, seen: set[int]) -> Iterator[str]:
    """The text below an element as people see it: blocks are lines, cells stand apart.

    seen: the elements that were read; each is read once, so that the time is linear.
    """
    node, leaving = root, False
    while True:
        tag, hidden = node.tag, node.tag in _HIDDEN
        if tag == "-text":
            yield _SPACE.sub(" ", node.text_content or "")
        elif tag in _CELLS:
            yield " "
        elif tag not in _INLINE and not hidden and not tag.startswith("-"):
            yield "\n"
        own = node.mem_id
        child = None if leaving or hidden or own in seen else node.first_child
        seen.add(own)
        if child is not None:
            node, leaving = child, False
        elif own == root.mem_id:
            return
        elif (following := node.next) is not None:
            node, leaving = following, False
        else:
            node, leaving = node.parent, True


def normalised(text: str, ignore: Sequence[str]) -> str:
    """A text without what matches `ignore`, runs of spaces, empty lines and control characters."""
    text = _tidied(text)
    for pattern in ignore:
        raw = text.encode("utf-8", "replace")
        text = _compiled(pattern).sub(b"", raw).decode("utf-8", "replace")
    return _tidied(text) if ignore else text


def _tidied(text: str) -> str:
    lines = (" ".join(line.split()) for line in _CONTROL.sub(" ", text).split("\n"))
    return "\n".join(line for line in lines if line)


def diff_of(before: str, after: str) -> str:
    """What changed from one text to another, as a unified diff of bounded size."""
    old, new = before.split("\n"), after.split("\n")
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    gone, come = old[start : len(old) - end], new[start : len(new) - end]
    if not gone and not come:
        return f"(the change is not in the first {CONTENT_MAX // 1024} KiB, which are compared)"
    if max(len(gone), len(come)) > ALIGNED_MAX:
        lines = [*(f"-{line}" for line in gone), *(f"+{line}" for line in come)]
    else:
        first, last = old[max(start - 1, 0) : start], old[len(old) - end :][:1]
        compared = list(difflib.unified_diff([*first, *gone, *last], [*first, *come, *last], n=1))
        # Without the names of files, which there are none of; a line of text begins with a sign.
        lines = ["…" if line.startswith("@@") else line for line in compared[3:]]
    return _cut(lines)


def _cut(lines: list[str]) -> str:
    kept: list[str] = []
    size = 0
    for number, line in enumerate(lines):
        short = line if len(line) <= LINE_MAX else f"{line[: LINE_MAX - 1]}…"
        size += len(short.encode("utf-8", "replace")) + 1
        if size > DIFF_MAX - 40:
            kept.append(f"… and {len(lines) - number:,} more lines")
            break
        kept.append(short)
    return "\n".join(kept)


def bounded(text: str, most: int) -> str:
    """The beginning of a text, at most `most` bytes in UTF-8."""
    raw = text.encode("utf-8", "replace")
    return text if len(raw) <= most else raw[:most].decode("utf-8", "ignore")


def _digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()}"


def _decoded(raw: bytes, encoding: str | None) -> str:
    if encoding is None and (declared := _CHARSET.search(raw[:4096])) is not None:
        with suppress(LookupError, UnicodeError):
            name = codecs.lookup(declared[1].decode("ascii")).name
            return raw.decode(name, "replace") if not name.startswith("utf-16") else raw.decode()
    try:
        return raw.decode(encoding or "utf-8", "replace")
    except (LookupError, UnicodeError):
        return raw.decode("utf-8", "replace")


def _compiled(pattern: str) -> Any:
    import re2

    options = re2.Options()
    options.max_mem = PATTERN_MEMORY_MAX
    options.log_errors = False
    return re2.compile(f"(?m){pattern}", options)


def _limit_memory() -> None:
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))


if __name__ == "__main__":
    main()
