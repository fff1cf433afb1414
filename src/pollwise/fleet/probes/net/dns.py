"""DNS: the records of a name.

    [[target]]
    name = "where mail goes"
    type = "dns"
    domain = "example.org"
    record = "MX"

dnspython is used instead of the system's resolver, which knows only addresses, mixes in /etc/hosts
and caches, hides the TTL, confuses "no such name" with "no answer", and blocks in
a thread that cannot be cancelled.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time

from pollwise.core.outcome import Plain
from pollwise.errors import MissingExtra
from pollwise.fleet.probes.options import ProbeOptions, failed
from pollwise.fleet.targets import ProbeContext, Reading, Target
from pollwise.runtime.redact import shown_url

try:
    import dns.asyncresolver
    import dns.exception
    import dns.name
    import dns.rdatatype
    import dns.resolver
except ImportError as error:
    raise MissingExtra("a probe of DNS", "fleet") from error

RECORDS = (
    "A", "AAAA", "CAA", "CNAME", "DNSKEY", "DS", "HTTPS", "MX", "NAPTR", "NS", "PTR", "SOA",
    "SRV", "SVCB", "TLSA", "TXT",
)  # fmt: skip


FACTS = {
    "value": "the records, sorted, one per line",
    "answers": "number of records",
    "ttl": "seconds that the records may be cached",
    "ms": "milliseconds until the answer",
}


class DnsProbe:
    """Resolves a name. Options: domain, record (A), server ("9.9.9.9" or "9.9.9.9:53"), tcp.

    Its value is the sorted answers, so that another order is not a change. "No such name" is a
    permanent failure, "no answer" a transient one.
    """

    __slots__ = ("_domain", "_port", "_record", "_server", "_tcp", "host")

    def __init__(self, target: Target) -> None:
        options = ProbeOptions(target)
        self._domain = options.text("domain", needed=True)
        if self._domain and not _is_name(self._domain):
            options.wrong("domain", f"= {shown_url(self._domain)!r} is not a domain name")
        folded = {word.lower(): word for word in RECORDS}
        self._record = folded[options.one_of("record", tuple(folded), "a")]
        self._server, self._port = _checked_server(options)
        self._tcp = options.flag("tcp", False)
        self.host: str | None = self._server
        options.finish()

    async def __call__(self, target: Target, context: ProbeContext) -> Reading:
        loop = asyncio.get_running_loop()
        began = loop.time()
        # The fleet enforces the timeout; an error of the resolver itself says more.
        lifetime = max(context.deadline - began, 0.1)
        said = f"{self._domain} {self._record}"
        try:
            answer = await self._resolver(lifetime).resolve(
                self._domain, self._record, tcp=self._tcp, lifetime=lifetime, search=False
            )
        except dns.resolver.NXDOMAIN:
            raise failed(f"{said}: there is no such name", permanent=True) from None
        except dns.resolver.NoAnswer:
            raise failed(f"{said}: the name has no such record", permanent=True) from None
        except (dns.exception.DNSException, OSError, EOFError) as error:
            raise failed(f"{said}: {_reason(error)}") from None
        values = sorted(each.to_text() for each in answer.rrset or ())
        facts: dict[str, Plain] = {
            "answers": len(values),
            "ttl": int(answer.rrset.ttl) if answer.rrset is not None else 0,
            "ms": round((loop.time() - began) * 1000, 1),
        }
        return Reading("\n".join(values), None, facts, ", ".join(values)[:120])

    def _resolver(self, lifetime: float) -> dns.asyncresolver.Resolver:
        if self._server is None:
            resolver = _systems()
        else:
            resolver = dns.asyncresolver.Resolver(configure=False)
            resolver.nameservers = [self._server]
            resolver.port = self._port
        resolver.timeout = min(2.0, lifetime)  # of one attempt: a datagram may be lost
        return resolver


_kept: tuple[float, dns.asyncresolver.Resolver] | None = None


def _systems() -> dns.asyncresolver.Resolver:
    """A resolver with the system's name servers, which are read again every minute."""
    global _kept
    now = time.monotonic()
    if _kept is None or now - _kept[0] > 60:
        try:
            _kept = (now, dns.asyncresolver.Resolver())
        except (dns.exception.DNSException, OSError) as error:
            raise failed(f"the system has no name server: {_reason(error)}") from None
    return _kept[1]


def _checked_server(options: ProbeOptions) -> tuple[str | None, int]:
    given = options.text("server")
    if not given:
        return None, 53
    host, port = given, "53"
    if given.startswith("["):
        host, _, port = given[1:].partition("]")
        port = port.removeprefix(":") or "53"
    elif given.count(":") == 1:
        host, _, port = given.partition(":")
    try:
        address = str(ipaddress.ip_address(host))
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(port)
    except ValueError:
        options.wrong(
            "server",
            f"= {shown_url(given)!r} must be an address such as '9.9.9.9' or '9.9.9.9:53'",
        )
        return None, 53
    return address, int(port)


def _is_name(domain: str) -> bool:
    if "//" in domain or "@" in domain:  # a URL: dnspython accepts any character in a name
        return False
    try:
        dns.name.from_text(domain)
    except (dns.exception.DNSException, UnicodeError):
        return False
    return True


def _reason(error: BaseException) -> str:
    if isinstance(error, dns.exception.Timeout):
        return "no name server answered in time"
    if isinstance(error, dns.resolver.NoNameservers):
        return "no name server could answer (SERVFAIL, REFUSED, or no DNS at all)"
    return " ".join(str(error).split())[:160] or type(error).__name__


make = DnsProbe
