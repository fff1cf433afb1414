"""From a queue URL to a queue: `pollux.open("sqlite:///jobs.db?queue=mail")`."""

from __future__ import annotations

import difflib
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from pollux.clock import Clock
from pollux.errors import ConfigError
from pollux.queues.base import Queue

EXAMPLES = ("memory://", "sqlite:///jobs.db")
_COMMON = ("queue", "keep", "max_payload_bytes")
_SQS = ("region", "endpoint", "dead", "timeout", "linger", "keep", "max_payload_bytes")
_OPTIONS = {
    "memory": _COMMON,
    "sqlite": (*_COMMON, "synchronous", "watch"),
    **dict.fromkeys(("sqs", "https", "http"), _SQS),
    "s3": (*_COMMON, "region", "endpoint", "timeout"),
    "gs": (*_COMMON, "timeout"),
    "az": (*_COMMON, "account", "endpoint", "timeout"),
    "file": _COMMON,
}


def open_queue(url: str, *, clock: Clock | None = None, create: bool = True) -> Queue:
    """Open the queue at `url`. Nothing is touched before its first call.

    create: make a missing store (a database file); off, a missing one is an error.

    `memory://`, `sqlite:///relative.db` and `sqlite:////absolute.db` with `?queue=name`,
    `keep=7d`, `max_payload_bytes=65536`, and for SQLite `synchronous=normal` and `watch=50ms`.
    `sqs://name` or the URL of an SQS queue, with `region=eu-west-1`, `endpoint=http://…`,
    `dead=name`, `timeout=10s` and `linger=20s`.
    `s3://bucket/prefix` with `region=eu-west-1` and `endpoint=https://…`, `gs://bucket/prefix`,
    `az://container/prefix` with `account=name`, each with `timeout=10s`; `file:///folder`.
    """
    if not isinstance(url, str) or "://" not in url:
        raise ConfigError(f"{url!r} is not a queue URL; give one like {' or '.join(EXAMPLES)}")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"{url!r} is not a queue URL: {error}") from None
    if parts.scheme not in _OPTIONS:
        raise ConfigError(
            f"no queue has the scheme {parts.scheme!r}; known: {', '.join(_OPTIONS)} "
            f"(for example {EXAMPLES[-1]})"
        )
    if parts.fragment:
        raise ConfigError(f"{url!r} has a '#'; write it as %23 where it belongs to a name")
    options: dict[str, Any] = _options(parts.scheme, parts.query)
    if parts.scheme in ("sqs", "https", "http"):
        from pollux.queues.sqs import open_sqs

        return open_sqs(parts, clock, options)
    if parts.scheme in ("s3", "gs", "az", "file"):
        from pollux.queues.objects_open import open_objects

        return open_objects(parts, clock, create, options)
    name = options.pop("queue", "default")
    if parts.scheme == "memory":
        from pollux.queues.memory import MemoryQueue

        if parts.netloc or parts.path:
            raise ConfigError(
                f"{url!r}: memory has no places; name a queue by memory://?queue=name"
            )
        return MemoryQueue(name, clock=clock, **options)
    from pollux.queues.sqlite import SqliteQueue

    if parts.netloc or len(parts.path) < 2:
        raise ConfigError(
            f"{url!r} names no file; write sqlite:///relative.db or sqlite:////absolute/path.db"
        )
    path = unquote(parts.path[1:])
    if path == ":memory:" or "\0" in path:
        raise ConfigError(f"{url!r} names no file; for a queue in memory, use memory://")
    return SqliteQueue(path, name, clock=clock, create=create, **options)


def _options(scheme: str, query: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in _OPTIONS[scheme]:
            near = difflib.get_close_matches(key, _OPTIONS[scheme], 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(_OPTIONS[scheme])}"
            raise ConfigError(f"a {scheme} queue URL takes no option {key!r}; {hint}")
        if key in options:
            raise ConfigError(f"{key} is given twice: {options[key]!r} and {value!r}; keep one")
        options[key] = value
    if "max_payload_bytes" in options:
        try:
            options["max_payload_bytes"] = int(options["max_payload_bytes"])
        except ValueError:
            raise ConfigError(
                f"max_payload_bytes = {options['max_payload_bytes']!r} is not a whole number"
            ) from None
    return options
