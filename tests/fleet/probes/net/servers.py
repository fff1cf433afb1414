"""Servers for the tests of network probes: well-behaved ones, and those that misbehave."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection

from pollwise.errors import ConfigError, ProbeError
from pollwise.fleet.probes import make_probe
from pollwise.fleet.targets import Target
from tests.fleet.probes.kit import polled, really
from tests.support.daemons import HOST

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def served(handler: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server whose connections a function handles; its address."""
    tasks: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with suppress(OSError, EOFError, asyncio.CancelledError):
                await handler(reader, writer)
        finally:
            tasks.discard(task)
            writer.transport.abort() if writer.transport.is_closing() else writer.close()

    server = await asyncio.start_server(serve, HOST, 0, ssl=context)
    try:
        yield f"{HOST}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        while tasks:
            await asyncio.sleep(0)
        await asyncio.sleep(0)


def refusal(type: str, **options: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        make_probe(Target("t", type, options=options))
    return str(raised.value)


def failure(
    handler: Handler, type: str, context: ssl.SSLContext | None = None, **options: Any
) -> ProbeError:
    """The error of a poll of this server."""

    async def main() -> ProbeError:
        async with served(handler, context) as address:
            with pytest.raises(ProbeError) as raised:
                await polled(type, **{**place(type, address), **options})
            return raised.value

    return really(main)


def place(type: str, address: str) -> dict[str, str]:
    return {"url": f"ws://{address}/"} if type == "websocket" else {"address": address}


def mail_server(
    greeting: str, answers: dict[str, str], context: ssl.SSLContext | None = None
) -> Handler:
    """Answers commands, by their last word in SMTP's or IMAP's sense; STARTTLS begins TLS."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"{greeting}\r\n".encode())
        while line := (await reader.readline()).decode().strip():
            word = next((each for each in answers if each in line), None)
            writer.write((answers[word] if word else "500 what?\r\n").encode())
            await writer.drain()
            if word == "STARTTLS" and context is not None:
                await writer.start_tls(context)
            if word in ("QUIT", "LOGOUT"):
                return

    return handle


SMTP = {
    "EHLO": "250-mail.example\r\n250-SIZE 1000\r\n250-STARTTLS\r\n250 8BITMIME\r\n",
    "STARTTLS": "220 go ahead\r\n",
    "QUIT": "221 bye\r\n",
}
IMAP = {
    "CAPABILITY": "* CAPABILITY IMAP4rev1 STARTTLS IDLE\r\na OK done\r\n",
    "STARTTLS": "a OK begin\r\n",
    "LOGOUT": "* BYE\r\nz OK\r\n",
}


def smtp_server(context: ssl.SSLContext | None = None, **answers: str) -> Handler:
    return mail_server("220 mail.example ESMTP 4711", {**SMTP, **answers}, context)


def imap_server(context: ssl.SSLContext | None = None, **answers: str) -> Handler:
    return mail_server("* OK mail.example ready", {**IMAP, **answers}, context)


def grpc_server(
    body: bytes = b"\0\0\0\0\2\x08\x01",
    trailers: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
    asked: list[tuple[dict[str, str], bytes]] | None = None,
) -> Handler:
    """Answers each call so; `trailers` of None are those of a success."""
    ends = {"grpc-status": "0"} if trailers is None else trailers
    begins = {":status": "200", "content-type": "application/grpc", **(headers or {})}

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        server.initiate_connection()
        said: dict[str, str] = {}
        received = b""
        while data := await reader.read(65536):
            for event in server.receive_data(data):
                if isinstance(event, events.RequestReceived):
                    said = {str(name): str(value) for name, value in event.headers}
                elif isinstance(event, events.DataReceived):
                    received += event.data
                elif isinstance(event, events.StreamEnded):
                    if asked is not None:
                        asked.append((said, received))
                    server.send_headers(1, list(begins.items()))
                    server.send_data(1, body, end_stream=not ends)
                    if ends:
                        server.send_headers(1, list(ends.items()), end_stream=True)
            writer.write(server.data_to_send())
            await writer.drain()

    return handle
