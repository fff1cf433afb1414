"""Durations as people write them: "250ms", a timedelta, or a number of seconds.

All other code uses seconds as floats; only this module parses units.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from functools import lru_cache

from pollwise.errors import ConfigError

type_names = "a number of seconds, a timedelta, or a string such as '250ms', '5s', '2m', '1h', '1d'"

Duration = float | int | str | timedelta

# Factor and divisor: 9 / 1000 is 0.009, but 9 * 0.001 is not.
_UNITS = {
    "us": (1.0, 1e6),
    "µs": (1.0, 1e6),
    "ms": (1.0, 1e3),
    "s": (1.0, 1.0),
    "m": (60.0, 1.0),
    "min": (60.0, 1.0),
    "h": (3600.0, 1.0),
    "d": (86400.0, 1.0),
}
_NUMBER = r"((?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)"
_BARE = re.compile(_NUMBER, re.ASCII | re.IGNORECASE)
_PART = re.compile(rf"\s*{_NUMBER}\s*(us|µs|ms|min|s|m|h|d)", re.ASCII | re.IGNORECASE)
_SHOWN_MAX = 80


def seconds(value: Duration, name: str = "duration", *, positive: bool = False) -> float:
    """Return `value` in seconds; `name` is what the error calls it.

    >>> seconds("250ms"), seconds("1m30s"), seconds(2), seconds(timedelta(minutes=1))
    (0.25, 90.0, 2.0, 60.0)
    """
    result = _parse(value, name)
    if not math.isfinite(result):
        raise ConfigError(f"{name} = {shown(value)} is not finite; give {type_names}")
    if result < 0 or (positive and result == 0):
        wanted = "above 0" if positive else "0 or more"
        raise ConfigError(f"{name} = {shown(value)} must be {wanted}; give {type_names}")
    return result or 0.0  # not -0.0


def shown(value: object) -> str:
    """Return a given value as text, cut to a length that suits an error message."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write integers of thousands of digits
        text = f"<{type(value).__name__} too long to write>"
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 2]} …"


def _parse(value: object, name: str) -> float:
    if isinstance(value, bool):
        raise ConfigError(f"{name} = {value!r} is not a duration; give {type_names}")
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        return _parse_text(value, name)
    raise ConfigError(f"{name} = {shown(value)} is a {type(value).__name__}; give {type_names}")


def _parse_text(text: str, name: str) -> float:
    found = _seconds_in(text)
    if found is None:
        raise ConfigError(f"{name} = {shown(text)} is not a duration; give {type_names}")
    return found


@lru_cache(1000)  # the same few texts are in all definitions of a file
def _seconds_in(text: str) -> float | None:
    stripped = text.strip()
    sign = -1.0 if stripped.startswith("-") else 1.0
    rest = stripped[1:] if stripped.startswith(("+", "-")) else stripped
    if _BARE.fullmatch(rest):
        return sign * float(rest)
    total, at = 0.0, 0
    while at < len(rest):
        part = _PART.match(rest, at)
        if part is None:
            break
        times, over = _UNITS[part[2].lower()]
        total += float(part[1]) * times / over
        at = part.end()
    if at == 0 or rest[at:].strip():
        return None
    return sign * total


def short(value: float) -> str:
    """Write seconds the way `seconds` reads them: 0.25 -> '250ms', 90 -> '1m30s'.

    >>> short(0.25), short(5), short(90), short(0)
    ('250ms', '5s', '1m30s', '0s')
    """
    if value < 0:
        return "-" + short(-value)
    if value == 0:
        return "0s"
    if not math.isfinite(value):
        return str(value)
    if value < 999.5e-6:  # which would be rounded to 1e+03us
        return f"{value * 1e6:.3g}us"
    if value < 1:
        return f"{value * 1e3:.4g}ms"
    if value < 60:
        return f"{value:.4g}s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (rest, "s")]
    return "".join(f"{amount}{unit}" for amount, unit in parts if amount)
