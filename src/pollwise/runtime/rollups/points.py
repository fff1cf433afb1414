"""The figures of a minute or an hour, and how they are added up. No I/O and no clock here."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pollwise.errors import ConfigError
from pollwise.runtime.rollups.histogram import EMPTY, Histogram, added

MINUTE, HOUR = 60.0, 3600.0
#: The kind of the figures of further kinds, if a minute has too many kinds.
OTHER_KINDS = "…other"
#: The maximum number of points of a series.
SERIES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """What workers did in one minute or one hour, of one kind or of several.

    at, seconds: the start of the interval in seconds since 1970 (by the clocks of the workers), and
        its length: 60 or 3600.
    kind: of the jobs or records; "" for what belongs to no kind (polls), or to all of them.
    done, failed: runs that ended well, and runs that ended with an error (retry or dead).
    dead: jobs that died; also those that died without a run.
    found: jobs that were claimed. A job counts in the minute of its claim, again for each retry.
        It arrived before that, by as long as it waited: if waits are below a minute, `found` is the
        number of arrivals, shifted by at most one point.
    polls, empty_polls, failed_polls: all polls, those that found nothing, and those that raised.
    hinted: polls that a hint started.
    worker_seconds: how long workers ran, added up over the workers, each up to its last poll or
        write; it may exceed the interval when pauses are long.
    interval_total: the sum of the pauses that the pacers set, in seconds, one for each poll that
        did not fail. interval_low, interval_high: the shortest and the longest; None without a
        poll.
    waits: how long jobs had been due when they were claimed.
    durations: how long runs took that ended, well or with an error.
    """

    at: float
    seconds: float = MINUTE
    kind: str = ""
    done: int = 0
    failed: int = 0
    dead: int = 0
    found: int = 0
    polls: int = 0
    empty_polls: int = 0
    failed_polls: int = 0
    hinted: int = 0
    worker_seconds: float = 0.0
    interval_total: float = 0.0
    interval_low: float | None = None
    interval_high: float | None = None
    waits: Histogram = EMPTY
    durations: Histogram = EMPTY

    @property
    def interval_mean(self) -> float | None:
        """The mean pause that the pacers set, in seconds; None without a poll."""
        polls = self.polls - self.failed_polls
        return self.interval_total / polls if polls > 0 else None

    def polls_at(self, interval: float) -> float:
        """How many polls the same workers would have made at a fixed interval, in seconds."""
        return self.worker_seconds / interval


def merged(
    points: Iterable[HistoryPoint], *, at: float | None = None, seconds: float | None = None
) -> HistoryPoint:
    """One point with the figures of all of them.

    Its interval reaches from the first to the last, unless given. Its kind is theirs, or "" if they
    have different ones.
    """
    some = list(points)
    if not some:
        return HistoryPoint(at or 0.0, seconds or 0.0)
    start = min(each.at for each in some) if at is None else at
    end = max(each.at + each.seconds for each in some)
    kinds = {each.kind for each in some}
    if len(some) == 1:
        return replace(some[0], at=start, seconds=end - start if seconds is None else seconds)
    lows = [each.interval_low for each in some if each.interval_low is not None]
    highs = [each.interval_high for each in some if each.interval_high is not None]
    return HistoryPoint(
        at=start,
        seconds=end - start if seconds is None else seconds,
        kind=kinds.pop() if len(kinds) == 1 else "",
        done=sum([each.done for each in some]),
        failed=sum([each.failed for each in some]),
        dead=sum([each.dead for each in some]),
        found=sum([each.found for each in some]),
        polls=sum([each.polls for each in some]),
        empty_polls=sum([each.empty_polls for each in some]),
        failed_polls=sum([each.failed_polls for each in some]),
        hinted=sum([each.hinted for each in some]),
        worker_seconds=math.fsum(each.worker_seconds for each in some),
        interval_total=math.fsum(each.interval_total for each in some),
        interval_low=min(lows, default=None),
        interval_high=max(highs, default=None),
        waits=added(each.waits for each in some),
        durations=added(each.durations for each in some),
    )


def by_kind(points: Iterable[HistoryPoint]) -> dict[str, HistoryPoint]:
    """The figures of each kind over all of the time; "" has the polls."""
    kinds: dict[str, list[HistoryPoint]] = {}
    for each in points:
        kinds.setdefault(each.kind, []).append(each)
    return {kind: merged(some) for kind, some in sorted(kinds.items())}


def series(
    points: Iterable[HistoryPoint], step: float, since: float, until: float
) -> list[HistoryPoint]:
    """One point for each `step` seconds from `since` to `until`, without gaps; all kinds together.

    Steps begin at multiples of `step` since 1970, so the first may begin before `since` and the
    last may end after `until`. A point that is longer than a step counts in the step in which it
    begins.
    """
    if not step >= 1.0 or not math.isfinite(since) or not math.isfinite(until):
        raise ConfigError(f"step = {step!r} must be at least 1 s, and the times must be finite")
    first, last = math.floor(since / step), math.ceil(until / step)
    if last - first > SERIES_MAX:
        raise ConfigError(
            f"step = {step:g}: {last - first} steps are above the limit of {SERIES_MAX}; choose a "
            "longer step"
        )
    steps: dict[int, list[HistoryPoint]] = {place: [] for place in range(first, last)}
    for each in points:
        place = math.floor(each.at / step)
        if place in steps:
            steps[place].append(each)
    return [merged(some, at=place * step, seconds=step) for place, some in steps.items()]


def grouped(points: Iterable[HistoryPoint], seconds: float | None) -> list[HistoryPoint]:
    """One point for each interval and kind, sorted; None leaves each interval as long as it is.

    Intervals that are longer than `seconds` stay as they are.
    """
    groups: dict[tuple[float, float, str], list[HistoryPoint]] = {}
    for each in points:
        length = each.seconds if seconds is None else max(seconds, each.seconds)
        at = math.floor(each.at / length) * length
        groups.setdefault((at, length, each.kind), []).append(each)
    return [
        merged(some, at=at, seconds=length)
        if len(some) > 1 or (some[0].at, some[0].seconds) != (at, length)
        else some[0]
        for (at, length, _), some in sorted(groups.items(), key=lambda group: group[0])
    ]


def with_other_kinds(points: Iterable[HistoryPoint], most: int) -> list[HistoryPoint]:
    """Points of one interval and different kinds, at most `most` kinds: the rest is added up.

    Those with the fewest jobs are added up under `OTHER_KINDS`; "" stays.
    """
    listed = list(points)
    kinds = [each for each in listed if each.kind and each.kind != OTHER_KINDS]
    if len(kinds) <= most:
        return listed
    kinds.sort(key=lambda each: -max(each.found, each.done + each.failed + each.dead))
    rest = [*kinds[most:], *(each for each in listed if each.kind == OTHER_KINDS)]
    kept = [each for each in listed if not each.kind] + kinds[:most]
    return [*kept, replace(merged(rest), kind=OTHER_KINDS)]
