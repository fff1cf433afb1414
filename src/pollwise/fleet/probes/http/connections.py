"""One pool of HTTP connections for all that a process polls, and none left open behind it.

Not by httpx's client: that shares cookies between targets, writes every URL to the log with the
secrets in it, and follows redirects with headers meant for another host. What a target wants of TLS
makes a pool of its own, so most fleets have one. By way of a proxy, the pool is httpx's.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.request import getproxies, proxy_bypass
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import httpx

    from pollwise.fleet.probes.http.carrier import Carrier


@dataclass(frozen=True, slots=True)
class Tls:
    """What is asked of a server's certificate.

    verify: refuse one that no authority signed, or that is for another host.
    ca: a file of further authorities.
    """

    verify: bool = True
    ca: str | None = None

    def context(self) -> ssl.SSLContext:
        import httpx

        context = httpx.create_ssl_context(verify=self.verify)
        if self.ca is not None:
            context.load_verify_locations(self.ca)
        return context


@dataclass(slots=True)
class _Pool:
    users: int = 0
    proxies: dict[str, str] = field(default_factory=getproxies)
    transports: dict[tuple[Tls, str | None], Carrier | httpx.AsyncHTTPTransport] = field(
        default_factory=dict
    )


# By event loop: a connection belongs to the loop it was opened in.
_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = WeakKeyDictionary()


def transport(tls: Tls, scheme: str, host: str) -> Carrier | httpx.AsyncHTTPTransport:
    """What carries requests to a host, by way of the proxy that the environment names for it."""
    pool = _pool()
    proxy = pool.proxies.get(scheme) or pool.proxies.get("all") if pool.proxies else None
    if proxy and proxy_bypass(host):
        proxy = None
    found = pool.transports.get((tls, proxy))
    if found is None:
        found = pool.transports[(tls, proxy)] = _made(tls, proxy)
    return found


def _made(tls: Tls, proxy: str | None) -> Carrier | httpx.AsyncHTTPTransport:
    if proxy is None:
        from pollwise.fleet.probes.http.carrier import Carrier

        return Carrier(tls.context)
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=16)
    return httpx.AsyncHTTPTransport(
        verify=tls.context(), trust_env=False, proxy=proxy, limits=limits
    )


@asynccontextmanager
async def connections() -> AsyncIterator[None]:
    """Hold the shared connections; who lets go last closes them."""
    pool = _pool()
    pool.users += 1
    try:
        yield
    finally:
        pool.users -= 1
        if not pool.users:
            transports = list(pool.transports.values())
            pool.transports.clear()
            for each in transports:
                await each.aclose()


def _pool() -> _Pool:
    loop = asyncio.get_running_loop()
    pool = _pools.get(loop)
    if pool is None:
        pool = _pools[loop] = _Pool()
    return pool
