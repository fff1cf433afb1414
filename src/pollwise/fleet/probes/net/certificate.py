"""A certificate: when does it expire, who issued it, and for which names?

    [[target]]
    name = "certificate of the shop"
    type = "certificate"
    address = "shop.example"
    interval = "1h"
    alerts = [{ when = "days_left < 14d" }]

Other probes over TLS have `days_left` too. This one asks only for the certificate, and also asks
servers that begin without TLS. A renewed certificate is a change.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from pollwise.core.outcome import Plain
from pollwise.errors import MissingExtra
from pollwise.fleet.probes.net import imap, smtp
from pollwise.fleet.probes.net.conversation import (
    Conversation,
    TlsOptions,
    address_of,
    connected,
    shown_address,
    summary_of,
)
from pollwise.fleet.probes.options import ProbeOptions, failed
from pollwise.fleet.targets import ProbeContext, Reading, Target

try:
    from cryptography import x509

    from pollwise.fleet.probes.http.certificates import UNREADABLE
except ImportError as error:
    raise MissingExtra("a probe of certificates", "fleet") from error

#: Maximum size of what is received before TLS begins, in bytes.
BEFORE_TLS_MAX = 64 * 1024
#: How much of a certificate's texts is kept, in characters.
_TEXT_MAX = 200
#: The request of Postgres' protocol to continue over TLS, and its answer if the server does.
_POSTGRES_REQUEST = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")

FACTS = {
    "value": "the SHA-256 fingerprint of the certificate",
    "days_left": "days until the certificate expires; negative if it has expired",
    "expires": "when it expires, in UTC: 2027-01-31T12:00:00Z",
    "issuer": "who issued it",
    "subject": "the common name of its subject",
    "names": "the names it is valid for, up to 200 characters",
    "ms": "milliseconds until the handshake was over",
    "warning": "a text, if it expires sooner than `tls_warning`",
}


class CertificateProbe:
    """Reads a certificate. Options: address (port 443, or that of starttls), starttls ("smtp",
    "imap" or "postgres"), server_name, verify, ca, tls_warning."""

    __slots__ = ("_ask", "_port", "_tls", "host")

    def __init__(self, target: Target) -> None:
        options = ProbeOptions(target)
        port, self._ask = 443, None
        if options.has("starttls"):
            port, self._ask = STARTTLS[options.one_of("starttls", tuple(STARTTLS), "smtp")]
        self.host: str
        self.host, self._port = address_of(options, port)
        self._tls = TlsOptions(options, self.host)
        options.finish()

    async def __call__(self, target: Target, context: ProbeContext) -> Reading:
        loop = asyncio.get_running_loop()
        began = loop.time()
        at_once = self._tls if self._ask is None else None
        async with connected(self.host, self._port, BEFORE_TLS_MAX, at_once) as talk:
            if self._ask is not None:
                await self._ask(talk)
                await talk.secure(self._tls)
            took = round((loop.time() - began) * 1000, 1)
            facts: dict[str, Plain] = {}
            self._tls.note(facts, talk, context.epoch)
            raw = talk.certificate() or b""
        read = described(raw)
        if read is None or "days_left" not in facts:
            where = shown_address(self.host, self._port)
            raise failed(f"{where}: the certificate cannot be read")
        facts = {**facts, **read, "ms": took}
        left = facts["days_left"]
        until = f"{left:g} days left, until {read['expires']}"
        issuer = f"issued by {read['issuer']}" if read["issuer"] else ""
        return Reading(
            hashlib.sha256(raw).hexdigest(), None, facts, summary_of(facts, until, issuer[:80])
        )


def described(raw: bytes) -> dict[str, Plain] | None:
    """The facts of a certificate (DER); None if it cannot be read."""
    try:
        read = x509.load_der_x509_certificate(raw)
        expires = read.not_valid_after_utc
        return {
            "expires": _written(expires),
            "issuer": _name(read.issuer, x509.NameOID.ORGANIZATION_NAME)
            or _name(read.issuer, x509.NameOID.COMMON_NAME),
            "subject": _name(read.subject, x509.NameOID.COMMON_NAME),
            "names": _names(read),
        }
    except UNREADABLE:
        return None


def _names(read: x509.Certificate) -> str:
    try:
        found = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (
        x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError
    ):  # fmt: skip
        return ""
    named = (each.value for each in found if isinstance(each, (x509.DNSName, x509.IPAddress)))
    return _plain(", ".join(str(each) for each in named))


def _name(name: x509.Name, kind: x509.ObjectIdentifier) -> str:
    found = name.get_attributes_for_oid(kind)
    return _plain(str(found[0].value)) if found else ""


def _plain(text: str) -> str:
    return "".join(c for c in text[:_TEXT_MAX] if c.isprintable())


def _written(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def _ask_smtp(talk: Conversation) -> None:
    code, lines = await smtp.answer(talk)
    if code != 220:
        raise ValueError(f"no service: {code} {lines[0][:80]!r}")
    await smtp.ask_for_tls(talk, await smtp.offered(talk, "localhost"))


async def _ask_imap(talk: Conversation) -> None:
    await imap.greeting(talk)
    await imap.command(talk, "STARTTLS")


async def _ask_postgres(talk: Conversation) -> None:
    talk.send(_POSTGRES_REQUEST)
    if await talk.exactly(1) != b"S":
        raise ValueError("does not offer TLS, or is not Postgres")


#: How a server is asked for TLS, by its protocol, with the protocol's port.
STARTTLS: dict[str, tuple[int, Callable[[Conversation], Awaitable[None]]]] = {
    "smtp": (25, _ask_smtp),
    "imap": (143, _ask_imap),
    "postgres": (5432, _ask_postgres),
}


make = CertificateProbe
