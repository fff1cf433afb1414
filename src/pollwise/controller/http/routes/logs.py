"""`/api/jobs/{id}/logs`: append, read, follow."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import StreamingResponse

from pollwise.controller.controller import Controller
from pollwise.controller.files.logs import APPEND_MAX, LogsStop
from pollwise.controller.http import schema
from pollwise.controller.http.answers import HttpError, invalid, lease_lost, no_such
from pollwise.controller.http.requests import (
    HEADERS,
    answer,
    range_answer,
    read_body,
)
from pollwise.controller.http.schema import described, errors
from pollwise.controller.http.views import row_view
from pollwise.controller.security.auth import Caller, InvalidToken

#: Sent to a follower when nothing came for a while, so that proxies keep the connection.
COMMENT = b": still there\n\n"
#: How often a follower's token is checked again, in seconds.
CHECK_EVERY = 10.0

_TEXT = {"text/plain": {"schema": {"type": "string"}}}


def routes(controller: Controller) -> APIRouter:
    router = APIRouter(tags=["logs"])
    logs = controller.logs
    following = 0

    @router.get(
        "/api/jobs/{job_id}/logs",
        summary="Read a log, or follow it",
        description="With `follow=true`, Server-Sent Events whose ids are offsets; a client that "
        "reconnects sends `Last-Event-ID`. The last event is `end`.",
        responses={
            200: {"content": {**_TEXT, "text/event-stream": {}}},
            206: {"content": _TEXT, "description": "A range of it (Range)."},
            **errors(404, 416, 422),
        },
    )
    async def read(
        request: Request,
        job_id: str,
        follow: bool = False,
        attempt: Annotated[int | None, Query(ge=1, description="Of this attempt only.")] = None,
    ) -> Response:
        await controller.access.job_for(request, job_id)
        if follow and attempt is not None:
            raise invalid("give follow or attempt, not both: an attempt is read, not followed")
        if follow:
            return await followed(request, job_id)
        start, end = 0, 0
        if attempt is None:
            end = (await logs.place(job_id)).size
        elif (part := await logs.part(job_id, attempt)) is not None:
            start, end = part
        else:
            raise no_such("attempt", str(attempt))

        def pieces(begin: int, stop: int) -> AsyncIterator[bytes]:
            return logs.read(job_id, start + begin, start + stop)

        return await range_answer(
            request, end - start, pieces, "text/plain; charset=utf-8", HEADERS
        )

    async def followed(request: Request, job_id: str) -> Response:
        if following >= controller.options.followers_max:
            raise HttpError(
                503, "too_many_followers", "too many logs are followed now",
                "Read it by range instead, or try again later.", {"Retry-After": "10"},
            )  # fmt: skip
        start = request.headers.get("last-event-id", "0")
        if not (start.isascii() and start.isdigit() and len(start) <= 18):
            raise invalid("Last-Event-ID must be the id of the last event: a number of bytes")
        who = await controller.access.caller(request)
        headers = {**HEADERS, "X-Accel-Buffering": "no"}
        return StreamingResponse(
            events(who, job_id, int(start)), 200, headers, media_type="text/event-stream"
        )

    async def events(who: Caller, job_id: str, start: int) -> AsyncIterator[bytes]:
        nonlocal following
        following += 1
        checked_at = controller.clock.now()
        try:
            end = start
            async for piece in logs.follow(job_id, start):
                if who.role != "own" and controller.clock.now() - checked_at >= CHECK_EVERY:
                    await controller.auth.caller_of(who.id)
                    checked_at = controller.clock.now()
                if piece is None:
                    yield COMMENT
                else:
                    end = piece.end
                    yield event_of(piece.data, end)
            yield b"event: end\nid: %d\ndata:\n\n" % end
        except (LogsStop, InvalidToken):
            pass  # without the event `end`: the client reconnects and continues
        finally:
            following -= 1

    @router.post(
        "/api/jobs/{job_id}/logs",
        **described("Append to the log of a running job", schema.LogAnswer, 404, 409, 413, 422),
        description="`offset` counts the bytes of this run, from 0; repeated bytes are ignored. "
        "A gap is refused (409); `X-Log-Offset` says from where to send.",
        openapi_extra={"requestBody": {"required": True, "content": _TEXT}},
    )
    async def append(
        request: Request, job_id: str, offset: Annotated[int, Query(ge=0, lt=2**53)]
    ) -> Response:
        known, run = await controller.access.run_for(request, job_id)
        data = await read_body(request, APPEND_MAX)
        place = await logs.append(run.claim, offset, data)
        if place is None:
            raise lease_lost((job_id,))
        await controller.runs.keep(known, {job_id: None}, complete=False)
        return answer(row_view(place, schema.LogAnswer))

    return router


def event_of(data: bytes, end: int) -> bytes:
    """A piece of a log as a Server-Sent Event: one `data` line per line, its end as the id.

    A carriage return ends a line of an event too, so it counts as a line break.
    """
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return b"id: %d\n" % end + b"".join(b"data: " + line + b"\n" for line in lines) + b"\n"
