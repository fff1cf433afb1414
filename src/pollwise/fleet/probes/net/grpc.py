"""gRPC: is a server, or one of its services, serving?

    [[target]]
    name = "orders"
    type = "grpc"
    address = "orders.internal:50051"
    service = "shop.Orders"

It asks by the health checking protocol (grpc.health.v1.Health/Check). The call is one request of
a few bytes over HTTP/2, which `h2` speaks; grpcio would bring threads and an event loop of its own.
"""

from __future__ import annotations

import asyncio
from urllib.parse import unquote

from pollwise.core.outcome import Plain
from pollwise.errors import MissingExtra, ProbeError
from pollwise.fleet.probes.net.conversation import (
    TLS_FACTS,
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
    from h2 import events
    from h2.config import H2Configuration
    from h2.connection import H2Connection
    from h2.exceptions import H2Error
except ImportError as error:
    raise MissingExtra("a probe of gRPC", "fleet") from error

#: Maximum size of all that a server sends, and of its answer, in bytes.
RECEIVED_MAX = 64 * 1024
MESSAGE_MAX = 4096
#: Maximum length of the name of a service, in bytes.
SERVICE_MAX = 4096

_PATH = "/grpc.health.v1.Health/Check"
_STATES = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
#: Codes of gRPC, and those after which asking again would not help.
_CODES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
    "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED",
    "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
#: The size of the header of a frame, and the type of the first frame that a server sends.
_FRAME_HEADER = 9
_SETTINGS = 4
_PERMANENT = frozenset({"PERMISSION_DENIED", "UNIMPLEMENTED", "UNAUTHENTICATED"})

FACTS = {
    "value": "`SERVING`; every other state is a failure",
    "ms": "milliseconds until the answer, TLS included",
    **TLS_FACTS,
}


class GrpcProbe:
    """Asks for the health of a server. Options: address ("host:port"), service (the whole server),
    headers, tls, and the options of TLS."""

    __slots__ = ("_headers", "_port", "_service", "_tls", "host")

    def __init__(self, target: Target) -> None:
        options = ProbeOptions(target)
        self.host: str
        self.host, self._port = address_of(options)
        self._service = options.text("service").encode("utf-8", "replace")
        if len(self._service) > SERVICE_MAX:
            options.wrong("service", f"is longer than {SERVICE_MAX:,} bytes")
        self._headers = options.headers()
        for name in self._headers:
            if name.startswith("grpc-") or name in _RESERVED:
                options.wrong("headers", f"has {name!r}, which is set by the probe")
        self._tls = TlsOptions.if_wanted(options, self.host, options.flag("tls", False))
        options.finish()

    async def __call__(self, target: Target, context: ProbeContext) -> Reading:
        loop = asyncio.get_running_loop()
        began = loop.time()
        facts: dict[str, Plain] = {}
        where = shown_address(self.host, self._port)
        async with connected(self.host, self._port, RECEIVED_MAX, self._tls, "h2") as talk:
            if self._tls is not None:
                self._tls.note(facts, talk, context.epoch)
                if talk.transport.get_extra_info("ssl_object").selected_alpn_protocol() != "h2":
                    raise ValueError("does not speak HTTP/2 over TLS, which gRPC needs")
            call = _HealthCall(talk)
            call.ask(self._request(where, context.deadline - began), framed(self._service))
            await call.answered()
        facts["ms"] = round((loop.time() - began) * 1000, 1)
        state = self._state(call, where)
        if state != "SERVING":
            raise failed(f"{where}: {self._said()} is {state}")
        return Reading(state, None, facts, summary_of(facts, state))

    def _request(self, where: str, left: float) -> list[tuple[str, str]]:
        return [
            (":method", "POST"),
            (":scheme", "http" if self._tls is None else "https"),
            (":path", _PATH),
            (":authority", where if self._tls is None else self._tls.server_name),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "pollwise"),
            ("grpc-timeout", f"{min(max(int(left * 1000), 1), 99_999_999)}m"),
            *self._headers.items(),
        ]

    def _state(self, call: _HealthCall, where: str) -> str:
        """The state in a complete answer; ProbeError if there is none."""
        status, code = call.headers.get(":status", ""), call.headers.get("grpc-status")
        if status != "200":
            raise failed(f"{where}: answered with HTTP {status[:3]}, which is not gRPC")
        if not call.headers.get("content-type", "").startswith("application/grpc"):
            raise failed(f"{where}: the answer is not gRPC")
        if code != "0":
            raise self._refused(code, call.headers.get("grpc-message", ""), where)
        try:
            number = state_in(bytes(call.body))
        except ValueError as error:
            raise failed(f"{where}: the answer is not valid: {error}") from None
        return _STATES.get(number, f"in the unknown state {number}")

    def _refused(self, code: str | None, message: str, where: str) -> ProbeError:
        if code is None:
            return failed(f"{where}: the answer was cut off: it has no grpc-status")
        number = int(code) if code.isascii() and code.isdecimal() and len(code) < 3 else -1
        name = _CODES[number] if 0 <= number < len(_CODES) else f"status {code[:10]!r}"
        said = f": {_plain(unquote(message[:400], errors='replace'))}" if message else ""
        if name == "NOT_FOUND":
            return failed(f"{where} does not know {self._said()} (NOT_FOUND)")
        if name == "UNIMPLEMENTED":
            said = ": the server has no health service (grpc.health.v1.Health)"
        return failed(f"{where}: {name}{said}", permanent=name in _PERMANENT)

    def _said(self) -> str:
        return f"service {self._service.decode()[:80]!r}" if self._service else "the server"


_RESERVED = frozenset({"te", "content-type", "user-agent", "host", "connection", "content-length"})


class _HealthCall:
    """One call on a connection of HTTP/2: its headers and trailers, and its body."""

    def __init__(self, talk: Conversation) -> None:
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self._talk = talk
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._over = False

    def ask(self, headers: list[tuple[str, str]], body: bytes) -> None:
        self._h2.initiate_connection()
        self._h2.send_headers(1, headers)
        self._h2.send_data(1, body, end_stream=True)
        self._talk.send(self._h2.data_to_send())

    async def answered(self) -> None:
        """Read until the answer is complete."""
        data = await self._talk.exactly(_FRAME_HEADER)
        if data[3] != _SETTINGS or any(data[5:]):
            # h2 would wait for the rest of a huge frame.
            raise ValueError("does not speak HTTP/2, which gRPC needs")
        try:
            self._receive(data)
            while not self._over:
                self._receive(await self._talk.some())
        except H2Error as error:
            said = " ".join(str(error).split())[:80]
            raise ValueError(f"the answer is not HTTP/2, as gRPC needs it: {said}") from None

    def _receive(self, data: bytes) -> None:
        for event in self._h2.receive_data(data):
            self._take(event)
            if self._over:  # a reset after that means nothing
                self._h2.close_connection()
                break
        self._talk.send(self._h2.data_to_send())

    def _take(self, event: events.Event) -> None:
        if isinstance(event, (events.ResponseReceived, events.TrailersReceived)):
            for name, value in event.headers:
                self.headers[_text(name)] = _text(value)
        elif isinstance(event, events.DataReceived):
            self.body += event.data
            if len(self.body) > MESSAGE_MAX:
                raise ValueError(f"sent a message of more than {MESSAGE_MAX:,} bytes")
            self._h2.acknowledge_received_data(event.flow_controlled_length, 1)
        elif isinstance(event, events.StreamReset | events.ConnectionTerminated):
            what = "call" if isinstance(event, events.StreamReset) else "connection"
            raise EOFError(f"ended the {what} (error {event.error_code})")  # noqa: TRY004
        elif isinstance(event, events.StreamEnded):
            self._over = True


def framed(service: bytes) -> bytes:
    """A HealthCheckRequest as gRPC sends it: a flag, a length, and the message."""
    message = b"" if not service else b"\x0a" + _varint(len(service)) + service
    return b"\0" + len(message).to_bytes(4, "big") + message


def state_in(body: bytes) -> int:
    """The state in a HealthCheckResponse; ValueError if the message is not one."""
    if len(body) < 5 or len(body) - 5 != int.from_bytes(body[1:5], "big"):
        raise ValueError("its length is wrong")
    if body[0] != 0:
        raise ValueError("it is compressed, which was not asked for")
    state, at = 0, 5
    while at < len(body):
        key, at = _read_varint(body, at)
        kind = key & 7
        if kind == 0:
            number, at = _read_varint(body, at)
            state = number if key >> 3 == 1 else state
        elif kind == 2:
            length, at = _read_varint(body, at)
            at += length
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError("it is not a protobuf message")
    if at > len(body):
        raise ValueError("it is cut off")
    return state


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(raw):
            raise ValueError("it is cut off")
        byte = raw[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError("it has a number that is too long")


def _text(raw: bytes | str) -> str:
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw


def _plain(text: str) -> str:
    return "".join(c for c in " ".join(text.split())[:160] if c.isprintable())


make = GrpcProbe
