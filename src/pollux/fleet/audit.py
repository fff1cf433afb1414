"""The audit of a fleet: who changed what, from where, in the shape of the controller's.

Each entry is a row of the fleet's store, so that all nodes and the command line write one log, and
a line of the process's own log (`pollux.audit`). What clients named is made fit for a terminal: a
name cannot forge a line.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pollux.errors import StoreError

if TYPE_CHECKING:
    from pollux.fleet.store import FleetStore

logger = logging.getLogger("pollux.audit")

#: How long entries are kept, in seconds; the longest text of an entry's part, in characters; and of
#: how many targets the names are told.
KEPT = 90 * 86400.0
PART_MAX = 500
NAMES_TOLD = 20


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who did what to what, from where. `id` and `at` are filled by the store."""

    who: str
    action: str
    what: str = ""
    detail: str = ""
    address: str = ""
    id: int = 0
    at: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


async def note(
    store: FleetStore | None,
    who: str,
    action: str,
    what: str = "",
    detail: str = "",
    address: str = "",
) -> None:
    """Write down that something was done. It was, so nothing fails if the store does."""
    entry = AuditEntry(
        _printable(who),
        _printable(action),
        _printable(what),
        _printable(detail),
        _printable(address),
    )
    logger.info(
        "%s %s %s %s from %s", entry.who, entry.action, entry.what or "-", entry.detail or "-",
        entry.address or "-",
        extra={"action": "audit", "fields": {
            "who": entry.who, "did": entry.action, "what": entry.what,
            "detail": entry.detail, "address": entry.address,
        }},
    )  # fmt: skip
    if store is None:
        return
    try:
        await store.audit(entry)
    except StoreError as error:
        logger.warning(
            "an audit entry is only in this log, for the store failed: %s", error,
            extra={"action": "audit_failed", "fields": {"error": str(error)}},
        )  # fmt: skip


async def note_order(
    store: FleetStore | None, who: str, order: str, names: Sequence[str], address: str = ""
) -> None:
    """Write down that somebody asked something of targets."""
    listed = ", ".join(map(repr, names[:NAMES_TOLD])) + ", …" * (len(names) > NAMES_TOLD)
    detail = f"{len(names)} targets" if len(names) > 1 else ""
    await note(store, who, f"target.{order}", listed, detail, address)


def _printable(text: str) -> str:
    cut = text if len(text) <= PART_MAX else text[: PART_MAX - 1] + "…"
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in cut
    )
