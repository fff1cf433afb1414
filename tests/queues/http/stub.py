"""The raw queues of a controller without the rest: on our own event loop, or by uvicorn."""

from __future__ import annotations

import asyncio
import socket as sockets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import HTTPConnection

from pollwise.controller.http.answers import HttpError
from pollwise.controller.http.queues.routes import QueueApi
from pollwise.queues.base import Queue
from pollwise.queues.http.client import NoAnswer
from pollwise.queues.http.queue import HttpQueue
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.clock import Clock
from tests.support.daemons import HOST, PATIENCE, free_port

TOKENS = {"admin": "admin", "put": "put", "worker": "worker", "operate": "operate"}


async def authorise(connection: HTTPConnection, scopes: Sequence[str]) -> str:
    """A token's name is its scope."""
    word, _, token = connection.headers.get("authorization", "").partition(" ")
    if word != "Bearer" or token not in TOKENS:
        raise HttpError(401, "unauthorized", "there is no such token", "Ask for one.")
    if TOKENS[token] not in ("admin", *scopes):
        raise HttpError(403, "forbidden", f"the scope {token!r} may not do this", "Use another.")
    return token


def make_api(store: Path | None, clock: Clock) -> QueueApi:
    """Raw queues in memory, in a SQLite file, or each in a file of its own in a folder."""
    memory: dict[str, MemoryQueue] = {}

    def open_queue(name: str, keep: float | None) -> Queue:
        if store is not None:
            path = store / f"{name}.db" if store.is_dir() else store
            return SqliteQueue(path, name, clock=clock, keep=keep, synchronous="off")
        if name not in memory:
            memory[name] = MemoryQueue(name, clock=clock, keep=keep)
        return memory[name]

    return QueueApi(open_queue, authorise, clock, keep=0.0)


def make_app(api: QueueApi) -> Starlette:
    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        yield
        await api.close()

    return Starlette(routes=api.routes(), lifespan=lifespan)


def inside(api: QueueApi, token: Path, clock: Clock, **options: Any) -> HttpQueue:
    """A queue whose controller runs on our own event loop, WebSockets included."""
    app = make_app(api)
    return HttpQueue(
        "http://controller",
        clock=clock,
        token_file=token,
        transport=httpx.ASGITransport(app),
        dial=lambda path, token: dial_inside(app, path, token),
        **options,
    )


class InsideSocket:
    """A WebSocket to an application on our own event loop."""

    def __init__(self, app: Callable[..., Awaitable[None]], path: str, token: str) -> None:
        self._to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._to_us: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        plain, _, query = path.partition("?")
        scope = {
            "type": "websocket",
            "path": plain,
            "raw_path": plain.encode(),
            "query_string": query.encode(),
            "headers": [(b"authorization", f"Bearer {token}".encode()), (b"host", b"controller")],
            "subprotocols": [],
            "scheme": "ws",
            "client": ("127.0.0.1", 1),
            "extensions": {},
        }
        self._to_app.put_nowait({"type": "websocket.connect"})
        self._running = asyncio.ensure_future(app(scope, self._to_app.get, self._said))

    async def _said(self, message: dict[str, Any]) -> None:
        self._to_us.put_nowait(message)

    async def opened(self) -> InsideSocket:
        first = await self._to_us.get()
        if first["type"] != "websocket.accept":
            raise NoAnswer(f"refused: {first}", sent=False)
        return self

    async def receive(self) -> str:
        message = await self._to_us.get()
        if message["type"] != "websocket.send":
            raise NoAnswer("over", sent=False)
        return str(message["text"])

    async def send(self, message: str) -> None:
        self._to_app.put_nowait({"type": "websocket.receive", "text": message})

    async def close(self) -> None:
        self._to_app.put_nowait({"type": "websocket.disconnect", "code": 1000})
        self._to_us.put_nowait({"type": "websocket.close"})
        await asyncio.wait([self._running])


async def dial_inside(app: Callable[..., Awaitable[None]], path: str, token: str) -> InsideSocket:
    return await InsideSocket(app, path, token).opened()


class Served:
    """An application served by uvicorn in a thread, at a port that it keeps over restarts."""

    def __init__(self, make: Callable[[], Any], port: int | None = None) -> None:
        self.port = port or free_port()
        self._make = make
        self.start()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def start(self) -> None:
        config = uvicorn.Config(
            self._make(), HOST, self.port, log_config=None, lifespan="on",
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        # Named as TCP: else asyncio does not turn off that answers wait for acknowledgements.
        bound = sockets.socket(proto=sockets.IPPROTO_TCP)
        bound.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        bound.bind((HOST, self.port))
        bound.listen(1000)
        self._thread = threading.Thread(target=self._run, args=(bound,), daemon=True)
        self._thread.start()

    def _run(self, bound: sockets.socket) -> None:
        asyncio.run(self._server.serve(sockets=[bound]))
        bound.close()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE)

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
