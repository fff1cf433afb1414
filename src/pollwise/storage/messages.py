"""The messages of a channel, as text: JSON lists that begin with a word."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

#: How often a busy process may pass a hint on.
PASSES_MAX = 3
#: Limits for the content of a message, because anybody may send one.
MESSAGE_LENGTH_MAX = 8000
WORD_LENGTH_MAX = 64
COUNT_MAX = 1_000_000


def message_of(*parts: object) -> str:
    return json.dumps(parts, ensure_ascii=False, separators=(",", ":"))


def parts_of(text: str) -> list[Any] | None:
    """A message's parts; None if it is not valid: anybody may send messages."""
    if len(text) > MESSAGE_LENGTH_MAX:
        return None
    try:
        parts = json.loads(text)
        shape = _SHAPES[parts[0]]
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    fits = len(parts) == len(shape) and all(
        fit(part) for fit, part in zip(shape, parts, strict=True)
    )
    return parts if fits else None


def _word(part: object) -> bool:
    return isinstance(part, str) and len(part) <= WORD_LENGTH_MAX and part.isascii()


def _names(part: object) -> bool:
    """A list of kinds, or None."""
    if not isinstance(part, list):
        return part is None
    return all(isinstance(name, str) and name.isprintable() for name in part)


def _count(part: object) -> bool:
    return type(part) is int and 1 <= part <= COUNT_MAX


def _passes(part: object) -> bool:
    return type(part) is int and 0 <= part <= PASSES_MAX


_SHAPES: dict[str, tuple[Callable[[object], bool], ...]] = {
    "check": (_word, _word, _word, _names),
    "hint": (_word, _word, _word, _count, _names, _passes),
    "polled": (_word, _word, _word),
    "bye": (_word, _word),
    "broadcast": (_word, _word, _word),
    "wants": (_word, _word, _word),
}
