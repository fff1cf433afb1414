"""Variables of a sequence of steps: `{name}` in a later step is what an earlier one extracted.

Their values are secrets, such as tokens: no message contains one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pollwise.errors import ConfigError, did_you_mean
from pollwise.fleet.probes.extract import Extract
from pollwise.fleet.probes.html.probe import read_page, selector_of
from pollwise.fleet.probes.http.fetch import HttpAnswer
from pollwise.fleet.probes.options import BadOptions, ProbeOptions, failed
from pollwise.fleet.targets import Target
from pollwise.runtime.redact import without_hidden

if TYPE_CHECKING:
    import httpx

#: Maximum number of variables of a target, and maximum length of a value, in characters.
VARIABLES_MAX = 50
VALUE_MAX = 8192

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_PLACE = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|\{([A-Za-z_]\w*)\}", re.ASCII)
#: What of a value stays as it is in the path of a URL: it may be a path of several parts, with
#: escapes and a query.
_IN_PATH = "/?&=%:+,;@-._~!$'()*"

Values = Mapping[str, str]


def check_places(text: str, known: Mapping[str, str], wrong: Callable[[str], None]) -> None:
    """Report places in a text for variables that no earlier step extracts."""
    for place in _PLACE.finditer(text):
        name = place[2]
        if name is None or name in known:
            continue
        if without_hidden(text) != text:
            continue  # a password of the environment may contain braces
        what = (
            did_you_mean(name, sorted(known)) if known else f"write {{{{{name}}}}} for plain text"
        )
        wrong(f"uses {{{name}}}, which no earlier step extracts; {what}")


def filled(text: str, values: Values, encode: Callable[[str], str] = str) -> str:
    """A text with the values of its variables; `{{name}}` stands for a plain `{name}`.

    >>> filled("{a} {{a}} {b}", {"a": "1"})
    '1 {a} {b}'
    """

    def value(place: re.Match[str]) -> str:
        if place[1] is not None:
            return f"{{{place[1]}}}"
        return encode(values[place[2]]) if place[2] in values else place[0]

    return _PLACE.sub(value, text) if "{" in text else text


def filled_url(url: str, values: Values) -> str:
    """A URL with its variables: encoded in the query, and as a path where the path is."""
    path, mark, query = url.partition("?")
    return (
        filled(path, values, lambda value: quote(value, safe=_IN_PATH))
        + mark
        + filled(query, values, lambda value: quote(value, safe=""))
    )


def filled_value(value: Any, values: Values) -> Any:
    """A JSON value whose texts have the values of their variables."""
    if isinstance(value, str):
        return filled(value, values)
    if isinstance(value, list):
        return [filled_value(each, values) for each in value]
    if isinstance(value, dict):
        return {key: filled_value(each, values) for key, each in value.items()}
    return value


class Variable:
    """How a variable is extracted from an answer: one of json, regex, selector, header, cookie."""

    __slots__ = ("_cookie", "_extract", "_header", "_request", "name")

    def __init__(self, name: str, options: ProbeOptions) -> None:
        self.name: str = name
        given = [
            key for key in ("json", "regex", "selector", "header", "cookie") if options.has(key)
        ]
        if len(given) != 1:
            options.wrong(
                "", "needs one of json, regex, selector, header and cookie, and only one of them"
            )
        self._extract = Extract(options, checked=False)
        self._request = {
            "selector": selector_of(options, "selector"),
            "attribute": options.text("attribute").lower() or None,
        }
        self._header = options.text("header")
        self._cookie = options.text("cookie")
        if options.has("attribute") and not options.has("selector"):
            options.wrong("attribute", "needs a selector")

    async def __call__(self, answer: HttpAnswer, jar: httpx.Cookies) -> str:
        """Its value in an answer; ProbeError without the value if there is none."""
        value = await self._value(answer, jar)
        if value is None:
            raise failed(f"the answer has nothing for the variable {self.name}")
        if len(value) > VALUE_MAX:
            raise failed(f"the variable {self.name} has more than {VALUE_MAX:,} characters")
        return value

    async def _value(self, answer: HttpAnswer, jar: httpx.Cookies) -> str | None:
        if self._header:
            return answer.headers.get(self._header)
        if self._cookie:
            return next((each.value for each in jar.jar if each.name == self._cookie), None)
        if self._request["selector"]:
            found = await read_page(answer, self._request)
            return found.get("content")
        value, _ = await self._extract(answer.body, answer.encoding)
        return value


def variables_of(options: ProbeOptions, known: Mapping[str, str]) -> list[Variable]:
    """The option `extract` of a step: {token = {json = "auth.token"}}."""
    given = options.raw("extract")
    if given is None:
        return []
    if not isinstance(given, Mapping) or not all(isinstance(e, Mapping) for e in given.values()):
        options.wrong("extract", "must be a table of tables: { token = { json = 'auth.token' } }")
        return []
    found: list[Variable] = []
    for name, table in given.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            options.wrong("extract", f"has {name!r}, which is not a name of letters and digits")
            continue
        inner = ProbeOptions(Target("-", "steps", options=table))
        variable = Variable(name, inner)
        try:
            inner.finish()
        except BadOptions as error:
            for key, what in error.problems:
                options.wrong("extract", f"of {name}: {key} {what}".replace(":  ", ": "))
        except ConfigError as error:
            options.wrong("extract", f"of {name}: {error}")
        found.append(variable)
    if len(found) + len(known) > VARIABLES_MAX:
        options.wrong("extract", f"makes more than {VARIABLES_MAX} variables")
    return found
