"""TCP: does a port accept connections, and what is its first line?

[[target]]
name = "mail server"
type = "tcp"
address = "mail.example:25"
regex = "^220 (\\S+)"
"""

from __future__ import annotations

import asyncio

from pollwise.core.outcome import Plain
from pollwise.fleet.probes.net.conversation import (
    LINE_MAX,
    TLS_FACTS,
    TlsOptions,
    address_of,
    connected,
    shown_address,
    summary_of,
)
from pollwise.fleet.probes.options import ProbeOptions, failed
from pollwise.fleet.targets import ProbeContext, Reading, Target

FACTS = {
    "value": "`open`; with `read` the first line, with `regex` what it matches there",
    "ms": "milliseconds until the connection was open, TLS included",
    **TLS_FACTS,
}


class TcpProbe:
    """Connects. Options: address ("host:port"), send, read (use the first line as the reading),
    regex (use what it matches in that line), tls, server_name, verify, ca, tls_warning."""

    __slots__ = ("_pattern", "_port", "_read", "_send", "_tls", "host")

    def __init__(self, target: Target) -> None:
        options = ProbeOptions(target)
        self.host: str
        self.host, self._port = address_of(options)
        self._send = options.text("send").encode()
        self._pattern = options.pattern("regex")
        self._read = options.flag("read", self._pattern is not None)
        if self._pattern is not None and not self._read:
            options.wrong("read", "= false contradicts regex, which needs the first line")
        self._tls = TlsOptions.if_wanted(options, self.host, options.flag("tls", False))
        options.finish()

    async def __call__(self, target: Target, context: ProbeContext) -> Reading:
        loop = asyncio.get_running_loop()
        began = loop.time()
        facts: dict[str, Plain] = {}
        async with connected(self.host, self._port, LINE_MAX, self._tls) as talk:
            facts["ms"] = round((loop.time() - began) * 1000, 1)
            if self._tls is not None:
                self._tls.note(facts, talk, context.epoch)
            if self._send:
                talk.send(self._send)
            value = await talk.first_line() if self._read else "open"
        if self._pattern is not None:
            said, found = value, await self._pattern.search(value)
            if found is None:
                where = shown_address(self.host, self._port)
                raise failed(f"{where}: the first line does not match regex: {said[:80]!r}")
            value = found
        return Reading(value, None, facts, summary_of(facts, value[:80]))


make = TcpProbe
