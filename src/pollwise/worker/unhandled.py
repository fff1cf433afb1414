"""Mentions ready jobs of kinds that a worker has no handler for: nothing else would.

A worker claims only its own kinds. A job of another kind may be for another worker, or nobody may
have deployed its handler; and if it has a key, the jobs behind it wait as long as it does.
"""

from __future__ import annotations

from collections.abc import Collection

from pollwise.errors import PollwiseError
from pollwise.queues.base import Queue
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events, KindUnhandled
from pollwise.runtime.jobs import JobInfo

#: A job that has been ready for this many seconds is mentioned; other workers had the time.
READY_FOR = 60.0
#: How often a worker looks at most, in seconds; sooner only for jobs that are not old enough yet.
LOOK_EVERY = 600.0
#: How many ready jobs it looks at.
PAGE = 100
#: How many kinds are mentioned at most.
KINDS_MAX = 100


class UnhandledKinds:
    """Looks after polls that found nothing: the first one, and later only if there is a reason.

    The reason is a hint that named an unknown kind; or that named none and led to nothing, where a
    look costs no request to a server. So an idle worker sends only its polls.
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
        self._reason = self._can
        self._next = 0.0

    async def look(self, hinted: bool) -> None:
        """After a poll that found nothing; `hinted`: a hint had led to it."""
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
            ready = await self._queue.jobs("ready", limit=PAGE)
        except PollwiseError:  # polls report what is wrong with the store
            return
        others = [info for info in ready if info.job.kind not in self._kinds]
        due = self._clock.epoch() - READY_FOR
        if any(info.since > due for info in others):
            self._reason, self._next = True, now + READY_FOR
        for info in others:
            if info.since <= due:
                self._mention(info)

    def _mention(self, info: JobInfo) -> None:
        """Once per kind, and once more for the first of the kind that has a key."""
        job = info.job
        what = job.kind, job.key is not None
        if what not in self._mentioned and len(self._mentioned) < KINDS_MAX:
            self._mentioned.add(what)
            self._events.emit(
                KindUnhandled(self._queue.name, self._worker, job.kind, job.id, job.key)
            )
