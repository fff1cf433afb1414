"""How often somebody may try to log in: by address, and all together. Its memory is bounded.

Each attempt counts when it begins, so that parallel attempts gain nothing; a successful one is
taken back. Attempts of others do not hold up an address that logged in before.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

from pollwise.runtime.clock import Clock

#: Attempts of one address at once, and the seconds after which it gets one more.
ADDRESS_ATTEMPTS = 10
ADDRESS_EVERY = 30.0
#: The same for all addresses together.
ALL_ATTEMPTS = 100
ALL_EVERY = 1.0
#: Sessions of one token, or of the password, at once, and the seconds until it may begin one more.
TOKEN_SESSIONS = 30
SESSION_EVERY = 10.0
#: How many tokens are remembered.
TOKENS_MAX = 10_000
#: How many addresses are remembered: those that tried, and those that logged in.
ADDRESSES_MAX = 10_000
GOOD_MAX = 1_000


class TooManySessions(Exception):
    """A token begins sessions too often. wait: how long until its next one, in seconds."""

    def __init__(self, wait: float) -> None:
        self.wait = wait
        super().__init__(wait)


class _Attempts:
    """A number of attempts that shrinks with time."""

    __slots__ = ("_at", "_count", "_every", "_most")

    def __init__(self, most: int, every: float) -> None:
        self._most, self._every = most, every
        self._count, self._at = 0.0, float("-inf")

    def wait(self, now: float) -> float:
        """How long the next attempt has to wait, in seconds."""
        self._count = max(self._count - (now - self._at) / self._every, 0.0)
        self._at = now
        return max(self._count + 1 - self._most, 0.0) * self._every

    def add(self, count: int) -> None:
        self._count = max(self._count + count, 0.0)


class LoginLimits:
    """Counts attempts to log in."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._all = _Attempts(ALL_ATTEMPTS, ALL_EVERY)
        self._by: OrderedDict[str, _Attempts] = OrderedDict()
        self._good: OrderedDict[str, None] = OrderedDict()
        self._sessions: OrderedDict[str, _Attempts] = OrderedDict()

    def begin(self, address: str) -> float:
        """Count an attempt; if it may not be made, the seconds to wait, and nothing is counted."""
        now, who = self._clock.now(), network(address)
        own = self._by.get(who)
        if own is None:
            own = self._by[who] = _Attempts(ADDRESS_ATTEMPTS, ADDRESS_EVERY)
            if len(self._by) > ADDRESSES_MAX:
                self._by.popitem(last=False)
        self._by.move_to_end(who)
        wait = own.wait(now)
        if who not in self._good:
            wait = max(wait, self._all.wait(now))
        if not wait:
            own.add(1)
            self._all.add(1)
        return wait

    def begin_session(self, subject: str) -> None:
        """Count a session of a token; raises `TooManySessions` for one too many.

        Each is an entry of the audit log.
        """
        own = self._sessions.setdefault(subject, _Attempts(TOKEN_SESSIONS, SESSION_EVERY))
        self._sessions.move_to_end(subject)
        if len(self._sessions) > TOKENS_MAX:
            self._sessions.popitem(last=False)
        if wait := own.wait(self._clock.now()):
            raise TooManySessions(wait)
        own.add(1)

    def succeeded(self, address: str) -> None:
        """Do not count a successful attempt, and remember its address."""
        who = network(address)
        self._all.add(-1)
        if who in self._by:
            self._by[who].add(-1)
        self._good[who] = None
        self._good.move_to_end(who)
        if len(self._good) > GOOD_MAX:
            self._good.popitem(last=False)


def network(address: str) -> str:
    """What counts as one address: for IPv6, the 64-bit network that one customer has.

    >>> network("192.0.2.7"), network("2001:db8:1:2:3::4"), network("::ffff:192.0.2.7")
    ('192.0.2.7', '2001:db8:1:2::', '192.0.2.7')
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:100]
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(found) >> 64 << 64))
