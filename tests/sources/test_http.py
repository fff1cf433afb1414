"""Sources over HTTP: pages, politeness, and servers that lie."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pollwise.core.retry import Retry
from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import ConfigError, ProbeError, ProbeRefused, ProbeTimeout
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import Events, WindowPassed
from pollwise.runtime.limits.budget import SharedBudget
from pollwise.runtime.loop import poll
from pollwise.sources import Feed, HttpJson, MemoryCursors, Source
from pollwise.sources.http_json import ITEMS_MAX, REPEATS_MAX, with_params
from pollwise.sources.web import budget_of_host
from tests.fleet.probes.kit import HttpAnswer, Request, Web, page, web
from tests.support.kit import Seen

Answers = Callable[[Request], HttpAnswer]


def really(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    async def within() -> Any:
        async with asyncio.timeout(240):
            return await main()

    return asyncio.run(within())


def asked(answer: bytes | Answers, make: Callable[[Web], Source[Any]], polls: int = 1) -> list[Any]:
    """What polls return or raise."""

    async def main() -> list[Any]:
        found: list[Any] = []
        async with web(answer) as server, make(server) as source:
            for _ in range(polls):
                try:
                    found.append(await source())
                except Exception as error:
                    found.append(error)
        return found

    result: list[Any] = really(main)
    return result


def api(**given: Any) -> Callable[[Web], Source[Any]]:
    return lambda server: HttpJson(server.url("/items"), **given)


def error_of(
    answer: bytes | Answers, make: Callable[[Web], Source[Any]] | None = None
) -> ProbeError:
    [error] = asked(answer, make or api())
    assert isinstance(error, ProbeError), error
    return error


# What the server says.


def test_the_wishes_of_the_server_are_passed_on() -> None:
    reset = int(time.time()) + 100
    headers: dict[str, Any] = {
        "cache_control": "max-age=60", "x_poll_interval": "90", "x_ratelimit_remaining": "7",
        "x_ratelimit_reset": str(reset),
    }  # fmt: skip
    [batch] = asked(page("[]", **headers), api())
    assert batch.not_before == 90
    assert batch.allowance.remaining == 7
    assert batch.allowance.resets_in == pytest.approx(100, abs=20)


def test_304_is_an_empty_poll_which_the_server_may_delay_too() -> None:
    requests: list[dict[str, str]] = []

    def answer(request: Request) -> bytes:
        requests.append(request.headers)
        if request.headers.get("if-none-match") == '"1"':
            return page(b"", "304 Not Modified", 0, x_poll_interval="60")
        return page('[{"id": 1}]', etag='"1"', last_modified="Thu, 01 Jan 2026 00:00:00 GMT")

    first, second, third = asked(answer, api(), 3)
    assert first.items == [{"id": 1}]
    assert (list(second.items), second.not_before) == ([], 60)
    assert list(third.items) == []
    assert "if-none-match" not in requests[0]
    assert requests[1]["if-modified-since"] == "Thu, 01 Jan 2026 00:00:00 GMT"


def test_validators_of_what_was_not_committed_are_not_used() -> None:
    def answer(request: Request) -> bytes:
        if "if-none-match" in request.headers:
            return page(b"", "304 Not Modified", 0)
        return page('[{"id": 1}]', etag='"1"')

    async def main() -> None:
        async with web(answer) as server, HttpJson(server.url()) as source:
            assert len((await source()).items) == 1
            source.begin_polling()
            assert len((await source()).items) == 1, "it was delivered to nobody who took it"
            assert len((await source()).items) == 0

    really(main)


@pytest.mark.parametrize(
    ("status", "headers", "wait"),
    [
        ("429 Too Many Requests", {"retry_after": "7"}, 7.0),
        ("429 Too Many Requests", {}, 0.0),
        ("503 Service Unavailable", {"retry_after": "7"}, 7.0),
        ("403 Forbidden", {"x_ratelimit_remaining": "0", "x_ratelimit_reset": "9"}, 9.0),
        ("403 Forbidden", {"retry_after": "60", "x_ratelimit_remaining": "4999"}, 60.0),
    ],
)
def test_a_refusal_for_now_says_until_when(
    status: str, headers: dict[str, str], wait: float
) -> None:
    error = error_of(page("", status, None, **headers))
    assert (error.retry_after, getattr(error, "permanent", False)) == (wait, False)


def test_a_poller_goes_on_after_a_secondary_limit() -> None:
    """GitHub answers 403 with Retry-After, and says that much of the other limit is left."""
    requests: list[str] = []

    def answer(request: Request) -> bytes:
        requests.append(request.path)
        if len(requests) == 1:
            return page("", "403 Forbidden", retry_after="1", x_ratelimit_remaining="4999")
        return page('[{"id": 1}]')

    async def main() -> None:
        async with web(answer) as server, HttpJson(server.url()) as source:
            budget = SharedBudget(1000, "1s", burst=1000, max_retry_after="1ms")
            loop = poll(
                source,
                Fixed("1ms"),
                retry=Retry.fixed("1ms", attempts=5),
                max_retry_after="1ms",
                budget=budget,
                events=Events(quiet=True),
            )
            assert await anext(loop) == [{"id": 1}]
            assert budget.state()["refusals"] == 1

    really(main)
    assert len(requests) == 2


def test_a_refusal_of_one_source_slows_down_all_of_its_host() -> None:
    async def main() -> None:
        async with web(page("", "429 Too Many Requests")) as server:
            one, other = HttpJson(server.url("/a")), HttpJson(server.url("/b"))
            async with one, other:
                assert one.budget is other.budget
                assert one.budget is budget_of_host(server.url("/c"))
                own = SharedBudget(5)
                assert HttpJson(server.url(), budget=own).budget is own
                loop = poll(
                    one,
                    Fixed("1ms"),
                    events=Events(quiet=True),
                    retry=Retry.fixed("1ms", attempts=3),
                )
                with pytest.raises(ProbeError):
                    await anext(loop)
                state = other.budget.state()
                assert state["refusals"] == 3
                assert float(state["rate"] or 0) <= 5.0

    really(main)
    assert budget_of_host("http://user:pw@h.example/x") is budget_of_host("http://h.example/y")


def test_the_next_page_follows_at_once_but_not_past_what_is_left() -> None:
    def answer(request: Request) -> bytes:
        if "page=2" in request.path:
            return page('[{"id": 2}]', cache_control="max-age=60")
        return page('[{"id": 1}]', link='</items?page=2>; rel="next"', cache_control="max-age=60")

    first, second = asked(answer, api(link=True), 2)
    assert (first.capacity, first.not_before) == (1, None)
    assert (second.capacity, second.not_before) == (None, 60)


# Pages.


def test_a_link_to_the_next_page_is_followed_unless_another_way_is_given() -> None:
    def answer(request: Request) -> bytes:
        if "page=2" in request.path:
            return page('{"list": [{"id": 2}]}')
        return page('{"list": [{"id": 1}]}', link='</items?page=2>; rel="next"')

    items: list[list[Any]] = []
    for given in ({}, {"link": True}, {"link": False}, {"link": False, "next": "no.such"}):
        items.append([each.items for each in asked(answer, api(items="list", **given), 2)])
    assert items == [[[{"id": 1}], [{"id": 2}]]] * 2 + [[[{"id": 1}], []]] * 2
    error = error_of(answer, api(items="list", next="no.such"))
    assert "its Link header names a next page, and there is nothing at `next`" in str(error)


def test_two_different_items_with_one_id_are_an_error() -> None:
    events = [{"type": "Push", "n": 1}, {"type": "Push", "n": 2}]
    error = error_of(page(json.dumps(events)), api(id="type"))
    assert isinstance(error, ProbeRefused)
    assert "two different items have the id 'Push'" in str(error)
    assert "id=''" in str(error)
    [batch] = asked(page(json.dumps([*events, events[0]])), api(id=""))
    assert batch.items == events, "the same item twice is one"
    changes = [{"id": 1, "at": 2}, {"id": 1, "at": 1}]
    [batch] = asked(page(json.dumps(changes)), api(field="at"))
    assert batch.items == changes, "one item, changed twice"


class Window:
    """Lists the newest `size` numbers, `per` on a page, and adds some at each poll."""

    def __init__(self, size: int, per: int, *added: int, feed: bool = False) -> None:
        self.size, self.per, self.added, self.feed = size, per, list(added), feed
        self.count = 0

    def __call__(self, request: Request) -> bytes:
        start = int(request.path.partition("from=")[2] or 0)
        if not start:
            self.count += self.added.pop(0) if self.added else 0
        oldest = max(self.count - self.size, 0)
        numbers = list(range(self.count, oldest, -1))
        if self.feed:
            entries = "".join(f"<item><guid>{n}</guid></item>" for n in numbers)
            return page(f"<rss><channel>{entries}</channel></rss>", kind="text/xml")
        more: dict[str, Any] = {}
        if start + self.per < len(numbers):
            more["link"] = f"<?from={start + self.per}>; rel=next"
        return page(json.dumps([{"id": n} for n in numbers[start : start + self.per]]), **more)


@pytest.mark.parametrize("feed", [False, True])
@pytest.mark.parametrize(
    ("added", "told"),
    [
        ((3, 5, 2, 9), []),  # the list grows to ten, and the last nine still meet a known one
        ((10, 10), [10]),
        ((10, 4, 25, 3, 30), [10, 10]),
        ((40,), []),  # nobody promises what was before the first poll
    ],
)
def test_items_that_left_the_servers_list_unseen_are_told(
    added: tuple[int, ...], told: list[int], feed: bool
) -> None:
    window = Window(10, 4, *added, feed=feed)
    seen = Seen()

    async def main() -> None:
        kind = Feed if feed else HttpJson
        async with web(window) as server, kind(server.url("/items")) as source:
            loop = poll(source, Fixed("1ms"), events=seen.events, budget=SharedBudget(10**6, "1s"))
            while window.added:
                await loop.poll_once()
            for _ in range(4):
                await loop.poll_once()

    really(main)
    assert [event.listed for event in seen.of(WindowPassed)] == told


def test_what_moves_to_a_later_page_meanwhile_comes_once_and_nothing_is_lost() -> None:
    items = [{"id": n} for n in range(12)]

    def answer(request: Request) -> bytes:
        start = int(request.path.partition("from=")[2] or 0)
        newest = items[::-1][start : start + 4]
        last = start + 4 >= len(items)
        # Five new ones come between two pages: a whole page is known from this walk alone.
        items.extend({"id": len(items)} for _ in range(5 if len(items) < 20 else 0))
        more: dict[str, Any] = {} if last else {"link": f"<?from={start + 4}>; rel=next"}
        return page(json.dumps(newest), **more)

    async def main() -> list[int]:
        found: list[int] = []
        async with web(answer) as server, HttpJson(server.url("/items"), link=True) as source:
            for _ in range(20):
                found += [item["id"] for item in (await source()).items]
        return found

    found = really(main)
    assert sorted(found) == list(range(len(items)))


def test_an_item_comes_again_when_its_field_changes() -> None:
    items = [{"id": 1, "v": 1}, {"id": 2, "v": 2}]

    async def main() -> list[Any]:
        found: list[Any] = []
        async with web(lambda _: page(json.dumps(items[::-1]))) as server:
            async with HttpJson(server.url(), field="v") as source:
                found.append((await source()).items)
                items[0]["v"] = 3
                items.append({"id": 3, "v": 3})
                items.append({"id": 4, "v": 1})  # late, and below what was seen
                found.append((await source()).items)
                found.append((await source()).items)
        return found

    assert really(main) == [
        [{"id": 2, "v": 2}, {"id": 1, "v": 1}],
        [{"id": 3, "v": 3}, {"id": 1, "v": 3}],
        [],
    ]


def test_items_without_an_id_are_known_by_their_content() -> None:
    first, second = asked(page('[{"a": 1}, {"a": 1}, 5, "x", null]'), api(), 2)
    assert list(first.items) == [{"a": 1}, 5, "x", None]
    assert list(second.items) == []


def test_a_url_gets_parameters() -> None:
    assert with_params("http://h/p?a=1&b=2", {"b": "x y", "c": 3}) == "http://h/p?a=1&b=x+y&c=3"
    assert with_params("http://h/p", {}) == "http://h/p"


def test_headers_and_bodies_are_sent() -> None:
    got: list[Request] = []

    def answer(request: Request) -> bytes:
        got.append(request)
        return page("[]")

    asked(answer, api(headers={"Authorization": "Bearer t"}, method="post", body='{"q": 1}'))
    assert (got[0].method, got[0].body) == ("POST", b'{"q": 1}')
    assert got[0].headers["authorization"] == "Bearer t"


# Servers that lie.


@pytest.mark.parametrize(
    ("answer", "given", "said"),
    [
        (page("no"), {}, "not valid JSON"),
        (page("[" * 100_000), {}, "not valid JSON"),
        (page("{}"), {"items": "a.b"}, "nothing at `items`"),
        (page('{"a": {"b": 5}}'), {"items": "a.b"}, "int"),
        (page(json.dumps([0] * (ITEMS_MAX + 1))), {}, "more than 10,000 items"),
        (page('[{"id": 1}]'), {"field": "v"}, "`field`"),
        (page('[{"id": 1, "v": true}]'), {"field": "v"}, "`field`"),
        (page(json.dumps([{"v": "x" * 501}])), {"field": "v"}, "`field`"),
        (page('[{"id": 1, "v": NaN}]'), {"field": "v"}, "`field`"),
        (page('[{"id": 1, "v": 1e999}]'), {"field": "v"}, "`field`"),
        (page('[{"id": 1, "v": "\\ud800"}]'), {"field": "v"}, "`field`"),
        (page('[{"v": 1}, {"v": "a"}]'), {"field": "v"}, "cannot be compared"),
        (page("[1]" + " " * 2000), {"max_bytes": 1000}, "1,000 bytes"),
        (page(gzip.compress(b" " * 10**7), content_encoding="gzip"), {}, "bytes"),
        (page("[1]", link="<http://evil.example/>; rel=next"), {"link": True}, "same host"),
        (page("[1]", link="<//evil.example/>; rel=next"), {"link": True}, "same host"),
        (page("[1]", link="<file:///etc/passwd>; rel=next"), {"link": True}, "same host"),
        (page("[1]", link="<http://[::1/>; rel=next"), {"link": True}, "same host"),
        (page('{"i": [1], "n": {}}'), {"items": "i", "next": "n"}, "same host"),
        (page('{"i": [1], "n": "/\\ud800"}'), {"items": "i", "next": "n"}, "same host"),
        (page('{"i": [1], "n": "/\\u0001"}'), {"items": "i", "next": "n"}, "same host"),
        (
            page('{"i": [1], "n": "\\ud800"}'),
            {"items": "i", "next": "n", "next_param": "p"},
            "not valid text",
        ),
        (page('{"i": [1], "n": true}'), {"items": "i", "next": "n", "next_param": "p"}, "neither"),
        (
            page(json.dumps({"i": [1], "n": "x" * 5000})),
            {"items": "i", "next": "n", "next_param": "p"},
            "too long",
        ),
    ],
)
def test_an_answer_that_cannot_be_used_is_an_error(
    answer: bytes, given: dict[str, Any], said: str
) -> None:
    error = error_of(answer, api(**given))
    assert str(error)
    assert re.search(said, str(error)), str(error)


def test_a_page_that_is_its_own_next_page_is_an_error() -> None:
    items = iter(range(100))

    def answer(_: Request) -> bytes:
        return page(json.dumps([next(items)]), link='</items?p=2>; rel="next"')

    found = asked(answer, api(link=True), 3)
    assert isinstance(found[2], ProbeError)
    assert "the same page" in str(found[2])


@pytest.mark.parametrize("given", [{"link": True}, {"page": "p"}])
def test_pages_that_go_in_a_circle_are_an_error(given: dict[str, Any]) -> None:
    def answer(request: Request) -> bytes:
        there = "a" if request.path.endswith("b") else "b"
        return page('[{"id": 1}, {"id": 2}]', link=f'</items?{there}>; rel="next"')

    found = asked(answer, api(**given, budget=SharedBudget(1000, "1s")), REPEATS_MAX + 2)
    assert [len(each.items) for each in found[:-1]] == [2] + [0] * REPEATS_MAX
    assert isinstance(found[-1], ProbeError)
    assert "nothing new" in str(found[-1])


def test_too_many_items_with_one_value_are_an_error_not_a_repetition() -> None:
    ids = iter(range(100_000))

    def answer(request: Request) -> bytes:
        return page(json.dumps([{"id": next(ids), "v": 1} for _ in range(6000)]))

    found = asked(answer, api(field="v", page="p", since="s"), 2)
    assert len(found[0].items) == 6000
    assert isinstance(found[1], ProbeRefused)
    assert "the value 1 at `field`" in str(found[1])


def test_a_server_that_drips_is_cut_off() -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.01)  # real time: the server drips

    error = error_of(lambda _: drip, api(timeout="200ms"))
    assert isinstance(error, ProbeTimeout)
    assert "within 0.2 s" in str(error)


def test_no_error_shows_a_secret() -> None:
    def make(server: Web) -> Source[Any]:
        url = server.url("/items?token=hunter2").replace("://", "://me:hunter2@")
        return HttpJson(url, headers={"authorization": "Bearer hunter2"})

    for answer in (page("no"), page("", "401 Unauthorized"), page("", "503 Gone")):
        error = error_of(answer, make)
        assert "hunter2" not in f"{error} {error!r}"

    async def main() -> str:
        async with web(page("[]")) as server:
            return make(server).name

    assert "hunter2" not in really(main)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"link": True, "page": "p"}, "contradict"),
        ({"next_param": "p"}, "next_param needs next"),
        ({"since": "p"}, "since needs field"),
        ({"items": ["data"]}, "is not a JSON path; give text"),
        ({"budget": 10}, "budget = 10 is not a SharedBudget"),
        ({"max_bytes": "8MB"}, "max_bytes = '8MB' must be a number of bytes"),
        ({"items": "a..b"}, "items = .*not a JSON path"),
        ({"headers": {"a b": "x"}}, "headers"),
        ({"hedaers": {}}, "did you mean headers"),
        ({"timeout": 0}, "timeout"),
        ({"limit": 5}, "max_bytes"),
        ({"cursor": "redis://x"}, "no cursor has the scheme"),
        ({"cursor": "sqlite:///"}, "sqlite:///relative.db"),
        ({"cursor": 5}, "CursorStore"),
    ],
)
def test_options_that_are_wrong_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        HttpJson("http://h.example/", **given)


def test_the_url_must_be_one_of_http() -> None:
    with pytest.raises(ConfigError, match=r"HttpJson: url = 'ftp://h' must begin with http"):
        HttpJson("ftp://h")


# Feeds.

ENTRY = (
    "<item><guid>{0}</guid><title>t{0}</title>"
    "<pubDate>Thu, 0{0} Jan 2026 00:00:00 GMT</pubDate></item>"
)


def feed(*numbers: int) -> bytes:
    entries = "".join(ENTRY.format(n) for n in numbers)
    return page(f"<rss><channel>{entries}</channel></rss>")


def test_the_entries_of_a_feed_come_oldest_first_and_once() -> None:
    answers = [feed(3, 2, 1), feed(4, 3), feed(4, 3, 2, 1)]
    found = asked(lambda _: answers.pop(0), lambda server: Feed(server.url()), 3)
    assert [[entry.id for entry in batch.items] for batch in found] == [["1", "2", "3"], ["4"], []]
    assert found[0].items[0].texts["title"] == "t1"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("no", "not XML"),
        ("<html></html>", "not a feed"),
        ('<!DOCTYPE r [<!ENTITY a "x">]><rss/>', "entities"),
        (
            '<!DOCTYPE r [<!ENTITY a SYSTEM "file:///etc/passwd">]><rss><item>&a;</item></rss>',
            "entit",
        ),
        ('<!DOCTYPE r [<!ATTLIST a b CDATA "x">]><rss><a/></rss>', "default values"),
        ("<rss>" + "<a>" * 200, "deep"),
        ("<rss>" + "<item/>" * 10_001 + "</rss>", "10,000 entries"),
    ],
)
def test_a_feed_that_is_none_or_a_bomb_is_an_error(body: str, said: str) -> None:
    assert said in str(error_of(page(body), lambda server: Feed(server.url())))


# In the loop.


def test_in_the_loop_a_source_brings_its_name_and_budget() -> None:
    source = HttpJson("http://h.example/x")
    loop = poll(source, Fixed("1s"), clock=VirtualClock())
    assert loop.name == source.name
    assert loop._options.budget is source.budget
    own = SharedBudget(1)
    assert poll(source, Fixed("1s"), budget=own, name="n")._options.budget is own
    assert source.name == "httpjson:http://h.example/x"


def test_a_cursor_of_another_host_is_not_followed() -> None:
    async def main() -> None:
        cursors = MemoryCursors()
        await cursors.save("mine", '{"walk": {"at": "http://evil.example/x"}}', None)
        async with web(page('[{"id": 1}]')) as server:
            url = server.url("/items")
            async with HttpJson(url, link=True, cursor=cursors, name="mine") as source:
                assert len((await source()).items) == 1

    really(main)
