"""The API as an application: to mount, or standalone."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from pollwise.errors import PollwiseError, StoreError
from pollwise.fleet.api.access import CODES, Authorise, Refusal
from pollwise.fleet.api.alerts import AlertRoutes
from pollwise.fleet.api.description import DescriptionRoutes
from pollwise.fleet.api.history import HistoryRoutes
from pollwise.fleet.api.maintenance import MaintenanceRoutes
from pollwise.fleet.api.requests import answer
from pollwise.fleet.api.state import StateRoutes
from pollwise.fleet.api.targets import TargetRoutes
from pollwise.fleet.control import Control, NoSuchTarget
from pollwise.fleet.definitions.sources import DefinedElsewhere, TargetConflict
from pollwise.fleet.definitions.table import WrongDefinition
from pollwise.fleet.stores.definitions import DefinitionConflict
from pollwise.runtime.http import allowed_methods
from pollwise.runtime.redact import without_secrets_inside


def served(control: Control, authorise: Authorise) -> Starlette:
    """A standalone application: the API, and /livez and /readyz for process supervisors."""

    async def livez(_: Request) -> Response:
        return answer({"status": "ok"})

    async def readyz(_: Request) -> Response:
        reasons = control.fleet.not_ready()
        if not reasons:
            return answer({"status": "ok"})
        shown = [without_secrets_inside(each) for each in reasons]
        return answer({"status": "not ready", "reasons": shown}, 503)

    return _closed(
        routes=[
            Route("/livez", livez, methods=["GET"]),
            Route("/readyz", readyz, methods=["GET"]),
            *DescriptionRoutes(control, authorise).routes(),
            Mount("/api/fleet", application(control, authorise)),
        ],
        authorise=authorise,
    )


def application(control: Control, authorise: Authorise) -> Starlette:
    """The API, to mount at /api/fleet."""
    # The state's routes come last: those of orders fit all addresses.
    kinds = (
        AlertRoutes,
        HistoryRoutes,
        MaintenanceRoutes,
        TargetRoutes,
        DescriptionRoutes,
        StateRoutes,
    )
    parts = [kind(control, authorise) for kind in kinds]
    return _closed(routes=[route for each in parts for route in each.routes()], authorise=authorise)


def _closed(routes: list[Any], authorise: Authorise) -> Starlette:
    """An application that answers every request without a valid token in the same way.

    It sends no redirects, because those would come before the check of the token.
    """

    async def refused(request: Request, error: Exception) -> Response:
        found = isinstance(error, Refusal) or not isinstance(error, HTTPException)
        if not found and request.scope["path"] not in ("/livez", "/readyz"):
            try:
                await authorise(request, "read")
            except HTTPException as closed:
                return await _refused(request, closed)
        if isinstance(error, HTTPException) and error.status_code == 405:
            allowed = ", ".join(allowed_methods(routes, request.scope))
            error.headers = {**(error.headers or {}), "Allow": allowed}
        return await _refused(request, error)

    handlers: dict[Any, Any] = {HTTPException: refused, PollwiseError: refused}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return app


async def _refused(_: Request, error: Exception) -> Response:
    items = error.problems if isinstance(error, WrongDefinition) else ()
    if isinstance(error, NoSuchTarget):
        error = Refusal(404, str(error), "GET /api/fleet/state lists all targets.")
    elif isinstance(error, DefinedElsewhere):
        error = Refusal(409, str(error), "Change it where it is defined.", code="defined_elsewhere")
    elif isinstance(error, TargetConflict):
        error = Refusal(409, str(error))
    elif isinstance(error, DefinitionConflict):
        error = Refusal(412, str(error), "GET the target and send its ETag as If-Match.")
    elif isinstance(error, StoreError):
        error = Refusal(503, str(error), "Try again in a few seconds; the fleet's log says more.")
    elif not isinstance(error, HTTPException):
        error = Refusal(400, str(error))
    code = getattr(error, "code", CODES.get(error.status_code, "refused"))
    what_to_do = getattr(error, "what_to_do", "")
    content: dict[str, Any] = {"code": code, "message": error.detail, "what_to_do": what_to_do}
    if items:
        content["items"] = items
    response = JSONResponse({"error": content}, error.status_code, {"Cache-Control": "no-store"})
    response.headers.update(error.headers or {})
    return response
