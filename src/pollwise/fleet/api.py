"""The fleet over HTTP: how it fares, orders for its targets, and the settings of its polling.

    GET   /api/fleet/state                      all figures, each target's last success and error
    GET   /api/fleet/targets/NAME                one target
    POST  /api/fleet/targets/NAME/ORDER          retry, close-breaker, pause, resume, poll-now
    POST  /api/fleet/ORDER {"targets": [names]}  the same, of many
    GET   /api/fleet/polling                     the settings of polling, and where each came from
    GET   /api/fleet/audit                       who changed what, the newest first
    PATCH /api/fleet/polling {"group": null, "enabled": false, "base_interval": "10s", …}

`application` is a Starlette application to be mounted at /api/fleet, wherever there is one already;
`served` is one that stands alone, with /healthz, which says that the process lives: it stays 200
however many targets are broken.

Who may do what is asked of an `authorise`, which raises a `Refusal` (or any HTTPException) when
they may not, and tells who it is. Whatever they change is written into the audit. Errors are as
the controller's: `{"error": {"code", "message", "what_to_do"}}`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import math
import os
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pollwise.errors import ConfigError, MissingExtra, PollwiseError, StoreError
from pollwise.fleet import report
from pollwise.fleet.control import CHANGEABLE, Control, NoSuchTarget, note, note_order
from pollwise.fleet.stores.base import ORDERS, TARGET_STATES
from pollwise.fleet.views import TargetState
from pollwise.settings.values import shown

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Mount, Route
except ImportError as error:
    raise MissingExtra("the fleet's HTTP API", "serve") from error

#: The largest body of a request, in bytes.
BODY_MAX = 1024 * 1024
#: How many targets an answer lists, unless it is asked for more; the most; and how many are looked
#: at before others get their turn.
PAGE = 1000
PAGE_MAX = 10_000
AUDIT_PAGE = 100
PORTION = 200

Scope = Literal["read", "operate"]
#: Raises a `Refusal` (401, 403) when whoever asks may not do this; else tells who it is, for the
#: audit, if it knows.
Authorise = Callable[[Request, Scope], Awaitable[str | None]]

_HASH = "sha256:"


#: What the errors of the web framework, and of an `authorise` of one's own, are called.
_CODES = {
    400: "invalid",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    503: "store_unavailable",
}
_CORRECT = "Correct the request and send it again."


class Refusal(HTTPException):
    """A request that is answered with an error: what was wrong, and what to do."""

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
        self.code = code or _CODES.get(status, "refused")
        self.what_to_do = what_to_do


class Bearer:
    """Lets in who has the one token, of which a file holds the hash."""

    def __init__(self, hashed: str) -> None:
        self._hashed = hashed.encode()

    async def __call__(self, request: Request, scope: Scope) -> str:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        # Hashed before it is compared, so the time this takes says nothing about the token.
        given = _hash_of(token.strip()).encode()
        if kind.lower() != "bearer" or not hmac.compare_digest(given, self._hashed):
            raise Refusal(
                401,
                "this needs the token of this fleet",
                "Send the header `Authorization: Bearer <token>`.",
                {"WWW-Authenticate": "Bearer"},
            )
        return "token"  # there is one

    @classmethod
    def from_file(cls, path: Path) -> tuple[Bearer, str | None]:
        """By the hash in a file; where there is none it is made, and the new token returned."""
        token = None
        try:
            text = path.read_text("ascii").strip()
        except FileNotFoundError:
            token = secrets.token_urlsafe(32)
            text = _hash_of(token)
            _write_private(path, text)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read as the hash of a token: {error}") from None
        if len(text) != len(_hash_of("")) or not text.startswith(_HASH):
            raise ConfigError(
                f"{path} holds no hash of a token (sha256:…); delete it, and a new token is made"
            )
        return cls(text), token


def _hash_of(token: str) -> str:
    return _HASH + hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def _write_private(path: Path, text: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{text}\n")
    except OSError as error:
        raise ConfigError(
            f"the hash of a new token cannot be written to {path}: {error.strerror}; name another "
            "file by fleet.api_token_file"
        ) from None


def served(control: Control, authorise: Authorise) -> Starlette:
    """An application that stands alone: the API, and /healthz for whoever restarts processes."""
    return Starlette(
        routes=[
            Route("/healthz", _alive, methods=["GET"]),
            Mount("/api/fleet", application(control, authorise)),
        ],
        exception_handlers=_HANDLERS,
    )


def application(control: Control, authorise: Authorise) -> Starlette:
    """The API, to be mounted at /api/fleet."""
    api = _Api(control, authorise)
    return Starlette(
        routes=[
            Route("/state", api.state, methods=["GET"]),
            Route("/audit", api.audit, methods=["GET"]),
            Route("/polling", api.polling, methods=["GET"]),
            Route("/polling", api.change, methods=["PATCH"]),
            Route("/targets/{name:path}/{what}", api.order_one, methods=["POST"]),
            Route("/targets/{name:path}", api.target, methods=["GET"]),
            Route("/{what}", api.order, methods=["POST"]),
        ],
        exception_handlers=_HANDLERS,
    )


class _Api:
    def __init__(self, control: Control, authorise: Authorise) -> None:
        self._control = control
        self._authorise = authorise

    async def state(self, request: Request) -> Response:
        await self._authorise(request, "read")
        limit, after = _limit(request), request.query_params.get("after", "")
        state, group = (request.query_params.get(each) for each in ("state", "group"))
        if state is not None and state not in TARGET_STATES:
            raise Refusal(
                400, "there is no such state", f"Choose one of {', '.join(TARGET_STATES)}."
            )
        fleet = self._control.fleet
        left = iter(
            name
            for name in fleet.names()
            if name > after and group in (None, fleet.definition(name).group)
        )
        page: list[TargetState] = []
        # By portions: a fleet may be large, and its polls shall not wait for this.
        while len(page) <= limit and (names := list(islice(left, PORTION))):
            found = await self._states(names)
            page += [each for each in found if state in (None, each.state)]
            await asyncio.sleep(0)
        more, page = len(page) > limit, page[:limit]
        return _answer(
            {
                **await self._figures(),
                "target_list": [report.told(each) for each in page],
                "next": page[-1].name if more and page else None,
            }
        )

    async def _figures(self) -> dict[str, Any]:
        """How this node fares; where several share, the targets of all of them are counted."""
        fleet = self._control.fleet
        figures = fleet.state(targets=False).as_dict()
        if fleet.store is not None and fleet.store.shared:
            held = sum(fleet.is_held(name) for name in fleet.names())
            figures |= {**await fleet.store.figures(), "node": fleet.node, "held": held}
        # The states of the breakers: a target that is confirmed or backs off still has it closed.
        states = figures["states"]
        opened, half = states["open"], states["half-open"]
        closed = sum(states.values()) - opened - half - states["dead"]
        return {**figures, "breakers": {"closed": closed, "open": opened, "half-open": half}}

    async def _states(self, names: list[str]) -> list[TargetState]:
        """How these fare; those that other nodes poll by what they saved."""
        fleet = self._control.fleet
        # While others were waited for, one may have been removed.
        found = {name: fleet.target(name) for name in names if name in fleet}
        elsewhere = [name for name, each in found.items() if not each.held]
        if fleet.store is not None and fleet.store.shared and elsewhere:
            now = fleet.clock.epoch()
            for kept in await fleet.store.load(elsewhere):
                if kept.name in fleet:
                    target = fleet.definition(kept.name)
                    found[kept.name] = report.state(target, kept, now, held=False)
        return list(found.values())

    async def target(self, request: Request) -> Response:
        await self._authorise(request, "read")
        name = request.path_params["name"]
        for each in await self._states([name]):
            return _answer(report.told(each))
        raise NoSuchTarget([name])

    async def order_one(self, request: Request) -> Response:
        who = await self._operator(request)
        return await self._ordered(who, request.path_params["what"], [request.path_params["name"]])

    async def order(self, request: Request) -> Response:
        who = await self._operator(request)
        body = await _body(request)
        names = body.get("targets")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise Refusal(
                400,
                "targets must be a list of names",
                'Name them: {"targets": ["front page"]}.',
            )
        return await self._ordered(who, request.path_params["what"], names)

    async def _operator(self, request: Request) -> _Operator:
        who = await self._authorise(request, "operate") or "somebody"
        return _Operator(who, "" if request.client is None else request.client.host)

    async def _ordered(self, who: _Operator, what: str, names: list[str]) -> Response:
        if what not in ORDERS:
            raise Refusal(
                404, f"there is no order {shown(what)}", f"Choose one of {', '.join(ORDERS)}."
            )
        await self._control.order(what, names, who.by)
        await note_order(self._control.fleet.store, who.who, what, names, who.address)
        return _answer({"order": what, "targets": names}, 202)

    async def polling(self, request: Request) -> Response:
        await self._authorise(request, "read")
        return self._polling()

    async def change(self, request: Request) -> Response:
        who = await self._operator(request)
        body = await _body(request)
        group = body.pop("group", None)
        if group is not None and (not isinstance(group, str) or not group):
            raise Refusal(
                400, f"group = {shown(group)} must be the name of one, or null for all targets"
            )
        if not body:
            raise Refusal(
                400, "nothing shall change", f"Give one or more of {', '.join(CHANGEABLE)}."
            )
        await self._control.change(group, body, who.by)
        changes = ", ".join(f"{name} = {shown(value)}" for name, value in body.items())
        whose = "all targets" if group is None else f"group {group!r}"
        store = self._control.fleet.store
        await note(store, who.who, "polling.change", whose, changes, who.address)
        return self._polling()

    async def audit(self, request: Request) -> Response:
        await self._authorise(request, "operate")
        limit, before = _limit(request, AUDIT_PAGE), _before(request)
        store = self._control.fleet.store
        found = [] if store is None else await store.list_audit(limit, before)
        more = limit and len(found) == limit
        return _answer(
            {
                "entries": [asdict(each) for each in found],
                "next": found[-1].id if more else None,
            }
        )

    def _polling(self) -> Response:
        return _answer({"kept_in": self._control.where, "settings": self._control.polling()})


@dataclass(frozen=True, slots=True)
class _Operator:
    """Who changes something, and from where."""

    who: str
    address: str

    @property
    def by(self) -> str:
        return f"api: {self.who} from {self.address or 'an unknown address'}"


async def _alive(_: Request) -> Response:
    return _answer({"status": "ok"})


async def _body(request: Request) -> dict[str, Any]:
    raw = b""
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > BODY_MAX:
            raise Refusal(413, f"the body is larger than {BODY_MAX} bytes")
    try:
        found = json.loads(raw or b"{}")
    except (ValueError, RecursionError):
        raise Refusal(400, "the body is no JSON") from None
    if not isinstance(found, dict):
        raise Refusal(400, "the body is no JSON object")
    return found


def _limit(request: Request, default: int = PAGE) -> int:
    text = request.query_params.get("limit", str(default))
    if not text.isascii() or not text.isdigit() or not 0 <= int(text[:9]) <= PAGE_MAX:
        raise Refusal(400, f"limit must be a whole number from 0 to {PAGE_MAX}")
    return int(text)


def _before(request: Request) -> int | None:
    text = request.query_params.get("before")
    if text is not None and (not text.isascii() or not text.isdigit() or len(text) > 15):
        raise Refusal(400, "before must be the id of an entry: the `next` of an answer")
    return None if text is None else int(text)


def _answer(content: Any, status: int = 200) -> Response:
    return JSONResponse(_plain(content), status, {"Cache-Control": "no-store"})


def _plain(value: Any) -> Any:
    """As JSON can say it: it has no infinity, and facts of probes may hold anything."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (str, int)) else str(value)


async def _refused(_: Request, error: Exception) -> Response:
    if isinstance(error, NoSuchTarget):
        error = Refusal(404, str(error), "See GET /api/fleet/state for those there are.")
    elif isinstance(error, StoreError):
        error = Refusal(503, str(error), "Try again in a few seconds; the fleet's log says more.")
    elif not isinstance(error, HTTPException):
        error = Refusal(400, str(error))
    code = getattr(error, "code", _CODES.get(error.status_code, "refused"))
    what_to_do = getattr(error, "what_to_do", "")
    told = {"code": code, "message": error.detail, "what_to_do": what_to_do}
    response = JSONResponse({"error": told}, error.status_code, {"Cache-Control": "no-store"})
    response.headers.update(error.headers or {})
    return response


_HANDLERS: dict[Any, Any] = {HTTPException: _refused, PollwiseError: _refused}
