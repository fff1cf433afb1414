"""Publishers: handlers that send records to a broker or a webhook and wait for its confirmation.

    outbox.handle("order.*")(RabbitPublisher("amqp://broker/", exchange="events"))
    outbox.handle("order.*")(open_publisher("amqp://broker/?exchange=events"))  # the same

Each needs an extra, which is named when it is missing: rabbitmq, nats, redis, sqs (SQS and SNS),
kafka, webhook. `verify`, for receivers of webhooks, needs none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pollwise.outbox.envelope import CloudEvents, Envelope, Message, unique_of
from pollwise.outbox.publishers.base import Publisher, PublisherOptions
from pollwise.outbox.publishers.signatures import sign, verify

if TYPE_CHECKING:
    from pollwise.outbox.publishers.aws import SnsPublisher, SqsPublisher
    from pollwise.outbox.publishers.kafka import KafkaPublisher
    from pollwise.outbox.publishers.nats import NatsPublisher
    from pollwise.outbox.publishers.rabbitmq import RabbitPublisher
    from pollwise.outbox.publishers.redis_streams import RedisStreamPublisher
    from pollwise.outbox.publishers.urls import PublisherUrl, open_publisher
    from pollwise.outbox.publishers.webhook import WebhookPublisher

__all__ = [
    "CloudEvents",
    "Envelope",
    "KafkaPublisher",
    "Message",
    "NatsPublisher",
    "Publisher",
    "PublisherOptions",
    "PublisherUrl",
    "RabbitPublisher",
    "RedisStreamPublisher",
    "SnsPublisher",
    "SqsPublisher",
    "WebhookPublisher",
    "open_publisher",
    "sign",
    "unique_of",
    "verify",
]

_MODULES = {
    "KafkaPublisher": "kafka",
    "NatsPublisher": "nats",
    "PublisherUrl": "urls",
    "RabbitPublisher": "rabbitmq",
    "RedisStreamPublisher": "redis_streams",
    "SnsPublisher": "aws",
    "SqsPublisher": "aws",
    "WebhookPublisher": "webhook",
    "open_publisher": "urls",
}


def __getattr__(name: str) -> Any:
    """Import a publisher on first use, so that only its own extra is needed."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
