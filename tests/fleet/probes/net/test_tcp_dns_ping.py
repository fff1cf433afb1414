"""Probes of TCP, DNS and ping against real sockets."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest

from pollwise.errors import ConfigError, ProbeError
from pollwise.fleet.probes import host_of, make_probe
from pollwise.fleet.probes.net import ping
from pollwise.fleet.probes.net.ping import checksum
from pollwise.fleet.targets import Target
from tests.fleet.probes.kit import certificate, page, polled, really, web
from tests.support.daemons import HOST


def refusal(type: str, **options: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        make_probe(Target("t", type, options=options))
    return str(raised.value)


# TCP


@asynccontextmanager
async def listener(says: bytes, hear: list[bytes] | None = None) -> AsyncIterator[str]:
    """Says something to everybody, after a line was heard if `hear` is given; then hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if hear is not None:
                hear.append(await reader.readline())
            writer.write(says)
            await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    async with server:
        yield f"{HOST}:{server.sockets[0].getsockname()[1]}"


def test_a_port_is_open_or_it_is_not() -> None:
    async def main() -> None:
        async with listener(b"") as address:
            found = await polled("tcp", address=address)
            assert found.value == "open"
            assert isinstance(found.facts["ms"], float)
        with pytest.raises(ProbeError, match=HOST) as raised:
            await polled("tcp", address=address)
        assert str(raised.value) == f"{address}: connection refused"
        assert not raised.value.permanent

    really(main)


def test_the_first_line_is_the_reading() -> None:
    async def main() -> None:
        async with listener(b"220 mail.example ESMTP 4711\r\nmore") as address:
            assert (await polled("tcp", address=address, read=True)).value == (
                "220 mail.example ESMTP 4711"
            )
            found = await polled("tcp", address=address, regex=r"^220 (\S+)")
            assert found.value == "mail.example"
            with pytest.raises(ProbeError, match="does not match"):
                await polled("tcp", address=address, regex="^554")

    really(main)


def test_something_is_sent_first() -> None:
    async def main() -> None:
        heard: list[bytes] = []
        async with listener(b"PONG", heard) as address:
            assert (await polled("tcp", address=address, send="PING\n", read=True)).value == "PONG"
        assert heard == [b"PING\n"]

    really(main)


@pytest.mark.parametrize("says", [b"", b"\xff" * 1_000_000])
def test_no_line_or_a_far_too_long_one(says: bytes) -> None:
    async def main() -> None:
        async with listener(says) as address:
            if says:
                found = await polled("tcp", address=address, read=True)
                assert str(found.value).startswith("sha256:")
            else:
                with pytest.raises(ProbeError, match="without sending anything"):
                    await polled("tcp", address=address, read=True)

    really(main)


def test_a_silent_server_is_cut_off_at_the_timeout() -> None:
    async def main() -> None:
        hung = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()
            hung.set()

        server = await asyncio.start_server(silent, HOST, 0)
        async with server:
            address = f"{HOST}:{server.sockets[0].getsockname()[1]}"
            with pytest.raises(TimeoutError):
                await polled("tcp", timeout=0.1, address=address, read=True)
            await hung.wait()  # the connection was ended

    really(main)


def test_tls_reports_when_the_certificate_expires(tmp_path: Path) -> None:
    made_one = certificate(tmp_path, days=5)

    async def main() -> None:
        async with web(page("x"), made_one.context()) as server:
            address = f"{HOST}:{server.port}"
            found = await polled("tcp", address=address, tls=True, ca=str(made_one.file))
            assert found.facts["days_left"] == pytest.approx(5, abs=0.2)
            assert "expires in" in found.summary
            assert (await polled("tcp", address=address, tls=True, verify=False)).facts["warning"]
            with pytest.raises(ProbeError, match=r"self.signed"):
                await polled("tcp", address=address, tls=True)

    really(main)


@pytest.mark.parametrize("address", ["", "host", "host:0", "host:99999", "::1:80", "http://x:80/"])
def test_an_address_is_checked(address: str) -> None:
    assert "address" in refusal("tcp", address=address)
    target = Target("t", "tcp", options={"address": "[::1]:80"})
    assert host_of(target, make_probe(target)) == "::1"


# DNS

Records = Callable[[str, str], list[str] | dns.rcode.Rcode | None]


@asynccontextmanager
async def name_server(records: Records, *, truncates: bool = False) -> AsyncIterator[str]:
    """Answers over UDP, and over TCP on the same port; None is silence."""

    def answer(raw: bytes, udp: bool) -> bytes | None:
        query = dns.message.from_wire(raw)
        question = query.question[0]
        kind = dns.rdatatype.to_text(question.rdtype)
        found = records(question.name.to_text(omit_final_dot=True), kind)
        if found is None:
            return None
        response = dns.message.make_response(query)
        if isinstance(found, dns.rcode.Rcode):
            response.set_rcode(found)
        elif truncates and udp:
            response.flags |= dns.flags.TC
        elif found:
            response.answer.append(dns.rrset.from_text(question.name, 300, "IN", kind, *found))
        return response.to_wire()

    class Udp(asyncio.DatagramProtocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def datagram_received(self, data: bytes, addr: Any) -> None:
            said = answer(data, True)
            if said is not None:
                self.transport.sendto(said, addr)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int.from_bytes(await reader.readexactly(2), "big")
        said = answer(await reader.readexactly(size), False)
        if said is not None:
            writer.write(len(said).to_bytes(2, "big") + said)
        writer.close()

    loop = asyncio.get_running_loop()
    server = await asyncio.start_server(serve, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    transport, _ = await loop.create_datagram_endpoint(Udp, (HOST, port))
    try:
        async with server:
            yield f"{HOST}:{port}"
    finally:
        transport.close()


def test_a_name_is_what_its_servers_say_in_any_order() -> None:
    orders = [["10.0.0.2", "10.0.0.1"], ["10.0.0.1", "10.0.0.2"]]

    async def main() -> None:
        async with name_server(lambda *_: orders.pop()) as server:
            first = await polled("dns", domain="shop.example", server=server)
            second = await polled("dns", domain="shop.example", server=server)
        assert first.value == second.value == "10.0.0.1\n10.0.0.2"
        assert first.facts["ttl"] == 300
        assert first.facts["answers"] == 2

    really(main)


def test_other_records_and_long_answers() -> None:
    def records(name: str, kind: str) -> list[str]:
        return {"MX": ["10 mail.example."], "TXT": [f'"{n} {"x" * 200}"' for n in range(20)]}[kind]

    async def main() -> None:
        async with name_server(records, truncates=True) as server:  # so TCP is asked
            found = await polled("dns", domain="a.example", record="mx", server=server)
            assert found.value == "10 mail.example."
            found = await polled("dns", domain="a.example", record="TXT", server=server)
            assert str(found.value).startswith("sha256:")
            assert found.facts["answers"] == 20

    really(main)


@pytest.mark.parametrize(
    ("says", "permanent"),
    [(dns.rcode.NXDOMAIN, True), ([], True), (dns.rcode.SERVFAIL, False), (None, False)],
)
def test_no_such_name_is_permanent_and_no_answer_is_not(says: Any, permanent: bool) -> None:
    async def main() -> None:
        async with name_server(lambda *_: says) as server:
            with pytest.raises((ProbeError, TimeoutError)) as raised:
                await polled("dns", timeout=1.0, domain="a.example", server=server)
            assert getattr(raised.value, "permanent", False) is permanent

    really(main)


def test_garbage_is_not_an_answer() -> None:
    class Garbage(asyncio.DatagramProtocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def datagram_received(self, data: bytes, addr: Any) -> None:
            self.transport.sendto(data[:2] + b"\x80" + os.urandom(40), addr)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(Garbage, (HOST, 0))
        port = transport.get_extra_info("sockname")[1]
        try:
            with pytest.raises((ProbeError, TimeoutError)):
                await polled("dns", timeout=1.0, domain="a.example", server=f"{HOST}:{port}")
        finally:
            transport.close()

    really(main)


def test_options_of_dns_are_checked() -> None:
    assert "domain is missing" in refusal("dns")
    assert "did you mean 'aaaa'?" in refusal("dns", domain="x", record="AAA")
    assert "must be an address" in refusal("dns", domain="x", server="resolver.example")
    assert "is not a domain name" in refusal("dns", domain="a" * 70)


# Ping

PINGED = """
import asyncio
from tests.fleet.probes.kit import polled, really
found = really(lambda: polled("ping", address={address!r}, count=2))
assert found.value == "reachable" and found.facts["lost"] == 0, found
print(found.summary)
"""


def permitted() -> bool:
    for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
        try:
            socket.socket(socket.AF_INET, kind, socket.IPPROTO_ICMP).close()
        except OSError:
            continue
        return True
    return False


@pytest.mark.skipif(not permitted(), reason="this process may not send pings")
def test_a_host_answers() -> None:
    found = really(lambda: polled("ping", address=HOST, count=3))
    assert found.value == "reachable"
    assert found.facts["lost"] == 0
    assert float(str(found.facts["ms"])) < 1000


@pytest.mark.skipif(
    not (shutil.which("unshare") and shutil.which("sysctl") and os.geteuid() == 0),
    reason="only root makes network namespaces",
)
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_host_answers_without_privilege_where_the_kernel_permits_it(address: str) -> None:
    # In a network of its own, so that this machine's settings stay as they are.
    shell = (
        "ip link set lo up; sysctl -qw net.ipv4.ping_group_range='0 2147483647'; "
        'exec setpriv --bounding-set=-net_raw --inh-caps=-net_raw "$0" -c "$1"'
    )
    code = PINGED.format(address=address)
    run = subprocess.run(
        ["unshare", "--net", "sh", "-c", shell, sys.executable, code],
        capture_output=True,
        text=True,
        timeout=50,
        cwd=Path(__file__).parents[4],
    )
    if "Operation not permitted" in run.stderr or "not found" in run.stderr:
        pytest.skip(run.stderr.strip()[-200:])
    assert run.returncode == 0, run.stderr
    assert "ms" in run.stdout


@pytest.mark.skipif(not permitted(), reason="this process may not send pings")
def test_no_answer_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    # No system answers an ICMP message of an unknown type.
    unknown = ping._CODES[socket.AF_INET]._replace(request=253)
    monkeypatch.setitem(ping._CODES, socket.AF_INET, unknown)

    async def main() -> None:
        with pytest.raises(ProbeError) as raised:
            await polled("ping", address=HOST, wait="50ms", count=2)
        assert not raised.value.permanent

    really(main)


def test_a_refused_socket_is_reported_with_advice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = socket.socket

    def forbidden(family: int = -1, kind: int = -1, proto: int = -1, *more: Any) -> socket.socket:
        if proto in (socket.IPPROTO_ICMP, socket.IPPROTO_ICMPV6):
            raise PermissionError(1, "Operation not permitted")
        return real(family, kind, proto, *more)

    async def main() -> None:
        monkeypatch.setattr("pollwise.fleet.probes.net.ping.socket.socket", forbidden)
        with pytest.raises(ProbeError, match="ping_group_range") as raised:
            await polled("ping", address=HOST)
        assert raised.value.permanent

    really(main)


def test_a_name_that_is_not_known_may_pass() -> None:
    async def main() -> None:
        with pytest.raises(ProbeError, match="cannot be resolved"):
            await polled("ping", address="nowhere.invalid")

    really(main)


def test_checksum_is_that_of_rfc_1071() -> None:
    assert checksum(bytes.fromhex("0001f203f4f5f6f7")) == 0x220D
    assert "not a URL" in refusal("ping", address="http://x/")
