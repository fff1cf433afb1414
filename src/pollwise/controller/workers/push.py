"""The WebSockets of workers. They carry hints, and never a job.

`{"hint": true}` says that a poll may find a job, `{"cancel": id}` that a job must be stopped. A
lost message only costs latency, because both are also learnt by polling. So an agent can switch
between the two at any time.

The WebSocket of an idle worker waits for the queue's hints, as a Worker in Python does. For each
job, one worker gets a hint, whichever controller it is connected to. If it does not poll at once,
the next one gets the hint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pollwise.controller.options import ControllerOptions
from pollwise.controller.workers.others import OtherControllers
from pollwise.controller.workers.registry import KnownWorker, WorkerRegistry
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events, HintPushed, PushChanged
from pollwise.runtime.hints import Hint, Hints

#: How long a worker may take to poll after a hint before another one gets it, in seconds.
ANSWER_WITHIN = 0.5

Send = Callable[[Mapping[str, Any]], Awaitable[None]]


class WorkerSocket(Hint):
    """The WebSocket of one worker: it forwards the hints that it gets."""

    def __init__(self, known: KnownWorker, send: Send, sockets: WorkerSockets) -> None:
        super().__init__(known.group.kinds)
        self.known = known
        self.closed: asyncio.Event = asyncio.Event()
        self.sent_at: float = sockets.clock.now()
        self._send = send
        self._sockets = sockets
        self._pending: dict[str, Mapping[str, Any]] = {}  # by its text: a repeated one is sent once
        self._sending: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def give(self) -> bool:
        """Send a hint to this worker; to another one if it does not poll soon."""
        if self.closed.is_set():
            return False
        self.known.polls_left += 1.0
        return self.greet()

    def greet(self) -> bool:
        """Send a hint that does not say that there is a job."""
        self.known.hinted_at = self._sockets.clock.now()
        self.known.group.notice_put()
        self._sockets.sent(self)
        self._send_soon({"hint": True})
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(ANSWER_WITHIN, self._no_answer)
        return True

    def cancel(self, job_id: str) -> None:
        self._send_soon({"cancel": job_id})

    def ping(self) -> None:
        self._send_soon({"ping": True})

    def polled(self, idle: bool) -> None:
        """Its worker polled: wait for hints if it is idle, and for none if it is busy."""
        self._stop_timer()
        if idle and not self.closed.is_set():
            self._sockets.hints.join(self)
            self._sockets.hints.asleep(self)
        else:
            self._sockets.hints.leave(self)

    def close_soon(self) -> None:
        unanswered = self._timer is not None
        self._stop_timer()
        self.closed.set()
        self._sockets.hints.leave(self)
        if unanswered:
            self._sockets.hints.send(1, self.wants)

    def _no_answer(self) -> None:
        """It did not poll, so its connection may be dead: the next worker gets the hint."""
        self._timer = None
        if self.known.hinted_at is not None:
            self._sockets.hints.leave(self)
            self._sockets.hints.send(1, self.wants)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send_soon(self, message: Mapping[str, Any]) -> None:
        self._pending[str(message)] = message
        if self._sending is None and not self.closed.is_set():
            self._sending = asyncio.get_running_loop().create_task(self._send_all())

    async def _send_all(self) -> None:
        try:
            while self._pending:
                message = self._pending.pop(next(iter(self._pending)))
                self.sent_at = self._sockets.clock.now()
                await self._send(message)
        except Exception:  # any error: the connection is gone
            self.close_soon()
        finally:
            self._sending = None


class WorkerSockets:
    """All WebSockets of a controller."""

    def __init__(
        self,
        registry: WorkerRegistry,
        others: OtherControllers,
        hints: Hints,
        options: ControllerOptions,
        clock: Clock,
        events: Events,
        source: str,
    ) -> None:
        self.hints = hints
        self.clock = clock
        self._registry = registry
        self._others = others
        self._events = events
        self._source = source
        self._most = options.waiting_max
        self._silent_for = options.span("idle_ping")
        self._open: set[WorkerSocket] = set()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def full(self) -> bool:
        return len(self._open) >= self._most

    def connect(self, known: KnownWorker, send: Send) -> WorkerSocket:
        """A worker's WebSocket was opened; its older one is closed."""
        self._registry.group_of(known)
        if known.socket is not None:
            known.socket.close_soon()
        socket = WorkerSocket(known, send, self)
        known.socket = socket
        self._open.add(socket)
        self._others.listen()
        self._events.emit(PushChanged(self._source, known.id, len(self._open)))
        socket.greet()  # a job may have been put before it was opened
        return socket

    def disconnect(self, socket: WorkerSocket) -> None:
        socket.close_soon()
        self._open.discard(socket)
        self._others.stop_listening()
        if socket.known.socket is socket:
            socket.known.socket = None
        self._events.emit(PushChanged(self._source, socket.known.id, len(self._open)))

    def cancel(self, worker_id: str | None, job_id: str) -> None:
        """Send the cancel of a job to its worker, if that is connected here."""
        known = None if worker_id is None else self._registry.remembered(worker_id)
        if known is not None:
            if job_id in known.runs:
                known.runs[job_id].cancel = True
            if known.waiting is not None:
                known.waiting.give()
            if known.socket is not None:
                known.socket.cancel(job_id)

    async def ping(self) -> bool:
        """Ping the WebSockets that were silent for long; False if none is open.

        Many proxies cut connections that are silent for half a minute.
        """
        now = self.clock.now()
        for socket in list(self._open):
            if now - socket.sent_at >= self._silent_for / 2:
                socket.ping()
        return bool(self._open)

    def close(self) -> None:
        """Close all, because the controller stops."""
        self._others.close()
        for socket in list(self._open):
            socket.close_soon()

    def sent(self, socket: WorkerSocket) -> None:
        self._events.emit(HintPushed(self._source, socket.known.id))
