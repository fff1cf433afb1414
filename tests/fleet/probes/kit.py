"""Shared by the probe tests: one poll as a fleet makes it, and a scripted server."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pollwise.fleet.probes import facts_of, make_probe
from pollwise.fleet.probes.kept import connections
from pollwise.fleet.targets import ProbeContext, Reading, Target
from tests.support.daemons import HOST, Missing

T = TypeVar("T")

#: A local operation that takes longer than this many seconds fails its test.
PATIENCE = 240.0


def really(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a test against real servers, in real time; connections are closed at its end."""

    async def within() -> T:
        async with asyncio.timeout(PATIENCE), connections():
            return await main()

    return asyncio.run(within())


async def polled(
    type: str, last: Reading | None = None, timeout: float = PATIENCE, **options: Any
) -> Reading:
    """Poll a target once, with a timeout as in a fleet."""
    return await poll(Target("t", type, options=options), last, timeout)


async def poll(target: Target, last: Reading | None = None, timeout: float = PATIENCE) -> Reading:
    context = ProbeContext(last, asyncio.get_running_loop().time() + timeout, time.time())
    async with asyncio.timeout(timeout):
        reading = Reading.of(await make_probe(target)(target, context))
    declared = facts_of(target.type)
    assert declared is None or set(reading.facts) <= set(declared), "FACTS lacks a fact"
    return reading


@dataclass
class Request:
    """What a client sent."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int


HttpAnswer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Web:
    """A server on loopback. What `answer` returns is sent as it is."""

    answer: Callable[[Request], HttpAnswer]
    port: int = 0
    scheme: str = "http"
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def url(self, path: str = "/") -> str:
        return f"{self.scheme}://{HOST}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.strip().split("\r\n")
                method, path, _ = first.split(" ", 2)
                headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                request = Request(method, path, headers, body, number)
                self.requests.append(request)
                answer = self.answer(request)
                if isinstance(answer, bytes):
                    writer.write(answer)
                    await writer.drain()
                else:
                    await answer(writer)
        except (OSError, EOFError, asyncio.CancelledError):  # its server ends
            pass
        finally:
            writer.transport.abort() if writer.transport.is_closing() else writer.close()
            self.tasks.discard(task)


def page(
    body: bytes | str = b"", status: str = "200 OK", length: int | None = None, **headers: str
) -> bytes:
    """An answer: `page("hello", etag='"1"')`."""
    raw = body.encode() if isinstance(body, str) else body
    size = len(raw) if length is None else length
    told = {"content-length": str(size), **{k.replace("_", "-"): v for k, v in headers.items()}}
    lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode("latin-1") + raw


@asynccontextmanager
async def web(
    answer: bytes | Callable[[Request], HttpAnswer], context: ssl.SSLContext | None = None
) -> AsyncIterator[Web]:
    """A server with these answers; over TLS if a context is given."""
    said = answer
    serving = Web((lambda _: said) if isinstance(said, bytes) else said)
    server = await asyncio.start_server(serving.serve, HOST, 0, ssl=context)
    serving.port = server.sockets[0].getsockname()[1]
    serving.scheme = "https" if context else "http"
    try:
        yield serving
    finally:
        server.close()
        # Handlers that wait for more requests are ended with their server.
        for task in list(serving.tasks):
            task.cancel()
        while serving.tasks:
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # their sockets are closed a turn later


@dataclass(frozen=True)
class Certificate:
    """A self-signed certificate for loopback."""

    file: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.file, self.key)
        return context


def certificate(folder: Path, days: int = 30) -> Certificate:
    openssl = shutil.which("openssl")
    if openssl is None:
        raise Missing("openssl is not installed")
    made_one = Certificate(folder / "cert.pem", folder / "key.pem")
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "ec", "-nodes", "-days", str(days)),
            *("-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=localhost"),
            *("-addext", f"subjectAltName=IP:{HOST},DNS:localhost"),
            *("-keyout", str(made_one.key), "-out", str(made_one.file)),
        ],
        check=True,
        capture_output=True,
    )
    return made_one
