"""Agents for tests: on a controller of our own event loop, with work that takes virtual time."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from pollwise.agent.agent import Agent
from pollwise.agent.commands.command import CommandResult
from pollwise.agent.job import AgentRun, Execute
from pollwise.agent.options import AgentOptions
from pollwise.queues.http.client import NoAnswer
from pollwise.runtime.clock import Clock, VirtualClock
from tests.controller.farm import URL, Farm
from tests.queues.http.stub import InsideSocket, dial_inside
from tests.support.kit import Seen
from tests.support.private import write_private

#: A program that exists; tests that need another one name it.
PROGRAM = [sys.executable]


class Wire(httpx.AsyncBaseTransport):
    """Carries requests to an application on our own event loop, or loses them.

    gone: nothing gets through. lose: the number of answers to lose, by a text in their requests.
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        self.sockets = True
        self.gone = False
        self.lose: tuple[str, int] = ("", 0)
        self.requests: list[tuple[float, str, str]] = []
        self.bodies: list[bytes] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        loop = asyncio.get_running_loop()
        self.requests.append((loop.time(), request.method, request.url.path))
        if self.gone:
            raise httpx.ConnectError("the network is gone")
        body = await request.aread()
        self.bodies.append(body)
        again = httpx.Request(request.method, request.url, headers=request.headers, content=body)
        answer = await httpx.ASGITransport(self.app).handle_async_request(again)
        word, times = self.lose
        if times and word in request.url.path:
            self.lose = (word, times - 1)
            raise httpx.ReadError("the answer is lost")
        return answer

    def polls(self) -> list[float]:
        return [at for at, _, path in self.requests if path.endswith("/poll")]


class Hand:
    """An agent, its connection, and what it did."""

    def __init__(self, agent: Agent, wire: Wire, seen: Seen, sockets: list[InsideSocket]) -> None:
        self.agent = agent
        self.wire = wire
        self.seen = seen
        self._sockets = sockets

    async def cut(self) -> None:
        """The network fails from now on."""
        self.wire.gone = True
        while self._sockets:
            await self._sockets.pop().close()

    def restore(self) -> None:
        self.wire.gone = False

    def refuse_sockets(self) -> None:
        """A proxy blocks WebSockets from now on."""
        self.wire.sockets = False

    def move(self, app: Any) -> None:
        """The controller was restarted: requests reach another application."""
        self.wire.app = app


def takes(seconds: float, done: list[str] | None = None) -> Execute:
    """Work that takes this long, unless it is stopped."""

    async def execute(run: AgentRun) -> CommandResult:
        try:
            async with asyncio.timeout(seconds):
                await run.stop.wait()
        except TimeoutError:
            if done is not None:
                done.append(run.work.id)
            return CommandResult(0)
        return CommandResult(-15, None, run.stop.why)

    return execute


async def worker_token(farm: Farm, folder: Path, scope: str = "worker") -> Path:
    _, secret = await farm.controller.tokens.make(scope, "agents")
    file = folder / f"{scope}.token"
    write_private(file, f"{secret}\n")
    return file


def make_hand(
    app: Any,
    token: Path,
    folder: Path,
    clock: Clock,
    *,
    execute: Execute | None = None,
    push: bool = True,
    command: Iterable[str] = PROGRAM,
    **options: Any,
) -> Hand:
    wire, seen = Wire(app), Seen()
    sockets: list[InsideSocket] = []

    async def dial(path: str, token: str) -> Any:
        if wire.gone or not wire.sockets:
            raise NoAnswer("the network is gone", sent=False)
        socket = await dial_inside(wire.app, path, token)
        sockets[:] = [socket]
        return socket

    given = {"name": "hand", "folder": folder / "agent", "signals": False, **options}
    agent = Agent(
        AgentOptions(URL, list(command), token_file=token, push=push, **given),
        clock=clock,
        events=seen.events,
        execute=execute,
        transport=wire,
        dial=dial,
    )
    return Hand(agent, wire, seen, sockets)


@asynccontextmanager
async def at_work(hand: Hand) -> AsyncIterator[asyncio.Task[None]]:
    """An agent that runs inside the block and is stopped at its end."""
    running = asyncio.ensure_future(hand.agent.run())
    try:
        yield running
    finally:
        hand.agent.stop()
        await asyncio.wait([running])
    running.result()


async def until(happened: Callable[[], Awaitable[bool]], within: float = 600.0) -> float:
    """Let virtual time pass until something happened; returns how long that took."""
    loop = asyncio.get_running_loop()
    began, step = loop.time(), 0.01
    while not await happened():
        assert loop.time() < began + within, f"it did not happen within {within:g} s"
        await loop.run_in_executor(None, int)  # let threads finish first
        await VirtualClock().sleep(step)
        step = min(1.5 * step, 1.0)
    return loop.time() - began


async def ended(farm: Farm, job_id: str, status: str = "done", within: float = 600.0) -> Any:
    """Wait until a job has this status; returns the job."""

    async def so() -> bool:
        return bool((await farm.job(job_id))["state"] == status)

    await until(so, within)
    return await farm.job(job_id)
