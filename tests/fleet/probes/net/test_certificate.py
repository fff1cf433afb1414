"""The probe of certificates: their facts, and how servers are asked for TLS."""

from __future__ import annotations

import asyncio
import hashlib
import random
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from pollwise.errors import ProbeError
from pollwise.fleet.probes import make_probe
from pollwise.fleet.probes.net.certificate import described
from pollwise.fleet.targets import Target
from tests.fleet.probes.kit import Certificate, certificate, page, polled, really, web
from tests.fleet.probes.net.servers import (
    Handler,
    failure,
    imap_server,
    refusal,
    served,
    smtp_server,
)


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificate(tmp_path_factory.mktemp("tls"), days=10)


def postgres_server(made_one: Certificate, says: bytes = b"S") -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(8) == b"\0\0\0\x08\x04\xd2\x16\x2f"
        writer.write(says)
        await writer.start_tls(made_one.context())
        await reader.read()

    return handle


def test_a_certificate_is_read(trusted: Certificate) -> None:
    async def main() -> None:
        async with web(page("x"), trusted.context()) as server:
            address = server.url().removeprefix("https://").removesuffix("/")
            found = await polled("certificate", address=address, ca=str(trusted.file))
            with pytest.raises(ProbeError, match=r"self.signed"):
                await polled("certificate", address=address)
            unverified = await polled("certificate", address=address, verify=False)
            early = await polled("certificate", address=address, verify=False, tls_warning="9d")
        assert found.value == unverified.value
        pem = x509.load_pem_x509_certificate(trusted.file.read_bytes())
        assert found.value == hashlib.sha256(pem.public_bytes(Encoding.DER)).hexdigest()
        assert found.facts["days_left"] == pytest.approx(10, abs=0.2)
        assert str(found.facts["expires"]).endswith("Z")
        assert found.facts["issuer"] == found.facts["subject"] == "localhost"
        assert found.facts["names"] == "127.0.0.1, localhost"
        assert "expires in 10 days" in str(found.facts["warning"])
        assert "warning" not in early.facts
        assert "10 days left, until" in found.summary

    really(main)


@pytest.mark.parametrize("protocol", ["smtp", "imap", "postgres"])
def test_servers_that_begin_without_tls_are_asked_for_it(
    protocol: str, trusted: Certificate
) -> None:
    context = trusted.context()
    server = {
        "smtp": smtp_server(context),
        "imap": imap_server(context),
        "postgres": postgres_server(trusted),
    }[protocol]

    async def main() -> None:
        async with served(server) as address:
            options: dict[str, Any] = {"address": address, "ca": str(trusted.file)}
            options["starttls"] = protocol
            found = await polled("certificate", **options)
            assert found.facts["days_left"] == pytest.approx(10, abs=0.2)
            with pytest.raises(ProbeError, match=r"other\.example"):
                await polled("certificate", **options, server_name="other.example")

    really(main)


def test_a_server_without_tls_is_a_failure(trusted: Certificate) -> None:
    said = str(failure(postgres_server(trusted, b"N"), "certificate", starttls="postgres"))
    assert "does not offer TLS" in said
    said = str(failure(smtp_server(), "certificate", starttls="imap"))
    assert "not IMAP" in said
    more = postgres_server(trusted, b"Sinjected")
    assert "before TLS" in str(failure(more, "certificate", starttls="postgres"))
    assert "SSL" in str(failure(smtp_server(), "certificate"))


@pytest.mark.filterwarnings("ignore:Parsed a")
def test_whatever_a_certificate_contains_is_no_crash(trusted: Certificate) -> None:
    pem = x509.load_pem_x509_certificate(trusted.file.read_bytes())
    raw = pem.public_bytes(Encoding.DER)
    assert described(raw) is not None
    rng = random.Random(7)
    for _ in range(3000):
        broken = bytearray(raw)
        for _ in range(rng.randint(1, 4)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        facts = described(bytes(broken))
        assert facts is None or all(len(str(each)) <= 200 for each in facts.values())
    assert described(b"") is None


def test_options_of_certificates_are_checked(tmp_path: Path) -> None:
    said = refusal("certificate", starttls="ftp", ca=str(tmp_path), verify=1)
    assert "address is missing" in said
    assert "give one of smtp, imap, postgres" in said
    assert "ca" in said
    assert "verify" in said
    for options, port in (
        ({}, 443),
        ({"starttls": "smtp"}, 25),
        ({"starttls": "imap"}, 143),
        ({"starttls": "postgres"}, 5432),
    ):
        probe = make_probe(Target("t", "certificate", options={"address": "a", **options}))
        assert probe._port == port  # type: ignore[attr-defined]
