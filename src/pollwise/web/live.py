"""Live pages: Server-Sent Events that carry the new contents of a page.

While a page is visible, its script keeps one stream open. The server asks the page's `marker` once
per refresh interval, renders only if that changed (or every REDRAW_EVERY seconds, because the page
shows ages), and sends the new `<main>` only if it differs from what was sent last.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from hashlib import blake2b
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

if TYPE_CHECKING:
    from pollwise.web.view import View, Visit

#: After this many seconds a page is rendered again even if its marker did not change.
REDRAW_EVERY = 30.0
#: How often the session of a stream is checked again, in seconds.
CHECK_EVERY = 30.0
#: The most streams at a time; further pages are not live.
STREAMS_MAX = 200


def wants_events(request: Request) -> bool:
    """True for a request of `EventSource`."""
    return "text/event-stream" in request.headers.get("accept", "")


def login_event() -> Response:
    """Tells a live page that its viewer has to log in again."""
    return PlainTextResponse("event: login\ndata: \n\n", media_type="text/event-stream")


def event_stream(view: View, visit: Visit) -> Response:
    """A stream of the page's contents."""
    web = visit.web
    if web.streams >= STREAMS_MAX:
        return PlainTextResponse("Too many live pages are open.", 503, {"Retry-After": "30"})
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_events(view, visit), headers=headers, media_type="text/event-stream")


async def _events(view: View, visit: Visit) -> AsyncIterator[str]:
    web = visit.web
    clock = web.sources.clock
    web.streams += 1
    try:
        marker: object = object()
        sent, drawn, checked = b"", float("-inf"), clock.now()
        yield f"retry: {int(web.refresh * 1000)}\n\n"
        while not web.stopping.is_set():
            now = clock.now()
            if now - checked >= CHECK_EVERY:
                checked = now
                if await web.access.viewer(visit.request) is None:
                    yield "event: login\ndata: \n\n"
                    return
            found = await view.marker(visit)
            if found is None or found != marker or now - drawn >= REDRAW_EVERY:
                marker, drawn = found, now
                html = await web.pages.main(view, visit)
                digest = blake2b(html.encode(), digest_size=16).digest()
                if digest != sent:
                    sent = digest
                    yield "event: main\n" + "".join(f"data: {x}\n" for x in html.split("\n")) + "\n"
                else:
                    yield ": unchanged\n\n"
            else:
                yield ": unchanged\n\n"
            await _pause(web.stopping, web.refresh)
    finally:
        web.streams -= 1


async def _pause(stopping: asyncio.Event, delay: float) -> None:
    try:
        async with asyncio.timeout(delay):
            await stopping.wait()
    except TimeoutError:
        pass
