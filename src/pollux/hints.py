"""Hints: what ends a pause early.

Polling stays the truth. A hint only says that looking again may pay off now; a lost hint costs
latency, never a job. Hints are coalesced: news of one job wakes one pause, not fifty, and whoever
finds more than it can take passes the hint on.
"""

from __future__ import annotations

import asyncio
import weakref


class Hint:
    """One sleeper's side: `give()` ends its pause, or its next one if it is awake."""

    def __init__(self) -> None:
        self._sleeping: asyncio.Future[bool] | None = None
        self._given = False

    def give(self) -> None:
        """End the pause under way, or else the next one before it begins."""
        if self._sleeping is None:
            self._given = True
        elif not self._sleeping.done():
            self._sleeping.set_result(True)

    def forget(self) -> None:
        """Drop a hint that was given while awake: a poll that begins now will see its cause."""
        self._given = False

    async def wait(self, delay: float) -> bool:
        """Sleep for `delay` seconds; return True as soon as a hint is given."""
        if self._given:
            self._given = False
            return True
        loop = asyncio.get_running_loop()
        self._sleeping = loop.create_future()
        timer = loop.call_later(delay, self._time_is_up)
        try:
            return await self._sleeping
        finally:
            timer.cancel()
            self._sleeping = None

    def _time_is_up(self) -> None:
        if self._sleeping is not None and not self._sleeping.done():
            self._sleeping.set_result(False)


class Hints:
    """A source's side: who sleeps, and how many of them to wake.

    `notify(n)` wakes up to n sleepers, longest asleep first. What is left of n goes to those who
    are awake: their poll may have begun too early to see the news, so they skip one pause.
    """

    def __init__(self) -> None:
        # Weak: an iterator that is dropped in the middle of its pauses leaves by itself.
        self._members: weakref.WeakKeyDictionary[Hint, None] = weakref.WeakKeyDictionary()
        self._asleep: dict[Hint, None] = {}
        self._alarm: asyncio.TimerHandle | None = None

    def join(self, hint: Hint) -> None:
        self._members[hint] = None

    def leave(self, hint: Hint) -> None:
        self._members.pop(hint, None)
        self.awake(hint)

    def asleep(self, hint: Hint) -> None:
        """`hint`'s owner begins a pause."""
        self._asleep[hint] = None

    def awake(self, hint: Hint) -> None:
        """`hint`'s owner ended its pause."""
        self._asleep.pop(hint, None)

    def notify(self, count: int = 1) -> None:
        """There are `count` new items: wake as many as that takes."""
        left = count - self._wake(count)
        for hint in list(self._members):
            if left <= 0:
                return
            if hint not in self._asleep:
                hint.give()
                left -= 1

    def tell_others(self) -> None:
        """Carry the news to other processes, where a store has a way to."""

    def pass_on(self) -> None:
        """A poll came back full: one more sleeper may find work too."""
        self._wake(1)

    def notify_at(self, when: float) -> None:
        """Wake one sleeper at `when`, in the event loop's time; the earliest such time holds."""
        if self._alarm is not None and not self._alarm.cancelled():
            if self._alarm.when() <= when:
                return
            self._alarm.cancel()
        self._alarm = asyncio.get_running_loop().call_at(when, self._alarm_rings)

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _alarm_rings(self) -> None:
        self._alarm = None
        self.notify(1)

    def _wake(self, count: int) -> int:
        woken = 0
        while self._asleep and woken < count:
            hint = next(iter(self._asleep))
            self.awake(hint)
            hint.give()
            woken += 1
        return woken
