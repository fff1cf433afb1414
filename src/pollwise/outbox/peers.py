"""Two relays with different handlers on one outbox: the set that was started last rules.

A record is completed when the handlers of the relay that has it are done, so a relay that lacks one
would complete records without it. Hence each announces its handlers, and one that lacks a handler
of a newer live relay stands by. What a relay learns is up to `EVERY` seconds old.

Relays that were given one name, or forked with it, are told apart: each run announces itself under
its name and a mark of its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from pollwise.outbox.records import RelayInfo
from pollwise.outbox.stores.base import RELAY_LIVE, OutboxStore
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events, HandlersDiffer, RelayResumed, RelayStandsBy

#: How often a relay announces its handlers, in seconds; rides on a poll.
EVERY = 30.0
#: How often at the latest while other relays live, so that they know of this one.
AT_LEAST = RELAY_LIVE * 2 / 3
#: How often it may look out of turn, for a record that nobody here handles.
AGAIN = 1.0
#: What stands between the name of a relay and the mark of its run.
_MARK = "#"
_NAME_MAX = 190


class Peers:
    """What a relay knows of the others.

    me: the name of this one, with the mark of its run.
    standing_by: a newer one has handlers that this one lacks.
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
        # Of a name at its limit the end is left out, so that there is room for the mark.
        self.me = f"{relay[:_NAME_MAX]}{_MARK}{secrets.token_hex(3)}"
        self._source = source
        self._handlers = handlers
        self._clock = clock
        self._events = events
        self._started_at = clock.now()
        self._looked_at: float | None = None
        self._differs: set[str] = set()
        self.standing_by = False
        self.alone = True

    async def look(self, within: float = EVERY) -> None:
        """Announce the handlers, and see who else is there, unless that was a moment ago."""
        now = self._clock.now()
        if self._looked_at is not None and now < self._looked_at + within:
            return
        others = await self._announce(self._handlers)
        self._looked_at = now
        self.alone = not others
        newer = [other for other in others if other.newer and self._lacks(other)]
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

    def look_again_by(self) -> float | None:
        """When the next poll has to be, in the event loop's time, for the others to know of us."""
        if self._looked_at is None or (self.alone and not self.standing_by):
            return None  # whoever comes is newer than this relay
        return self._looked_at + (EVERY if self.standing_by else AT_LEAST)

    async def leave(self) -> None:
        """Take the announcement back: an older relay need not wait until it is stale."""
        if self._looked_at is not None:
            await self._announce({})

    async def _announce(self, handlers: Mapping[str, tuple[str, ...]]) -> list[RelayInfo]:
        age = self._clock.now() - self._started_at
        return await self._store.announce_handlers(self.me, handlers, age)

    def _shown(self, other: RelayInfo) -> str:
        """Its name; with its mark where ours is the same."""
        name, mark, _ = other.relay.rpartition(_MARK)
        return other.relay if not mark or name == self._relay else name

    def _lacks(self, other: RelayInfo) -> tuple[str, ...]:
        """The handlers of the other, with a pattern that is not here."""
        return tuple(
            sorted(
                name
                for name, patterns in other.handlers.items()
                if not set(patterns) <= set(self._handlers.get(name, ()))
            )
        )
