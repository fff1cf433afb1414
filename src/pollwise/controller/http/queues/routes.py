"""Any named queue of the store over HTTP: the other end of `http://` queue URLs.

    POST /api/queue/{name}/put      {"jobs": [{"kind", "payload", …}]}           → {"ids", "fresh"}
    POST /api/queue/{name}/claim    {"worker", "limit", "lease", "hold", "kinds"} → {"claims"}
    POST /api/queue/{name}/settle   {"settlements": [{"id", "token", "action"}]} → {"lost"}
    POST /api/queue/{name}/renew   {"claims": [{"id", "token"}], "lease"}        → {"lost"}
    GET  /api/queue/{name}/stats, …/jobs, …/jobs/{id};  POST …/retry, …/drop, …/prune
    WS   /api/queue/{name}/ws       hints, both ways

Tokens with the scopes submit and worker may use the queues that `controller.queues` names; the
others are for admins only. The queue of the controller's own jobs is refused to all: what happens
there has a meaning beyond the queue. Plain routes, for every call of a worker goes this way.

An answer may be lost after its call was carried out. So put and claim take a `nonce`: asked for
again under the same one, they answer the same again, for a while, and while this process lives;
`X-Pollwise-Instance` tells whether it is the same one.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from pollwise.controller.http.answers import Refused, encoded
from pollwise.controller.http.queues.answers import Answers, Held, lasting
from pollwise.controller.http.queues.hints import Exchange, Listener, client_sends_hints, is_proven
from pollwise.controller.http.queues.reading import (
    MESSAGE_MAX,
    json_answer,
    message_from,
    nonce_from,
    read_body,
    refusal,
    seconds_from,
)
from pollwise.durations import seconds
from pollwise.errors import ConfigError, LeaseLost, PollwiseError
from pollwise.queues.base import Queue
from pollwise.queues.http import wire
from pollwise.runtime.clock import Clock
from pollwise.runtime.hints import Hint
from pollwise.runtime.jobs import Claim, Settlement, checked_name

#: The queue of the controller's own jobs.
AGENTS = "agents"
#: The longest that a claim is held, in seconds.
HOLD_MAX = 60.0
#: A held claim looks again so often where it is not proven that news arrives, in seconds.
LOOK_EVERY = 5.0
#: The most claims held at a time, the most WebSockets, and the most queues that are open.
HELD_MAX = 10_000
LISTENERS_MAX = 10_000
QUEUES_MAX = 100
#: Something is sent so often, in seconds: many proxies cut what is silent for 30 s.
PING_EVERY = 20.0

#: Opens a named queue of the store, which keeps finished jobs for so long.
OpenQueue = Callable[[str, float | None], Queue]
#: Says who asks, or raises `Refused`; the scopes are those of which one is needed.
Authorise = Callable[[HTTPConnection, Sequence[str]], Awaitable[str]]

Work = Callable[[Queue, Request, dict[str, Any], str], Awaitable[Any]]

PUT = ("submit", "admin")
WORK = ("worker", "admin")
LOOK = ("submit", "worker", "admin")
MANAGE = ("admin",)


class QueueApi:
    """The routes of raw queues.

    open: opens a named queue of the store; each is opened once and closed by `close`.
    authorise: says who asks.
    can_keep: raises if what is put now would be lost.
    """

    def __init__(
        self,
        open: OpenQueue,
        authorise: Authorise,
        clock: Clock | None = None,
        can_keep: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._open = open
        self._authorise = authorise
        self._can_keep = can_keep
        self._clock = clock or Clock()
        self._queues: dict[tuple[str, float | None], Queue] = {}
        self._exchanges: dict[str, Exchange] = {}
        self._answers = Answers(self._clock)
        self._listening = 0
        self._ends: set[asyncio.Event] = set()
        self._waiting: set[Hint] = set()
        self._stopping = False
        self.instance = secrets.token_hex(8)

    def routes(self, prefix: str = "/api/queue") -> list[BaseRoute]:
        """The routes, to be put into an application beside others."""
        base = prefix + "/{name}"
        posts: dict[str, tuple[Work, Sequence[str]]] = {
            "put": (self._put, PUT),
            "claim": (self._claim, WORK),
            "cancel": (self._cancel, WORK),
            "settle": (self._settle, WORK),
            "renew": (self._renew, WORK),
            "prune": (self._prune, WORK),
            "retry": (self._retry, MANAGE),
            "drop": (self._drop, MANAGE),
            "hint": (self._hint, LOOK),
        }
        gets: dict[str, tuple[Work, Sequence[str]]] = {
            "": (self._about, LOOK),
            "/stats": (self._stats, LOOK),
            "/jobs": (self._jobs, PUT),
            "/jobs/{job_id:path}": (self._job, PUT),
        }
        return [
            *(Route(f"{base}/{n}", self._route(*at), methods=["POST"]) for n, at in posts.items()),
            *(Route(f"{base}{n}", self._route(*at), methods=["GET"]) for n, at in gets.items()),
            WebSocketRoute(f"{base}/ws", self._ws),
        ]

    def stop_waiting(self) -> None:
        """End held claims and WebSockets, and hold no more: a server that stops does not wait."""
        self._stopping = True
        for end in self._ends:
            end.set()
        for hint in list(self._waiting):
            hint.give()

    async def close(self) -> None:
        """End what is held, and close the queues."""
        self.stop_waiting()
        await self._answers.close()
        queues = list(self._queues.values())
        self._queues.clear()
        for queue in queues:
            await queue.close()

    def _route(self, work: Work, scopes: Sequence[str]) -> Callable[[Request], Awaitable[Response]]:
        async def route(request: Request) -> Response:
            headers = {"X-Pollwise-Instance": self.instance, "Cache-Control": "no-store"}
            try:
                who = await self._authorise(request, scopes)
                meant = request.headers.get("x-pollwise-instance")
                if meant is not None and meant != self.instance:
                    raise Refused(
                        412,
                        "another_controller",
                        "the first try went to another controller, or it was restarted since",
                        "Look whether it was carried out before you try again.",
                    )
                queue = self._queue(request)
                body = await read_body(request) if request.method == "POST" else {}
                with client_sends_hints(body):
                    content = await work(queue, request, body, who)
            except (Refused, PollwiseError) as error:
                no = error if isinstance(error, Refused) else refusal(error)
                return json_answer(no.status, no.body(), {**headers, **no.headers})
            data = content if isinstance(content, bytes) else encoded(content)
            return json_answer(200, data, headers)

        return route

    def _queue(self, connection: HTTPConnection) -> Queue:
        """The queue that a request names, open."""
        name = checked_name(connection.path_params["name"], "queue", ConfigError)
        if name == AGENTS:
            raise Refused(
                403,
                "controllers_own",
                f"the queue {AGENTS!r} holds the controller's own jobs",
                "Submit them by POST /api/jobs, run them by `pollwise agent`; or name another "
                "queue.",
            )
        text = connection.query_params.get("keep")
        keep = None if text is None else seconds(seconds_from(text, "keep"), "keep", positive=True)
        queue = self._queues.get((name, keep))
        if queue is None:
            if len(self._queues) >= QUEUES_MAX:
                raise Refused(
                    429, "too_many_queues", f"more than {QUEUES_MAX} queues are open",
                    "Use fewer names, or fewer values of `keep`.", {"Retry-After": "60"},
                )  # fmt: skip
            queue = self._queues[(name, keep)] = self._open(name, keep)
        return queue

    def _exchange(self, queue: Queue) -> Exchange:
        return self._exchanges.setdefault(queue.name, Exchange())

    # Putting

    async def _put(self, queue: Queue, _: Request, body: dict[str, Any], who: str) -> bytes:
        jobs = wire.jobs_from(body.get("jobs"))
        message = message_from(body.get("hint"))

        async def put() -> bytes:
            if self._can_keep is not None:
                await self._can_keep()
            with client_sends_hints(body):
                ids, fresh = await queue.put_counted(jobs)
            if message is not None and fresh:
                self._exchange(queue).say(message)
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
        if self._stopping or len(self._waiting) >= HELD_MAX:
            hold = 0.0
        if not isinstance(worker, str):
            raise ConfigError("worker must be text: the name of who claims")
        if check is not None:
            self._exchange(queue).say(check)

        async def claim() -> tuple[bytes, Sequence[Claim]]:
            with client_sends_hints(body):
                claims = await self._hold(queue, worker, limit, lease, hold, kinds)
            sends_at = queue.hints().sends_at if len(claims) < limit else None
            due_in = None if sends_at is None else max(sends_at - self._clock.now(), 0.0)
            said = {"claims": [wire.claim_to(each) for each in claims], "due_in": due_in}
            return encoded(said), claims

        held = self._answers.hold((who, queue.name, nonce_from(body)), claim)
        if not hold:
            return await lasting(held.task)
        return await self._answer_while_there(queue, request, held)

    async def _hold(
        self,
        queue: Queue,
        worker: str,
        limit: int,
        lease: float,
        hold: float,
        kinds: Sequence[str] | None,
    ) -> list[Claim]:
        """Claim, and wait for something where there is nothing."""
        if not hold:
            return await queue.claim(worker, limit, lease, 0, kinds)
        hints, clock = queue.hints(), self._clock
        hint = Hint(None if kinds is None else frozenset(kinds))
        until = clock.now() + hold
        hints.join(hint)
        self._waiting.add(hint)
        try:
            while True:
                hint.forget()
                hint.polling = True
                claims = await queue.claim(worker, limit, lease, 0, kinds)
                hint.polling = False
                left = until - clock.now()
                if claims or left <= 0 or self._stopping:
                    return claims
                hints.asleep(hint)
                rest = left if hints.proven_at is not None else min(left, LOOK_EVERY)
                await clock.sleep(rest, hint)
                hints.awake(hint)
        except asyncio.CancelledError:
            hints.leave(hint)
            hints.send(1, kinds)  # it may have been woken just now: the next shall look
            raise
        finally:
            self._waiting.discard(hint)
            hints.leave(hint)

    async def _answer_while_there(self, queue: Queue, request: Request, held: Held) -> bytes:
        """The answer to a held claim; should the client be gone first, nothing is claimed."""
        gone = asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait([held.task, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            over = gone.done()
            gone.cancel()
            if over or not held.task.done():
                await self._give_back(queue, held)
        if over:
            raise Refused(400, "gone", "the client is gone", "Ask again.")
        return await lasting(held.task)

    async def _cancel(self, queue: Queue, _: Request, body: dict[str, Any], who: str) -> Any:
        """A client no longer wants what it claims: nothing shall stay claimed."""
        held = self._answers.take((who, queue.name, nonce_from(body)))
        if held is not None:
            await self._give_back(queue, held)
        return {}

    async def _give_back(self, queue: Queue, held: Held) -> None:
        self._answers.forget(held)
        held.task.cancel()
        await asyncio.wait([held.task])
        if held.task.cancelled() or held.task.exception() is not None or held.given_back:
            return
        held.given_back = True
        with suppress(LeaseLost):
            await queue.settle([Settlement.give_back(claim) for claim in held.claims])

    # Settling

    async def _settle(self, queue: Queue, _: Request, body: dict[str, Any], who: str) -> Any:
        given = body.get("settlements")
        if not isinstance(given, list):
            raise ConfigError("settlements must be a list of objects with id, token and action")
        return await _lost(queue.settle([wire.settlement_from(x, queue.name) for x in given]))

    async def _renew(self, queue: Queue, _: Request, body: dict[str, Any], who: str) -> Any:
        given = body.get("claims")
        if not isinstance(given, list):
            raise ConfigError("claims must be a list of objects with id and token")
        lease = seconds_from(body.get("lease"), "lease")
        return await _lost(queue.renew([wire.held_from(x, queue.name) for x in given], lease))

    # Looking

    async def _about(self, queue: Queue, *_: object) -> Any:
        return {"name": queue.name, "capabilities": asdict(queue.capabilities)}

    async def _stats(self, queue: Queue, *_: object) -> Any:
        return asdict(await queue.stats())

    async def _jobs(self, queue: Queue, request: Request, *_: object) -> Any:
        asked = request.query_params
        state: Any = asked.get("state")
        limit = asked.get("limit", "50")
        if not limit.isascii() or not limit.isdigit() or len(limit) > 9:
            raise ConfigError(f"limit = {limit[:40]!r} must be a whole number")
        page = await queue.jobs(
            state, kind=asked.get("kind"), limit=int(limit), after=asked.get("after")
        )
        return {"jobs": [wire.info_to(each) for each in page]}

    async def _job(self, queue: Queue, request: Request, *_: object) -> Any:
        info = await queue.get(request.path_params["job_id"])
        return {"job": None if info is None else wire.info_to(info)}

    async def _retry(self, queue: Queue, _: Request, body: dict[str, Any], who: str) -> Any:
        return {"count": await queue.retry(wire.names_from(body.get("ids"), "ids"))}

    async def _drop(self, queue: Queue, _: Request, body: dict[str, Any], who: str) -> Any:
        return {"count": await queue.drop(wire.names_from(body.get("ids"), "ids"))}

    async def _prune(self, queue: Queue, *_: object) -> Any:
        return {"count": await queue.prune()}

    # Hints

    async def _hint(self, queue: Queue, _: Request, body: dict[str, Any], who: str) -> Any:
        message = message_from(body.get("message"))
        if message is not None:
            self._exchange(queue).say(message)
        return {}

    async def _ws(self, socket: WebSocket) -> None:
        try:
            await self._authorise(socket, LOOK)
            queue = self._queue(socket)
            if self._listening >= LISTENERS_MAX:
                raise Refused(503, "too_many_listeners", "too many listen", "Poll instead.")
        except Refused as refused:
            await _refuse(socket, refused)
            return
        except PollwiseError as error:
            await _refuse(socket, refusal(error))
            return
        await socket.accept()
        await self._listen(socket, queue)

    async def _listen(self, socket: WebSocket, queue: Queue) -> None:
        listener, exchange, end = Listener(), self._exchange(queue), asyncio.Event()
        exchange.join(listener, queue)
        self._listening += 1
        self._ends.add(end)
        tasks = [
            asyncio.ensure_future(work)
            for work in (
                self._hear(socket, exchange),
                self._tell(socket, queue, listener),
                end.wait(),
            )
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._listening -= 1
            self._ends.discard(end)
            exchange.leave(listener)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(Exception):  # whatever the server raises for one that is gone
                await socket.close(1001)

    async def _hear(self, socket: WebSocket, exchange: Exchange) -> None:
        while True:
            try:
                message = await socket.receive_text()
            except (WebSocketDisconnect, KeyError, RuntimeError):
                return
            if len(message) <= MESSAGE_MAX:
                exchange.say(message)

    async def _tell(self, socket: WebSocket, queue: Queue, listener: Listener) -> None:
        """What the listeners of a queue say, and whether the news of others gets here at all."""
        proven: bool | None = None
        while True:
            if proven != (proven := is_proven(queue)):
                await socket.send_text(json.dumps({"proven": proven}))
            try:
                async with asyncio.timeout(PING_EVERY):
                    message = await listener.next()
            except TimeoutError:
                message = "{}"
            if message is not None:
                await socket.send_text(message)


async def _refuse(socket: WebSocket, refused: Refused) -> None:
    """Before it is accepted: the handshake is answered with the error's status."""
    response = json_answer(refused.status, refused.body(), refused.headers)
    if "websocket.http.response" in socket.scope.get("extensions", {}):
        await socket.send_denial_response(response)
    else:
        await socket.close(4000 + refused.status, refused.code)


async def _lost(call: Awaitable[None]) -> Any:
    try:
        await call
    except LeaseLost as error:
        return {"lost": list(error.lost)}
    return {"lost": []}


async def _gone(request: Request) -> None:
    """Ends when the client is gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
