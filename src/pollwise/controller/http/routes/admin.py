"""`/api/tokens`, `/api/audit` and `/api/stats`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from pollwise.controller.controller import Controller
from pollwise.controller.http import schema
from pollwise.controller.http.access import SEE
from pollwise.controller.http.answers import HttpError, no_such
from pollwise.controller.http.requests import (
    After,
    Limit,
    answer,
    checked_id,
    invalid,
    page_after,
    page_limit,
    read_object,
)
from pollwise.controller.http.schema import body_of, errors
from pollwise.controller.http.views import audit_view, token_view
from pollwise.controller.security.tokens import EXPIRES_MAX
from pollwise.controller.state.values import SCOPES


def routes(controller: Controller) -> APIRouter:
    router = APIRouter()
    options, storage = controller.options, controller.storage

    @router.post(
        "/api/tokens",
        status_code=201,
        tags=["tokens"],
        summary="Make a token",
        responses={201: {"model": schema.TokenMade}, **errors(400, 413, 422)},
        openapi_extra=body_of(schema.NewToken),
    )
    async def make_token(request: Request) -> Response:
        who = await controller.access.caller(request, "admin")
        given = await read_object(request, options.body_limit, ("scope", "name", "expires_in_s"))
        scope = given.get("scope")
        if scope not in SCOPES:
            raise invalid(f"scope = {str(scope)[:40]!r} is none of {', '.join(SCOPES)}")
        name = given.get("name")
        if not isinstance(name, str):
            raise invalid("a token needs a name, such as that of its owner")
        made, secret = await controller.tokens.make(
            scope, name, expires_in=_expires_in(given), by=who.who
        )
        await controller.access.note(
            request, who, "token.create", made.id, f"{made.scope} {made.name}"
        )
        return answer({**token_view(made), "token": secret}, 201)

    @router.get(
        "/api/tokens",
        tags=["tokens"],
        summary="List tokens, without their secrets",
        responses={200: {"model": schema.TokenPage}, **errors(422)},
    )
    async def list_tokens(request: Request, limit: Limit = None, after: After = None) -> Response:
        await controller.access.caller(request, "admin")
        size = page_limit(limit)
        found = await storage.list_tokens(limit=size, after=page_after(after))
        following = found[-1].id if len(found) == size else None
        return answer({"tokens": [token_view(each) for each in found], "next": following})

    @router.delete(
        "/api/tokens/{token_id}",
        tags=["tokens"],
        summary="Revoke a token",
        description="The token and the tokens of the workers that registered with it become "
        "invalid: they get 401, and their jobs go to others when the leases are over.",
        responses={200: {"model": schema.TokenView}, **errors(404)},
    )
    async def revoke_token(request: Request, token_id: str) -> Response:
        who = await controller.access.caller(request, "admin")
        found = await controller.tokens.revoke(checked_id(token_id, "token"))
        if found is None:
            raise no_such("token", token_id)
        controller.auth.forget()  # also of the workers that registered with it
        controller.registry.refuse(f"token:{found.id}")
        await controller.access.note(request, who, "token.revoke", found.id, found.name)
        return answer(token_view(found))

    @router.post(
        "/api/tokens/{token_id}/rotate",
        tags=["tokens"],
        summary="Replace the secret of a token; the old one becomes invalid",
        description="Workers that registered with it stay until their own tokens expire, and "
        "then register again with the new one. To remove them, revoke it.",
        responses={200: {"model": schema.TokenMade}, **errors(400, 404, 409, 413, 422)},
        openapi_extra=body_of(schema.RotateToken, required=False),
    )
    async def rotate_token(request: Request, token_id: str) -> Response:
        who = await controller.access.caller(request, "admin")
        given = await read_object(request, options.body_limit, ("expires_in_s",))
        found = await storage.token(checked_id(token_id, "token"))
        if found is None:
            raise no_such("token", token_id)
        rotated = await controller.tokens.rotate(token_id, expires_in=_expires_in(given))
        if rotated is None:
            raise HttpError(409, "revoked", "the token was revoked", "Make a new one.")
        made, secret = rotated
        controller.auth.forget(found.hash)
        await controller.access.note(request, who, "token.rotate", made.id, made.name)
        return answer({**token_view(made), "token": secret})

    @router.get(
        "/api/audit",
        tags=["admin"],
        summary="Who did what, newest first",
        responses={200: {"model": schema.AuditPage}, **errors(422)},
    )
    async def audit(
        request: Request,
        limit: Limit = None,
        before: Annotated[int | None, Query(gt=0, lt=2**53)] = None,
    ) -> Response:
        await controller.access.caller(request, "read")
        size = page_limit(limit)
        found = await storage.list_audit(limit=size, before=before)
        following = str(found[-1].id) if len(found) == size else None
        return answer({"entries": [audit_view(each) for each in found], "next": following})

    @router.get(
        "/api/stats",
        tags=["admin"],
        summary="How many jobs and workers there are",
        responses={200: {"model": schema.StatsView}, **errors()},
    )
    async def stats(request: Request) -> Response:
        await controller.access.caller(request, *SEE)
        return answer(await controller.stats())

    return router


def _expires_in(given: dict[str, Any]) -> float | None:
    value = given.get("expires_in_s")
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0 < value <= EXPIRES_MAX
    ):
        raise invalid(f"expires_in_s must be a number of seconds above 0, at most {EXPIRES_MAX:g}")
    return float(value)
