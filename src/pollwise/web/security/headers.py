"""The headers of every answer: nothing from elsewhere, nothing inline, nothing cached."""

from __future__ import annotations

from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "font-src 'none'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


#: The longest address of a page with its query, in bytes.
ADDRESS_MAX = 8192


class SecurityHeaders:
    """Adds the headers to all answers, and refuses addresses that are too long."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # A file under /static carries its hash in the address, so it may be kept.
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        hashed = path.startswith("/static/") and scope["query_string"]

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers: Any = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if hashed and message["status"] in (200, 304):
                    headers["Cache-Control"] = "private, max-age=31536000, immutable"
                else:
                    headers.setdefault("Cache-Control", "no-store")
            await send(message)

        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > ADDRESS_MAX:
            answer = PlainTextResponse(f"The address is longer than {ADDRESS_MAX} bytes.", 400)
            await answer(scope, receive, sent)
            return
        await self._app(scope, receive, sent)
