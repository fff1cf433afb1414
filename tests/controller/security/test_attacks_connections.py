"""Connections that drip, that stay half open, that never come to the point: all of them end."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from pollwise.controller import Controller, ControllerOptions
from tests.controller.farm import Agent, Farm, virtually_on_farm
from tests.controller.http.test_live import heard, run, served
from tests.controller.security.attackers import DEADLINE, Served, dialled, is_cut, said
from tests.support.servers import Servers

#: How many connections one attacker opens.
MANY = 400
#: How long the head of a request may take here, in seconds.
HEAD_WITHIN = 1.0

BODY = b"POST /api/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
CHUNKED = b"POST /api/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
WHOLE = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"

#: What is sent first, and what drips after it.
SLOW = {
    "nothing at all": (b"", b""),
    "nothing but empty lines": (b"", b"\r\n"),
    "half a first line": (b"GET /heal", b""),
    "a header that never ends": (b"GET /livez HTTP/1.1\r\nHost: x\r\nX: ", b"a"),
    "headers without end": (b"GET /livez HTTP/1.1\r\nHost: x\r\n", b"X: a\r\n"),
    "silence after an answer": (WHOLE, b""),
    "empty lines after an answer": (WHOLE, b"\r\n"),
    "half a second request": (WHOLE + b"GET /he", b""),
    "a second head that drips": (WHOLE + b"GET /livez HTTP/1.1\r\nX: ", b"a"),
    "a body that was not asked for": (BODY, b""),
    "a body that drips after the refusal": (BODY, b"x"),
    "chunks that drip after the refusal": (CHUNKED, b"1\r\nx\r\n"),
    "an extension of a chunk": (CHUNKED + b"1;x=", b"x"),
    "a trailer without end": (CHUNKED + b"0\r\nX: ", b"x"),
    "a body on a GET": (WHOLE[:-2] + b"Content-Length: 99999\r\n\r\n", b"x"),
}


def test_whoever_drips_is_cut_off(tmp_path: Path) -> None:
    async def main() -> None:
        made = Controller(f"sqlite:///{tmp_path}/jobs.db")
        async with served(made.app, made, head_within=HEAD_WITHIN) as (url, _):
            port = int(url.rpartition(":")[2])

            def attack(first: bytes, drip: bytes) -> bool:
                with dialled(port) as line:
                    line.sendall(first)
                    return is_cut(line, DEADLINE, drip)

            tried = [asyncio.to_thread(attack, *each) for each in SLOW.values()]
            ended = dict(zip(SLOW, await asyncio.gather(*tried), strict=True))
            assert [name for name, cut in ended.items() if not cut] == []

    run(main())


def test_a_websocket_is_not_cut_off_with_them(tmp_path: Path) -> None:
    """Its head is over, though no answer ever completes: the limit of heads is not for it."""

    async def main() -> None:
        made = Controller(f"sqlite:///{tmp_path}/jobs.db", ControllerOptions(idle_ping=1.0))
        async with served(made.app, made, head_within=HEAD_WITHIN) as (url, _):
            _, secret = await made.tokens.make("admin", "test")
            admin = {"Authorization": f"Bearer {secret}"}
            async with httpx.AsyncClient(base_url=url, headers=admin) as http:
                told = await http.post("/api/workers/register", json={"name": "mini"})
            agent = Agent(http, told.json())
            line = f"{url.replace('http', 'ws')}/api/workers/ws?worker_id={agent.id}"
            async with connect(line, additional_headers=agent.headers) as socket:
                for _ in range(4):  # three times as long as a head may take
                    assert await heard(socket, "ping") is True
                    await socket.send("still here")

    run(main())


@pytest.fixture(scope="module")
def server(servers: Servers) -> Iterator[Served]:
    process = servers.begin(Served(servers), {})
    yield process
    process.close()


def test_others_are_served_while_many_drip(server: Served) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2 * MANY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * MANY), hard))
    worker = server.register()
    own = {"Authorization": worker["Authorization"]}
    before = server.memory()
    with ExitStack() as stack:
        lines = [stack.enter_context(dialled(server.port)) for _ in range(MANY)]
        stages = [*SLOW.values()]
        for number, line in enumerate(lines):
            line.sendall(stages[number % len(stages)][0])
        client = stack.enter_context(httpx.Client(base_url=server.url, timeout=DEADLINE))
        took = []
        for turn in range(30):
            for number, line in enumerate(lines[turn::30]):
                try:
                    line.sendall(stages[(turn + 30 * number) % len(stages)][1])
                except OSError:
                    continue  # it was cut off already
            began = time.monotonic()
            assert client.get("/livez").status_code == 200
            poll = client.get(f"/api/workers/poll?worker_id={worker['id']}&max=0", headers=own)
            assert poll.status_code in (200, 429)
            took.append(time.monotonic() - began)
        assert sorted(took)[len(took) // 2] < 1.0
        assert server.memory() - before < 40
    assert said(server.port, "GET", "/livez")[0] == 200


def test_half_open_connections_of_those_who_wait(server: Served) -> None:
    """Held polls and followed logs whose client is gone without a word are let go in the end."""
    workers = [server.register(f"w{number}") for number in range(20)]
    with ExitStack() as stack:
        for worker in workers:
            line = stack.enter_context(dialled(server.port))
            path = f"/api/workers/poll?worker_id={worker['id']}&wait=60"
            head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {worker['Authorization']}\r\n"
            line.sendall(head.encode() + b"\r\n")
        held = 0
        until = time.monotonic() + DEADLINE
        while held < 20 and time.monotonic() < until:
            held = server.ask("GET", "/api/stats")["held_polls"]
        assert held == 20
    until = time.monotonic() + DEADLINE
    while held and time.monotonic() < until:
        held = server.ask("GET", "/api/stats")["held_polls"]
    assert held == 0
    job_id = server.put()
    other = server.register("other")
    own = {"Authorization": other["Authorization"]}
    taken = httpx.get(f"{server.url}/api/workers/poll?worker_id={other['id']}", headers=own).json()
    assert taken["job"]["id"] == job_id, "none of those who went took it along"


def test_a_reader_that_does_not_read_stops_nobody(server: Served) -> None:
    worker = server.register("maker", role="maker")
    own = {"Authorization": worker["Authorization"]}
    job_id = server.put(requires={"role": "maker"})
    httpx.get(f"{server.url}/api/workers/poll?worker_id={worker['id']}", headers=own)
    path = f"/api/jobs/{job_id}/artefacts/large"
    large = bytes(32 * 2**20)
    put = httpx.put(server.url + path, headers=own, content=large, timeout=DEADLINE)
    assert put.status_code == 201, put.text
    before = server.memory()
    with ExitStack() as stack:
        token = server.headers["Authorization"]
        for _ in range(20):  # more than there are threads for reading
            line = stack.enter_context(dialled(server.port))
            line.sendall(
                f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {token}\r\n\r\n".encode()
            )
            assert line.recv(12) == b"HTTP/1.1 200"
        answer = httpx.get(server.url + path, headers=server.headers, timeout=DEADLINE)
        assert answer.content == large
        assert server.memory() - before < 60, "what nobody reads is not read ahead"


def test_a_body_that_drips_ends(tmp_path: Path) -> None:
    """In virtual time: each byte comes soon enough, and all of them take an hour."""

    async def main(farm: Farm) -> None:
        agent = await farm.register()
        job = await farm.put()
        await agent.job()

        async def drip() -> Any:
            for _ in range(360):
                await asyncio.sleep(10)
                yield b" "

        for path, headers in (
            ("/api/jobs", farm.admin),
            ("/api/workers/register", farm.admin),
            ("/api/workers/poll", agent.headers),
            (f"/api/jobs/{job['id']}/heartbeat", agent.headers),
            (f"/api/jobs/{job['id']}/logs?offset=0", agent.headers),
        ):
            began = farm.clock.now()
            answer = await farm.http.post(path, content=drip(), headers=headers)
            assert answer.status_code == 408, f"{path}: {answer.text}"
            assert farm.clock.now() - began < 61, path
            await agent.heartbeat(job["id"])

        async def stalls() -> Any:
            yield b"x"
            await asyncio.sleep(3600)
            yield b"x"

        began = farm.clock.now()
        answer = await farm.http.put(
            f"/api/jobs/{job['id']}/artefacts/a", content=stalls(), headers=agent.headers
        )
        assert answer.status_code == 408
        assert farm.clock.now() - began < 121

    virtually_on_farm(main, tmp_path, heartbeat_timeout="10m")
