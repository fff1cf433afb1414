"""HTTP(S): is it there, and what does it say?

    [[target]]
    name = "status of the shop"
    type = "http"
    url = "https://shop.example/health"
    json = "database.state"

A server that gives an ETag or a Last-Modified is asked for news only: 304 is an unchanged reading
for the price of a few headers.
"""

from __future__ import annotations

import hashlib

from pollwise.core.outcome import Plain
from pollwise.fleet.probes.extract import Extract
from pollwise.fleet.probes.http.fetch import Fetch, HttpAnswer
from pollwise.fleet.probes.options import ProbeOptions
from pollwise.fleet.targets import ProbeContext, Reading, Target

METHODS = ("GET", "HEAD", "POST")


class HttpProbe:
    """Asks a URL. Options: url, method, headers, body, expect, reading ("body" or "status"), json,
    regex, limit, redirects, verify, ca, tls_warning."""

    __slots__ = ("_extract", "_fetch", "_status_only", "host")

    def __init__(self, target: Target) -> None:
        options = ProbeOptions(target)
        self._fetch = Fetch(options, METHODS)
        self.host = self._fetch.host
        self._extract = Extract(options)
        self._status_only = options.one_of("reading", ("body", "status"), "body") == "status"
        if self._status_only:
            options.only_one("reading", "json", "regex")
        if self._fetch.method == "HEAD" and (options.has("json") or options.has("regex")):
            options.wrong("method", "= 'head' brings no body that json or regex could look into")
        options.finish()

    async def __call__(self, target: Target, context: ProbeContext) -> Reading:
        last = context.last
        known = validators_of(last, target) if self._fetch.method != "POST" else {}
        answer = await self._fetch(context.epoch, known)
        if answer.unchanged and last is not None:
            return unchanged(last, answer)
        if self._status_only:
            value, summary = str(answer.status), ""
        elif self._fetch.method == "HEAD":
            value, summary = head_of(answer), ""
        else:
            value, summary = self._extract(answer.body, answer.text if self._needs_text else "")
        return Reading(
            value,
            answer.changed_at,
            {**answer.facts, "bytes": len(answer.body)},
            summary_of(answer, summary),
            validators_for(answer, target),
        )

    @property
    def _needs_text(self) -> bool:
        return self._extract.pattern is not None


def fingerprint(target: Target) -> str:
    """Tells options apart: what another path took out of a body says nothing about this one's."""
    written = repr(sorted((key, repr(value)) for key, value in target.options.items()))
    return hashlib.sha256(f"{target.type} {written}".encode()).hexdigest()[:16]


def validators_of(last: Reading | None, target: Target) -> dict[str, str]:
    """What the last answer gave to ask for news only, unless the target was changed since."""
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
    """The last reading again, with what is new about how it was had."""
    facts: dict[str, Plain] = {**last.facts, **answer.facts}
    if "warning" not in answer.facts:
        facts.pop("warning", None)
    return Reading(last.value, last.changed_at, facts, summary_of(answer, ""), last.validators)


def summary_of(answer: HttpAnswer, rest: str) -> str:
    parts = [str(answer.status), rest, f"{answer.facts['ms']:g} ms"]
    parts.append(str(answer.facts.get("warning", "")))
    return ", ".join(part for part in parts if part)


def head_of(answer: HttpAnswer) -> str:
    """What the headers alone tell of a body."""
    told = (answer.headers.get(key, "") for key in ("etag", "last-modified", "content-length"))
    return " ".join((str(answer.status), *told)).strip()


make = HttpProbe
