"""The probe of WebSockets against the server of the library, and against others."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.server import ServerProtocol

from pollwise.errors import ProbeError
from pollwise.fleet.probes import host_of, make_probe
from pollwise.fleet.targets import Target
from tests.fleet.probes.kit import certificate, page, polled, really, web
from tests.fleet.probes.net.servers import failure, refusal
from tests.support.daemons import HOST


@asynccontextmanager
async def live(
    handler: Callable[[ServerConnection], Awaitable[None]], context: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    async with serve(handler, HOST, 0, ssl=context) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield f"{'ws' if context is None else 'wss'}://{HOST}:{port}/live"


async def echo(connection: ServerConnection) -> None:
    async for message in connection:
        await connection.send(f"you said {message!r}")


def test_a_completed_handshake_is_open() -> None:
    closed: list[int | None] = []

    async def silent(connection: ServerConnection) -> None:
        await connection.wait_closed()
        closed.append(connection.close_code)

    async def main() -> None:
        async with live(silent) as url:
            found = await polled("websocket", url=url)
            assert found.value == "open"
            assert isinstance(found.facts["ms"], float)
        assert closed == [1000]

    really(main)


def test_the_answer_is_the_reading() -> None:
    async def main() -> None:
        async with live(echo) as url:
            found = await polled("websocket", url=url, send="hello", read=True)
            assert found.value == "you said 'hello'"
            assert found.facts["messages"] == 1
            found = await polled("websocket", url=url, send="größer", regex=r"'(\pL+)'")
            assert found.value == "größer"

    really(main)


def test_messages_are_read_until_one_matches() -> None:
    async def chatty(connection: ServerConnection) -> None:
        await connection.send("welcome")
        await connection.ping()
        await connection.send(["in ", "three ", "parts"])
        await connection.send(b"state: ready")
        await connection.close(4000, "that is all")

    async def main() -> None:
        async with live(chatty) as url:
            assert (await polled("websocket", url=url, read=True)).value == "welcome"
            assert (await polled("websocket", url=url, regex="e p")).facts["messages"] == 2
            found = await polled("websocket", url=url, regex=r"state: (\w+)")
            assert (found.value, found.facts["messages"]) == ("ready", 3)
            with pytest.raises(ProbeError) as raised:
                await polled("websocket", url=url, regex="never")
        said = "the last of 3 was 'state: ready' (closed with 4000: that is all)"
        assert said in str(raised.value)

    really(main)


def test_headers_and_passwords_are_sent_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[Any] = []

    async def note(connection: ServerConnection) -> None:
        assert connection.request is not None
        seen.append(connection.request.headers)

    async def main() -> str:
        async with live(note) as url:
            with_password = url.replace("://", "://app:hunter2@") + "?token=t0ken"
            headers = {"X-Key": "s3cret", "Origin": "https://shop.example"}
            await polled("websocket", url=with_password, headers=headers)
            with pytest.raises(ProbeError) as raised:
                await polled("websocket", url=with_password, read=True)
        with pytest.raises(ProbeError) as gone:
            await polled("websocket", url=with_password)
        return f"{raised.value} {gone.value}"

    said = really(main)
    assert seen[0]["authorization"] == "Basic YXBwOmh1bnRlcjI="
    assert (seen[0]["x-key"], seen[0]["origin"]) == ("s3cret", "https://shop.example")
    logged = " ".join(r.getMessage() for r in caplog.records if r.name.startswith("pollwise"))
    for secret in ("hunter2", "t0ken", "s3cret"):
        assert secret not in said + logged


def test_a_websocket_over_tls(tmp_path: Path) -> None:
    made_one = certificate(tmp_path, days=5)

    async def main() -> None:
        async with live(echo, made_one.context()) as url:
            found = await polled("websocket", url=url, ca=str(made_one.file))
            assert found.facts["days_left"] == pytest.approx(5, abs=0.2)
            assert (await polled("websocket", url=url, verify=False)).facts["warning"]
            with pytest.raises(ProbeError, match=r"self.signed"):
                await polled("websocket", url=url)

    really(main)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (page("no", "403 Forbidden"), "was answered with 403"),
        (page("", "302 Found", location="http://evil.example/?x=y"), "redirects are not followed"),
        (page("x"), "was answered with 200, not with 101"),
        (
            page("", "101 X", upgrade="websocket", connection="upgrade", sec_websocket_accept="x"),
            "did not complete the WebSocket handshake",
        ),
        (b"220 mail.example ESMTP\r\n", "did not complete the WebSocket handshake"),
    ],
)
def test_another_answer_to_the_handshake_is_a_failure(answer: bytes, said: str) -> None:
    async def main() -> None:
        async with web(answer) as server:
            with pytest.raises(ProbeError) as raised:
                await polled("websocket", url=server.url().replace("http", "ws"))
            assert said in str(raised.value)
            assert "evil" not in str(raised.value)
            assert server.connections == 1

    really(main)


async def in_order(connection: ServerConnection) -> None:
    await connection.send("x" * 5000)


def test_a_message_has_a_limit() -> None:
    async def main() -> None:
        async with live(in_order) as url:
            with pytest.raises(ProbeError, match="invalid message") as raised:
                await polled("websocket", url=url, read=True, limit=1000)
            assert "1000" in str(raised.value)
            assert (await polled("websocket", url=url, read=True)).value is not None

    really(main)


def test_a_flood_of_messages_ends() -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        protocol = ServerProtocol()
        protocol.receive_data(await reader.readuntil(b"\r\n\r\n"))
        (request,) = protocol.events_received()
        protocol.send_response(protocol.accept(request))  # type: ignore[arg-type]
        while True:
            protocol.send_text(b"x" * 10)
            writer.write(b"".join(protocol.data_to_send()))
            await writer.drain()
            await asyncio.sleep(0)

    assert "no message matches" in str(failure(flood, "websocket", regex="y"))


def test_options_of_websocket_are_checked() -> None:
    said = refusal("websocket", url="https://app:hunter2@x", read=False, regex="(?=", limit="x")
    assert "must begin with ws:// or wss://" in said
    assert "hunter2" not in said
    assert "regex" in said
    assert "limit" in said
    assert "url is missing" in refusal("websocket")
    assert "has no valid host" in refusal("websocket", url="ws://")
    assert "has no valid host" in refusal("websocket", url="ws://x:99999/")
    assert "ca has no effect without TLS" in refusal("websocket", url="ws://x", ca="/x.pem")
    target = Target("t", "websocket", options={"url": "wss://Shop.Example:444/x"})
    assert host_of(target, make_probe(target)) == "shop.example"
