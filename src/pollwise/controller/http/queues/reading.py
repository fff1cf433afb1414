"""What the routes of raw queues read, and how they say no."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pollwise.controller.http.answers import Refused, refusal_of
from pollwise.controller.http.requests import read_body as read_whole
from pollwise.durations import seconds
from pollwise.errors import (
    ConfigError,
    JobError,
    PayloadError,
    PollwiseError,
    StoreError,
    StoreUnavailable,
    Unsupported,
)

#: The largest body, in bytes: a batch of jobs.
BODY_MAX = 16 * 1024 * 1024
#: The longest message between processes, in characters.
MESSAGE_MAX = 8000


async def read_body(request: Request) -> dict[str, Any]:
    body = await read_whole(request, BODY_MAX)
    try:
        given = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise Refused(400, "not_json", "the body is not JSON", "Send an object.") from None
    if not isinstance(given, dict):
        raise Refused(400, "not_json", "the body is no JSON object", "Send an object.")
    return given


def json_answer(status: int, body: bytes, headers: Mapping[str, str]) -> Response:
    return Response(body, status, dict(headers), "application/json")


def refusal(error: PollwiseError) -> Refused:
    """How an error of ours is answered, so that the other end can raise the same."""
    refused = refusal_of(error)
    if isinstance(error, PayloadError):
        refused.code = "payload"
    elif isinstance(error, JobError) and not isinstance(error, Unsupported):
        refused.code = "job" if refused.code == "invalid" else refused.code
    elif isinstance(error, ConfigError):
        refused.code = "config"
    elif isinstance(error, StoreError) and not isinstance(error, StoreUnavailable):
        refused.code = "store_refused"
    return refused


def message_from(given: object) -> str | None:
    if given is None:
        return None
    if not isinstance(given, str) or len(given) > MESSAGE_MAX:
        raise ConfigError(f"a message must be text of at most {MESSAGE_MAX} characters")
    return given


def nonce_from(body: Mapping[str, Any]) -> str | None:
    nonce = body.get("nonce")
    if nonce is not None and (not isinstance(nonce, str) or not 8 <= len(nonce) <= 100):
        raise ConfigError("nonce must be a text of 8 to 100 characters, another one each time")
    return nonce


def seconds_from(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ConfigError(f"{name} must be a number of seconds")
    return seconds(value, name)
