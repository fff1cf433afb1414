"""Push beside polling: WebSockets that carry hints, and nothing that may be lost.

`{"hint": true}` says that a poll may pay off now, `{"cancel": id}` that a job shall be stopped. A
message that is lost costs latency: jobs come and go by polls alone. So an agent may change between
the two at any time.

An idle worker's WebSocket is a sleeper of the queue's hints, as a worker in Python is: for one job
one of them is told, by whichever controller it is connected to. Should it not poll at once, the
next one is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pollwise.controller.options import ControllerOptions
from pollwise.controller.workers.registry import Known, Registry
from pollwise.controller.workers.runs import Runs
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events, HintPushed, PushChanged
from pollwise.runtime.hints import Hint, Hints

#: How long a worker may take to poll after a hint before another one is told, in seconds.
ANSWER_WITHIN = 0.5
#: The name under which controllers tell each other that a job was cancelled. No kind has it.
CANCELS = "#cancel"
#: News for everybody: more than there are controllers.
EVERYBODY = 1000
#: Cancels of other controllers are looked for at most once in so many seconds.
LOOK_EVERY = 1.0

Send = Callable[[Mapping[str, Any]], Awaitable[None]]


class Push(Hint):
    """The WebSocket of one worker: a hint that is sent on."""

    def __init__(self, known: Known, send: Send, pushes: Pushes) -> None:
        super().__init__(known.crowd.kinds)
        self.known = known
        self.closed = asyncio.Event()
        self.sent_at = pushes.clock.now()
        self._send = send
        self._pushes = pushes
        self._hint = False
        self._ping = False
        self._cancels: dict[str, None] = {}
        self._sending: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def give(self) -> bool:
        """News for this worker: tell it, and see to it that somebody looks."""
        if self.closed.is_set():
            return False
        self._hint = True
        self.known.hinted = True
        self.known.crowd.heard_news()
        self._pushes.told(self)
        self._send_soon()
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(ANSWER_WITHIN, self._no_answer)
        return True

    def cancel(self, job_id: str) -> None:
        self._cancels[job_id] = None
        self._send_soon()

    def ping(self) -> None:
        self._ping = True
        self._send_soon()

    def polled(self, idle: bool) -> None:
        """Its worker polled: it waits for news if it found nothing, and for none if it is busy."""
        self._stop_timer()
        if idle and not self.closed.is_set():
            self._pushes.hints.join(self)
            self._pushes.hints.asleep(self)
        else:
            self._pushes.hints.leave(self)

    def close_soon(self) -> None:
        unanswered = self._timer is not None
        self._stop_timer()
        self.closed.set()
        self._pushes.hints.leave(self)
        if unanswered:
            self._pushes.pass_on(self)

    def _no_answer(self) -> None:
        """It did not poll: its connection may be dead, though nobody noticed. The next, then."""
        self._timer = None
        if self.known.hinted:
            self._pushes.hints.leave(self)
            self._pushes.pass_on(self)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send_soon(self) -> None:
        if self._sending is None and not self.closed.is_set():
            self._sending = asyncio.get_running_loop().create_task(self._send_all())

    async def _send_all(self) -> None:
        """One message after the other; what comes up twice meanwhile is said once."""
        try:
            while self._hint or self._cancels or self._ping:
                if self._cancels:
                    job_id = next(iter(self._cancels))
                    del self._cancels[job_id]
                    message: Mapping[str, Any] = {"cancel": job_id}
                elif self._hint:
                    self._hint, message = False, {"hint": True}
                else:
                    self._ping, message = False, {"ping": True}
                self.sent_at = self._pushes.clock.now()
                await self._send(message)
        except Exception:  # whatever the server raises for a connection that is gone
            self.close_soon()
        finally:
            self._sending = None


class Pushes:
    """All WebSockets of a controller."""

    def __init__(
        self,
        registry: Registry,
        runs: Runs,
        hints: Hints,
        options: ControllerOptions,
        clock: Clock,
        events: Events,
        source: str,
    ) -> None:
        self.hints = hints
        self.clock = clock
        self._registry = registry
        self._runs = runs
        self._events = events
        self._source = source
        self._most = options.waiting_max
        self._silent_for = options.span("idle_ping")
        self._open: set[Push] = set()
        self._ear = _Ear(self._heard_of_cancel)
        self._look: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        self._again = False

    def __len__(self) -> int:
        return len(self._open)

    @property
    def full(self) -> bool:
        return len(self._open) >= self._most

    def connect(self, known: Known, send: Send) -> Push:
        """A worker's WebSocket was opened; an older one of its is closed."""
        self._registry.crowd_of(known)
        if known.pushes is not None:
            known.pushes.close_soon()
        push = Push(known, send, self)
        known.pushes = push
        self._open.add(push)
        if len(self._open) == 1:
            self.hints.join(self._ear)
            self.hints.asleep(self._ear)
        self._events.emit(PushChanged(self._source, known.id, len(self._open)))
        push.give()  # something may have come in before it was opened
        return push

    def disconnect(self, push: Push) -> None:
        push.close_soon()
        self._open.discard(push)
        if push.known.pushes is push:
            push.known.pushes = None
        if not self._open:
            self.hints.leave(self._ear)
        self._events.emit(PushChanged(self._source, push.known.id, len(self._open)))

    def cancel(self, worker_id: str | None, job_id: str) -> None:
        """A running job was cancelled: tell its worker, whichever controller it is connected to."""
        known = None if worker_id is None else self._registry.remembered(worker_id)
        if known is not None:
            if known.waiting is not None:
                known.waiting.give()
            if isinstance(known.pushes, Push):
                known.pushes.cancel(job_id)
                return
        self.hints.send_to_others(EVERYBODY, {CANCELS})

    async def ping(self) -> bool:
        """Send something to whoever was sent nothing for long; False if nobody is connected.

        A proxy cuts connections that are silent for half a minute.
        """
        now = self.clock.now()
        for push in list(self._open):
            if now - push.sent_at >= self._silent_for / 2:
                push.ping()
        return bool(self._open)

    def close(self) -> None:
        """The controller stops: end them all."""
        if self._look is not None:
            self._look.cancel()
        for push in list(self._open):
            push.close_soon()

    def told(self, push: Push) -> None:
        self._events.emit(HintPushed(self._source, push.known.id))

    def pass_on(self, push: Push) -> None:
        self.hints.send(1, push.wants)

    # Cancels that other controllers took in

    def _heard_of_cancel(self) -> None:
        """Look now, or as soon as the last look is long enough ago."""
        if self._open:
            self.hints.asleep(self._ear)
        if self._look is None:
            self._begin()
        else:
            self._again = True

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._again = False
        self._looking = loop.create_task(self._look_for_cancels())
        self._look = loop.call_later(LOOK_EVERY, self._rested)

    def _rested(self) -> None:
        self._look = None
        if self._again:
            self._begin()

    async def _look_for_cancels(self) -> None:
        for push in list(self._open):
            if push.known.runs:
                await self._runs.read(push.known, afresh=True)
                for run in push.known.runs.values():
                    if run.cancel:
                        push.cancel(run.job_id)


class _Ear(Hint):
    """Hears that some job was cancelled somewhere."""

    def __init__(self, heard: Callable[[], None]) -> None:
        super().__init__(frozenset({CANCELS}))
        self._heard = heard

    def give(self) -> bool:
        asyncio.get_running_loop().call_soon(self._heard)
        return True
