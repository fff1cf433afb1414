"""From a URL to a fleet's store: `sqlite:///fleet.db`, `postgresql://app@db/shop`."""

from __future__ import annotations

from urllib.parse import unquote

from pollwise.errors import ConfigError
from pollwise.fleet.stores.base import NAME, FleetStore
from pollwise.queues.urls import StoreUrl, parse_url
from pollwise.runtime.clock import Clock

EXAMPLES = ("sqlite:///fleet.db", "postgresql://app@db/shop?fleet=pages")
SCHEMES = ("sqlite", "postgresql", "postgres")


def open_store(url: str, *, clock: Clock | None = None, create: bool = True) -> FleetStore:
    """The store at `url`. Nothing is touched before its first call.

    create: create a missing file; off, a missing file is an error.

    `sqlite:///relative.db`, `sqlite:////absolute.db` for one node; for several
    `postgresql://user@host/database` with `schema=pollwise`, `timeout=10s` and libpq's options.
    `?fleet=name` selects one of several fleets in a store.
    """
    if not isinstance(url, str):  # its repr may contain a password
        raise ConfigError(f"expected the URL of a fleet's store, got a {type(url).__name__}")
    at = parse_url(url, SCHEMES, EXAMPLES, clock=clock, create=create, what="fleet")
    name = dict(at.query()).get("fleet", NAME)
    return _sqlite(at, name) if at.parts.scheme == "sqlite" else _postgres(at, name)


def _sqlite(at: StoreUrl, name: str) -> FleetStore:
    from pollwise.fleet.stores.sqlite.store import SqliteFleetStore

    at.options(("fleet",))  # refuses others
    path = unquote(at.parts.path[1:])
    if at.parts.netloc or not path or path == ":memory:" or "\0" in path:
        raise ConfigError(
            f"{at.shown} names no file; write sqlite:///relative.db or sqlite:////absolute/path.db"
        )
    return SqliteFleetStore(path, name, create=at.create, clock=at.clock)


def _postgres(at: StoreUrl, name: str) -> FleetStore:
    from pollwise.fleet.stores.postgres.store import PostgresFleetStore
    from pollwise.storage.postgres.conninfo import connection_options

    theirs = connection_options()
    options = at.options(("fleet", "schema", "timeout", *theirs))
    del options["name"]
    passed = [(key, options.pop(key)) for key in list(options) if key in theirs]
    return PostgresFleetStore(at.without_query(passed), name, clock=at.clock, **options)
