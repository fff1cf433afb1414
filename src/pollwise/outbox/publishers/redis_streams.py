"""Redis Streams: XADD, on the same connections as queues in Redis."""

from __future__ import annotations

from typing import Unpack

from pollwise.errors import ConfigError, MissingExtra, PublishError, StoreError
from pollwise.outbox.envelope import Message, unique_of
from pollwise.outbox.publishers.base import (
    Chosen,
    Publisher,
    PublisherOptions,
    checked_choice,
    choose,
    label,
    secrets_in,
)
from pollwise.outbox.records import Record

try:
    from pollwise.storage.redis.connections import Connections, RedisAddress
except ImportError as error:
    raise MissingExtra("publishing to Redis", "redis") from error


class RedisStreamPublisher(Publisher[Connections]):
    """Publishes records to a stream of Redis or Valkey.

    url: redis:// or rediss://, as for a queue.
    stream: the key of the stream, or a function that returns one for a record.
    maxlen: about how many entries to keep; the oldest are dropped, read or not. None keeps all.
    exact: keep exactly `maxlen` entries, which costs the server more.

    An entry has the fields `id` (the same at each attempt, to drop duplicates by), `content-type`
    and `data`, the attributes of the envelope in binary mode as `ce_…`, and the record's headers.

    Redis answers when the entry is in memory; the server's settings decide when it is on disk.
    """

    one_connection = False

    def __init__(
        self,
        url: str,
        *,
        stream: Chosen,
        maxlen: int | None = None,
        exact: bool = False,
        **common: Unpack[PublisherOptions],
    ) -> None:
        address = RedisAddress(url)
        self._stream = checked_choice(stream, "stream")
        if maxlen is not None and (isinstance(maxlen, bool) or maxlen < 1):
            raise ConfigError(f"maxlen = {maxlen!r} must be 1 or more, or None to keep all")
        super().__init__(f"redis:{label(stream)}", str(address), secrets_in(url), common)
        self._url = url
        self._trim: tuple[str | int, ...] = ()
        if maxlen is not None:
            self._trim = ("MAXLEN", "=" if exact else "~", maxlen)

    async def _open(self) -> Connections:
        return Connections(RedisAddress(self._url), self.clock, self.timeout, _unchecked)

    async def _close(self, client: Connections) -> None:
        await client.close()

    async def _send(self, client: Connections, record: Record, message: Message) -> None:
        fields: dict[str, str | bytes] = {
            **message.headers,
            **message.prefixed("ce_"),
            "id": unique_of(record),
            "content-type": message.content_type,
            "data": message.body,
        }
        stream = choose(self._stream, record, "stream")
        pairs = [part for pair in fields.items() for part in pair]
        await client.send("XADD", stream, *self._trim, "*", *pairs, within=self.timeout)

    def _explained(self, error: Exception) -> PublishError:
        text = self._plain(error)
        if "WRONGTYPE" in text:
            return PublishError(f"{self.where}: the key exists and is not a stream; use another")
        if "permissions" in text:
            return PublishError(f"{self.where}: allow this user XADD on the stream: +xadd ~stream")
        if isinstance(error, StoreError):  # says where and what to do
            return PublishError(text)
        return PublishError(f"{self.where}: {type(error).__name__}: {text}")


async def _unchecked(_: Connections) -> None:
    """A stream needs only XADD, so the server is not checked."""
