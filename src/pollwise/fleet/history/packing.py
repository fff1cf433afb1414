"""How the figures of an hour or a day are stored: about thirty bytes.

Whole numbers take one byte for each seven bits. A bucket of the latency takes one byte and its
count; a bucket is below 256. Only readings that are numbers take more: three floats.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable

from pollwise.fleet.history.values import NO_POLLS, PollFigures
from pollwise.runtime.rollups.histogram import BUCKETS, EMPTY, Histogram, added

#: The first byte, to recognise a later format.
_FORMAT = 1
_VALUES = struct.Struct("<ddd")
#: Larger counts are not ours.
_COUNT_MAX = 2**53
#: The unit of the sum of latencies, in seconds.
_MICRO = 1e-6
#: Readings above it do not count as numbers: their sum stays finite.
VALUE_LIMIT = 1e100


def packed(figures: PollFigures) -> bytes:
    """The figures as bytes; none for NO_POLLS."""
    if not figures.polls:
        return b""
    out = bytearray([_FORMAT])
    for count in (figures.polls, figures.failed, figures.changed):
        _put(out, count)
    _put(out, round(figures.latency.total / _MICRO))
    _put(out, len(figures.latency.counts))
    for bucket, hits in figures.latency.counts:
        out.append(bucket)
        _put(out, hits)
    _put(out, figures.values)
    if figures.values:
        out += _VALUES.pack(figures.low, figures.high, figures.total)
    return bytes(out)


def unpacked(raw: bytes) -> PollFigures:
    """What `packed` returned; NO_POLLS for anything else."""
    try:
        return _unpacked(raw) if raw else NO_POLLS
    except (IndexError, ValueError, struct.error):
        return NO_POLLS


def _unpacked(raw: bytes) -> PollFigures:
    if raw[0] != _FORMAT:
        raise ValueError(raw[0])
    place = 1
    counts = []
    for _ in range(5):
        count, place = _get(raw, place)
        counts.append(count)
    polls, failed, changed, total, buckets = counts
    if buckets > BUCKETS:
        raise ValueError(buckets)
    hit: list[tuple[int, int]] = []
    for _ in range(buckets):
        bucket = raw[place]
        hits, place = _get(raw, place + 1)
        if bucket >= BUCKETS or not hits or (hit and bucket <= hit[-1][0]):
            raise ValueError(bucket)
        hit.append((bucket, hits))
    latency = Histogram(tuple(hit), total * _MICRO) if hit else EMPTY
    values, place = _get(raw, place)
    low = high = summed = 0.0
    if values:
        low, high, summed = _VALUES.unpack_from(raw, place)
        if not abs(low) <= VALUE_LIMIT or not abs(high) <= VALUE_LIMIT or not math.isfinite(summed):
            raise ValueError(raw)
    return PollFigures(polls, failed, changed, latency, values, low, high, summed)


def _put(out: bytearray, count: int) -> None:
    while count > 127:
        out.append(count & 127 | 128)
        count >>= 7
    out.append(count)


def _get(raw: bytes, place: int) -> tuple[int, int]:
    count = shift = 0
    while True:
        byte = raw[place]
        place += 1
        count |= (byte & 127) << shift
        if byte < 128:
            return count, place
        shift += 7
        if count >= _COUNT_MAX:
            raise ValueError(count)


def added_up(figures: Iterable[PollFigures]) -> PollFigures:
    """The figures of all of these together."""
    some = [each for each in figures if each.polls]
    if len(some) <= 1:
        return some[0] if some else NO_POLLS
    numeric = [each for each in some if each.values]
    return PollFigures(
        sum([each.polls for each in some]),
        sum([each.failed for each in some]),
        sum([each.changed for each in some]),
        added(each.latency for each in some),
        sum([each.values for each in numeric]),
        min((each.low for each in numeric), default=0.0),
        max((each.high for each in numeric), default=0.0),
        math.fsum(each.total for each in numeric),
    )
