"""`/api/workers/ws`: the WebSocket of a worker, as a plain ASGI endpoint.

The token comes in the Authorization header, or as the first message `{"token": …}` from a client
that cannot set headers; never in the URL, which appears in logs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from pollwise.controller.http.answers import HttpError, encoded
from pollwise.controller.http.requests import error_response
from pollwise.controller.workers.registry import KnownWorker
from pollwise.errors import PollwiseError
from pollwise.runtime.http import address_of

if TYPE_CHECKING:
    from pollwise.controller.controller import Controller

#: How long a client may take to send its token, in seconds.
TOKEN_WITHIN = 10.0
#: The longest message that is read, in characters.
MESSAGE_MAX = 4096
#: Close codes; others are 4000 and the status of the error.
AGAIN_LATER = 1013
STOPPING = 1012


class PushRoute:
    """The endpoint."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        socket = WebSocket(scope, receive, send)
        try:
            known = await self._accepted(socket)
        except (HttpError, PollwiseError) as error:
            await refuse_socket(socket, self._controller.access.explained(error))
            return
        except (WebSocketDisconnect, RuntimeError):
            return
        await self._serve(socket, known)

    async def _accepted(self, socket: WebSocket) -> KnownWorker:
        """The worker. The connection is accepted first if the token comes as a message."""
        controller = self._controller
        await controller.start()
        if controller.sockets.full:
            raise HttpError(503, "full", "too many WebSockets are open", "Poll instead.")
        if "authorization" in socket.headers:
            known = await self._known(socket, None)
            controller.registry.seen(known)  # so that it is not forgotten meanwhile
            await socket.accept()
            return known
        await socket.accept()
        return await self._known(socket, await self._first_token(socket))

    async def _known(self, socket: WebSocket, token: str | None) -> KnownWorker:
        access = self._controller.access
        who = await access.caller(socket, token=token)
        return await access.worker_of(
            who, socket.query_params.get("worker_id", who.worker_id or "")
        )

    async def _first_token(self, socket: WebSocket) -> str:
        try:
            async with asyncio.timeout(TOKEN_WITHIN):
                message = await socket.receive_text()
            given = json.loads(message) if len(message) <= MESSAGE_MAX else None
        except (TimeoutError, ValueError, KeyError, RecursionError):
            given = None
        token = given.get("token") if isinstance(given, Mapping) else None
        if not isinstance(token, str):
            raise HttpError(
                401, "no_token", "no token was sent", 'Send {"token": "…"} as the first message.'
            )
        return token

    async def _serve(self, socket: WebSocket, known: KnownWorker) -> None:
        controller = self._controller

        async def send(message: Mapping[str, Any]) -> None:
            await socket.send_text(encoded(message).decode())

        controller.registry.seen(known, address_of(socket.scope))
        push = controller.sockets.connect(known, send)
        controller.connected()
        reading = asyncio.ensure_future(self._read(socket, known))
        closing = asyncio.ensure_future(push.closed.wait())
        try:
            await asyncio.wait([reading, closing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            controller.sockets.disconnect(push)
            reading.cancel()
            closing.cancel()
            await asyncio.gather(reading, closing, return_exceptions=True)
            await _close(socket, STOPPING, "")

    async def _read(self, socket: WebSocket, known: KnownWorker) -> None:
        """Any message of a worker counts as a contact, and nothing else."""
        while True:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text") or message.get("bytes") or ""
            if len(text) > MESSAGE_MAX:
                return
            self._controller.registry.seen(known)


async def refuse_socket(socket: WebSocket, refused: HttpError) -> None:
    """Answer the handshake of a WebSocket with an error; with a close code if it is over."""
    answers = "websocket.http.response" in socket.scope.get("extensions", {})
    if socket.application_state is WebSocketState.CONNECTING and answers:
        await socket.send_denial_response(error_response(refused))
    else:
        code = AGAIN_LATER if refused.status == 503 else 4000 + refused.status
        await _close(socket, code, refused.code)


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    try:
        await socket.close(code, reason)
    except (RuntimeError, WebSocketDisconnect):  # it is closed already
        return
