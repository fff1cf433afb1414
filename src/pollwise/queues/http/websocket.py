"""WebSockets to a controller, with the package `websockets`."""

from __future__ import annotations

import ssl
from contextlib import suppress

from pollwise.errors import MissingExtra
from pollwise.queues.http import tls as http_tls
from pollwise.queues.http.client import CertificateNotTrusted, NoAnswer, RequestRefused

try:
    from websockets.asyncio.client import ClientConnection, connect
    from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
except ImportError as error:
    raise MissingExtra("hints over a WebSocket", "http") from error

#: How long opening may take, in seconds.
OPEN_TIMEOUT = 10.0
#: A ping is sent this often, in seconds, because many proxies cut connections that are silent for
#: 30 s. Without an answer within the same time the connection is dead.
PING_EVERY = 20.0
#: The largest message, in bytes.
MESSAGE_MAX = 65536


class WebSocket:
    """One open WebSocket."""

    def __init__(self, connection: ClientConnection, base: str) -> None:
        self._connection = connection
        self._base = base

    async def receive(self) -> str:
        try:
            message = await self._connection.recv()
        except ConnectionClosed as error:
            raise self._over(error) from error
        return message if isinstance(message, str) else ""

    async def send(self, message: str) -> None:
        try:
            await self._connection.send(message)
        except ConnectionClosed as error:
            raise self._over(error) from error

    async def close(self) -> None:
        with suppress(OSError, ConnectionClosed):
            await self._connection.close()

    def _over(self, error: ConnectionClosed) -> Exception:
        code = error.rcvd.code if error.rcvd is not None else None
        reason = error.rcvd.reason if error.rcvd is not None else ""
        if code in (1008, 4401, 4403, 4404):
            said = f"{self._base} closed the WebSocket: {reason or code}"
            return RequestRefused(said, code - 4000 if code > 4000 else 403, "")
        return NoAnswer(f"the WebSocket to {self._base} was closed ({error})", sent=False)


async def dial(base: str, path: str, token: str, tls: ssl.SSLContext | None = None) -> WebSocket:
    """Open a WebSocket; the token goes into a header, never into the URL."""
    uri = "ws" + base.removeprefix("http") + path
    try:
        connection = await connect(
            uri,
            ssl=tls,
            additional_headers={"Authorization": f"Bearer {token}"},
            open_timeout=OPEN_TIMEOUT,
            ping_interval=PING_EVERY,
            ping_timeout=PING_EVERY,
            close_timeout=1.0,
            max_size=MESSAGE_MAX,
            max_queue=64,
            user_agent_header="pollwise",
        )
    except InvalidStatus as error:
        status = error.response.status_code
        said = f"{base} answered {status} to a WebSocket request"
        raise RequestRefused(said, status, "") from error
    except (OSError, TimeoutError, InvalidHandshake, EOFError) as error:
        if (problem := http_tls.problem(error)) is not None:
            raise CertificateNotTrusted(f"the controller {base} {problem}", sent=False) from error
        why = str(error) or type(error).__name__
        raise NoAnswer(f"no WebSocket to {base}: {why}", sent=False) from error
    return WebSocket(connection, base)
