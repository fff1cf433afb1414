"""One HTTP request of a probe: its limits, and the meaning of its answer.

Everything is bounded: the number of redirects, the bytes of a body, and the bytes it unpacks to. A
failure is transient (408, 425, 429, 5xx, 403 that says until when, no connection, cut off) or
permanent (the other 3xx and 4xx). The fleet enforces the timeout.
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from encodings import normalize_encoding
from encodings.aliases import aliases
from urllib.parse import unquote, urlsplit

from pollwise.core.outcome import Plain
from pollwise.errors import MissingExtra, ProbeError
from pollwise.fleet.probes.http.certificates import note_certificate
from pollwise.fleet.probes.http.connections import Tls, transport
from pollwise.fleet.probes.options import ProbeOptions, failed
from pollwise.runtime.limits.headers import moment, refused_for, retry_after
from pollwise.runtime.redact import shown_url
from pollwise.runtime.tracing import spans

try:
    import httpx

    from pollwise.fleet.probes.http.carrier import CONNECTED, PORTS, SAFE, ConnectTimes
except ImportError as error:
    raise MissingExtra("a probe over HTTP", "fleet") from error

#: Default maximum size of a body, unpacked, in bytes; the option `limit` overrides it.
BODY_MAX = 1024 * 1024
#: Follow redirects only to the same host: a public server could send the poll to a private address.
SAME_HOST = "same-host"
#: Default maximum number of redirects; the option `redirects` overrides it.
REDIRECTS = 5
#: A body that is not needed is read up to this size, to keep the connection, in bytes.
SKIM_MAX = 16 * 1024
#: A certificate that expires sooner causes a warning, in seconds.
TLS_WARNING = 14 * 86400.0

TRANSIENT = frozenset({408, 425})
_REDIRECTED = frozenset({301, 302, 303, 307, 308})
_USUAL_TLS = Tls()
_NO_HEADERS: dict[str, str] = {}
_NO_ALIAS = ("cp874", "koi8_u")
#: The encodings a server may declare, as Python spells them. Not those that unpack data or run
#: escapes, and none that Python does not know: it would keep each of their names.
_ENCODINGS = frozenset(
    name
    for name, codec in {
        **aliases,
        **{each: each for each in (*aliases.values(), *_NO_ALIAS)},
    }.items()
    if name == name.lower()
    and not codec.endswith("_codec")
    and codec not in ("mbcs", "rot_13", "tactis", "utf_7")
)
#: URLs that need no parser to be checked, as most are: that takes longer than all else in a probe.
_PLAIN_URL = re.compile(
    r"https?://((?!xn--)[a-z0-9-]{1,60}(?:\.(?!xn--)[a-z][a-z0-9-]{0,60}){1,8})"
    r"(?:[/?][!$-.0-9:;=@A-Z_a-z~/?]{0,2000})?"
)
_OWN = {"user-agent": "pollwise", "accept": "*/*", "accept-encoding": "gzip"}


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The answer of a server. If it is `unchanged` (304), it has no body."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    facts: dict[str, Plain]

    @property
    def unchanged(self) -> bool:
        return self.status == 304

    @property
    def encoding(self) -> str:
        """The encoding of the headers, if it is one of text; else UTF-8."""
        declared = self.headers.get("content-type", "").lower().partition("charset=")[2]
        name = declared.partition(";")[0].strip(" \"'")[:40]
        folded = normalize_encoding(name) if name.isascii() else ""
        return name if folded in _ENCODINGS else "utf-8"

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode(self.encoding, "replace")

    @property
    def changed_at(self) -> float | None:
        return moment(self.headers.get("last-modified"))


class Fetch:
    """The HTTP request of a target, from its options."""

    __slots__ = (
        "body", "expect", "headers", "host", "limit", "method", "redirects", "same_host", "tls",
        "tls_warning", "url",
    )  # fmt: skip

    def __init__(
        self,
        options: ProbeOptions,
        methods: tuple[str, ...] = ("GET",),
        limit: int = BODY_MAX,
    ) -> None:
        self.url: str = options.text("url", needed=True).strip()
        plain = _PLAIN_URL.fullmatch(self.url)
        user, password = "", ""
        if plain is not None:
            host = plain[1]
        else:
            self.url = _checked_url(self.url, options)
            parsed = httpx.URL(self.url) if self.url else httpx.URL("http://-")
            host, user, password = parsed.host, parsed.username, parsed.password
        self.host: str | None = sys.intern(host.lower())
        if len(methods) > 1:
            self.method: str = options.one_of(
                "method", tuple(m.lower() for m in methods), "get"
            ).upper()
        else:
            self.method = methods[0]
        self.headers: dict[str, str] = options.headers() or _NO_HEADERS
        if self.headers.get("accept-encoding", "gzip") not in ("gzip", "identity"):
            options.wrong("headers", "must have 'gzip' or 'identity' as accept-encoding")
        if (user or password) and "authorization" not in self.headers:
            pair = f"{unquote(user)}:{unquote(password)}".encode()
            basic = f"Basic {base64.b64encode(pair).decode()}"
            self.headers = {**self.headers, "authorization": basic}
        self.body: bytes | None = None
        if "POST" in methods and options.has("body"):
            self.body = options.text("body").encode()
            if self.method in SAFE:
                options.wrong("body", f"is not sent with {self.method}; give method = 'post'")
        self.expect: frozenset[int] = options.codes(
            "expect", (), 100, 599, "a status code such as 200, '2xx' or '200-299'"
        )
        self.same_host: bool = options.raw("redirects") == SAME_HOST
        self.redirects: int = REDIRECTS
        if not self.same_host:
            self.redirects = options.whole("redirects", REDIRECTS, 0, 20, f"or '{SAME_HOST}'")
        self.limit: int = options.size("limit", limit)
        tls = Tls(options.flag("verify", True), options.certificates())
        self.tls: Tls = _USUAL_TLS if tls == _USUAL_TLS else tls
        self.tls_warning: float = options.duration("tls_warning", TLS_WARNING)

    @property
    def shown(self) -> str:
        """The URL without secrets."""
        return shown_url(self.url)

    async def __call__(
        self, epoch: float, validators: Mapping[str, str], url: str | None = None
    ) -> HttpAnswer:
        """Send the request. `validators`: ETag and Last-Modified of the last answer.

        url: another URL of the same origin, such as the next page.

        Raises ProbeError, without secrets in its message.
        """
        headers = {**_OWN, **self.headers}
        if "etag" in validators:
            headers["if-none-match"] = validators["etag"]
        if "last-modified" in validators:
            headers["if-modified-since"] = validators["last-modified"]
        loop = asyncio.get_running_loop()
        began = loop.time()
        request = httpx.Request(self.method, url or self.url, headers=headers, content=self.body)
        left = self.redirects
        facts: dict[str, Plain] = {}
        while True:
            response = await self._send(request)
            answered = loop.time()
            try:
                _note_connecting(facts, response)
                status = response.status_code
                location = response.headers.get("location")
                if status in _REDIRECTED and location and self.redirects:
                    if not left:
                        raise failed(
                            f"{self._said()} was redirected more than {self.redirects} times; "
                            "use the final URL, or raise redirects"
                        )
                    left -= 1
                    await self._skim(response)
                    request = self._redirected(request, response.status_code, location, headers)
                    continue
                facts |= {"status": status, "first_byte_ms": _ms(answered - began)}
                if request.url.scheme == "https":
                    self._note_certificate(facts, response, epoch)
                if status != 304 or not validators:
                    self._check_status(status, response.headers, epoch)
                body = b""
                if status == 304:
                    await self._skim(response)
                else:
                    body = await self._read(response)
                facts["ms"] = _ms(loop.time() - began)
                return HttpAnswer(status, response.headers, body, facts)
            finally:
                # This closes the connection if the body was not read to its end.
                await response.aclose()

    async def _skim(self, response: httpx.Response) -> None:
        """Read a short body that is not needed, so that the connection can be kept."""
        length = _length(response)
        if response.status_code == 304 or (length is not None and length <= SKIM_MAX):
            await self._read(response, unpacked=False)

    async def _send(self, request: httpx.Request) -> httpx.Response:
        if (tracer := spans.tracer()) is None:
            return await self._sent(request)
        # What a redirect or a variable put into a URL may be secret.
        shown = self.shown if request.url == httpx.URL(self.url) else None
        _, host, port = _origin(request.url)
        with spans.RequestSpan(tracer, request.method, host, port, shown) as span:
            for name, text in span.headers().items():
                request.headers.setdefault(name, text)
            response = await self._sent(request)
            span.answered(response.status_code)
        return response

    async def _sent(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        carrier = transport(self.tls, url.scheme, url.host)
        try:
            return await carrier.handle_async_request(request)
        except (httpx.TransportError, ssl.SSLError, OSError, ValueError) as error:
            raise failed(f"{self._said()}: {_reason(error)}") from None

    def _redirected(
        self, request: httpx.Request, status: int, location: str, headers: dict[str, str]
    ) -> httpx.Request:
        try:
            url = request.url.join(location)
        except (httpx.InvalidURL, ValueError):
            url = httpx.URL("")
        if url.scheme not in ("http", "https") or not url.host:
            raise failed(f"{self._said()} was redirected to a URL that is not http(s)")
        if self.same_host and url.host.lower() != self.host:
            raise failed(
                f"{self._said()} was redirected to another host, which redirects = '{SAME_HOST}' "
                "refuses; use the final URL, or give a number of redirects"
            )
        # Tokens, cookies and keys meant for one host are not sent to another.
        same = _origin(url) == _origin(httpx.URL(self.url))
        kept = headers if same else _OWN
        method, body = request.method, self.body
        if status == 303 or (status in (301, 302) and method == "POST"):
            method, body = ("HEAD" if method == "HEAD" else "GET"), None
        if not same:
            body = None
        return httpx.Request(method, url, headers=kept, content=body)

    def _check_status(self, status: int, headers: httpx.Headers, epoch: float) -> None:
        if status in self.expect or (not self.expect and 200 <= status < 300):
            return
        phrase = httpx.codes.get_reason_phrase(status)
        refused = refused_for(status, headers, epoch)
        transient = status in TRANSIENT or status >= 500 or 200 <= status < 300
        raise failed(
            f"{self._said()} was answered with {status} {phrase}".rstrip(),
            permanent=refused is None and not transient,
            retry_after=(
                retry_after(headers.get("retry-after"), epoch) if refused is None else refused
            ),
        )

    async def _read(self, response: httpx.Response, unpacked: bool = True) -> bytes:
        encoding = response.headers.get("content-encoding", "").strip().lower() * unpacked
        if encoding in ("gzip", "x-gzip"):
            unpack: _BoundedGunzip | None = _BoundedGunzip()
        elif encoding in ("", "identity"):
            unpack = None
        else:
            raise failed(
                f"{self._said()}: the body has the encoding {encoding[:40]!r}, which was not "
                "requested and cannot be decoded"
            )
        length = _length(response)
        if unpacked and self.method != "HEAD" and length is not None and length > self.limit:
            raise self._too_large()
        parts: list[bytes] = []
        size = 0
        try:
            async for chunk in response.stream:  # type: ignore[union-attr]
                part = chunk if unpack is None else unpack(chunk, self.limit - size)
                size += len(part)
                if size > self.limit:
                    raise self._too_large()
                parts.append(part)
        except (httpx.TransportError, ssl.SSLError, OSError) as error:
            raise failed(f"{self._said()}: {_reason(error)}") from None
        except zlib.error:
            raise failed(f"{self._said()}: the body is not valid gzip") from None
        if unpack is not None and not unpack.ended and self.method != "HEAD":
            raise failed(f"{self._said()}: the gzip body was cut off")
        return b"".join(parts)

    def _note_certificate(
        self, facts: dict[str, Plain], response: httpx.Response, epoch: float
    ) -> None:
        stream = response.extensions.get("network_stream")
        secured = stream and stream.get_extra_info("ssl_object")
        if secured:
            note_certificate(facts, secured, epoch, self.tls_warning)

    def _too_large(self) -> ProbeError:
        return failed(
            f"{self._said()}: the body has more than {self.limit:,} bytes; raise limit, or request "
            "less",
            permanent=True,
        )

    def _said(self) -> str:
        return f"{self.method} {self.shown}"


class _BoundedGunzip:
    """Unpacks gzip to at most one byte more than allowed."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(31)
        self._begun = False

    @property
    def ended(self) -> bool:
        return self._inner.eof or not self._begun

    def __call__(self, chunk: bytes, allowed: int) -> bytes:
        out = b""
        while chunk and len(out) <= allowed:
            if self._inner.eof:  # gzip data may have several members
                self._inner = zlib.decompressobj(31)
            self._begun = True
            out += self._inner.decompress(chunk, allowed + 1 - len(out))
            chunk = self._inner.unused_data if self._inner.eof else self._inner.unconsumed_tail
        return out


def _checked_url(url: str, options: ProbeOptions) -> str:
    if not url:
        return ""
    shown = shown_url(url)
    scheme, found, _ = url.partition("://")
    if not found:
        options.wrong("url", f"= {shown!r} has no scheme; write it as 'https://{shown}'")
        return ""
    if scheme.lower() not in ("http", "https"):
        options.wrong("url", f"= {shown!r} must begin with http:// or https://")
        return ""
    try:
        parsed = httpx.URL(url)
        sound = bool(parsed.host and urlsplit(url).hostname) and (
            parsed.port is None or 0 < parsed.port < 65536
        )
    except (httpx.InvalidURL, ValueError, UnicodeError):  # whose message may contain a password
        sound = False
    if not sound:
        options.wrong("url", f"= {shown!r} has no valid host")
        return ""
    return url


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


def _note_connecting(facts: dict[str, Plain], response: httpx.Response) -> None:
    """Add how long connecting took, if a connection was opened for this answer."""
    times: ConnectTimes | None = response.extensions.get(CONNECTED)
    if times is not None:
        for name, took in (("connect_ms", times.tcp), ("tls_ms", times.tls)):
            if took:
                before = facts.get(name)
                facts[name] = round(_ms(took) + (before if isinstance(before, float) else 0.0), 1)


def _length(response: httpx.Response) -> int | None:
    """The Content-Length."""
    said: str = response.headers.get("content-length", "")
    return int(said[:18]) if said.isdecimal() else None


def _origin(url: httpx.URL) -> tuple[str, str, int]:
    return url.scheme, url.host.lower(), url.port or PORTS[url.scheme]


def _reason(error: BaseException) -> str:
    """Why there is no answer; never a URL, which may contain secrets."""
    kinds: tuple[tuple[type[BaseException], str], ...] = (
        (httpx.ConnectError, "could not connect"),
        (httpx.ProxyError, "the proxy refused"),
        (httpx.RemoteProtocolError, "the answer was cut off or is not HTTP"),
        (httpx.TimeoutException, "no answer in time"),
    )
    said = next((words for kind, words in kinds if isinstance(error, kind)), "the connection broke")
    detail = " ".join(str(error).split())
    # Messages of ssl and the system contain at most a host.
    return f"{said} ({detail[:160]})" if detail and "://" not in detail else said
