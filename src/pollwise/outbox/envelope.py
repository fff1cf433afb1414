"""A record as a message for brokers and webhooks, in a CloudEvents 1.0 envelope.

Consumers need not know Pollwise. `type` is the record's kind. `id` and `source` together identify
the event, so that consumers can drop duplicates (delivery is at least once). `subject` and
`partitionkey` are its key, `time` is when it was put, and the writer's trace context is in the
extensions `traceparent` and `tracestate`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from urllib.parse import quote

from pollwise.errors import ConfigError
from pollwise.outbox.records import Record
from pollwise.runtime.tracing import w3c

Mode = Literal["structured", "binary"]

JSON = "application/json"
STRUCTURED = "application/cloudevents+json; charset=UTF-8"

#: The names of CloudEvents and its JSON format, which a header must not overwrite.
_ATTRIBUTES = frozenset(
    {
        *("specversion", "id", "source", "type", "datacontenttype", "dataschema", "subject"),
        *("time", "partitionkey", "data", "data_base64"),
    }
)
#: Names of extensions that every transport can carry.
_EXTENSION = re.compile(r"[a-z0-9]{1,20}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Message:
    """A record as a publisher sends it.

    attributes: the envelope's attributes by name; a transport adds its prefix. Empty if they are
        in the body.
    headers: the record's headers that are not attributes.
    """

    body: bytes
    content_type: str = JSON
    attributes: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def prefixed(self, prefix: str) -> dict[str, str]:
        """The attributes with a transport's prefix before their names."""
        return {f"{prefix}{name}": value for name, value in self.attributes.items()}


#: Makes a message from a record: `CloudEvents()`, or any function.
Envelope = Callable[[Record], Message]


@dataclass(frozen=True, slots=True)
class CloudEvents:
    """The envelope of CloudEvents 1.0.

    source: where the event comes from: a URI or a path such as "https://shop.example/orders". Give
        each service its own, because ids are unique only within an outbox. By default
        "/pollwise/outbox/NAME", with the outbox's name.
    mode: "structured" puts the envelope and the payload into one JSON document; "binary" sends the
        payload unchanged, and the envelope as headers of the transport.
    type_prefix: added before the kind to make the type, such as "com.example.shop.".
    dataschema: the URI of the payloads' schema.

    Headers of a record whose names have at most twenty lower-case letters and digits become
    extensions; others become headers of the transport, if it has headers.
    """

    source: str | None = None
    mode: Mode = "structured"
    type_prefix: str = ""
    dataschema: str | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("structured", "binary"):
            raise ConfigError(f"mode = {self.mode!r} must be 'structured' or 'binary'")
        for name, value in (("source", self.source), ("dataschema", self.dataschema)):
            if value is not None and not _is_uri(value):
                raise ConfigError(
                    f"{name} = {value!r} must be a URI such as 'https://shop.example/orders', "
                    "without spaces"
                )

    def __call__(self, record: Record) -> Message:
        attributes, headers = self._sorted_out(record)
        if self.mode == "binary":
            return Message(_json(record.payload), JSON, attributes, headers)
        whole: dict[str, Any] = {**attributes, "datacontenttype": JSON, "data": record.payload}
        return Message(_json(whole), STRUCTURED, {}, headers)

    def _sorted_out(self, record: Record) -> tuple[dict[str, str], dict[str, str]]:
        """The attributes of the event, and the other headers."""
        attributes = {
            "specversion": "1.0",
            "id": record.id,
            "source": self.source or f"/pollwise/outbox/{quote(record.outbox, safe='')}",
            "type": f"{self.type_prefix}{record.kind}",
            "time": timestamp(record.created_at),
        }
        if record.key is not None:
            attributes["subject"] = attributes["partitionkey"] = record.key
        if self.dataschema is not None:
            attributes["dataschema"] = self.dataschema
        attributes |= w3c.of(record.headers)
        headers = {}
        for name, value in record.headers.items():
            if name in (w3c.TRACEPARENT, w3c.TRACESTATE):
                continue  # already an attribute, or not valid
            if name not in _ATTRIBUTES and _EXTENSION.fullmatch(name) and value:
                attributes[name] = value
            else:
                headers[name] = value
        return attributes, headers


def timestamp(epoch: float) -> str:
    """A time in the format of RFC 3339.

    >>> timestamp(1767225600.25)
    '2026-01-01T00:00:00.250000Z'
    """
    moment = _EPOCH + timedelta(seconds=epoch)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def unique_of(record: Record) -> str:
    """An id for brokers and receivers to drop duplicates by: unique, and the same at each attempt.

    Ids of records are unique within an outbox only, and two databases may publish to one place;
    the microsecond of the put distinguishes their records.
    """
    return f"{record.outbox}-{record.id}-{round(record.created_at * 1e6)}"


def percent_encoded(value: str) -> str:
    """A value for a header of HTTP or NATS, encoded as CloudEvents requires.

    >>> percent_encoded('Euro € 😀')
    'Euro%20%E2%82%AC%20%F0%9F%98%80'
    """
    return quote(value, safe=_PLAIN)


#: All printable ASCII except the space, the quotation mark and the percent sign.
_PLAIN = "".join(map(chr, range(0x21, 0x7F))).replace('"', "").replace("%", "")


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _is_uri(text: object) -> bool:
    return isinstance(text, str) and bool(text) and text.isprintable() and " " not in text
