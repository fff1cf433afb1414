"""Hints over a WebSocket.

A message says that a poll may find a job, or that a job must be cancelled. Polls bring both as
well, so nothing depends on the WebSocket.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from contextlib import suppress

from pollwise.agent.link import ControllerLink, NotRegistered
from pollwise.errors import PollwiseError
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events, HintsLost, HintsProven
from pollwise.runtime.hints import Hints
from pollwise.runtime.loop import POLL_RETRY

ADVICE = (
    "Check whether the proxy in front of the controller forwards WebSockets (nginx: "
    "proxy_http_version 1.1 and the headers Upgrade and Connection); until then the agent polls."
)


class AgentHints(Hints):
    """Ends the pauses of an agent early."""

    def __init__(
        self,
        link: ControllerLink,
        clock: Clock,
        events: Events,
        source: str,
        cancel: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._link = link
        self._clock = clock
        self._events = events
        self._source = source
        self._cancel = cancel
        self._listening: asyncio.Task[None] | None = None
        self._lost: bool | None = None
        self._proven_at: float | None = None
        self._opened = self._was_open = False  # in this try, in the try before

    @property
    def connected(self) -> bool:
        return self._proven_at is not None

    @property
    def proven_at(self) -> float | None:
        """Since when the WebSocket is open; its keep-alive finds out when it is dead."""
        return self._proven_at

    def begin(self) -> None:
        """Listen with the registration that the agent has now."""
        self.end()
        self._listening = asyncio.ensure_future(self._keep_listening())

    def end(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            self._listening = None

    async def aclose(self) -> None:
        listening = self._listening
        self.end()
        if listening is not None:
            await asyncio.gather(listening, return_exceptions=True)
        await super().aclose()

    async def _keep_listening(self) -> None:
        failures = 0
        while True:
            began = self._clock.now()
            self._opened = False
            try:
                await self._listen(began)
            except PollwiseError as error:
                if not self._lost:
                    self._lost = True
                    self._events.emit(HintsLost(self._source, str(error), ADVICE))
                if isinstance(error, NotRegistered) or (self._was_open and not self._opened):
                    # The next poll registers again, and calls `begin`; or it ends a long pause that
                    # began when hints arrived, because the WebSocket cannot be opened again.
                    self.send()
                self._was_open = self._opened
            failures = 1 if self._clock.now() - began > POLL_RETRY.max_delay else failures + 1
            await self._clock.sleep(POLL_RETRY.delay(failures, random.random()))

    async def _listen(self, began: float) -> None:
        socket = await self._link.dial()
        try:
            while True:
                message = await socket.receive()
                if not self.connected:  # a first message proves the channel
                    self._proven_at = self._clock.now()
                    self._opened = True
                    if self._lost is not False:
                        self._lost = False
                        self._events.emit(HintsProven(self._source, self._clock.now() - began))
                self._handle(message)
        finally:
            self._proven_at = None
            with suppress(PollwiseError):
                await socket.close()

    def _handle(self, text: str) -> None:
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            return
        if not isinstance(message, dict):
            return
        if message.get("hint") is True:
            self.send()
        job_id = message.get("cancel")
        if isinstance(job_id, str):
            self._cancel(job_id)
