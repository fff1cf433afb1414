"""How much is claimed ahead of a free handler: bounded by number, by time and by bytes."""

from __future__ import annotations

from collections.abc import Sequence

#: Unless prefetch is given, claim this many seconds of work ahead ...
AHEAD_SECONDS = 0.1
#: ... and at most this many jobs.
AHEAD_MAX = 256
#: Weight of the newest run in the average time a handler takes.
TOOK_WEIGHT = 0.1
#: Weight of the newest claim in the average size of a payload, if it falls; if it grows, it counts
#: at once.
SIZE_WEIGHT = 0.25
#: The default maximum of bytes of payloads that wait for a free handler.
PREFETCH_BYTES = 16 * 1024 * 1024


class Ahead:
    """Learns from what was run.

    Short jobs are claimed by the hundred, to make a round trip worthwhile. Long ones are not
    claimed ahead at all: a job that waits here for minutes could run elsewhere.

    concurrency: how many handlers run at a time; it may change.
    prefetch: a fixed number of jobs; None: by how long handlers take.
    most_bytes: the maximum size of the payloads of those jobs together.
    largest: the largest payload that the store allows, which is assumed before the first claim.
    """

    def __init__(
        self, prefetch: int | None, concurrency: int, most_bytes: int, largest: int
    ) -> None:
        self._prefetch = prefetch
        self.concurrency = concurrency
        self.most_bytes = most_bytes
        self._took: float | None = None  # average duration of a handler
        self._size: float | None = None  # average size of a payload
        self._largest = largest

    def jobs(self) -> int:
        """How many jobs to claim ahead."""
        size = self._largest if self._size is None else self._size
        return min(self._jobs(), int(self.most_bytes / max(size, 1.0)))

    def _jobs(self) -> int:
        if self._prefetch is not None:
            return self._prefetch
        if self._took is None:
            return 0
        return int(min(self.concurrency * AHEAD_SECONDS / max(self._took, 1e-6), AHEAD_MAX))

    def claimed(self, sizes: Sequence[int]) -> None:
        """A claim brought payloads of these sizes; 0 for one of unknown size."""
        mean = sum(sizes) / len(sizes)
        if self._size is None or mean > self._size:
            self._size = mean
        else:
            self._size += (mean - self._size) * SIZE_WEIGHT

    def ran(self, took: float) -> None:
        """A handler took this many seconds."""
        self._took = took if self._took is None else self._took + (took - self._took) * TOOK_WEIGHT

    def full_at(self, limit: int) -> int:
        """How many jobs make a claim of up to `limit` count as full.

        The number claimed ahead varies from poll to poll. Unless prefetch is given, the capacity
        that strategies see is therefore limited to twice the concurrency.
        """
        return limit if self._prefetch is not None else min(limit, 2 * self.concurrency)
