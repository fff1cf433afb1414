"""A receiver of webhooks that records every request, and gives the answers of the test."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Request:
    """A request byte by byte; names of headers as they were written."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes

    def __getitem__(self, name: str) -> str:
        (found,) = [value for key, value in self.headers if key.lower() == name.lower()]
        return found

    def __contains__(self, name: str) -> bool:
        return any(key.lower() == name.lower() for key, _ in self.headers)


@dataclass
class Receiver:
    """answers: sent one after the other, the last one again and again; None never answers."""

    port: int = 0
    answers: list[bytes | None] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    serving: set[asyncio.Task[Any]] = field(default_factory=set)

    def answer(self, *statuses: str | None, headers: str = "", body: bytes = b"") -> None:
        size = f"Content-Length: {len(body)}\r\n"
        self.answers = [
            None if status is None else f"HTTP/1.1 {status}\r\n{headers}{size}\r\n".encode() + body
            for status in statuses
        ]

    def url(self, path: str = "/events", user: str = "") -> str:
        return f"http://{user}127.0.0.1:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task
        self.serving.add(task)  # a reference, so that it is not collected
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                pairs = [line.partition(": ")[::2] for line in head[1:] if line]
                size = next(int(value) for key, value in pairs if key.lower() == "content-length")
                body = await reader.readexactly(size)
                self.requests.append(Request(head[0], pairs, body))
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if answer is None:
                    await asyncio.Event().wait()
                    return
                if not answer:
                    return
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return
        finally:
            self.serving.discard(task)
            writer.close()


@asynccontextmanager
async def receiving(port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    receiver = Receiver()
    receiver.answer("204 No Content")
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", port, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        serving = list(receiver.serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
