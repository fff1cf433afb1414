"""Which broadcasts are wanted, and where.

Some broadcasts are frequent, and useful only while somebody waits for them. A process that waits
announces it now and then, and again when another process appears that may not know. A process that
has just begun to listen assumes that all broadcasts are wanted.
"""

from __future__ import annotations

import math

from pollwise.runtime.clock import Clock

#: How often a process announces which broadcasts it wants, in seconds.
ANNOUNCE_EVERY = 30.0
#: How long an announcement counts, in seconds.
ANNOUNCED_FOR = 90.0
#: After this time, in seconds, everybody is assumed to have received an announcement.
HEARD_AFTER = 1.0
#: How many kinds are remembered.
KINDS_MAX = 100


class Wanted:
    """Remembers which broadcasts are wanted here, and which by other processes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._here: dict[str, tuple[float, float]] = {}  # announced first and last
        self._elsewhere: dict[str, float] = {}  # until when
        self._since: float | None = None

    def listening(self, since: float | None) -> None:
        """Announcements of others arrive here since then; None: they do not."""
        self._since = since

    def announce(self, kind: str) -> bool:
        """Note that a kind is wanted here; True if it is time to announce that."""
        now = self._clock.now()
        first, last = self._here.get(kind, (now, -math.inf))
        if last + ANNOUNCE_EVERY > now:
            return False
        self._here[kind] = (now if last + ANNOUNCED_FOR < now else first, now)
        return True

    def announced(self, before: float = 0.0) -> list[str]:
        """The kinds that were announced at least this many seconds ago and are still wanted."""
        now = self._clock.now()
        return [
            kind
            for kind, (_, last) in self._here.items()
            if last + before <= now <= last + ANNOUNCED_FOR
        ]

    def known_at(self, kind: str) -> float | None:
        """Since when others know that it is wanted here."""
        first, last = self._here.get(kind, (0.0, -math.inf))
        return None if last + ANNOUNCED_FOR < self._clock.now() else first + HEARD_AFTER

    def heard(self, kind: str) -> None:
        """Another process announced it."""
        if kind in self._elsewhere or len(self._elsewhere) < KINDS_MAX:
            self._elsewhere[kind] = self._clock.now() + ANNOUNCED_FOR

    def elsewhere(self, kind: str) -> bool:
        """True if another process may want it."""
        now = self._clock.now()
        unsure = self._since is None or now < self._since + HEARD_AFTER
        return unsure or self._elsewhere.get(kind, -math.inf) >= now
