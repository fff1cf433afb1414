"""Tokens, stats and the audit log."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from pollwise.controller.controller import Controller
from pollwise.controller.http import schema
from pollwise.controller.http.answers import Refused, no_such
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
from pollwise.controller.workers.matching import waiting_for


def routes(controller: Controller) -> APIRouter:
    router = APIRouter()
    options, state = controller.options, controller.state

    @router.post(
        "/api/tokens",
        status_code=201,
        tags=["tokens"],
        summary="Make a token",
        responses={201: {"model": schema.TokenMade}, **errors(400, 413, 422)},
        openapi_extra=body_of(schema.NewToken),
    )
    async def make_token(request: Request) -> Response:
        who = await controller.caller(request, "admin")
        given = await read_object(request, options.body_limit, ("scope", "name", "expires_in_s"))
        scope = given.get("scope")
        if scope not in SCOPES:
            raise invalid(f"scope = {str(scope)[:40]!r} is none of {', '.join(SCOPES)}")
        name = given.get("name")
        if not isinstance(name, str):
            raise invalid("a token needs a name: whose it is")
        made, secret = await controller.tokens.make(
            scope, name, expires_in=_expires_in(given), by=who.who
        )
        await controller.note(request, who, "token.create", made.id, f"{made.scope} {made.name}")
        return answer({**token_view(made), "token": secret}, 201)

    @router.get(
        "/api/tokens",
        tags=["tokens"],
        summary="List tokens, without themselves",
        responses={200: {"model": schema.TokenPage}, **errors(422)},
    )
    async def list_tokens(request: Request, limit: Limit = None, after: After = None) -> Response:
        await controller.caller(request, "admin")
        most = page_limit(limit)
        found = await state.list_tokens(limit=most, after=page_after(after))
        following = found[-1].id if len(found) == most else None
        return answer({"tokens": [token_view(each) for each in found], "next": following})

    @router.delete(
        "/api/tokens/{token_id}",
        tags=["tokens"],
        summary="Revoke a token",
        description="It holds no longer, and neither do the tokens of the workers that registered "
        "with it: they get 401, and what they run goes to others when its lease is over.",
        responses={200: {"model": schema.TokenView}, **errors(404)},
    )
    async def revoke_token(request: Request, token_id: str) -> Response:
        who = await controller.caller(request, "admin")
        found = await controller.tokens.revoke(checked_id(token_id, "token"))
        if found is None:
            raise no_such("token", token_id)
        controller.auth.forget()  # also of the workers that registered with it
        controller.registry.refuse(f"token:{found.id}")
        await controller.note(request, who, "token.revoke", found.id, found.name)
        return answer(token_view(found))

    @router.post(
        "/api/tokens/{token_id}/rotate",
        tags=["tokens"],
        summary="Another token in the place of this one, which holds no longer",
        description="Workers that registered with it stay until their own tokens expire, and "
        "register again with the new one then. To send them away, revoke it.",
        responses={200: {"model": schema.TokenMade}, **errors(400, 404, 409, 413, 422)},
        openapi_extra=body_of(schema.RotateToken, required=False),
    )
    async def rotate_token(request: Request, token_id: str) -> Response:
        who = await controller.caller(request, "admin")
        given = await read_object(request, options.body_limit, ("expires_in_s",))
        found = await state.token(checked_id(token_id, "token"))
        if found is None:
            raise no_such("token", token_id)
        rotated = await controller.tokens.rotate(token_id, expires_in=_expires_in(given))
        if rotated is None:
            raise Refused(409, "revoked", "the token was revoked", "Make a new one.")
        made, secret = rotated
        controller.auth.forget(found.hash)
        await controller.note(request, who, "token.rotate", made.id, made.name)
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
        await controller.caller(request, "admin")
        most = page_limit(limit)
        found = await state.list_audit(limit=most, before=before)
        following = str(found[-1].id) if len(found) == most else None
        return answer({"entries": [audit_view(each) for each in found], "next": following})

    @router.get(
        "/api/stats",
        tags=["admin"],
        summary="How many jobs and workers there are",
        responses={200: {"model": schema.StatsView}, **errors()},
    )
    async def stats(request: Request) -> Response:
        await controller.caller(request, "submit")
        await controller.registry.write_down()
        counted = await state.stats(options.span("heartbeat_timeout"))
        live = await controller.registry.live()
        required = {
            (each.kind, each.hash): dict(each.requires) for each in await state.requirements()
        }
        waiting: list[dict[str, Any]] = []
        for each in counted.waiting:
            requires = required.get((each.kind, each.requires_hash), {})
            waiting.append(
                {
                    "kind": each.kind,
                    "requires": requires,
                    "count": each.count,
                    "oldest_age_s": each.oldest_age_s,
                    "waiting_for": waiting_for(each.kind, requires, live),
                }
            )
        return answer(
            {
                "jobs": dict(counted.jobs),
                "waiting": waiting,
                "workers": counted.workers,
                "workers_online": counted.workers_live,
                "running": counted.runs,
                "held_polls": controller.poller.held,
                "pushes": len(controller.pushes),
            }
        )

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
