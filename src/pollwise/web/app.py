"""The ASGI application of the web interface."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Match, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

from pollwise.controller.state.base import ControllerState
from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError, StoreError
from pollwise.queues.base import Queue
from pollwise.runtime.clock import Clock
from pollwise.settings.sections import REDACTED
from pollwise.web.access import (
    SESSION_LIFE,
    Authorise,
    Forbidden,
    ScopeMissing,
    SessionAccess,
    Viewer,
    WebAccess,
    checked_life,
)
from pollwise.web.comparisons import Comparisons
from pollwise.web.opening import Opened, default_state, open_state, trace_folder
from pollwise.web.pages import VIEWS
from pollwise.web.pages.status.contents import StatusContents
from pollwise.web.pages.status.options import StatusOptions
from pollwise.web.redaction import RedactionRules
from pollwise.web.rendering import HERE, THEME, Pages
from pollwise.web.security.headers import SecurityHeaders
from pollwise.web.security.passwords import Password
from pollwise.web.sources import Sources
from pollwise.web.view import Address

if TYPE_CHECKING:
    from pollwise.controller.controller import Controller

logger = logging.getLogger("pollwise")

#: How often a live page looks for changes, in seconds; and the limits of that.
REFRESH = 2.0
REFRESH_MIN, REFRESH_MAX = 0.2, 3600.0

CLOSED = (
    "this web interface would be open to everybody. Give it authorise=, a function that returns "
    "who sent a request; or password=; or tokens=True, for the tokens that `pollwise serve token` "
    "makes. On a machine of your own, authorise=pollwise.web.everybody opens it"
)
_MESSAGES = {
    400: "This request cannot be read.",
    404: "There is no such page.",
    405: "This page cannot do that.",
    503: "The store of tokens and sessions does not answer. Try again in a moment.",
}


class Closable(Protocol):
    """Something that the web interface opened and closes."""

    async def close(self) -> None: ...


class Web:
    """The parts of a web interface: what it shows, who may see it, and how pages are rendered.

    rules: what pages hide of payloads. owned: closed at the end. status: what everybody may see;
    None for no status page.
    """

    def __init__(
        self,
        sources: Sources,
        access: WebAccess,
        refresh: float = REFRESH,
        *,
        rules: RedactionRules | None = None,
        owned: list[Closable] | None = None,
        status: StatusOptions | None = None,
    ) -> None:
        self.sources = sources
        self.status: StatusContents | None = (
            None if status is None else StatusContents(sources, status)
        )
        self.access = access
        self.refresh = refresh
        self.comparisons: Comparisons = Comparisons(sources.clock)
        self.rules: RedactionRules = rules or RedactionRules()
        self.pages: Pages = Pages(self)
        #: How many live pages each viewer has open.
        self.streams: Counter[str] = Counter()
        self.stopping: asyncio.Event = asyncio.Event()
        self._owned: list[Closable] = [] if owned is None else owned
        made = (each(self) for each in VIEWS)
        self.views: list[Address] = [view for view in made if view.shown()]
        self.router: Router = Router([route for view in self.views for route in view.routes()])

    def path_of(self, route: str, /, **parts: str) -> str:
        """The address of a page, below the place where the application is mounted."""
        quoted = {key: quote(str(part), safe="/:", errors="replace") for key, part in parts.items()}
        return str(self.router.url_path_for(route, **quoted))

    def show_store(self, queue: Queue, url: str) -> None:
        """Show the other queues of a store too, as they are found. queue: one that is shown."""
        Opened(self.sources.clock, sources=self.sources, owned=self._owned).others(queue, url)

    async def close(self) -> None:
        """End live pages, and close what was opened here."""
        self.stopping.set()
        owned = list(self._owned)
        self._owned.clear()
        async with AsyncExitStack() as stack:
            for each in owned:
                stack.push_async_callback(each.close)
            stack.push_async_callback(self.sources.close)
            stack.push_async_callback(self.comparisons.close)


class WebApp(Starlette):
    """The application. Served alone, it closes its stores at the end.

    Starlette does not run the lifespan of a mounted application: enter it in that of the outer one,
    `async with web: yield`, or await `web.close()` at its end.
    """

    web: Web

    def build_middleware_stack(self) -> ASGIApp:
        # Outside of everything else: the page for a failure has these headers too.
        return SecurityHeaders(super().build_middleware_stack())

    async def close(self) -> None:
        """End live pages, and close the stores that it opened."""
        await self.web.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def app(
    *queues: str | Queue,
    outboxes: Iterable[Any] = (),
    fleets: Iterable[Any] = (),
    controller: Controller | None = None,
    authorise: Authorise | None = None,
    login: str = "",
    password: str | None = None,
    tokens: bool = False,
    state: str | ControllerState | None = None,
    read_only: bool = False,
    session: Duration = SESSION_LIFE,
    redact: Iterable[str] = REDACTED,
    refresh: Duration = REFRESH,
    traces: str | Path | None = None,
    status: StatusOptions | None = None,
    clock: Clock | None = None,
) -> WebApp:
    """The web interface as an application to serve or to mount: `app.mount("/pollwise", web)`.

    queues, outboxes, fleets: URLs, or objects that are open already; it closes only what it opened.
        For a URL without `?queue=`, all queues of the store are shown.
    controller: shows a controller of this process and its queue, and accepts its tokens.
    authorise: returns a `Viewer` for a request, or None; it may be async. login: the address of the
        application's own login page, for those who get None.
    password: logs in as an admin. tokens: accept the tokens of `state` too.
    state: where tokens, the audit log and the key of sessions are: a SQLite file or a Postgres
        database; by default the first such store of the above.
    read_only: nobody may change anything. session: how long somebody stays logged in.
    redact: rules for the names of values in payloads that are never shown.
    refresh: how often a live page looks for changes.
    traces: a folder of trace files that the lab offers.
    status: the groups of targets that everybody may see at `/status`; None for no such page.
    """
    if authorise is None and password is None and not tokens and controller is None:
        raise ConfigError(CLOSED)
    if authorise is not None and password is not None:
        raise ConfigError("both authorise and password are given; keep one of them")
    rules, life = RedactionRules(redact), checked_life(seconds(session, "session"))
    every = seconds(refresh, "refresh")
    if not REFRESH_MIN <= every <= REFRESH_MAX:
        raise ConfigError(f"refresh = {every:g} s must be from {REFRESH_MIN:g} s to 1 h")
    secret = None if password is None else Password(password)
    opened = Opened(clock or Clock(), controller)
    opened.sources.traces = None if traces is None else trace_folder(traces)
    if controller is not None:
        opened.sources.add_queue(controller.queue)
    for queue in queues:
        opened.queue(queue)
    for outbox in outboxes:
        opened.outbox(outbox)
    for fleet in fleets:
        opened.fleet(fleet)
    if controller is not None:
        kept = controller.storage
    elif isinstance(state, ControllerState):
        kept = state
    else:
        kept = default_state(opened) if state is None else open_state(state, opened.sources.clock)
        opened.owned.append(kept)
    access: WebAccess
    if authorise is not None:
        access = WebAccess(
            authorise, state=kept, read_only=read_only, login=login, clock=opened.sources.clock
        )
    else:
        access = SessionAccess(
            kept,
            auth=None if controller is None else controller.auth,
            password=secret,
            accept_tokens=tokens or controller is not None,
            read_only=read_only,
            life=life,
            clock=opened.sources.clock,
        )
    if status is not None and not opened.sources.fleets:
        raise ConfigError("a status page shows targets of a fleet, but no fleet is given")
    return application(
        Web(opened.sources, access, every, rules=rules, owned=opened.owned, status=status)
    )


def application(web: Web) -> WebApp:
    """The application of a web interface."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await web.close()

    async def livez(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(_: Request) -> Response:
        if web.stopping.is_set():
            return JSONResponse({"status": "not ready", "reasons": ["stopping"]}, 503)
        return JSONResponse({"status": "ok"})

    async def theme(request: Request) -> Response:
        """Remember the chosen theme; the form works without JavaScript."""
        viewer = await web.access.viewer(request)
        if viewer is None:
            return web.access.ask_for_login(request)
        form = await web.access.checked_form(request, viewer)
        chosen = form.get("theme", "auto")
        back = RedirectResponse(web.access.way_back(request, form), status_code=303)
        if chosen in ("auto", "light", "dark"):
            path = request.scope.get("root_path") or "/"
            back.set_cookie(THEME, chosen, 365 * 86400, path=path, samesite="lax", httponly=True)
        return back

    web.router.routes += [
        *web.access.routes(web),
        Route("/livez", livez, name="livez"),
        Route("/readyz", readyz, name="readyz"),
        Route("/theme", theme, methods=["POST"], name="theme"),
        Mount("/static", StaticFiles(directory=HERE / "static"), name="static"),
    ]
    made = WebApp(routes=web.router.routes, lifespan=lifespan)
    made.router.redirect_slashes = False  # it would send browsers to the host of the request
    made.web = made.state.web = web

    async def answered(request: Request, error: Exception) -> Response:
        return await _error_page(web, request, error)

    for kind in (Forbidden, HTTPException, StoreError, Exception):
        made.add_exception_handler(kind, answered)
    return made


async def _error_page(web: Web, request: Request, error: Exception) -> Response:
    """The page for an error. Internal details go to the log only."""
    headers = None
    match error:
        case Forbidden():
            read_only = isinstance(error, ScopeMissing) and web.access.read_only
            why = "this web interface is read-only" if read_only else error
            status, message = 403, f"Not allowed: {why}."
        case HTTPException(status_code=status, detail=detail):
            message = _MESSAGES.get(status, detail)
            headers = error.headers
        case _:
            known = isinstance(error, StoreError)
            status = 503 if known else 500
            message = _MESSAGES.get(status, "Something went wrong here. The log has the details.")
            logger.log(
                logging.WARNING if known else logging.ERROR,
                "a page failed: %s: %s", type(error).__name__, error,
                extra={"action": "page_failed", "fields": {"error": str(error)}},
            )  # fmt: skip
    viewer: Viewer | None = None
    with suppress(Exception):
        viewer = await web.access.viewer(request)
    if viewer is None and status in (404, 405):
        # Without a login, an address that exists and one that does not look the same.
        status, message, headers = 401, "Log in to see this page.", None
    answer = await web.pages.error(request, status, message, viewer)
    answer.headers.update(headers or {})
    return answer


#: What a controller answers itself, beside the pages.
API_PATHS = ("/api", "/livez", "/readyz", "/metrics", "/openapi.json")


class PagesBesideApi(Mount):
    """The pages at `/` of an application whose API answers its own paths, unknown ones included."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if scope["type"] != "http" or any(
            path == each or path.startswith(f"{each}/") for each in API_PATHS
        ):
            return Match.NONE, {}
        return super().matches(scope)


def mount_beside_api(controller: Controller, web: WebApp) -> None:
    """Show the web interface at `/` of a controller; its API answers as before."""
    controller.app.router.routes.append(PagesBesideApi("", app=web))
    controller.on_stop.append(web.web.stopping.set)
