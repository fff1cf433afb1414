"""`/livez` and `/readyz` without a token, and `/metrics`, which needs one by default."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from pollwise.controller.controller import Controller
from pollwise.controller.http import schema
from pollwise.controller.http.answers import HttpError
from pollwise.controller.http.requests import HEADERS, answer
from pollwise.controller.http.schema import errors
from pollwise.controller.missing_files import MissingStorage
from pollwise.errors import MissingExtra, PollwiseError


def routes(controller: Controller) -> APIRouter:
    router = APIRouter()
    options = controller.options

    @router.get(
        "/livez",
        tags=["health"],
        summary="Is the process alive?",
        responses={200: {"model": schema.Health}},
    )
    async def livez() -> Response:
        return answer({"status": "ok"})

    @router.get(
        "/readyz",
        tags=["health"],
        summary="Can it work: does the store answer, can files be written?",
        responses={200: {"model": schema.Health}, **errors(503)},
    )
    async def readyz() -> Response:
        try:
            await controller.ready()
        except PollwiseError as error:
            controller.log_failure(error)
            reason = (
                error.reason if isinstance(error, MissingStorage) else "the store does not answer"
            )
            raise HttpError(
                503, "not_ready", reason, "The controller's log says more.", {"Retry-After": "5"}
            ) from None
        return answer({"status": "ok"})

    @router.get(
        "/metrics",
        tags=["health"],
        summary="Metrics for Prometheus",
        responses={
            200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
            **errors(501),
        },
    )
    async def metrics(request: Request) -> Response:
        if not options.metrics_open:
            await controller.access.caller(request, "read")
        try:
            text, kind = await controller.metrics()
        except MissingExtra as error:
            raise HttpError(
                501, "no_metrics", str(error), "Install the extra where the controller runs."
            ) from None
        return Response(text, 200, HEADERS, media_type=kind)

    return router
