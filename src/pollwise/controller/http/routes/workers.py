"""`/api/workers`: register, list, drain, unregister. The poll route is in `poll`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from pollwise.controller.controller import Controller
from pollwise.controller.http import schema
from pollwise.controller.http.access import SEE
from pollwise.controller.http.answers import moment, no_such
from pollwise.controller.http.requests import (
    PAGE,
    After,
    Limit,
    answer,
    checked_id,
    read_model,
)
from pollwise.controller.http.schema import described
from pollwise.controller.http.views import worker_view
from pollwise.controller.security.tokens import hash_of, new_secret
from pollwise.controller.state.values import WorkerRow
from pollwise.runtime.http import address_of


def routes(controller: Controller) -> APIRouter:
    router = APIRouter(tags=["workers"])
    options, registry = controller.options, controller.registry

    @router.post(
        "/api/workers/register",
        **described(
            "Register a worker", schema.RegisteredBody, 429, status=201, body=schema.Registration
        ),
    )
    async def register(request: Request) -> Response:
        who = await controller.access.caller(request, "worker")
        given = await read_model(request, options.body_limit, schema.Registration)
        secret = new_secret()
        by = await controller.storage.token(who.id)
        if by is not None and by.revoked_at is not None:  # at another controller, a moment ago
            controller.auth.forget(by.hash)
            who = await controller.access.caller(request, "worker")
        until = controller.clock.epoch() + options.span("registered_for")
        # Not longer than the token that it registers with.
        expires_at = until if by is None or by.expires_at is None else min(until, by.expires_at)
        row = await registry.register(
            given.name,
            given.capabilities,
            given.slots,
            token_hash=hash_of(secret),
            expires_at=expires_at,
            who=who.who,
            address=address_of(request.scope),
        )
        await controller.access.note(request, who, "worker.register", row.id, row.name)
        registered = {
            "worker_id": row.id,
            "token": secret,
            "expires_at": moment(row.token_expires_at),
            "expires_in_s": round(max(expires_at - controller.clock.epoch(), 0.0), 3),
            "poll_interval_s": options.base_interval,
            "min_interval_s": options.span("min_interval"),
            "heartbeat_timeout_s": options.span("heartbeat_timeout"),
            "artefact_limit": controller.artefacts.limit,
            "ws": f"{request.scope.get('root_path', '')}/api/workers/ws",
        }
        return answer(registered, 201)

    def view(row: WorkerRow) -> dict[str, Any]:
        return worker_view(row, online=registry.is_online(row), last_seen=registry.last_seen(row))

    @router.get("/api/workers", **described("List workers", schema.WorkerPage, 422))
    async def list_workers(
        request: Request,
        state: schema.WorkerState | None = None,
        limit: Limit = PAGE,
        after: After = None,
    ) -> Response:
        await controller.access.caller(request, *SEE)
        await registry.write_down()  # so that a worker seen just now is online
        rows = await controller.storage.list_workers(
            live=None if state is None else state != "offline",
            live_s=options.span("heartbeat_timeout"),
            drain=None if state in (None, "offline") else state == "draining",
            limit=limit,
            after=after,
        )
        following = rows[-1].id if len(rows) == limit else None
        return answer({"workers": [view(row) for row in rows], "next": following})

    @router.get("/api/workers/{worker_id}", **described("Show a worker", schema.WorkerView, 404))
    async def get_worker(request: Request, worker_id: str) -> Response:
        await controller.access.caller(request, *SEE, worker=worker_id)
        row = await controller.storage.worker(checked_id(worker_id, "worker"))
        if row is None:
            raise no_such("worker", worker_id)
        return answer(view(row))

    @router.post(
        "/api/workers/{worker_id}/unregister",
        **described("Unregister a worker; its jobs go to others", schema.Unregistered, 404),
    )
    async def unregister(request: Request, worker_id: str) -> Response:
        who = await controller.access.caller(request, "admin", worker=worker_id)
        row = await controller.storage.worker(checked_id(worker_id, "worker"))
        given_back = await controller.unregister(worker_id)
        if given_back is None:
            raise no_such("worker", worker_id)
        name = "" if row is None else row.name
        await controller.access.note(request, who, "worker.unregister", worker_id, name)
        return answer({"given_back": given_back})

    @router.post(
        "/api/workers/{worker_id}/drain",
        **described(
            "Give a worker no more jobs, or give it some again",
            schema.DrainedView,
            404,
            body=schema.Drain,
        ),
        description="It finishes what it runs, goes on polling and stays registered, but gets no "
        'more jobs until `{"drain": false}` undoes it, which needs the scope `operate`: with its '
        "own token a worker can only drain itself. A worker that registers again, as after a "
        "restart, gets jobs again.",
    )
    async def drain(request: Request, worker_id: str) -> Response:
        who = await controller.access.caller(request, "operate", worker=worker_id)
        wanted = (await read_model(request, options.body_limit, schema.Drain)).drain
        if not wanted:  # a worker may drain itself, but not undo what an operator decided
            who.must_have("operate")
        row = await registry.drain(checked_id(worker_id, "worker"), wanted)
        if row is None:
            raise no_such("worker", worker_id)
        await controller.access.note(
            request, who, "worker.drain", worker_id, f"{row.name}: {'on' if wanted else 'off'}"
        )
        return answer({**view(row), "what_follows": _what_follows(row)})

    return router


def _what_follows(row: WorkerRow) -> str:
    """What the drain does, as text for the person who asked for it."""
    if not row.drain:
        return "It gets jobs again, from its next poll on."
    return (
        "It gets no more jobs, finishes what it runs, and stays registered. To undo this, "
        f'POST {{"drain": false}} to /api/workers/{row.id}/drain; to end it, stop its agent.'
    )
