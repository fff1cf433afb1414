"""The error that a probe raises if a poll failed."""

from __future__ import annotations

from pollwise.errors import ProbeError, ProbeRefused


def failed(
    message: str, *, permanent: bool = False, retry_after: float | None = None
) -> ProbeError:
    """The error of a failed poll. The message says what was polled, without secrets.

    permanent: polling again would not help (no such page, not allowed): the target is dead at once.
    retry_after: seconds that the source asked to wait before the next poll.
    """
    error = ProbeRefused(message) if permanent else ProbeError(message)
    error.retry_after = retry_after
    return error
