"""The fields of a job: their limits, and the checks that refuse what is outside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime

from pollwise.durations import Duration, seconds
from pollwise.errors import JobError, PollwiseError

#: The longest kind, key and unique, in characters.
NAME_LENGTH_MAX = 200
#: The longest delay of a job, in seconds: ten years.
DELAY_MAX = 10 * 365 * 86400.0
#: Priorities run from -PRIORITY_MAX to PRIORITY_MAX.
PRIORITY_MAX = 1000
#: The longest error or reason that is kept with a job, in characters.
ERROR_LENGTH_MAX = 2000
#: The largest headers of a job, in bytes of JSON.
MAX_HEADER_BYTES = 8 * 1024


def checked_name(value: object, name: str, error: type[PollwiseError] = JobError) -> str:
    """Check a kind, key or unique: text of 1 to NAME_LENGTH_MAX printable characters."""
    if not isinstance(value, str) or not value or not value.isprintable():
        raise error(
            f"{name} = {value!r} must be text of at least one character, all of them printable"
        )
    if len(value) > NAME_LENGTH_MAX:
        raise error(
            f"{name} = {value[:20]!r}… has {len(value)} characters; at most {NAME_LENGTH_MAX}"
        )
    return value


def checked_priority(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > PRIORITY_MAX:
        raise JobError(
            f"priority = {value!r} must be a whole number from -{PRIORITY_MAX} to {PRIORITY_MAX}"
        )
    return value


def checked_headers(headers: object) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise JobError(f"headers = {headers!r} must be a mapping of text to text")
    for name, value in headers.items():
        checked_name(name, "the name of a header")
        if not isinstance(value, str) or "\0" in value:
            raise JobError(f"the header {name!r} = {value!r} must be text without zero bytes")
    checked = dict(headers)
    try:
        size = len(encoded_headers(checked).encode())
    except UnicodeEncodeError:
        raise JobError("a header has half of a surrogate pair, which is not text") from None
    if size > MAX_HEADER_BYTES:
        raise JobError(
            f"the headers have {size} bytes of JSON; at most {MAX_HEADER_BYTES}. Put large data "
            "into the payload"
        )
    return checked


def encoded_headers(headers: Mapping[str, str]) -> str:
    return json.dumps(headers, ensure_ascii=False)


def checked_delay(value: Duration, name: str = "delay") -> float:
    """The seconds of a delay."""
    try:
        delay = seconds(value, name)
    except ValueError as error:
        raise JobError(str(error)) from None
    if delay > DELAY_MAX:
        raise JobError(f"{name} = {value!r} is above the limit of ten years")
    return delay


def checked_moment(value: datetime | float, name: str) -> float:
    """The seconds since 1970 of a moment."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise JobError(
                f"{name} = {value!r} has no time zone; use datetime.now(timezone.utc) "
                "or .astimezone()"
            )
        return value.timestamp()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e11:
        raise JobError(f"{name} = {value!r} must be an aware datetime or seconds since 1970")
    return float(value)


def storable(error: str | None, most: int = ERROR_LENGTH_MAX) -> str | None:
    """Shorten and escape an error text so that every store can keep it."""
    if error is None:
        return None
    text = str(error)[:most].replace("\0", "\\0").replace("\x1e", " ")
    return text.encode("utf-8", "backslashreplace").decode()[:most]
