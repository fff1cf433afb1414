"""HTTP(S): is a URL reachable, and did its content change?

    [[target]]
    name = "status of the shop"
    type = "http"
    url = "https://shop.example/health"
    json = "database.state"

If a server sends an ETag or a Last-Modified, the next request is conditional: a 304 is an unchanged
reading at the cost of a few headers.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import ClassVar

from pollwise.core.outcome import Plain
from pollwise.fleet.probes.extract import Extract
from pollwise.fleet.probes.http.fetch import BODY_MAX, Fetch, HttpAnswer
from pollwise.fleet.probes.net.conversation import TLS_FACTS
from pollwise.fleet.probes.options import ProbeOptions
from pollwise.fleet.targets import ProbeContext, Reading, Target

#: The facts of every probe that reads a URL.
URL_FACTS = {
    "status": "the status code",
    "ms": "milliseconds until the answer was read, redirects included",
    "first_byte_ms": "of these, until the headers of the answer arrived",
    "connect_ms": "of these, for look-up and TCP, if a connection was opened",
    "tls_ms": "of these, for TLS, if a connection was opened",
    **TLS_FACTS,
}
FACTS = {
    "value": "the value at `json` or the group of `regex`; else a digest of the body",
    **URL_FACTS,
    "bytes": "size of the body, unpacked",
}


#: Options that need the body of an answer.
_OF_BODY = ("json", "regex", "checks", "absent")


class UrlProbe(ABC):
    """Base of the probes that read the answer of a URL."""

    __slots__ = ("_fetch", "host")

    methods: ClassVar[tuple[str, ...]] = ("GET",)
    #: Default maximum size of an answer, in bytes; the option `limit` overrides it.
    limit: ClassVar[int] = BODY_MAX

    def __init__(self, target: Target) -> None:
        options = ProbeOptions(target)
        self._fetch = Fetch(options, self.methods, self.limit)
        self.host: str | None = self._fetch.host
        self._read_options(options)
        options.finish()

    async def __call__(self, target: Target, context: ProbeContext) -> Reading:
        last = context.last
        known = validators_of(last, target) if self._fetch.method != "POST" else {}
        answer = await self._fetch(context.epoch, known)
        if answer.unchanged and last is not None:
            return unchanged(last, answer)
        value, changed_at, facts, summary = await self._read(answer)
        return Reading(
            value,
            changed_at,
            {**answer.facts, **facts},
            summary_of(answer, summary),
            validators_for(answer, target),
        )

    def _read_options(self, options: ProbeOptions) -> None:  # noqa: B027 - a type may have none
        """Read the options of this type."""

    @abstractmethod
    async def _read(self, answer: HttpAnswer) -> tuple[str, float | None, dict[str, Plain], str]:
        """The value of a reading, when it changed, its facts and its summary."""


class HttpProbe(UrlProbe):
    """Requests a URL. Options: url, method, headers, body, expect, reading ("body" or "status"),
    json, regex, checks, absent, limit, redirects, verify, ca, tls_warning."""

    __slots__ = ("_extract", "_status_only")

    methods: ClassVar[tuple[str, ...]] = ("GET", "HEAD", "POST")

    def _read_options(self, options: ProbeOptions) -> None:
        self._extract = Extract(options)
        self._status_only = options.one_of("reading", ("body", "status"), "body") == "status"
        if self._status_only:
            options.only_one("reading", "json", "regex")
        if self._fetch.method == "HEAD" and any(map(options.has, _OF_BODY)):
            options.wrong("method", f"= 'head' has no body for {', '.join(_OF_BODY)}")

    async def _read(self, answer: HttpAnswer) -> tuple[str, float | None, dict[str, Plain], str]:
        if self._status_only:
            value, summary = str(answer.status), ""
            await self._extract.check(answer.body, answer.encoding)
        elif self._fetch.method == "HEAD":
            value, summary = head_of(answer), ""
        else:
            value, summary = await self._extract(answer.body, answer.encoding)
        return value, answer.changed_at, {"bytes": len(answer.body)}, summary


def fingerprint(target: Target) -> str:
    """A digest of the options: a reading made with other options cannot be compared."""
    written = repr(sorted((key, repr(value)) for key, value in target.options.items()))
    return hashlib.sha256(f"{target.type} {written}".encode()).hexdigest()[:16]


def validators_of(last: Reading | None, target: Target) -> dict[str, str]:
    """The validators of the last answer, unless the target's options changed since."""
    if last is None or not last.validators or last.validators.get("of") != fingerprint(target):
        return {}
    return {key: each for key, each in last.validators.items() if key != "of"}


def validators_for(answer: HttpAnswer, target: Target) -> dict[str, str]:
    found = {
        key: answer.headers[key]
        for key in ("etag", "last-modified")
        if key in answer.headers and len(answer.headers[key]) <= 512
    }
    return {**found, "of": fingerprint(target)} if found else {}


def unchanged(last: Reading, answer: HttpAnswer) -> Reading:
    """The last reading, with the facts of this answer."""
    facts: dict[str, Plain] = {**last.facts, **answer.facts}
    for name in ("warning", "connect_ms", "tls_ms"):
        if name not in answer.facts:
            facts.pop(name, None)
    return Reading(
        last.value,
        last.changed_at,
        facts,
        summary_of(answer, ""),
        last.validators,
        last.content,
        last.diff,
    )


def summary_of(answer: HttpAnswer, rest: str) -> str:
    parts = [str(answer.status), rest, f"{answer.facts['ms']:g} ms"]
    parts.append(str(answer.facts.get("warning", "")))
    return ", ".join(part for part in parts if part)


def head_of(answer: HttpAnswer) -> str:
    """A value made of the headers that change with the body."""
    parts = (answer.headers.get(key, "") for key in ("etag", "last-modified", "content-length"))
    return " ".join((str(answer.status), *parts)).strip()


make = HttpProbe
