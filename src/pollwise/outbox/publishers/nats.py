"""NATS JetStream, by nats-py: acknowledged by the stream, duplicates dropped by Nats-Msg-Id."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Unpack

from pollwise.errors import ConfigError, MissingExtra, PublishError, PublishRefused
from pollwise.outbox.envelope import Message, percent_encoded, unique_of
from pollwise.outbox.publishers.base import (
    Chosen,
    Publisher,
    PublisherOptions,
    checked_choice,
    choose,
    kind_of,
    label,
    place_of,
)
from pollwise.outbox.records import Record
from pollwise.runtime.redact import is_secret

try:
    from nats import errors as trouble
    from nats.aio.client import Client
    from nats.js.errors import APIError, NoStreamResponseError
except ImportError as error:
    raise MissingExtra("publishing to NATS", "nats") from error

EXAMPLE = "nats://user:password@broker:4222"
#: Tokens separated by dots, without the wildcards of subscriptions.
_SUBJECT = re.compile(r"[^\s.*>\x00-\x20]+(?:\.[^\s.*>\x00-\x20]+)*")
#: Headers that the server itself interprets; a record must not set them.
_RESERVED = re.compile(r"nats-|ce-|content-type$", re.IGNORECASE)
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
#: nats-py's errors for invalid subjects and headers; some versions lack the second.
_MALFORMED = (trouble.BadSubjectError, getattr(trouble, "BadHeaderError", trouble.BadSubjectError))
#: JetStream's code for a message that is too large for its stream.
_TOO_LARGE = 10054


@dataclass(slots=True, eq=False)
class _NatsClient:
    """A connection, and the subjects of the records that are being sent on it.

    nats-py does not fail calls when the connection is lost or when the user may not publish; they
    would wait until the timeout.
    """

    client: Client = field(default_factory=Client)
    senders: dict[asyncio.Future[None], str] = field(default_factory=dict)
    gone: bool = False
    last: Exception | None = None

    async def on_error(self, error: Exception) -> None:
        self.last = error
        text = str(error).lower()
        if "permissions violation for publish" in text:
            self._fail(error, [f for f, to in self.senders.items() if f'"{to.lower()}"' in text])

    async def on_close(self) -> None:
        self.gone = True
        self._fail(trouble.ConnectionClosedError(), list(self.senders))

    def _fail(self, error: Exception, senders: list[asyncio.Future[None]]) -> None:
        for each in senders:
            if not each.done():
                each.set_exception(error)


class NatsPublisher(Publisher[_NatsClient]):
    """Publishes records to a JetStream stream of NATS, and waits for its acknowledgement.

    url: nats://, tls:// or wss://, or a list of servers of one cluster.
    subject: a string, or a function that returns one for a record; the record's kind by default. A
        stream must include it, because plain NATS drops messages without subscribers.
    stream: the expected stream; it is an error if another one includes the subject.
    connect: more options for `nats.connect`, such as `user_credentials` or `tls`.

    With the header Nats-Msg-Id the stream drops a duplicate within its duplicate window (2 minutes
    by default); a dropped duplicate counts as published.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        subject: Chosen = kind_of,
        stream: str | None = None,
        connect: Mapping[str, Any] | None = None,
        **common: Unpack[PublisherOptions],
    ) -> None:
        urls = [url] if isinstance(url, str) else list(url)
        if not urls:
            raise ConfigError(f"give the URL of a server, like {EXAMPLE}")
        places = [place_of(each, ("nats", "tls", "ws", "wss"), EXAMPLE) for each in urls]
        options = dict(connect or {})
        secrets = [secret for _, several in places for secret in several]
        secrets += [str(value) for name, value in options.items() if is_secret(name)]
        self._subject = checked_choice(subject, "subject")
        if isinstance(subject, str) and not _SUBJECT.fullmatch(subject):
            raise ConfigError(f"subject = {subject!r} is not a valid subject: {_ADVICE}")
        super().__init__(
            f"nats:{stream or label(subject)}",
            ",".join(shown for shown, _ in places),
            secrets,
            common,
        )
        self.stream = stream
        self._urls = urls
        self._options = options

    async def _open(self) -> _NatsClient:
        made = _NatsClient()
        try:
            await made.client.connect(
                **{
                    "servers": list(self._urls),
                    "name": f"pollwise {self.name}",
                    "allow_reconnect": False,
                    # It connects once more than this, without a pause.
                    "max_reconnect_attempts": 1,
                    "reconnect_time_wait": 0,
                    "connect_timeout": self.timeout,
                    "error_cb": made.on_error,
                    "closed_cb": made.on_close,
                    "disconnected_cb": made.on_close,
                    **self._options,
                }
            )
        except BaseException as error:
            with suppress(Exception):
                await made.client.close()
            if isinstance(error, trouble.NoServersError) and made.last:
                raise made.last from None  # the reason
            raise
        return made

    def _alive(self, client: _NatsClient) -> bool:
        return client.client.is_connected and not client.gone

    async def _close(self, client: _NatsClient) -> None:
        await client.client.close()

    async def _send(self, client: _NatsClient, record: Record, message: Message) -> None:
        subject = choose(self._subject, record, "subject")
        if not _SUBJECT.fullmatch(subject):
            raise PublishRefused(
                f"{subject!r}, of record {record.id}, is not a valid subject: {_ADVICE}"
            )
        headers = {
            "Nats-Msg-Id": percent_encoded(unique_of(record)),
            "content-type": message.content_type,
            **{name: percent_encoded(text) for name, text in message.prefixed("ce-").items()},
            **_passed_on(message.headers),
        }
        context = client.client.jetstream(timeout=self.timeout)
        publishing: asyncio.Future[Any] = asyncio.ensure_future(
            context.publish(subject, message.body, stream=self.stream, headers=headers)
        )
        failing: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        client.senders[failing] = subject
        try:
            await asyncio.wait([publishing, failing], return_when=asyncio.FIRST_COMPLETED)
            await (publishing if publishing.done() else failing)
        finally:
            del client.senders[failing]
            failing.cancel()
            publishing.cancel()

    def _explained(self, error: Exception) -> PublishError:
        where, text = self.where, self._plain(error)
        if isinstance(error, NoStreamResponseError):
            return PublishError(
                f"{where}: no stream includes this subject, or JetStream is off; add the subject "
                "to a stream"
            )
        if isinstance(error, trouble.MaxPayloadError) or (
            isinstance(error, APIError) and error.err_code == _TOO_LARGE
        ):
            return PublishRefused(
                f"{where}: the message is larger than the server (max_payload) or the stream "
                "(max_msg_size) allows"
            )
        if isinstance(error, APIError):
            return PublishError(
                f"{where}: the stream did not accept the message: {error.description} "
                f"({error.err_code})"
            )
        if isinstance(error, _MALFORMED):
            return PublishRefused(f"{where}: {text}")
        if isinstance(error, trouble.AuthorizationError) or "uthorization" in text:
            return PublishError(f"{where} refuses these credentials; correct the URL or `connect`")
        if "permissions violation" in text:
            return PublishError(f"{where}: this user may not publish: {text}; allow it")
        if isinstance(error, (trouble.Error, OSError)):
            return PublishError(
                f"{where} cannot be reached, or ended the connection: {text}. Check the host, and "
                "that the server runs."
            )
        return PublishError(f"{where}: {type(error).__name__}: {text}")


_ADVICE = "write words separated by dots, without spaces and wildcards, or give a function"


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """The record's headers, without those that the server would interpret."""
    return {
        name: percent_encoded(text)
        for name, text in headers.items()
        if _TOKEN.fullmatch(name) and not _RESERVED.match(name)
    }
