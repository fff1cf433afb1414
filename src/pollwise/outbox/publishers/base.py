"""What all publishers share: opened by the first record, bounded in time, errors in our words.

A publisher does not try again: it raises, and the handler's retry policy decides. So it needs no
client that reconnects behind its back either: a link that is lost is opened anew by the next
record. A link that did not answer in time is doubted, where all records travel on one connection:
no further record is given to it, and it is closed when those under way on it have ended.

Only what is wrong with the record itself is permanent (`PublishRefused`). What is wrong with the
other side (no exchange, no rights, a full disk) gets another attempt, because somebody may put it
right, and because the next record would meet the same fate.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError, PublishError
from pollwise.outbox.envelope import CloudEvents, Envelope, Message
from pollwise.outbox.records import Record
from pollwise.runtime.clock import Clock
from pollwise.runtime.jobs import checked_name
from pollwise.runtime.redact import HIDDEN, is_secret

L = TypeVar("L")
#: A text, or what makes one of a record.
Chosen = str | Callable[[Record], str]

#: How long closing a link may take, in seconds; what is not closed by then is left.
CLOSE_WITHIN = 5.0
#: The longest that a text of another's goes into an error.
_TEXT_MAX = 500


class PublisherOptions(TypedDict, total=False):
    """What every publisher takes.

    name: the handler's name, under which its progress is kept: keep it when the rest changes.
    envelope: makes a message of a record; `CloudEvents()` unless given.
    timeout: how long one record may take, the opening included; 10 s unless given.
    """

    name: str | None
    envelope: Envelope | None
    timeout: Duration
    clock: Clock | None


@dataclass(slots=True, eq=False)
class OpenClient(Generic[L]):
    """A client that is open, and how many records are under way on it."""

    client: L
    users: int = 0
    doubted: bool = False


class Publisher(ABC, Generic[L]):
    """A handler that publishes records; see the publisher of each transport for its arguments.

    name: of the handler, under which the progress of records is kept.
    where: the broker or receiver, as errors call it; without secrets.
    """

    #: Whether all records travel on one connection; else the client has one for each, and drops
    #: those that did not answer itself.
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
                f"{type(self).__name__} takes no argument {min(unknown)!r}; "
                f"known besides its own: {', '.join(PublisherOptions.__annotations__)}"
            )
        self.name = checked_name(options.get("name") or name, "name", ConfigError)
        self.__name__ = self.name
        self.where = where
        self.timeout = seconds(options.get("timeout", "10s"), "timeout", positive=True)
        self.clock = options.get("clock") or Clock()
        self.envelope: Envelope = options.get("envelope") or CloudEvents()
        if not callable(self.envelope):
            raise ConfigError(f"envelope = {self.envelope!r} must be one such as CloudEvents()")
        # The longest first: one may be part of another.
        self._secrets = sorted({text for text in secrets if text}, key=len, reverse=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._link: OpenClient[L] | None = None
        self._opening: asyncio.Task[OpenClient[L]] | None = None
        self._waiting = 0
        self._closing: set[asyncio.Task[None]] = set()

    async def __call__(self, record: Record) -> None:
        """Publish a record; returns when the other side has it, raises `PublishError` else."""
        message = self.envelope(record)
        try:
            with self.clock.outside():
                async with asyncio.timeout(self.timeout):
                    await self._publish(record, message)
        except TimeoutError:
            raise PublishError(
                f"{self.where} did not answer within {self.timeout:g} s, so it may have the record "
                "or not. Look at its load, or raise `timeout`."
            ) from None
        except (PublishError, ConfigError):
            raise
        except Exception as error:
            raise self._explained(error) from None

    async def aclose(self) -> None:
        """Close what is open; a record that comes later opens it again."""
        self._come_home()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._link is not None:
            self._doubt(self._link)
        if self._closing:
            with self.clock.outside():
                await asyncio.wait(self._closing, timeout=CLOSE_WITHIN)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.where!r}, name={self.name!r})"

    @abstractmethod
    async def _open(self) -> L:
        """A client that is connected, as far as it needs to be."""

    @abstractmethod
    async def _send(self, client: L, record: Record, message: Message) -> None:
        """Hand a message over; return when the other side said that it has it."""

    @abstractmethod
    async def _close(self, client: L) -> None:
        """Close a client; what it raises is of no interest."""

    @abstractmethod
    def _explained(self, error: Exception) -> PublishError:
        """What a client raised, in our words: whether trying again helps, and what to do."""

    def _alive(self, client: L) -> bool:
        """Whether it can be used, as far as one knows without asking."""
        return True

    async def _publish(self, record: Record, message: Message) -> None:
        link = await self._linked()
        link.users += 1
        try:
            await self._send(link.client, record, message)
        except (TimeoutError, asyncio.CancelledError) as error:
            # Cancelled by the time limit, or by a relay that stops: either way nobody answered.
            if self.one_connection:
                self._doubt(link)
            if isinstance(error, asyncio.CancelledError) and not _cancelled():
                # Some clients cancel what waits on a connection that is lost. The relay must not
                # take that for its own doing.
                raise PublishError(
                    f"{self.where} ended the connection, so it may have the record or not"
                ) from None
            raise
        finally:
            link.users -= 1
            self._close_if_doubted(link)

    async def _linked(self) -> OpenClient[L]:
        self._come_home()
        if self._link is not None:
            if self._alive(self._link.client):
                return self._link
            self._doubt(self._link)
        if self._opening is None:  # one opens for all who begin at once
            self._opening = asyncio.get_running_loop().create_task(self._opened())
            self._opening.add_done_callback(_looked_at)
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
                if not self._waiting:  # all who waited have given up
                    opening.cancel()
                    self._opening = None

    async def _opened(self) -> OpenClient[L]:
        try:
            async with asyncio.timeout(self.timeout):
                self._link = OpenClient(await self._open())
            return self._link
        finally:
            if self._opening is asyncio.current_task():
                self._opening = None

    def _doubt(self, link: OpenClient[L]) -> None:
        link.doubted = True
        if self._link is link:
            self._link = None
        self._close_if_doubted(link)

    def _close_if_doubted(self, link: OpenClient[L]) -> None:
        if link.doubted and not link.users:
            link.users = -1  # once
            task = asyncio.get_running_loop().create_task(self._closed(link.client))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _closed(self, client: L) -> None:
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_WITHIN):
                await self._close(client)

    def _come_home(self) -> None:
        """Clients belong to an event loop; those of one that ended are gone."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._link, self._opening = loop, None, None
            self._closing = set()

    def _plain(self, error: object) -> str:
        """The text of an error without our secrets, whoever wrote it."""
        text = str(error).strip() or type(error).__name__
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]} …"


def _cancelled() -> bool:
    """Whether somebody cancelled this task, rather than something that it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _looked_at(task: asyncio.Task[Any]) -> None:
    """Whoever waited for it may be gone; asyncio then complains of an error nobody saw."""
    if not task.cancelled():
        task.exception()


def checked_choice(given: object, name: str) -> Chosen:
    """A text that is not empty, or a function from a record to one."""
    if callable(given) or (isinstance(given, str) and given):
        return given
    raise ConfigError(f"{name} = {given!r} must be a text, or a function from a record to one")


def choose(choice: Chosen, record: Record, name: str) -> str:
    """The text for this record."""
    if isinstance(choice, str):
        return choice
    chosen = choice(record)
    if not isinstance(chosen, str):
        raise ConfigError(f"{name} is a function that returned {chosen!r}; it must return text")
    return chosen


def label(choice: Chosen) -> str:
    """What stands for a choice in a name."""
    if isinstance(choice, str):
        return choice
    name = "kind" if choice is kind_of else str(getattr(choice, "__name__", "chosen"))
    return "chosen" if name == "<lambda>" else name


def kind_of(record: Record) -> str:
    """The default of what is chosen by record."""
    return record.kind


def place_of(url: object, schemes: Iterable[str], example: str) -> tuple[str, list[str]]:
    """Check a URL of a server; return it as it may be shown, and what in it is secret.

    Shown are its scheme, host and port alone: a path may be a secret as well.
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
    except ValueError:  # whose message may show the password
        raise unreadable from None
    if not host:
        raise unreadable
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + (f":{port}" if port else ""), secrets_in(url)


def secrets_in(url: str) -> list[str]:
    """What in a URL is secret: its password (or token in place of one), and telling options."""
    parts = urlsplit(url)
    found = [parts.password] if parts.password else [parts.username]
    found += [value for name, value in parse_qsl(parts.query) if is_secret(name)]
    plain = [text for text in found if text]
    return plain + [unquote(text) for text in plain]
