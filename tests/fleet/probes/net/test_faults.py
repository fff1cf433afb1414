"""Every network probe against servers that hang, drip, flood, lie or hang up.

Whatever a server does, the poll fails with an error that names it, or is cut off at its timeout;
the connection is closed, and only a bounded amount is received.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pollwise.errors import ProbeError
from pollwise.fleet.probes.net.conversation import connected
from tests.fleet.probes.kit import polled, really
from tests.fleet.probes.net.servers import place, served

#: Every network probe that talks, with options that make it read.
PROBES: dict[str, tuple[str, dict[str, Any]]] = {
    "tcp": ("tcp", {"read": True}),
    "tcp over tls": ("tcp", {"read": True, "tls": True}),
    "smtp": ("smtp", {}),
    "smtp with starttls": ("smtp", {"starttls": True}),
    "smtp over tls": ("smtp", {"tls": True}),
    "imap": ("imap", {}),
    "imap with starttls": ("imap", {"starttls": True}),
    "certificate": ("certificate", {}),
    "certificate of smtp": ("certificate", {"starttls": "smtp"}),
    "certificate of imap": ("certificate", {"starttls": "imap"}),
    "certificate of postgres": ("certificate", {"starttls": "postgres"}),
    "grpc": ("grpc", {}),
    "grpc over tls": ("grpc", {"tls": True}),
    "websocket": ("websocket", {"read": True}),
}
#: What a server of each protocol may say first, so that a fault also comes in the middle.
OPENINGS = (
    b"220 mail.example\r\n",
    b"* OK ready\r\n",
    b"S",
    b"\0\0\0\4\0\0\0\0\0",
    b"HTTP/1.1 101 Switching Protocols\r\n",
    b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03",
)

Writer = asyncio.StreamWriter


async def hang(writer: Writer) -> None:
    await asyncio.Event().wait()


async def hang_up(writer: Writer) -> None:
    writer.close()


async def reset(writer: Writer) -> None:
    writer.transport.abort()


def sends(data: bytes) -> Callable[[Writer], Awaitable[None]]:
    """Sends this without end."""

    async def flood(writer: Writer) -> None:
        while True:
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(0)

    return flood


FAULTS = {
    "hangs": hang,
    "hangs up": hang_up,
    "resets": reset,
    "drips": sends(b"2"),
    "sends one endless line": sends(b"x" * 65536),
    "sends lines without end": sends(b"250-more\r\n* more\r\n" * 4096),
    "sends frames without end": sends(b"\0\0\0\4\0\0\0\0\0" * 4096),
    "sends zeros without end": sends(b"\0" * 65536),
    "sends random bytes": sends(bytes((n * n * 7 + n) % 251 for n in range(65536))),
}


@pytest.mark.parametrize("opening", [b"", *OPENINGS], ids=lambda each: repr(each[:12]))
@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_misbehaves_fails_its_own_poll_alone(fault: str, opening: bytes) -> None:
    sent: list[int] = []

    async def misbehave(reader: asyncio.StreamReader, writer: Writer) -> None:
        writer.write(opening)
        end = asyncio.ensure_future(FAULTS[fault](writer))
        try:
            while await reader.read(65536):
                pass
        finally:
            end.cancel()
            sent.append(1)

    async def one(name: str, address: str) -> None:
        type, options = PROBES[name]
        try:
            await polled(type, timeout=0.2, **{**place(type, address), **options})
            outcome = "a reading"
        except (ProbeError, TimeoutError) as error:
            outcome = str(error)[:400] or "the timeout"
        # For a probe of tcp, any line is a reading.
        assert address in outcome or outcome == "the timeout" or type == "tcp", (name, outcome)

    async def main() -> None:
        async with served(misbehave) as address:
            await asyncio.gather(*(one(name, address) for name in PROBES))
            while len(sent) < len(PROBES):  # every connection was closed
                await asyncio.sleep(0)

    really(main)


def test_no_more_is_received_than_is_allowed() -> None:
    async def flood(reader: asyncio.StreamReader, writer: Writer) -> None:
        await FAULTS["sends zeros without end"](writer)

    async def main() -> int:
        async with served(flood) as address:
            host, _, port = address.partition(":")
            with pytest.raises(ProbeError, match="sent more than 1,000 bytes"):
                async with connected(host, int(port), 1000) as talk:
                    await talk.exactly(10**9)
            return len(talk._received)

    assert really(main) <= 256 * 1024  # what asyncio reads at once
