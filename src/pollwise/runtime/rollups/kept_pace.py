"""The pace of a worker or a relay, kept in its store over restarts.

It rides on writes that happen anyway: every few minutes on a record or an announcement, and on the
last one at a stop. One read at the start, before the first poll, finds it. There is one pace for
each strategy and set of kinds, not for each worker: after a deploy, workers have other names. The
last one written counts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

from pollwise.core.strategies.fixed import Fixed
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events, PaceRestored
from pollwise.runtime.loop import PollLoop
from pollwise.runtime.rollups.keeping import KeptHistory
from pollwise.runtime.rollups.rows import PACE, PACE_AT, ROW_BYTES_MAX, HistoryRow

#: How often a pace is written, in seconds; a stop writes it too.
PACE_EVERY = 300.0
#: How long the read at the start may take, in seconds; after that the loop starts to learn again.
READ_WITHIN = 2.0


class KeptPace:
    """Keeps the pace of a loop in a store.

    kinds: the kinds of work that are polled for; empty if that does not matter.
    """

    def __init__(
        self,
        store: KeptHistory,
        polls: PollLoop[Any],
        clock: Clock,
        events: Events,
        kinds: Iterable[str] = (),
    ) -> None:
        self._store = store
        self._polls = polls
        self._clock = clock
        self._events = events
        self._learns = not isinstance(polls.strategy, Fixed)
        self._strategy = _digest([repr(polls.strategy)])
        self._key = f"{self._strategy}-{_digest(sorted(kinds))}"
        self._next = 0.0

    async def read(self) -> None:
        """Before the first poll: go on at the kept pace, if there is one.

        The pace of other kinds is better than none: a new version of a program may have more kinds.
        """
        if not self._learns:
            return
        try:
            async with asyncio.timeout(READ_WITHIN):
                kept = await self._store.paces()
        except Exception as error:
            problem = f"it could not be read: {type(error).__name__}: {error}"
            self._events.emit(PaceRestored(self._polls.name, 0.0, problem))
            return
        fitting = [each for each in kept if each.key.startswith(self._strategy)]
        if fitting:
            newest = max(fitting, key=lambda each: (each.key == self._key, each.saved_at))
            self._polls.restore(newest.state)

    def rows(self, *, last: bool = False) -> list[HistoryRow]:
        """Return the rows to write with those of history, if it is time.

        last: the loop ends.
        """
        now = self._clock.now()
        state = self._polls.dump() if self._learns and (last or now >= self._next) else None
        if state is None:
            return []
        value = json.dumps(state, separators=(",", ":"))
        if len(value) > ROW_BYTES_MAX:
            return []
        self._next = now + PACE_EVERY
        return [HistoryRow(PACE, PACE_AT, self._key, value)]


def _digest(texts: Iterable[str]) -> str:
    return sha256("\n".join(texts).encode("utf-8", "replace")).hexdigest()[:16]
