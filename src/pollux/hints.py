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
        #: A poll is under way, which may have begun too early to see what a hint is about.
        self.polling = False
        self._sleeping: asyncio.Future[bool] | None = None
        self._given = False

    def give(self) -> bool:
        """End the pause under way, or else the next one before it begins.

        Returns False if its owner was cancelled in its pause, and will not look.
        """
        if self._sleeping is None:
            self._given = True
        elif not self._sleeping.done():
            self._sleeping.set_result(True)
        else:
            return not self._sleeping.cancelled()
        return True

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
    are awake, so that they skip one pause: first to those in a poll, which may have begun too
    early to see the news, then to those who are busy with what they found.
    """

    def __init__(self) -> None:
        # Weak: an iterator that is dropped in the middle of its pauses leaves by itself.
        self._members: weakref.WeakKeyDictionary[Hint, None] = weakref.WeakKeyDictionary()
        self._asleep: dict[Hint, None] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_loop: asyncio.AbstractEventLoop | None = None

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
        if left > 0:
            awake = [hint for hint in self._members if hint not in self._asleep]
            for hint in sorted(awake, key=lambda hint: not hint.polling)[:left]:
                hint.give()

    def tell_others(self) -> None:
        """Carry the news to other processes, where a store has a way to."""

    def pass_on(self) -> None:
        """A poll came back full: one more sleeper may find work too."""
        self._wake(1)

    def notify_at(self, when: float) -> None:
        """Wake one sleeper at `when`, in the event loop's time; the earliest such time holds."""
        loop = asyncio.get_running_loop()
        if self._alarm is not None:
            # An alarm set on another event loop, which ended before it rang, never will.
            if self._alarm_loop is loop and self._alarm.when() <= when:
                return
            self._alarm.cancel()
        self._alarm = loop.call_at(when, self._alarm_rings)
        self._alarm_loop = loop

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
            woken += hint.give()
        return woken
