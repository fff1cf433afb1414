"""What all routes share: who asks, what was asked, and the form of an answer."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pollwise.fleet.api.access import Authorise, Refusal
from pollwise.fleet.control import Control
from pollwise.fleet.definitions.stored import is_encodable
from pollwise.runtime.http import unknown_query

#: Maximum size of a request's body, in bytes.
BODY_MAX = 1024 * 1024
#: Default and maximum number of rows in an answer.
PAGE = 1000
PAGE_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Operator:
    """Who makes a change, and from where."""

    who: str
    address: str

    @property
    def by(self) -> str:
        return f"api: {self.who} from {self.address or 'an unknown address'}"


class Routes:
    """Routes of the API that belong together."""

    def __init__(self, control: Control, authorise: Authorise) -> None:
        self._control = control
        self._authorise = authorise

    async def _reader(self, request: Request, *known: str) -> None:
        """Check that the caller may read, and that the query has only known names."""
        await self._authorise(request, "read")
        check_query(request, *known)

    async def _operator(self, request: Request, *known: str) -> Operator:
        who = await self._authorise(request, "operate") or "somebody"
        check_query(request, *known)
        return Operator(who, "" if request.client is None else request.client.host)


async def body_of(request: Request) -> dict[str, Any]:
    raw = b""
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > BODY_MAX:
            raise Refusal(413, f"the body is larger than {BODY_MAX} bytes")
    try:
        found = json.loads(raw or b"{}", parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise Refusal(400, "the body is not JSON") from None
    if not isinstance(found, dict):
        raise Refusal(400, "the body is not a JSON object")
    if not is_encodable(found):
        raise Refusal(400, "a text of the body has half of a surrogate pair, such as \\ud800")
    return found


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def check_query(request: Request, *known: str) -> None:
    wrong = unknown_query(request.query_params, known)
    if wrong is not None:
        raise Refusal(400, wrong, "Correct the name, or leave it out.", code="unknown_query")


def limit_of(request: Request, default: int = PAGE) -> int:
    found = number_of(request, "limit", PAGE_MAX, f"a whole number from 0 to {PAGE_MAX}")
    return default if found is None else found


def number_of(request: Request, name: str, most: int, must: str) -> int | None:
    """A whole number in the query, at most `most`."""
    text = request.query_params.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 15 or int(text) > most:
        raise Refusal(400, f"{name} must be {must}")
    return int(text)


def answer(content: Any, status: int = 200) -> Response:
    return JSONResponse(_plain(content), status, {"Cache-Control": "no-store"})


def _plain(value: Any) -> Any:
    """A value for JSON: without infinities, and with other types as text."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (str, int)) else str(value)
