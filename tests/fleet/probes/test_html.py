"""The HTML probe: what it selects, what changed, and pages that are made to harm."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pollwise.errors import ConfigError, ProbeError
from pollwise.fleet import Fleet, FleetRunOptions
from pollwise.fleet.probes import make_probe
from pollwise.fleet.probes.html import reading as readers
from pollwise.fleet.probes.html.child import CONTENT_MAX, DIFF_MAX, answered, diff_of
from pollwise.fleet.probes.html.reading import PageReaders
from pollwise.fleet.probes.kept import shared
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.fleet.targets import Reading, Target
from pollwise.runtime.events import Events, TargetPolled
from tests.fleet.probes.kit import Request, page, poll, polled, really, web

SHOP = """<!doctype html><html><head><title>Lamp</title><style>.x{}</style></head><body>
<div class=price>  12,<b>50</b>\n €  <script>var now = 17</script></div>
<ul><li>red<li>blue <i>and</i> green</ul>
<table><tr><td>in stock</td><td>7</td></tr></table>
<a class=next href="/2?session=abc">next</a></body></html>"""


def said(text: str, selector: str, **options: Any) -> dict[str, Any]:
    """The answer of the process that parses, in this process."""
    request = {"selector": selector, "attribute": None, **options}
    return answered(request, text.encode())


def test_text_is_as_people_see_it() -> None:
    assert said(SHOP, ".price")["value"] == "12,50 €"
    assert said(SHOP, "li")["value"] == "red\nblue and green"
    assert said(SHOP, "tr")["value"] == "in stock 7"
    assert said(SHOP, "body")["value"].splitlines() == [
        "12,50 €", "red", "blue and green", "in stock 7", "next",
    ]  # fmt: skip
    assert said(SHOP, "title")["value"] == "Lamp"
    assert said("<p>a<div>b</div>c\x1b[31m\u202ed", "body")["value"] == "a\nb\nc [31m d"
    assert said(SHOP, "a.next", attribute="href")["value"] == "/2?session=abc"
    assert said(SHOP, ".nothing") == {"matches": 0}
    assert said(SHOP, "li", attribute="href") == {"matches": 0}


def test_parts_are_ignored_and_extracted() -> None:
    assert said(SHOP, "a.next", attribute="href", ignore=["[?&]session=[^&]*"])["value"] == "/2"
    assert said(SHOP, "body", ignore=["^in stock.*$", "(?i)NEXT"])["value"].endswith("green")
    assert said(SHOP, "tr", regex=r"(\d+)$")["value"] == "7"
    assert said(SHOP, "tr", regex=r"^\d+$") == {"matches": 1, "unmatched": True}


def test_the_encoding_is_that_of_the_server_or_of_the_page() -> None:
    latin = '<meta charset="iso-8859-1"><p>ä'.encode("latin-1")
    request = {"selector": "p", "attribute": None}
    assert answered(request, latin)["value"] == "ä"
    assert answered({**request, "encoding": "utf-8"}, latin)["value"] == "\ufffd"
    for name in ("no-such", "zip", "utf-16", "idna", "rot13"):
        raw = f'<meta charset="{name}"><p>a'.encode()
        assert answered(request, raw)["value"] == "a"


@pytest.mark.parametrize(
    ("before", "after", "diff"),
    [
        ("a\nb\nc\nd", "a\nb\nx\nd", " b\n-c\n+x\n d"),
        ("a", "a\nb", " a\n+b"),
        ("", "a", "-\n+a"),
        ("a\n-- b", "a\n++ c", " a\n--- b\n+++ c"),
        ("a\n@@ b", "a", " a\n-@@ b"),
        ("1\n2\n3\n4\n5\n6\n7", "0\n2\n3\n4\n5\n6\n8", "-1\n+0\n 2\n…\n 6\n-7\n+8"),
    ],
)
def test_a_diff_shows_what_changed(before: str, after: str, diff: str) -> None:
    assert diff_of(before, after) == diff


def test_a_diff_is_bounded_in_size_and_time() -> None:
    many = "\n".join("ab"[n % 2] for n in range(CONTENT_MAX // 2))
    other = "\n".join("ba"[n % 3 % 2] for n in range(CONTENT_MAX // 2))
    began = time.process_time()
    for before, after in ((many, other), (many, "x"), ("ä" * CONTENT_MAX, "ö" * CONTENT_MAX)):
        found = diff_of(before, after)
        assert 0 < len(found.encode()) <= DIFF_MAX
    assert "more lines" in diff_of(many, "x")
    assert time.process_time() - began < 5


def changing(*bodies: str) -> Callable[[Request], bytes]:
    """A server whose page is the next one at each request."""
    left = list(bodies)
    return lambda _: page(left.pop(0) if len(left) > 1 else left[0])


def test_a_change_comes_with_a_diff_that_stays_until_the_next() -> None:
    async def main() -> None:
        first, second = SHOP, SHOP.replace("red", "black")
        async with web(changing(first, first, second, second)) as server:
            target = Target("t", "html", options={"url": server.url(), "selector": "li"})
            one = await poll(target)
            assert (one.value, one.content, one.diff) == (
                "red\nblue and green",
                "red\nblue and green",
                "",
            )
            two = await poll(target, one)
            assert (two.value, two.diff) == (one.value, "")
            three = await poll(target, two)
            assert three.diff == "-red\n+black\n blue and green"
            assert (three.facts["matches"], three.facts["length"]) == (2, 20)
            assert three.summary.startswith("200, black…, ")
            four = await poll(target, three)
            assert (four.value, four.diff) == (three.value, three.diff)
            # With another selector, the old text is not compared.
            other = Target("t", "html", options={"url": server.url(), "selector": "td"})
            assert (await poll(other, four)).diff == ""

    really(main)


def test_an_unchanged_answer_keeps_the_text_and_the_diff() -> None:
    def answer(request: Request) -> bytes:
        if request.headers.get("if-none-match") == '"1"':
            return page(status="304 Not Modified", etag='"1"')
        return page(SHOP, etag='"1"')

    async def main() -> None:
        async with web(answer) as server:
            target = Target("t", "html", options={"url": server.url(), "selector": "li"})
            one = await poll(target)
            two = await poll(target, Reading.restored(one.kept()))
            assert two.facts["status"] == 304
            assert (two.value, two.content) == (one.value, one.content)

    really(main)


def test_a_long_text_is_compared_whole_and_kept_in_part() -> None:
    async def main() -> None:
        long = "".join(f"<p>line {n}</p>" for n in range(5000))
        async with web(changing(long, long + "<p>end</p>")) as server:
            target = Target("t", "html", options={"url": server.url(), "selector": "body"})
            one = await poll(target)
            assert str(one.value).startswith("sha256:")
            assert len(one.content.encode()) <= CONTENT_MAX
            two = await poll(target, one)
            assert two.value != one.value
            assert two.diff == "(the change is not in the first 32 KiB, which are compared)"

    really(main)


def test_nothing_selected_is_a_failure_unless_it_is_optional() -> None:
    async def main() -> None:
        async with web(page(SHOP)) as server:
            with pytest.raises(ProbeError, match=r"no element matches '\.sold-out'") as raised:
                await polled("html", url=server.url(), selector=".sold-out")
            assert not raised.value.permanent
            with pytest.raises(ProbeError, match="does not match"):
                await polled("html", url=server.url(), selector="li", regex="black")
            found = await polled("html", url=server.url(), selector=".sold-out", optional=True)
            assert (found.value, found.facts["matches"]) == ("", 0)

    really(main)


def test_a_hostile_page_is_given_up_and_the_next_one_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes minutes to parse; meanwhile the loop goes on, and another page is read."""
    slow = "<p " + " ".join(f"a{n}=1" for n in range(120_000)) + ">"

    async def main() -> None:
        async with web(lambda r: page(slow if r.path == "/slow" else SHOP)) as server:
            monkeypatch.setattr(readers, "READ_WITHIN", 3.0)
            hanging = asyncio.ensure_future(polled("html", url=server.url("/slow"), selector="p"))
            others = 0
            while not hanging.done():
                others += bool((await polled("html", url=server.url(), selector="li")).value)
            assert others > 1
            with pytest.raises(ProbeError, match="takes longer than") as raised:
                await hanging
            assert not raised.value.permanent
            assert (await polled("html", url=server.url(), selector="li")).value
            with pytest.raises(TimeoutError):  # the fleet's own deadline
                await polled("html", timeout=0.5, url=server.url("/slow"), selector="p")
            assert len(shared(PageReaders, PageReaders)._idle) <= 1  # its process was killed

    really(main)


def test_processes_are_reused_and_end_with_the_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    def idle() -> asyncio.subprocess.Process:
        (reader,) = shared(PageReaders, PageReaders)._idle
        assert reader._process is not None
        return reader._process

    async def main() -> set[int]:
        seen = set()
        async with web(page(SHOP)) as server:
            for _ in range(3):
                await polled("html", url=server.url(), selector="li")
                seen.add(idle().pid)
            # One that died is replaced; the poll that met it fails once.
            died = idle()
            died.kill()
            await died.wait()
            with pytest.raises(ProbeError, match="ended while it parsed"):
                await polled("html", url=server.url(), selector="li")
            assert (await polled("html", url=server.url(), selector="li")).value
            seen.add(idle().pid)
        return seen

    pids = really(main)
    assert len(pids) == 2
    monkeypatch.setenv("DB_PASSWORD", "hunter2")
    assert "DB_PASSWORD" not in readers._environment()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(
    "body",
    [
        "", "<", "<p", "\0" * 1000, "<div>" * 5_000, "<p>" + "&lt;" * 50_000,
        "<table><tr><td>" * 500, "<svg><foreignObject>" * 500, "<!--" * 1000, "\ud800<p>x</p>",
    ],
    ids=range(10),
)  # fmt: skip
def test_broken_pages_do_no_harm(body: str) -> None:
    found = answered(
        {"selector": "p, div, td", "attribute": None}, body.encode("utf-8", "surrogatepass")
    )
    assert found["matches"] >= 0
    assert len(found.get("content", "").encode()) <= CONTENT_MAX


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "selector is missing"),
        ({"selector": "p:nonsense("}, "selector = 'p:nonsense(' is not a CSS selector"),
        ({"selector": "p", "ignore": ["("]}, "ignore = '('"),
        ({"selector": "p", "ignore": [1]}, "ignore must be a list of texts"),
        ({"selector": "p", "regex": r"(a)\1"}, "regex = "),
        ({"selector": "p", "optional": "yes"}, "optional = 'yes' must be true or false"),
        ({"selector": "p", "method": "post"}, "method is not an option"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make_probe(Target("t", "html", options={"url": "https://shop.example/", **options}))
    assert told in str(raised.value)


def test_text_and_diff_are_bounded_and_kept_only_where_they_are_used() -> None:
    reading = Reading("v", content="ä" * CONTENT_MAX, diff="-a\n+b" * 2000)
    assert len(reading.content.encode()) == CONTENT_MAX
    assert len(reading.diff.encode()) == DIFF_MAX
    assert Reading.restored(reading.kept()) == reading
    assert set(Reading("v").kept()) == {"value"}


def test_a_fleet_compares_with_the_text_from_before_its_restart(tmp_path: Path) -> None:
    async def polled_by_a_fleet(url: str) -> str | None:
        polled, events = asyncio.Event(), Events()
        events.subscribe(lambda _: polled.set(), TargetPolled)
        store = SqliteFleetStore(tmp_path / "fleet.db")
        fleet = Fleet(FleetRunOptions(signals=False), store=store, events=events)
        fleet.add(Target("t", "html", "10ms", options={"url": url, "selector": "p"}))
        running = asyncio.ensure_future(fleet.run())
        await polled.wait()
        fleet.stop()
        await running
        await store.close()
        return fleet.target("t").diff

    async def main() -> None:
        bodies = ["<p>one</p>"]
        async with web(lambda _: page(bodies[0])) as server:
            assert not await polled_by_a_fleet(server.url())
            bodies[0] = "<p>two</p>"
            assert await polled_by_a_fleet(server.url()) == "-one\n+two"

    really(main)
