"""Isolation: work that may have killed its process runs alone at first, and not for too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from pollwise.runtime.clock import Clock
from pollwise.runtime.executor.work import Held

#: For how many seconds of its run a suspect runs alone. What kills its process mostly does so at
#: once; a long run that goes on must not keep its worker from other jobs.
ALONE_FOR = 60.0

H = TypeVar("H", bound=Held)


class Isolation(Generic[H]):
    """The work that runs alone now, if any.

    held: what the executor holds, by name. on_end: called when there is room for other work again
    although the isolated work still runs.
    """

    def __init__(self, held: Mapping[str, H], clock: Clock, on_end: Callable[[], None]) -> None:
        self._held = held
        self._clock = clock
        self._on_end = on_end
        self._alone: H | None = None  # the newest
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, alone: H) -> None:
        """From now on, this work runs alone."""
        self._alone = alone
        self._wait(ALONE_FOR)

    def isolated(self) -> H | None:
        """The work beside which nothing is claimed; None when it has ended or run for a minute."""
        if self._alone is None:
            return None
        if self._held.get(self._alone.name) is not self._alone or self._left() <= 0:
            self.close()
        return self._alone

    def close(self) -> None:
        """End the isolation."""
        self._alone = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _left(self) -> float:
        """How long the work still runs alone, in seconds, counted from the start of its run."""
        began = None if self._alone is None else self._alone.began
        return ALONE_FOR if began is None else began + ALONE_FOR - self._clock.now()

    def _wait(self, delay: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay, self._look)

    def _look(self) -> None:
        self._timer = None
        if self.isolated() is None:
            self._on_end()
        else:  # it began later than it was claimed
            self._wait(max(self._left(), 0.01))
