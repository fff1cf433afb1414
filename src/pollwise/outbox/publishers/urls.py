"""From a URL to a publisher: `open_publisher("redis://cache/0?stream=orders")`.

So a relay can publish without a line of Python: `pollwise outbox run URL --publish 'order.*=URL'`.
What a URL cannot say, such as a routing key for each record, takes the publisher's class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from pollwise.errors import ConfigError, did_you_mean
from pollwise.outbox import publishers
from pollwise.outbox.envelope import CloudEvents
from pollwise.outbox.publishers.base import Publisher
from pollwise.plugins import PluginGroup
from pollwise.runtime.clock import Clock

EXAMPLE = "redis://cache/0?stream=orders"
#: Options of every publisher; `source` and `mode` are those of `CloudEvents`.
COMMON: Mapping[str, type] = {"name": str, "timeout": str, "source": str, "mode": str}


@dataclass(frozen=True, slots=True)
class PublisherUrl:
    """The URL of a publisher in its parts, for the function that opens its scheme.

    address: the URL without its options.
    """

    parts: SplitResult
    clock: Clock | None = None

    @property
    def address(self) -> str:
        return self.parts._replace(**{self._where: ""}).geturl()

    @property
    def _where(self) -> str:
        """The part with the options: after a '#' if what is before it belongs to the receiver."""
        return "fragment" if self.parts.scheme in ("http", "https") else "query"

    def options(self, known: Mapping[str, type] | None = None, *needed: str) -> dict[str, Any]:
        """The options as arguments of a publisher, those that every publisher takes included.

        known: its own options, each with its type: str, int or bool.
        needed: those that must be given.
        """
        own, scheme = {**(known or {}), **COMMON}, self.parts.scheme
        given: dict[str, Any] = {}
        for key, text in parse_qsl(getattr(self.parts, self._where), keep_blank_values=True):
            if key not in own:
                advice = did_you_mean(key, own)
                raise ConfigError(f"publisher URLs of {scheme} do not take {key!r}; {advice}")
            if key in given:
                raise ConfigError(f"{key} is given twice in a publisher URL of {scheme}; keep one")
            given[key] = _read(key, text, own[key])
        missing = [key for key in needed if key not in given]
        if missing:
            raise ConfigError(
                f"publisher URLs of {scheme} need {' and '.join(missing)}, as in {EXAMPLE}"
            )
        envelope = {key: given.pop(key) for key in ("source", "mode") if key in given}
        if envelope:
            given["envelope"] = CloudEvents(**envelope)
        if self.clock is not None:
            given["clock"] = self.clock
        return given


def _read(key: str, text: str, kind: type) -> Any:
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{key} = {text!r} must be true or false")
        return text.lower() == "true"
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"{key} = {text!r} is not a whole number") from None


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
    try:
        return Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"secret_file = {path!r} cannot be read: {error}") from None


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
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
    except ValueError:  # its message may contain the password
        parts = urlsplit("")
    scheme = parts.scheme
    if not scheme or "://" not in url:
        raise ConfigError(f"expected the URL of a publisher, such as {EXAMPLE}")
    opened = SCHEMES.get(scheme) or ADDED.get(scheme)
    if opened is None:
        advice = did_you_mean(scheme, [*SCHEMES, *ADDED.names()])
        raise ConfigError(f"no publisher has the scheme {scheme!r}; {advice}")
    publisher = opened(PublisherUrl(parts, clock))
    if not isinstance(publisher, Publisher):
        raise ConfigError(
            f"the function that opens {scheme}:// returned {type(publisher).__name__}, no Publisher"
        )
    return publisher
