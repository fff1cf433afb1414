"""An HTTP API that answers with JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit

from pollwise.durations import Duration, shown
from pollwise.errors import ConfigError, ProbeError, ProbeRefused
from pollwise.fleet.probes.http.fetch import HttpAnswer
from pollwise.fleet.probes.json_paths import Path, follow, json_path
from pollwise.runtime.clock import Clock
from pollwise.runtime.limits.budget import SharedBudget
from pollwise.runtime.redact import shown_url
from pollwise.sources.base import Found, State
from pollwise.sources.cursors import CursorStore
from pollwise.sources.listed import REMEMBERED, digest_of, remembered
from pollwise.sources.web import TIMEOUT, WebSource, validators_in

#: Default maximum size of an answer, unpacked, in bytes.
BODY_MAX = 8 * 1024 * 1024
#: Maximum number of items in one answer.
ITEMS_MAX = 10_000
#: Maximum length of the URL of a page, and of a token that names one.
URL_MAX = 4000
#: Maximum length of a text in the field that orders the items.
FIELD_MAX = 500

#: How many pages of a walk in a row may have only items that the walk delivered before.
REPEATS_MAX = 100

#: One link of a `Link` header: its URL and its parameters.
_LINK = re.compile(r"<([^<>]*)>([^<]*)")
_REL_NEXT = re.compile(
    r";\s*rel\s*=\s*(?:\"(?:[^\"]*\s)?next(?:\s[^\"]*)?\"|next\b)", re.IGNORECASE
)


class HttpJson(WebSource[Any]):
    """The items of a JSON API, each once; with `field`, again whenever that field changed.

        api = HttpJson(
            "https://api.example/orders", items="data", field="updated_at", since="updated_since",
            headers={"authorization": f"Bearer {token}"}, cursor="sqlite:///cursors.db",
        )

    One poll is one request for one page. Pages follow each other at once, within the budget.

    items: JSON path to the list of items in an answer; "" if the answer is the list.
    id: JSON path in an item to what identifies it; "" if its whole content does, as for an item
        that has nothing there. Two different items with one id are an error.
    field: JSON path in an item to what orders the items, such as the time of its last change or a
        growing number: only items from the highest value on are delivered.
    since: name of the query parameter by which the server selects items with at least this value.
    link: further pages are in the `Link` header, with rel="next". They are read unless `next` or
        `page` names another way; False leaves them out.
    next: JSON path in an answer to the URL of the next page; with `next_param`, to the value that
        this query parameter gets.
    page: name of the query parameter with the number of the page, which starts at `first_page`.

    Without `since`, the newest items must come first: the first page on which nothing is new is the
    last that is read. If an answer was full of new items and nothing on it was known, older ones
    may have left the server's list unseen: the event `WindowPassed` tells so. 304 is an empty poll.
    `Retry-After`, 429, `Cache-Control: max-age`, `X-Poll-Interval` and rate-limit headers are
    respected, and all sources of a process share a budget for each host, unless `budget` is given.

    Options of the request: headers, method ("post"), body, redirects, verify, ca; `max_bytes` is
    the maximum size of an answer.
    """

    def __init__(
        self,
        url: str,
        *,
        items: str = "",
        id: str = "id",
        field: str | None = None,
        since: str | None = None,
        link: bool | None = None,
        next: str | None = None,
        next_param: str | None = None,
        page: str | None = None,
        first_page: int = 1,
        cursor: str | CursorStore | None = None,
        name: str | None = None,
        budget: SharedBudget | None = None,
        timeout: Duration = TIMEOUT,
        max_bytes: int = BODY_MAX,
        clock: Clock | None = None,
        **request: Any,
    ) -> None:
        super().__init__(
            url, name, request, budget=budget, timeout=timeout, body_max=max_bytes, cursor=cursor,
            clock=clock,
        )  # fmt: skip
        if "limit" in request:
            raise ConfigError("limit is not an option of HttpJson; max_bytes bounds its answers")
        ways = [way for way, on in (("link", link), ("next", next), ("page", page)) if on]
        if len(ways) > 1:
            raise ConfigError(f"{ways[0]} and {ways[1]} contradict each other; give one of them")
        if next_param is not None and next is None:
            raise ConfigError("next_param needs next: the path to the value it gets")
        if since is not None and field is None:
            raise ConfigError("since needs field: the path to the value it gets")
        self._items = _path("items", items)
        self._id = _path("id", id)
        self._field = _path("field", field)
        self._next = _path("next", next)
        self._since, self._next_param, self._page = since, next_param, page
        self._link = link if link is not None else not ways
        self._wants_links = link is not False
        self._first_page = first_page

    async def _find(self, state: State, hold: float) -> Found[Any]:
        walk: Mapping[str, Any] = state.get("walk") or {}
        url = self._url(state, walk)
        of = digest_of(url)
        kept: Mapping[str, str] = {} if walk else state.get("valid", {})
        validators = {k: v for k, v in kept.items() if k != "of"} if kept.get("of") == of else {}
        answer, wait, allowance = await self._request(validators, url)
        if answer.unchanged:
            return Found((), state, False, wait, allowance)
        document = self._document(answer)
        listed = self._listed(document)
        page = _WalkedPage(state, walk)
        found: dict[str, Any] = {}
        for item in listed:
            digest = digest_of(identity := self._identity(item), value := self._value(item))
            if found.setdefault(digest, item) != item:
                raise self._wrong(
                    f"two different items have the id {shown(identity)}; give the path to what "
                    "tells items apart with id=, or id='' for their whole content",
                    permanent=True,
                )
            page.take(item, digest, value)
        following = self._following(document, answer, walk, listed)
        if following is not None and (self._since is not None or not page.known(listed)):
            after = page.walked(following)
            if not walk and validators_in(answer):
                after["valid"] = {**validators_in(answer), "of": of}
            if after["walk"]["repeats"] > REPEATS_MAX:
                raise self._wrong(
                    f"{REPEATS_MAX} pages followed each other with nothing new, so they may have "
                    "no end"
                )
            return Found(page.new, after, True, None, allowance)
        after = page.ended()
        valid = state.get("valid") if walk else {**validators_in(answer), "of": of}
        if valid and len(valid) > 1:
            after["valid"] = valid
        return Found(page.new, after, False, wait, allowance, page.passed(self._since is None))

    def _url(self, state: State, walk: Mapping[str, Any]) -> str:
        """The URL of the page to read."""
        at = walk.get("at")
        if isinstance(at, str) and self._next_param is None:
            if _origin(at) == _origin(self._fetch.url):
                return at
            at = None  # of a cursor from before the source got another URL
        params: dict[str, Any] = {}
        if self._since is not None and state.get("since") is not None:
            params[self._since] = state["since"]
        if self._page is not None:
            params[self._page] = self._first_page if at is None else at
        if self._next_param is not None and at is not None:
            params[self._next_param] = at
        return with_params(self._fetch.url, params)

    def _following(
        self, document: Any, answer: HttpAnswer, walk: Mapping[str, Any], listed: Sequence[Any]
    ) -> str | int | None:
        """The URL, the number or the token of the next page; None if there is none."""
        if self._page is not None:
            return (walk.get("at", self._first_page) + 1) if listed else None
        if self._link:
            found: Any = self._linked(answer)
        elif self._next is not None:
            try:
                found = follow(document, self._next)
            except LookupError:
                found = None
        else:
            return None
        if found is None or found == "" or found is False:
            if self._next is not None and self._wants_links and self._linked(answer):
                raise self._wrong(
                    "its Link header names a next page, and there is nothing at `next`; leave next "
                    "out, or give link=False if that page is not wanted",
                    permanent=True,
                )
            return None
        if self._next_param is not None:
            if isinstance(found, bool) or not isinstance(found, (str, int)):
                raise self._wrong("its next page is neither a text nor a number")
            if len(str(found)) > URL_MAX:
                raise self._wrong("the value for its next page is too long")
            if not _is_text(str(found)):
                raise self._wrong("the value for its next page is not valid text")
            return found
        return self._same_origin(found, walk)

    def _linked(self, answer: HttpAnswer) -> str | None:
        return _next_link(answer.headers.get("link", ""))

    def _same_origin(self, found: Any, walk: Mapping[str, Any]) -> str:
        """The URL of the next page. Tokens meant for one host are never sent to another."""
        url = ""
        try:
            url = urljoin(self._fetch.url, found) if isinstance(found, str) else ""
            sound = len(url) <= URL_MAX and url.isprintable()
            same = sound and _origin(url) == _origin(self._fetch.url)
        except ValueError:
            same = False
        if not same:
            raise self._wrong(
                "its next page is not a URL of the same host; with link=False it is left out",
                permanent=True,
            )
        if url == walk.get("at"):
            raise self._wrong("its next page is the same page again")
        return url

    def _document(self, answer: HttpAnswer) -> Any:
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError):
            raise self._wrong("it is not valid JSON") from None

    def _listed(self, document: Any) -> Sequence[Any]:
        try:
            listed = follow(document, self._items or ())
        except LookupError:
            raise self._wrong("it has nothing at `items`") from None
        if listed is None:
            return []
        if not isinstance(listed, list):
            raise self._wrong(f"there is a {type(listed).__name__} at `items`, not a list")
        if len(listed) > ITEMS_MAX:
            raise self._wrong(f"it has more than {ITEMS_MAX:,} items", permanent=True)
        return listed

    def _identity(self, item: Any) -> Any:
        try:
            return follow(item, self._id or ())
        except LookupError:
            return item

    def _value(self, item: Any) -> Any:
        if self._field is None:
            return None
        try:
            value = follow(item, self._field)
        except LookupError:
            value = None
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if isinstance(value, float) and not math.isfinite(value):
            number = False  # nothing would ever come after it
        text = isinstance(value, str) and len(value) <= FIELD_MAX and _is_text(value)
        if not number and not text:
            raise self._wrong("an item has neither a number nor a short text at `field`")
        return value

    def _wrong(self, what: str, *, permanent: bool = False) -> ProbeError:
        kind = ProbeRefused if permanent else ProbeError
        return kind(f"the answer of {shown_url(self._fetch.url)} cannot be used: {what}")


class _WalkedPage:
    """The items of one page: which are new, and the cursor after them.

    A walk over several pages knows what was delivered before it, and what it delivered itself: new
    items move the others to later pages meanwhile.
    """

    def __init__(self, state: State, walk: Mapping[str, Any]) -> None:
        self._state = state
        self._before = dict.fromkeys(state.get("seen", ()))
        self._walked = dict.fromkeys(walk.get("seen", ()))
        self._since = state.get("since")
        self._top = walk.get("top", self._since)
        #: Those with the value `top`.
        self._at_top = dict.fromkeys(walk.get("at_top", self._before))
        self._known = 0
        #: True if the walk came to something that was delivered before it.
        self._met: bool = walk.get("met", False)
        self._repeats_before: int = walk.get("repeats", 0)
        self._again = False
        self.new: list[Any] = []

    def take(self, item: Any, digest: str, value: Any) -> None:
        if value is not None and (self._top is None or _less(self._top, value)):
            self._top = value
            self._at_top.clear()
        old = self._since is not None and value is not None and _less(value, self._since)
        if old or digest in self._before:
            self._known += 1
            return
        if digest not in self._walked:
            self._walked[digest] = None
            self.new.append(item)
        else:
            self._again = True
        if value == self._top:
            self._at_top[digest] = None

    @property
    def _repeats(self) -> int:
        """How many pages in a row repeated items of this walk. Empty pages are not counted."""
        if self.new or self._known:
            return 0
        return self._repeats_before + self._again

    def known(self, listed: Sequence[Any]) -> bool:
        """True if everything on the page was delivered before this walk."""
        return self._known == len(listed)

    def walked(self, following: str | int) -> dict[str, Any]:
        """The cursor in the middle of a walk."""
        walk = {"at": following, "seen": remembered(self._walked, ()), "repeats": self._repeats}
        if self._met or self._known:
            walk["met"] = True
        if self._top is not None:
            walk |= {"top": self._top, "at_top": self._all_at_top()}
        return {**self._state, "walk": walk}

    def ended(self) -> dict[str, Any]:
        """The cursor at the end of a walk."""
        listed = len(self._walked) + self._known
        window = {"window": max(self._state.get("window", 0), listed)}
        if self._top is not None:
            return {"since": self._top, "seen": self._all_at_top(), **window}
        if not self._walked:
            return {"seen": list(self._before), **window}
        return {"seen": remembered(self._walked, self._before), **window}

    def passed(self, newest_first: bool) -> int:
        """How many items the walk found, if it was as long as any before and met nothing known."""
        count = len(self._walked)
        began = self._since is not None or bool(self._before)
        full = count > 1 and count >= self._state.get("window", 0)
        return count if newest_first and began and full and not (self._met or self._known) else 0

    def _all_at_top(self) -> list[str]:
        if len(self._at_top) > REMEMBERED:
            raise ProbeRefused(
                f"more than {REMEMBERED:,} items have the value {shown(self._top)} at `field`; "
                "give a field that tells them apart"
            )
        return list(self._at_top)


def _less(a: Any, b: Any) -> bool:
    if isinstance(a, str) != isinstance(b, str):
        raise ProbeError(
            f"the values of `field` cannot be compared: {shown(a)} and {shown(b)}; they must all "
            "be numbers, or all be texts"
        )
    return bool(a < b)


def _is_text(text: str) -> bool:
    """False for half a surrogate pair, which JSON may contain but no URL."""
    return text.isascii() or not any("\ud800" <= each <= "\udfff" for each in text)


def _path(name: str, given: str | None) -> Path | None:
    if given is None or given == "":
        return None
    if not isinstance(given, str):
        raise ConfigError(
            f"{name} = {shown(given)} is not a JSON path; give text such as 'data.list'"
        )
    try:
        return json_path(given)
    except ConfigError as error:
        raise ConfigError(f"{name} = {error}") from None


def _next_link(header: str) -> str | None:
    for url, params in _LINK.findall(header[: 4 * URL_MAX]):
        if _REL_NEXT.search(params):
            return str(url)
    return None


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, (parts.hostname or "").lower(), port


def with_params(url: str, params: Mapping[str, Any]) -> str:
    """The URL with these query parameters, instead of those it has under these names."""
    if not params:
        return url
    parts = urlsplit(url)
    query = [each for each in parse_qsl(parts.query, True) if each[0] not in params]
    return urlunsplit(parts._replace(query=urlencode([*query, *params.items()])))
