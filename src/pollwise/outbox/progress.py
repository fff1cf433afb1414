"""How far the handlers of a record are: kept with the record, one entry a handler.

As JSON: 1 for a handler that is done, 2 for one whose fallback was; else what is known of its
attempts. Stores keep the text without reading it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from pollwise.outbox.records import PROGRESS_BYTES_MAX

#: The longest error that is kept for one handler, in characters.
ERROR_MAX = 300

Ended = Literal["", "done", "fell back", "gave up"]


@dataclass(slots=True)
class HandlerProgress:
    """One handler's part of a record.

    attempts: how often it failed.
    due: not to be tried before, in seconds since 1970 by the store's clock.
    last_resort: it is given up, but its fallback is to be tried.
    where: the lines of code that raised, as long as it is held; not kept.
    """

    ended: Ended = ""
    attempts: int = 0
    due: float = 0.0
    error: str = ""
    last_resort: bool = False
    where: str = ""


class Progress:
    """The handlers of one record, by name."""

    __slots__ = ("_handlers",)

    def __init__(self, handlers: dict[str, HandlerProgress] | None = None) -> None:
        self._handlers = {} if handlers is None else handlers

    @classmethod
    def read(cls, text: str, fresh: bool = False) -> Progress:
        """As it was written; `fresh` begins the attempts of what is not done anew.

        What cannot be read counts as not done: a handler may be called again, never left out.
        """
        if not text:
            return cls()
        try:
            entries = json.loads(text)
            handlers = {name: _read(entry) for name, entry in entries.items()}
        except (ValueError, TypeError, AttributeError, RecursionError):
            return cls()
        if fresh:
            handlers = {n: h for n, h in handlers.items() if h.ended in ("done", "fell back")}
        return cls(handlers)

    def of(self, handler: str) -> HandlerProgress:
        found = self._handlers.get(handler)
        if found is None:
            found = self._handlers[handler] = HandlerProgress()
        return found

    def __contains__(self, handler: str) -> bool:
        return handler in self._handlers

    def __bool__(self) -> bool:
        return bool(self._handlers)

    def text(self) -> str:
        """As JSON; where errors would make it too long, without them."""
        text = self._text(ERROR_MAX)
        if len(text.encode()) > PROGRESS_BYTES_MAX:
            text = self._text(0)
        return text

    def _text(self, errors: int) -> str:
        return json.dumps(
            {name: _written(entry, errors) for name, entry in self._handlers.items()},
            ensure_ascii=False,
            separators=(",", ":"),
        )


def _read(entry: Any) -> HandlerProgress:
    if entry == 1:
        return HandlerProgress("done")
    if entry == 2:
        return HandlerProgress("fell back")
    return HandlerProgress(
        "gave up" if entry.get("x") else "",
        int(entry.get("a", 0)),
        float(entry.get("at", 0.0)),
        str(entry.get("e", "")),
        bool(entry.get("f")),
    )


def _written(entry: HandlerProgress, errors: int) -> Any:
    if entry.ended == "done":
        return 1
    if entry.ended == "fell back":
        return 2
    known: dict[str, Any] = {"a": entry.attempts}
    if entry.due:
        known["at"] = round(entry.due, 3)
    if entry.error and errors:
        known["e"] = _storable(entry.error[:errors])
    if entry.last_resort:
        known["f"] = 1
    if entry.ended == "gave up":
        known["x"] = 1
    return known


def _storable(error: str) -> str:
    return error.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
