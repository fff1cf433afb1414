"""The poll route: `GET` and `POST /api/workers/poll`, as a plain ASGI endpoint.

A FastAPI route takes three times as long, and most requests are polls that find nothing. The schema
of the route is in `schema`.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import re
from collections.abc import Awaitable, Callable, MutableMapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from pollwise.controller.http.answers import HttpError, encoded, error_for, no_such, unexpected
from pollwise.controller.http.requests import (
    BODY_WITHIN,
    gone,
    invalid,
    is_id,
    is_job_id,
    parsed,
    plain_only,
    too_large,
    too_slow,
)
from pollwise.controller.http.views import work_view
from pollwise.controller.security.auth import Caller
from pollwise.controller.workers.polling import LogText, PollRequest, PollResult, checked_max
from pollwise.controller.workers.registry import HeldRun, KnownWorker
from pollwise.controller.workers.runs import RunReport
from pollwise.errors import PollwiseError
from pollwise.runtime.events import PollAnswered
from pollwise.runtime.jobs import Progress, encode

if TYPE_CHECKING:
    from pollwise.controller.controller import Controller

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

#: The most entries of `running` and of `finished` in one poll.
REPORTS_MAX = 1000
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
            if scope["method"] != "POST":
                asked = _query(scope["query_string"])
                known = self._known_at_once(asked[0], authorization)
                if known is None:
                    await controller.start()
                    known = await self._known(asked[0], await controller.auth.caller(authorization))
                    began = controller.clock.now()  # reading the state may have taken time
                max_jobs, wait, running = asked[1:]
                controller.registry.seen(known, _address(scope), began)
                if running is None:
                    answer = controller.poller.quick(known, max_jobs, wait, began)
                    if answer is not None:
                        await self._answer_empty(answer, max_jobs, if_none_match, send)
                        if not controller.awake:
                            controller.began()
                        self._emit(known, "empty", 0, began)
                        return
                ask = PollRequest(max_jobs, wait, running)
            else:
                await controller.start()
                who = await controller.auth.caller(authorization)  # before anything is read
                body = await _body(scope, receive, controller.options.body_limit)
                worker_id, ask = _ask_from(body, controller.options.body_limit)
                known = await self._known(worker_id, who)
                controller.registry.seen(known, _address(scope))
            controller.began()
            answer = await controller.poller.answer(known, ask, lambda: _gone(receive))
            await self._answer(answer, ask, scope["method"] == "POST", if_none_match, send)
            self._emit(known, "job" if answer.jobs else "empty", len(answer.jobs), began)
        except HttpError as refused:
            if known is None:
                refused = await self._error_to_show(refused, authorization)
            await _refuse(refused, send)
            if refused.code == "too_soon" and known is not None:
                self._emit(known, "too_soon", 0, began)
        except PollwiseError as error:
            controller.log_failure(error)
            await _refuse(error_for(error), send)
        except Exception as error:
            controller.log_failure(error)
            await _refuse(unexpected(), send)

    def _known_at_once(self, worker_id: str, authorization: bytes) -> KnownWorker | None:
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

    async def _known(self, worker_id: str, who: Caller) -> KnownWorker:
        who.must_be_worker(worker_id)
        registry = self._controller.registry
        known = await registry.get(worker_id) if is_id(worker_id) else None
        if known is None:
            raise no_such("worker", worker_id)
        return known

    async def _error_to_show(self, refused: HttpError, authorization: bytes) -> HttpError:
        """The error to answer: without a valid token, only that the token is invalid."""
        try:
            await self._controller.start()
            await self._controller.auth.caller(authorization)
        except HttpError as unauthorized:
            return unauthorized
        except PollwiseError as error:
            self._controller.log_failure(error)
            return error_for(error)
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
            await send({"type": "http.response.start", "status": 304, "headers": unchanged})
            await send({"type": "http.response.body", "body": b""})
        else:
            await send({"type": "http.response.start", "status": 200, "headers": head})
            await send({"type": "http.response.body", "body": body})

    async def _answer(
        self, answer: PollResult, ask: PollRequest, posted: bool, if_none_match: bytes, send: Send
    ) -> None:
        if answer.is_empty and not answer.drain and not posted:
            await self._answer_empty(answer, ask.max_jobs, if_none_match, send)
            return
        jobs = [await self._work(run) for run in answer.jobs]
        said: dict[str, Any] = {"job": jobs[0] if jobs else None}
        if ask.max_jobs > 1:
            said["jobs"] = jobs
        said |= {
            "next_poll_s": answer.next_poll_s,
            "cancel": list(answer.cancel),
            "drain": answer.drain,
        }
        if posted:
            said["lost"] = answer.lost
        await _json(200, encoded(said), [_NOT_STORED], send)

    async def _work(self, run: HeldRun) -> dict[str, Any]:
        """A job as its worker receives it; files that came with it are listed."""
        controller = self._controller
        names: list[str] = []
        if run.terms.inputs is not None:
            found = await controller.artefacts.list(run.terms.inputs, input=True)
            names = [each.name for each in found]
        return work_view(run, controller.runs.lease_s, names)

    def _emit(self, known: KnownWorker, result: str, found: int, began: float) -> None:
        controller = self._controller
        if controller.events.wants(PollAnswered):
            took = controller.clock.now() - began
            controller.events.emit(
                PollAnswered(controller.source, known.row.id, result, found, took)
            )


def _empty(next_poll_s: float, several: bool) -> tuple[bytes, Headers, bytes, Headers]:
    said: dict[str, Any] = {"job": None}
    if several:
        said["jobs"] = []
    body = encoded({**said, "next_poll_s": next_poll_s, "cancel": [], "drain": False})
    etag = f'"{next_poll_s:g}{"s" if several else ""}"'.encode()
    unchanged = [(b"etag", etag), _NOT_STORED]
    return etag, [_JSON, (b"content-length", b"%d" % len(body)), *unchanged], body, unchanged


# Reading


def _query(query: bytes) -> tuple[str, int, float, dict[str, Progress | None] | None]:
    """The parameters of a GET: the worker, how many jobs, how long to wait, what runs."""
    worker_id, max_jobs, wait, running = "", 1, 0.0, None
    if plain := _PLAIN_QUERY.match(query):  # nearly all polls
        return plain[1].decode(), max_jobs, wait, running
    try:
        given = parse_qsl(query.decode("ascii"), keep_blank_values=True, max_num_fields=20)
    except ValueError:
        raise HttpError(
            400, "bad_query", "the query cannot be read", "Encode it as in a URL."
        ) from None
    for name, value in given:
        if name == "worker_id":
            worker_id = value
        elif name == "max":
            max_jobs = checked_max(_whole(name, value))
        elif name == "wait":
            wait = _seconds(name, value)
        elif name == "running":
            ids = [each for each in value.split(",") if each]
            if len(ids) > REPORTS_MAX:
                raise invalid(f"running lists more than {REPORTS_MAX} jobs")
            if not all(map(is_job_id, ids)):
                raise invalid("running must be ids of jobs, separated by commas")
            running = dict.fromkeys(ids)
        else:
            raise invalid(
                f"a poll has no parameter {name[:40]!r}; it has worker_id, max, wait and running"
            )
    if not worker_id:
        raise invalid("a poll needs the worker_id from the registration")
    return worker_id, max_jobs, wait, running


async def _body(scope: Scope, receive: Receive, limit: int) -> bytes:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise too_large(limit)
        if name == b"content-encoding":
            plain_only(value.decode("latin-1"))
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_WITHIN):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise gone()
                body += message.get("body", b"")
                if len(body) > limit:
                    raise too_large(limit)
                if not message.get("more_body"):
                    return bytes(body)
    except TimeoutError:
        raise too_slow(BODY_WITHIN) from None


def _ask_from(body: bytes, limit: int) -> tuple[str, PollRequest]:
    """The worker and the checked body of a POST."""
    given = parsed(body or b"null")
    if not isinstance(given, dict):
        raise invalid("the body must be an object with worker_id")
    unknown = given.keys() - {"worker_id", "max", "wait", "running", "finished"}
    if unknown:
        raise invalid(
            f"a poll has no field {min(map(str, unknown))[:40]!r}; the fields are worker_id, "
            "max, wait, running and finished"
        )
    worker_id = given.get("worker_id")
    if not isinstance(worker_id, str) or not worker_id:
        raise invalid("worker_id must be the text from the registration")
    max_jobs, wait = given.get("max", 1), given.get("wait", 0)
    if isinstance(max_jobs, bool) or not isinstance(max_jobs, int):
        raise invalid("max must be a whole number")
    running = given.get("running")
    reports = None if running is None else _reports(running, "running")
    logs = [log for each in reports or () if (log := _log(each)) is not None]
    ask = PollRequest(
        checked_max(max_jobs),
        _seconds("wait", wait),
        None if reports is None else {each["job_id"]: progress_of(each) for each in reports},
        [_finished(each, limit) for each in _reports(given.get("finished") or [], "finished")],
        logs,
    )
    return worker_id, ask


def _reports(given: object, name: str) -> list[dict[str, Any]]:
    if not isinstance(given, list) or len(given) > REPORTS_MAX:
        raise invalid(f"{name} must be a list of at most {REPORTS_MAX} objects")
    for each in given:
        job_id = each.get("job_id") if isinstance(each, dict) else None
        if not isinstance(job_id, str) or not is_job_id(job_id):
            raise invalid(f"{name} must be a list of objects with the job_id of a job")
    return given


def _log(given: dict[str, Any]) -> LogText | None:
    log = given.get("log")
    if log is None:
        return None
    offset, text = (log.get("offset"), log.get("text")) if isinstance(log, dict) else (None, None)
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
        raise invalid("log.offset must be a whole number of bytes, 0 or more")
    if not isinstance(text, str):
        raise invalid("log.text must be text")
    return LogText(given["job_id"], offset, text)


def _finished(given: dict[str, Any], limit: int) -> RunReport:
    state = given.get("state")
    if state not in ("done", "failed", "cancelled"):
        raise invalid(f"state = {str(state)[:40]!r} must be done, failed or cancelled")
    exit_code = given.get("exit_code")
    if exit_code is not None and (
        isinstance(exit_code, bool) or not isinstance(exit_code, int) or abs(exit_code) >= 2**31
    ):
        raise invalid("exit_code must be a whole number")
    result, error = given.get("result"), text_of(given, "error")
    if error is None and state == "failed" and exit_code is not None:
        error = f"it ended with exit code {exit_code}"
    return RunReport(
        given["job_id"],
        state,
        None if result is None else encode(result, "job", "result"),
        error,
        progress_of(given),
    )


def progress_of(given: dict[str, Any]) -> Progress | None:
    """The progress and the message of a report. Above 1, the progress is a percentage."""
    value, note = given.get("progress"), text_of(given, "message")
    if value is None:
        return None if note is None else Progress(None, note)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 100:
        raise invalid("progress must be a number from 0 to 1, or a percentage up to 100")
    return Progress(value / 100 if value > 1 else float(value), note)


def text_of(given: dict[str, Any], name: str) -> str | None:
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise invalid(f"{name} must be text")
    return value.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")[:2000]


def _whole(name: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > 9:
        raise invalid(f"{name} = {value[:40]!r} must be a whole number, 0 or more")
    return int(value)


def _seconds(name: str, value: object) -> float:
    try:
        number = float(value) if isinstance(value, (str, int, float)) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not 0 <= number < math.inf:
        raise invalid(f"{name} = {str(value)[:40]!r} must be a number of seconds, 0 or more")
    return number


# Answering


async def _gone(receive: Receive) -> None:
    """Returns when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refuse(refused: HttpError, send: Send) -> None:
    extra = [(k.lower().encode(), v.encode("latin-1")) for k, v in refused.headers.items()]
    await _json(refused.status, refused.body(), extra, send)


async def _json(status: int, body: bytes, extra: Headers, send: Send) -> None:
    headers = [_JSON, (b"content-length", b"%d" % len(body)), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""
