"""What to do with a notice. A real one sends a mail, or buys the lamp."""

from __future__ import annotations

from pollwise.alerts.values import Notice


async def me(notice: Notice) -> None:
    """Print one line for each notice; `notice.payload` has all that is known."""
    print(f"{notice.event}: {notice.payload['text']}", flush=True)
