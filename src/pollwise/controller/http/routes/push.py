"""`/api/workers/ws`: the WebSocket of a worker, as a plain ASGI endpoint.

The token comes in the Authorization header, or as the first message `{"token": …}` from a client
that cannot set headers; never in the URL, which appears in logs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from pollwise.controller.http.answers import HttpError, encoded, error_for, no_such
from pollwise.controller.http.requests import is_id
from pollwise.controller.security.auth import Caller
from pollwise.controller.workers.registry import KnownWorker
from pollwise.errors import PollwiseError

if TYPE_CHECKING:
    from pollwise.controller.controller import Controller

#: How long a client may take to send its token, in seconds.
TOKEN_WITHIN = 10.0
#: The longest message that is read, in characters.
MESSAGE_MAX = 4096
#: Close codes.
REFUSED = 4400
UNAUTHORIZED = 4401
NOT_FOUND = 4404
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
        except HttpError as refused:
            await self._refuse(socket, refused)
            return
        except PollwiseError as error:
            self._controller.log_failure(error)
            await self._refuse(socket, error_for(error))
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
            known = await self._known(socket, await controller.access.caller(socket))
            await socket.accept()
            return known
        await socket.accept()
        token = await self._first_token(socket)
        return await self._known(socket, await controller.access.caller(socket, token=token))

    async def _known(self, socket: WebSocket, who: Caller) -> KnownWorker:
        worker_id = socket.query_params.get("worker_id", who.worker_id or "")
        who.must_be_worker(worker_id)
        known = await self._controller.registry.get(worker_id) if is_id(worker_id) else None
        if known is None:
            raise no_such("worker", worker_id)
        return known

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

        controller.registry.seen(known, socket.client.host if socket.client else "")
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

    async def _refuse(self, socket: WebSocket, refused: HttpError) -> None:
        """Answer the handshake with an error; with a close code if it is over."""
        answers = "websocket.http.response" in socket.scope.get("extensions", {})
        if socket.application_state is WebSocketState.CONNECTING and answers:
            headers = {**refused.headers, "Content-Type": "application/json"}
            await socket.send_denial_response(Response(refused.body(), refused.status, headers))
            return
        codes = {401: UNAUTHORIZED, 403: UNAUTHORIZED, 404: NOT_FOUND, 503: AGAIN_LATER}
        await _close(socket, codes.get(refused.status, REFUSED), refused.code)


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    try:
        await socket.close(code, reason)
    except (RuntimeError, WebSocketDisconnect):  # it is closed already
        return
