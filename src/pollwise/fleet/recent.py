"""The last readings of a target, for charts: when, how long it took, and how it ended.

They are kept packed, because a fleet may have a million targets and each poll adds one: the time of
the newest in eight bytes, and seven bytes for each reading. They are saved with the rest of a
target's state as text, which costs no extra write. Durations keep three digits.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from typing import NamedTuple

#: How many readings are kept.
RECENT_MAX = 40

_NEWEST = struct.Struct("<d")
#: Since the reading before, and until the next poll, both in units of LONG; the latency in seconds;
#: and how it ended.
_ENTRY = struct.Struct("<eeeB")
_KEPT = _ENTRY.size * (RECENT_MAX - 1)
#: Half-precision floats end at 65,504: in this unit they reach seven weeks.
LONG = 64.0
_MOST = 65504.0
_OK, _CHANGED = 1, 2


class PastReading(NamedTuple):
    """One poll of a target.

    at: in seconds since 1970. ok: False if the poll failed. changed: the reading changed.
    latency: how long the poll took. wait: how long after it the next poll was planned.
    """

    at: float
    ok: bool
    changed: bool
    latency: float
    wait: float


def recorded(recent: bytes, reading: PastReading) -> bytes:
    """The last readings, with one more."""
    at = reading.at
    since = at - _NEWEST.unpack_from(recent)[0] if recent else 0.0
    entry = _ENTRY.pack(
        _short(since / LONG),
        _short(reading.wait / LONG),
        _short(reading.latency),
        reading.ok * _OK | reading.changed * _CHANGED,
    )
    return _NEWEST.pack(at) + recent[_NEWEST.size :][-_KEPT:] + entry


def past_readings(recent: bytes) -> list[PastReading]:
    """The readings, oldest first."""
    if not recent:
        return []
    at: float = _NEWEST.unpack_from(recent)[0]
    found = []
    for since, wait, latency, how in reversed([*_ENTRY.iter_unpack(recent[_NEWEST.size :])]):
        ended = bool(how & _OK), bool(how & _CHANGED)
        found.append(PastReading(at, *ended, latency, wait * LONG))
        at -= since * LONG
    found.reverse()
    return found


def as_text(recent: bytes) -> str:
    """As it is saved."""
    return base64.b64encode(recent).decode()


def from_text(text: object) -> bytes:
    """What `as_text` returned; empty for anything else."""
    if not isinstance(text, str):
        return b""
    try:
        recent = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return b""
    count, rest = divmod(len(recent) - _NEWEST.size, _ENTRY.size)
    if rest or not 0 < count <= RECENT_MAX or not math.isfinite(_NEWEST.unpack_from(recent)[0]):
        return b""
    return recent


def _short(value: float) -> float:
    return min(value, _MOST) if value > 0 else 0.0
