"""TCP: does a port accept connections, and what is its first line?

[[target]]
name = "mail server"
type = "tcp"
address = "mail.example:25"
regex = "^220 (\\S+)"
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Any

from pollwise.core.outcome import Plain
from pollwise.fleet.probes.options import ProbeOptions, failed
from pollwise.fleet.targets import ProbeContext, Reading, Target
from pollwise.runtime.redact import shown_url

#: Maximum number of bytes read: a line, or this many.
GREETING_MAX = 4096
TLS_WARNING = 14 * 86400.0


FACTS = {
    "value": "`open`; with `read` the first line, with `regex` what it matches there",
    "ms": "milliseconds until the connection was open, TLS included",
    "days_left": "over TLS: days until the server's certificate expires",
    "warning": "over TLS: a text, if the certificate expires sooner than `tls_warning`",
}


class TcpProbe:
    """Connects. Options: address ("host:port"), send, read (use the first line as the reading),
    regex (use what it matches in that line), tls, verify, ca, tls_warning."""

    __slots__ = (
        "_ca", "_pattern", "_port", "_read", "_send", "_tls", "_verify", "_warning", "host",
    )  # fmt: skip

    def __init__(self, target: Target) -> None:
        options = ProbeOptions(target)
        self.host, self._port = address_of(options)
        self._send = options.text("send").encode()
        self._pattern = options.pattern("regex")
        self._read = options.flag("read", self._pattern is not None)
        if self._pattern is not None and not self._read:
            options.wrong("read", "= false contradicts regex, which needs the first line")
        self._tls = options.flag("tls", False)
        if self._tls:
            _certificates()  # a missing extra is reported now
        self._verify = options.flag("verify", True)
        self._ca = options.certificates()
        self._warning = options.duration("tls_warning", TLS_WARNING)
        options.finish()

    async def __call__(self, target: Target, context: ProbeContext) -> Reading:
        loop = asyncio.get_running_loop()
        where, began = f"{self.host}:{self._port}", loop.time()
        facts: dict[str, Plain] = {}
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await asyncio.open_connection(
                self.host,
                self._port,
                limit=GREETING_MAX,
                ssl=self._context() if self._tls else None,
            )
            facts["ms"] = round((loop.time() - began) * 1000, 1)
            secured = writer.get_extra_info("ssl_object")
            if secured is not None:
                _certificates().note_certificate(facts, secured, context.epoch, self._warning)
            if self._send:
                writer.write(self._send)
                await writer.drain()
            said = await _line(reader) if self._read else None
        except (OSError, EOFError, UnicodeError) as error:  # includes errors of ssl
            reason = " ".join(str(error).split())[:160] or type(error).__name__
            raise failed(f"{where}: {reason}") from None
        finally:
            if writer is not None:
                writer.transport.abort()
        value = "open" if said is None else await self._taken(said, where)
        parts = (value[:80], f"{facts['ms']} ms", str(facts.get("warning", "")))
        return Reading(value, None, facts, ", ".join(part for part in parts if part))

    async def _taken(self, said: bytes, where: str) -> str:
        text = said.decode("utf-8", "replace").rstrip("\r\n")
        if self._pattern is None:
            return text
        found = await self._pattern.search(text)
        if found is None:
            raise failed(f"{where}: the first line does not match regex: {text[:80]!r}")
        return found

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._ca)
        if not self._verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _certificates() -> Any:
    from pollwise.fleet.probes.http import certificates

    return certificates


async def _line(reader: asyncio.StreamReader) -> bytes:
    """The first line, or what came before the end, up to GREETING_MAX bytes."""
    try:
        said = await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        said = error.partial
    except asyncio.LimitOverrunError:
        with suppress(asyncio.IncompleteReadError):
            return await reader.readexactly(GREETING_MAX)
        return b""
    if not said:
        raise EOFError("closed without sending anything")
    return said


def address_of(options: ProbeOptions) -> tuple[str, int]:
    """The option `address`, as host and port: "host:5432", "[::1]:5432"."""
    given = options.text("address", needed=True)
    host, _, port = given.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not given:
        return "-", 1
    sound = port.isdecimal() and len(port) < 6 and 0 < int(port) < 65536
    odd = "/" in host or "@" in host or (":" in host and not given.startswith("["))
    if not host or not sound or odd:
        options.wrong(
            "address", f"= {shown_url(given)!r} must be written as 'host:port', or '[::1]:port'"
        )
        return "-", 1
    return host.lower(), int(port)


make = TcpProbe
