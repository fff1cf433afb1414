"""WebSocket: does a server accept a connection, and what does it answer?

    [[target]]
    name = "prices, live"
    type = "websocket"
    url = "wss://shop.example/live"
    send = '{"subscribe": "prices"}'
    regex = '"state": *"(\\w+)"'

Redirects are not followed: use the final URL. Without `read` or `regex`, a completed handshake is
enough.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from pollwise.core.outcome import Plain
from pollwise.errors import MissingExtra
from pollwise.fleet.probes.net.conversation import (
    TLS_FACTS,
    Conversation,
    TlsOptions,
    connected,
    summary_of,
)
from pollwise.fleet.probes.options import ProbeOptions, failed
from pollwise.fleet.targets import ProbeContext, Reading, Target
from pollwise.runtime.redact import shown_url

try:
    from websockets.client import ClientProtocol
    from websockets.exceptions import InvalidStatus, InvalidURI
    from websockets.frames import Frame, Opcode
    from websockets.protocol import State
    from websockets.uri import WebSocketURI, parse_uri
except ImportError as error:
    raise MissingExtra("a probe of WebSockets", "fleet") from error

#: Default maximum size of all messages that are read, in bytes; the option `limit` overrides it.
MESSAGES_MAX = 64 * 1024
#: Size of the handshake and of frame headers that is allowed in addition, in bytes.
HANDSHAKE_MAX = 64 * 1024
#: Maximum number of messages that are searched for `regex`.
COUNT_MAX = 100

FACTS = {
    "value": "`open`; with `read` the first message, with `regex` what it matches",
    "ms": "milliseconds until the connection was open, TLS and the handshake included",
    "messages": "number of messages that were read",
    **TLS_FACTS,
}

# The library would write each header to its log at level DEBUG, secrets included.
_SILENT = logging.getLogger("pollwise.websockets")
_SILENT.setLevel(logging.CRITICAL)
_DATA = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)


class WebSocketProbe:
    """Connects. Options: url (ws://… or wss://…), headers, send, read (use the first message as the
    reading), regex (read until a message matches; use what it matches), limit, and the options of
    TLS."""

    __slots__ = ("_headers", "_limit", "_pattern", "_read", "_send", "_tls", "_uri", "_url", "host")

    def __init__(self, target: Target) -> None:
        options = ProbeOptions(target)
        self._url, self._uri = _checked_url(options)
        self.host: str = self._uri.host.lower()
        self._headers = options.headers()
        self._send = options.text("send")
        self._pattern = options.pattern("regex")
        self._read = options.flag("read", self._pattern is not None)
        if self._pattern is not None and not self._read:
            options.wrong("read", "= false contradicts regex, which needs messages")
        self._limit = options.size("limit", MESSAGES_MAX)
        self._tls = TlsOptions.if_wanted(options, self.host, self._uri.secure)
        options.finish()

    async def __call__(self, target: Target, context: ProbeContext) -> Reading:
        loop = asyncio.get_running_loop()
        began = loop.time()
        facts: dict[str, Plain] = {}
        client = ClientProtocol(self._uri, max_size=self._limit, logger=_SILENT)
        value = "open"
        limit = self._limit + HANDSHAKE_MAX
        async with connected(self.host, self._uri.port, limit, self._tls, "http/1.1") as talk:
            if self._tls is not None:
                self._tls.note(facts, talk, context.epoch)
            await self._shake_hands(client, talk)
            facts["ms"] = round((loop.time() - began) * 1000, 1)
            if self._send:
                client.send_text(self._send.encode())
                _flush(client, talk)
            if self._read:
                value, facts["messages"] = await self._first_fitting(client, talk)
            if client.state is State.OPEN:
                client.send_close(1000)
                await talk.say_goodbye(b"".join(client.data_to_send()))
        return Reading(value, None, facts, summary_of(facts, value[:80]))

    async def _shake_hands(self, client: ClientProtocol, talk: Conversation) -> None:
        request = client.connect()
        request.headers["User-Agent"] = "pollwise"
        for name, value in self._headers.items():
            if name in request.headers:
                del request.headers[name]
            request.headers[name] = value
        client.send_request(request)
        _flush(client, talk)
        while client.state is State.CONNECTING:
            if client.handshake_exc is not None:
                raise failed(f"{shown_url(self._url)} {_refused(client.handshake_exc)}")
            client.receive_data(await talk.some())
        _flush(client, talk)

    async def _first_fitting(self, client: ClientProtocol, talk: Conversation) -> tuple[str, int]:
        """The first message, or what the pattern matches in the first that it matches."""
        count, last = 0, ""
        async for message in _messages(client, talk):
            count += 1
            if self._pattern is None:
                return message.decode("utf-8", "replace"), count
            found = await self._pattern.search(message)
            if found is not None:
                return found, count
            last = message[:80].decode("utf-8", "replace")
            if count == COUNT_MAX:
                break
        said = f"; the last of {count} was {last!r}" if count else ""
        if self._pattern is None or not count:
            raise EOFError(f"closed without a message{_closed(client)}")
        raise failed(f"{shown_url(self._url)}: no message matches regex{said}{_closed(client)}")


async def _messages(client: ClientProtocol, talk: Conversation) -> AsyncIterator[bytes]:
    """The messages that a server sends until it closes the connection."""
    parts: list[bytes] = []
    while True:
        for event in client.events_received():
            if not isinstance(event, Frame) or event.opcode not in _DATA:
                continue
            parts.append(bytes(event.data))
            if event.fin:
                yield b"".join(parts)
                parts.clear()
        _flush(client, talk)  # answers to pings
        if client.parser_exc is not None:
            raise ValueError(f"sent an invalid message: {client.parser_exc}")
        if client.state is not State.OPEN:
            return
        client.receive_data(await talk.some())


def _flush(client: ClientProtocol, talk: Conversation) -> None:
    for data in client.data_to_send():
        if data:  # an empty one asks to half-close the connection, which ends anyway
            talk.send(data)


def _refused(error: BaseException) -> str:
    """Why the handshake failed, without what the server may have sent in a header."""
    if isinstance(error, InvalidStatus):
        status = error.response.status_code
        if 300 <= status < 400:
            return f"was redirected ({status}); redirects are not followed: use the final URL"
        return f"was answered with {status}, not with 101 (a WebSocket)"
    said = " ".join(str(error).split())[:120]
    return f"did not complete the WebSocket handshake: {said}"


def _closed(client: ClientProtocol) -> str:
    frame = client.close_rcvd
    if frame is None:
        return ""
    reason = " ".join(frame.reason.split())[:80]
    return f" (closed with {frame.code}{f': {reason}' if reason else ''})"


def _checked_url(options: ProbeOptions) -> tuple[str, WebSocketURI]:
    url = options.text("url", needed=True).strip()
    nowhere = WebSocketURI(False, "-", 80, "/", "")
    if not url:
        return "", nowhere
    shown = shown_url(url)
    if url.partition("://")[0].lower() not in ("ws", "wss"):
        options.wrong("url", f"= {shown!r} must begin with ws:// or wss://")
        return "", nowhere
    try:
        uri = parse_uri(url)
    except (InvalidURI, ValueError, UnicodeError):  # whose message may contain a password
        options.wrong("url", f"= {shown!r} has no valid host")
        return "", nowhere
    if not 0 < uri.port < 65536:
        options.wrong("url", f"= {shown!r} has no valid port")
    return url, uri


make = WebSocketProbe
