"""`/api/tokens`, `/api/audit` and `/api/stats`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from pollwise.controller.controller import Controller
from pollwise.controller.http import schema
from pollwise.controller.http.access import SEE
from pollwise.controller.http.answers import HttpError, no_such
from pollwise.controller.http.requests import (
    PAGE,
    After,
    Limit,
    answer,
    checked_id,
    read_model,
)
from pollwise.controller.http.schema import described
from pollwise.controller.http.views import audit_view, row_view


def routes(controller: Controller) -> APIRouter:
    router = APIRouter()
    access, options, storage = controller.access, controller.options, controller.storage

    @router.post(
        "/api/tokens",
        **described("Make a token", schema.TokenMade, status=201, body=schema.NewToken),
        tags=["tokens"],
    )
    async def make_token(request: Request) -> Response:
        who = await access.caller(request, "admin")
        given = await read_model(request, options.body_limit, schema.NewToken)
        made, secret = await controller.tokens.make(
            given.scope,
            given.name,
            expires_in=given.expires_in_s,
            all_jobs=given.all_jobs,
            by=who.label,
        )
        await access.note(request, who, "token.create", made.id, f"{made.scope} {made.name}")
        return answer({**row_view(made, schema.TokenView), "token": secret}, 201)

    @router.get(
        "/api/tokens",
        **described("List tokens, without their secrets", schema.TokenPage, 422),
        tags=["tokens"],
    )
    async def list_tokens(request: Request, limit: Limit = PAGE, after: After = None) -> Response:
        await access.caller(request, "admin")
        found = await storage.list_tokens(limit=limit, after=after)
        following = found[-1].id if len(found) == limit else None
        tokens = [row_view(each, schema.TokenView) for each in found]
        return answer({"tokens": tokens, "next": following})

    @router.delete(
        "/api/tokens/{token_id}",
        **described("Revoke a token", schema.TokenView, 404),
        tags=["tokens"],
        description="The token and the tokens of the workers that registered with it become "
        "invalid: they get 401, and their jobs go to others when the leases are over.",
    )
    async def revoke_token(request: Request, token_id: str) -> Response:
        who = await access.caller(request, "admin")
        found = await controller.tokens.revoke(checked_id(token_id, "token"))
        if found is None:
            raise no_such("token", token_id)
        controller.auth.forget()  # also of the workers that registered with it
        controller.registry.refuse(f"token:{found.id}")
        await access.note(request, who, "token.revoke", found.id, found.name)
        return answer(row_view(found, schema.TokenView))

    @router.post(
        "/api/tokens/{token_id}/rotate",
        **described(
            "Replace the secret of a token; the old one becomes invalid",
            schema.TokenMade,
            404,
            409,
            body=schema.RotateToken,
        ),
        tags=["tokens"],
        description="Workers that registered with it stay until their own tokens expire, and "
        "then register again with the new one. To remove them, revoke it.",
    )
    async def rotate_token(request: Request, token_id: str) -> Response:
        who = await access.caller(request, "admin")
        given = await read_model(request, options.body_limit, schema.RotateToken)
        found = await storage.token(checked_id(token_id, "token"))
        if found is None:
            raise no_such("token", token_id)
        rotated = await controller.tokens.rotate(token_id, expires_in=given.expires_in_s)
        if rotated is None:
            raise HttpError(409, "revoked", "the token was revoked", "Make a new one.")
        made, secret = rotated
        controller.auth.forget(found.hash)
        await access.note(request, who, "token.rotate", made.id, made.name)
        return answer({**row_view(made, schema.TokenView), "token": secret})

    @router.get(
        "/api/audit",
        **described("Who did what, newest first", schema.AuditPage, 422),
        tags=["admin"],
    )
    async def audit(
        request: Request,
        limit: Limit = PAGE,
        before: Annotated[int | None, Query(gt=0, lt=2**53)] = None,
    ) -> Response:
        await access.caller(request, "operate")
        found = await storage.list_audit(limit=limit, before=before)
        following = str(found[-1].id) if len(found) == limit else None
        entries = [audit_view(each) for each in found]
        return answer({"entries": entries, "next": following})

    @router.get(
        "/api/stats",
        **described("How many jobs and workers there are", schema.StatsView),
        tags=["admin"],
    )
    async def stats(request: Request) -> Response:
        await access.caller(request, *SEE)
        return answer(await controller.stats())

    return router
