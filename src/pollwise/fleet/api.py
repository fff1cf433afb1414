"""The HTTP API of a fleet: its state, orders for its targets, and its polling settings.

    GET   /api/fleet/state                       all figures, each target's last success and error
    GET   /api/fleet/targets/NAME                one target
    POST  /api/fleet/targets/NAME/ORDER          retry, close-breaker, pause, resume, poll-now
    POST  /api/fleet/ORDER {"targets": [names]}  the same for several targets
    GET   /api/fleet/polling                     the polling settings, and where each comes from
    GET   /api/fleet/audit                       who changed what, newest first
    PATCH /api/fleet/polling {"group": null, "enabled": false, "base_interval": "10s", …}

`application` is a Starlette application to mount at /api/fleet in an existing one; `served` is
a standalone one with /livez and /readyz, which need no token. They say that the process is alive
and that it polls, however many targets are broken.

An `authorise` function decides who may do what: it raises a `Refusal` (or any HTTPException), or
returns who the caller is. All changes go to the audit log. Errors have the controller's format:
`{"error": {"code", "message", "what_to_do"}}`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import math
import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pollwise.errors import ConfigError, MissingExtra, PollwiseError, StoreError
from pollwise.fleet.control import CHANGEABLE, Control, NoSuchTarget, note, note_order
from pollwise.fleet.stores.base import ORDERS, TARGET_STATES, TargetOrder
from pollwise.fleet.views import TargetState, saved_state, target_json, with_pending
from pollwise.runtime.http import allowed_methods, unknown_query
from pollwise.settings.values import shown

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Mount, Route
except ImportError as error:
    raise MissingExtra("the fleet's HTTP API", "serve") from error

#: Maximum size of a request's body, in bytes.
BODY_MAX = 1024 * 1024
#: Default and maximum number of targets in an answer; default number of audit entries; and number
#: of targets that are processed before other tasks get a turn.
PAGE = 1000
PAGE_MAX = 10_000
AUDIT_PAGE = 100
PORTION = 200

Scope = Literal["read", "operate"]
#: Raises a `Refusal` (401, 403) if the caller may not do this; else returns the caller's name for
#: the audit log, if known.
Authorise = Callable[[Request, Scope], Awaitable[str | None]]

_HASH = "sha256:"


#: Codes of the errors that the web framework or an `authorise` function raises.
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
        self.code = code or _CODES.get(status, "refused")
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


def _hash_of(token: str) -> str:
    return _HASH + hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def _write_private(path: Path, text: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{text}\n")
    except OSError as error:
        raise ConfigError(
            f"the hash of a new token cannot be written to {path}: {error.strerror}; set "
            "fleet.api_token_file to another file"
        ) from None


def served(control: Control, authorise: Authorise) -> Starlette:
    """A standalone application: the API, and /livez and /readyz for process supervisors."""

    async def livez(_: Request) -> Response:
        return _answer({"status": "ok"})

    async def readyz(_: Request) -> Response:
        running = control.fleet.running
        return _answer({"status": "ok" if running else "starting"}, 200 if running else 503)

    return _closed(
        routes=[
            Route("/livez", livez, methods=["GET"]),
            Route("/readyz", readyz, methods=["GET"]),
            Mount("/api/fleet", application(control, authorise)),
        ],
        authorise=authorise,
    )


def application(control: Control, authorise: Authorise) -> Starlette:
    """The API, to mount at /api/fleet."""
    api = _Api(control, authorise)
    return _closed(
        routes=[
            Route("/state", api.state, methods=["GET"]),
            Route("/audit", api.audit, methods=["GET"]),
            Route("/polling", api.polling, methods=["GET"]),
            Route("/polling", api.change, methods=["PATCH"]),
            Route("/targets/{name:path}/{what}", api.order_one, methods=["POST"]),
            Route("/targets/{name:path}", api.target, methods=["GET"]),
            Route("/{what}", api.order, methods=["POST"]),
        ],
        authorise=authorise,
    )


def _closed(routes: list[Any], authorise: Authorise) -> Starlette:
    """An application that answers a caller without a token with nothing but that.

    No redirects, which come before the token is checked.
    """

    async def refused(request: Request, error: Exception) -> Response:
        found = isinstance(error, Refusal) or not isinstance(error, HTTPException)
        if not found and request.scope["path"] not in ("/livez", "/readyz"):
            try:
                await authorise(request, "read")
            except HTTPException as closed:
                return await _refused(request, closed)
        if isinstance(error, HTTPException) and error.status_code == 405:
            allowed = ", ".join(allowed_methods(routes, request.scope))
            error.headers = {**(error.headers or {}), "Allow": allowed}
        return await _refused(request, error)

    handlers: dict[Any, Any] = {HTTPException: refused, PollwiseError: refused}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return app


class _Api:
    def __init__(self, control: Control, authorise: Authorise) -> None:
        self._control = control
        self._authorise = authorise

    async def state(self, request: Request) -> Response:
        await self._reader(request, "limit", "after", "state", "group")
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
        pending = [] if fleet.store is None else await fleet.store.pending()
        # In portions: a fleet may be large, and its polls must not wait for this.
        while len(page) <= limit and (names := list(islice(left, PORTION))):
            found = await self._states(names, pending)
            page += [each for each in found if state in (None, each.state)]
            await asyncio.sleep(0)
        more, page = len(page) > limit, page[:limit]
        following = page[-1].name if more and page else None
        listed = [target_json(each) for each in page]
        figures = {**await self._figures(), "pending": len(pending)}
        return _answer({**figures, "target_list": listed, "next": following})

    async def _figures(self) -> dict[str, Any]:
        """The figures of this node; with several nodes, the targets of all are counted."""
        fleet = self._control.fleet
        figures = fleet.state(targets=False).as_dict()
        if fleet.store is not None and fleet.store.shared:
            held = sum(fleet.is_held(name) for name in fleet.names())
            figures |= {**await fleet.store.figures(), "node": fleet.node, "held": held}
        # The breaker of a target that is confirming or backing off is still closed, and that of a
        # dead one is open, as in the metrics.
        states = figures["states"]
        opened, half = states["open"] + states["dead"], states["half-open"]
        closed = sum(states.values()) - opened - half
        return {**figures, "breakers": {"closed": closed, "open": opened, "half-open": half}}

    async def _states(
        self, names: list[str], pending: Sequence[TargetOrder] | None = None
    ) -> list[TargetState]:
        """The states of these targets; for those of other nodes, the saved states.

        pending: the orders that are not carried out yet; None reads those of these targets.
        """
        fleet = self._control.fleet
        if pending is None:
            pending = [] if fleet.store is None else await fleet.store.pending(names)
        # One may have been removed in the meantime.
        found = {name: fleet.target(name) for name in names if name in fleet}
        elsewhere = [name for name, each in found.items() if not each.held]
        if fleet.store is not None and fleet.store.shared and elsewhere:
            now = fleet.clock.epoch()
            for kept in await fleet.store.load(elsewhere):
                if kept.name in fleet:
                    target = fleet.definition(kept.name)
                    found[kept.name] = saved_state(target, kept, now, held=False)
        return with_pending(found.values(), pending)

    async def target(self, request: Request) -> Response:
        await self._reader(request)
        name = request.path_params["name"]
        for each in await self._states([name]):
            return _answer(target_json(each))
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

    async def _reader(self, request: Request, *known: str) -> None:
        """Check that the caller may read, and that the query has only known names."""
        await self._authorise(request, "read")
        _check_query(request, *known)

    async def _operator(self, request: Request, *known: str) -> _Operator:
        who = await self._authorise(request, "operate") or "somebody"
        _check_query(request, *known)
        return _Operator(who, "" if request.client is None else request.client.host)

    async def _ordered(self, who: _Operator, what: str, names: list[str]) -> Response:
        if what not in ORDERS:
            raise Refusal(
                404, f"{shown(what)} is not an order", f"Choose one of {', '.join(ORDERS)}."
            )
        pending = await self._control.order(what, names, who.by)
        await note_order(self._control.fleet.store, who.who, what, names, who.address)
        return _answer({"order": what, "targets": names, "pending": pending}, 202)

    async def polling(self, request: Request) -> Response:
        await self._reader(request)
        return self._polling()

    async def change(self, request: Request) -> Response:
        who = await self._operator(request)
        body = await _body(request)
        group = body.pop("group", None)
        if group is not None and (not isinstance(group, str) or not group):
            raise Refusal(
                400, f"group = {shown(group)} must be a group's name, or null for all targets"
            )
        if not body:
            raise Refusal(
                400, "no setting to change", f"Give one or more of {', '.join(CHANGEABLE)}."
            )
        await self._control.change(group, body, who.by)
        changes = ", ".join(f"{name} = {shown(value)}" for name, value in body.items())
        whose = "all targets" if group is None else f"group {group!r}"
        store = self._control.fleet.store
        await note(store, who.who, "polling.change", whose, changes, who.address)
        return self._polling()

    async def audit(self, request: Request) -> Response:
        await self._operator(request, "limit", "before")
        limit = _limit(request, AUDIT_PAGE)
        entry = "the id of an entry: `next` of the last answer"
        before = _number(request, "before", 10**15, entry)
        store = self._control.fleet.store
        found = [] if store is None else await store.list_audit(limit, before)
        more = limit and len(found) == limit
        entries = [asdict(each) for each in found]
        return _answer({"entries": entries, "next": found[-1].id if more else None})

    def _polling(self) -> Response:
        return _answer({"kept_in": self._control.where, "settings": self._control.polling()})


@dataclass(frozen=True, slots=True)
class _Operator:
    """Who makes a change, and from where."""

    who: str
    address: str

    @property
    def by(self) -> str:
        return f"api: {self.who} from {self.address or 'an unknown address'}"


async def _body(request: Request) -> dict[str, Any]:
    raw = b""
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > BODY_MAX:
            raise Refusal(413, f"the body is larger than {BODY_MAX} bytes")
    try:
        found = json.loads(raw or b"{}")
    except (ValueError, RecursionError):
        raise Refusal(400, "the body is not JSON") from None
    if not isinstance(found, dict):
        raise Refusal(400, "the body is not a JSON object")
    return found


def _check_query(request: Request, *known: str) -> None:
    wrong = unknown_query(request.query_params, known)
    if wrong is not None:
        raise Refusal(400, wrong, "Correct the name, or leave it out.", code="unknown_query")


def _limit(request: Request, default: int = PAGE) -> int:
    found = _number(request, "limit", PAGE_MAX, f"a whole number from 0 to {PAGE_MAX}")
    return default if found is None else found


def _number(request: Request, name: str, most: int, must: str) -> int | None:
    """A whole number in the query, at most `most`."""
    text = request.query_params.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 15 or int(text) > most:
        raise Refusal(400, f"{name} must be {must}")
    return int(text)


def _answer(content: Any, status: int = 200) -> Response:
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


async def _refused(_: Request, error: Exception) -> Response:
    if isinstance(error, NoSuchTarget):
        error = Refusal(404, str(error), "GET /api/fleet/state lists all targets.")
    elif isinstance(error, StoreError):
        error = Refusal(503, str(error), "Try again in a few seconds; the fleet's log says more.")
    elif not isinstance(error, HTTPException):
        error = Refusal(400, str(error))
    code = getattr(error, "code", _CODES.get(error.status_code, "refused"))
    what_to_do = getattr(error, "what_to_do", "")
    content = {"code": code, "message": error.detail, "what_to_do": what_to_do}
    response = JSONResponse({"error": content}, error.status_code, {"Cache-Control": "no-store"})
    response.headers.update(error.headers or {})
    return response
