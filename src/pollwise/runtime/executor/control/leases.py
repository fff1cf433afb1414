"""Renews the leases of held work. A renewal also stores progress, and shows what to cancel.

One call renews all of them, every third of a lease. It comes earlier in two cases: within a second
after a handler reported progress, and at once after a broadcast that a running job was cancelled.
Each of the two makes at most one call a second.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from pollwise.runtime.chores import Chores
from pollwise.runtime.clock import Clock
from pollwise.runtime.executor.settling import Settler
from pollwise.runtime.executor.work import Held, Work
from pollwise.runtime.hints import CANCELS, Hints, Listening

RENEW = "renew leases"
#: How long a report of progress waits for others, in seconds; and the shortest time between two
#: renewals after broadcasts.
RENEW_APART = 1.0

H = TypeVar("H", bound=Held)


class Leases(Generic[H]):
    """The leases of an executor's held work.

    held: the executor's table.
    lose, cancel: called with work whose lease is lost, or that somebody asked to cancel.
    renewed: called after each renewal.
    """

    def __init__(
        self,
        held: dict[str, H],
        work: Work[H, Any],
        settler: Settler[H],
        chores: Chores,
        lease: float,
        clock: Clock,
        lose: Callable[[H], None],
        cancel: Callable[[H], None],
        renewed: Callable[[], None],
    ) -> None:
        self._held = held
        self._work = work
        self._settler = settler
        self._chores = chores
        self._lease = lease
        self._clock = clock
        self._lose = lose
        self._cancel = cancel
        self._renewed = renewed
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._answered_at = -math.inf
        self._listening: Listening | None = None
        chores.add(RENEW, lease / 3, self._renew)

    def listen(self, hints: Hints) -> None:
        """Renew at once after a broadcast that a running job was cancelled, if work is held."""
        self._listening = hints.listen(self._heard, (CANCELS,))

    def close(self) -> None:
        if self._listening is not None:
            self._listening.close()

    def begin(self, asked: float) -> None:
        """Renew from now on: work is held. asked: when the call began that claimed it."""
        self._chores.wake(RENEW)
        if self._heard_at >= asked:
            self._renew_soon()

    def renew_now(self) -> None:
        """Renew without delay: leases may be over."""
        self._chores.hasten(RENEW, 0.0)

    def report_soon(self) -> None:
        """A handler reports progress; from any thread."""
        if self._loop is asyncio._get_running_loop():
            self._chores.hasten(RENEW, RENEW_APART)
        else:
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._chores.hasten, RENEW, RENEW_APART)

    def _heard(self, _: str) -> None:
        self._heard_at = self._clock.now()
        if self._held:
            self._renew_soon()

    def _renew_soon(self) -> None:
        now = self._clock.now()
        if self._answered_at <= now:  # else one is planned
            self._answered_at = max(self._answered_at + RENEW_APART, now)
        self._chores.hasten(RENEW, self._answered_at - now)

    async def _renew(self) -> None:
        """The chore. Settlements that are just being gathered need no renewal."""
        now = self._clock.now()
        renewed = {held.name: held for held in self._held.values() if self._settler.late(held, now)}
        if not renewed:
            if not self._held:
                self._chores.rest(RENEW)
            return
        renewal = await self._work.renew(list(renewed.values()))
        until, until_epoch = self.times(now)
        for held in renewed.values():
            held.until, held.until_epoch = until, until_epoch
        for names, end in ((renewal.lost, self._lose), (renewal.cancel, self._cancel)):
            for name in names:
                if name in renewed and self._held.get(name) is renewed[name]:
                    end(renewed[name])
        self._renewed()

    def times(self, began: float) -> tuple[float, float]:
        """When a lease ends that began then: in the event loop's time, and by the wall clock."""
        until = began + self._lease
        return until, self._clock.epoch() + until - self._clock.now()

    def is_over(self, held: H) -> bool:
        """True if the lease may have ended: after a stall, or a suspend, which only the wall clock
        shows. If that clock was set forward instead, an extra renewal does no harm."""
        return held.until <= self._clock.now() or held.until_epoch <= self._clock.epoch()
