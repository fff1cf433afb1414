"""What a probe raises when a poll failed."""

from __future__ import annotations

from pollwise.errors import ProbeError, ProbeRefused


def failed(
    message: str, *, permanent: bool = False, retry_after: float | None = None
) -> ProbeError:
    """The error of a failed poll. The message holds no secret and says what was asked.

    permanent: asking again would not help (no such page, not allowed): a dead letter at once.
    retry_after: the source asked not to be polled again for so many seconds.
    """
    error = ProbeRefused(message) if permanent else ProbeError(message)
    error.retry_after = retry_after
    return error
