"""Steps: several HTTP requests in a row, such as logging in and then looking.

    [[target]]
    name = "orders of the shop"
    type = "steps"

    [[target.steps]]
    name = "log in"
    method = "post"
    url = "https://shop.example/login"
    form = { user = "watcher", password = "${SHOP_PASSWORD}" }

    [[target.steps]]
    name = "orders"
    url = "https://shop.example/api/orders"
    json = "open"

Cookies that an answer sets are sent with the next steps, as a browser does. Each poll begins
without any. All steps share the target's timeout.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Mapping
from http.cookiejar import CookieJar
from typing import Any
from urllib.parse import urlencode

from pollwise.core.outcome import Plain
from pollwise.durations import short
from pollwise.errors import MissingExtra, ProbeError, ProbeTimeout
from pollwise.fleet.probes.extract import Extract
from pollwise.fleet.probes.html.probe import read_page, selector_of
from pollwise.fleet.probes.http.fetch import Fetch, HttpAnswer
from pollwise.fleet.probes.http.probe import URL_FACTS, summary_of
from pollwise.fleet.probes.http.variables import (
    Variable,
    check_places,
    filled,
    filled_url,
    filled_value,
    variables_of,
)
from pollwise.fleet.probes.options import BadOptions, ProbeOptions, failed
from pollwise.fleet.targets import ProbeContext, Reading, Target
from pollwise.runtime.redact import shown_url

try:
    import httpx

    from pollwise.fleet.probes.http.carrier import SAFE
except ImportError as error:
    raise MissingExtra("a probe over HTTP", "fleet") from error

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
#: Maximum number of steps, and of cookies.
STEPS_MAX = 20
COOKIES_MAX = 100
#: The last steps give up this much before the target's timeout, as a share of it and in seconds
#: at most, so that the error can name the step.
_MARGIN, _MARGIN_MAX = 0.02, 0.2

FACTS = {
    "value": "the value of the last step: at `json`, of `regex` or `selector`; else its status",
    **URL_FACTS,
    "ms": "milliseconds of all steps",
    "steps": "number of steps",
    "slowest": "name of the slowest step",
    "slowest_ms": "milliseconds of the slowest step",
    "bytes": "size of the last body, unpacked",
}


class StepFetch(Fetch):
    """The request of a step, with the cookies of the steps before."""

    __slots__ = ("jar", "template")

    def __init__(self, options: ProbeOptions) -> None:
        super().__init__(options, METHODS)
        #: Its URL before variables are filled in; only this one is shown.
        self.template: str = self.url
        self.jar: httpx.Cookies | None = None

    @property
    def shown(self) -> str:
        return shown_url(self.template)

    async def _send(self, request: httpx.Request) -> httpx.Response:
        jar = self.jar
        assert jar is not None  # noqa: S101 - for the type checker
        if len(jar.jar):
            given = request.headers.pop("cookie", None)  # those of the option `headers`
            jar.set_cookie_header(request)
            ours = request.headers.get("cookie")
            if given:
                request.headers["cookie"] = f"{given}; {ours}" if ours else given
        response = await super()._send(request)
        if "set-cookie" in response.headers:
            response.request = request
            jar.extract_cookies(response)
            for cookie in list(jar.jar):
                text = f"{cookie.name}{cookie.value or ''}"
                if not text.isascii() or not text.isprintable():  # it cannot be sent back
                    jar.jar.clear(cookie.domain, cookie.path, cookie.name)
            if len(jar.jar) > COOKIES_MAX:
                await response.aclose()
                raise failed(f"{self._said()}: the server set more than {COOKIES_MAX} cookies")
        return response


class Step:
    """One step, from its table."""

    __slots__ = (
        "_body", "_extract", "_fetch", "_form", "_json", "_page", "_variables", "limit", "name",
    )  # fmt: skip

    def __init__(self, options: ProbeOptions, number: int, known: dict[str, str]) -> None:
        self.name: str = options.text("name") or f"step {number}"
        self._fetch = StepFetch(options)
        _check_host(options, self._fetch)
        self._body = options.text("body")
        self._form = options.texts("form")
        self._json = options.raw("json_body")
        options.only_one("body", "form", "json_body")
        if self._fetch.method in SAFE:
            for key in ("form", "json_body"):
                if options.has(key):
                    options.wrong(key, f"is not sent with {self._fetch.method}; give a method")
        options.only_one("json", "regex", "selector")
        self._extract = Extract(options)
        self._page = {
            "selector": selector_of(options, "selector"),
            "attribute": options.text("attribute").lower() or None,
        }
        if options.has("attribute") and not options.has("selector"):
            options.wrong("attribute", "needs a selector")
        self.limit: float = options.duration("timeout", 0.0)
        self._check_variables(options, known)
        self._variables: list[Variable] = variables_of(options, known)
        for each in self._variables:
            known[each.name] = self.name

    def _check_variables(self, options: ProbeOptions, known: Mapping[str, str]) -> None:
        texts = {
            "url": [self._fetch.url],
            "headers": list(self._fetch.headers.values()),
            "body": [self._body],
            "form": list(self._form.values()),
            "json_body": _texts_in(self._json),
        }
        for key, some in texts.items():
            for text in some:
                check_places(text, known, lambda what, key=key: options.wrong(key, what))  # type: ignore[misc]

    @property
    def host(self) -> str | None:
        return self._fetch.host

    async def __call__(
        self, epoch: float, jar: httpx.Cookies, values: dict[str, str]
    ) -> HttpAnswer:
        """Send the request and extract the variables into `values`."""
        fetch = copy.copy(self._fetch)
        fetch.jar = jar
        fetch.url = filled_url(fetch.url, values)
        headers = {name: filled(each, values) for name, each in fetch.headers.items()}
        body = self._filled_body(values, headers)
        for name, each in headers.items():
            if not each.isascii() or not each.isprintable():
                raise failed(f"the header {name} has a variable whose value cannot be sent in it")
        fetch.headers, fetch.body = headers, body
        answer = await fetch(epoch, {})
        for variable in self._variables:
            values[variable.name] = await variable(answer, jar)
        return answer

    def _filled_body(self, values: Mapping[str, str], headers: dict[str, str]) -> bytes | None:
        if self._form:
            headers.setdefault("content-type", "application/x-www-form-urlencoded")
            return urlencode({k: filled(v, values) for k, v in self._form.items()}).encode()
        if self._json is not None:
            headers.setdefault("content-type", "application/json")
            return json.dumps(filled_value(self._json, values)).encode()
        return filled(self._body, values).encode() if self._body else None

    async def value(self, answer: HttpAnswer) -> tuple[str, str] | None:
        """What the step reads of its answer, and a summary; None if it reads nothing."""
        if self._page["selector"]:
            found = await read_page(answer, self._page)
            if "value" not in found:
                raise failed(f"no element matches {self._page['selector']!r}")
            return found["value"], str(found["content"]).partition("\n")[0][:80]
        if self._extract.path is None and self._extract.pattern is None:
            await self._extract.check(answer.body, answer.encoding)
            return None
        return await self._extract(answer.body, answer.encoding)


class StepsProbe:
    """Requests several URLs in order. Options: steps, a list of tables. The last one's reading
    counts."""

    __slots__ = ("_steps", "host")

    def __init__(self, target: Target) -> None:
        options = ProbeOptions(target)
        self._steps: list[Step] = []
        given = options.raw("steps")
        if not isinstance(given, (list, tuple)) or not given:
            options.wrong("steps", "is missing" if given is None else "must be a list of tables")
            given = []
        elif len(given) > STEPS_MAX:
            options.wrong("steps", f"has {len(given)} steps; the limit is {STEPS_MAX}")
        known: dict[str, str] = {}
        names: set[str] = set()
        for number, table in enumerate(given[:STEPS_MAX], 1):
            if not isinstance(table, Mapping):
                options.wrong("steps", f"(step {number}) is not a table")
                continue
            inner = ProbeOptions(Target("-", "steps", options=table))
            step = Step(inner, number, known)
            if step.name in names:
                inner.wrong("name", f"= {step.name!r} is the name of an earlier step")
            names.add(step.name)
            self._steps.append(step)
            try:
                inner.finish()
            except BadOptions as error:
                for key, what in error.problems:
                    options.wrong("steps", f"(step {number}): {key} {what}")
        self.host: str | None = self._steps[0].host if self._steps else None
        options.finish()

    async def __call__(self, target: Target, context: ProbeContext) -> Reading:
        loop = asyncio.get_running_loop()
        began = loop.time()
        whole = context.deadline - began
        deadline = context.deadline - min(whole * _MARGIN, _MARGIN_MAX)
        jar, values = httpx.Cookies(CookieJar()), dict[str, str]()
        slowest, most = "", -1.0
        value: tuple[str, str] | None = None
        answer: HttpAnswer | None = None
        for step in self._steps:
            at = loop.time()
            until = min(deadline, at + step.limit) if step.limit else deadline
            try:
                async with asyncio.timeout_at(until):
                    answer = await step(context.epoch, jar, values)
                    value = await step.value(answer)
            except TimeoutError:
                raise ProbeTimeout(
                    f"step {step.name!r}: no answer within {short(round(until - at, 1))}"
                ) from None
            except ProbeError as error:
                raise failed(
                    f"step {step.name!r}: {error}",
                    permanent=error.permanent,
                    retry_after=error.retry_after,
                ) from None
            if loop.time() - at > most:
                slowest, most = step.name, loop.time() - at
        assert answer is not None  # noqa: S101 - there is a step
        facts: dict[str, Plain] = {
            **answer.facts,
            "ms": round((loop.time() - began) * 1000, 1),
            "steps": len(self._steps),
            "slowest": slowest,
            "slowest_ms": round(most * 1000, 1),
            "bytes": len(answer.body),
        }
        answer.facts["ms"] = facts["ms"]
        text, summary = value or (str(answer.status), f"{len(self._steps)} steps")
        return Reading(text, answer.changed_at, facts, summary_of(answer, summary))


def _check_host(options: ProbeOptions, fetch: Fetch) -> None:
    """Refuse a variable in the host: the answer of a server must not choose who is asked next."""
    authority = fetch.url.partition("://")[2].partition("/")[0].partition("?")[0]
    if "{" in authority:
        options.wrong("url", "has a variable in its host; variables are for the path and the query")


def _texts_in(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [text for each in value for text in _texts_in(each)]
    return []


make = StepsProbe
