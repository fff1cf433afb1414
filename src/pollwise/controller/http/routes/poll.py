"""The poll route: `GET` and `POST /api/workers/poll`, as a plain ASGI endpoint.

A FastAPI route takes three times as long, and most requests are polls that find nothing.
"""

from __future__ import annotations

import hmac
import re
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from pollwise.controller.http import schema
from pollwise.controller.http.answers import HttpError, encoded
from pollwise.controller.http.requests import (
    checked,
    checked_query,
    disconnected,
    error_response,
    parsed,
    read_body,
)
from pollwise.controller.http.schema import errors
from pollwise.controller.http.views import work_view
from pollwise.controller.workers.polling import LogText, PollRequest, PollResult
from pollwise.controller.workers.registry import HeldRun, KnownWorker
from pollwise.controller.workers.runs import RunReport
from pollwise.runtime.decoding import CutText
from pollwise.runtime.events import PollAnswered
from pollwise.runtime.http import address_of
from pollwise.runtime.jobs import encode

if TYPE_CHECKING:
    from pollwise.controller.controller import Controller

Headers = list[tuple[bytes, bytes]]

#: How many encoded answers to empty polls are cached.
READY_MAX = 500

_PLAIN_QUERY = re.compile(rb"worker_id=([0-9a-f]{32})\Z")
_JSON = (b"content-type", b"application/json")
_NOT_STORED = (b"cache-control", b"no-store")


class PollRoute:
    """The endpoint, an ASGI application."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        #: (next_poll_s, several) -> ETag, head with body, head of a 304
        self._ready: dict[tuple[float, bool], tuple[bytes, Headers, bytes, Headers]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        controller = self._controller
        began = controller.clock.now()
        known: KnownWorker | None = None
        authorization = if_none_match = b""
        try:
            for name, value in scope["headers"]:
                if name == b"authorization":
                    authorization = value
                elif name == b"if-none-match":
                    if_none_match = value
            posted = scope["method"] == "POST"
            if not posted:
                worker_id, ask = _from_query(scope["query_string"])
                known = self._known_from_memory(worker_id, authorization)
                if known is None:
                    await controller.start()
                    who = await controller.auth.caller(authorization)
                    known = await controller.access.worker_of(who, worker_id)
                    began = controller.clock.now()  # reading the state may have taken time
                controller.registry.seen(known, address_of(scope), began)
                controller.poller.admit(known, ask, began)
                if ask.running is None:
                    answer = controller.poller.quick(known, ask.max_jobs, ask.wait, began)
                    if answer is not None:
                        await self._answer_empty(answer, ask.max_jobs, if_none_match, send)
                        if not controller.awake:
                            controller.began()
                        self._emit(known, "empty", 0, began)
                        return
            else:
                await controller.start()
                who = await controller.auth.caller(authorization)  # before anything is read
                body = await read_body(Request(scope, receive), controller.options.body_limit)
                worker_id, ask = _from_body(parsed(body or b"null"))
                known = await controller.access.worker_of(who, worker_id)
                controller.registry.seen(known, address_of(scope))
                controller.poller.admit(known, ask, controller.clock.now())
            controller.began()
            answer = await controller.poller.answer(known, ask, lambda: disconnected(receive))
            if answer.is_empty and not answer.drain and not posted:
                await self._answer_empty(answer, ask.max_jobs, if_none_match, send)
            else:
                body = encoded(await self._said(answer, ask, posted))
                head = [_JSON, (b"content-length", b"%d" % len(body)), _NOT_STORED]
                await _send(200, head, body, send)
            self._emit(known, "job" if answer.jobs else "empty", len(answer.jobs), began)
        except Exception as error:
            refused = controller.access.explained(error)
            if known is None and refused.status < 500:
                refused = await self._error_to_show(refused, authorization)
                if refused.status == 401 and not authorization:
                    refused.what_to_do = _how_to_register(scope)
            await error_response(refused)(scope, receive, send)
            if refused.code == "too_soon" and known is not None:
                self._emit(known, "too_soon", 0, began)

    def _known_from_memory(self, worker_id: str, authorization: bytes) -> KnownWorker | None:
        """The worker, if it is in memory and the token is its own and valid."""
        known = self._controller.registry.remembered(worker_id)
        if known is None or authorization[:7].lower() != b"bearer ":
            return None
        row = known.row
        digest = sha256(authorization[7:].strip()).hexdigest()
        if not hmac.compare_digest(digest, row.token_hash):
            return None
        expires = row.token_expires_at
        if expires is not None and expires <= self._controller.clock.epoch():
            return None
        return known

    async def _error_to_show(self, refused: HttpError, authorization: bytes) -> HttpError:
        """The error to answer: without a valid token, only that the token is invalid."""
        try:
            await self._controller.start()
            await self._controller.auth.caller(authorization)
        except Exception as error:
            return self._controller.access.explained(error)
        return refused

    async def _answer_empty(
        self, answer: PollResult, max_jobs: int, if_none_match: bytes, send: Send
    ) -> None:
        place = (answer.next_poll_s, max_jobs > 1)
        ready = self._ready.get(place)
        if ready is None:
            if len(self._ready) >= READY_MAX:
                self._ready.clear()
            ready = self._ready[place] = _empty(answer.next_poll_s, max_jobs > 1)
        etag, head, body, unchanged = ready
        if if_none_match == etag:
            await _send(304, unchanged, b"", send)
        else:
            await _send(200, head, body, send)

    async def _said(self, answer: PollResult, ask: PollRequest, posted: bool) -> dict[str, Any]:
        jobs = [await self._work(run) for run in answer.jobs]
        said: dict[str, Any] = {"job": jobs[0] if jobs else None}
        if ask.max_jobs > 1:
            said["jobs"] = jobs
        said["next_poll_s"] = answer.next_poll_s
        said["cancel"] = list(answer.cancel)
        said["drain"] = answer.drain
        if posted:
            said["lost"] = answer.lost
        return said

    async def _work(self, run: HeldRun) -> dict[str, Any]:
        """A job as its worker receives it; files that came with it are listed."""
        controller = self._controller
        names: list[str] = []
        if run.terms.inputs is not None:
            found = await controller.artefacts.list(run.terms.inputs, input=True)
            names = [each.name for each in found]
        view = work_view(run, controller.runs.lease_s, names)
        if type(view["payload"]) is CutText:  # the run was found in a list
            info = await controller.queue.get(run.job_id)
            view["payload"] = None if info is None else info.job.payload
        return view

    def _emit(self, known: KnownWorker, result: str, found: int, began: float) -> None:
        controller = self._controller
        if controller.events.wants(PollAnswered):
            took = controller.clock.now() - began
            controller.events.emit(
                PollAnswered(controller.source, known.row.id, result, found, took)
            )


def _how_to_register(scope: Scope) -> str:
    """What somebody does who polls without a token: the two commands that lead to one."""
    host, port = scope.get("server") or ("", None)
    here = f"http://{host}:{port}" if host == "127.0.0.1" and port else "https://CONTROLLER"
    return (
        "Register a worker first, then poll with the worker_id and the token of the answer: "
        "(1) pollwise serve token create worker --name test --store STORE; "
        f"(2) curl {here}/api/workers/register -H 'Authorization: Bearer TOKEN' "
        """-d '{"name": "test"}'."""
    )


def _empty(next_poll_s: float, several: bool) -> tuple[bytes, Headers, bytes, Headers]:
    said: dict[str, Any] = {"job": None}
    if several:
        said["jobs"] = []
    body = encoded({**said, "next_poll_s": next_poll_s, "cancel": [], "drain": False})
    etag = f'"{next_poll_s:g}{"s" if several else ""}"'.encode()
    unchanged = [(b"etag", etag), _NOT_STORED]
    return etag, [_JSON, (b"content-length", b"%d" % len(body)), *unchanged], body, unchanged


async def _send(status: int, headers: Headers, body: bytes, send: Send) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _from_query(query: bytes) -> tuple[str, PollRequest]:
    """The worker and what it asks for, from the query of a GET."""
    if plain := _PLAIN_QUERY.match(query):  # nearly all polls
        return plain[1].decode(), PollRequest()
    try:
        given = parse_qsl(query.decode("ascii"), keep_blank_values=True, max_num_fields=20)
    except ValueError:
        raise HttpError(
            400, "bad_query", "the query cannot be read", "Encode it as in a URL."
        ) from None
    asked = checked_query(schema.PollQuery, dict(given))
    running = None if asked.running is None else dict.fromkeys(asked.running)
    return asked.worker_id, PollRequest(asked.max, asked.wait, running)


def _from_body(body: object) -> tuple[str, PollRequest]:
    """The worker and what it asks for and reports, from the body of a POST."""
    asked = checked(schema.PollBody, body)
    ask = PollRequest(
        asked.max,
        asked.wait,
        None
        if asked.running is None
        else {each.job_id: each.as_progress() for each in asked.running},
        [_finished(each) for each in asked.finished or ()],
        [
            LogText(each.job_id, each.log.offset, each.log.text)
            for each in asked.running or ()
            if each.log is not None
        ],
    )
    return asked.worker_id, ask


def _finished(given: schema.FinishedReport) -> RunReport:
    result = None if given.result is None else encode(given.result, "job", "result")
    error = given.error
    if error is None and given.state == "failed" and given.exit_code is not None:
        error = f"it ended with exit code {given.exit_code}"
    return RunReport(given.job_id, given.state, result, error, given.as_progress())


#: Describes the route for the schema; it is never called.
description = APIRouter(tags=["workers"])
_FOUND: dict[str, Any] = {
    "model": schema.PollAnswer,
    "description": "A job, or none.",
    "headers": {"ETag": {"schema": {"type": "string"}}},
}
_TOO_SOON: dict[str, Any] = {
    **errors(429)[429],
    "headers": {"Retry-After": {"schema": {"type": "integer"}}},
}


@description.get(
    "/api/workers/poll",
    operation_id="poll",
    summary="Ask for a job",
    description="After a poll that found nothing, wait at least min_interval_s; the answer "
    "suggests when to poll again.",
    responses={
        200: _FOUND,
        304: {"description": "Still no job (If-None-Match)."},
        **errors(400, 404, 422),
        429: _TOO_SOON,
    },
)
def _get(
    asked: Annotated[schema.PollQuery, Query()],
    if_none_match: Annotated[
        str | None, Header(alias="If-None-Match", description="The ETag of the previous answer.")
    ] = None,
) -> None: ...


@description.post(
    "/api/workers/poll",
    operation_id="poll_and_report",
    summary="Report, and ask for a job",
    responses={200: _FOUND, **errors(400, 404, 413, 422), 429: _TOO_SOON},
)
def _post(body: schema.PollBody) -> None: ...
