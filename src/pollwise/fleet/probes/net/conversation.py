"""A conversation with a server that may hang, drip, send without end, or lie.

What is received is bounded in bytes; the fleet's timeout bounds the time. Every error is a
`ProbeError` that says which server it was. The connection is cut at the end, in any case.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from pollwise.core.outcome import Plain
from pollwise.fleet.probes.options import ProbeOptions, failed
from pollwise.runtime.redact import shown_url

#: A certificate that expires sooner causes a warning, in seconds.
TLS_WARNING = 14 * 86400.0
#: What the certificate of a connection adds to the facts.
TLS_FACTS = {
    "days_left": "over TLS: days until the server's certificate expires",
    "warning": "over TLS: a text, if the certificate expires sooner than `tls_warning`",
}
#: Maximum length of a line, in bytes.
LINE_MAX = 4096
#: Seconds that a server has to answer a goodbye.
GOODBYE = 0.5


class Conversation(asyncio.Protocol):
    """One connection: what was received and not yet read, up to `limit` bytes in all."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.transport: asyncio.Transport
        self._received = bytearray()
        self._count = 0
        self._ended = False
        self._lost: BaseException | None = None
        self._news = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._count += len(data)
        self._received += data
        if self._count > self.limit:
            self.transport.pause_reading()
        self._news.set()

    def eof_received(self) -> None:
        self._ended = True
        self._news.set()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._ended = True
        self._lost = exc
        self._news.set()

    def send(self, data: bytes) -> None:
        self.transport.write(data)

    def start_over(self) -> None:
        """Count from here on what is received: another answer begins."""
        self._count = len(self._received)

    async def line(self) -> str:
        """The next line, without its end; text that is not UTF-8 is replaced."""
        while (end := self._received.find(b"\n")) < 0:
            if len(self._received) > LINE_MAX:
                raise ValueError(f"sent a line of more than {LINE_MAX:,} bytes")
            await self._more()
        if end > LINE_MAX:
            raise ValueError(f"sent a line of more than {LINE_MAX:,} bytes")
        return self._take(end + 1).decode("utf-8", "replace").rstrip("\r\n")

    async def first_line(self) -> str:
        """The first line, or what was sent before the end, or as much of it as is allowed."""
        with suppress(EOFError, ValueError):
            return await self.line()
        if not self._received:
            raise EOFError("closed without sending anything")
        return self._take(LINE_MAX).decode("utf-8", "replace").rstrip("\r\n")

    async def exactly(self, count: int) -> bytes:
        while len(self._received) < count:
            await self._more()
        return self._take(count)

    async def some(self) -> bytes:
        """What was received since the last call, at least one byte."""
        if not self._received:
            await self._more()
        return self._take(len(self._received))

    async def secure(self, tls: TlsOptions) -> None:
        """Continue over TLS, as after STARTTLS."""
        if self._received:
            # Sent by anyone on the way, these bytes would count as the server's own.
            raise ValueError("sent more before TLS began")
        transport = await asyncio.get_running_loop().start_tls(
            self.transport, self, tls.context(), server_hostname=tls.server_name
        )
        if transport is None:
            raise EOFError("closed during the TLS handshake")
        self.transport = transport

    def certificate(self) -> bytes | None:
        """The server's certificate (DER), over TLS."""
        secured: ssl.SSLObject | None = self.transport.get_extra_info("ssl_object")
        return None if secured is None else secured.getpeercert(binary_form=True)

    async def say_goodbye(self, data: bytes) -> None:
        """Send a goodbye, and give the server a moment to answer it."""
        self.send(data)
        with suppress(OSError, EOFError, ValueError):  # includes TimeoutError
            async with asyncio.timeout(GOODBYE):
                while True:
                    await self.some()

    async def _more(self) -> None:
        if self._count > self.limit:
            raise ValueError(f"sent more than {self.limit:,} bytes")
        if self._lost is not None:
            raise self._lost
        if self._ended:
            raise EOFError("closed too early" if self._count else "closed without sending anything")
        self._news.clear()
        await self._news.wait()

    def _take(self, count: int) -> bytes:
        taken = bytes(self._received[:count])
        del self._received[:count]
        return taken


@asynccontextmanager
async def connected(
    host: str, port: int, limit: int, tls: TlsOptions | None = None, *protocols: str
) -> AsyncIterator[Conversation]:
    """A conversation with a server. Errors inside become `ProbeError`s that name it."""
    opened: asyncio.Transport | None = None
    talk = Conversation(limit)
    try:
        opened, _ = await asyncio.get_running_loop().create_connection(
            lambda: talk,
            host,
            port,
            ssl=None if tls is None else tls.context(*protocols),
            server_hostname=None if tls is None else tls.server_name,
        )
        yield talk
    except (OSError, EOFError, ValueError) as error:  # includes errors of ssl and of Unicode
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        if isinstance(error, ConnectionRefusedError):
            reason = "connection refused"  # asyncio shows a number and a tuple
        raise failed(f"{shown_address(host, port)}: {reason}") from None
    finally:
        if opened is not None:
            talk.transport.abort()  # of TLS, if the connection was secured later
            opened.abort()


class TlsOptions:
    """The options of TLS: server_name, verify, ca, tls_warning."""

    __slots__ = ("_ca", "_verify", "_warning", "server_name")

    NAMES = ("server_name", "verify", "ca", "tls_warning")

    def __init__(self, options: ProbeOptions, host: str) -> None:
        _certificates()  # a missing extra is reported now
        self.server_name: str = options.text("server_name") or host
        self._verify = options.flag("verify", True)
        self._ca = options.certificates()
        self._warning = options.duration("tls_warning", TLS_WARNING)
        if self._ca is not None and Path(self._ca).is_file():
            try:
                self.context()
            except OSError:  # includes errors of ssl
                options.wrong("ca", f"= {self._ca!r} has no certificates (PEM)")

    @classmethod
    def if_wanted(cls, options: ProbeOptions, host: str, wanted: bool) -> TlsOptions | None:
        """The options of TLS if it is wanted; else none of them may be given."""
        if wanted:
            return cls(options, host)
        for name in cls.NAMES:
            if options.has(name):
                options.wrong(name, "has no effect without TLS")
        return None

    def context(self, *protocols: str) -> ssl.SSLContext:
        """A context; `protocols` are offered by ALPN."""
        changed = Path(self._ca).stat().st_mtime_ns if self._ca is not None else 0
        return _context(self._verify, self._ca, changed, protocols)

    def note(self, facts: dict[str, Plain], talk: Conversation, epoch: float) -> None:
        """Add the certificate of a connection to its facts."""
        secured = talk.transport.get_extra_info("ssl_object")
        _certificates().note_certificate(facts, secured, epoch, self._warning)


@lru_cache(64)
def _context(
    verify: bool, ca: str | None, changed: int, protocols: tuple[str, ...]
) -> ssl.SSLContext:
    """Reading the authorities of a system takes many milliseconds, so contexts are shared."""
    context = ssl.create_default_context(cafile=ca)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context


def _certificates() -> Any:
    from pollwise.fleet.probes.http import certificates

    return certificates


def summary_of(facts: dict[str, Plain], *parts: str) -> str:
    """One line for people: the parts, the time it took, and a warning if there is one."""
    shown = (*parts, f"{facts['ms']} ms", str(facts.get("warning", "")))
    return ", ".join(part for part in shown if part)


def shown_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_of(options: ProbeOptions, default: int | None = None) -> tuple[str, int]:
    """The option `address`, as host and port: "host:5432", "[::1]:5432".

    default: the port if the address has none.
    """
    given = options.text("address", needed=True)
    if not given:
        return "-", 1
    host, found, port = given.rpartition(":")
    bare = not found or given.endswith("]")
    if bare and default is not None:
        host, port = given, str(default)
    odd = "/" in host or "@" in host or (":" in host and not given.startswith("["))
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    sound = port.isdecimal() and len(port) < 6 and 0 < int(port) < 65536
    if not host or not sound or odd or not host.isprintable() or " " in host:
        written = "'host:port', or '[::1]:port'"
        if default is not None:
            written = f"'host', 'host:port' or '[::1]:port'; the default port is {default}"
        options.wrong("address", f"= {shown_url(given)!r} must be written as {written}")
        return "-", 1
    return host.lower(), int(port)
