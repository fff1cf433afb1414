"""The fleet over HTTP: how it fares, orders for its targets, and the settings of its polling.

    GET   /api/fleet/health                      all figures, each target's last success and error
    GET   /api/fleet/targets/NAME                one target
    POST  /api/fleet/targets/NAME/ORDER          retry, reset, pause, resume, poll-now
    POST  /api/fleet/ORDER {"targets": [names]}  the same, of many
    GET   /api/fleet/polling                     the settings of polling, and where each came from
    PATCH /api/fleet/polling {"group": null, "enabled": false, "base_interval": "10s", …}

`application` is a Starlette application to be mounted at /api/fleet, wherever there is one already;
`served` is one that stands alone, with /healthz, which says that the process lives: it stays 200
however many targets are broken.

Who may do what is asked of an `authorise`, which raises an HTTPException when they may not.
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
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pollux.errors import ConfigError, MissingExtra, PolluxError, StoreError
from pollux.fleet import report
from pollux.fleet.control import CHANGEABLE, Control, NoSuchTarget
from pollux.fleet.store import CONDITIONS, ORDERS
from pollux.fleet.views import TargetState

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
PORTION = 200

Scope = Literal["read", "operate"]
#: Raises an HTTPException (401, 403) when whoever asks may not do this.
Authorise = Callable[[Request, Scope], Awaitable[None]]

_HASH = "sha256:"


class Bearer:
    """Lets in who has the one token, of which a file holds the hash."""

    def __init__(self, hashed: str) -> None:
        self._hashed = hashed.encode()

    async def __call__(self, request: Request, scope: Scope) -> None:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        # Hashed before it is compared, so the time this takes says nothing about the token.
        given = _hash_of(token.strip()).encode()
        if kind.lower() != "bearer" or not hmac.compare_digest(given, self._hashed):
            raise HTTPException(
                401,
                "give the token of this fleet: Authorization: Bearer …",
                {"WWW-Authenticate": "Bearer"},
            )

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
            Route("/health", api.health, methods=["GET"]),
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

    async def health(self, request: Request) -> Response:
        await self._authorise(request, "read")
        limit, after = _limit(request), request.query_params.get("after", "")
        condition, group = (request.query_params.get(each) for each in ("condition", "group"))
        if condition is not None and condition not in CONDITIONS:
            raise HTTPException(400, f"condition is one of {', '.join(CONDITIONS)}")
        fleet = self._control.fleet
        left = iter(
            name
            for name in fleet.names()
            if name > after and group in (None, fleet.target(name).group)
        )
        page: list[TargetState] = []
        # By portions: a fleet may be large, and its polls shall not wait for this.
        while len(page) <= limit and (names := list(islice(left, PORTION))):
            found = await self._states(names)
            page += [each for each in found if condition in (None, each.condition)]
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
        figures = fleet.health().as_dict()
        shared = getattr(fleet.store, "figures", None)
        if shared is not None:
            held = sum(fleet.is_held(name) for name in fleet.names())
            figures |= {**await shared(), "node": fleet.node, "held": held}
        # The states of the breakers: a target that is confirmed or backs off still has it closed.
        conditions = figures["conditions"]
        opened, half = conditions["open"], conditions["half-open"]
        closed = sum(conditions.values()) - opened - half - conditions["dead"]
        return {**figures, "breakers": {"closed": closed, "open": opened, "half-open": half}}

    async def _states(self, names: list[str]) -> list[TargetState]:
        """How these fare; those that other nodes poll by what they saved."""
        fleet = self._control.fleet
        # While others were waited for, one may have been removed.
        found = {name: fleet.state(name) for name in names if name in fleet}
        some = getattr(fleet.store, "load", None)
        elsewhere = [name for name, each in found.items() if not each.held]
        if fleet.store is not None and fleet.store.shared and some is not None and elsewhere:
            now = fleet.clock.epoch()
            for kept in await some(elsewhere):
                if kept.name in fleet:
                    target = fleet.target(kept.name)
                    found[kept.name] = report.state(target, kept, now, held=False)
        return list(found.values())

    async def target(self, request: Request) -> Response:
        await self._authorise(request, "read")
        name = request.path_params["name"]
        for each in await self._states([name]):
            return _answer(report.told(each))
        raise NoSuchTarget([name])

    async def order_one(self, request: Request) -> Response:
        await self._authorise(request, "operate")
        return await self._ordered(request.path_params["what"], [request.path_params["name"]])

    async def order(self, request: Request) -> Response:
        await self._authorise(request, "operate")
        body = await _body(request)
        names = body.get("targets")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise HTTPException(400, 'give the names of targets: {"targets": ["front page"]}')
        return await self._ordered(request.path_params["what"], names)

    async def _ordered(self, what: str, names: list[str]) -> Response:
        if what not in ORDERS:
            raise HTTPException(404, f"there is no order {what!r}; known: {', '.join(ORDERS)}")
        await self._control.order(what, names)
        return _answer({"order": what, "targets": names}, 202)

    async def polling(self, request: Request) -> Response:
        await self._authorise(request, "read")
        return self._polling()

    async def change(self, request: Request) -> Response:
        await self._authorise(request, "operate")
        body = await _body(request)
        group = body.pop("group", None)
        if group is not None and (not isinstance(group, str) or not group):
            raise HTTPException(400, "group is the name of one, or null for all targets")
        if not body:
            raise HTTPException(400, f"give what shall change: {', '.join(CHANGEABLE)}")
        await self._control.change(group, body)
        return self._polling()

    def _polling(self) -> Response:
        return _answer({"kept_in": self._control.where, "settings": self._control.polling()})


async def _alive(_: Request) -> Response:
    return _answer({"status": "ok"})


async def _body(request: Request) -> dict[str, Any]:
    raw = b""
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > BODY_MAX:
            raise HTTPException(413, f"the body is larger than {BODY_MAX} bytes")
    try:
        found = json.loads(raw or b"{}")
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body is no JSON") from None
    if not isinstance(found, dict):
        raise HTTPException(400, "the body is no JSON object")
    return found


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", str(PAGE))
    if not text.isascii() or not text.isdigit() or not 0 <= int(text[:9]) <= PAGE_MAX:
        raise HTTPException(400, f"limit must be a whole number from 0 to {PAGE_MAX}")
    return int(text)


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
    headers = None
    if isinstance(error, HTTPException):
        status, said, headers = error.status_code, error.detail, error.headers
    elif isinstance(error, NoSuchTarget):
        status, said = 404, str(error)
    elif isinstance(error, StoreError):
        status, said = 503, str(error)
    else:
        status, said = 400, str(error)
    response = JSONResponse({"error": said}, status, {"Cache-Control": "no-store"})
    response.headers.update(headers or {})
    return response


_HANDLERS: dict[Any, Any] = {HTTPException: _refused, PolluxError: _refused}
