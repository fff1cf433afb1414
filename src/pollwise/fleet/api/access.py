"""Who may use the API of a fleet, and how it refuses."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

from pollwise.errors import ConfigError, MissingExtra

try:
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
except ImportError as error:
    raise MissingExtra("the fleet's HTTP API", "serve") from error

Scope = Literal["read", "operate"]
#: Raises a `Refusal` (401, 403) if the caller may not do this; else returns the caller's name for
#: the audit log, if known.
Authorise = Callable[[Request, Scope], Awaitable[str | None]]

_HASH = "sha256:"
#: Codes of the errors that the web framework or an `authorise` function raises.
CODES = {
    400: "invalid",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    412: "changed_meanwhile",
    413: "too_large",
    503: "store_unavailable",
}
_CORRECT = "Correct the request and send it again."


class Refusal(HTTPException):
    """An error answer: what was wrong, and what to do."""

    def __init__(
        self,
        status: int,
        message: str,
        what_to_do: str = _CORRECT,
        headers: dict[str, str] | None = None,
        *,
        code: str | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.code: str = code or CODES.get(status, "refused")
        self.what_to_do = what_to_do


class Bearer:
    """Accepts one token, whose hash is in a file."""

    def __init__(self, hashed: str) -> None:
        self._hashed = hashed.encode()

    async def __call__(self, request: Request, scope: Scope) -> str:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        # The hash is compared, so that the time this takes reveals nothing about the token.
        given = _hash_of(token.strip()).encode()
        if kind.lower() != "bearer" or not hmac.compare_digest(given, self._hashed):
            raise Refusal(
                401,
                "a valid token of this fleet is required",
                "Send the header `Authorization: Bearer <token>`.",
                {"WWW-Authenticate": "Bearer"},
            )
        return "token"  # there is only one

    @classmethod
    def from_file(cls, path: Path) -> tuple[Bearer, str | None]:
        """Use the hash in a file; if the file is missing, create a token and return it too."""
        token = None
        try:
            text = path.read_text("ascii").strip()
        except FileNotFoundError:
            token = secrets.token_urlsafe(32)
            text = _hash_of(token)
            _write_private(path, text)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: the token's hash cannot be read: {error}") from None
        if len(text) != len(_hash_of("")) or not text.startswith(_HASH):
            raise ConfigError(
                f"{path} does not contain the hash of a token (sha256:…); delete it to create a "
                "new token"
            )
        return cls(text), token


def write_token(path: Path, token: str) -> Path:
    """Write a new token to a file beside that of its hash, which only its owner can read; returns
    where."""
    handed = path.with_name(f"{path.name}.new")
    handed.unlink(missing_ok=True)  # of a hash that is gone
    _write_private(handed, token)
    return handed


def _hash_of(token: str) -> str:
    return _HASH + hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def _write_private(path: Path, text: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{text}\n")
    except OSError as error:
        raise ConfigError(
            f"a new token cannot be written to {path}: {error.strerror}; set "
            "fleet.api_token_file to another file"
        ) from None
