"""The controller's audit log, in its state."""

from __future__ import annotations

from pollwise.controller.state.base import ControllerState
from pollwise.runtime.audit import AuditEntry, write_down


class Audit:
    """Writes the audit log."""

    def __init__(self, state: ControllerState) -> None:
        self._state = state

    async def note(
        self, who: str, action: str, what: str = "", detail: str = "", address: str = ""
    ) -> None:
        """Write down that something was done."""
        await write_down(AuditEntry.of(who, action, what, detail, address), self._keep)

    async def _keep(self, entry: AuditEntry) -> None:
        await self._state.audit([entry])
