"""The audit log of a controller or a fleet: who changed what, from where.

Each entry is a row in the store, so that all its processes write one log, and a line in the
process's own log (`pollwise.audit`). Names given by clients are escaped, so that none can forge a
line.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pollwise.errors import StoreError

logger = logging.getLogger("pollwise.runtime.audit")

#: The longest text of an entry's part, in characters.
PART_MAX = 500


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An entry: who did what to what, and from where. The store fills in `id` and `at`."""

    who: str
    action: str
    what: str = ""
    detail: str = ""
    address: str = ""
    id: int = 0
    at: float = 0.0

    @classmethod
    def of(
        cls, who: str, action: str, what: str = "", detail: str = "", address: str = ""
    ) -> AuditEntry:
        """An entry with all its texts escaped."""
        who, action, what = printable(who), printable(action), printable(what)
        return cls(who, action, what, printable(detail), printable(address))

    def log(self) -> None:
        """Write its line to the process's own log."""
        logger.info(
            "%s %s %s %s from %s", self.who, self.action, self.what or "-", self.detail or "-",
            self.address or "-",
            extra={"action": "audit", "fields": {
                "who": self.who, "did": self.action, "what": self.what,
                "detail": self.detail, "address": self.address,
            }},
        )  # fmt: skip


async def write_down(entry: AuditEntry, keep: Callable[[AuditEntry], Awaitable[None]]) -> None:
    """Log an entry and store it. A failing store is only logged: the action was done already."""
    entry.log()
    try:
        await keep(entry)
    except StoreError as error:
        logger.warning(
            "an audit entry is only in this log, because the store failed: %s", error,
            extra={"action": "audit_failed", "fields": {"error": str(error)}},
        )  # fmt: skip


def printable(text: str, limit: int = PART_MAX) -> str:
    """Return text as one line without control characters, which are escaped as in Python.

    >>> printable("a\\nb\\x1b[31m")
    'a\\\\nb\\\\x1b[31m'
    """
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    if cut.isprintable():
        return cut
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in cut
    )
