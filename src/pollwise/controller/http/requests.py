"""What the routes share: reading a body, answering, pages."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable
from typing import Annotated, Any

from fastapi import Query, Request, Response
from starlette.requests import ClientDisconnect

from pollwise.controller.http.answers import HttpError, encoded, no_such
from pollwise.controller.state.base import PAGE_MAX

#: How long a client may take to send a small body, in seconds.
BODY_WITHIN = 30.0
#: How long a client may pause while it sends a large one, in seconds.
PIECE_WITHIN = 60.0
#: The default length of a page.
PAGE = 100

_ID = re.compile(r"[0-9a-f]{32}\Z")
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}\Z")
#: The parameters of pages, with their descriptions.
Limit = Annotated[int | None, Query(ge=1, le=PAGE_MAX, description="The most entries of a page.")]
After = Annotated[
    str | None,
    Query(pattern="^[0-9a-f]{32}$", description="The `next` of the previous page."),
]
AfterJob = Annotated[
    str | None,
    Query(
        pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$",
        description="The `next` of the previous page.",
    ),
]

HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(
        encoded(value), status, {**HEADERS, **(headers or {})}, media_type="application/json"
    )


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


async def read_json(request: Request, limit: int, *, empty: Any = None) -> Any:
    """The body as JSON; `empty` if there is none."""
    body = await read_body(request, limit)
    if not body.strip():
        return empty
    return parsed(body)


def parsed(body: bytes | str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise HttpError(
            400, "not_json", "the body is not JSON", "Send JSON, as GET /openapi.json describes it."
        ) from None


async def read_object(request: Request, limit: int, known: tuple[str, ...]) -> dict[str, Any]:
    """The body as an object with only these fields."""
    given = await read_json(request, limit, empty={})
    if not isinstance(given, dict):
        raise invalid("the body must be an object")
    for name in given:
        if name not in known:
            raise invalid(
                f"there is no field {str(name)[:40]!r}; the fields are {', '.join(known)}"
            )
    return given


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


def invalid(message: str) -> HttpError:
    return HttpError(422, "invalid", message, "Correct the request and send it again.")


def page_limit(limit: int | None) -> int:
    if limit is None:
        return PAGE
    if not 1 <= limit <= PAGE_MAX:
        raise invalid(f"limit = {limit} must be from 1 to {PAGE_MAX}")
    return limit


def page_after(after: str | None, fits: Callable[[str], bool] = is_id) -> str | None:
    if after is not None and not fits(after):
        raise invalid("after must be the `next` of the previous page")
    return after


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
