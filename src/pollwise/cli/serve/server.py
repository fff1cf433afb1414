"""uvicorn as `pollwise serve` runs it: it does not wait for who never comes to the point."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

#: The largest head of a request, in bytes.
HEAD_MAX = 64 * 1024
TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"Content-Length: 0\r\nConnection: close\r\n\r\n"
)


def show_requests() -> None:
    """Have uvicorn log each request, as one of our own records and without its query."""
    logger = logging.getLogger("uvicorn.access")
    logger.setLevel(logging.INFO)
    logger.addFilter(_as_ours)


def _as_ours(record: logging.LogRecord) -> bool:
    args = record.args
    if isinstance(args, tuple) and len(args) == 5:
        client, method, path, _, status = args
        path = str(path).partition("?")[0]
        record.msg, record.args = "%s %s %s from %s", (method, path, status, client)
        record.action = "request"
        record.fields = {"method": method, "path": path, "status": status, "address": client}
    return True


def hush_refusals() -> None:
    """Leave out what uvicorn says of each WebSocket that was answered with an error.

    It takes a refusal (a token that does not hold) for an application that forgot to answer.
    """
    logging.getLogger("uvicorn.error").addFilter(_is_no_refusal)


def _is_no_refusal(record: logging.LogRecord) -> bool:
    return record.msg != "ASGI callable returned without completing handshake."


class PatientServer(uvicorn.Server):
    """A server that ends held polls and WebSockets before it waits for what is under way."""

    def __init__(
        self,
        config: uvicorn.Config,
        stop_waiting: Callable[[], None],
        tell: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(config)
        self._stop_waiting = stop_waiting
        self._tell = tell

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._tell is not None and self.started:
            self._tell(self.url)

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        scheme = "https" if self.config.is_ssl else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stop_waiting()
        await super().shutdown(sockets)
        # Else uvicorn raises the signal anew, and the process dies before its stores are closed.
        self._captured_signals.clear()


def protocol(head_within: float) -> type[asyncio.Protocol]:
    """The HTTP protocol, with limits on how long, and how large, the head of a request may be.

    uvicorn has none: a client that sends a byte now and then would hold its connection for ever,
    and one that never ends its headers would fill the memory.
    """
    if not hasattr(AutoHTTPProtocol, "on_headers_complete"):
        return AutoHTTPProtocol  # without httptools; it bounds heads by itself
    base: Any = AutoHTTPProtocol

    class Hurried(base):  # type: ignore[misc]
        _late: asyncio.TimerHandle | None = None
        _size = 0
        _begun = False  # a head, whose end is not here

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait_for_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._head_is_there()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            self._size += len(data)
            super().data_received(data)
            waiting = self._begun or self._late is not None
            if waiting and self._size > HEAD_MAX:
                self._head_is_there()
                self.transport.write(TOO_LARGE)
                self.transport.close()
            elif self._late is None and (self._begun or self._is_answered()):
                # The rest of a request that was refused, or an empty line before the next one:
                # from any byte on, uvicorn would wait for the rest without end.
                self._wait_for_head()

        def on_message_begin(self) -> None:
            # A timer only if the head is not here in full: nearly all come in one piece.
            self._head_is_there()
            self._begun = True
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._head_is_there()
            super().on_headers_complete()

        def _is_answered(self) -> bool:
            if self.transport.get_protocol() is not self:
                return False  # it is a WebSocket now
            return self.cycle is None or self.cycle.response_complete

        def _wait_for_head(self) -> None:
            self._late = self.loop.call_later(head_within, self._give_up)

        def _head_is_there(self) -> None:
            self._size = 0
            self._begun = False
            if self._late is not None:
                self._late.cancel()
                self._late = None

        def _give_up(self) -> None:
            self._late = None
            if not self.transport.is_closing():
                self.transport.close()

    return Hurried
