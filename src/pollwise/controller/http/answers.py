"""JSON answers, and errors that say what to do.

    {"error": {"code": "no_such_job", "message": "there is no job 'x'", "what_to_do": "…"}}

`code` is for programs, `message` says what was wrong, `what_to_do` what to do about it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pollwise.controller.missing_files import MissingStorage
from pollwise.errors import (
    Compensated,
    ConfigError,
    JobError,
    LeaseLost,
    StoreError,
    StoreUnavailable,
    UniqueConflict,
    Unsupported,
)

#: How many characters of a client's text an error quotes.
QUOTED_MAX = 80


class HttpError(Exception):
    """A request that is answered with an error."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        what_to_do: str,
        headers: Mapping[str, str] | None = None,
        items: Sequence[tuple[int, str]] = (),
    ) -> None:
        """items: the index of each bad entry of a list, and what is wrong with it."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.what_to_do = what_to_do
        self.headers: dict[str, str] = dict(headers or {})
        self.items = items

    def body(self) -> bytes:
        detail: dict[str, Any] = {
            "code": self.code,
            "message": self.message,
            "what_to_do": self.what_to_do,
        }
        if self.items:
            detail["items"] = [{"index": at, "message": text} for at, text in self.items]
        return encoded({"error": detail})


def error_for(error: Exception) -> HttpError:
    """The HTTP error for any error."""
    message = str(error)
    if isinstance(error, HttpError):
        return error
    if isinstance(error, UniqueConflict):
        return HttpError(409, "unique_conflict", message, "Correct the request and send it again.")
    if isinstance(error, Compensated):
        return HttpError(409, "compensated", message, "Put a new flow, or say `anyway`: true.")
    if isinstance(error, Unsupported):
        return HttpError(422, "unsupported", message, "Leave it out, or use another store.")
    if isinstance(error, (JobError, ConfigError)):
        return invalid(message)
    if isinstance(error, LeaseLost):
        return lease_lost(error.lost)
    if isinstance(error, MissingStorage):  # it does not go away by itself
        return HttpError(
            503,
            "store_unavailable",
            error.reason,
            "Tell an admin; the controller's log says where, and what to do.",
            {"Retry-After": "60"},
        )
    if isinstance(error, StoreUnavailable):
        return HttpError(
            503,
            "store_unavailable",
            "the store does not answer now",
            "Try again in a few seconds; the controller's log says more.",
            {"Retry-After": "5"},
        )
    what = "the store refused" if isinstance(error, StoreError) else "the controller failed"
    return HttpError(500, "internal", what, "Tell an admin; the controller's log says why.")


def invalid(message: str) -> HttpError:
    return HttpError(422, "invalid", message, "Correct the request and send it again.")


def lease_lost(ids: tuple[str, ...]) -> HttpError:
    return HttpError(
        409,
        "lease_lost",
        f"{', '.join(quoted(each)[1:-1] for each in ids[:5])} is not, or no longer, a job of yours",
        "Stop working on it: it ended, or went to another worker after a silence.",
    )


def no_such(what: str, name: str) -> HttpError:
    return HttpError(
        404,
        f"no_such_{what}",
        f"there is no {what} {quoted(name)} that you may see",
        f"Check the id, and whether your token may see this {what}.",
    )


def bytes_gone() -> HttpError:
    return HttpError(
        410,
        "bytes_gone",
        "the bytes of this file are gone",
        "Make it again, or ask an admin to restore it from a backup.",
    )


def too_soon(after: float, min_interval: float, who: str = "this worker polls") -> HttpError:
    wait = max(math.ceil(after), 1)
    return HttpError(
        429,
        "too_soon",
        f"{who} too often: at most once in {min_interval:g} s is accepted",
        f"Wait {wait} s, or the next_poll_s of the previous answer.",
        {"Retry-After": str(wait)},
    )


def encoded(value: Any) -> bytes:
    """Compact JSON; the values are always valid JSON."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def moment(at: float | None) -> str | None:
    """Seconds since 1970 as ISO 8601 in UTC, to the millisecond."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def quoted(value: object) -> str:
    """A client's value for an answer or a log: short and printable."""
    if isinstance(value, str) and len(value) > QUOTED_MAX:
        return repr(f"{value[:QUOTED_MAX]}…")
    return repr(value)[: QUOTED_MAX + 10]
