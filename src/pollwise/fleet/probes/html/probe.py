"""HTML: the text of a part of a page, and what changed in it.

    [[target]]
    name = "price of the lamp"
    type = "html"
    url = "https://shop.example/lamp"
    selector = ".price"

The text is kept with the reading, so that a change comes with a diff. The page is parsed in
a process of its own, which is killed if the page takes too long.
"""

from __future__ import annotations

from typing import Any

from pollwise.alerts.patterns import compile_pattern
from pollwise.core.outcome import Plain
from pollwise.durations import shown
from pollwise.errors import ConfigError, MissingExtra
from pollwise.fleet.probes.html.child import check_selector
from pollwise.fleet.probes.html.reading import PageReaders
from pollwise.fleet.probes.http.fetch import Fetch, HttpAnswer
from pollwise.fleet.probes.http.probe import (
    URL_FACTS,
    fingerprint,
    summary_of,
    unchanged,
    validators_for,
    validators_of,
)
from pollwise.fleet.probes.kept import shared
from pollwise.fleet.probes.options import ProbeOptions, failed
from pollwise.fleet.targets import ProbeContext, Reading, Target

#: Default maximum size of a page, in bytes; the option `limit` overrides it.
PAGE_MAX = 4 * 1024 * 1024
#: Maximum number of patterns in `ignore`.
IGNORE_MAX = 50

FACTS = {
    "value": "the selected text, or the group of `regex`; of more than 256 characters the digest",
    "matches": "number of elements that the selector matches",
    "length": "length of the text, in characters",
    "bytes": "size of the page, unpacked",
    **URL_FACTS,
}


class HtmlProbe:
    """Reads a part of a page. Options: url, selector, attribute, ignore, regex, optional, and the
    request options of http."""

    __slots__ = ("_fetch", "_optional", "_request", "host")

    def __init__(self, target: Target) -> None:
        options = ProbeOptions(target)
        self._fetch = Fetch(options, ("GET",), PAGE_MAX)
        self.host: str | None = self._fetch.host
        self._optional = options.flag("optional", False)
        self._request = {
            "selector": selector_of(options, "selector", needed=True),
            "attribute": options.text("attribute").lower() or None,
            "ignore": _ignored(options),
            "regex": pattern.text if (pattern := options.pattern("regex")) is not None else None,
        }
        options.finish()

    async def __call__(self, target: Target, context: ProbeContext) -> Reading:
        last = context.last
        made_by = fingerprint(target)
        # A text that was made with other options cannot be compared.
        if last is not None and last.validators.get("of") != made_by:
            last = None
        answer = await self._fetch(context.epoch, validators_of(last, target))
        if answer.unchanged and last is not None:
            return unchanged(last, answer)
        found = await read_page(answer, self._request, last)
        value = found.get("value")
        if not isinstance(value, str):
            if not self._optional:
                raise failed(f"{self._fetch.shown}: {self._missing(found)}")
            value = ""
        same = last is not None and last.value == value
        facts: dict[str, Plain] = {
            **answer.facts,
            "matches": found["matches"],
            "length": found.get("length", 0),
            "bytes": len(answer.body),
        }
        return Reading(
            value,
            answer.changed_at,
            facts,
            summary_of(answer, _first_line(found)),
            {**validators_for(answer, target), "of": made_by},
            found.get("content", ""),
            last.diff if same and last is not None else found.get("diff", ""),
        )

    def _missing(self, found: dict[str, Any]) -> str:
        if found.get("unmatched"):
            return f"the selected text does not match {shown(self._request['regex'])}"
        selector = shown(self._request["selector"])
        if self._request["attribute"]:
            return f"no element matches {selector} and has the attribute"
        return f"no element matches {selector}"


async def read_page(
    answer: HttpAnswer, request: dict[str, Any], last: Reading | None = None
) -> dict[str, Any]:
    """What `child.answered` says of a page."""
    asked: dict[str, Any] = dict(request)
    if "charset=" in answer.headers.get("content-type", "").lower():
        asked["encoding"] = answer.encoding
    if last is not None:
        asked |= {"before": last.content, "value": last.value}
    return await shared(PageReaders, PageReaders).read(asked, answer.body)


def selector_of(options: ProbeOptions, key: str, *, needed: bool = False) -> str:
    """An option that is a CSS selector."""
    selector = options.text(key, needed=needed)
    if selector:
        try:
            check_selector(selector)
        except ImportError as error:
            raise MissingExtra("a probe of HTML pages", "html") from error
        except ValueError:
            options.wrong(
                key, f"= {shown(selector)} is not a CSS selector; write it like 'div.price > b'"
            )
    return selector


def _ignored(options: ProbeOptions) -> list[str]:
    given = options.raw("ignore")
    patterns = [given] if isinstance(given, str) else options.words("ignore")
    if len(patterns) > IGNORE_MAX:
        options.wrong("ignore", f"has {len(patterns)} patterns; the limit is {IGNORE_MAX}")
    for each in patterns:
        try:
            compile_pattern(each)
        except ConfigError as error:
            options.wrong("ignore", f"= {error}")
    return list(patterns)


def _first_line(found: dict[str, Any]) -> str:
    line, _, more = str(found.get("content", "")).partition("\n")
    return line[:80] + ("…" if more or len(line) > 80 else "")


make = HtmlProbe
