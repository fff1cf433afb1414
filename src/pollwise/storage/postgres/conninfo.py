"""Conninfos: parsed, completed, and shown without their secrets."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo, PGconn

from pollwise.errors import ConfigError
from pollwise.runtime.store import CONNECT_WITHIN

#: The encoding of our statements and their parameters.
_FIXED = {"client_encoding": "utf8"}
#: Defaults with which a connection whose other end disappeared is noticed within a minute, not
#: after two hours.
_DEFAULTS = {
    "fallback_application_name": "pollwise",
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}
#: Values that must be whole numbers; libpq checks these only while connecting.
_WHOLE = (
    "connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count",
    "tcp_user_timeout",
)  # fmt: skip
#: An address without a server.
_NOWHERE = "/nonexistent/pollwise"
#: The parts that are shown; others may be secret.
_SHOWN = ("host", "hostaddr", "port", "dbname", "user", "service")


def connection_options() -> list[str]:
    """The names of libpq's options."""
    return sorted(option.keyword.decode() for option in Conninfo.get_defaults())


def checked(conninfo: object, name: str) -> dict[str, Any]:
    """The parts of a conninfo. Errors do not quote it, because it may hold a password."""
    if not isinstance(conninfo, str):
        raise ConfigError(f"{name} must be a string: a postgresql:// URL or `host=… dbname=…`")
    try:
        parts = conninfo_to_dict(conninfo)
    except psycopg.Error:
        raise ConfigError(
            f"{name} cannot be read; write a URL as postgresql://user:password@host:5432/database, "
            "and special characters in a user or a password as %XX"
        ) from None
    ports = str(parts.get("port", "")).split(",")
    if any(port and not port.isdigit() for port in ports) or any(
        "@" in str(parts.get(part, "")).lstrip("@") for part in ("host", "dbname")
    ):
        raise ConfigError(
            f"{name} has something else where its host, port or database should be; write special "
            "characters in a user or a password as %XX (an @ is %40, a / is %2F, a : is %3A)"
        )
    _check_values(parts, name)
    return parts


def _check_values(parts: dict[str, Any], name: str) -> None:
    """Refuse what libpq would refuse, by letting it connect to an address without a server.

    libpq checks all values before it looks for the server.
    """
    for each in _WHOLE:
        value = str(parts.get(each, "0"))
        if value and not re.fullmatch(r"\s*[+-]?\d+\s*", value):
            raise ConfigError(f"{name} has {each} = {value!r}, which is not a whole number")
    places = ("host", "hostaddr", "port", "passfile")
    left = {key: value for key, value in parts.items() if key not in places}
    conninfo = make_conninfo(**left, host=_NOWHERE, passfile=_NOWHERE)
    attempt = PGconn.connect_start(conninfo.encode())
    said = attempt.error_message.decode(errors="replace").strip()
    attempt.finish()
    if said and _NOWHERE not in said:
        raise ConfigError(f"{name} is refused by libpq: {said.splitlines()[0]}")


def completed(parts: dict[str, Any]) -> str:
    """The conninfo to connect with.

    The connection to each address has a time limit, so that the next call does not wait for a
    network that is away for as long as a call may take.
    """
    limit = {} if "PGCONNECT_TIMEOUT" in os.environ else {"connect_timeout": int(CONNECT_WITHIN)}
    return make_conninfo(**{**_DEFAULTS, **limit, **parts, **_FIXED})


def shown(parts: dict[str, Any], name: str, schema: str, what: str = "queue") -> str:
    """The URL of a store without its password, for messages and to open it again.

    what: the kind of store: queue, outbox and so on.
    """
    left = {key: str(parts[key]) for key in _SHOWN if parts.get(key)}
    user = quote(left.pop("user", ""), safe="")
    host, port = left.pop("host", ""), left.pop("port", "")
    where = ""
    if host.startswith(("/", "@")) or "," in host or "," in port:
        left |= {"host": host} | ({"port": port} if port else {})
    else:
        where = f"[{host}]" if ":" in host else quote(host, safe="")
        where += f":{port}" if port else ""
    database = quote(left.pop("dbname", ""), safe="")
    left[what] = name
    if schema != "pollwise":
        left["schema"] = schema
    options = urlencode(left, quote_via=quote, safe="")
    return f"postgresql://{user + '@' if user else ''}{where}/{database}?{options}"
