"""Over real sockets: WebSockets, held polls whose client goes, followed logs, mounted, stopped.

Real time passes here, so every wait is for an event, with a deadline.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from pollwise.controller import Controller, ControllerOptions
from pollwise.controller.http.server import ControllerServer, protocol
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import HintPushed
from tests.controller.farm import KEEP, Agent, Farm
from tests.support.kit import Seen

DEADLINE = 240.0


class Live(Farm):
    """A farm behind a real server."""

    url: str
    server: ControllerServer


@asynccontextmanager
async def served(
    app: Any, controller: Controller, head_within: float = 20.0
) -> AsyncIterator[tuple[str, ControllerServer]]:
    config = uvicorn.Config(
        app,
        port=0,
        log_config=None,
        access_log=False,
        http=protocol(head_within),
        timeout_graceful_shutdown=5,
        lifespan="on",
    )
    server = ControllerServer(config, controller.stop_waiting)
    running = asyncio.ensure_future(server.serve())
    try:
        async with asyncio.timeout(DEADLINE):
            while not server.started:
                assert not running.done(), "the server did not start"
                await asyncio.sleep(0.01)  # real time: the server is starting
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}", server
    finally:
        server.should_exit = True
        await asyncio.wait_for(running, DEADLINE)


@asynccontextmanager
async def live(
    folder: Path, queue: Any = None, *, admin: dict[str, str] | None = None, **options: Any
) -> AsyncIterator[Live]:
    seen = Seen()
    store = queue or SqliteQueue(folder / "jobs.db", "agents", synchronous="off", keep=KEEP)
    chosen = ControllerOptions(artefacts=folder / "artefacts", **options)
    made = Controller(store, chosen, events=seen.events)
    async with served(made.app, made) as (url, server), httpx.AsyncClient(base_url=url) as http:
        farm = Live(made, store, Clock(), seen, http)
        farm.url, farm.server = url, server
        farm.admin = admin or await farm.token()
        yield farm
    await store.close()


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 50))


@asynccontextmanager
async def pushed(farm: Live, agent: Agent, **given: Any) -> AsyncIterator[ClientConnection]:
    url = f"{farm.url.replace('http', 'ws')}/api/workers/ws?worker_id={agent.id}"
    given.setdefault("additional_headers", agent.headers)
    async with connect(url, **given) as socket:
        yield socket


async def heard(socket: ClientConnection, what: str) -> Any:
    """The next message that says this; others are passed over."""
    async with asyncio.timeout(DEADLINE):
        while True:
            message = json.loads(await socket.recv())
            if what in message:
                return message[what]


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not what():
            await asyncio.sleep(0.01)  # real time: a server is at work


# Push


def test_a_hint_comes_at_once_and_a_cancel(tmp_path: Path) -> None:
    async def main() -> None:
        async with live(tmp_path) as farm:
            agent = await farm.register()
            async with pushed(farm, agent) as socket:
                assert await heard(socket, "hint") is True  # something may have come before
                assert (await agent.poll())["job"] is None
                job = await farm.put()
                assert await heard(socket, "hint") is True
                assert (await agent.job())["id"] == job["id"]  # not too soon: it was told to
                await farm.call("POST", f"/api/jobs/{job['id']}/cancel")
                assert await heard(socket, "cancel") == job["id"]
                await agent.finish(job, "cancelled")

    run(main())


def test_the_token_may_be_the_first_message(tmp_path: Path) -> None:
    async def main() -> None:
        async with live(tmp_path) as farm:
            agent = await farm.register()
            async with pushed(farm, agent, additional_headers={}) as socket:
                await socket.send(json.dumps({"token": agent.token}))
                assert await heard(socket, "hint") is True
            for message in ('{"token": "wrong"}', "nonsense", "[" * 100_000, '{"token": 7}'):
                async with pushed(farm, agent, additional_headers={}) as socket:
                    await socket.send(message)
                    with pytest.raises(ConnectionClosed) as closed:
                        await asyncio.wait_for(socket.recv(), DEADLINE)
                    assert closed.value.rcvd is not None
                    assert closed.value.rcvd.code in (4401, 1009)

    run(main())


def test_a_stranger_gets_no_push(tmp_path: Path) -> None:
    async def main() -> None:
        async with live(tmp_path) as farm:
            agent, other = await farm.register(), await farm.register()
            for headers, status in (
                ({"Authorization": "Bearer wrong"}, 401),
                (await farm.token("put"), 403),
                (other.headers, 404),
            ):
                with pytest.raises(InvalidStatus) as refused:
                    async with pushed(farm, agent, additional_headers=headers):
                        pass
                assert refused.value.response.status_code == status

    run(main())


def test_one_of_many_is_told_and_the_next_if_it_does_not_look(tmp_path: Path) -> None:
    async def main() -> None:
        async with live(tmp_path) as farm:
            agents = [await farm.register(f"agent {n}") for n in range(5)]
            sockets = []
            for agent in agents:
                manager = pushed(farm, agent)
                socket = await manager.__aenter__()
                sockets.append((manager, socket))
                await heard(socket, "hint")
                await agent.poll()
            before = len(farm.seen.of(HintPushed))
            await farm.put()
            await until(lambda: len(farm.seen.of(HintPushed)) > before)
            assert len(farm.seen.of(HintPushed)) == before + 1
            # Nobody polls: in turn, each of them is told.
            await until(lambda: len(farm.seen.of(HintPushed)) >= before + 5)
            for manager, _ in sockets:
                await manager.__aexit__(None, None, None)
            await until(lambda: len(farm.controller.sockets) == 0)

    run(main())


def test_pings_keep_the_line_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with live(tmp_path, idle_ping=1.0) as farm:
            agent = await farm.register()
            async with pushed(farm, agent) as socket:
                assert await heard(socket, "ping") is True
                assert await heard(socket, "ping") is True

    run(main())


# Held polls


def test_a_held_poll_is_answered_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with live(tmp_path) as farm:
            agent = await farm.register()
            held = asyncio.ensure_future(agent.job(wait=30))
            await until(lambda: farm.controller.poller.held == 1)
            job = await farm.put()
            assert (await asyncio.wait_for(held, 5))["id"] == job["id"]

    run(main())


def test_a_held_poll_whose_client_went_takes_no_job(tmp_path: Path) -> None:
    async def main() -> None:
        async with live(tmp_path) as farm:
            agent = await farm.register()
            held = asyncio.ensure_future(agent.get(wait=30))
            await until(lambda: farm.controller.poller.held == 1)
            held.cancel()
            await until(lambda: farm.controller.poller.held == 0)
            other = await farm.register()
            job = await farm.put()
            assert (await other.job())["id"] == job["id"]

    run(main())


def test_a_stop_does_not_wait_for_who_waits(tmp_path: Path) -> None:
    async def main() -> None:
        async with live(tmp_path) as farm:
            agent, other = await farm.register(), await farm.register()
            held = asyncio.ensure_future(agent.poll(wait=60))
            await until(lambda: farm.controller.poller.held == 1)
            async with pushed(farm, other) as socket:
                await heard(socket, "hint")
                farm.server.should_exit = True
                assert (await asyncio.wait_for(held, 5))["job"] is None
                with pytest.raises(ConnectionClosed):
                    while True:
                        await asyncio.wait_for(socket.recv(), 5)

    run(main())


def test_a_stop_does_not_wait_for_who_follows_a_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with live(tmp_path) as farm:
            agent = await farm.register()
            job = await farm.put()
            await agent.job()
            path = f"/api/jobs/{job['id']}/logs"
            await farm.http.post(f"{path}?offset=0", content=b"one\n", headers=agent.headers)
            got: list[str] = []
            stopped = 0.0
            async with farm.http.stream(
                "GET", f"{path}?follow=true", headers=farm.admin, timeout=DEADLINE
            ) as answer:
                async for line in answer.aiter_lines():
                    got.append(line)
                    if line == "data: one":
                        farm.server.should_exit = True
                        stopped = asyncio.get_running_loop().time()
            assert asyncio.get_running_loop().time() - stopped < 1.5, "before it looks by itself"
            assert "event: end" not in got, "the log goes on: the client is to come back"

    run(main())
    assert not [each for each in caplog.records if each.exc_info]


def test_who_never_finishes_a_request_is_cut_off(tmp_path: Path) -> None:
    async def main() -> None:
        made = Controller(f"sqlite:///{tmp_path}/jobs.db")
        async with served(made.app, made, head_within=0.3) as (url, _):
            port = int(url.rpartition(":")[2])
            for said in (b"", b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Slow: "):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(said)
                await asyncio.wait_for(reader.read(), DEADLINE)
                writer.close()
            async with httpx.AsyncClient(base_url=url) as http:
                for _ in range(3):
                    assert (await http.get("/livez")).status_code == 200

    run(main())


def test_a_head_without_end_is_cut_off(tmp_path: Path) -> None:
    async def main() -> None:
        made = Controller(f"sqlite:///{tmp_path}/jobs.db")
        async with served(made.app, made) as (url, _):
            port = int(url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n")
            with suppress(ConnectionError):
                for number in range(200):
                    writer.write(b"X-%d: %s\r\n" % (number, b"x" * 1000))
                    await writer.drain()
            got = b""
            with suppress(ConnectionError):
                got = await asyncio.wait_for(reader.read(), DEADLINE)
            assert got == b"" or got.startswith(b"HTTP/1.1 431")
            writer.close()
            # A large body that comes with its head is none of that.
            async with httpx.AsyncClient(base_url=url) as http:
                answer = await http.post("/api/jobs", content=b"x" * 500_000)
                assert answer.status_code == 401

    run(main())


# Logs


def test_a_log_is_followed(tmp_path: Path) -> None:
    async def main() -> None:
        async with live(tmp_path) as farm:
            agent = await farm.register()
            job = await farm.put()
            await agent.job()
            path = f"/api/jobs/{job['id']}/logs"

            async def write(offset: int, text: str) -> None:
                answer = await farm.http.post(
                    f"{path}?offset={offset}", content=text.encode(), headers=agent.headers
                )
                assert answer.status_code == 200, answer.text

            await write(0, "one\n")
            got: list[str] = []
            async with farm.http.stream(
                "GET", f"{path}?follow=true", headers=farm.admin, timeout=DEADLINE
            ) as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                async for line in answer.aiter_lines():
                    got.append(line)
                    if line == "data: one":
                        await write(4, "two\r\nthree")
                    if line == "data: three":
                        await agent.finish(job)
                        await write_late(farm, path, agent)
            assert got[0] == "id: 4"
            assert "event: end" in got
            last = farm.http.get(path, headers={**farm.admin, "Range": "bytes=4-6"})
            ranged = await last
            assert (ranged.status_code, ranged.text) == (206, "two")
            assert ranged.headers["content-range"] == "bytes 4-6/14"
            headers = {**farm.admin, "Last-Event-ID": "9"}
            again = await farm.http.get(f"{path}?follow=true", headers=headers)
            assert "data: three" in again.text
            assert "two" not in again.text

    async def write_late(farm: Live, path: str, agent: Agent) -> None:
        answer = await farm.http.post(f"{path}?offset=14", content=b"x", headers=agent.headers)
        assert answer.status_code == 409

    run(main())


# Mounted


@pytest.mark.parametrize("outer", ["fastapi", "starlette", "no lifespan"])
def test_in_an_application_of_ones_own(tmp_path: Path, outer: str) -> None:
    async def main() -> None:
        inner = Controller(f"sqlite:///{tmp_path}/jobs.db")
        app: Any
        if outer == "fastapi":
            app = FastAPI(lifespan=inner.lifespan)
            app.mount("/farm", inner.app)
        elif outer == "starlette":
            app = Starlette(routes=[Mount("/farm", inner.app)], lifespan=inner.lifespan)
        else:
            app = Starlette(routes=[Mount("/farm", inner.app)])
        async with served(app, inner) as (url, _):
            _, secret = await inner.tokens.make("admin", "test")
            headers = {"Authorization": f"Bearer {secret}"}
            async with httpx.AsyncClient(base_url=f"{url}/farm", headers=headers) as http:
                body = {"name": "mini"}
                registered = (await http.post("/api/workers/register", json=body)).json()
                assert registered["ws"] == "/farm/api/workers/ws"
                agent = Agent(http, registered)
                job = (await http.post("/api/jobs", json={"kind": "build"})).json()
                assert (await agent.job())["id"] == job["id"]
                await agent.finish(job)
                assert (await http.get("/openapi.json")).status_code == 200
                ws = f"{url.replace('http', 'ws')}{registered['ws']}?worker_id={agent.id}"
                async with connect(ws, additional_headers=agent.headers) as socket:
                    assert await heard(socket, "hint") is True
        if outer == "no lifespan":
            await inner.close()

    run(main())
