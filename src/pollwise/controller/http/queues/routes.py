"""Any named queue of the store over HTTP: the server side of `http://` queue URLs.

Under /api/queue/{name}:

    POST …/put          {"jobs": [{"kind", "payload", "headers", …}]}          → {"ids", "fresh"}
    POST …/claim        {"worker", "limit", "lease", "hold", "kinds"}          → {"claims"}
    POST …/abandon      {"nonce"} of a held claim                              → {}
    POST …/settle       {"settlements": [claim + {"action", "result"}]}        → {"lost"}
    POST …/renew        {"lease", "claims": [claim + {"progress"}]}            → {"lost", "cancel"}
    POST …/endings      {"ids"}; ask again for the rest                 → {"endings", "rest"}
    POST …/predecessors  {"id"}: how its predecessors ended              → {"predecessors"}
    POST …/flow         {"id"} of any job of a flow                            → {"jobs"}
    POST …/cancel       {"ids"}                                                → {"states"}
    POST …/retry, drop  {"ids"}, or null for all dead jobs                     → {"count"}
    POST …/retry, drop, cancel  {"filter": as in GET …/jobs}        → {"count", "next"}
    POST …/retry  also {"anyway": true}: dead jobs too that are compensated
    POST …/pause        {"kind", "by", "why"}; kind null: the whole queue      → {}
    POST …/resume       {"kind"}                                               → {"resumed"}
    GET  …/pauses                                                              → {"pauses"}
    GET  …/breakers     that are not closed                                    → {"breakers"}
    POST …/swap-breaker  {"kind", "expected", "value"}, by workers             → {"done", "value"}
    POST …/close-breaker  {"kind"}                                             → {"closed"}
    GET  …/schedules    as they are stored                          → {"schedules", "stamp"}
    POST …/set-schedule  {"name", "expected", "value"}, null: none             → {"done", "value"}
    POST …/run-schedule  {"name", "expected"}                           → {"done", "value", "job"}
    POST …/tick         {"name", "value", "undeclared"}, by workers       → what became of it
    GET  …/workers      those that run                                         → {"workers"}
    POST …/concurrency  {"worker", "concurrency"}                              → {"workers"}
    POST …/record-worker  {"worker", "ttl", "history", "paces"}: about itself  → {"concurrency"}
    POST …/forget-worker  {"worker", "history", "paces"}: it stops             → {}
    POST …/fold-history   the upkeep of the history, by workers                → {"more"}
    GET  …/history      ?since&by&kind&kind&worker                             → {"points"}
    GET  …/paces        what workers learned, for those that start             → {"paces"}
    GET  …/stats        ?by=kind, ?most                                         → counts
    GET  …/jobs         ?state&kind&kind&worker&key&error&older_than&newer_than&limit&after
                                                              → {"jobs", "next", "examined"}
    GET  …/arrivals     ?limit&after: an id; what was put after it, in put order  → {"jobs"}
    GET  …/names        the queues of the store that the token may read        → {"names"}
    GET  …/jobs/{id}                                                           → {"job"}
    WS   …/ws           hints, both ways

The scope `put` may put. `worker` may claim, settle, renew, put the ticks of schedules, share
breakers and store a worker's record. `operate` may cancel, retry, drop, pause, close breakers, set
schedules and change the concurrency of workers. All may read (a worker only counts, and reads
schedules, breakers and predecessors). They may do so only in the queues that the setting
`controller.queues` names. An admin may use every queue except that of the controller's own jobs,
which nobody may.

To settle or renew a claim, send back its id, kind, key, attempt, token and receipt as they were.
The receipt is valid only with the token that claimed (a rotated one is the same token); the claim
of anybody else is `lost`. A settlement's action is done, retry, dead, cancelled or give_back. A
progress is {"fraction", "note"}. Views never show the token or the receipt of a claim.

An answer may be lost after its call was carried out. So put, claim and cancel take a `nonce`:
repeated with the same one within a minute, they return the same answer. `X-Pollwise-Instance`
identifies the process, which must be the same.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from pollwise.controller.http.answers import HttpError, encoded
from pollwise.controller.http.queues import breakers, limits, schedules, steering, views
from pollwise.controller.http.queues.answers import Answers, HeldAnswer
from pollwise.controller.http.queues.bodies import (
    body_of,
    explained_error,
    message_from,
    nonce_from,
    seconds_from,
)
from pollwise.controller.http.queues.hints import HintExchange, client_sends_hints
from pollwise.controller.http.queues.opened import OpenQueue, OpenQueues
from pollwise.controller.http.requests import disconnected, error_response, known_query_only
from pollwise.controller.http.routes.push import refuse_socket
from pollwise.controller.security.claims import ClaimSeals
from pollwise.controller.workers.polling import pause_held
from pollwise.durations import seconds
from pollwise.errors import ConfigError, LeaseLost, PollwiseError
from pollwise.queues.base import Queue
from pollwise.queues.flows.keeping import kept_at_least
from pollwise.queues.http import wire
from pollwise.runtime.clock import Clock
from pollwise.runtime.hints import Hint
from pollwise.runtime.jobs import Claim, Settlement, checked_name

#: The queue of the controller's own jobs.
AGENTS = "agents"
#: The longest time that a claim is held, in seconds.
HOLD_MAX = 60.0
#: The most claims held at a time, and the most WebSockets.
HELD_MAX = 10_000
LISTENERS_MAX = 10_000
#: How long finished jobs are safe from a prune, in seconds, unless their own time is over.
KEEP = 7 * 86400.0

#: Returns who sent a request; raises `HttpError` without one of the scopes.
Authorise = Callable[[HTTPConnection, Sequence[str]], Awaitable[str]]
#: Returns the queues, of these names, that the sender of a request may use.
Readable = Callable[[HTTPConnection, list[str]], Awaitable[list[str]]]

Work = Callable[[Queue, Request, dict[str, Any], str], Awaitable[Any]]

PUT = ("put",)
WORK = ("worker",)
READ = ("read", "put", "operate", "worker")
READ_JOBS = ("read", "put", "operate")
OPERATE = ("operate",)
SIGNAL = ("put", "operate", "worker")


class QueueApi:
    """The routes of the store's queues.

    open: opens a named queue of the store; see `OpenQueues`.
    authorise: returns who sent a request.
    check_files: raises if what is put now would be lost.
    readable: returns the queues, of these names, that the sender may use; by default all.
    read_key: returns the key that seals claims (`ClaimSeals`); by default it is this process's own.
    keep: how long finished jobs are safe from a prune, unless the settlement said how long.
    """

    def __init__(
        self,
        open: OpenQueue,
        authorise: Authorise,
        clock: Clock | None = None,
        check_files: Callable[[], Awaitable[None]] | None = None,
        read_key: Callable[[], Awaitable[bytes]] | None = None,
        readable: Readable | None = None,
        keep: float = KEEP,
    ) -> None:
        self._queues = OpenQueues(open)
        self._keep = keep
        self._authorise = authorise
        self._readable = readable or _all_names
        self._check_files = check_files
        self._clock = clock or Clock()
        self._exchanges: dict[str, HintExchange] = {}
        self._answers = Answers(self._clock)
        self._seals = ClaimSeals(read_key or _own_key)
        self._listening = 0
        self._ends: set[asyncio.Event] = set()
        self._waiting: set[Hint] = set()
        self._stopping = False
        self.instance: str = secrets.token_hex(8)

    def routes(self, prefix: str = "/api/queue") -> list[BaseRoute]:
        """The routes, to be added to an application."""
        base = prefix + "/{name}"
        posts: dict[str, tuple[Work, Sequence[str]]] = {
            "put": (self._put, PUT),
            "claim": (self._claim, WORK),
            "abandon": (self._abandon, WORK),
            "settle": (self._settle, WORK),
            "renew": (self._renew, WORK),
            "prune": (self._prune, WORK),
            "endings": (views.endings, READ_JOBS),
            "predecessors": (views.predecessors, READ),
            "flow": (views.flow, READ_JOBS),
            "cancel": (self._cancel, OPERATE),
            "retry": (views.retry, OPERATE),
            "drop": (views.drop, OPERATE),
            "hint": (self._hint, SIGNAL),
            "pause": (steering.pause, OPERATE),
            "resume": (steering.resume, OPERATE),
            "concurrency": (steering.concurrency, OPERATE),
            "record-worker": (steering.record_worker, WORK),
            "forget-worker": (steering.forget_worker, WORK),
            "fold-history": (steering.fold_history, WORK),
            "set-limits": (limits.set_limits, OPERATE),
            "swap-breaker": (breakers.swap_breaker, WORK),
            "close-breaker": (breakers.close_breaker, OPERATE),
            "set-schedule": (schedules.set_schedule, OPERATE),
            "run-schedule": (schedules.run_schedule, OPERATE),
            "tick": (schedules.tick, WORK),
        }
        gets: dict[str, tuple[Work, Sequence[str], *tuple[str, ...]]] = {
            "": (self._about, READ),
            "/stats": (views.stats, READ, "by", "most"),
            "/names": (self._names, READ),
            "/jobs": (views.jobs, READ_JOBS, *wire.FILTER),
            "/arrivals": (views.arrivals, READ_JOBS, *views.ARRIVALS),
            "/jobs/{job_id:path}": (views.job, READ_JOBS),
            "/pauses": (steering.pauses, READ),
            "/limits": (limits.limits, READ),
            "/breakers": (breakers.breakers, READ),
            "/limit-use": (limits.limit_use, READ_JOBS, "kind", "groups"),
            "/schedules": (schedules.schedules, READ),
            "/workers": (steering.workers, READ_JOBS),
            "/paces": (steering.paces, WORK),
            "/history": (steering.history, READ_JOBS, "since", "by", "kind", "worker"),
        }
        return [
            *(Route(f"{base}/{n}", self._route(*at), methods=["POST"]) for n, at in posts.items()),
            *(Route(f"{base}{n}", self._route(*at), methods=["GET"]) for n, at in gets.items()),
            WebSocketRoute(f"{base}/ws", self._ws),
        ]

    def stop_waiting(self) -> None:
        """End held claims and WebSockets, and hold no more, so that a server can stop."""
        self._stopping = True
        for end in self._ends:
            end.set()
        for hint in list(self._waiting):
            hint.give()

    async def close(self) -> None:
        """End what is held, and close the queues."""
        self.stop_waiting()
        await self._answers.close()
        await self._queues.close()

    def _route(
        self, work: Work, scopes: Sequence[str], *query: str
    ) -> Callable[[Request], Awaitable[Response]]:
        known = ("keep", *query)

        async def route(request: Request) -> Response:
            headers = {"X-Pollwise-Instance": self.instance, "Cache-Control": "no-store"}
            try:
                who = await self._authorise(request, scopes)
                meant = request.headers.get("x-pollwise-instance")
                if meant is not None and meant != self.instance:
                    raise HttpError(
                        412,
                        "another_controller",
                        "the first try went to another controller, or it was restarted since",
                        "Check whether it was carried out before you try again.",
                    )
                known_query_only(request, known)
                with self._queue(request, who) as queue:
                    body = await body_of(request) if request.method == "POST" else {}
                    with client_sends_hints(body):
                        content = await work(queue, request, body, who)
            except (HttpError, PollwiseError) as error:
                return error_response(explained_error(error), headers)
            data = content if isinstance(content, bytes) else encoded(content)
            return Response(data, 200, headers, "application/json")

        return route

    def _queue(self, connection: HTTPConnection, who: str) -> AbstractContextManager[Queue]:
        """The queue that a request names, open until the block ends."""
        name = checked_name(connection.path_params["name"], "queue", ConfigError)
        if name == AGENTS:
            raise HttpError(
                403,
                "controllers_own",
                f"the queue {AGENTS!r} holds the controller's own jobs",
                "Put them with POST /api/jobs and run them with `pollwise agent`, or use another "
                "queue.",
            )
        return self._queues.using(name, who, keeps=_keep_in(connection) is not None)

    def _say(self, queue: Queue, message: str, *, works: bool) -> None:
        """Forward a client's message to all that listen to a queue, if it may send it."""
        exchange = self._exchanges.get(queue.name)
        if exchange is not None:
            exchange.take(message, None, works=works)

    # Putting

    async def _put(self, queue: Queue, _: Request, body: dict[str, Any], who: str) -> bytes:
        jobs = wire.jobs_from(body.get("jobs"))
        message = message_from(body.get("hint"))

        async def put() -> bytes:
            if self._check_files is not None:
                await self._check_files()
            with self._queues.still_using(queue), client_sends_hints(body):
                ids, fresh = await queue.put_counted(jobs)
            if message is not None and fresh:
                self._say(queue, message, works=False)
            return encoded({"ids": ids, "fresh": fresh})

        return await self._answers.once((who, queue.name, nonce_from(body)), put)

    # Claiming

    async def _claim(self, queue: Queue, request: Request, body: dict[str, Any], who: str) -> bytes:
        worker, limit = body.get("worker"), body.get("limit", 1)
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise ConfigError("limit must be a whole number")
        lease = seconds_from(body.get("lease", 60.0), "lease")
        hold = min(seconds_from(body.get("hold", 0.0), "hold"), HOLD_MAX)
        kinds = wire.names_from(body.get("kinds"), "kinds")
        check = message_from(body.get("check"))
        ahead = body.get("ahead") is True
        if self._stopping or len(self._waiting) >= HELD_MAX:
            hold = 0.0
        if not isinstance(worker, str):
            raise ConfigError("worker must be text: the name of the worker that claims")
        await self._seals.ready()
        if check is not None:
            self._say(queue, check, works=True)

        async def claim() -> tuple[bytes, Sequence[Claim]]:
            with self._queues.still_using(queue), client_sends_hints(body):
                now = partial(queue.claim, worker, limit, lease, 0, kinds, ahead=ahead)
                claims = await self._hold(queue, now, hold, kinds)
            sends_at = queue.hints().sends_at if len(claims) < limit else None
            due_in = None if sends_at is None else max(sends_at - self._clock.now(), 0.0)
            sealed = [wire.claim_to(self._seals.seal(each, who)) for each in claims]
            answer: dict[str, Any] = {"claims": sealed, "due_in": due_in}
            if queue._limited:
                answer["limited"] = sorted(queue._limited)
            return encoded(answer), claims

        held = self._answers.hold((who, queue.name, nonce_from(body)), claim)
        if not hold:
            return await asyncio.shield(held.task)
        return await self._answer_while_there(queue, request, held)

    async def _hold(
        self,
        queue: Queue,
        claim_now: Callable[[], Awaitable[list[Claim]]],
        hold: float,
        kinds: Sequence[str] | None,
    ) -> list[Claim]:
        """Claim jobs; if there are none, wait for some."""
        if not hold:
            return await claim_now()
        hints, clock = queue.hints(), self._clock
        hint = Hint(None if kinds is None else frozenset(kinds))
        until = clock.now() + hold
        hints.join(hint)
        self._waiting.add(hint)
        try:
            while True:
                hint.forget()
                hint.polling = True
                claims = await claim_now()
                hint.polling = False
                left = until - clock.now()
                if claims or left <= 0 or self._stopping:
                    return claims
                await pause_held(hints, hint, clock, left)
        except asyncio.CancelledError:
            hints.leave(hint)
            hints.send(1, kinds)  # its hint may have just come: another poller gets it
            raise
        finally:
            self._waiting.discard(hint)
            hints.leave(hint)

    async def _answer_while_there(self, queue: Queue, request: Request, held: HeldAnswer) -> bytes:
        """The answer to a held claim; if the client is gone first, nothing stays claimed."""
        gone = asyncio.ensure_future(disconnected(request.receive))
        try:
            await asyncio.wait([held.task, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            over = gone.done()
            gone.cancel()
            if over or not held.task.done():
                await self._give_back(queue, held)
        if over:
            raise HttpError(400, "gone", "the client is gone", "Try again.")
        return await asyncio.shield(held.task)

    async def _abandon(self, queue: Queue, _: Request, body: dict[str, Any], who: str) -> Any:
        """End a claim that the client no longer wants; nothing stays claimed."""
        held = self._answers.take((who, queue.name, nonce_from(body)))
        if held is not None:
            await self._give_back(queue, held)
        return {}

    async def _give_back(self, queue: Queue, held: HeldAnswer) -> None:
        self._answers.forget(held)
        held.task.cancel()
        await asyncio.wait([held.task])
        if held.task.cancelled() or held.task.exception() is not None or held.given_back:
            return
        held.given_back = True
        with suppress(LeaseLost):
            await queue.settle([Settlement.give_back(claim) for claim in held.claims])

    # Settling

    async def _settle(self, queue: Queue, request: Request, body: dict[str, Any], who: str) -> Any:
        given = body.get("settlements")
        if not isinstance(given, list):
            raise ConfigError("settlements must be a list of objects with id, token and action")
        await self._seals.ready()
        read = [wire.settlement_from(each, queue.name) for each in given]
        claims, lost = self._seals.open_all([each.claim for each in read], who)
        pairs = zip(read, claims, strict=True)
        settlements = [replace(each, claim=claim) for each, claim in pairs if claim is not None]
        keep = _keep_in(request)
        if keep is not None:
            settlements = kept_at_least(settlements, keep)
        if not queue.capabilities.results:  # the work is done, and the worker cannot know
            settlements = [replace(each, result=None, keep=None) for each in settlements]
        try:
            await queue.settle(settlements)
        except LeaseLost as error:
            lost += error.lost
        return {"lost": lost}

    async def _renew(self, queue: Queue, _: Request, body: dict[str, Any], who: str) -> Any:
        claims, progress = wire.renewals_from(body.get("claims"), queue.name)
        lease = seconds_from(body.get("lease"), "lease")
        await self._seals.ready()
        opened, lost = self._seals.open_all(claims, who)
        theirs = [claim for claim in opened if claim is not None]
        ids = {claim.job.id for claim in theirs}
        said = {job_id: each for job_id, each in progress.items() if job_id in ids}
        renewal = await queue.renew(theirs, lease, said)
        return {"lost": [*lost, *renewal.lost], "cancel": renewal.cancel}

    # Reading

    async def _about(self, queue: Queue, *_: object) -> Any:
        return {"name": queue.name, "capabilities": asdict(queue.capabilities)}

    async def _names(self, queue: Queue, request: Request, *_: object) -> Any:
        names = [name for name in await queue.names() if name != AGENTS]
        return {"names": await self._readable(request, names)}

    async def _cancel(self, queue: Queue, _: Request, body: dict[str, Any], who: str) -> bytes:
        async def cancel() -> bytes:
            with self._queues.still_using(queue):
                return encoded(await views.cancel(queue, body))

        return await self._answers.once((who, queue.name, nonce_from(body)), cancel)

    async def _prune(self, queue: Queue, request: Request, *_: object) -> Any:
        """Delete finished jobs whose time is over.

        The settlement of a job says how long it is kept. Other jobs, such as those that an operator
        cancelled or a worker of the store finished, may be of anybody: they are safe for as long as
        the controller keeps jobs, however short the `keep` of the call is.
        """
        keep = _keep_in(request)
        return {"count": await queue._prune(None if keep is None else max(keep, self._keep))}

    # Hints

    async def _hint(self, queue: Queue, request: Request, body: dict[str, Any], who: str) -> Any:
        message = message_from(body.get("message"))
        if message is not None:
            self._say(queue, message, works=await self._works(request))
        return {}

    async def _works(self, connection: HTTPConnection) -> bool:
        """True if its token may claim jobs."""
        try:
            await self._authorise(connection, WORK)
        except HttpError as error:
            if error.status != 403:
                raise
            return False
        return True

    async def _ws(self, socket: WebSocket) -> None:
        try:
            who = await self._authorise(socket, SIGNAL)
            works = await self._works(socket)
            known_query_only(socket, ("keep",))
            opened = self._queue(socket, who)
            if self._listening >= LISTENERS_MAX:
                raise HttpError(503, "too_many_listeners", "too many listeners", "Poll instead.")
            with opened as queue:
                await self._listen(socket, queue, works=works)
        except (HttpError, PollwiseError) as error:
            await refuse_socket(socket, explained_error(error))

    async def _listen(self, socket: WebSocket, queue: Queue, *, works: bool) -> None:
        await socket.accept()
        end = asyncio.Event()
        self._listening += 1
        self._ends.add(end)
        exchange = self._exchanges.setdefault(queue.name, HintExchange())
        try:
            await exchange.serve(socket, queue, end, works=works)
        finally:
            self._listening -= 1
            self._ends.discard(end)
            if not exchange and self._exchanges.get(queue.name) is exchange:
                del self._exchanges[queue.name]


def _keep_in(connection: HTTPConnection) -> float | None:
    """For how long a call keeps the jobs that it ends, in seconds; None if it does not say."""
    text = connection.query_params.get("keep")
    return None if text is None else seconds(seconds_from(text, "keep"), "keep", positive=True)


async def _all_names(_: HTTPConnection, names: list[str]) -> list[str]:
    return names


async def _own_key() -> bytes:
    return secrets.token_bytes(32)
