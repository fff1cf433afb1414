"""Hints between processes, checked end to end, for every store with a message service.

A store brings a `HintTransport` (LISTEN/NOTIFY, pub/sub); the channel does the rest:

- **Proven or not.** The channel sends itself a check the way hints travel. Only while checks come
  back does the loop use the long interval. If one does not (a pooler drops LISTEN, a connection is
  cut, a server is paused), sleepers are woken to poll. That is logged once, and the channel keeps
  trying. A check travels with a poll, so it costs no statement.
- **No herd.** Processes learn of each other from checks. A hint of n jobs is for n of them, and
  all choose the same ones without a message (rendezvous hashing). A chosen process that is busy
  passes the hint on to four times as many. In case a chosen one has died, the next in turn polls a
  moment later and says so; if it does not, the next one does, and so on.
- **Coalesced.** Hints of puts in quick succession are sent as one message. If a sleeper in the same
  process takes the job, none is sent.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, suppress
from hashlib import blake2b

from pollwise.core.retry import Retry
from pollwise.runtime.clock import Clock
from pollwise.runtime.contexts import task_in
from pollwise.runtime.events import Event, Events, HintsLost, HintsProven
from pollwise.runtime.hints import Hint, Hints, Listening
from pollwise.runtime.home import keep_for_parent
from pollwise.storage.messages import PASSES_MAX, message_of, parts_of
from pollwise.storage.wanted import HEARD_AFTER, Wanted

#: How often a channel is checked, in seconds; and the share of that time after which a poll carries
#: the check. Even idle workers poll once a minute, so a poll always comes in time, and no statement
#: has to be sent for the check alone.
CHECK_EVERY = 75.0
CHECK_EARLY = 0.2
#: After this many check intervals without a message another process counts as gone.
GONE_AFTER = 2.4
#: The minimum time between two hints in the transaction of a put, per process, in seconds. A NOTIFY
#: makes commits wait for one lock of the whole server. So a busy writer sends its hints separately,
#: where no disk write happens under that lock.
RIDE_EVERY = 0.1
#: The minimum time between two hints sent separately, in seconds.
SEND_EVERY = 0.05
#: A busy process passes a hint on to this many times more processes, up to PASSES_MAX times.
WIDER = 4
#: How long each process in turn waits for the one before to poll, in case that one died; how many
#: processes have a turn; and how many hints wait for a turn at a time.
TURN_AFTER = 0.25
TURNS_MAX = 40
WAITING_MAX = 100
#: How many other processes are remembered.
OTHERS_MAX = 10_000
#: The maximum length of the kinds in a message, in characters; a longer list means "any".
KINDS_LENGTH_MAX = 2000
#: The pauses before a lost connection is opened again.
LISTEN_RETRY = Retry.exponential("1s", max_delay="30s", attempts=None)


class HintTransport(ABC):
    """How messages travel between the processes of a store."""

    #: What to check when messages do not come back.
    advice: str

    @abstractmethod
    async def listen(self, heard: Callable[[str], None], ready: Callable[[], None]) -> None:
        """Subscribe, call `ready`, then `heard` with each message, this process's own included.

        Runs until it is cancelled; raises when the connection is lost or cannot be opened.
        """

    @abstractmethod
    async def send(self, message: str) -> None:
        """Send a message to all listeners, this process included."""

    @abstractmethod
    async def close(self) -> None:
        """Release the connections."""


class HintChannel(Hints):
    """Hints that cross processes over a transport.

    check_every: how often the channel is checked, in seconds.
    check_timeout: how long a check may take to come back.
    """

    def __init__(
        self,
        transport: HintTransport,
        clock: Clock,
        *,
        check_every: float = CHECK_EVERY,
        check_timeout: float = 5.0,
    ) -> None:
        super().__init__()
        self._transport = transport
        self._clock = clock
        self._check_every = check_every
        self._check_timeout = check_timeout
        self._id = secrets.token_hex(6)
        self._listening: asyncio.Task[None] | None = None
        self._turn: asyncio.Task[None] | None = None  # one listening, from connect to loss
        self._sending: set[asyncio.Task[None]] = set()
        self._subscribed = False
        self._proven_at: float | None = None
        self._lost = False
        self._failures = 0
        self._awaited: str | None = None  # the check that was sent and did not return yet
        self._sent_at = 0.0
        self._standstill: AbstractContextManager[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: Hints for which others were chosen, with the timer of our turn to poll.
        self._turns: dict[str, asyncio.TimerHandle] = {}
        #: Other processes: until when they count as alive, and the kinds they want (None: any).
        self._others: dict[str, tuple[float, frozenset[str] | None]] = {}
        self._rode_at = -math.inf
        self._unsent = 0
        self._unsent_kinds: set[str] | None = set()
        self._unsent_broadcasts: set[str] = set()
        self._sending_hints: asyncio.Task[None] | None = None
        self._wanted = Wanted(clock)
        self._reports: dict[int, tuple[str, Events]] = {}

    def after_fork(self) -> None:
        super().after_fork()
        keep_for_parent(self._listening, self._turn, self._sending_hints, *self._sending)
        self._listening = self._turn = self._sending_hints = self._timer = self._standstill = None
        self._sending, self._turns = set(), {}
        self._wanted = Wanted(self._clock)
        self._id = secrets.token_hex(6)
        self._forget()

    @property
    def proven_at(self) -> float | None:
        return self._proven_at

    def report_to(self, source: str, events: Events) -> None:
        self._reports[id(events)] = (source, events)

    def asleep(self, hint: Hint) -> None:
        super().asleep(hint)
        self._begin()

    def listen(
        self, heard: Callable[[str], None], kinds: Collection[str] | None = None
    ) -> Listening:
        listening = super().listen(heard, kinds)
        self._begin()
        return listening

    # Sending

    def ride(self, count: int, kinds: Iterable[str]) -> str | None:
        """The message that a put sends inside its own transaction.

        None if it need not: a sleeper here takes the jobs, or a message was sent this way a moment
        ago; then `send_to_others` sends this one separately.
        """
        now = self._clock.now()
        kinds = set(kinds)
        if now < self._rode_at + RIDE_EVERY or self._enough_here(count, kinds):
            return None
        self._rode_at = now
        return self.message(count, kinds)

    def message(self, count: int, kinds: Iterable[str] | None, *, later: bool = False) -> str:
        """The message that hints at new jobs.

        later: the jobs do not exist yet, but will when the message arrives. Sleepers here cannot be
            woken now, so they treat the message as one of another process.
        """
        listed = None if kinds is None else sorted(kinds)
        if listed is not None and sum(map(len, listed)) + 3 * len(listed) > KINDS_LENGTH_MAX:
            listed = None
        sender = "" if later else self._id
        return message_of("hint", sender, secrets.token_hex(4), count, listed, 0)

    def send_to_others(self, count: int = 1, kinds: Iterable[str] | None = None) -> None:
        """Send a hint outside any transaction, together with others that arrive meanwhile."""
        kinds = None if kinds is None else set(kinds)
        if self._enough_here(count, kinds):
            return
        self._unsent += count
        if kinds is None or self._unsent_kinds is None:
            self._unsent_kinds = None
        else:
            self._unsent_kinds |= kinds
        self._begin_sending()

    def _broadcast_to_others(self, kind: str) -> None:
        self._unsent_broadcasts.add(kind)
        self._begin_sending()

    def announce(self, kind: str) -> None:
        self._begin()
        if self._wanted.announce(kind) and self._subscribed:
            self._send_soon(message_of("wants", self._id, kind))

    def known_at(self, kind: str) -> float | None:
        proven, known = self.proven_at, self._wanted.known_at(kind)
        return None if proven is None or known is None else max(proven, known)

    def _others_want(self, kind: str) -> bool:
        self._begin()
        return self._wanted.elsewhere(kind)

    def _announcements(self, before: float = 0.0) -> list[str]:
        return [message_of("wants", self._id, kind) for kind in self._wanted.announced(before)]

    def _begin_sending(self) -> None:
        if self._sending_hints is None or _dead(self._sending_hints):
            self._sending_hints = task_in(self._context, self._send_hints())

    async def _send_hints(self) -> None:
        while self._unsent or self._unsent_broadcasts:
            messages = [message_of("broadcast", self._id, kind) for kind in self._unsent_broadcasts]
            if self._unsent:
                messages.append(self.message(self._unsent, self._unsent_kinds))
            self._unsent, self._unsent_kinds, self._unsent_broadcasts = 0, set(), set()
            await self._send_quietly(*messages)
            await self._clock.sleep(SEND_EVERY)
        self._sending_hints = None

    def _enough_here(self, count: int, kinds: Iterable[str] | None) -> bool:
        """True if enough sleepers are here; then other processes need no hint."""
        if not self._asleep:
            return False
        groups = self._groups(kinds)
        return sum(hint.wants in groups for hint in self._asleep) >= count

    # Listening

    def _begin(self) -> None:
        if self._listening is None or _dead(self._listening):
            self._forget()
            self._listening = task_in(self._context, self._keep_listening())

    async def _keep_listening(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._turn = turn = loop.create_task(
                self._transport.listen(self._received, self._ready)
            )
            try:
                await asyncio.wait([turn])
            finally:
                turn.cancel()
                await asyncio.wait([turn])
            advice = self._transport.advice
            if turn.cancelled():
                reason = f"a check did not come back within {self._check_timeout:g} s"
            else:
                error = turn.exception()
                reason = f"{type(error).__name__}: {error}" if error else "the connection ended"
                advice = getattr(error, "advice", advice)  # the error may know more
            self._note_lost(reason, advice)
            self._failures += 1
            await self._clock.sleep(LISTEN_RETRY.delay(self._failures, secrets.randbelow(100) / 99))

    def _ready(self) -> None:
        if self._listening is None:  # closed meanwhile
            return
        self._subscribed = True
        self._wanted.listening(self._clock.now())
        # Before the check, so that others know what is wanted here when it comes back.
        self._check_apart(*self._announcements())

    def _received(self, text: str) -> None:
        message = parts_of(text)
        if message is None:
            return
        word, sender, *rest = message
        if word == "check":
            self._received_check(sender, *rest)
        elif word == "bye":
            self._others.pop(sender, None)
        elif word == "polled":
            self._received_polled(*rest)
        elif sender == self._id:  # this process knows of its own puts
            return
        elif word == "broadcast":
            self._hear(*rest)
        elif word == "wants":
            self._wanted.heard(*rest)
        else:
            self._received_hint(sender, *rest)

    # Checking

    def check(self) -> str | None:
        """The message that the next claim carries, if a check is due; else None."""
        if not self._subscribed or self._awaited is not None:
            return None
        due = self._sent_at + CHECK_EARLY * self._check_every
        return self._new_check() if self._clock.now() >= due else None

    def _new_check(self) -> str:
        self._awaited = secrets.token_hex(4)
        self._sent_at = self._clock.now()
        self._stand_still()
        self._set_timer(self._check_timeout, self._no_answer)
        return message_of("check", self._id, self._awaited, self._wants())

    def _check_apart(self, *before: str) -> None:
        """Send a check on its own: at the start, and when no poll came to carry it."""
        if self._subscribed and self._awaited is None:
            self._send_soon(*before, self._new_check())

    def _send_soon(self, *messages: str) -> None:
        sending = task_in(self._context, self._send_quietly(*messages))
        self._sending.add(sending)  # a task without a reference may be collected
        sending.add_done_callback(self._sending.discard)

    async def _send_quietly(self, *messages: str) -> None:
        for message in messages:
            with suppress(Exception):  # a lost hint costs latency, and the check will notice
                await self._transport.send(message)

    def _received_check(self, sender: str, nonce: str, wants: list[str] | None) -> None:
        now = self._clock.now()
        if sender != self._id:
            if len(self._others) >= OTHERS_MAX and sender not in self._others:
                return
            if sender not in self._others and (said := self._announcements(HEARD_AFTER)):
                self._send_soon(*said)  # it may not know
            until = now + GONE_AFTER * self._check_every
            self._others[sender] = (until, None if wants is None else frozenset(wants))
        elif nonce == self._awaited:
            self._awaited = None
            self._go_on()
            self._set_timer(self._check_every, self._check_apart)
            self._failures = 0
            if self._proven_at is None:
                self._proven_at = now
                was_lost, self._lost = self._lost, False
                self._report(HintsProven, now - self._sent_at)
                for listening in list(self._listeners) if was_lost else ():
                    listening.hear_missed()

    def _no_answer(self) -> None:
        """Reconnect: the connection may be half-open, which only a new one cures."""
        if self._turn is not None:
            self._turn.cancel()

    def _note_lost(self, reason: str, advice: str) -> None:
        self._forget()
        if not self._lost:
            self._lost = True
            self._report(HintsLost, reason, advice)
        # Hints may have been lost: all sleepers poll, and then use their strategy's own interval.
        self.send_to_all()
        for kind in self._wanted.announced():
            self._hear(kind)

    def _forget(self) -> None:
        """Reset what was known of the connection."""
        self._subscribed = False
        self._wanted.listening(None)
        self._proven_at = None
        self._awaited = None
        self._others.clear()
        self._go_on()
        self._set_timer(None)

    def _set_timer(self, delay: float | None, then: Callable[[], None] | None = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop() if delay is not None else None
        self._timer = loop.call_later(delay, then) if loop and delay and then else None

    def _stand_still(self) -> None:
        """A check travels in real time, so virtual time waits for it."""
        self._standstill = self._clock.outside()
        self._standstill.__enter__()

    def _go_on(self) -> None:
        if self._standstill is not None:
            self._standstill.__exit__(None, None, None)
            self._standstill = None

    def _report(self, kind: type[HintsProven] | type[HintsLost], *values: object) -> None:
        for source, events in self._reports.values():
            event: Event = kind(source, *values)  # type: ignore[arg-type]
            events.emit(event)

    # Which process takes a hint

    def _received_hint(
        self, sender: str, salt: str, count: int, kinds: list[str] | None, passes: int
    ) -> None:
        if not self._groups(kinds):
            return
        order = self._order(sender, salt, kinds)
        rank, candidates = order.index(self._id), len(order)
        nearest = 0 if passes == 0 else count * WIDER ** (passes - 1)
        farthest = candidates if passes >= PASSES_MAX else count * WIDER**passes
        if nearest <= rank < farthest:
            able = self._able(kinds)
            self.send(math.ceil(count / min(candidates, farthest)), kinds)
            if rank == nearest and not able and farthest < candidates:
                self._send_soon(message_of("hint", sender, salt, count, kinds, passes + 1))
        elif passes == 0 and rank < farthest + TURNS_MAX and len(self._turns) < WAITING_MAX:
            loop = asyncio.get_running_loop()
            delay = TURN_AFTER * (rank - farthest + 1)
            self._turns[salt] = loop.call_later(delay, self._poll_in_turn, salt, kinds)

    def _poll_in_turn(self, salt: str, kinds: list[str] | None) -> None:
        """Poll, because the chosen process did not; if all are busy here, leave it to the next."""
        del self._turns[salt]
        if self._able(kinds):
            self.send(1, kinds)
            self._send_soon(message_of("polled", self._id, salt))

    def _received_polled(self, salt: str) -> None:
        """Another process polled, so we need not."""
        timer = self._turns.pop(salt, None)
        if timer is not None:
            timer.cancel()

    def _able(self, kinds: Iterable[str] | None) -> bool:
        """True if a poller here will poll soon: one sleeps, or will repeat its poll."""
        groups = self._groups(kinds)
        members = (hint for hint in self._members if hint.wants in groups)
        return any(hint in self._asleep or hint.polling for hint in members)

    def _order(self, sender: str, salt: str, kinds: Iterable[str] | None) -> list[str]:
        """The processes that want these kinds, in the same order in each of them.

        The sender is left out: a sleeper there would have taken the job without a message.
        """
        now = self._clock.now()
        named = None if kinds is None else {_short(kind) for kind in kinds}
        wanting = [self._id]
        for other, (until, wants) in list(self._others.items()):
            if until < now:
                del self._others[other]
            elif other != sender and (not named or not wants or not wants.isdisjoint(named)):
                wanting.append(other)
        return sorted(wanting, key=lambda process: _draw(salt, process))

    def _wants(self) -> list[str] | None:
        """The kinds that this process tells the others it wants; None for any."""
        wanted: set[str] = set()
        for hint in self._members:
            if hint.wants is None:
                return None
            wanted |= hint.wants
        shown = sorted(map(_short, wanted))
        return shown if 11 * len(shown) <= KINDS_LENGTH_MAX else None

    # Ending

    def close(self) -> None:
        super().close()
        for timer in self._turns.values():
            timer.cancel()
        self._turns.clear()
        if self._listening is not None and not _dead(self._listening):
            self._listening.cancel()
        self._listening = None
        self._forget()

    async def aclose(self) -> None:
        """Say goodbye, so that nobody counts on this process any more, and close."""
        there = self._proven_at is not None
        listening, sending = self._listening, self._sending_hints
        self.close()
        if sending is not None and not _dead(sending):
            await sending  # the hints of jobs that were put
        if listening is not None and not listening.get_loop().is_closed():
            await asyncio.gather(listening, return_exceptions=True)
        if there:
            await self._send_quietly(message_of("bye", self._id))
        await self._transport.close()


def _short(kind: str) -> str:
    return blake2b(kind.encode(), digest_size=4).hexdigest()


def _draw(salt: str, process: str) -> bytes:
    return blake2b((salt + process).encode(), digest_size=8).digest()


def _dead(task: asyncio.Task[None]) -> bool:
    """True if the task or its event loop has ended."""
    return task.done() or task.get_loop().is_closed() or task.get_loop() is not _running()


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
