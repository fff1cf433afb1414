"""What the routes share: reading a body, answering, pages."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Annotated, Any, TypeVar

from fastapi import Query, Request, Response
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import StreamingResponse
from starlette.types import Receive

from pollwise.controller.files.artefacts import byte_range
from pollwise.controller.http.answers import HttpError, encoded, invalid, no_such, quoted
from pollwise.controller.state.base import PAGE_MAX
from pollwise.queues.views import CURSOR_LENGTH_MAX
from pollwise.runtime.http import unknown_query

M = TypeVar("M", bound=BaseModel)

#: How long a client may take to send a small body, in seconds.
BODY_WITHIN = 30.0
#: How long a client may pause while it sends a large one, in seconds.
PIECE_WITHIN = 60.0
#: The default length of a page.
PAGE = 100

_ID = re.compile(r"[0-9a-f]{32}\Z")
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}\Z")
#: The parameters of pages, with their descriptions.
Limit = Annotated[int, Query(ge=1, le=PAGE_MAX, description="The maximum number of entries.")]
_NEXT = "The `next` of the previous page."
After = Annotated[str | None, Query(pattern="^[0-9a-f]{32}$", description=_NEXT)]
AfterJobs = Annotated[str | None, Query(description=_NEXT, max_length=CURSOR_LENGTH_MAX)]

HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(
        encoded(value), status, {**HEADERS, **(headers or {})}, media_type="application/json"
    )


async def range_answer(
    request: Request,
    size: int,
    read: Callable[[int, int], AsyncIterator[bytes]],
    media_type: str,
    headers: Mapping[str, str],
) -> Response:
    """The bytes that the Range header asks for, in pieces; `read` takes where to start and stop."""
    asked = byte_range(request.headers.get("range"), size)
    start, stop = asked or (0, size)
    ranged = {"Accept-Ranges": "bytes", "Content-Length": str(stop - start)}
    if asked:
        ranged["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    # Read first, so that a file that cannot be read is answered with an error.
    rest = read(start, stop)
    first = await anext(rest, b"")

    async def everything() -> AsyncIterator[bytes]:
        yield first
        async for piece in rest:
            yield piece

    return StreamingResponse(
        everything(), 206 if asked else 200, {**headers, **ranged}, media_type=media_type
    )


def error_response(refused: HttpError, headers: dict[str, str] | None = None) -> Response:
    all_headers = {**(headers or {}), **refused.headers}
    return Response(refused.body(), refused.status, all_headers, media_type="application/json")


def is_id(text: str) -> bool:
    """True if this looks like an id of ours."""
    return bool(_ID.match(text))


def is_job_id(text: str) -> bool:
    """True if this can be the id of a job in any store."""
    return bool(_JOB_ID.match(text))


def checked_id(text: str, what: str) -> str:
    if not is_id(text):
        raise no_such(what, text)
    return text


def known_query_only(request: HTTPConnection, known: Collection[str]) -> None:
    """Refuse names in the query that a route does not know."""
    _check_query(request.query_params, known)


def _check_query(given: Iterable[str], known: Collection[str]) -> None:
    wrong = unknown_query(given, known)
    if wrong is not None:
        raise HttpError(400, "unknown_query", wrong, "Correct the name, or leave it out.")


async def read_body(request: Request, limit: int, within: float = BODY_WITHIN) -> bytes:
    """The whole body; 413 if it is too large, 408 if it takes too long."""
    plain_only(request.headers.get("content-encoding"))
    declared = declared_length(request)
    if declared is not None and declared > limit:
        raise too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(within):
            async for piece in request.stream():
                body += piece
                if len(body) > limit:
                    raise too_large(limit)
    except TimeoutError:
        raise too_slow(within) from None
    except ClientDisconnect:
        raise gone() from None
    return bytes(body)


def parsed(body: bytes | str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise HttpError(
            400, "not_json", "the body is not JSON", "Send JSON, as GET /openapi.json describes it."
        ) from None


def checked_query(model: type[M], given: Mapping[str, str]) -> M:
    """A model from a query."""
    _check_query(given, model.model_fields)
    return checked(model, given, strict=False)


def checked(model: type[M], given: object, *, strict: bool = True) -> M:
    """A model from what a client sent; strict: text is not a number."""
    try:
        return model.model_validate(given, strict=strict)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "extra_forbidden":
            name, fields = str(first["loc"][-1])[:40], ", ".join(model.model_fields)
            raise invalid(f"there is no field {name!r}; the fields are {fields}") from None
        raise invalid_value(first, first["loc"]) from None


def invalid_value(problem: Mapping[str, Any], path: Sequence[object]) -> HttpError:
    """The error for a value that does not fit its description, as pydantic reports it."""
    where = ".".join(map(str, path)) or "the body"
    absent = problem["type"] == "missing"
    given = "" if absent else f" = {quoted(problem['input'])}"
    return invalid(f"{where}{given}: {problem['msg']}")


async def read_model(request: Request, limit: int, model: type[M]) -> M:
    """The body as a model; an empty body is an empty object."""
    body = await read_body(request, limit)
    return checked(model, parsed(body) if body.strip() else {})


def too_large(limit: int) -> HttpError:
    return HttpError(
        413, "too_large", f"the body has more than {limit} bytes",
        "Send less at a time; logs and artefacts have their own routes.",
        {"Connection": "close"},
    )  # fmt: skip


def too_slow(within: float) -> HttpError:
    return HttpError(
        408, "too_slow", f"the body did not arrive within {within:g} s", "Send it again.",
        {"Connection": "close"},
    )  # fmt: skip


def gone() -> HttpError:
    """For the request log: the client has disconnected."""
    return HttpError(400, "gone", "the request ended early", "Send it again.")


async def disconnected(receive: Receive) -> None:
    """Returns when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


def plain_only(encoding: str | None) -> None:
    """Refuse compressed bodies: a small one may become very large."""
    if (encoding or "").strip().lower() not in ("identity", ""):
        raise HttpError(
            415, "packed", "compressed bodies are not accepted",
            "Send it without Content-Encoding.",
        )  # fmt: skip


def declared_length(request: Request) -> int | None:
    """The length that the client announced."""
    declared = request.headers.get("content-length", "")
    return int(declared) if declared.isascii() and declared.isdigit() else None


async def pieces(
    request: Request, limit: int, within: float = PIECE_WITHIN
) -> AsyncGenerator[bytes, None]:
    """The body in pieces; each has a time limit, and all together a length limit."""
    size = 0
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(within):
                piece = await anext(stream, None)
        except TimeoutError:
            raise too_slow(within) from None
        except ClientDisconnect:
            raise gone() from None
        if piece is None:
            return
        size += len(piece)
        if size > limit:
            raise too_large(limit)
        yield piece
