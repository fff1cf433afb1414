"""The hints of a queue at a controller, over a WebSocket."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pollwise.queues.http.client import RequestRefused, Socket
from pollwise.storage.channel import HintChannel, HintTransport

if TYPE_CHECKING:
    from pollwise.queues.http.queue import HttpQueue


class HttpChannel(HintChannel):
    """A channel that is proven only while the controller itself receives hints of all puts."""

    _transport: HttpTransport

    @property
    def proven_at(self) -> float | None:
        return super().proven_at if self._transport.proven else None

    def _broadcast_to_others(self, kind: str) -> None:
        """Do nothing: the change happens at the controller, which sends the broadcast."""


class HttpTransport(HintTransport):
    """Messages over one WebSocket to the controller."""

    advice = (
        "Check that a proxy in front of the controller forwards WebSockets (nginx: "
        "proxy_http_version 1.1 and the headers Upgrade and Connection); until then polls find "
        "the jobs."
    )

    def __init__(self, queue: HttpQueue) -> None:
        self._queue = queue
        self._socket: Socket | None = None
        self.proven: bool = False

    async def listen(self, heard: Callable[[str], None], ready: Callable[[], None]) -> None:
        try:
            await self._listen(heard, ready)
        except RequestRefused as refused:
            if (advice := self._queue.advice_on(refused)) is not None:
                refused.advice = advice  # the proxy is not the cause
            raise

    async def _listen(self, heard: Callable[[str], None], ready: Callable[[], None]) -> None:
        socket = await self._queue.dial()
        self._socket = socket
        try:
            ready()
            while True:
                message = await socket.receive()
                if message.startswith("["):
                    heard(message)
                elif message.startswith('{"proven"'):
                    self.proven = message == '{"proven": true}'
        finally:
            self._socket = None
            self.proven = False
            await socket.close()

    async def send(self, message: str) -> None:
        if self._socket is not None:
            await self._socket.send(message)
        else:
            await self._queue.say(message)

    async def close(self) -> None:
        """Nothing to do: `listen` closes the WebSocket itself."""
