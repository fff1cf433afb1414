"""From a URL to what keeps a fleet's state: `sqlite:///fleet.db`, `postgresql://app@db/shop`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from pollwise.errors import ConfigError
from pollwise.fleet.stores.base import NAME, FleetStore
from pollwise.queues.urls import StoreUrl
from pollwise.runtime.clock import Clock
from pollwise.runtime.redact import shown_url

EXAMPLES = ("sqlite:///fleet.db", "postgresql://app@db/shop?fleet=pages")
SCHEMES = ("sqlite", "postgresql", "postgres")
_POSTGRES = ("fleet", "schema", "timeout")


def open_store(url: str, *, clock: Clock | None = None, create: bool = True) -> FleetStore:
    """What keeps the state at `url`. Nothing is touched before its first call.

    create: make a missing file; off, a missing one is an error.

    `sqlite:///relative.db`, `sqlite:////absolute.db` for one node; for several
    `postgresql://user@host/database` with `schema=pollwise`, `timeout=10s` and what libpq takes.
    `?fleet=name` picks one of several fleets in a store.
    """
    if not isinstance(url, str) or "://" not in url:
        raise ConfigError(
            f"{_shown(url)} is no URL of a store; give one like {' or '.join(EXAMPLES)}"
        )
    try:
        parts = urlsplit(url)
    except ValueError:  # whose message may hold the password
        raise ConfigError(f"{_shown(url)} is no URL: its host cannot be read") from None
    if parts.scheme not in SCHEMES:
        near = difflib.get_close_matches(parts.scheme, SCHEMES, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(SCHEMES)}"
        raise ConfigError(f"no fleet is kept at {parts.scheme!r}; {hint}")
    address = StoreUrl(url, parts, clock, create)
    return _sqlite(address) if parts.scheme == "sqlite" else _postgres(address)


def _sqlite(at: StoreUrl) -> FleetStore:
    from pollwise.fleet.stores.sqlite.store import SqliteFleetStore

    options = _options(at, ("fleet",))
    path = unquote(at.parts.path[1:])
    if at.parts.netloc or not path or path == ":memory:" or "\0" in path:
        raise ConfigError(
            f"{at.shown} names no file; write sqlite:///relative.db or sqlite:////absolute/path.db"
        )
    return SqliteFleetStore(path, options.get("fleet", NAME), create=at.create)


def _postgres(at: StoreUrl) -> FleetStore:
    from pollwise.fleet.stores.postgres.store import PostgresFleetStore
    from pollwise.storage.postgres.conninfo import connection_options

    theirs = connection_options()
    options = _options(at, (*_POSTGRES, *theirs))
    name = options.pop("fleet", NAME)
    passed = [(key, options.pop(key)) for key in list(options) if key in theirs]
    return PostgresFleetStore(at.without_query(passed), name, clock=at.clock, **options)


def _options(at: StoreUrl, known: Iterable[str]) -> dict[str, str]:
    known = tuple(known)
    given = dict(at.query())
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"the URL of a fleet's store takes no option {key!r}; {hint}")
    return given


def _shown(url: object) -> str:
    return repr(shown_url(url)) if isinstance(url, str) else f"<a {type(url).__name__}>"
