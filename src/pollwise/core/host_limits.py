"""Host limits: at most a number of things at a time for each host; the others wait in order."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from pollwise.core.agenda import Agenda

K = TypeVar("K", bound=Hashable)


class BusyHost(Generic[K]):
    """How many things are in progress at one host, and the keys that wait for it."""

    __slots__ = ("busy", "waiting")

    def __init__(self, ties: Callable[[K], Any] | None) -> None:
        self.busy: int = 0
        self.waiting: Agenda[K] = Agenda(ties)


class HostLimits(Generic[K]):
    """Lets at most `limit` things begin at a time for each host; others wait.

    ties: as for `Agenda`, among keys that wait.

    >>> limits = HostLimits[str](1)
    >>> limits.enter("h", "a", due=1.0), limits.enter("h", "b", due=2.0)
    (True, False)
    >>> limits.leave("h")
    >>> limits.follower("h")
    'b'
    """

    __slots__ = ("_ties", "hosts", "limit")

    def __init__(self, limit: float, ties: Callable[[K], Any] | None = None) -> None:
        self.limit: float = limit
        self._ties = ties
        self.hosts: dict[str, BusyHost[K]] = {}

    def enter(self, name: str, key: K, due: float, priority: float = 0.0) -> bool:
        """True if `key` may begin at this host now; else it waits."""
        host = self.hosts.get(name)
        if host is None:
            host = self.hosts[name] = BusyHost(self._ties)
        if host.busy < self.limit:
            host.busy += 1
            return True
        host.waiting.upsert(key, due, priority)
        return False

    def leave(self, name: str) -> None:
        """Record that something ended at this host; then ask for the `follower`."""
        self.hosts[name].busy -= 1

    def follower(self, name: str | None) -> K | None:
        """Remove and return the next key that waits for this host, if the host has room; else None.

        Call it also when a key that it returned did not begin, or the others would wait forever.
        """
        host = None if name is None else self.hosts.get(name)
        if host is None or name is None or host.busy >= self.limit:
            return None
        follower = host.waiting.pop()
        if follower is not None:
            return follower.key
        if not host.busy:
            del self.hosts[name]
        return None

    def forget(self, name: str, key: K) -> None:
        """Remove `key` from the line of this host."""
        self.hosts[name].waiting.remove(key)
