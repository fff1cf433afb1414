"""uvicorn as a controller runs it: it drops clients that never finish a request."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pollwise.errors import ConfigError, MissingExtra
from pollwise.runtime.http import warn_without_tls

try:
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol
except ImportError:
    raise MissingExtra("to serve a controller", "serve") from None

if TYPE_CHECKING:
    from pollwise.controller.controller import Controller
    from pollwise.controller.options import ServerOptions

logger = logging.getLogger("pollwise")

#: How long a stop waits for requests under way, in seconds; held polls are answered at once.
GRACE = 10
#: How long a client may take to send the head of a request, in seconds.
HEAD_WITHIN = 20.0
#: How often an open WebSocket is pinged, in seconds: many proxies cut what is silent for 30 s.
PING_EVERY = 20.0
#: How long an idle connection is kept, in seconds: longer than our own clients keep theirs, so
#: that a poll after a hint opens none, and none is sent into a connection that is being closed.
KEEP_ALIVE = 60
#: The largest head of a request, in bytes.
HEAD_MAX = 64 * 1024
NO_TLS = (
    "Set --tls-cert and --tls-key; or listen at 127.0.0.1 behind a proxy with TLS, or name that "
    "proxy with --trusted-proxy."
)
TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"Content-Length: 0\r\nConnection: close\r\n\r\n"
)


def server_of(controller: Controller) -> ControllerServer:
    """A server for a controller's application, as its options say."""
    return server_at(controller.app, controller.options, controller.stop_waiting)


def server_at(
    app: Any,
    options: ServerOptions,
    stop_waiting: Callable[[], None],
    listening: Callable[[str], None] | None = None,
    root_path: str = "",
) -> ControllerServer:
    """A server for an application.

    stop_waiting: ends requests that are held. listening: called with the address when it listens.
    root_path: the path that a proxy removed.
    """
    logging.getLogger("uvicorn.error").addFilter(_is_not_a_refusal)
    if options.access_log:
        access = logging.getLogger("uvicorn.access")
        access.setLevel(logging.INFO)
        access.addFilter(_as_our_record)
    config = uvicorn.Config(
        app,
        root_path=root_path,
        host=options.host,
        port=options.port,
        ssl_certfile=options.tls_cert,
        ssl_keyfile=options.tls_key,
        http=protocol(HEAD_WITHIN),
        proxy_headers=bool(options.trusted_proxies),
        forwarded_allow_ips=list(options.trusted_proxies or ()),
        access_log=options.access_log,
        log_config=None,  # its records go to our own handlers
        lifespan="on",
        server_header=False,
        ws_ping_interval=PING_EVERY,
        ws_ping_timeout=PING_EVERY,
        ws_max_size=64 * 1024,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
    )

    def started(url: str) -> None:
        if not options.trusted_proxies:  # where a proxy has the certificate
            warn_without_tls(url, NO_TLS)
        logger.info("serving on %s", url, extra={"action": "serving", "fields": {"url": url}})
        if listening is not None:
            listening(url)

    return ControllerServer(config, stop_waiting, started)


def _as_our_record(record: logging.LogRecord) -> bool:
    """Turn uvicorn's record of a request into one of ours, without the query."""
    args = record.args
    if isinstance(args, tuple) and len(args) == 5:
        client, method, path, _, status = args
        path = str(path).partition("?")[0]
        record.msg, record.args = "%s %s %s from %s", (method, path, status, client)
        record.action = "request"
        record.fields = {"method": method, "path": path, "status": status, "address": client}
    return True


def _is_not_a_refusal(record: logging.LogRecord) -> bool:
    """False for the record that uvicorn writes when a WebSocket is refused with an error.

    It takes a refusal (an invalid token) for an application that forgot to answer.
    """
    return record.msg != "ASGI callable returned without completing handshake."


class ControllerServer(uvicorn.Server):
    """A server that ends held polls and WebSockets before it waits for requests under way."""

    def __init__(
        self,
        config: uvicorn.Config,
        stop_waiting: Callable[[], None],
        started: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(config)
        self._stop_waiting = stop_waiting
        self._started = started

    async def serve_until_stopped(self) -> None:
        """Serve until `should_exit` is set; `ConfigError` if it cannot listen."""
        try:
            await self.serve()
        except SystemExit:  # uvicorn cannot listen; stores must be closed first
            self.started = False
        if not self.started:
            raise ConfigError(
                f"cannot listen at {self.config.host}:{self.config.port}; is the port in use? "
                "Choose another port"
            )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._started is not None and self.started:
            self._started(self.url)

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        scheme = "https" if self.config.is_ssl else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stop_waiting()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are left to `Controller.run`, which shares them with workers in the process."""
        yield


def protocol(head_within: float) -> type[asyncio.Protocol]:
    """The HTTP protocol, with limits on the time and the size of the head of a request.

    uvicorn has none: a client that sends a byte now and then would keep its connection for ever,
    and one that never ends its headers would fill the memory.
    """
    if not hasattr(AutoHTTPProtocol, "on_headers_complete"):
        return AutoHTTPProtocol  # without httptools; it limits heads itself
    base: Any = AutoHTTPProtocol

    class LimitedProtocol(base):  # type: ignore[misc]
        _late: asyncio.TimerHandle | None = None
        _size = 0
        _begun = False  # a head began, and its end has not arrived

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
                # The rest of a refused request, or an empty line before the next one: after any
                # byte, uvicorn would wait for the rest for ever.
                self._wait_for_head()

        def on_message_begin(self) -> None:
            # No timer if the whole head has arrived: nearly all come in one piece.
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

    return LimitedProtocol
