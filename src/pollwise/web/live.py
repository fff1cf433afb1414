"""Live pages: Server-Sent Events that carry the new contents of a page.

While a page is visible, its script keeps one stream open. The server asks the page's `marker` once
per refresh interval. It renders the page only if the marker changed, and every REDRAW_EVERY
seconds, because the page shows ages. It sends the new `<main>` only if that differs from the last
one sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from pollwise.platforms import signals

if TYPE_CHECKING:
    from pollwise.web.view import View, Visit

#: Asks for the marker of a source.
Ask = Callable[[], Awaitable[Hashable]]
#: After this many seconds a page is rendered again even if its marker did not change.
REDRAW_EVERY = 30.0
#: How often a stream checks its session again, in seconds: its end takes effect within this time.
CHECK_EVERY = 5.0
#: How soon a stream notices that the server stops, in seconds.
STOP_SEEN = 0.5
#: The most streams at a time, and those of one viewer; further pages are not live.
STREAMS_MAX = 200
STREAMS_EACH = 100


def wants_events(request: Request) -> bool:
    """True for a request of `EventSource`."""
    return "text/event-stream" in request.headers.get("accept", "")


def login_event() -> Response:
    """The event that a viewer has to log in again."""
    return PlainTextResponse("event: login\ndata: \n\n", media_type="text/event-stream")


def event_stream(view: View, visit: Visit) -> Response:
    """A stream of the page's contents."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    events = _events(view, visit)
    return _CountedStream(visit, events, headers=headers, media_type="text/event-stream")


class MarkersInTurn:
    """The markers of many sources. Each call asks one, so that many idle sources cost no more than
    one."""

    def __init__(self) -> None:
        self._turn = 0
        self._found: dict[Hashable, Hashable] = {}

    async def marker(self, visit: Visit, asks: Mapping[Any, Ask]) -> Hashable:
        """Changes when one of the sources does. `is_idle` of the same visit is true if not."""
        if asks:
            self._turn = (self._turn + 1) % len(asks)
            name = list(asks)[self._turn]
            self._found[name] = await asks[name]()
        marker, state = tuple(self._found.items()), visit.request.state
        state.idle = marker == getattr(state, "marker", None)
        state.marker = marker
        return marker


def is_idle(visit: Visit) -> bool:
    """True for a page that stays open and whose markers did not change: stores are not asked."""
    return wants_events(visit.request) and getattr(visit.request.state, "idle", False)


class _CountedStream(StreamingResponse):
    """A stream that counts from before its first byte: many may begin at the same time."""

    def __init__(self, visit: Visit, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._streams, self._who = visit.web.streams, visit.viewer.who

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        streams, who = self._streams, self._who
        if streams.total() >= STREAMS_MAX or streams[who] >= STREAMS_EACH:
            full = PlainTextResponse("Too many live pages are open.", 503, {"Retry-After": "30"})
            await full(scope, receive, send)
            return
        streams[who] += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            streams[who] -= 1
            if not streams[who]:
                del streams[who]


async def _events(view: View, visit: Visit) -> AsyncIterator[str]:
    web = visit.web
    clock = web.sources.clock
    marker: object = object()
    sent, drawn, checked = b"", float("-inf"), clock.now()
    yield f"retry: {int(web.refresh * 1000)}\n\n"
    while not web.stopping.is_set():
        now = clock.now()
        if now - checked >= CHECK_EVERY:
            checked = now
            viewer = await web.access.viewer(visit.request)
            if viewer is None or not viewer.may(view.scope):
                yield "event: login\ndata: \n\n"
                return
        found = await view.marker(visit)
        if found is None or found != marker or now - drawn >= REDRAW_EVERY:
            marker, drawn = found, now
            html = await web.pages.main(view, visit)
            digest = blake2b(html.encode(), digest_size=16).digest()
            if digest != sent:
                sent = digest
                yield _event(html)
            else:
                yield ": unchanged\n\n"
        else:
            yield ": unchanged\n\n"
        await _pause(web.stopping, web.refresh)


def _event(html: str) -> str:
    """New contents as an event. Carriage returns are replaced: they end lines too, so an error text
    with some could write events of its own."""
    lines = html.replace("\r", "&#13;").split("\n")
    return "event: main\n" + "".join(f"data: {line}\n" for line in lines) + "\n"


async def _pause(stopping: asyncio.Event, delay: float) -> None:
    """Wait for the next look, or until the server stops."""
    until = asyncio.get_running_loop().time() + delay
    while not stopping.is_set():
        left = until - asyncio.get_running_loop().time()
        if left <= 0:
            return
        try:
            async with asyncio.timeout(min(left, STOP_SEEN)):
                await stopping.wait()
        except TimeoutError:
            if _server_stops():
                stopping.set()


def _server_stops() -> bool:
    """True if uvicorn got a signal to stop.

    It waits for all answers before it tells the application, so an open stream would keep a mounted
    application running for ever. Its handler of signals is a method of the server.
    """
    server = getattr(signals.handler_of(signals.TERMINATE), "__self__", None)
    return getattr(server, "should_exit", False) is True
