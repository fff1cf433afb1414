"""The counts of a running worker or relay, minute by minute, until they are in the store.

Counting costs less than a microsecond a job. The minute that is not over yet is written too, and
written again when it is over: rows are replaced, so a write that is repeated counts once, and a
process that is killed loses what it did since its last write.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from math import log2

from pollwise.runtime.clock import Clock
from pollwise.runtime.loop import Counts
from pollwise.runtime.rollups.histogram import (
    BUCKET_OF_A_SECOND,
    BUCKETS,
    BUCKETS_PER_OCTAVE,
    LEAST,
    Histogram,
    bounds_of,
    bucket_of,
)
from pollwise.runtime.rollups.points import MINUTE, OTHER_KINDS, HistoryPoint, by_kind
from pollwise.runtime.rollups.rows import (
    BY_WORKER,
    KINDS_PER_ROW_MAX,
    ROWS_PER_WRITE_MAX,
    HistoryRow,
    encoded,
)

#: How many kinds are counted apart in a minute, to bound the memory; a row names fewer.
KINDS_COUNTED_MAX = 4 * KINDS_PER_ROW_MAX

_STEPS, _SECOND = BUCKETS_PER_OCTAVE, BUCKET_OF_A_SECOND
#: Durations above it are in the last bucket, in seconds.
MOST, _ = bounds_of(BUCKETS - 1)


class KindTally:
    """Counts of the jobs of one kind in one minute."""

    __slots__ = ("dead", "done", "durations", "failed", "found", "taken", "waited", "waits")

    def __init__(self) -> None:
        self.done: int = 0
        self.failed: int = 0
        self.dead: int = 0
        self.found: int = 0
        self.waits: defaultdict[int, int] = defaultdict(int)
        self.durations: defaultdict[int, int] = defaultdict(int)
        self.waited: float = 0.0
        self.taken: float = 0.0

    def point(self, at: float, kind: str) -> HistoryPoint:
        return HistoryPoint(
            at,
            kind=kind,
            done=self.done,
            failed=self.failed,
            dead=self.dead,
            found=self.found,
            waits=Histogram.from_counts(self.waits, self.waited),
            durations=Histogram.from_counts(self.durations, self.taken),
        )


class MinuteTally:
    """The counts of one minute.

    at: when it began, in seconds since 1970; the seconds within the minute tell apart two minutes
        that are the same because the clock was set back.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.kinds: dict[str, KindTally] = {}
        self.polls: Counts = Counts()
        self.there: float = 0.0
        self.pauses: float = 0.0
        self.shortest: float = math.inf
        self.longest: float = -math.inf

    def is_empty(self) -> bool:
        return not self.kinds and not self.polls.polls

    def points(self) -> list[HistoryPoint]:
        at, polls = float(self.at), self.polls
        whole = HistoryPoint(
            at,
            polls=polls.polls,
            empty_polls=polls.empty,
            failed_polls=polls.failed,
            hinted=polls.hinted,
            worker_seconds=self.there,
            interval_total=self.pauses,
            interval_low=None if math.isinf(self.shortest) else self.shortest,
            interval_high=None if math.isinf(self.longest) else self.longest,
        )
        return [whole, *(each.point(at, kind) for kind, each in self.kinds.items())]


class Tally:
    """The counts of one run of a worker or a relay, until a store keeps them.

    writer: the name under which they are stored; each run has its own.
    """

    def __init__(self, writer: str, clock: Clock) -> None:
        self._writer = writer
        self._clock = clock
        self._seen = Counts()  # what the loop had counted at the last poll
        self._marked = clock.now()
        self._setbacks = 0
        self._past: dict[int, list[HistoryPoint]] = {}  # minutes that are over, by `at`
        self._offered: tuple[int, ...] = ()  # the minutes in the last `rows`
        self._now = MinuteTally(self._minute())
        self._over = self._end()

    # Counting

    def found(self, now: float, kinds: Iterable[str], waits: Iterable[float | None]) -> None:
        """Jobs of these kinds were claimed, after these waits; None if that is unknown."""
        if now >= self._over:
            self._turn()
        known = self._now.kinds
        for kind, wait in zip(kinds, waits, strict=True):
            tally = known.get(kind) or self._kind(kind)
            tally.found += 1
            if wait is None:
                continue
            tally.waited += wait
            # `bucket_of` without a call, because this is done for each job.
            tally.waits[
                int(log2(wait) * _STEPS + _SECOND) if LEAST < wait < MOST else bucket_of(wait)
            ] += 1

    def done(self, now: float, kind: str, took: float) -> None:
        """A run ended well; took: in seconds."""
        if now >= self._over:
            self._turn()
        tally = self._now.kinds.get(kind) or self._kind(kind)
        tally.done += 1
        tally.taken += took
        tally.durations[
            int(log2(took) * _STEPS + _SECOND) if LEAST < took < MOST else bucket_of(took)
        ] += 1

    def failed(self, now: float, kind: str, took: float) -> None:
        """A run ended with an error."""
        if now >= self._over:
            self._turn()
        tally = self._kind(kind)
        tally.failed += 1
        tally.taken += took
        tally.durations[bucket_of(took)] += 1

    def died(self, kind: str) -> None:
        """A job died."""
        self._kind(kind).dead += 1

    def polled(self, counts: Counts, interval: float) -> None:
        """A poll ended; `counts` is what the loop has counted, `interval` the pause it has set."""
        now, seen = self._clock.now(), self._seen
        if now >= self._over:
            self._turn()
        this, polls = self._now, self._now.polls
        polls.polls += counts.polls - seen.polls
        polls.empty += counts.empty - seen.empty
        polls.failed += counts.failed - seen.failed
        polls.hinted += counts.hinted - seen.hinted
        seen.polls, seen.empty = counts.polls, counts.empty
        seen.failed, seen.hinted = counts.failed, counts.hinted
        this.pauses += interval
        this.shortest = min(this.shortest, interval)
        this.longest = max(this.longest, interval)
        self._mark(now)

    def _kind(self, kind: str) -> KindTally:
        kinds = self._now.kinds
        if len(kinds) >= KINDS_COUNTED_MAX and kind not in kinds:
            kind = OTHER_KINDS
        return kinds.setdefault(kind, KindTally())

    def _mark(self, now: float) -> None:
        self._now.there += max(now - self._marked, 0.0)
        self._marked = now

    # Minutes

    def _minute(self) -> int:
        return int(self._clock.epoch() // MINUTE * MINUTE) + self._setbacks

    def _end(self) -> float:
        return self._clock.now() + MINUTE - self._clock.epoch() % MINUTE

    def _turn(self) -> None:
        """The minute is over: begin the next one."""
        before = self._now
        self._over = self._end()
        minute = self._minute()
        if minute == before.at:
            return
        if minute < before.at:  # the clock was set back: rows of that time are there already
            self._setbacks = (self._setbacks + 1) % int(MINUTE)
            minute = self._minute()
        self._now = MinuteTally(minute)
        if before.is_empty():
            self._now.there = before.there
        else:
            self._past[before.at] = before.points()
        if len(self._past) >= ROWS_PER_WRITE_MAX:
            self._merge_oldest()

    def _merge_oldest(self) -> None:
        """Add up the two oldest minutes, so that what the store does not take stays bounded."""
        first, second = list(self._past)[:2]
        points = [*self._past.pop(first), *self._past[second]]
        self._past[second] = list(by_kind(points).values())

    # Writing

    def rows(self) -> list[HistoryRow]:
        """Return the rows to write: minutes that are over and not written, and the present one."""
        now = self._clock.now()
        if now >= self._over:
            self._turn()
        self._mark(now)
        self._offered = tuple(self._past)
        minutes = dict(self._past)
        if not self._now.is_empty():
            minutes[self._now.at] = self._now.points()
        return [
            HistoryRow(BY_WORKER, at, self._writer, encoded(points))
            for at, points in minutes.items()
        ]

    def written(self) -> None:
        """The last `rows` are in the store. The present minute is written again when it is over."""
        for at in self._offered:
            self._past.pop(at, None)
