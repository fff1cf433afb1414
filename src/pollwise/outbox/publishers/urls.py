"""From a URL to a publisher: `open_publisher("redis://cache/0?stream=orders")`.

So a relay can publish without a line of Python: `pollwise outbox run URL --publish 'order.*=URL'`.
What a URL cannot say, such as a routing key for each record, takes the publisher's class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pollwise.outbox import publishers
from pollwise.outbox.envelope import CloudEvents
from pollwise.outbox.publishers.base import Publisher
from pollwise.plugins import PluginGroup
from pollwise.plugins.urls import PartUrl, open_part, split_part_url
from pollwise.runtime.clock import Clock
from pollwise.runtime.payloads.keys import read_private


@dataclass(frozen=True, slots=True)
class PublisherUrl(PartUrl):
    """The URL of a publisher in its parts, for the function that opens its scheme.

    address: the URL without its options.
    """

    noun = "publisher"
    example = "redis://cache/0?stream=orders"
    #: `source` and `mode` are those of `CloudEvents`.
    common: ClassVar[Mapping[str, type]] = {
        "name": str, "timeout": str, "source": str, "mode": str,
    }  # fmt: skip

    def options(self, known: Mapping[str, type] | None = None, *needed: str) -> dict[str, Any]:
        """The options as arguments of a publisher, those that every publisher takes included.

        known: its own options, each with its type: str, int or bool.
        needed: those that must be given.
        """
        given: dict[str, Any] = self._arguments(known, needed)
        envelope = {key: given.pop(key) for key in ("source", "mode") if key in given}
        if envelope:
            given["envelope"] = CloudEvents(**envelope)
        return given


@dataclass(frozen=True, slots=True)
class _Transport:
    """How the URLs of a publisher of Pollwise are read.

    publisher: the name of its class.
    address: makes the first argument of the class from a URL.
    """

    publisher: str
    known: Mapping[str, type]
    needed: tuple[str, ...] = ()
    address: Callable[[PublisherUrl], str] = field(default=lambda at: at.address)

    def __call__(self, at: PublisherUrl) -> Publisher[Any]:
        options = at.options(self.known, *self.needed)
        if "secret_file" in options:
            options["secret"] = _secret(options.pop("secret_file"))
        publisher: Publisher[Any] = getattr(publishers, self.publisher)(self.address(at), **options)
        return publisher


def _secret(path: str) -> str:
    return read_private(Path(path), "secret file", "replace the secret", "utf-8").strip()


def _authority(at: PublisherUrl) -> str:
    return at.parts.netloc


_REDIS = _Transport(
    "RedisStreamPublisher", {"stream": str, "maxlen": int, "exact": bool}, ("stream",)
)
_RABBIT = _Transport(
    "RabbitPublisher", {"exchange": str, "routing_key": str, "mandatory": bool}, ("exchange",)
)
_NATS = _Transport("NatsPublisher", {"subject": str, "stream": str})
_WEBHOOK = _Transport("WebhookPublisher", {"secret_file": str})
#: What opens the URLs of each scheme.
SCHEMES: Mapping[str, Callable[[PublisherUrl], Publisher[Any]]] = {
    "redis": _REDIS,
    "rediss": _REDIS,
    "amqp": _RABBIT,
    "amqps": _RABBIT,
    "nats": _NATS,
    "kafka": _Transport("KafkaPublisher", {"topic": str}, ("topic",), _authority),
    "sqs": _Transport("SqsPublisher", {"region": str, "endpoint": str}, (), _authority),
    "sns": _Transport("SnsPublisher", {"endpoint": str}, (), _authority),
    "https": _WEBHOOK,
    "http": _WEBHOOK,
}
#: Schemes that packages add: functions of a `PublisherUrl`.
ADDED = PluginGroup(
    "pollwise.publishers",
    "publisher scheme",
    lambda: SCHEMES,
    lambda _, thing: "" if callable(thing) else "is not a function of a PublisherUrl",
)


def open_publisher(url: str, *, clock: Clock | None = None) -> Publisher[Any]:
    """The publisher at a URL. It connects with its first record.

    `redis://host/0?stream=orders` with `maxlen=1000` and `exact=true`; `amqp://host/?exchange=events`
    with `routing_key=…` and `mandatory=false`; `nats://host` with `subject=…` and `stream=…`;
    `kafka://host:9092,other:9092?topic=orders`; `sqs://name` with `region=…` and `endpoint=…`;
    `sns://arn:aws:sns:…`; and a webhook, `https://host/path`, whose options follow a `#`, because
    its query belongs to the receiver: `#secret_file=path`. All take `name=…`, `timeout=10s`, and
    `source=…` and `mode=binary` of `CloudEvents`. Installed packages can add schemes.
    """
    at = PublisherUrl(split_part_url(url, PublisherUrl), clock)
    return open_part(at, Publisher, SCHEMES, ADDED)  # type: ignore[type-abstract]
