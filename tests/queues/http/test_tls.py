"""Controllers behind certificates that nobody vouches for: errors that say so, and what helps."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import pollwise
from pollwise.agent import Agent, AgentOptions
from pollwise.errors import ConfigError, StoreUnavailable
from pollwise.queues.http.client import (
    CertificateNotTrusted,
    ControllerClient,
    NoAnswer,
    RequestRefused,
    error_of,
)
from pollwise.runtime.clock import Clock
from tests.support.daemons import HOST, free_port
from tests.support.private import write_private

Ask = Callable[[ControllerClient], Awaitable[Any]]

ASKS: dict[str, Ask] = {
    "a request": lambda client: client.call("GET", "/api/stats", "secret"),
    "a WebSocket": lambda client: client.dial("/api/workers/ws", "secret"),
}


def openssl(*words: str, folder: Path) -> None:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed")
    subprocess.run([program, *words], check=True, capture_output=True, cwd=folder)


@pytest.fixture
def certificate(tmp_path: Path) -> Callable[..., Path]:
    """Makes a certificate that its own key has signed; the file, with its key beside it."""

    def made(host: str = f"IP:{HOST}", days: int = 2) -> Path:
        file = tmp_path / f"cert{days}{len(host)}.pem"
        key = file.with_suffix(".key")
        (tmp_path / "names").write_text(f"subjectAltName={host}\n")
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        asked = ("-subj", "/CN=controller", "-keyout", str(key), "-out", "asked.pem")
        openssl("req", *curve, *asked, folder=tmp_path)
        signed = ("-in", "asked.pem", "-signkey", str(key), "-days", str(days))
        openssl("x509", "-req", *signed, "-extfile", "names", "-out", str(file), folder=tmp_path)
        return file

    return made


def on_server(file: Path | None, main: Callable[[str], Awaitable[None]]) -> None:
    """Run something beside a server that answers 404 to whoever gets through to it."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if file is None:
                await reader.read(1)  # a handshake is no request
            else:
                await reader.readuntil(b"\r\n\r\n")
            head = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            writer.write(head)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def whole() -> None:
        context = None
        if file is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(file, file.with_suffix(".key"))
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # handshakes that end
        async with await asyncio.start_server(answer, HOST, 0, ssl=context) as server:
            port = server.sockets[0].getsockname()[1]
            await main(f"https://{HOST}:{port}")

    asyncio.run(whole())


async def told(base: str, ask: Ask, ca_file: Path | None = None) -> str:
    client = ControllerClient(base, Clock(), ca_file=ca_file)
    try:
        with pytest.raises(CertificateNotTrusted) as error:
            await ask(client)
    finally:
        await client.close()
    assert not error.value.sent
    assert "cannot be reached" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_an_untrusted_certificate_is_reported(certificate: Callable[..., Path], ask: Ask) -> None:
    own = certificate()

    async def main(base: str) -> None:
        said = await told(base, ask)
        assert f"the controller {base} has a TLS certificate that is not trusted" in said
        assert "self-signed" in said
        for way in ("--ca-file", "ca_file=", "SSL_CERT_FILE"):
            assert way in said
        client = ControllerClient(base, Clock(), ca_file=own)
        with pytest.raises(RequestRefused):  # the 404 of a server that it trusts
            await ask(client)
        await client.close()

    on_server(own, main)


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"host": "DNS:builds.example.com"}, "for another host"),
        ({"host": "IP:192.0.2.1"}, "for another host"),
        ({"days": -1}, "has expired"),
    ],
    ids=["another name", "another address", "expired"],
)
def test_what_is_wrong_with_a_certificate_is_said(
    certificate: Callable[..., Path], ask: Ask, given: dict[str, Any], says: str
) -> None:
    file = certificate(**given)

    async def main(base: str) -> None:
        said = await told(base, ask, ca_file=file)
        assert says in said
        assert "--ca-file" not in said, "it would not help"

    on_server(file, main)


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_a_port_that_speaks_no_tls(ask: Ask) -> None:
    async def main(base: str) -> None:
        assert "does not use TLS; write http://" in await told(base, ask)

    on_server(None, main)


def test_http_to_a_port_that_speaks_tls(certificate: Callable[..., Path]) -> None:
    async def main(base: str) -> None:
        plain = base.replace("https:", "http:")
        client = ControllerClient(plain, Clock())
        with pytest.raises(StoreUnavailable) as error:
            await ASKS["a request"](client)
        assert f"if it uses TLS, write {base}" in str(error.value)
        await client.close()

    on_server(certificate(), main)


def test_a_proxy_that_says_it_speaks_tls() -> None:
    text = "<html><h1>400</h1>The plain HTTP request was sent to HTTPS port</html>"
    error = error_of(httpx.Response(400, text=text), "http://builds:443")
    assert "it uses TLS; write https://builds:443" in str(error)
    assert "TLS" not in str(error_of(httpx.Response(400, text="no"), "http://builds"))


@pytest.mark.parametrize("content", [None, "no certificate"], ids=["missing", "empty"])
def test_an_unreadable_certificate_file_is_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    file = tmp_path / "nope.pem"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with pytest.raises(ConfigError, match=f"SSL_CERT_FILE = '{file}'"):
        ControllerClient("https://builds", Clock())


def test_certificates_are_not_loaded_for_plain_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "nope.pem"))

    async def main() -> None:
        client = ControllerClient(f"http://{HOST}:{free_port()}", Clock())
        with pytest.raises(NoAnswer, match="cannot be reached"):
            await ASKS["a request"](client)
        await client.close()

    asyncio.run(main())


def test_the_environment_is_heeded(
    certificate: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = certificate()
    monkeypatch.setenv("SSL_CERT_FILE", str(own))

    async def main(base: str) -> None:
        for ask in ASKS.values():
            client = ControllerClient(base, Clock())
            with pytest.raises(RequestRefused):
                await ask(client)
            await client.close()

    on_server(own, main)


def test_a_queue_and_an_agent(
    certificate: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = certificate()
    token = tmp_path / "token"
    write_private(token, "secret")

    async def main(base: str) -> None:
        async with pollwise.open(f"{base}?queue=mail&token_file={token}") as queue:
            with pytest.raises(StoreUnavailable, match="not trusted"):  # who has it renewed?
                await queue.stats()
        async with pollwise.open(f"{base}?token_file={token}&ca_file={own}") as queue:
            assert f"ca_file={own}".replace("/", "%2F") in queue.url.replace("/", "%2F")
            with pytest.raises(RequestRefused):
                await queue.stats()
        given: dict[str, Any] = {"token_file": token, "folder": tmp_path / "work", "signals": False}
        agent = Agent(AgentOptions(base, [sys.executable], **given))
        with pytest.raises(ConfigError, match="not trusted"):
            await asyncio.wait_for(agent.run(), 20)
        agent = Agent(AgentOptions(base, [sys.executable], ca_file=own, **given))
        with pytest.raises(RequestRefused, match="404"):
            await asyncio.wait_for(agent.run(), 20)

    on_server(own, main)


def test_a_file_that_holds_no_certificate(tmp_path: Path) -> None:
    for file in (tmp_path / "missing.pem", tmp_path / "empty.pem"):
        (tmp_path / "empty.pem").write_text("nothing")
        with pytest.raises(ConfigError, match=f"ca_file = .*{file.name}.*in PEM"):
            ControllerClient("https://builds.example.com", Clock(), ca_file=file)
