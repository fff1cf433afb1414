"""Ping: does a host answer ICMP echo requests?

    [[target]]
    name = "router"
    type = "ping"
    address = "192.0.2.1"

It uses an ICMP datagram socket, which needs no privilege if the kernel permits it (Linux:
net.ipv4.ping_group_range), or else a raw socket (root, CAP_NET_RAW). If both are refused, the error
says how to permit them.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import struct
from typing import NamedTuple

from pollwise.core.outcome import Plain
from pollwise.fleet.probes.options import ProbeOptions, failed
from pollwise.fleet.targets import ProbeContext, Reading, Target
from pollwise.runtime.redact import shown_url

ADVICE = (
    "this process may not send pings; permit it with "
    "`sysctl -w net.ipv4.ping_group_range='0 2147483647'`, give it CAP_NET_RAW, or use a probe of "
    "type tcp on a port of that host"
)
_HEADER = struct.Struct("!BBHHH")
_COOKIE_BYTES = 16
_numbers = itertools.count(int.from_bytes(os.urandom(2), "big"))


class _IcmpCodes(NamedTuple):
    protocol: int
    request: int
    reply: int


_CODES = {
    socket.AF_INET: _IcmpCodes(socket.IPPROTO_ICMP, 8, 0),
    socket.AF_INET6: _IcmpCodes(socket.IPPROTO_ICMPV6, 128, 129),
}


FACTS = {
    "value": "`reachable`",
    "ms": "milliseconds of the fastest answer",
    "lost": "number of echo requests without an answer",
    "address": "the address that was polled",
}


class PingProbe:
    """Sends echo requests. Options: address, count (1), wait (1s for each answer).

    One answer is enough; the number of lost ones is a fact. No answer at all is a failure.
    """

    __slots__ = ("_count", "_wait", "host")

    def __init__(self, target: Target) -> None:
        options = ProbeOptions(target)
        self.host: str = options.text("address", needed=True).strip().lower()
        if "/" in self.host or "@" in self.host:
            # It may contain a password, and is printed with the target.
            written = shown_url(self.host)
            options.wrong("address", f"= {written!r} must be a host name or address, not a URL")
        self._count = options.whole("count", 1, 1, 100)
        self._wait = options.duration("wait", 1.0)
        options.finish()

    async def __call__(self, target: Target, context: ProbeContext) -> Reading:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self.host, None, type=socket.SOCK_DGRAM)
        except (OSError, UnicodeError) as error:
            raise failed(f"{self.host} cannot be resolved ({error})") from None
        family, _, _, _, address = next((each for each in found if each[0] in _CODES), found[0])
        times: list[float] = []
        with _socket(socket.AddressFamily(family)) as icmp:
            for _ in range(self._count):
                try:
                    async with asyncio.timeout(self._wait):
                        times.append(await _echo(loop, icmp, address))
                except TimeoutError:
                    continue
                except OSError as error:
                    reason = error.strerror or str(error)
                    raise failed(f"{self.host}: {reason}") from None
        if not times:
            raise failed(
                f"{self.host} ({address[0]}): no answer to {self._count} echo request(s) within "
                f"{self._wait:g} s each"
            )
        lost = self._count - len(times)
        facts: dict[str, Plain] = {
            "ms": round(min(times) * 1000, 2),
            "lost": lost,
            "address": str(address[0]),
        }
        summary = f"{facts['ms']} ms" + (f", {lost} of {self._count} lost" if lost else "")
        return Reading("reachable", None, facts, summary)


def _socket(family: socket.AddressFamily) -> socket.socket:
    kind = _CODES[family]
    for way in (socket.SOCK_DGRAM, socket.SOCK_RAW):
        try:
            icmp = socket.socket(family, way, kind.protocol)
        except PermissionError:
            continue
        except OSError as error:
            raise failed(
                f"cannot open a socket for pings: {error.strerror}", permanent=True
            ) from None
        icmp.setblocking(False)
        return icmp
    raise failed(ADVICE, permanent=True)


async def _echo(
    loop: asyncio.AbstractEventLoop, icmp: socket.socket, address: tuple[object, ...]
) -> float:
    """Send one echo request and wait for its answer; returns the time it took, in seconds.

    A raw socket receives the answers to all processes, and a datagram socket late ones: random
    bytes in the request identify its answer.
    """
    kind = _CODES[socket.AddressFamily(icmp.family)]
    cookie = os.urandom(_COOKIE_BYTES)
    number = next(_numbers) & 0xFFFF
    packet = _HEADER.pack(kind.request, 0, 0, os.getpid() & 0xFFFF, number) + cookie
    if icmp.family == socket.AF_INET:  # the kernel computes that of IPv6
        packet = packet[:2] + struct.pack("!H", checksum(packet)) + packet[4:]
    began = loop.time()
    await loop.sock_sendto(icmp, packet, address)
    while True:
        heard, _ = await loop.sock_recvfrom(icmp, 2048)
        if icmp.type == socket.SOCK_RAW and icmp.family == socket.AF_INET and heard:
            heard = heard[(heard[0] & 0x0F) * 4 :]  # skip the IP header
        if heard[:1] == bytes([kind.reply]) and heard[_HEADER.size :].startswith(cookie):
            return loop.time() - began


def checksum(packet: bytes) -> int:
    """The internet checksum (RFC 1071)."""
    padded = packet + b"\0" * (len(packet) % 2)
    total: int = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


make = PingProbe
