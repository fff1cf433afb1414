"""Opens the store of an outbox by the URL of its database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from pollwise.errors import ConfigError
from pollwise.outbox.stores.base import OutboxStore
from pollwise.queues.urls import StoreUrl, parse_url
from pollwise.runtime.clock import Clock
from pollwise.runtime.payloads.envelope import CodecChain, Codecs

EXAMPLES = ("sqlite:///shop.db", "postgresql://app@db/shop")
_COMMON = ("outbox", "keep", "on_dead", "max_payload_bytes")
_SQLITE = (*_COMMON, "timeout", "watch")
_POSTGRES = (*_COMMON, "schema", "listen", "timeout", "connections")


def open_store(
    url: str,
    *,
    clock: Clock | None = None,
    codec: Codecs | CodecChain | None = None,
    **given: Any,
) -> OutboxStore:
    """The store of the outbox in the database at `url`. It connects at its first call.

    `sqlite:///relative.db`, `sqlite:////absolute.db` and `postgresql://user@host/database`, with
    `?outbox=name`, `keep=7d`, `on_dead=continue`, `max_payload_bytes=65536`, `timeout=30s`; for
    SQLite `watch=100ms`, for Postgres `schema=pollwise`, `connections=4`, `listen` and the options
    of libpq.

    codec: encodes payloads; several in a list.
    given: the same options; a value that is also in the URL must be equal.
    """
    at = parse_url(url, _SCHEMES, EXAMPLES, clock=clock, what="outbox")
    store = _SCHEMES[at.parts.scheme](at, {key: v for key, v in given.items() if v is not None})
    store.use_codec(codec)
    return store


def _sqlite(at: StoreUrl, given: dict[str, Any]) -> OutboxStore:
    from pollwise.outbox.stores.sqlite.store import SqliteOutboxStore

    options = _merged(at.options(_SQLITE), at, given)
    if options.pop("schema", "pollwise") != "pollwise":
        raise ConfigError(f"schema = {given['schema']!r}, but SQLite has no schemas; leave it out")
    if at.parts.netloc or len(at.parts.path) < 2:
        raise ConfigError(
            f"{at.shown} names no file; write sqlite:///relative.db or sqlite:////absolute/path.db"
        )
    return SqliteOutboxStore(unquote(at.parts.path[1:]), clock=at.clock, **options)


def _postgres(at: StoreUrl, given: dict[str, Any]) -> OutboxStore:
    from pollwise.outbox.stores.postgres.store import PostgresOutboxStore
    from pollwise.storage.postgres.conninfo import connection_options

    theirs = connection_options()
    options = at.options((*_POSTGRES, *theirs))
    passed = [(key, value) for key, value in at.query() if key in theirs]
    for key, _ in passed:
        del options[key]
    merged = _merged(options, at, given)
    return PostgresOutboxStore(at.without_query(passed), clock=at.clock, **merged)


def _merged(options: dict[str, Any], at: StoreUrl, given: dict[str, Any]) -> dict[str, Any]:
    """The options of the URL and those of the call."""
    in_url = {key for key, _ in at.query()}
    for name, value in given.items():
        key = "outbox" if name == "name" else name
        if key in in_url and options[name] != value:
            raise ConfigError(
                f"{key} = {options[name]!r} in {at.shown}, but {name} = {value!r} in the call; "
                "keep one of them"
            )
    return options | given


_SCHEMES: dict[str, Callable[[StoreUrl, dict[str, Any]], OutboxStore]] = {
    "sqlite": _sqlite,
    "postgresql": _postgres,
    "postgres": _postgres,
}
