"""Attackers: raw bytes over real sockets to a real `pollwise serve`."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.agent.processes import ServeProcess
from tests.support.daemons import HOST, Keeper

DEADLINE = 240.0


class Served(ServeProcess):
    """`pollwise serve` with more options, and facts that attackers need."""

    def __init__(
        self,
        keeper: Keeper,
        *options: object,
        store: str | None = None,
        beside: ServeProcess | None = None,
        **settings: str,
    ) -> None:
        super().__init__(keeper, store, beside, **settings)
        self.options = options

    def command(self) -> Sequence[object]:
        return [*super().command(), *self.options]

    def memory(self) -> float:
        """Its resident memory, in MiB."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * 4096 / 2**20

    def register(self, name: str = "mini", **capabilities: Any) -> dict[str, str]:
        """A worker's id and the header of its own token."""
        body = {"name": name, "capabilities": capabilities}
        told = self.ask("POST", "/api/workers/register", json=body)
        return {"id": told["worker_id"], "Authorization": f"Bearer {told['token']}"}


@contextlib.contextmanager
def dialled(port: int) -> Iterator[socket.socket]:
    with socket.create_connection((HOST, port), timeout=DEADLINE) as line:
        yield line


def said(
    port: int, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> tuple[int, str, str]:
    """Send a request unchanged; returns status, head and body of the answer."""
    lines = {"Host": "x", "Connection": "close", "Content-Length": str(len(body))}
    lines |= headers or {}
    head = f"{method} {path} HTTP/1.1\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    with dialled(port) as line:
        return answered(line, head.encode("latin-1") + b"\r\n" + body)


def answered(line: socket.socket, data: bytes) -> tuple[int, str, str]:
    """Send raw bytes; returns status, head and body of the answer, (0, "", "") for a plain
    close."""
    with contextlib.suppress(OSError):
        line.sendall(data)
    got = b""
    with contextlib.suppress(ConnectionError):
        while piece := line.recv(65536):
            got += piece
    head, _, body = got.partition(b"\r\n\r\n")
    if not head:
        return 0, "", ""
    return int(head.split(None, 2)[1]), head.decode("latin-1"), body.decode("utf-8", "replace")


def code_of(body: str) -> str:
    return str(json.loads(body)["error"]["code"])


def is_cut(line: socket.socket, within: float = DEADLINE, drip: bytes = b"") -> bool:
    """True if the server ends this connection, even if it gets a byte from time to time."""
    until = time.monotonic() + within
    line.settimeout(0.1)
    while time.monotonic() < until:
        try:
            if drip:
                line.sendall(drip)
            if not line.recv(65536):
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False
