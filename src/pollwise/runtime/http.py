"""Helpers for all HTTP interfaces: of controllers, of fleets, and the web. Uses no framework."""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Collection, Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

_PORT = re.compile(r":[0-9]{1,5}\Z")
logger = logging.getLogger("pollwise")

#: The methods that a route can have.
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def allowed_methods(routes: Iterable[Any], scope: MutableMapping[str, Any]) -> list[str]:
    """The methods that the routes of this path have, for the header `Allow` of a 405.

    A framework gives only the methods of the first such route.
    """
    return [
        method
        for method in METHODS
        if any(route.matches({**scope, "method": method})[0].name == "FULL" for route in routes)
    ]


def unknown_query(given: Iterable[str], known: Collection[str]) -> str | None:
    """An error about unknown names in a query; None if all are known.

    A misspelt filter is refused, because without it a page would show everything.
    """
    for name in given:
        if name not in known:
            names = f"the parameters are {', '.join(sorted(known))}" if known else "it has none"
            return f"there is no query parameter {name[:40]!r} here; {names}"
    return None


def address_of(scope: MutableMapping[str, Any]) -> str:
    """The client's address; behind a trusted proxy, the one that the proxy forwarded."""
    client = scope.get("client")
    return client[0] if client else ""


def is_address(host: str) -> bool:
    """True if the header Host has an IP address, or localhost, perhaps with a port.

    >>> [is_address(each) for each in ("[::1]:80", "LOCALHOST.", "127.0.0.1.evil.example")]
    [True, True, False]
    """
    name = _PORT.sub("", host)
    if name.lower() in ("localhost", "localhost."):
        return True
    bracketed = name.startswith("[") and name.endswith("]")
    try:
        found = ipaddress.ip_address(name[1:-1] if bracketed else name)
    except ValueError:
        return False
    return bracketed == (found.version == 6)


def warn_without_tls(url: str, advice: str) -> None:
    """Log a warning if a server at this URL has no TLS and other machines can reach it."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    if parts.scheme == "http" and not local:
        logger.warning(
            "%s has no TLS, and other machines can reach it: tokens cross the network in clear "
            "text. %s", url, advice, extra={"action": "no_tls", "fields": {"url": url}},
        )  # fmt: skip
