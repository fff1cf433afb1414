"""One pool of HTTP connections for all targets of a process.

httpx's client is not used: it shares cookies between targets, logs every URL with its secrets, and
follows redirects with headers meant for another host. Each combination of TLS options has its own
pool, so most fleets have one. Through a proxy, httpx's pool is used.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.request import getproxies, proxy_bypass

from pollwise.fleet.probes.kept import shared

if TYPE_CHECKING:
    import httpx

    from pollwise.fleet.probes.http.carrier import Carrier


@dataclass(frozen=True, slots=True)
class Tls:
    """Requirements for a server's certificate.

    verify: refuse a certificate that no authority signed, or that is for another host.
    ca: file of additional authorities.
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
class _Transports:
    proxies: dict[str, str] = field(default_factory=getproxies)
    transports: dict[tuple[Tls, str | None], Carrier | httpx.AsyncHTTPTransport] = field(
        default_factory=dict
    )

    async def aclose(self) -> None:
        while self.transports:
            await self.transports.popitem()[1].aclose()


def transport(tls: Tls, scheme: str, host: str) -> Carrier | httpx.AsyncHTTPTransport:
    """The transport of requests to a host, through the environment's proxy for it, if any."""
    pool = shared(_Transports, _Transports)
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
