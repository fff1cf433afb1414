"""What the handlers of a record have done, stored with the record as JSON.

One entry per handler: 1 when it is done, 2 when its fallback handled the record, else its attempts.
Stores keep the text without reading it. A lane's copy of a record begins with an entry for each of
its handlers, so these are fixed when the copy is made.

A record can also kill its relays. When a relay dies, the leases of all its keys expire, and the
store counts that. A key whose leases expired twice in a row is a suspect. Suspects wait, each for a
random time, and then a relay handles one of them alone, after it gave all others back: if the relay
dies again, that record is the cause.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pollwise.outbox.records import PROGRESS_BYTES_MAX, KeyAction, KeyClaim, KeySettlement
from pollwise.runtime.executor.work import Held

#: The longest error that is stored for one handler, in characters.
ERROR_MAX = 300
#: A key whose leases expired this many times in a row is a suspect.
SUSPECT_AT = 2
#: The longest time that a suspect waits, in seconds; each waits for a random time.
SUSPECT_WAIT_MAX = 10.0
#: A suspect under which this many relays died, each while handling it alone, is dead.
DEATHS_MAX = 3

#: The name under which attempts of a record without handlers are counted; no handler has it.
NO_HANDLER = ""
#: The entry that counts those deaths; no handler can have this name.
_DEATHS = "\n"
_DEATHS_JSON = '"\\n":'


@dataclass(slots=True)
class HandlerProgress:
    """What one handler has done with a record.

    attempts: how many failed.
    due: the earliest time of the next attempt, in seconds since 1970 by the store's clock.
    last_resort: the attempts are used up, but the fallback has not run yet.
    where: the traceback of the last error; not stored.
    """

    ended: Literal["", "done", "fell back", "gave up"] = ""
    attempts: int = 0
    due: float = 0.0
    error: str = ""
    last_resort: bool = False
    where: str = ""


class RecordProgress:
    """The progress of all handlers of one record, by name."""

    __slots__ = ("_handlers",)

    def __init__(self, handlers: dict[str, HandlerProgress] | None = None) -> None:
        self._handlers = {} if handlers is None else handlers

    @classmethod
    def read(cls, text: str, retried: bool = False) -> RecordProgress:
        """The progress in `text`; `retried` forgets the attempts of handlers that are not done.

        Text that cannot be read counts as no progress: a handler may be called again, but is
        never left out.
        """
        if not text:
            return cls()
        try:
            entries = json.loads(text)
            handlers = {name: _read(entry) for name, entry in entries.items()}
        except (ValueError, TypeError, AttributeError, RecursionError):
            return cls()
        if retried:  # the names stay: they are the handlers of a lane's copy
            handlers = {
                name: each if each.ended in ("done", "fell back") else HandlerProgress()
                for name, each in handlers.items()
                if name not in (_DEATHS, NO_HANDLER)
            }
        return cls(handlers)

    @property
    def names(self) -> tuple[str, ...]:
        """The handlers that have an entry."""
        return tuple(self._handlers)

    def part(self, names: Iterable[str]) -> RecordProgress:
        """The progress of some handlers, for the copy of a lane."""
        return RecordProgress({name: self.of(name) for name in names})

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
        """The progress as JSON, without errors where they would make it too long."""
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


# Records that kill their relays


def is_suspect(claim: KeyClaim) -> bool:
    """Whether the first record of the claim must be handled alone, or not at all."""
    first = claim.records[0]
    return claim.lapses >= SUSPECT_AT or (_DEATHS_JSON in first.progress and not first.retried)


def deaths_of(claim: KeyClaim) -> tuple[RecordProgress, int]:
    """The progress to store with a suspect, and how many relays died while handling it alone."""
    first = claim.records[0]
    progress = RecordProgress.read(first.progress, first.retried)
    known = _DEATHS in progress
    deaths = progress.of(_DEATHS)
    if known and claim.lapses:
        deaths.attempts += 1
    return progress, deaths.attempts


def reason(deaths: int) -> str:
    """Why a suspect waits or is dead."""
    return f"its relays died or lost their leases {deaths + SUSPECT_AT} times in a row"


def suspect_wait(rng: random.Random) -> float:
    return rng.random() * SUSPECT_WAIT_MAX


@dataclass(slots=True, eq=False)
class HeldKey(Held):
    """A claimed key, until it is settled.

    done: how many records of the claim are completed.
    progress: what the handlers have done with the next record, once they have begun.
    """

    claim: KeyClaim
    done: int = 0
    progress: RecordProgress | None = None

    def headers(self) -> list[Mapping[str, str]]:
        return [item.record.headers for item in self.claim.records]

    def end(
        self, action: KeyAction = "give_back", delay: float = 0.0, error: str | None = None
    ) -> KeySettlement:
        """The settlement of the claim, with what was done so far."""
        if self.done == len(self.claim.records):
            return KeySettlement(self.claim, self.done)
        item, known = self.claim.records[self.done], self.progress
        if item.retried and known is None:
            known = RecordProgress.read(item.progress, retried=True)
        changed = known is not None and (known or item.retried)  # writing it clears `retried`
        progress = known.text() if known is not None and changed else None
        return KeySettlement(self.claim, self.done, action, delay, error, progress)
