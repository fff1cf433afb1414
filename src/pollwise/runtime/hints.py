"""Hints: what ends a pause early.

Polling stays the truth. A hint only says that looking again may pay off now; a lost hint costs
latency, never a job. Hints are coalesced: news of one job wakes one pause, not fifty, and whoever
finds more than it can take passes the hint on.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterable, Sequence

from pollwise.runtime.events import Events


class Hint:
    """One sleeper's side: `give()` ends its pause, or its next one if it is awake.

    wants: the kinds of items its owner looks for; None for any.
    """

    def __init__(self, wants: frozenset[str] | None = None) -> None:
        self.wants = wants
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
    early to see the news, then to those who are busy with what they found. News that wakes only
    somebody who cannot use it is lost, so n are told for each kind that it names; who wants several
    of them counts for each. Where it names none, n are told of each group that wants the same.
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

    def notify(self, count: int = 1, kinds: Iterable[str] | None = None) -> None:
        """There are `count` new items, of these kinds if known: wake as many as that takes."""
        news = self._news(count, kinds)
        news.tell(self._asleep, self.awake)
        if news:
            awake = [hint for hint in self._members if hint not in self._asleep]
            news.tell(sorted(awake, key=lambda hint: not hint.polling))

    def opened(self) -> None:
        """The store answered: what carries news between processes may be set up."""

    @property
    def proven_at(self) -> float | None:
        """Since when, in the event loop's time, it is proven that news from anywhere arrives."""
        return None

    def report_to(self, source: str, events: Events) -> None:
        """Emit what befalls the way that news takes on this bus, as of this source."""

    def tell_others(self, count: int = 1, kinds: Iterable[str] | None = None) -> None:
        """Carry news of new items to other processes, where a store has a way to."""

    def pass_on(self, kinds: Iterable[str] | None = None) -> None:
        """A poll came back full: one more sleeper may find work too, of these kinds if known."""
        self._news(1, kinds).tell(self._asleep, self.awake)

    def wake_all(self) -> None:
        """News may have been lost: everybody who sleeps looks for itself."""
        for hint in list(self._asleep):
            self.awake(hint)
            hint.give()

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

    @property
    def rings_at(self) -> float | None:
        """When the earliest `notify_at` falls due, in the event loop's time."""
        return None if self._alarm is None else self._alarm.when()

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    async def aclose(self) -> None:
        """Close, and wait until all is let go."""
        self.close()

    def _alarm_rings(self) -> None:
        self._alarm = None
        self.notify(1)

    def _news(self, count: int, kinds: Iterable[str] | None) -> _News:
        known = None if kinds is None else frozenset(kinds)
        return _News(count, known, self._groups(known) if count > 0 else ())

    def _groups(self, kinds: Iterable[str] | None) -> list[frozenset[str] | None]:
        """What the members want, each set once, of those that any of `kinds` interests."""
        groups = list(dict.fromkeys(hint.wants for hint in self._members))
        if kinds is None or len(groups) == 1:
            return groups
        news = set(kinds)
        return [wants for wants in groups if wants is None or not wants.isdisjoint(news)]


class _News:
    """Whom news is for: how many are still to be told of each kind, or of each group.

    Who wants any kind is a group of its own: it may be there for others, and is no substitute for
    who names the kind.
    """

    def __init__(
        self, count: int, kinds: frozenset[str] | None, groups: Sequence[frozenset[str] | None]
    ) -> None:
        self._kinds = None if len(groups) < 2 else kinds  # else there is nothing to tell apart
        self._left: dict[str | frozenset[str] | None, int] = {}
        if self._kinds is None:
            self._left = dict.fromkeys(groups, count)
        else:
            named = frozenset[str]().union(*(group for group in groups if group is not None))
            self._left = dict.fromkeys(self._kinds & named, count)
            if None in groups:
                self._left[None] = count

    def __bool__(self) -> bool:
        return bool(self._left)

    def tell(self, hints: Iterable[Hint], awake: Callable[[Hint], None] | None = None) -> None:
        """Give hints in this order until enough were told; each that sleeps is `awake` then."""
        for hint in list(hints):
            if not self._left:
                break
            news = [each for each in self._interests(hint) if each in self._left]
            if not news:
                continue
            if awake is not None:
                awake(hint)
            if hint.give():
                for each in news:
                    self._told(each)

    def _interests(self, hint: Hint) -> Iterable[str | frozenset[str] | None]:
        if self._kinds is None or hint.wants is None:
            return (hint.wants,)
        return hint.wants & self._kinds

    def _told(self, news: str | frozenset[str] | None) -> None:
        self._left[news] -= 1
        if not self._left[news]:
            del self._left[news]
