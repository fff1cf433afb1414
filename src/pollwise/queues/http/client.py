"""Requests to a controller: one reused connection, clear errors, and tokens that are never shown.

No request is repeated here: if an answer is lost, it depends on the call whether a repeat is safe.
`NoAnswer.sent` says whether the controller may have received the request.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from pollwise.errors import ConfigError, MissingExtra, StoreError, StoreUnavailable
from pollwise.runtime import variables
from pollwise.runtime.clock import Clock
from pollwise.runtime.decoding import decode_document
from pollwise.runtime.home import Home, keep_for_parent, watch_forks
from pollwise.runtime.limits.headers import refused_for, retry_after
from pollwise.runtime.payloads.keys import read_private
from pollwise.runtime.redact import without_secrets
from pollwise.runtime.store import CONNECT_WITHIN

try:
    import httpx
except ImportError as error:
    raise MissingExtra("a controller over HTTP", "http") from error

from pollwise.queues.http import tls as http_tls
from pollwise.runtime.redact import split_url

#: httpx offers HTTP/2 only with an extra, which our extras include.
HAS_HTTP2 = find_spec("h2") is not None
#: The variables with a token, or with a token file, if no token file is given.
TOKEN_VARIABLE = variables.TOKEN
TOKEN_FILE_VARIABLE = variables.TOKEN_FILE
#: The maximum length of a token, in characters.
TOKEN_LENGTH_MAX = 1024
#: The maximum number of connections; only held polls and uploads need more than one.
CONNECTIONS_MAX = 100
#: How long an idle connection is kept, in seconds; most proxies close theirs after 60 s or more.
KEEP_ALIVE = 50.0
#: The largest answer, in bytes; a queue takes larger ones, because a claim has many payloads.
ANSWER_BYTES_MAX = 64 * 1024 * 1024
#: Polls that found nothing: how many may follow each other at once, and how many a second.
EMPTY_POLLS_BURST = 20
EMPTY_POLLS_PER_SECOND = 10.0
#: How much of an answer that is not JSON is shown, in characters.
SHOWN_MAX = 80


class RequestRefused(StoreError):
    """The controller refused the request, and would refuse it again."""

    #: Advice on what to do, if known.
    advice: str

    def __init__(
        self, message: str, status: int, code: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers: Mapping[str, str] = headers or {}


class AnswerTooLarge(RequestRefused):
    """The answer is larger than this client accepts, or compressed."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 200, "answer_too_large")


class Busy(StoreUnavailable):
    """The controller refused for now: 429, 5xx, or 403 of a proxy that says until when.

    retry_after: seconds that it asked to wait.
    """

    def __init__(self, message: str, status: int, code: str, retry_after: float | None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after = retry_after


class NoAnswer(StoreUnavailable):
    """No answer came. `sent`: the controller may have received the request."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class CertificateNotTrusted(NoAnswer):
    """The controller's certificate is not trusted, so nothing was sent."""


class TokenSource:
    """Where the token is read from. It is read each time, so that it can be rotated."""

    def __init__(self, file: str | Path | None = None, environ: Mapping[str, str] | None = None):
        self._file = None if file is None else Path(file)
        self._environ = environ

    def read(self) -> str:
        environ = os.environ if self._environ is None else self._environ
        file = self._file
        if file is None:
            if token := environ.get(TOKEN_VARIABLE):
                return _checked_token(token.strip(), TOKEN_VARIABLE)
            if not (named := environ.get(TOKEN_FILE_VARIABLE)):
                raise ConfigError(
                    "a controller needs a token, and none is given: name a file that holds it in "
                    f"token_file or {TOKEN_FILE_VARIABLE}, or set {TOKEN_VARIABLE}"
                )
            file = Path(named)
        text = read_private(file, "token file", "replace the token")
        return _checked_token(text.strip(), f"the token file {str(file)!r}")


def _checked_token(token: str, where: str) -> str:
    """Check a token without showing any of it."""
    fits = token.isascii() and token.isprintable() and not any(map(str.isspace, token))
    if not token or len(token) > TOKEN_LENGTH_MAX or not fits:
        raise ConfigError(
            f"{where} does not hold a token: a token is one line of printable characters, as "
            "`pollwise serve token` prints it"
        )
    return token


class PollGuard:
    """Keeps a client from polling without a pause, whatever the controller suggests.

    Polls that find something are not counted.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._free_at = float("-inf")

    async def wait(self) -> None:
        """Wait until the next poll may be sent."""
        burst = EMPTY_POLLS_BURST / EMPTY_POLLS_PER_SECOND
        delay = self._free_at - burst - self._clock.now()
        if delay > 0:
            await self._clock.sleep(delay)

    def found_nothing(self) -> None:
        now = self._clock.now()
        self._free_at = max(self._free_at, now) + 1 / EMPTY_POLLS_PER_SECOND


class Socket(Protocol):
    """One WebSocket."""

    async def receive(self) -> str:
        """The next message; raises `NoAnswer` when the connection has ended."""

    async def send(self, message: str) -> None: ...

    async def close(self) -> None: ...


class ControllerClient:
    """Sends requests to one controller.

    base: its address, such as https://builds.example.com/farm; without credentials.
    timeout: how long an answer may take, in seconds.
    ca_file: certificates to trust in addition to the usual ones, in PEM.
    answer_max: the largest answer, in bytes. Compressed answers are refused: a small one may become
        very large.
    transport: replaces the network in tests: the controller then runs on the same event loop, with
        the same clock.
    dial: opens WebSockets instead of the network.
    """

    def __init__(
        self,
        base: str,
        clock: Clock,
        *,
        timeout: float = 30.0,
        ca_file: str | Path | None = None,
        answer_max: int = ANSWER_BYTES_MAX,
        transport: httpx.AsyncBaseTransport | None = None,
        dial: Any = None,
    ) -> None:
        self.base: str = checked_base(base)
        self._clock = clock
        self._timeout = timeout
        self._ca_file = ca_file
        self._answer_max = answer_max
        http_tls.check(self.base, ca_file)
        self._transport = transport
        self._dial = dial
        self._client: httpx.AsyncClient | None = None
        self._home = Home()
        self.closed: bool = False
        watch_forks(self)

    async def call(
        self,
        method: str,
        path: str,
        token: str,
        *,
        content: Any = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        longer: float = 0.0,
        within: float | None = None,
    ) -> httpx.Response:
        """One request and its complete answer; raises for any status that is not a success.

        longer: how much longer than usual the answer may take, in seconds.
        within: a limit below the usual one.
        """
        client = self._opened()
        limit = self._timeout if within is None else min(within, self._timeout)
        timeout = httpx.Timeout(limit + longer, connect=CONNECT_WITHIN)
        with self._outside(), _our_errors(self.base):
            async with client.stream(
                method,
                path,
                content=content,
                params=params,
                headers={"Authorization": f"Bearer {token}", **(headers or {})},
                timeout=timeout,
            ) as answer:
                response = await self._read(answer)
        if response.status_code >= 300:
            raise error_of(response, self.base)
        return response

    @asynccontextmanager
    async def stream(self, path: str, token: str, most: int) -> AsyncIterator[AsyncIterator[bytes]]:
        """Get a large body piece by piece; raises `AnswerTooLarge` above this many bytes."""
        client = self._opened()
        with self._outside(), _our_errors(self.base):
            async with client.stream(
                "GET",
                path,
                headers={"Authorization": f"Bearer {token}"},
                timeout=httpx.Timeout(self._timeout, connect=CONNECT_WITHIN),
            ) as response:
                if response.status_code >= 300:
                    raise error_of(await self._read(response), self.base)
                yield self._pieces(response, most)

    async def _read(self, answer: httpx.Response) -> httpx.Response:
        """The answer with its whole body, within the limit."""
        body = bytearray()
        async for piece in self._pieces(answer, self._answer_max):
            body += piece
        return httpx.Response(answer.status_code, headers=answer.headers, content=bytes(body))

    async def _pieces(self, answer: httpx.Response, most: int) -> AsyncIterator[bytes]:
        """The body as it was sent, at most this many bytes of it."""
        encoding = answer.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise AnswerTooLarge(
                f"{self.base} answered with a compressed body ({_line(encoding)[:SHOWN_MAX]}), "
                "which was not asked for; turn off compression in the proxy"
            )
        if answer.is_stream_consumed:  # it was made in this process
            yield answer.content
            return
        size = 0
        async for piece in answer.aiter_raw(65536):
            size += len(piece)
            if size > most:
                raise AnswerTooLarge(
                    f"{self.base} answered with more than {most} bytes, which are not read"
                )
            yield piece

    async def dial(self, path: str, token: str) -> Socket:
        """Open a WebSocket; raises `RequestRefused`, or `NoAnswer` if it cannot be opened now."""
        if self._dial is not None:
            socket: Socket = await self._dial(path, token)
            return socket
        from pollwise.queues.http.websocket import dial

        with self._outside():
            return await dial(self.base, path, token, self._tls())

    async def close(self) -> None:
        self.closed = True
        client, self._client = self._client, None
        if client is not None and self._home.here():
            await client.aclose()  # one of an earlier event loop cannot be closed

    def after_fork(self) -> None:
        keep_for_parent(self._client)
        self._client = None

    def _opened(self) -> httpx.AsyncClient:
        if self.closed:
            raise StoreError(f"the connection to {self.base} is closed; open another")
        if self._home.enter(self.base) or self._client is None:
            self._client = httpx.AsyncClient(
                base_url=self.base,
                http2=self._transport is None and self.base.startswith("https:") and HAS_HTTP2,
                transport=self._transport,
                verify=self._tls() or http_tls.trusts_nothing(),
                limits=httpx.Limits(
                    max_connections=CONNECTIONS_MAX,
                    max_keepalive_connections=10,
                    keepalive_expiry=KEEP_ALIVE,
                ),
                headers={"User-Agent": "pollwise", "Accept-Encoding": "identity"},
                follow_redirects=False,  # the token is for this address only
            )
        return self._client

    def _tls(self) -> ssl.SSLContext | None:
        return http_tls.context(self._ca_file) if self.base.startswith("https:") else None

    def _outside(self) -> AbstractContextManager[None]:
        return self._clock.outside() if self._transport is None else nullcontext()


@contextmanager
def _our_errors(base: str) -> Iterator[None]:
    """Raise httpx's errors as ours."""
    try:
        yield
    except httpx.TransportError as error:
        raise _no_answer(error, base) from error
    except (httpx.InvalidURL, httpx.HTTPError) as error:
        raise StoreError(f"{base}: {error}") from error


def _no_answer(error: httpx.TransportError, base: str) -> NoAnswer:
    sent = not isinstance(
        error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
    )
    problem = http_tls.problem(error) if isinstance(error, httpx.ConnectError) else None
    if problem is not None:
        return CertificateNotTrusted(f"the controller {base} {problem}", sent=False)
    if isinstance(error, httpx.TimeoutException):
        what = "did not answer in time" if sent else "could not be reached in time"
    else:
        what = "closed the connection before it answered" if sent else "cannot be reached"
    why = f" ({error})" if str(error) else ""
    if base.startswith("http:") and isinstance(error, (httpx.ProtocolError, httpx.ReadError)):
        advice = f"if it uses TLS, write {_with_tls(base)}; else check that it is running"
    else:
        advice = "check that it is running, and the network"
    return NoAnswer(f"the controller {base} {what}{why}; {advice}", sent=sent)


def _with_tls(base: str) -> str:
    return f"https:{base.removeprefix('http:')}"


def error_of(response: httpx.Response, base: str) -> RequestRefused | Busy:
    """The error for an answer that is not a success."""
    status = response.status_code
    error = (_object(response.content) or {}).get("error")
    error = error if isinstance(error, dict) else {}
    code = str(error.get("code", ""))
    if error:
        message = f"{_line(error.get('message'))}. {_line(error.get('what_to_do'))}".rstrip(". ")
    else:
        message = _guess(status, response, base)
    said = f"the controller {base} answered {status}: {message}"
    epoch = Clock().epoch()
    refused = refused_for(status, response.headers, epoch)
    if status in (408, 425) or status >= 500 or refused is not None:
        if status == 500 and code == "store_refused":
            return RequestRefused(said, status, code, response.headers)
        wait = retry_after(response.headers.get("retry-after"), epoch)
        return Busy(said, status, code, wait if refused is None else refused or wait)
    return RequestRefused(said, status, code, response.headers)


def _guess(status: int, response: httpx.Response, base: str) -> str:
    """The likely meaning of an answer that did not come from the controller itself."""
    if status == 400 and base.startswith("http:") and "HTTPS" in response.text[:1000]:
        return f"it uses TLS; write {_with_tls(base)}"
    if status in (502, 503, 504):
        return "a proxy answered that it cannot reach the controller"
    if 300 <= status < 400:
        where = without_secrets(response.headers.get("location", "elsewhere"))[:SHOWN_MAX]
        return f"it redirects to {_line(where)}; give that address, since tokens are not forwarded"
    if status == 404:
        return "not found: check that the address is that of a controller"
    if status == 413:
        return "too large for the controller, or for a proxy in front of it"
    return _line(response.text[:SHOWN_MAX]) or "no message"


def decoded(response: httpx.Response, base: str) -> dict[str, Any]:
    """The JSON object in an answer."""
    body = _object(response.content)
    if body is None:
        raise StoreError(
            f"{base} answered {response.status_code} with something other than a JSON object: "
            "check that the address is that of a controller"
        )
    return body


def checked_base(base: str) -> str:
    """The address of a controller, without a trailing slash; refused if it holds credentials."""
    parts = split_url(base)
    shown = without_secrets(base)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"{shown!r} is not the address of a controller; write one like "
            "http://localhost:8420 or https://builds.example.com"
        )
    if "@" in parts.netloc:
        raise ConfigError(
            f"{shown!r} holds credentials; a token belongs in a file (token_file, "
            f"{TOKEN_FILE_VARIABLE}) or in {TOKEN_VARIABLE}"
        )
    try:
        parts.port  # noqa: B018
    except ValueError:
        raise ConfigError(f"{shown!r} has an invalid port; write a number") from None
    if parts.query or parts.fragment:
        raise ConfigError(f"{shown!r}: the address of a controller has no '?' and no '#'")
    return base.rstrip("/")


def _object(content: bytes) -> dict[str, Any] | None:
    """The JSON object in a body, or None."""
    try:
        body = decode_document(content)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _line(text: object) -> str:
    """Text from elsewhere made safe for a log: one line of printable characters."""
    return "".join(c if c.isprintable() else " " for c in str(text or ""))[:500].strip()
