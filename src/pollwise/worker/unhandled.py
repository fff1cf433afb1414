"""Reports ready jobs of kinds that a worker has no handler for: nothing else would.

A worker claims only its own kinds. A job of another kind may be for another worker, or nobody may
have deployed its handler; and if it has a key, the jobs behind it wait as long as it does.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from pollwise.errors import PollwiseError
from pollwise.queues.base import Queue
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events, KindUnhandled

#: A job is reported once it has been ready for this many seconds: other workers had time for it.
READY_FOR = 60.0
#: How often a worker looks at most, in seconds; sooner only for jobs that are not old enough yet.
LOOK_EVERY = 600.0
#: How many ready jobs it looks at.
PAGE = 100
#: How many kinds are reported at most.
KINDS_MAX = 100


class _Waiting(NamedTuple):
    """A ready job; without its id where only kinds are counted."""

    kind: str
    id: str
    key: str | None
    ready_for: float


class UnhandledKinds:
    """Looks after polls that found nothing: the first one, and later only if there is a reason.

    The reason is a hint that named an unknown kind. If a look costs no request to a server, it is
    also any hint after which the poll found nothing. So an idle worker sends only its polls.
    """

    def __init__(
        self, queue: Queue, worker: str, kinds: Collection[str], clock: Clock, events: Events
    ) -> None:
        self._queue = queue
        self._worker = worker
        self._kinds = kinds
        self._clock = clock
        self._events = events
        self._mentioned: set[tuple[str, bool]] = set()
        self._heard = set(kinds)
        self._can = queue.capabilities.kinds and queue.capabilities.views
        self._local = queue.capabilities.hints == "machine"
        self._counts = queue.url.startswith("http")  # a worker's token may count jobs, not see them
        self._reason = self._can
        self._next = 0.0

    async def look(self, hinted: bool) -> None:
        """Look, after a poll that found nothing; `hinted`: a hint had caused the poll."""
        if not self._can:
            return
        now, heard = self._clock.now(), self._queue.hints().heard
        if hinted and (self._local or not heard.issubset(self._heard)):
            self._reason = True
        if not self._reason or now < self._next:
            return
        self._reason, self._next = False, now + LOOK_EVERY
        self._heard = heard | set(self._kinds)
        try:
            waiting = [each for each in await self._waiting() if each.kind not in self._kinds]
        except PollwiseError:  # polls report what is wrong with the store
            return
        if any(each.ready_for < READY_FOR for each in waiting):
            self._reason, self._next = True, now + READY_FOR
        for each in waiting:
            if each.ready_for >= READY_FOR:
                self._mention(each)

    async def ready_kinds(self) -> tuple[str, ...]:
        """The kinds of ready jobs that this worker has no handler for, as far as one page shows."""
        if not self._can:
            return ()
        try:
            return tuple(sorted({each.kind for each in await self._waiting()} - set(self._kinds)))
        except PollwiseError:  # polls report what is wrong with the store
            return ()

    async def _waiting(self) -> list[_Waiting]:
        if self._counts:
            kinds = await self._queue.stats_by_kind()
            return [_Waiting(k, "", None, s.oldest_age or 0.0) for k, s in kinds.items() if s.ready]
        now, ready = self._clock.epoch(), await self._queue.jobs("ready", limit=PAGE)
        if len(ready) == PAGE:  # kinds that come first, such as paused ones, may hide others
            counts = await self._queue.stats_by_kind()
            others = [k for k, s in counts.items() if s.ready and k not in self._kinds]
            for kind in others[:KINDS_MAX]:
                ready += await self._queue.jobs("ready", kind=kind, limit=PAGE)
        ready.sort(key=lambda info: info.since)
        return [_Waiting(i.job.kind, i.job.id, i.job.key, now - i.since) for i in ready]

    def _mention(self, job: _Waiting) -> None:
        """Report a kind once, and once more for its first job that has a key."""
        what = job.kind, job.key is not None
        if what not in self._mentioned and len(self._mentioned) < KINDS_MAX:
            self._mentioned.add(what)
            self._events.emit(
                KindUnhandled(self._queue.name, self._worker, job.kind, job.id, job.key)
            )
