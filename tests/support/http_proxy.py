"""A proxy that understands HTTP, and breaks single requests at random.

    with HttpProxy(server.port, dice=Dice(seed, 0.2)) as proxy:
        queue = open(f"s3://jobs/p?endpoint={proxy.endpoint}")
        ...
        proxy.calm()

The same seed gives the same faults: request number n meets the same fate. Which request is number n
depends on the threads that send them.

It runs in a thread of its own. `Fate` explains the fates.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, get_args

from tests.support.daemons import HOST
from tests.support.proxy import Aside

#: pass: nothing happens. drop: the connection is cut before the server gets the request.
#: lose: the server handles it, and its answer is lost with the connection.
#: delay, wait: the request, or its answer, is held back for a while.
#: twice: the server gets it twice, and the first answer counts.
#: late: the connection is cut, and the server gets the request some requests later.
#: refuse: an error is answered, and the server does not get the request.
Fate = Literal["pass", "drop", "lose", "delay", "wait", "twice", "late", "refuse"]
#: A late request arrives after at most this many others.
LATE_MAX = 30
#: The number of requests in a spell, and the factor by which its share of faults may grow.
SPELL, WEATHER = 25, (0.3, 0.3, 0.6, 0.6, 3.2)


@dataclass(frozen=True)
class Request:
    number: int
    method: str
    target: str
    headers: dict[str, str]  # by their names in lower case
    body: bytes

    def encoded(self) -> bytes:
        kept = {**self.headers, "connection": "close", "content-length": str(len(self.body))}
        lines = [f"{self.method} {self.target} HTTP/1.1", *(f"{k}: {v}" for k, v in kept.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + self.body


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def encoded(self, request: Request) -> bytes:
        # A HEAD has the length of a body that is not sent.
        bodiless = request.method == "HEAD" or self.status in (204, 304)
        length = {} if bodiless else {"content-length": str(len(self.body))}
        lines = [f"HTTP/1.1 {self.status} -"]
        lines += [f"{k}: {v}" for k, v in {**self.headers, **length}.items()]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        return head if bodiless else head + self.body


class Dice:
    """The fates of requests: a share of them fails, equally in all ways, or in `ways`.

    Faults come in spells: most spells are mild, and in some nearly nothing gets through.
    """

    def __init__(self, seed: int, share: float, *ways: Fate) -> None:
        self.seed = seed
        self._share = share
        self._ways = ways or tuple(way for way in get_args(Fate) if way != "pass")

    def fate(self, number: int) -> tuple[Fate, random.Random]:
        """The fate of a request, and a source of further decisions about it."""
        rng = random.Random(f"{self.seed}/{number}")
        weather = random.Random(f"{self.seed}/spell/{number // SPELL}").choice(WEATHER)
        fate: Fate = rng.choice(self._ways) if rng.random() < self._share * weather else "pass"
        return fate, rng


class HttpProxy(Aside):
    """Listens on a port of its own and forwards to `port`.

    refusal: the answer of a refused request.
    stall: waits for a delay of a number of seconds.
    in_turn: the server gets one request at a time.
    answered: sees each answer of the server, and may change it; within its turn.
    fates: how often each occurred; broken: the requests that failed, with their fates.
    """

    def __init__(
        self,
        port: int,
        dice: Dice,
        *,
        refusal: Callable[[Request, random.Random], Answer],
        stall: Callable[[float], Awaitable[None]],
        in_turn: bool = False,
        answered: Callable[[Request, Answer], Answer] = lambda _, answer: answer,
    ) -> None:
        self.fates: Counter[Fate] = Counter()
        self.broken: list[tuple[Request, Fate]] = []
        self._target = (HOST, port)
        self._dice = dice
        self._refusal, self._stall, self._answered = refusal, stall, answered
        self._in_turn = in_turn
        self._calm = False
        self._numbers = itertools.count()
        self._late: list[tuple[int, Request]] = []
        super().__init__()
        self._server: asyncio.Server
        self._turn: AbstractAsyncContextManager[None]
        self._await(self._listen)

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self._server.sockets[0].getsockname()[1]}"

    def calm(self) -> None:
        """No more faults; late requests arrive now."""

        async def calm() -> None:
            self._calm = True
            await self._deliver(len(self._late))

        self._await(calm)

    def close(self) -> None:
        self._do(self._server.close)
        super().close()

    # --- forwarding -----------------------------------------------------------------------------

    async def _listen(self) -> None:
        self._turn = asyncio.Lock() if self._in_turn else nullcontext()
        self._server = await asyncio.start_server(self._serve, HOST, 0, limit=2**20)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await self._read(reader)) is not None:
                answer = await self._pass_on(request)
                if answer is None:
                    writer.transport.abort()
                    return
                writer.write(answer.encoded(request))
                await writer.drain()
        except (OSError, EOFError, asyncio.CancelledError):
            pass  # the client went away, or all is over
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Request | None:
        line = await reader.readline()
        if not line:
            return None
        method, target, _ = line.decode("latin-1").split(" ", 2)
        headers = await _headers(reader)
        body = await _body(reader, headers)
        headers.pop("transfer-encoding", None)
        return Request(next(self._numbers), method, target, headers, body)

    async def _pass_on(self, request: Request) -> Answer | None:
        """The answer, or None to cut the connection."""
        fate, rng = self._dice.fate(request.number)
        if self._calm:
            fate = "pass"
        self.fates[fate] += 1
        if fate != "pass":
            self.broken.append((request, fate))
        await self._deliver(sum(due <= request.number for due, _ in self._late))
        match fate:
            case "drop":
                return None
            case "refuse":
                return self._refusal(request, rng)
            case "late":
                self._late.append((request.number + rng.randint(1, LATE_MAX), request))
                self._late.sort(key=lambda pair: pair[0])
                return None
            case "delay":
                await self._stall(rng.expovariate(1.0))
        answer = await self._ask(request)
        match fate:
            case "lose":
                return None
            case "twice":
                await self._ask(request)
            case "wait":
                await self._stall(rng.expovariate(1.0))
        return answer

    async def _deliver(self, count: int) -> None:
        """Forward late requests, and drop their answers."""
        due, self._late = self._late[:count], self._late[count:]
        for _, request in due:
            await self._ask(request)

    async def _ask(self, request: Request) -> Answer:
        async with self._turn:
            return self._answered(request, await self._exchange(request))

    async def _exchange(self, request: Request) -> Answer:
        reader, writer = await asyncio.open_connection(*self._target, limit=2**20)
        try:
            writer.write(request.encoded())
            status = int((await reader.readline()).split(b" ", 2)[1])
            headers = await _headers(reader)
            bodiless = request.method == "HEAD" or status in (204, 304)
            body = b"" if bodiless else await _body(reader, headers)
        finally:
            writer.close()
        headers.pop("transfer-encoding", None)
        headers.pop("connection", None)
        return Answer(status, headers, body)


async def _headers(reader: asyncio.StreamReader) -> dict[str, str]:
    headers: dict[str, str] = {}
    while line := (await reader.readline()).decode("latin-1").rstrip("\r\n"):
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return headers


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", 0)))
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body
