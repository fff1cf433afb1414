"""Reads from the headers of an HTTP answer when to come back. They are not trusted: a header that
cannot be read counts as absent, and every number has a maximum.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from pollwise.core.budget import Allowance

#: Maximum of the seconds that a header may ask to wait.
WAIT_MAX = 86400.0
#: A header is read up to this length.
HEADER_MAX = 500
#: A reset above this is a time (in seconds since 1970, or in milliseconds), not a duration.
_EPOCH_FROM = 1e9
_EPOCH_MS_FROM = 1e12

_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,9})?", re.ASCII)
_MAX_AGE = re.compile(r"(?:^|[,\s])max-age\s*=\s*\"?(\d{1,9})\b", re.ASCII | re.IGNORECASE)
#: A parameter of `RateLimit`: r=50 or remaining=50, t=30 or reset=30.
_LEFT = re.compile(r"(?:^|[;,\s])(?:r|remaining)\s*=\s*(\d{1,15})\b", re.ASCII)
_RESET = re.compile(r"(?:^|[;,\s])(?:t|reset)\s*=\s*(\d{1,15})\b", re.ASCII)


def moment(text: str | None) -> float | None:
    """A date of HTTP in seconds since 1970."""
    try:
        return parsedate_to_datetime(text[:HEADER_MAX]).timestamp() if text else None
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def retry_after(text: str | None, epoch: float) -> float | None:
    """The seconds to wait of a `Retry-After`, which is a number or a date; None if it is neither.

    >>> retry_after("120", 0.0), retry_after("soon", 0.0)
    (120.0, None)
    """
    if not text:
        return None
    text = text.strip()[:HEADER_MAX]
    if text.isascii() and text.isdigit():
        return min(float(text), WAIT_MAX)
    at = moment(text)
    return None if at is None else min(max(at - epoch, 0.0), WAIT_MAX)


def refused_for(status: int, headers: Mapping[str, str], epoch: float) -> float | None:
    """The seconds to wait after an answer that refuses for now; None if it does not.

    That is 429; and 403 that says until when, in `Retry-After` or in a limit of which nothing is
    left, as GitHub answers.
    """
    if status not in (403, 429):
        return None
    wait = retry_after(headers.get("retry-after"), epoch)
    left = allowance_in(headers, epoch)
    if left is not None and not left.remaining:
        wait = max(wait or 0.0, left.resets_in)
    return 0.0 if wait is None and status == 429 else wait


def asked_pause(headers: Mapping[str, str], epoch: float) -> float:
    """The seconds that a successful answer asks to wait, or is fresh for; 0 if it does not say.

    `Retry-After`, `X-Poll-Interval` as GitHub sends it, and `Cache-Control: max-age` less `Age`.
    """
    control = headers.get("cache-control", "")[:HEADER_MAX]
    fresh = 0.0
    found = _MAX_AGE.search(control)
    if found and not re.search(r"no-(?:cache|store)", control, re.IGNORECASE):
        fresh = float(found[1]) - (_number(headers.get("age")) or 0.0)
    interval = _number(headers.get("x-poll-interval")) or 0.0
    wait = retry_after(headers.get("retry-after"), epoch) or 0.0
    return min(max(fresh, interval, wait, 0.0), WAIT_MAX)


def allowance_in(headers: Mapping[str, str], epoch: float) -> Allowance | None:
    """The allowance in `RateLimit` (IETF), `RateLimit-*` or `X-RateLimit-*`; None without one.

    If there are several limits, the one that allows the fewest requests a second.
    """
    found = [*_policies(headers.get("ratelimit", "")[:HEADER_MAX])]
    for prefix in ("ratelimit", "x-ratelimit"):
        left = _number(headers.get(f"{prefix}-remaining"))
        reset = _number(headers.get(f"{prefix}-reset"))
        if left is not None and reset is not None:
            found.append(Allowance(int(left), _until(reset, epoch)))
    return min(found, key=_pace, default=None)


def _policies(text: str) -> list[Allowance]:
    if not text:
        return []
    # Before draft 8 there was one limit: "limit=100, remaining=50, reset=30".
    parts = [text] if "remaining" in text else text.split(",")
    found = [(_LEFT.search(part), _RESET.search(part)) for part in parts]
    return [
        Allowance(int(left[1]), min(float(reset[1]), WAIT_MAX)) for left, reset in found
        if left and reset
    ]  # fmt: skip


def _pace(allowance: Allowance) -> float:
    return allowance.remaining / allowance.resets_in if allowance.resets_in else math.inf


def _until(reset: float, epoch: float) -> float:
    """The seconds until a reset, which is written as a duration or as a time."""
    if reset >= _EPOCH_MS_FROM:
        reset /= 1000.0
    wait = reset - epoch if reset >= _EPOCH_FROM else reset
    return min(max(wait, 0.0), WAIT_MAX)


def _number(text: str | None) -> float | None:
    found = _NUMBER.fullmatch(text.strip()[:HEADER_MAX]) if text else None
    return float(found[0]) if found else None
