"""Kafka, by aiokafka: idempotent, acknowledged by all in-sync replicas, one partition per key."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from pollwise.errors import ConfigError, MissingExtra, PublishError, PublishRefused
from pollwise.outbox.envelope import Message
from pollwise.outbox.publishers.base import (
    Chosen,
    Publisher,
    PublisherOptions,
    checked_choice,
    choose,
    label,
)
from pollwise.outbox.records import Record
from pollwise.runtime.redact import is_secret

try:
    from aiokafka import AIOKafkaProducer
    from aiokafka import errors as trouble
except ImportError as error:
    raise MissingExtra("publishing to Kafka", "kafka") from error

_SERVER = re.compile(r"[^\s:/,@]+:\d{1,5}|\[[0-9a-fA-F:.]+\]:\d{1,5}|[^\s:/,@]+")
_TOPIC = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
#: The options that this publisher sets to keep its guarantees; users can give the others.
_OURS = ("bootstrap_servers", "acks", "enable_idempotence", "transactional_id", "loop")


@dataclass(slots=True, eq=False)
class _KafkaClient:
    producer: Any
    #: After an error, an idempotent producer refuses all further messages.
    failed: bool = False


class KafkaPublisher(Publisher[_KafkaClient]):
    """Publishes records to a Kafka topic, and waits until all in-sync replicas have them.

    servers: "host:9092", or several, separated by commas or as a list.
    topic: a string, or a function that returns one for a record.
    connect: more options for `AIOKafkaProducer`, such as `security_protocol="SASL_SSL"`,
        `sasl_plain_password`, `ssl_context`, `compression_type` or `max_request_size`.

    The message's key is the record's key, so records of one key are in one partition, in order.
    Consumers can receive duplicates after a relay was killed: drop them by source and id.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        topic: Chosen,
        connect: Mapping[str, Any] | None = None,
        **common: Unpack[PublisherOptions],
    ) -> None:
        several = servers.split(",") if isinstance(servers, str) else list(servers)
        self._servers = [server.strip() for server in several]
        if not self._servers or not all(_SERVER.fullmatch(each) for each in self._servers):
            raise ConfigError("servers must be like 'broker:9092' or ['one:9092', 'two:9092']")
        self._topic = checked_choice(topic, "topic")
        if isinstance(topic, str) and not _TOPIC.fullmatch(topic):
            raise ConfigError(f"topic = {topic!r} is not a valid topic: {_ADVICE}")
        self._options = dict(connect or {})
        for name in _OURS:
            if name in self._options:
                raise ConfigError(f"connect: the publisher sets {name} itself; leave it out")
        secrets = [str(value) for name, value in self._options.items() if is_secret(name)]
        where = f"kafka://{','.join(self._servers)}"
        super().__init__(f"kafka:{label(topic)}", where, secrets, common)

    async def _open(self) -> _KafkaClient:
        # Shorter than our timeout: the client's error says more, and a message that we gave up
        # must not be sent later.
        limit = max(round(self.timeout * 800), 1)
        producer = AIOKafkaProducer(
            **{
                "bootstrap_servers": self._servers,
                "client_id": "pollwise",
                "acks": "all",
                "enable_idempotence": True,
                "request_timeout_ms": limit,
                "retry_backoff_ms": min(100, limit),
                **self._options,
            }
        )
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        return _KafkaClient(producer)

    def _alive(self, client: _KafkaClient) -> bool:
        return not client.failed

    async def _close(self, client: _KafkaClient) -> None:
        await client.producer.stop()

    async def _send(self, client: _KafkaClient, record: Record, message: Message) -> None:
        topic = choose(self._topic, record, "topic")
        if not _TOPIC.fullmatch(topic):
            raise PublishRefused(
                f"{topic!r}, of record {record.id}, is not a valid topic: {_ADVICE}"
            )
        headers = {
            **message.headers,
            **message.prefixed("ce_"),
            "content-type": message.content_type,
        }
        try:
            await client.producer.send_and_wait(
                topic,
                message.body,
                key=None if record.key is None else record.key.encode(),
                headers=[(name, text.encode()) for name, text in headers.items()],
                timestamp_ms=round(record.created_at * 1000),
            )
        except trouble.KafkaError:
            client.failed = True
            raise

    def _explained(self, error: Exception) -> PublishError:
        where, text = self.where, self._plain(error)
        if isinstance(error, (trouble.MessageSizeTooLargeError, trouble.RecordListTooLargeError)):
            return PublishRefused(
                f"{where}: the message is larger than this client's max_request_size or the "
                f"topic's max.message.bytes: {text}"
            )
        if isinstance(error, trouble.InvalidTopicError):
            return PublishRefused(f"{where}: the broker does not accept this topic name: {text}")
        if isinstance(error, trouble.UnknownTopicOrPartitionError):
            return PublishError(f"{where}: the topic does not exist; create it, or correct it")
        if isinstance(
            error,
            (
                trouble.TopicAuthorizationFailedError,
                trouble.ClusterAuthorizationFailedError,
                trouble.SaslAuthenticationFailed,
                trouble.IllegalSaslStateError,
            ),
        ):
            return PublishError(
                f"{where} refuses this user ({type(error).__name__}); check the credentials and "
                "the permission to write to the topic (including idempotent writes)"
            )
        if isinstance(error, (trouble.KafkaConnectionError, OSError)):
            return PublishError(
                f"{where} cannot be reached: {text}. Check the host, and that the broker runs."
            )
        return PublishError(f"{where}: {type(error).__name__}: {text}")


_ADVICE = "use at most 249 letters, digits, dots, dashes and underscores"
