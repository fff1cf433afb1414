"""Relays with different handlers on one outbox: the handlers of the newest relay count.

A record is completed when the handlers of the relay that holds it are done, so a relay that lacks a
handler would complete records without it. So each relay announces its handlers, and a relay that
lacks a handler of a newer live relay stands by. A newer relay counts once it has lived for
`PROVEN_AFTER` seconds: a release that crashes at its start must not stop the one that works. What a
relay knows is up to `ANNOUNCE_EVERY` seconds old.

Several relays can have the same name, so each announces itself under its name and a random suffix.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import partial

from pollwise.errors import StoreError, StoreUnavailable
from pollwise.outbox.records import RELAY_SEPARATOR, RelayInfo, writer_of
from pollwise.outbox.stores.base import RELAY_LIVE, OutboxStore
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import (
    ChoreFailed,
    Events,
    HandlersDiffer,
    RelayResumed,
    RelayStandsBy,
)
from pollwise.runtime.executor.handlers import text_of
from pollwise.runtime.rollups.kept_pace import KeptPace
from pollwise.runtime.rollups.tally import Tally

#: How often a relay announces its handlers, in seconds; done during a poll.
ANNOUNCE_EVERY = 30.0
#: A relay announces itself again after this many seconds; from then on older ones stand by for it.
PROVEN_AFTER = 15.0
#: The longest time between announcements while other relays live, so that they know this one.
ANNOUNCE_WITHIN = RELAY_LIVE * 2 / 3
#: The shortest time between announcements, for a record that has no handler here.
ANNOUNCE_AGAIN = 1.0
#: How often it writes its history with an announcement, in seconds.
HISTORY_EVERY = 60.0
_NAME_MAX = 190


class OtherRelays:
    """What a relay knows about the other relays of its outbox.

    me: the name of this relay, with its suffix.
    standing_by: a newer relay has handlers that this one lacks.
    count: how many others live.
    tally: what this relay did, which is stored as history together with its announcements.
    keeps_history: False if the store has no table for it, or does not allow it.
    pace: the pace that is stored with the history.
    """

    def __init__(
        self,
        store: OutboxStore,
        relay: str,
        source: str,
        handlers: Mapping[str, tuple[str, ...]],
        clock: Clock,
        events: Events,
    ) -> None:
        self._store = store
        self._relay = relay
        # A very long name is cut, so that there is room for the suffix.
        self.me: str = f"{relay[:_NAME_MAX]}{RELAY_SEPARATOR}{secrets.token_hex(3)}"
        self.tally: Tally = Tally(writer_of(self.me), clock)
        self.keeps_history: bool = True
        self.pace: KeptPace | None = None
        self._next_history = 0.0
        self._source = source
        self._handlers = handlers
        self._clock = clock
        self._events = events
        self._started_at = clock.now()
        self._announced_at: float | None = None
        self._proven = False
        self._differs: set[str] = set()
        self.standing_by: bool = False
        self.count: int = 0

    async def announce(self, within: float | None = None) -> None:
        """Announce the handlers and read those of the others, at most once `within` seconds."""
        now = self._clock.now()
        if within is None:
            within = ANNOUNCE_EVERY if self._proven else PROVEN_AFTER
        if self._announced_at is not None and now < self._announced_at + within:
            return
        others = await self._announce(self._handlers)
        self._announced_at = now
        self._proven = now >= self._started_at + PROVEN_AFTER
        self.count = len(others)
        newer = [o for o in others if o.newer and o.lived >= PROVEN_AFTER and self._lacks(o)]
        if newer and not self.standing_by:
            newest = max(newer, key=lambda other: other.started_at)
            missing = self._lacks(newest)
            shown = self._shown(newest)
            self._events.emit(RelayStandsBy(self._source, self._relay, shown, missing, self.me))
        elif self.standing_by and not newer:
            self._events.emit(RelayResumed(self._source, self._relay))
        self.standing_by = bool(newer)
        for other in others:
            missing = self._lacks(other)
            if not other.newer and missing and other.relay not in self._differs:
                self._differs.add(other.relay)
                shown = self._shown(other)
                self._events.emit(HandlersDiffer(self._source, self._relay, shown, missing))
        self._differs &= {other.relay for other in others}

    def announce_again_by(self) -> float | None:
        """When to poll again, in the event loop's time, so that the others know this relay."""
        if self._announced_at is None or (not self.count and not self.standing_by):
            return None  # any other relay that starts is newer than this one
        if not self._proven:
            return self._announced_at + PROVEN_AFTER
        return self._announced_at + (ANNOUNCE_EVERY if self.standing_by else ANNOUNCE_WITHIN)

    async def leave(self) -> None:
        """Take the announcement back, so that an older relay need not wait until it expires."""
        if self._announced_at is not None:
            await self._announce({})

    async def _announce(self, handlers: Mapping[str, tuple[str, ...]]) -> list[RelayInfo]:
        now = self._clock.now()
        announced = partial(
            self._store.announce_handlers, self.me, handlers, now - self._started_at
        )
        due = self.keeps_history and (now >= self._next_history or not handlers)
        rows = [*self.tally.rows()] if due else []
        if due and self.pace is not None:
            rows += self.pace.rows(last=not handlers)
        if not rows:
            return await announced()
        try:
            others = await announced(rows)
        except StoreUnavailable:
            raise
        except StoreError as error:
            others = await announced()
            self.keeps_history = False
            self._events.emit(ChoreFailed(self._source, "history", text_of(error)))
        else:
            self.tally.written()
            self._next_history = now + HISTORY_EVERY
        return others

    def _shown(self, other: RelayInfo) -> str:
        """Its name; with its suffix if this relay has the same name."""
        name, separator, _ = other.relay.rpartition(RELAY_SEPARATOR)
        return other.relay if not separator or name == self._relay else name

    def _lacks(self, other: RelayInfo) -> tuple[str, ...]:
        """The names of the other's handlers with a pattern that this relay does not have."""
        return tuple(
            sorted(
                name
                for name, patterns in other.handlers.items()
                if not set(patterns) <= set(self._handlers.get(name, ()))
            )
        )
