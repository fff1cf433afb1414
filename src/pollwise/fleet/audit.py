"""The fleet's audit log: who gave which orders, and who changed settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pollwise.runtime.audit import AuditEntry, write_down

if TYPE_CHECKING:
    from pollwise.fleet.stores.base import FleetStore

#: How long entries are kept, in seconds; and of how many targets the names are told.
KEPT = 90 * 86400.0
NAMES_TOLD = 20


async def note(
    store: FleetStore | None,
    who: str,
    action: str,
    what: str = "",
    detail: str = "",
    address: str = "",
) -> None:
    """Write down that something was done; without a store, in the process's own log alone."""
    entry = AuditEntry.of(who, action, what, detail, address)
    if store is None:
        entry.log()
    else:
        await write_down(entry, store.audit)


async def note_order(
    store: FleetStore | None, who: str, order: str, names: Sequence[str], address: str = ""
) -> None:
    """Write down that somebody asked something of targets."""
    listed = ", ".join(map(repr, names[:NAMES_TOLD])) + ", …" * (len(names) > NAMES_TOLD)
    detail = f"{len(names)} targets" if len(names) > 1 else ""
    await note(store, who, f"target.{order}", listed, detail, address)
