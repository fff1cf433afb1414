"""RabbitMQ, by aio-pika: persistent messages, publisher confirms, an error if no queue is bound."""

from __future__ import annotations

from collections.abc import Mapping
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
    kind_of,
    place_of,
)
from pollwise.outbox.records import Record

try:
    import aio_pika
    from aio_pika import exceptions as amqp
    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange
    from aiormq.exceptions import ChannelAccessRefused, ConnectionNotAllowed
except ImportError as error:
    raise MissingExtra("publishing to RabbitMQ", "rabbitmq") from error

EXAMPLE = "amqp://user:password@broker:5672/vhost"
#: The maximum length of names and routing keys in AMQP, in bytes.
_SHORT_MAX = 255
#: The prefix of attributes that the AMQP binding of CloudEvents prefers, for JMS.
_PREFIX = "cloudEvents_"


@dataclass(slots=True, eq=False)
class _RabbitClient:
    connection: AbstractConnection
    channel: AbstractChannel
    exchange: AbstractExchange


class RabbitPublisher(Publisher[_RabbitClient]):
    """Publishes records to an exchange of RabbitMQ, and waits for the broker's confirm.

    url: amqp:// or amqps://, with user, password and virtual host.
    exchange: its name; it must exist. "" is the default exchange, where the routing key is the name
        of a queue.
    routing_key: a string, or a function that returns one for a record; by default its kind.
    mandatory: True raises an error, and so retries, if no queue receives the message. False lets
        the broker drop it silently.
    connect: more options for `aio_pika.connect`, such as `ssl_context`.

    The message's id is the record's id, its type the kind. The broker confirms when all queues have
    the message: durable queues on disk, quorum queues on a majority of the nodes.
    """

    def __init__(
        self,
        url: str,
        *,
        exchange: str,
        routing_key: Chosen = kind_of,
        mandatory: bool = True,
        connect: Mapping[str, Any] | None = None,
        **common: Unpack[PublisherOptions],
    ) -> None:
        where, secrets = place_of(url, ("amqp", "amqps"), EXAMPLE)
        if not isinstance(exchange, str) or len(exchange.encode()) > _SHORT_MAX:
            raise ConfigError(f"exchange = {exchange!r} must be a name of at most 255 bytes")
        super().__init__(f"rabbitmq:{exchange or 'default'}", where, secrets, common)
        self.exchange = exchange
        self.mandatory = mandatory
        self._url = url
        self._routing_key = checked_choice(routing_key, "routing_key")
        self._options = dict(connect or {})

    async def _open(self) -> _RabbitClient:
        # Not `connect_robust`: it restores declarations, and nothing is declared here.
        connection = await aio_pika.connect(
            self._url,
            client_properties={"connection_name": f"pollwise {self.name}"},
            **self._options,
        )
        try:
            channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
            named = self.exchange
            exchange = (
                await channel.get_exchange(named, ensure=False)
                if named
                else channel.default_exchange
            )
        except BaseException:
            await connection.close()
            raise
        return _RabbitClient(connection, channel, exchange)

    def _alive(self, client: _RabbitClient) -> bool:
        return not (client.connection.is_closed or client.channel.is_closed)

    async def _close(self, client: _RabbitClient) -> None:
        await client.connection.close()

    async def _send(self, client: _RabbitClient, record: Record, message: Message) -> None:
        routing_key = choose(self._routing_key, record, "routing_key")
        for name, text in (("routing key", routing_key), ("kind", record.kind)):
            if len(text.encode()) > _SHORT_MAX:
                raise PublishRefused(
                    f"the {name} of record {record.id} has {len(text.encode())} bytes; AMQP "
                    f"accepts at most {_SHORT_MAX}"
                )
        await client.exchange.publish(
            aio_pika.Message(
                message.body,
                headers=_table({**message.headers, **message.prefixed(_PREFIX)}),
                content_type=message.content_type,
                content_encoding=None,
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                message_id=record.id,
                timestamp=record.created_at,
                type=record.kind,
            ),
            routing_key,
            mandatory=self.mandatory,
        )

    def _explained(self, error: Exception) -> PublishError:
        where, exchange = self.where, self.exchange
        if isinstance(error, amqp.PublishError):
            key = getattr(error.frame, "routing_key", None) or error.args[1]
            return PublishError(
                f"{where}: no queue receives messages of the exchange {exchange!r} with the "
                f"routing key {key!r}; bind one, or give mandatory=False to drop such messages"
            )
        if isinstance(error, amqp.DeliveryError):
            return PublishError(
                f"{where} did not accept the message (nack): a queue of the exchange {exchange!r} "
                "is full, or the broker has a problem; see its log"
            )
        text = self._plain(error)
        if isinstance(error, amqp.ChannelNotFoundEntity):
            return PublishError(f"{where} has no exchange {exchange!r}: declare it, or correct it")
        if isinstance(error, ChannelAccessRefused):
            return PublishError(
                f"{where}: this user may not write to the exchange {exchange!r}; allow it"
            )
        if isinstance(error, amqp.ChannelPreconditionFailed) and "size" in text:
            return PublishRefused(f"{where}: the message is too large: {text}")
        if isinstance(error, (amqp.AuthenticationError, amqp.ProbableAuthenticationError)):
            return PublishError(
                f"{where} refuses this user and password, or the virtual host; correct the URL"
            )
        # aiormq's error when the broker closes a connection while it is being opened.
        if isinstance(error, ConnectionNotAllowed) or "Connection.OpenOk" in text:
            return PublishError(
                f"{where}: the virtual host does not exist, or this user may not use it; correct "
                "the URL"
            )
        if isinstance(error, (amqp.AMQPError, amqp.ChannelInvalidStateError, OSError)):
            return PublishError(
                f"{where} cannot be reached, or ended the connection: {text}. Check the host, and "
                "that the broker runs."
            )
        return PublishError(f"{where}: {type(error).__name__}: {text}")


def _table(headers: Mapping[str, str]) -> dict[str, Any]:
    for name in headers:
        if len(name.encode()) > _SHORT_MAX:
            raise PublishRefused(f"the header {name!r} has a name of more than {_SHORT_MAX} bytes")
    return dict(headers)
