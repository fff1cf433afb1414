"""Signed values that a browser keeps: sessions, messages, and the tokens of forms.

The key is 32 random bytes that all processes on one state share (`ControllerState.secret`).
Nothing in a signed value is secret from the browser that keeps it.
"""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pollwise.runtime.clock import Clock

#: The longest signed text: browsers keep cookies of up to 4,096 bytes.
LENGTH_MAX = 3800


class Signer:
    """Signs values with a key; a value is good for one purpose and a limited time."""

    def __init__(self, key: bytes, clock: Clock) -> None:
        self._key = key
        self._clock = clock
        #: In the names of cookies: a browser keeps one set of cookies for all ports of a host.
        self.mark: str = self.code("mark", "")[:8].replace("-", "x").replace("_", "y")

    def code(self, purpose: str, text: str) -> str:
        """A keyed hash of a text, as text."""
        said = f"{purpose}\0{text}".encode("utf-8", "surrogatepass")
        return urlsafe_b64encode(hmac.digest(self._key, said, "sha256")).decode().rstrip("=")

    def signed(self, purpose: str, values: list[Any], life: float) -> str:
        """Values that `opened` accepts for `life` seconds."""
        until = int(self._clock.epoch() + life)
        body = urlsafe_b64encode(_json([until, *values])).decode()
        return f"{body}.{self.code(purpose, body)}"

    def opened(self, purpose: str, text: str | None) -> list[Any] | None:
        """The values; None if they were changed, are for another purpose, or too old."""
        if not text or len(text) > LENGTH_MAX or not text.isascii():
            return None
        body, _, code = text.rpartition(".")
        if not same(code, self.code(purpose, body)):
            return None
        until, *values = json.loads(urlsafe_b64decode(body))
        return values if until > self._clock.epoch() else None


class Cookie:
    """A cookie of the web interface: for its own paths only, and out of reach of scripts.

    strict: the browser does not send it with links from other sites.
    """

    def __init__(self, name: str, *, strict: bool = False) -> None:
        self.name = name
        self._strict = strict

    def read(self, request: Request) -> str | None:
        return request.cookies.get(self.name)

    def set(self, request: Request, response: Response, value: str, life: float) -> None:
        response.set_cookie(
            self.name,
            value,
            max_age=int(life),
            path=_path(request),
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict" if self._strict else "lax",
        )

    def delete(self, request: Request, response: Response) -> None:
        secure = request.url.scheme == "https"
        response.delete_cookie(self.name, path=_path(request), secure=secure, httponly=True)


def same(one: str, other: str) -> bool:
    """Compare two texts in a time that reveals nothing about them."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


def _json(values: list[Any]) -> bytes:
    return json.dumps(values, ensure_ascii=False).encode("utf-8", "replace")


def _path(request: Request) -> str:
    return request.scope.get("root_path") or "/"
