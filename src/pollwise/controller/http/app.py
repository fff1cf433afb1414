"""The ASGI application of a controller: routes, errors, and the OpenAPI schema."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.routing import Route, WebSocketRoute

from pollwise.controller.http.answers import HttpError, encoded
from pollwise.controller.http.queues.description import description as queue_description
from pollwise.controller.http.requests import error_response, invalid_value, known_query_only
from pollwise.controller.http.routes import admin, files, health, jobs, logs, workers
from pollwise.controller.http.routes.poll import PollRoute, description
from pollwise.controller.http.routes.push import PushRoute
from pollwise.controller.http.schema import complete
from pollwise.errors import PollwiseError
from pollwise.runtime.events import RequestAnswered
from pollwise.runtime.http import METHODS, allowed_methods
from pollwise.version import __version__

if TYPE_CHECKING:
    from pollwise.controller.controller import Controller

ABOUT = """Jobs for workers anywhere: put them, poll for them, follow them.

Every request needs a token, as `Authorization: Bearer …`. Errors are JSON:
`{"error": {"code", "message", "what_to_do"}}`.
"""

POLL = "/api/workers/poll"
PUSH = "/api/workers/ws"


class _Counted:
    """Emits an event for each request, except polls, whose route emits its own."""

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
            # A client may send any text as a method.
            method = scope["method"] if scope["method"] in METHODS else "other"
            took = clock.now() - began
            events.emit(RequestAnswered(self._controller.source, method, route, status, took))


class ControllerApp(FastAPI):
    """A FastAPI application.

    Polls bypass the layers that FastAPI puts around every route: those cost as much as the poll
    itself. With middleware of your own, polls go through it like all other requests.
    """

    controller: Controller
    poll_route: PollRoute

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if (
            scope["type"] == "http"
            and scope["path"].endswith(POLL)
            and scope["path"] == scope.get("root_path", "") + POLL
            and scope["method"] in ("GET", "POST")
            and len(self.user_middleware) == 1
        ):
            await self.poll_route(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def application(controller: Controller) -> ControllerApp:
    """The application of a controller."""
    app = ControllerApp(
        title="Pollwise controller",
        description=ABOUT,
        version=__version__,
        lifespan=controller.lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.controller = controller
    app.poll_route = PollRoute(controller)
    # First of all routes: they are tried in turn, and nearly every request is a poll.
    poll = Route(POLL, app.poll_route, methods=["GET", "POST"], include_in_schema=False)
    poll.methods = {"GET", "POST"}  # not HEAD, which Starlette adds: it would take a job
    push = WebSocketRoute(PUSH, PushRoute(controller))
    plain = Route(PUSH, _upgrade_required, methods=["GET"], include_in_schema=False)
    app.router.routes[:0] = [poll, push, plain]

    app.router.redirect_slashes = False  # it would answer before the token is checked

    async def with_a_token(request: Request) -> None:
        """Check the token before anything else of the request; the route checks its scope."""
        await controller.access.caller(request)
        if request.scope["query_string"]:
            known_query_only(request, {each.alias for each in _parameters(request)})

    for module in (workers, jobs, logs, files, admin):
        app.include_router(module.routes(controller), dependencies=[Depends(with_a_token)])
    app.include_router(health.routes(controller))
    if controller.queue_api is not None:
        app.router.routes.extend(controller.queue_api.routes())
    _handle_errors(app, controller)
    app.add_middleware(_Counted, controller=controller)
    _describe(app)
    return app


async def _upgrade_required(request: Request) -> Response:
    """The answer to a plain request for the WebSocket, from which a proxy removed the upgrade."""
    access = request.app.controller.access
    try:
        await access.caller(request)
    except (HttpError, PollwiseError) as refused:
        return error_response(access.explained(refused))
    return error_response(
        HttpError(
            426,
            "upgrade_required",
            f"{PUSH} is a WebSocket, and this request does not ask for one",
            "If a proxy is between, let it pass the headers Upgrade and Connection on. Polling "
            "works without it.",
            {"Upgrade": "websocket"},
        )
    )


def _handle_errors(app: FastAPI, controller: Controller) -> None:
    async def answered(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            error = await _no_route_error(request, error)
        return error_response(controller.access.explained(_as_our_error(error)))

    async def _no_route_error(request: Request, error: HTTPException) -> Exception:
        """The error for an unknown path or method; the one for a missing token comes first."""
        if request.scope["path"] not in _open_paths(request):
            try:
                await controller.access.caller(request)
            except Exception as refused:
                return refused
        if error.status_code == 405:
            allowed = ", ".join(allowed_methods(app.routes, request.scope))
            error.headers = {**(error.headers or {}), "Allow": allowed}
        return error

    for kind in (Exception, HttpError, PollwiseError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, answered)


def _open_paths(request: Request) -> list[str]:
    return [request.scope.get("root_path", "") + path for path in ("/livez", "/readyz")]


def _parameters(request: Request) -> Iterable[Any]:
    """The parameters of the query that a route of FastAPI declares."""
    dependant = getattr(request.scope.get("route"), "dependant", None)
    return () if dependant is None else dependant.query_params


def _as_our_error(error: Exception) -> Exception:
    """An error of FastAPI as one of ours."""
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        return invalid_value(first, first["loc"][1:])
    if isinstance(error, HTTPException):
        codes = {404: "no_such_route", 405: "no_such_method"}
        code = codes.get(error.status_code, "bad_request")
        advice = "GET /openapi.json lists every route and method."
        return HttpError(error.status_code, code, str(error.detail), advice, error.headers)
    return error


def _describe(app: ControllerApp) -> None:
    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            raw = queue_description.routes if app.controller.queue_api is not None else []
            routes = [*description.routes, *app.routes, *raw]
            app.openapi_schema = complete(
                get_openapi(
                    title=app.title, version=app.version, description=app.description, routes=routes
                )
            )
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]

    async def show(request: Request) -> Response:
        await app.controller.access.caller(request)
        return Response(encoded(app.openapi()), media_type="application/json")

    app.router.routes.append(Route("/openapi.json", show, include_in_schema=False))
