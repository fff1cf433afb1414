"""What all publishers share: the client is opened by the first record, calls have a time limit, and
errors say what to do.

A publisher does not retry: it raises, and the handler's retry policy decides. So it uses no client
that reconnects by itself: the next record opens a new client if the old one is lost. If all records
use one connection and it did not answer in time, it is not used again, and it is closed when the
records that still use it have ended.

Only an error of the record itself is permanent (`PublishRefused`). An error of the other side (no
exchange, no permission, a full disk) is retried, because an operator may fix it, and because the
next record would fail in the same way.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, TypedDict, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from pollwise.core.breaker import Breaker
from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError, PublishError
from pollwise.outbox.envelope import CloudEvents, Envelope, Message
from pollwise.outbox.records import Record
from pollwise.runtime.clock import Clock
from pollwise.runtime.jobs import checked_name
from pollwise.runtime.redact import HIDDEN, is_secret
from pollwise.runtime.tracing import spans, w3c

L = TypeVar("L")
#: A string, or a function that returns one for a record.
Chosen = str | Callable[[Record], str]

#: How long closing a client may take, in seconds; then it is abandoned.
CLOSE_WITHIN = 5.0
#: While a broker is down, one record per opening tries it, and the others wait.
PUBLISHER_BREAKER = Breaker(failures=5, delay="2s", max_delay="30s")
#: The maximum length of a client's error text in our errors.
_TEXT_MAX = 500


class PublisherOptions(TypedDict, total=False):
    """The arguments of every publisher.

    name: the handler's name, under which its progress is stored; keep it when the rest changes.
    envelope: makes a message from a record; `CloudEvents()` by default.
    timeout: how long one record may take, including the connection; 10 s by default.
    """

    name: str | None
    envelope: Envelope | None
    timeout: Duration
    clock: Clock | None


@dataclass(slots=True, eq=False)
class OpenClient(Generic[L]):
    """An open client, and how many records use it; a retired one is closed after the last."""

    client: L
    users: int = 0
    retired: bool = False


class Publisher(ABC, Generic[L]):
    """A handler that publishes records; see the publisher of each transport for its arguments.

    name: the handler's name, under which the progress of records is stored.
    where: the broker or receiver, for error messages; without secrets.
    breaker: used by `handle` unless it is given another; None for none.
    """

    breaker: Breaker | None = PUBLISHER_BREAKER

    #: True if all records use one connection. Otherwise the client has several, and itself drops
    #: those that did not answer.
    one_connection = True

    def __init__(
        self,
        name: str,
        where: str,
        secrets: Iterable[str],
        options: PublisherOptions,
    ) -> None:
        unknown = set(options) - set(PublisherOptions.__annotations__)
        if unknown:
            raise ConfigError(
                f"{type(self).__name__} has no argument {min(unknown)!r}; besides its own it "
                f"takes {', '.join(PublisherOptions.__annotations__)}"
            )
        self.name: str = checked_name(options.get("name") or name, "name", ConfigError)
        self.__name__: str = self.name
        self.where = where
        self.timeout: float = seconds(options.get("timeout", "10s"), "timeout", positive=True)
        self.clock: Clock = options.get("clock") or Clock()
        self.envelope: Envelope = options.get("envelope") or CloudEvents()
        if not callable(self.envelope):
            raise ConfigError(f"envelope = {self.envelope!r} must be a function or CloudEvents()")
        # The longest first, because one may be part of another.
        self._secrets = sorted({text for text in secrets if text}, key=len, reverse=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open_client: OpenClient[L] | None = None
        self._opening: asyncio.Task[OpenClient[L]] | None = None
        self._waiting = 0
        self._closing: set[asyncio.Task[None]] = set()

    async def __call__(self, record: Record) -> None:
        """Publish a record; return when the other side has confirmed it. Raises PublishError."""
        message = self.envelope(record)
        # The envelope has the context of the put, these headers that of this run.
        trace = w3c.of(record.headers) if spans.tracer() is None else w3c.current()
        if trace:
            message = replace(message, headers={**message.headers, **trace})
        try:
            with self.clock.outside():
                async with asyncio.timeout(self.timeout):
                    await self._publish(record, message)
        except TimeoutError:
            raise PublishError(
                f"{self.where} did not answer within {self.timeout:g} s; it may or may not have "
                "the record. Check its load, or raise `timeout`."
            ) from None
        except (PublishError, ConfigError):
            raise
        except Exception as error:
            raise self._explained(error) from None

    async def aclose(self) -> None:
        """Close the client; the next record opens a new one."""
        self._follow_loop()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._open_client is not None:
            self._retire(self._open_client)
        if self._closing:
            with self.clock.outside():
                await asyncio.wait(self._closing, timeout=CLOSE_WITHIN)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.where!r}, name={self.name!r})"

    @abstractmethod
    async def _open(self) -> L:
        """A new client, connected if it needs a connection."""

    @abstractmethod
    async def _send(self, client: L, record: Record, message: Message) -> None:
        """Send a message; return when the other side has confirmed it."""

    @abstractmethod
    async def _close(self, client: L) -> None:
        """Close a client; its errors are ignored."""

    @abstractmethod
    def _explained(self, error: Exception) -> PublishError:
        """The error for what a client raised: whether a retry helps, and what to do."""

    def _alive(self, client: L) -> bool:
        """False if the client is known to be lost."""
        return True

    async def _publish(self, record: Record, message: Message) -> None:
        opened = await self._client()
        opened.users += 1
        try:
            await self._send(opened.client, record, message)
        except (TimeoutError, asyncio.CancelledError) as error:
            # Cancelled by the time limit, or by a relay that stops: in both cases without answer.
            if self.one_connection:
                self._retire(opened)
            if isinstance(error, asyncio.CancelledError) and not _cancelled():
                # Some clients cancel calls on a lost connection. The relay must not mistake that
                # for its own cancellation.
                raise PublishError(
                    f"{self.where} ended the connection; it may or may not have the record"
                ) from None
            raise
        finally:
            opened.users -= 1
            self._close_if_retired(opened)

    async def _client(self) -> OpenClient[L]:
        self._follow_loop()
        if self._open_client is not None:
            if self._alive(self._open_client.client):
                return self._open_client
            self._retire(self._open_client)
        if self._opening is None:  # one task for all records that start at once
            self._opening = asyncio.get_running_loop().create_task(self._opened())
            self._opening.add_done_callback(_retrieve_error)
            self._waiting = 0
        opening = self._opening
        self._waiting += 1
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if _cancelled():
                raise
            raise PublishError(f"{self.where}: the publisher was closed meanwhile") from None
        finally:
            if self._opening is opening:
                self._waiting -= 1
                if not self._waiting:  # all records that waited were cancelled
                    opening.cancel()
                    self._opening = None

    async def _opened(self) -> OpenClient[L]:
        try:
            async with asyncio.timeout(self.timeout):
                self._open_client = OpenClient(await self._open())
            return self._open_client
        finally:
            if self._opening is asyncio.current_task():
                self._opening = None

    def _retire(self, opened: OpenClient[L]) -> None:
        opened.retired = True
        if self._open_client is opened:
            self._open_client = None
        self._close_if_retired(opened)

    def _close_if_retired(self, opened: OpenClient[L]) -> None:
        if opened.retired and not opened.users:
            opened.users = -1  # once
            task = asyncio.get_running_loop().create_task(self._closed(opened.client))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _closed(self, client: L) -> None:
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_WITHIN):
                await self._close(client)

    def _follow_loop(self) -> None:
        """Forget the client of another event loop: clients cannot change their loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._open_client, self._opening = loop, None, None
            self._closing = set()

    def _plain(self, error: object) -> str:
        """The text of an error without our secrets, shortened."""
        text = str(error).strip() or type(error).__name__
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]} …"


def _cancelled() -> bool:
    """True if this task was cancelled, and not only something that it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _retrieve_error(task: asyncio.Task[Any]) -> None:
    """Keep asyncio from logging an error that no record waits for any more."""
    if not task.cancelled():
        task.exception()


def checked_choice(given: object, name: str) -> Chosen:
    """Check that it is a non-empty string, or a function that returns one for a record."""
    if callable(given) or (isinstance(given, str) and given):
        return given
    raise ConfigError(
        f"{name} = {given!r} must be a string, or a function that returns one for a record"
    )


def choose(choice: Chosen, record: Record, name: str) -> str:
    """The string for this record."""
    if isinstance(choice, str):
        return choice
    chosen = choice(record)
    if not isinstance(chosen, str):
        raise ConfigError(f"the function {name} returned {chosen!r}; it must return a string")
    return chosen


def label(choice: Chosen) -> str:
    """The part of a publisher's default name for a choice."""
    if isinstance(choice, str):
        return choice
    name = "kind" if choice is kind_of else str(getattr(choice, "__name__", "chosen"))
    return "chosen" if name == "<lambda>" else name


def kind_of(record: Record) -> str:
    """The default function: the record's kind."""
    return record.kind


def place_of(url: object, schemes: Iterable[str], example: str) -> tuple[str, list[str]]:
    """Check the URL of a server; return a text of it that can be shown, and its secrets.

    The text has only scheme, host and port, because a path may be a secret too.
    """
    schemes = tuple(schemes)
    if not isinstance(url, str) or url.partition("://")[0] not in schemes or "://" not in url:
        known = ", ".join(f"{scheme}://" for scheme in schemes)
        raise ConfigError(f"the URL must begin with {known}; give one like {example}")
    unreadable = ConfigError(
        f"the {schemes[0]} URL cannot be read; write it like {example}, with special characters "
        "of a password as %XX"
    )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # its message may contain the password
        raise unreadable from None
    if not host:
        raise unreadable
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + (f":{port}" if port else ""), secrets_in(url)


def secrets_in(url: str) -> list[str]:
    """The secrets in a URL: its password, or a token instead of one, and secret options."""
    parts = urlsplit(url)
    found = [parts.password] if parts.password else [parts.username]
    found += [value for name, value in parse_qsl(parts.query) if is_secret(name)]
    plain = [text for text in found if text]
    return plain + [unquote(text) for text in plain]
