"""Hints: messages that end a pause early.

Polling stays the truth. A hint only says that a poll may find something now; a lost hint costs
latency, never a job. Hints are coalesced: a hint about one job ends one pause, not fifty, and a
poller that finds more than it can take passes the hint on.

A broadcast is another message on the same channel: it goes to everybody who listens to its kind, in
every process. Its kind begins with `#`. It is not about new work, so it ends no pause.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from contextvars import copy_context

from pollwise.platforms.signals import lock_wait_max
from pollwise.runtime.events import Events
from pollwise.runtime.home import watch_forks


class Hint:
    """The receiving side: `give()` ends its owner's pause, or the next one if it is awake.

    wants: the kinds of items its owner polls for; None for any.
    """

    def __init__(self, wants: frozenset[str] | None = None) -> None:
        self.wants = wants
        #: Its owner drains. If not, its pauses are kept, and only news ends one, not a backlog.
        self.drains = True
        #: A poll is running. It may have begun too early to see what a hint is about.
        self.polling = False
        self._sleeping: asyncio.Future[bool] | None = None
        self._given = False

    def give(self) -> bool:
        """End the current pause, or else the next one before it begins.

        Returns False if the owner was cancelled in its pause and will not poll.
        """
        if self._sleeping is None:
            self._given = True
        elif not self._sleeping.done():
            _wake(self._sleeping)
        else:
            return not self._sleeping.cancelled()
        return True

    def forget(self) -> None:
        """Drop a hint given while awake: a poll that begins now sees what it is about."""
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


class BlockingHint(Hint):
    """A hint whose owner blocks its thread in its pauses. Any thread may give it.

    A lock that is held unless a hint was given, and that the giver releases. Unlike an `Event` or a
    `Condition`, it may also be given by a signal handler that interrupts `block` at any point.
    """

    def __init__(self, wants: frozenset[str] | None = None) -> None:
        super().__init__(wants)
        self._not_given = threading.Lock()
        self._not_given.acquire()

    def give(self) -> bool:
        with suppress(RuntimeError):  # it was given before
            self._not_given.release()
        return True

    def taken(self) -> bool:
        """True if a hint was given since it was last taken; takes it."""
        return self._not_given.acquire(blocking=False)

    def forget(self) -> None:
        self.taken()

    def block(self, delay: float) -> bool:
        """Block for `delay` seconds; return True as soon as a hint is given."""
        ends_at = time.monotonic() + delay
        while (left := ends_at - time.monotonic()) > 0:
            if self._not_given.acquire(timeout=min(left, BLOCK_MAX)):
                return True
        return self.taken()


#: How long a thread blocks at once, in seconds.
BLOCK_MAX = lock_wait_max()
#: How many kinds that hints named are remembered.
HEARD_MAX = 1000
#: The broadcast that somebody asked to cancel a job that runs.
CANCELS = "#cancel"


def _wake(sleeping: asyncio.Future[bool]) -> None:
    """End a pause, which may be that of another thread's event loop."""
    loop = sleeping.get_loop()
    if loop is asyncio._get_running_loop():
        sleeping.set_result(True)
    else:
        with suppress(RuntimeError):  # that loop is closed
            loop.call_soon_threadsafe(_end_pause, sleeping)


def _end_pause(sleeping: asyncio.Future[bool]) -> None:
    if not sleeping.done():
        sleeping.set_result(True)


class Listening:
    """Calls `heard` with the kind of each broadcast, in the event loop it was made in."""

    def __init__(
        self, hints: Hints, heard: Callable[[str], None], kinds: Collection[str] | None
    ) -> None:
        self._hints = hints
        self._heard = heard
        self._kinds = kinds
        self._loop = asyncio.get_running_loop()

    def hear(self, kind: str) -> None:
        if self._kinds is not None and kind not in self._kinds:
            return
        if self._loop is asyncio._get_running_loop():
            self._heard(kind)
        else:
            with suppress(RuntimeError):  # that loop is closed
                self._loop.call_soon_threadsafe(self._heard, kind)

    def hear_missed(self) -> None:
        """Broadcasts may have been missed: hear one of each kind, if the kinds are known."""
        for kind in self._kinds or ():
            self.hear(kind)

    def close(self) -> None:
        """Listen no more."""
        self._hints.stop_listening(self)


class Hints:
    """The sending side, one per source: knows who is asleep, and how many of them to wake.

    `send(n)` wakes up to n sleepers, longest asleep first. The rest of n goes to those who are
    awake, so that they skip one pause: first to those in a poll, which may have begun too early to
    see the new items, then to those who are busy with what they found.

    A hint that wakes only a poller that cannot use it would be lost. So n pollers get it for each
    kind that it names, and one that wants several of these kinds counts for each. If it names no
    kind, n pollers get it in each group that wants the same kinds.

    A hint about a backlog tells what the poller's own work left or made free: a full batch, more
    records of a key, a key or a limit that is free again. It is only for pollers that drain: a
    fixed interval would not be one if each settlement ended its pause.
    """

    def __init__(self) -> None:
        # Weak: an iterator that is dropped in the middle of its pauses leaves by itself.
        self._members: weakref.WeakKeyDictionary[Hint, None] = weakref.WeakKeyDictionary()
        self._asleep: dict[Hint, None] = {}
        #: The kinds that hints have named, a limited number.
        self.heard: set[str] = set()
        self._listeners: dict[Listening, None] = {}
        #: What hints start does not belong to the handler or request that made them start it.
        self._context = copy_context()
        self._send_timer: asyncio.TimerHandle | None = None
        self._send_loop: asyncio.AbstractEventLoop | None = None
        watch_forks(self)

    def after_fork(self) -> None:
        """Nobody pauses in a forked child yet, and the timers are its parent's."""
        self._members.clear()
        self._asleep.clear()
        self._listeners.clear()
        self._send_timer = self._send_loop = None

    def join(self, hint: Hint) -> None:
        self._members[hint] = None

    def leave(self, hint: Hint) -> None:
        self._members.pop(hint, None)
        self.awake(hint)

    def asleep(self, hint: Hint) -> None:
        """The owner of `hint` begins a pause."""
        self._asleep[hint] = None

    def awake(self, hint: Hint) -> None:
        """The owner of `hint` ended its pause."""
        self._asleep.pop(hint, None)

    def send(
        self, count: int = 1, kinds: Iterable[str] | None = None, *, backlog: bool = False
    ) -> None:
        """There are `count` new items, of these kinds if known: wake as many as that takes.

        backlog: they are not new, but left or made free by work that was done here.
        """
        if kinds is not None:
            kinds = frozenset(kinds)
            if len(self.heard) < HEARD_MAX:
                self.heard |= kinds
        if not self._members:
            return
        delivery = self._delivery(count, kinds)
        # A list first: other threads begin and end pauses meanwhile.
        asleep = [hint for hint in list(self._asleep) if hint.drains or not backlog]
        delivery.give_to(asleep, self.awake)
        if delivery:
            # In another thread, one of them may have begun a pause meanwhile: it is not in `asleep`
            # and must not be left out.
            passed_over = self._asleep.keys() & asleep
            awake = [
                hint
                for hint in self._joined()
                if hint not in passed_over and (hint.drains or not backlog)
            ]
            delivery.give_to(sorted(awake, key=lambda hint: not hint.polling))

    def _joined(self) -> list[Hint]:
        """The members, also if other threads join and leave meanwhile."""
        return [hint for ref in self._members.keyrefs() if (hint := ref()) is not None]

    def opened(self) -> None:
        """The store answered: the channel between processes may be set up now."""

    @property
    def proven_at(self) -> float | None:
        """Since when hints from every process are proven to arrive, in the event loop's time."""
        return None

    def report_to(self, source: str, events: Events) -> None:
        """Emit `HintsProven`, `HintsLost` and `JournalGrew` on this bus, as of this source."""

    def send_to_others(self, count: int = 1, kinds: Iterable[str] | None = None) -> None:
        """Send hints to other processes, where the store has a channel."""

    def listen(
        self, heard: Callable[[str], None], kinds: Collection[str] | None = None
    ) -> Listening:
        """Call `heard` with the kind of each broadcast, until the returned object is closed.

        kinds: the broadcasts to listen to; None for all.
        """
        listening = Listening(self, heard, kinds)
        self._listeners[listening] = None
        return listening

    def stop_listening(self, listening: Listening) -> None:
        self._listeners.pop(listening, None)

    def broadcast(self, kind: str) -> None:
        """Send a broadcast to everybody who listens to its kind, here and in other processes."""
        self._broadcast_to_others(kind)
        self._hear(kind)

    def broadcast_if_wanted(self, kind: str) -> None:
        """As `broadcast`, but to other processes only if one of them may have announced it."""
        if self._others_want(kind):
            self._broadcast_to_others(kind)
        self._hear(kind)

    def announce(self, kind: str) -> None:
        """Tell other processes that such broadcasts are wanted here, for the next minute.

        Call it repeatedly; a message is sent only now and then.
        """

    def known_at(self, kind: str) -> float | None:
        """Since when everybody is known to send such broadcasts here, in the event loop's time."""
        return None

    def _others_want(self, kind: str) -> bool:
        """True if another process may have announced that it wants such broadcasts."""
        return True

    def _broadcast_to_others(self, kind: str) -> None:
        """Send a broadcast to other processes, where the store has a channel."""

    def _hear(self, kind: str) -> None:
        """Give a broadcast to the listeners here."""
        for listening in list(self._listeners):
            listening.hear(kind)

    def pass_on(self, kinds: Iterable[str] | None = None) -> None:
        """A poll came back full: one more sleeper may find work too, of these kinds if known."""
        draining = [hint for hint in list(self._asleep) if hint.drains]
        self._delivery(1, kinds).give_to(draining, self.awake)

    def send_to_all(self) -> None:
        """Wake every sleeper: hints may have been lost."""
        for hint in list(self._asleep):
            self.awake(hint)
            hint.give()

    def send_at(self, when: float) -> None:
        """Wake one sleeper at `when`, in the event loop's time; only the earliest time is kept."""
        loop = asyncio.get_running_loop()
        if self._send_timer is not None:
            # A timer of an event loop that has ended never fires.
            if self._send_loop is loop and self._send_timer.when() <= when:
                return
            self._send_timer.cancel()
        self._send_timer = loop.call_at(when, self._send_due, context=self._context.copy())
        self._send_loop = loop

    @property
    def sends_at(self) -> float | None:
        """When the next `send_at` is due, in the event loop's time."""
        return None if self._send_timer is None else self._send_timer.when()

    def close(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    async def aclose(self) -> None:
        """Close, and wait until everything is released."""
        self.close()

    def _send_due(self) -> None:
        self._send_timer = None
        self.send(1)

    def _delivery(self, count: int, kinds: Iterable[str] | None) -> _Delivery:
        known = None if kinds is None else frozenset(kinds)
        return _Delivery(count, known, self._groups(known) if count > 0 else ())

    def _groups(self, kinds: Iterable[str] | None) -> list[frozenset[str] | None]:
        """The distinct sets of kinds that members want and that include any of `kinds`."""
        groups = list(dict.fromkeys(hint.wants for hint in self._joined()))
        if kinds is None or len(groups) == 1:
            return groups
        named = set(kinds)
        return [wants for wants in groups if wants is None or not wants.isdisjoint(named)]


class _Delivery:
    """One hint on its way: how many pollers still have to get it, by kind or by group.

    Pollers that want any kind are a group of their own: they may be there for other kinds, and do
    not replace those that name the kind.
    """

    def __init__(
        self, count: int, kinds: frozenset[str] | None, groups: Sequence[frozenset[str] | None]
    ) -> None:
        self._kinds = None if len(groups) < 2 else kinds  # one group needs no kinds
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

    def give_to(self, hints: Iterable[Hint], awake: Callable[[Hint], None] | None = None) -> None:
        """Give the hint in this order until enough have it; calls `awake` before each."""
        for hint in list(hints):
            if not self._left:
                break
            wanted = [each for each in self._interests(hint) if each in self._left]
            if not wanted:
                continue
            if awake is not None:
                awake(hint)
            if hint.give():
                for each in wanted:
                    self._left[each] -= 1
                    if not self._left[each]:
                        del self._left[each]

    def _interests(self, hint: Hint) -> Iterable[str | frozenset[str] | None]:
        if self._kinds is None or hint.wants is None:
            return (hint.wants,)
        return hint.wants & self._kinds
