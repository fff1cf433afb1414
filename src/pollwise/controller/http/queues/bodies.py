"""Read the bodies of calls to raw queues, and explain errors so that the client raises the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from pollwise.controller.http.answers import HttpError, error_for
from pollwise.controller.http.requests import parsed, read_body
from pollwise.durations import seconds
from pollwise.errors import (
    ConfigError,
    JobError,
    PayloadError,
    StoreError,
    StoreUnavailable,
    Unsupported,
)
from pollwise.storage.messages import MESSAGE_LENGTH_MAX

#: The largest body, in bytes: a batch of jobs.
BODY_MAX = 16 * 1024 * 1024


async def body_of(request: Request) -> dict[str, Any]:
    """The JSON object that was sent."""
    body = await read_body(request, BODY_MAX)
    given = parsed(body or b"{}")
    if not isinstance(given, dict):
        raise HttpError(400, "not_json", "the body is not a JSON object", "Send an object.")
    if b"\\ud" in body.lower():  # half of a surrogate pair is in JSON, but no store can keep it
        try:
            json.dumps(given, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise HttpError(
                400,
                "not_json",
                "the body has half of a surrogate pair, which is not text",
                "Send JSON that is valid Unicode.",
            ) from None
    return given


def explained_error(error: Exception) -> HttpError:
    """The HTTP error for an error of ours, from which the client can raise the same one."""
    explained = error_for(error)
    if isinstance(error, PayloadError):
        explained.code = "payload"
    elif isinstance(error, JobError) and not isinstance(error, Unsupported):
        explained.code = "job" if explained.code == "invalid" else explained.code
    elif isinstance(error, ConfigError):
        explained.code = "config"
    elif isinstance(error, StoreError) and not isinstance(error, StoreUnavailable):
        explained.code = "store_explained"
    return explained


def message_from(given: object) -> str | None:
    """A message between processes, for the hints of a queue."""
    if given is None:
        return None
    if not isinstance(given, str) or len(given) > MESSAGE_LENGTH_MAX:
        raise ConfigError(f"a message must be text of at most {MESSAGE_LENGTH_MAX} characters")
    return given


def nonce_from(body: Mapping[str, Any]) -> str | None:
    """What identifies a call that may be repeated."""
    nonce = body.get("nonce")
    if nonce is not None and (not isinstance(nonce, str) or not 8 <= len(nonce) <= 100):
        raise ConfigError("nonce must be text of 8 to 100 characters, a new one for each call")
    return nonce


def seconds_from(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ConfigError(f"{name} must be a number of seconds")
    return seconds(value, name)
