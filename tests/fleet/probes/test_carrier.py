"""Connections that probes share: kept, sent home, and by way of a proxy."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from pollwise.errors import ProbeError
from pollwise.fleet.probes.http import carrier
from pollwise.fleet.probes.http.connections import Tls, transport
from pollwise.fleet.probes.kept import _loops, connections
from tests.fleet.probes.kit import Request, page, polled, really, web
from tests.support.daemons import HOST


def pool() -> Any:
    return transport(Tls(), "http", HOST)


def test_as_many_connections_as_polls_at_a_time() -> None:
    async def main() -> None:
        async with web(page("x")) as server:
            for _ in range(5):
                await asyncio.gather(*(polled("http", url=server.url()) for _ in range(8)))
            assert server.connections == 8
            assert len(server.requests) == 40
            assert len(pool()._waiting) == 8

    really(main)


def test_the_number_of_idle_connections_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier, "IDLE_MAX", 3)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(web(page("x"))) for _ in range(6)]
            for server in servers:
                await polled("http", url=server.url())
            kept = {origin[2] for origin in pool()._waiting.values()}
            assert kept == {server.port for server in servers[3:]}
            assert set(pool()._idle) == set(pool()._waiting.values())
            for server in servers[3:]:
                await polled("http", url=server.url())
                assert server.connections == 1

    really(main)


def test_an_old_one_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier, "IDLE_SECONDS", -1.0)

    async def main() -> None:
        async with web(page("x")) as server:
            for _ in range(3):
                await polled("http", url=server.url())
            assert server.connections == 3
            assert len(pool()._waiting) <= 1

    really(main)


def test_a_cut_off_answer_closes_its_connection() -> None:
    async def silent(writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with web(lambda _: silent) as server:
            with pytest.raises(TimeoutError):
                await polled("http", timeout=0.1, url=server.url())
        async with web(page("x", "500 X")) as server:
            with pytest.raises(ProbeError):
                await polled("http", url=server.url())
        async with web(page(b"x" * 100_000)) as server:
            with pytest.raises(ProbeError):
                await polled("http", url=server.url(), limit=10)
        assert not pool()._waiting

    really(main)


def test_connections_given_back_after_the_end_are_closed() -> None:
    async def main() -> None:
        asked, go = asyncio.Event(), asyncio.Event()

        async def late(writer: asyncio.StreamWriter) -> None:
            asked.set()
            await go.wait()
            writer.write(page("x"))

        async with web(lambda _: late) as server:
            polling = asyncio.ensure_future(polled("http", url=server.url()))
            await asked.wait()
            old = pool()
            await old.aclose()
            go.set()
            assert (await polling).facts["status"] == 200
            assert not old._waiting

    really(main)


def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: Request) -> bytes:
        return page(f"proxied {request.path}")

    async def main() -> None:
        async with web(answer) as proxy, web(page("direct")) as server:
            monkeypatch.setenv("http_proxy", proxy.url())
            monkeypatch.setenv("no_proxy", HOST)
            _loops.clear()  # as at the start of a process
            async with connections():
                found = await polled("http", url="http://far.invalid/x", regex=".*")
                assert found.value == "proxied http://far.invalid/x"
                found = await polled("http", url=server.url(), regex=".*")
                assert found.value == "direct"

    really(main)
