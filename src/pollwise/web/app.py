"""The ASGI application of the web interface."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles

from pollwise.queues.base import Queue
from pollwise.queues.urls import open_queue
from pollwise.runtime.clock import Clock
from pollwise.web.access import Forbidden, WebAccess
from pollwise.web.comparisons import Comparisons
from pollwise.web.headers import SecurityHeaders
from pollwise.web.pages import VIEWS
from pollwise.web.rendering import HERE, THEME, Pages
from pollwise.web.sources import Sources
from pollwise.web.view import View

#: How often a live page looks for changes, in seconds.
REFRESH = 2.0


class Web:
    """The parts of a web interface: what it shows, who may see it, and how pages are rendered."""

    def __init__(self, sources: Sources, access: WebAccess, refresh: float = REFRESH) -> None:
        self.sources = sources
        self.access = access
        self.refresh = refresh
        self.comparisons = Comparisons(sources.clock)
        self.pages = Pages(self)
        self.streams = 0
        self.stopping = asyncio.Event()
        self.views: list[View] = [view for view in (each(self) for each in VIEWS) if view.shown()]
        self.router = Router([route for view in self.views for route in view.routes()])

    def path_of(self, route: str, /, **parts: str) -> str:
        """The address of a page, below the place where the application is mounted."""
        quoted = {key: quote(str(part), safe="/:", errors="replace") for key, part in parts.items()}
        return str(self.router.url_path_for(route, **quoted))


def app(
    *queues: str | Queue,
    outboxes: Iterable[Any] = (),
    fleets: Iterable[Any] = (),
    controller: Any = None,
    clock: Clock | None = None,
    refresh: float = REFRESH,
) -> Starlette:
    """The web interface as an application to serve or to mount.

    queues: URLs or open queues; those that it opens itself, it closes.
    """
    sources = Sources(clock=clock or Clock(), controller=controller)
    owned = list(map(_opened, queues))
    for queue in owned:
        sources.add_queue(queue)
    return application(Web(sources, WebAccess(), refresh), [q for q in owned if q not in queues])


def application(web: Web, owned: Sequence[Queue] = ()) -> Starlette:
    """The application of a web interface; it closes `owned` when it ends."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            web.stopping.set()
            await web.comparisons.close()
            await web.sources.close()
            for queue in owned:
                await queue.close()

    async def livez(_: Request) -> Response:
        return PlainTextResponse("ok")

    async def theme(request: Request) -> Response:
        """Remember the chosen theme; the form works without JavaScript."""
        viewer = await web.access.viewer(request)
        if viewer is None:
            return web.access.ask_for_login(request)
        form = await web.access.checked_form(request, viewer)
        chosen = form.get("theme", "auto")
        back = Response(status_code=303, headers={"Location": web.access.way_back(request, form)})
        if chosen in ("auto", "light", "dark"):
            path = request.scope.get("root_path") or "/"
            back.set_cookie(THEME, chosen, 365 * 86400, path=path, samesite="lax", httponly=True)
        return back

    web.router.routes += [
        Route("/livez", livez, name="livez"),
        Route("/theme", theme, methods=["POST"], name="theme"),
        Mount("/static", StaticFiles(directory=HERE / "static"), name="static"),
    ]
    made = Starlette(
        routes=web.router.routes, lifespan=lifespan, middleware=[Middleware(SecurityHeaders)]
    )
    made.state.web = web

    async def answered(request: Request, error: Exception) -> Response:
        if isinstance(error, Forbidden):
            viewer = await web.access.viewer(request)
            return await web.pages.error(request, 403, f"Not allowed: {error}.", viewer)
        status = error.status_code if isinstance(error, HTTPException) else 500
        message = "There is no such page." if status == 404 else "This request cannot be answered."
        viewer = await web.access.viewer(request)
        return await web.pages.error(request, status, message, viewer)

    for kind in (Forbidden, HTTPException):
        made.add_exception_handler(kind, answered)
    return made


def _opened(queue: str | Queue) -> Queue:
    return open_queue(queue, create=False) if isinstance(queue, str) else queue
