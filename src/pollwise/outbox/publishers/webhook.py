"""HTTP webhooks, by httpx: signed, with an idempotency key; only 2xx is success."""

from __future__ import annotations

import asyncio
import re
import ssl as tls
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Unpack
from urllib.parse import urlsplit

from pollwise.errors import ConfigError, MissingExtra, PublishError, PublishRefused
from pollwise.outbox.envelope import Message, percent_encoded, unique_of
from pollwise.outbox.publishers.base import Publisher, PublisherOptions, place_of
from pollwise.outbox.publishers.signatures import (
    IDEMPOTENCY_KEY,
    SIGNATURE,
    Secret,
    secrets_of,
    sign,
    verify,
)
from pollwise.outbox.records import Record
from pollwise.runtime.limits.headers import refused_for, retry_after

try:
    import httpx
except ImportError as error:
    raise MissingExtra("publishing to a webhook", "webhook") from error

__all__ = ["WebhookPublisher", "sign", "verify"]

EXAMPLE = "https://receiver.example/events"
#: HTTP status codes below 500 that are retried: timeout, too early, too many requests.
RETRY_ON = frozenset({408, 425, 429})
#: The maximum number of bytes that are read of an answer, so that its connection can be reused.
_ANSWER_MAX = 64 * 1024
_CONNECTIONS = 32
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
#: HTTP headers that a record must not set: for the transport, the credentials and the signature.
_RESERVED = re.compile(
    r"(accept|content|proxy|sec|ce|pollwise|transfer|x-forwarded)-.*"
    r"|accept|authorization|connection|cookie|expect|forwarded|host|idempotency-key|keep-alive"
    r"|te|trailer|upgrade|user-agent|via",
    re.IGNORECASE,
)


class _WebhookConnections:
    """Connections to one receiver, each for one request at a time.

    Each is a transport of its own, because httpcore's pool goes through all its requests and
    connections for every request: with 64 at a time that took ten times longer than the requests.
    """

    def __init__(self, make: Callable[[], httpx.AsyncHTTPTransport]) -> None:
        self._make = make
        self._places = asyncio.Semaphore(_CONNECTIONS)
        self._idle: list[httpx.AsyncHTTPTransport] = []
        self.closed = False

    @asynccontextmanager
    async def one(self) -> AsyncIterator[httpx.AsyncHTTPTransport]:
        async with self._places:
            line = self._idle.pop() if self._idle else self._make()
            keep = False
            try:
                yield line
                keep = True
            except PublishError:
                keep = True  # the receiver answered
                raise
            finally:
                if keep and not self.closed:
                    self._idle.append(line)
                else:
                    await line.aclose()

    async def aclose(self) -> None:
        self.closed = True
        while self._idle:
            await self._idle.pop().aclose()


class WebhookPublisher(Publisher[_WebhookConnections]):
    """Posts records to a URL.

    url: the receiver; use https:// in production.
    secret: the shared secret that signs the request; the receiver checks it with `verify`. Several
        secrets sign with each of them, for a rotation. None does not sign.
    headers: sent with each request, such as {"Authorization": "Bearer …"}.
    retry_on: the status codes below 500 that are retried; 408, 425 and 429 by default. 403 that
        says until when is retried, too.
    ssl: a context, for your own certificates.
    proxy: the URL of a proxy. Proxies of the environment are not used.

    Each request has the headers `Pollwise-Signature`, `Idempotency-Key` (the same at each attempt)
    and the record's headers, except those that control the transport. 2xx is success. 5xx and
    `retry_on` are retried, not before `Retry-After`. All others are permanent errors: other 4xx,
    and redirects, which are not followed because they lead to another receiver.
    """

    one_connection = False

    def __init__(
        self,
        url: str,
        secret: Secret | Sequence[Secret] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        retry_on: Collection[int] = RETRY_ON,
        ssl: tls.SSLContext | None = None,
        proxy: str | None = None,
        **common: Unpack[PublisherOptions],
    ) -> None:
        where, secrets = place_of(url, ("https", "http"), EXAMPLE)
        parts = urlsplit(url)
        self._keys = None if secret is None else secrets_of(secret)
        self._headers = {str(name): str(text) for name, text in (headers or {}).items()}
        for name, text in self._headers.items():
            if not _TOKEN.fullmatch(name) or not (text.isascii() and text.isprintable()):
                raise ConfigError(f"the header {name!r} is not a valid HTTP header")
        secrets += [key.decode(errors="replace") for key in self._keys or ()]
        secrets += [*self._headers.values(), parts.query]
        secrets += [parts.path] if len(parts.path) > 1 else []
        secrets += place_of(proxy, ("http", "https"), "http://proxy:3128")[1] if proxy else []
        super().__init__(f"webhook:{parts.netloc.rpartition('@')[2]}", where, secrets, common)
        self.retry_on: frozenset[int] = frozenset(retry_on)
        self._url = httpx.URL(url)
        self._ssl = ssl
        self._proxy = proxy
        self._limits = httpx.Timeout(self.timeout).as_dict()
        if self._url.username or self._url.password:
            auth = httpx.BasicAuth(self._url.username, self._url.password)
            request = next(auth.auth_flow(httpx.Request("POST", EXAMPLE)))
            self._headers.setdefault("Authorization", request.headers["Authorization"])
            self._url = self._url.copy_with(username=None, password=None)

    async def _open(self) -> _WebhookConnections:
        secure = self._url.scheme == "https" or self._proxy is not None
        if secure and self._ssl is None:  # in a thread: it reads all certificates
            self._ssl = await asyncio.to_thread(httpx.create_ssl_context)
        return _WebhookConnections(self._transport)

    def _transport(self) -> httpx.AsyncHTTPTransport:
        # Only the transport: a client would log URLs, which may be secret, and keep cookies.
        return httpx.AsyncHTTPTransport(
            verify=self._ssl if self._ssl is not None else False,
            proxy=self._proxy,
            limits=httpx.Limits(max_connections=1, keepalive_expiry=30),
        )

    async def _close(self, client: _WebhookConnections) -> None:
        await client.aclose()

    async def _send(self, client: _WebhookConnections, record: Record, message: Message) -> None:
        request = httpx.Request(
            "POST",
            self._url,
            headers=self._sent(record, message),
            content=message.body,
            extensions={"timeout": self._limits},
        )
        async with client.one() as line:
            response = await line.handle_async_request(request)
            try:
                self._check(response)
                await _read(response)
            finally:
                await response.aclose()

    def _sent(self, record: Record, message: Message) -> dict[str, str]:
        # A later header replaces an earlier one of the same name, in upper or lower case.
        headers: dict[str, tuple[str, str]] = {}

        def add(name: str, text: str) -> None:
            headers[name.lower()] = (name, text)

        for name, text in message.headers.items():
            if _TOKEN.fullmatch(name) and not _RESERVED.fullmatch(name):
                add(name, percent_encoded(text))
        for name, text in message.prefixed("ce-").items():
            add(name, percent_encoded(text))
        add("User-Agent", "pollwise")
        add("Accept", "*/*")
        for name, text in self._headers.items():
            add(name, text)
        add("Content-Type", message.content_type)
        unique = percent_encoded(unique_of(record))
        add(IDEMPOTENCY_KEY, unique)
        if self._keys is not None:
            now = self.clock.epoch()
            add(SIGNATURE, sign(self._keys, message.body, now, idempotency_key=unique))
        return dict(headers.values())

    def _check(self, response: httpx.Response) -> None:
        status = response.status_code
        if 200 <= status < 300:
            return
        said = f"{self.where} answered {status} {response.reason_phrase}".rstrip()
        epoch = self.clock.epoch()
        refused = refused_for(status, response.headers, epoch) if status == 403 else None
        if status >= 500 or status in self.retry_on or refused is not None:
            wait = retry_after(response.headers.get("Retry-After"), epoch)
            raise PublishError(said, retry_after=wait if refused is None else refused)
        if 300 <= status < 400:
            raise PublishRefused(
                f"{said}: redirects are not followed; give the final URL of the receiver"
            )
        raise PublishRefused(f"{said}: it does not accept this record")

    def _explained(self, error: Exception) -> PublishError:
        text = self._plain(error)
        if isinstance(error, httpx.TimeoutException):
            return PublishError(f"{self.where} did not answer within {self.timeout:g} s")
        if isinstance(error, httpx.LocalProtocolError):
            return PublishRefused(f"{self.where}: the request cannot be sent: {text}")
        if isinstance(error, httpx.ConnectError):
            return PublishError(f"{self.where} cannot be reached: {text}")
        if isinstance(error, (httpx.TransportError, OSError)):
            return PublishError(
                f"{self.where}: the connection was lost during the request ({text}); it may or may "
                "not have the record"
            )
        return PublishError(f"{self.where}: {type(error).__name__}: {text}")


async def _read(response: httpx.Response) -> None:
    """Read a short answer to its end; its content does not matter."""
    read = 0
    try:
        async with asyncio.timeout(1):
            async for part in response.aiter_raw():
                read += len(part)
                if read > _ANSWER_MAX:
                    return
    except (TimeoutError, httpx.TransportError):
        return  # only the status code counts
