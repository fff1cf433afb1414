"""Hints of the store's queues over WebSockets.

The listening processes agree among themselves which of them polls (`pollwise.storage.channel`).
Here, a message of one is only forwarded to all that listen to the same queue. A relay also waits
in the hints of the queue itself. It forwards hints of jobs that are put here or at the store.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from pollwise.queues.base import Queue
from pollwise.runtime.events import Event, Events, HintsLost, HintsProven
from pollwise.runtime.hints import Hint, Hints
from pollwise.storage.channel import HintChannel
from pollwise.storage.messages import message_of, parts_of

#: The maximum number of jobs in the hints of one moment; polls find the others.
RELAYS = 32
#: The maximum number of messages that wait for one listener; a slower one loses some.
WAITING_MAX = 200
#: A listener gets a message at least this often, in seconds: many proxies cut connections that are
#: silent for 30 s.
PING_EVERY = 20.0

#: The task whose client sends the hints of its call itself. Tasks and timers that it starts inherit
#: the variable, but are other tasks, so their hints are sent.
_hinting: ContextVar[object] = ContextVar("hinting", default=None)


@contextmanager
def client_sends_hints(body: Mapping[str, Any]) -> Iterator[None]:
    """Send no hints of this task in the block, if the client says that it sends them itself."""
    before = _hinting.set(asyncio.current_task() if body.get("sends_hints") is True else None)
    try:
        yield
    finally:
        _hinting.reset(before)


class HintListener:
    """One WebSocket, and the messages that wait for it."""

    def __init__(self) -> None:
        self._waiting: deque[str] = deque(maxlen=WAITING_MAX)
        self._there = asyncio.Event()
        self._woken = False

    def say(self, message: str) -> None:
        self._waiting.append(message)
        self._there.set()

    def wake(self) -> None:
        """Whether hints are proven may have changed: `next` returns None."""
        self._woken = True
        self._there.set()

    async def next(self) -> str | None:
        """The next message; None after `wake`."""
        while not self._waiting:
            if self._woken:
                self._woken = False
                return None
            self._there.clear()
            await self._there.wait()
        return self._waiting.popleft()


class HintExchange:
    """All WebSockets that listen to one queue of the store."""

    def __init__(self) -> None:
        self._listeners: dict[HintListener, Queue] = {}
        self._relays: dict[Queue, HintRelays] = {}
        self._events = Events(quiet=True)
        self._events.subscribe(self._wake, HintsProven, HintsLost)

    def __len__(self) -> int:
        return len(self._listeners)

    def join(self, listener: HintListener, queue: Queue) -> None:
        self._listeners[listener] = queue
        if queue not in self._relays:
            self._relays[queue] = HintRelays(queue, self)
            queue.hints().report_to(queue.name, self._events)

    def leave(self, listener: HintListener) -> None:
        queue = self._listeners.pop(listener, None)
        if queue is not None and queue not in self._listeners.values():
            self._relays.pop(queue).close()  # the queue may be closed from now on

    async def serve(
        self, socket: WebSocket, queue: Queue, end: asyncio.Event, *, works: bool
    ) -> None:
        """Forward messages to and from a WebSocket until it or `end` ends it.

        works: its token may claim jobs, so that hints may be for it.
        """
        listener = HintListener()
        self.join(listener, queue)
        tasks = [
            asyncio.ensure_future(work)
            for work in (
                self._receive(socket, listener, works),
                _send(socket, queue, listener),
                end.wait(),
            )
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.leave(listener)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(Exception):  # any error: the connection is gone
                await socket.close(1001)

    async def _receive(self, socket: WebSocket, listener: HintListener, works: bool) -> None:
        while True:
            try:
                message = await socket.receive_text()
            except (WebSocketDisconnect, KeyError, RuntimeError):
                return
            self.take(message, listener, works=works)

    def take(self, message: str, sender: HintListener | None, *, works: bool) -> None:
        """Forward a message of a client, if it may send it.

        Nobody may broadcast: what happened is known here. Who may not claim jobs may only hint at
        some. Its checks come back to itself alone, so that no hint waits for it.
        """
        parts = parts_of(message)
        if parts is None or parts[0] == "broadcast":
            return
        if works or parts[0] == "hint":
            self.say(message)
        elif parts[0] == "check" and sender is not None:
            sender.say(message)

    def say(self, message: str) -> None:
        """Forward a message to all listeners, the sender included."""
        for listener in self._listeners:
            listener.say(message)

    def _wake(self, _: Event) -> None:
        for listener in self._listeners:
            listener.wake()


async def _send(socket: WebSocket, queue: Queue, listener: HintListener) -> None:
    """Send a listener its messages, and whether the hints of all puts arrive here."""
    proven: bool | None = None
    while True:
        if proven != (proven := is_proven(queue)):
            await socket.send_text(json.dumps({"proven": proven}))
        try:
            async with asyncio.timeout(PING_EVERY):
                message = await listener.next()
        except TimeoutError:
            message = "{}"
        if message is not None:
            await socket.send_text(message)


class HintRelays:
    """Members of a queue's hints that forward them to the listeners."""

    def __init__(self, queue: Queue, exchange: HintExchange) -> None:
        self._hints = queue.hints()
        self._exchange = exchange
        self._count = 0
        self._soon: asyncio.Handle | None = None
        self._closed = False
        # A channel gives a hint to one sleeper only. Listeners of other controllers need it too, so
        # the relays here stay awake, as if about to poll.
        self._sleep = not isinstance(self._hints, HintChannel)
        self._listening = self._hints.listen(self._heard)
        self._relays = [_HintRelay(self) for _ in range(RELAYS)]
        for relay in self._relays:
            relay.polling = True
            self._hints.join(relay)
            self._hints.asleep(relay)
            if not self._sleep:
                self._hints.awake(relay)

    def gave(self) -> None:
        teller = _hinting.get()
        if teller is None or teller is not _current_task():
            self._count += 1
        self._rest_soon()

    def close(self) -> None:
        self._closed = True
        self._listening.close()
        if self._soon is not None:
            self._soon.cancel()
        for relay in self._relays:
            self._hints.leave(relay)

    def _heard(self, kind: str) -> None:
        self._exchange.say(message_of("broadcast", "", kind))

    def _rest_soon(self) -> None:
        if self._soon is None and not self._closed:
            self._soon = asyncio.get_running_loop().call_soon(self._forward)

    def _forward(self) -> None:
        self._soon = None
        if self._sleep:
            for relay in self._relays:
                self._hints.asleep(relay)
        count, self._count = self._count, 0
        if count:
            self._exchange.say(hint_message(count))


class _HintRelay(Hint):
    def __init__(self, relays: HintRelays) -> None:
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
    """A message of the channel: this many jobs of any kind were put, by none of the listeners."""
    return message_of("hint", "", secrets.token_hex(4), count, None, 0)


def is_proven(queue: Queue) -> bool:
    """True if hints of every put to a queue arrive here, from any process."""
    hints: Hints = queue.hints()
    return hints.proven_at is not None or queue.capabilities.hints == "process"
