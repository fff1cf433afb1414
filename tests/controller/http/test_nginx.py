"""nginx in front: as the page tells people to set it up, and as they set it up otherwise."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.controller.farm import Agent
from tests.controller.http.test_live import DEADLINE, Live, heard, live, run, until
from tests.controller.security.attackers import Served
from tests.support.daemons import HOST, Keeper, free_port
from tests.support.nginx import TEMPORARY, Nginx
from tests.support.servers import Servers

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "behind-nginx.md"


class AsDocumented(Nginx):
    """nginx with the configuration of the page, on other ports."""

    def __init__(self, keeper: Keeper, port: int) -> None:
        super().__init__(keeper, port, tls=True)

    def _configure(self) -> None:
        found = re.search(r'```nginx title="pollwise.conf"\n(.*?)```', PAGE.read_text(), re.DOTALL)
        assert found is not None
        text = found[1]
        for theirs, ours in (
            ("server 127.0.0.1:8420;", f"server {HOST}:{self.ports[0]};"),
            ("listen 443 ssl", f"listen {HOST}:{self.port} ssl"),
            ("/etc/ssl/builds.pem", str(self.certificate)),
            ("/etc/ssl/builds.key", f"{self.folder}/key.pem"),
        ):
            assert theirs in text, theirs
            text = text.replace(theirs, ours)
        temporary = "".join(f"{name}_temp_path {self.folder}/{name};" for name in TEMPORARY)
        self.write(
            "nginx.conf",
            f"daemon off; pid {self.folder}/pid; error_log stderr warn; worker_processes 1;\n"
            f"events {{ worker_connections 256; }}\n"
            f"http {{ access_log off; {temporary}\n{text}\n}}\n",
        )


@pytest.fixture
def documented(servers: Servers) -> Iterator[tuple[Served, AsDocumented]]:
    port = free_port()
    nginx = servers.begin(AsDocumented(servers, port), {})
    served = Served(servers, "--trusted-proxy", HOST)
    served.port = port
    servers.begin(served, {})
    yield served, nginx
    nginx.close()
    served.close()


def test_the_configuration_of_the_page(documented: tuple[Served, AsDocumented]) -> None:
    served, nginx = documented

    async def main() -> None:
        trust = ssl.create_default_context(cafile=str(nginx.certificate))
        async with httpx.AsyncClient(
            base_url=nginx.url, verify=trust, http2=True, timeout=DEADLINE
        ) as http:
            forged = {**served.headers, "X-Forwarded-For": "203.0.113.66"}
            told = await http.post("/api/workers/register", json={"name": "mini"}, headers=forged)
            assert told.http_version == "HTTP/2"
            agent = Agent(http, told.json())
            entry = (await http.get("/api/audit", headers=served.headers)).json()["entries"][0]
            assert entry["address"] == "203.0.113.66", "this client is where a proxy might be"
            # A context of its own: httpx told the other one to ask for HTTP/2.
            async with socket_of(
                nginx, agent, ssl=ssl.create_default_context(cafile=str(nginx.certificate))
            ) as socket:
                assert await heard(socket, "hint") is True
                held = asyncio.ensure_future(agent.poll(wait=20))
                body = {"kind": "build"}
                job = (await http.post("/api/jobs", json=body, headers=served.headers)).json()
                answer = (await asyncio.wait_for(held, DEADLINE))["job"]
                assert answer["id"] == job["id"]
            path = f"/api/jobs/{job['id']}"
            large = bytes(range(256)) * 40_000
            put = await http.put(f"{path}/artefacts/x", content=large, headers=agent.headers)
            assert put.status_code == 201, put.text
            part = {**served.headers, "Range": "bytes=256-511"}
            ranged = await http.get(f"{path}/artefacts/x", headers=part)
            assert (ranged.status_code, ranged.content) == (206, bytes(range(256)))
            await http.post(f"{path}/logs?offset=0", content=b"one\n", headers=agent.headers)
            lines = followed(http, f"{path}/logs?follow=true", served.headers)
            assert await asyncio.wait_for(anext(lines), DEADLINE) == "one"
            await http.post(f"{path}/logs?offset=4", content=b"two\n", headers=agent.headers)
            assert await asyncio.wait_for(anext(lines), DEADLINE) == "two", "as it is written"
            await agent.finish(job)
            await lines.aclose()

    run(main())


async def followed(http: httpx.AsyncClient, path: str, headers: dict[str, str]) -> Any:
    async with http.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data: ") and line[6:]:
                yield line[6:]


@asynccontextmanager
async def behind(
    servers: Servers, folder: Path, *, upgrades: bool = True, idle: float = 30.0, **options: Any
) -> AsyncIterator[tuple[Live, Agent, Nginx]]:
    """A controller, and an agent of its that goes through nginx."""
    async with live(folder, min_interval=0, **options) as farm:
        port = int(farm.url.rpartition(":")[2])
        nginx = Nginx(servers, port, upgrades=upgrades, idle=idle)
        await asyncio.to_thread(servers.begin, nginx, {})
        agent = await farm.register()
        try:
            async with httpx.AsyncClient(base_url=nginx.url, timeout=DEADLINE) as http:
                agent.http = http
                yield farm, agent, nginx
        finally:
            await asyncio.to_thread(nginx.close)


def socket_of(nginx: Nginx, agent: Agent, **given: Any) -> Any:
    url = f"{nginx.url.replace('http', 'ws')}/api/workers/ws?worker_id={agent.id}"
    return connect(url, additional_headers=agent.headers, **given)


def test_blocked_upgrades_are_told_and_polls_go_through(servers: Servers, tmp_path: Path) -> None:
    async def main() -> None:
        async with behind(servers, tmp_path, upgrades=False) as (farm, agent, nginx):
            with pytest.raises(InvalidStatus) as refused:
                async with socket_of(nginx, agent):
                    pass
            assert refused.value.response.status_code == 426
            held = asyncio.ensure_future(agent.job(wait=20))
            await until(lambda: farm.controller.poller.held == 1)
            job = await farm.put()
            assert (await asyncio.wait_for(held, DEADLINE))["id"] == job["id"]
            await agent.finish(job)

    run(main())


def test_an_idle_time_out_cuts_no_websocket(servers: Servers, tmp_path: Path) -> None:
    async def main() -> None:
        async with behind(servers, tmp_path, idle=2.5, idle_ping=1.0) as (farm, agent, nginx):
            async with socket_of(nginx, agent) as socket:
                await heard(socket, "hint")
                await agent.poll()
                for _ in range(5):  # longer than nginx would wait in silence
                    await heard(socket, "ping")
                job = await farm.put()
                await heard(socket, "hint")
                assert (await agent.job())["id"] == job["id"]

    run(main())


def test_a_held_poll_that_nginx_gives_up_takes_no_job_along(
    servers: Servers, tmp_path: Path
) -> None:
    async def main() -> None:
        async with behind(servers, tmp_path, idle=1.0) as (farm, agent, _):
            answer = await agent.get(wait=30)
            assert answer.status_code == 504
            await until(lambda: farm.controller.poller.held == 0)
            job = await farm.put()
            assert (await agent.job())["id"] == job["id"]
            assert (await farm.job(job["id"]))["attempt"] == 1

    run(main())


def test_nginx_that_is_restarted(servers: Servers, tmp_path: Path) -> None:
    async def main() -> None:
        async with behind(servers, tmp_path) as (farm, agent, nginx):
            for _ in range(2):
                async with socket_of(nginx, agent) as socket:
                    await heard(socket, "hint")
                    held = asyncio.ensure_future(agent.get(wait=30))
                    await until(lambda: farm.controller.poller.held == 1)
                    await asyncio.to_thread(nginx.restart)
                    with pytest.raises(ConnectionClosed):
                        while True:
                            await asyncio.wait_for(socket.recv(), DEADLINE)
                with pytest.raises(httpx.HTTPError):
                    await held
                await until(lambda: not len(farm.controller.sockets))
                await until(lambda: farm.controller.poller.held == 0)
                job = await farm.put()
                assert (await agent.job())["id"] == job["id"]
                await agent.finish(job)
                assert (await farm.job(job["id"]))["state"] == "done"

    run(main())
