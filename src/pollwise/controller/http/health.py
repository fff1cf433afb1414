"""Health, which needs no token, and metrics, which need one unless a setting opens them."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from pollwise.controller.controller import Controller
from pollwise.controller.http import schema
from pollwise.controller.http.answers import Refused
from pollwise.controller.http.requests import HEADERS, answer
from pollwise.controller.http.schema import errors
from pollwise.controller.missing_files import NotNow
from pollwise.errors import MissingExtra, PollwiseError


def routes(controller: Controller) -> APIRouter:
    router = APIRouter()
    options = controller.options

    @router.get(
        "/healthz",
        tags=["health"],
        summary="Is the process there?",
        responses={200: {"model": schema.Health}},
    )
    async def healthz() -> Response:
        return answer({"status": "ok"})

    @router.get(
        "/readyz",
        tags=["health"],
        summary="Can it work: does the store answer, is there a place for files?",
        responses={200: {"model": schema.Health}, **errors(503)},
    )
    async def readyz() -> Response:
        try:
            await controller.ready()
        except PollwiseError as error:
            controller.log_failure(error)
            reason = error.reason if isinstance(error, NotNow) else "the store does not answer"
            raise Refused(
                503, "not_ready", reason, "The controller's log says more.", {"Retry-After": "5"}
            ) from None
        return answer({"status": "ok"})

    @router.get(
        "/metrics",
        tags=["health"],
        summary="Metrics, as Prometheus reads them",
        responses={
            200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
            **errors(501),
        },
    )
    async def metrics(request: Request) -> Response:
        if not options.metrics_open:
            await controller.caller(request, "admin")
        try:
            text, kind = await controller.metrics()
        except MissingExtra as error:
            raise Refused(
                501, "no_metrics", str(error), "Install the extra where the controller runs."
            ) from None
        return Response(text, 200, HEADERS, media_type=kind)

    return router
