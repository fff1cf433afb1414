"""The audit log: who changed what, from where.

Each entry is a row of the state, so that all controllers write one log, and a line of the process's
own log (`pollux.audit`). What clients named is made fit for a terminal: a name cannot forge a line.
"""

from __future__ import annotations

import logging

from pollux.clock import Clock
from pollux.controller.rows import AuditEntry
from pollux.controller.state import ControllerState
from pollux.errors import StoreError

logger = logging.getLogger("pollux.audit")

#: The longest text of an entry's part, in characters.
PART_MAX = 500


class Audit:
    """Writes the audit log."""

    def __init__(self, state: ControllerState, clock: Clock | None = None) -> None:
        self._state = state
        self._clock = clock or state.clock

    async def note(
        self, who: str, action: str, what: str = "", detail: str = "", address: str = ""
    ) -> None:
        """Write down that something was done. It was, so nothing fails if the state does."""
        entry = self.entry(who, action, what, detail, address)
        self.log(entry)
        try:
            await self._state.audit([entry])
        except StoreError as error:
            logger.warning(
                "an audit entry is only in this log, for the state failed: %s", error,
                extra={"action": "audit_failed", "fields": {"error": str(error)}},
            )  # fmt: skip

    @staticmethod
    def entry(
        who: str, action: str, what: str = "", detail: str = "", address: str = ""
    ) -> AuditEntry:
        """An entry, fit to be shown, for who writes it beside what was done."""
        return AuditEntry(
            printable(who),
            printable(action),
            printable(what),
            printable(detail),
            printable(address),
        )

    @staticmethod
    def log(entry: AuditEntry) -> None:
        """The line of an entry in the process's own log."""
        logger.info(
            "%s %s %s %s from %s", entry.who, entry.action, entry.what or "-", entry.detail or "-",
            entry.address or "-",
            extra={"action": "audit", "fields": {
                "who": entry.who, "did": entry.action, "what": entry.what,
                "detail": entry.detail, "address": entry.address,
            }},
        )  # fmt: skip


def printable(text: str, most: int = PART_MAX) -> str:
    """Text on one line, without what a terminal would obey: the rest is escaped as Python does.

    >>> printable("a\\nb\\x1b[31m")
    'a\\\\nb\\\\x1b[31m'
    """
    cut = text if len(text) <= most else text[: most - 1] + "…"
    if cut.isprintable():
        return cut
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in cut
    )
