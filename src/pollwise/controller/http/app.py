"""The ASGI application: routes, errors, and how it begins and ends.

    app = create_app("sqlite:///jobs.db")                  # uvicorn module:app

    controller = create_app("postgresql://app@db/shop")    # in an application of your own
    own = FastAPI(lifespan=controller.lifespan)
    own.mount("/farm", controller)

Starlette does not run the lifespan of what is mounted, so the outer application takes it over; one
that does not is started by its first request, and ends with the process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pollwise.controller.http.answers import Refused, encoded, refusal_of, unexpected
from pollwise.controller.options import ControllerOptions
from pollwise.controller.state.base import ControllerState
from pollwise.errors import MissingExtra, PollwiseError
from pollwise.queues.base import Queue
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events, RequestAnswered

try:
    from fastapi import Depends, FastAPI, Request, Response
    from fastapi.exceptions import RequestValidationError
    from fastapi.openapi.utils import get_openapi
    from starlette.exceptions import HTTPException
    from starlette.routing import Route, WebSocketRoute
except ImportError:  # pragma: no cover - tried in an environment without the extra
    raise MissingExtra("the controller", "serve") from None

from pollwise.controller.controller import Controller
from pollwise.controller.http import admin as api_admin
from pollwise.controller.http import files as api_files
from pollwise.controller.http import health as api_health
from pollwise.controller.http import jobs as api_jobs
from pollwise.controller.http import logs as api_logs
from pollwise.controller.http import workers as api_workers
from pollwise.controller.http.poll import PollRoute
from pollwise.controller.http.push import PushRoute
from pollwise.controller.http.queues.routes import QueueApi
from pollwise.controller.http.schema import complete
from pollwise.controller.opening import assembled

ABOUT = """Jobs for workers anywhere: submit them, poll for them, follow them.

Every request needs a token, as `Authorization: Bearer …`. Errors are JSON:
`{"error": {"code", "message", "what_to_do"}}`.
"""

Lifespan = Callable[[Any], Any]
POLL = "/api/workers/poll"
#: The methods that are counted by name; a client may send any word.
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS")


class _Counted:
    """Tells of requests; polls, which are many, are told of by their own route."""

    def __init__(self, app: Any, controller: Controller) -> None:
        self._app = app
        self._controller = controller

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        events = self._controller.events
        if (
            scope["type"] != "http"
            or scope["path"].endswith(POLL)
            or not events.wants(RequestAnswered)
        ):
            await self._app(scope, receive, send)
            return
        clock = self._controller.clock
        began, status = clock.now(), 500

        async def noted(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            method = scope["method"] if scope["method"] in METHODS else "other"
            took = clock.now() - began
            events.emit(RequestAnswered(self._controller.source, method, route, status, took))


class ControllerApp(FastAPI):
    """The application of a controller.

    Polls take a short cut past the layers that FastAPI puts around every route: those cost as much
    as all that a poll does. With middleware of your own, polls go through it as all requests do.
    """

    controller: Controller
    lifespan: Lifespan
    hot: PollRoute

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if (
            scope["type"] == "http"
            and scope["path"].endswith(POLL)
            and scope["path"] == scope.get("root_path", "") + POLL
            and scope["method"] in ("GET", "POST")
            and len(self.user_middleware) == 1
        ):
            await self.hot(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create_app(
    queue: Queue | str,
    *,
    state: ControllerState | str | None = None,
    artefacts: str | Path | None = None,
    options: ControllerOptions | None = None,
    clock: Clock | None = None,
    events: Events | None = None,
) -> ControllerApp:
    """An ASGI application that serves a controller.

    queue: the URL of a store, whose queue `agents` is used; or an open queue, which stays yours.
    state: where jobs, workers and tokens are kept; beside the queue, unless given.
    artefacts: a folder, or the URL of a bucket; beside the database, unless given.
    """
    controller, close = assembled(
        queue, state=state, artefacts=artefacts, options=options, clock=clock, events=events
    )
    controller.measure()
    return application(controller, close=lambda: close(controller))


def application(
    controller: Controller, *, close: Callable[[], Awaitable[None]] | None = None
) -> ControllerApp:
    """The application of a controller that exists. `close` is called when it ends."""

    queues: QueueApi | None = None
    if controller.open_queue is not None:
        queues = QueueApi(
            controller.open_queue, controller.authorise, controller.clock, controller.can_keep
        )
        controller.queues_stop_waiting = queues.stop_waiting

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if close is not None:
                stack.push_async_callback(close)
            await stack.enter_async_context(controller)
            if queues is not None:
                stack.push_async_callback(queues.close)
            yield

    app = ControllerApp(
        title="Pollwise controller",
        description=ABOUT,
        version=version("pollwise"),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.controller = controller
    app.lifespan = lifespan
    app.hot = PollRoute(controller)
    # First of all routes: they are tried in turn, and nearly every request is a poll.
    app.router.routes[:0] = [
        Route(POLL, app.hot, methods=["GET", "POST"], include_in_schema=False),
        WebSocketRoute("/api/workers/ws", PushRoute(controller)),
    ]

    async def with_a_token(request: Request) -> None:
        """Before anything else of a request is looked at; what its token may is the route's."""
        await controller.caller(request)

    for module in (api_workers, api_jobs, api_logs, api_files, api_admin):
        app.include_router(module.routes(controller), dependencies=[Depends(with_a_token)])
    app.include_router(api_health.routes(controller))
    if queues is not None:
        app.router.routes.extend(queues.routes())
    _handle_errors(app, controller)
    app.add_middleware(_Counted, controller=controller)
    _describe(app)
    return app


def _handle_errors(app: FastAPI, controller: Controller) -> None:
    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)  # noqa: S101
        return _answer(error)

    async def ours(_: Request, error: Exception) -> Response:
        assert isinstance(error, PollwiseError)  # noqa: S101
        answer = refusal_of(error)
        if answer.status >= 500:
            controller.log_failure(error)
        return _answer(answer)

    async def theirs(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101
        codes = {404: "no_such_route", 405: "no_such_method"}
        code = codes.get(error.status_code, "bad_request")
        advice = "GET /openapi.json lists every route and method."
        answer = Refused(error.status_code, code, str(error.detail), advice, error.headers)
        return _answer(answer)

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        return _answer(
            Refused(
                422, "invalid", f"{where}: {first['msg']}", "Correct the request and send it again."
            )
        )

    async def failed(_: Request, error: Exception) -> Response:
        controller.log_failure(error)
        return _answer(unexpected())

    app.add_exception_handler(Exception, failed)
    app.add_exception_handler(Refused, refused)
    app.add_exception_handler(PollwiseError, ours)
    app.add_exception_handler(HTTPException, theirs)
    app.add_exception_handler(RequestValidationError, invalid)


def _answer(refused: Refused) -> Response:
    return Response(refused.body(), refused.status, refused.headers, media_type="application/json")


def _describe(app: FastAPI) -> None:
    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            described = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            app.openapi_schema = complete(described)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]

    async def show(request: Request) -> Response:
        controller: Controller = app.controller  # type: ignore[attr-defined]
        await controller.start()
        await controller.caller(request)
        return Response(encoded(app.openapi()), media_type="application/json")

    app.router.routes.append(Route("/openapi.json", show, include_in_schema=False))
