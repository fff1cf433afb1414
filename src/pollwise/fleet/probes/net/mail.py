"""Shared by the probes of mail servers: the greeting, STARTTLS and what a server offers."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import ClassVar

from pollwise.core.outcome import Plain
from pollwise.fleet.probes.net.conversation import (
    TLS_FACTS,
    Conversation,
    TlsOptions,
    address_of,
    connected,
    shown_address,
    summary_of,
)
from pollwise.fleet.probes.options import ProbeOptions, failed
from pollwise.fleet.targets import ProbeContext, Reading, Target

#: Maximum size of all that a server sends, in bytes, and number of lines in one answer.
ANSWERS_MAX = 64 * 1024
LINES_MAX = 200
#: How much of a server's text is shown and kept, in characters.
_TEXT_MAX = 120

FACTS = {
    "value": "what the server offers, sorted; with `regex` what it matches in the greeting",
    "greeting": "the first line, up to 120 characters",
    "capabilities": "number of capabilities that the server offers",
    "ms": "milliseconds until the server said what it offers, TLS included",
    **TLS_FACTS,
}


class MailProbe(ABC):
    """Base of the probes of mail servers. Options: address, tls, starttls, regex, and the options
    of TLS."""

    __slots__ = ("_pattern", "_port", "_starttls", "_tls", "host")

    #: The port without TLS, or with STARTTLS, and that with TLS from the beginning.
    ports: ClassVar[tuple[int, int]]
    goodbye: ClassVar[bytes]

    def __init__(self, target: Target) -> None:
        options = ProbeOptions(target)
        from_start = options.flag("tls", False)
        self._starttls = options.flag("starttls", False)
        if from_start and self._starttls:
            options.wrong("starttls", "and tls contradict each other; give one of them")
        self.host: str
        self.host, self._port = address_of(options, self.ports[from_start])
        self._tls = TlsOptions.if_wanted(options, self.host, from_start or self._starttls)
        self._pattern = options.pattern("regex")
        self._read_options(options)
        options.finish()

    async def __call__(self, target: Target, context: ProbeContext) -> Reading:
        loop = asyncio.get_running_loop()
        began = loop.time()
        facts: dict[str, Plain] = {}
        at_once = None if self._starttls else self._tls
        async with connected(self.host, self._port, ANSWERS_MAX, at_once) as talk:
            greeting = await self._greeting(talk)
            offered = await self._offered(talk)
            if self._starttls and self._tls is not None:
                await self._ask_for_tls(talk, offered)
                await talk.secure(self._tls)
                offered = await self._offered(talk)  # what was offered before TLS does not count
            facts["greeting"] = greeting[:_TEXT_MAX]
            facts["capabilities"] = len(offered)
            facts["ms"] = round((loop.time() - began) * 1000, 1)
            if self._tls is not None:
                self._tls.note(facts, talk, context.epoch)
            await talk.say_goodbye(self.goodbye)
        value = "\n".join(sorted(offered))
        if self._pattern is not None:
            found = await self._pattern.search(greeting)
            if found is None:
                where = shown_address(self.host, self._port)
                raise failed(f"{where}: the greeting does not match regex: {greeting[:80]!r}")
            value = found
        shown = f"{len(offered)} capabilities" if self._pattern is None else value[:80]
        return Reading(value, None, facts, summary_of(facts, shown))

    def _read_options(self, options: ProbeOptions) -> None:  # noqa: B027 - a type may have none
        """Read the options of this type."""

    @abstractmethod
    async def _greeting(self, talk: Conversation) -> str:
        """The server's greeting; an error if it refuses service."""

    @abstractmethod
    async def _offered(self, talk: Conversation) -> set[str]:
        """Ask what the server offers."""

    @abstractmethod
    async def _ask_for_tls(self, talk: Conversation, offered: set[str]) -> None:
        """Ask the server to continue over TLS."""


def refused(what: str, said: str) -> Exception:
    """The error of an answer that is not the expected one."""
    return ValueError(f"{what}: {said[:_TEXT_MAX]!r}")
