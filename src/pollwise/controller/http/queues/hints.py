"""News of the queues that are served raw, to whoever listens by a WebSocket.

The processes on the other side agree among themselves who looks (`pollwise.storage.channel`): here,
what one of them says is passed on to all who listen to the same queue. What is put by others, in
this process or at the store, is told to them by a relay: sleepers in the hints of the queue itself.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pollwise.queues.base import Queue
from pollwise.runtime.events import Event, Events, HintsLost, HintsProven
from pollwise.runtime.hints import Hint, Hints
from pollwise.storage.channel import Channel

#: How many jobs the news of one moment can be about; more are found by whoever looks.
RELAYS = 32
#: The most messages that wait for one listener; one that is slower than that loses some.
WAITING_MAX = 200

#: The task that does what its client tells the others of by itself. Tasks and timers that it starts
#: inherit the variable, and are none of it.
_hinting: ContextVar[object] = ContextVar("hinting", default=None)


@contextmanager
def client_sends_hints(body: Mapping[str, Any]) -> Iterator[None]:
    """The client itself sends the hints for what this task does within, if it says so."""
    before = _hinting.set(asyncio.current_task() if body.get("sends_hints") is True else None)
    try:
        yield
    finally:
        _hinting.reset(before)


class Listener:
    """One WebSocket, and what is to be sent to it."""

    def __init__(self) -> None:
        self._waiting: deque[str] = deque(maxlen=WAITING_MAX)
        self._there = asyncio.Event()
        self._stirred = False

    def say(self, message: str) -> None:
        self._waiting.append(message)
        self._there.set()

    def stir(self) -> None:
        """Whether news gets here at all changed: whoever tells the listener shall look."""
        self._stirred = True
        self._there.set()

    async def next(self) -> str | None:
        """The next message; None when it was stirred."""
        while not self._waiting:
            if self._stirred:
                self._stirred = False
                return None
            self._there.clear()
            await self._there.wait()
        return self._waiting.popleft()


class Exchange:
    """All who listen to one queue of the store."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()
        self._relays: dict[Queue, Relays] = {}
        self._events = Events(quiet=True)
        self._events.subscribe(self._stir, HintsProven, HintsLost)

    def __len__(self) -> int:
        return len(self._listeners)

    def join(self, listener: Listener, queue: Queue) -> None:
        self._listeners.add(listener)
        if queue not in self._relays:
            self._relays[queue] = Relays(queue, self)
            queue.hints().report_to(queue.name, self._events)

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)
        if not self._listeners:
            for relays in self._relays.values():
                relays.close()
            self._relays.clear()

    def say(self, message: str) -> None:
        """Pass a message on to all who listen, whoever sent it included."""
        for listener in self._listeners:
            listener.say(message)

    def _stir(self, _: Event) -> None:
        for listener in self._listeners:
            listener.stir()


class Relays:
    """Sleepers in a queue's hints that tell the listeners; they never sleep for long."""

    def __init__(self, queue: Queue, exchange: Exchange) -> None:
        self._hints = queue.hints()
        self._exchange = exchange
        self._count = 0
        self._soon: asyncio.Handle | None = None
        self._closed = False
        # What a channel is told when somebody here sleeps is told to nobody else. The listeners of
        # other controllers want to hear of it too, so there they are awake, and about to look.
        self._sleep = not isinstance(self._hints, Channel)
        self._relays = [_Relay(self) for _ in range(RELAYS)]
        for relay in self._relays:
            relay.polling = True
            self._hints.join(relay)
            self._hints.asleep(relay)
            if not self._sleep:
                self._hints.awake(relay)

    def gave(self) -> None:
        hinting = _hinting.get()
        if hinting is None or hinting is not _current_task():
            self._count += 1
        self._rest_soon()

    def close(self) -> None:
        self._closed = True
        if self._soon is not None:
            self._soon.cancel()
        for relay in self._relays:
            self._hints.leave(relay)

    def _rest_soon(self) -> None:
        if self._soon is None and not self._closed:
            self._soon = asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._soon = None
        if self._sleep:
            for relay in self._relays:
                self._hints.asleep(relay)
        count, self._count = self._count, 0
        if count:
            self._exchange.say(hint_message(count))


class _Relay(Hint):
    def __init__(self, relays: Relays) -> None:
        super().__init__(None)
        self._relays = relays

    def give(self) -> bool:
        self._relays.gave()
        return True


def _current_task() -> object:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def hint_message(count: int) -> str:
    """A message of the channel: so many jobs came in, from nobody who listens, of any kind."""
    return json.dumps(["hint", "", secrets.token_hex(4), count, None, 0], separators=(",", ":"))


def is_proven(queue: Queue) -> bool:
    """Does all news of a queue get here, whoever put the job?"""
    hints: Hints = queue.hints()
    return hints.proven_at is not None or queue.capabilities.hints == "process"
