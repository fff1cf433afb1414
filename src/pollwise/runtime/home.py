"""The event loop and the process that a handle on a store belongs to.

Connections belong to one event loop. A handle may be used by one loop after the other, but not by
the loops of two threads at once. A forked child inherits handles: it must never use, close or
collect the connections in them, because they are still its parent's.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from typing import Any, Protocol

from pollwise.errors import StoreError


class ForkAware(Protocol):
    """A handle that has something to do in a forked child."""

    def after_fork(self) -> None: ...


_aware: weakref.WeakSet[ForkAware] = weakref.WeakSet()
_kept: list[Any] = []


def watch_forks(handle: ForkAware) -> None:
    """Call `handle.after_fork()` in forked children."""
    _aware.add(handle)


def keep_for_parent(*inherited: Any) -> None:
    """Never collect these in this child: their finalizers would disturb the parent."""
    _kept.extend(inherited)


def _in_child() -> None:
    for handle in list(_aware):
        handle.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


class Home:
    """Knows which event loop a handle belongs to."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._of_parent: asyncio.AbstractEventLoop | None = None
        watch_forks(self)

    def enter(self, where: str) -> bool:
        """True if the handle comes from another event loop, so that its connections are to be
        dropped; False if it was here before.

        Raises `StoreError` if that loop is running in another thread, or if this loop was made
        before the process forked.
        """
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return False
        if loop is self._of_parent:
            raise StoreError(
                f"{where} was used by this event loop before the process forked, and a child "
                "cannot go on with the event loop of its parent; use a new one: asyncio.run(…)"
            )
        if self._loop is not None and self._loop.is_running():
            raise StoreError(
                f"{where} is in use by the event loop of another thread; open a queue or an outbox "
                "of its own for each thread"
            )
        self._loop = loop
        return True

    @property
    def known(self) -> bool:
        """True if an event loop has used the handle."""
        return self._loop is not None

    def here(self) -> bool:
        """True if the handle belongs to the running event loop."""
        return self._loop is asyncio.get_running_loop()

    def after_fork(self) -> None:
        self._of_parent, self._loop = self._loop or self._of_parent, None
