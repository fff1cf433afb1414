"""Probes of Prometheus endpoints and of feeds."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pollwise.errors import ConfigError, ProbeError
from pollwise.fleet.probes import make_probe
from pollwise.fleet.probes.feed import parsed
from pollwise.fleet.targets import Reading, Target
from tests.fleet.probes.kit import Request, page, polled, really, web


def reading(type: str, body: bytes | str, **options: Any) -> Reading:
    async def main() -> Reading:
        async with web(page(body)) as server:
            return await polled(type, url=server.url("/metrics"), **options)

    return really(main)


def failure(type: str, body: bytes | str, **options: Any) -> str:
    async def main() -> str:
        async with web(page(body)) as server:
            with pytest.raises(ProbeError) as raised:
                await polled(type, url=server.url(), **options)
            assert not raised.value.permanent
            return str(raised.value)

    return really(main)


METRICS = r"""
# HELP depth Jobs that wait.
# TYPE depth gauge
depth{queue="mail",store="a\"b\\c\nd"} 3
depth{queue="mail",store="other",} 4.5 1395066363000
depth{ queue = "sms" } 1e3
depth_total 99
plain 7
inf{x="}"} +Inf
nan NaN
broken{x="y} 1
"""


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"metric": "plain"}, "7"),
        ({"metric": "depth", "match": {"queue": "mail"}}, "7.5"),
        ({"metric": "depth", "match": {"store": 'a"b\\c\nd'}}, "3"),
        ({"metric": "depth", "aggregate": "max"}, "1000"),
        ({"metric": "depth", "aggregate": "min"}, "3"),
        ({"metric": "depth", "aggregate": "count"}, "3"),
        ({"metric": "depth", "aggregate": "mean", "match": {"queue": "mail"}}, "3.75"),
        ({"metric": "depth_total"}, "99"),
        ({"metric": "inf"}, "inf"),
        ({"metric": "nan"}, "nan"),
    ],
)
def test_a_metric_is_a_number(options: dict[str, Any], value: str) -> None:
    assert reading("prometheus", METRICS, **options).value == value


def test_a_metric_that_is_not_there_or_cannot_be_read_is_a_failure() -> None:
    said = failure("prometheus", METRICS, metric="depth", match={"queue": "fax"})
    assert 'no sample of depth{queue="fax"}' in said
    assert "line 11 is not a sample" in failure("prometheus", METRICS, metric="broken")
    assert "no sample" in failure("prometheus", b"\x00\xff" * 9999, metric="depth")
    assert "line 1 is not a sample" in failure("prometheus", "x one 2 3", metric="x")
    long = failure("prometheus", 'x{y="' + "z" * 99_999 + '"} 1', metric="x")
    assert "line 1 is longer than" in long


def test_options_of_prometheus_are_checked() -> None:
    with pytest.raises(ConfigError, match="metric is missing"):
        make_probe(Target("t", "prometheus", options={"url": "http://x"}))
    with pytest.raises(ConfigError, match="not a metric name"):
        make_probe(Target("t", "prometheus", options={"url": "http://x", "metric": "a b"}))


RSS = """<?xml version="1.0"?><!DOCTYPE rss PUBLIC "-//Netscape//DTD RSS 0.91//EN" "http://x/y.dtd">
<rss version="2.0"><channel><title>News</title><item><title>Old</title><guid>1</guid>
<pubDate>Tue, 14 Nov 2023 22:13:20 GMT</pubDate><description>AD</description></item>
<item><title>New &amp; <![CDATA[<b>bold</b>]]></title><guid>2</guid>
<pubDate>Tue, 14 Nov 2023 23:13:20 GMT</pubDate></item></channel></rss>"""

ATOM = """<feed xmlns="http://www.w3.org/2005/Atom"><id>feed</id><entry><id>a</id><title>One</title>
<updated>2023-11-14T22:13:20Z</updated><author><id>nested</id></author></entry>
<entry><link href="http://x/2"/><title>Two</title></entry></feed>"""


def test_a_feed_is_which_entries_it_has() -> None:
    found = reading("feed", RSS)
    assert found.facts["entries"] == 2
    assert found.facts["newest"] == "New & <b>bold</b>"
    assert found.changed_at == 1_700_003_600
    assert "New &" in found.summary
    assert reading("feed", RSS.replace("AD", "another")).value == found.value
    assert reading("feed", RSS.replace("<guid>2", "<guid>3")).value != found.value
    assert [each.id for each in parsed(ATOM.encode())] == ["a", "http://x/2"]
    assert reading("feed", ATOM).changed_at == 1_700_000_000


def test_an_unchanged_feed_costs_headers_alone() -> None:
    def answer(request: Request) -> bytes:
        if "if-none-match" in request.headers:
            return b"HTTP/1.1 304 Not Modified\r\n\r\n"
        return page(RSS, etag='"1"')

    async def main() -> None:
        async with web(answer) as server:
            first = await polled("feed", url=server.url())
            second = await polled("feed", first, url=server.url())
            assert second.value == first.value
            assert second.facts["entries"] == 2
            assert second.facts["status"] == 304

    really(main)


LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE rss [<!ENTITY a "ha">'
    + "".join(f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(9))
    + "]><rss><channel><item><title>&j;</title></item></channel></rss>"
)
QUADRATIC = (
    f'<!DOCTYPE rss [<!ENTITY a "{"x" * 50_000}">]><rss><item><title>{"&a;" * 50_000}</title>'
    "</item></rss>"
)
EXTERNAL = (
    '<!DOCTYPE rss [<!ENTITY a SYSTEM "file:///etc/passwd">]><rss><item><title>&a;</title>'
    "</item></rss>"
)
PARAMETER = '<!DOCTYPE rss [<!ENTITY % a SYSTEM "http://127.0.0.1:1/x"> %a;]><rss></rss>'


@pytest.mark.parametrize("bomb", [LAUGHS, QUADRATIC, EXTERNAL, PARAMETER])
def test_a_bomb_is_refused_at_once(bomb: str) -> None:
    began = time.perf_counter()
    assert "entities" in failure("feed", bomb)
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not XML"),
        (b"<html><body>", "not a feed but <html>"),
        (b"<rss><channel>", "not XML"),
        (b"\x00\x01\x02", "not XML"),
        ("<rss>" + "<a>" * 1000, "nested more than"),
        ("<rss>" + "<item/>" * 10_001 + "</rss>", "more than 10,000 entries"),
        (b'<?xml version="1.0" encoding="nonsense"?><rss/>', "unknown encoding"),
        ("<rss>&undefined;</rss>", "not XML"),
    ],
)
def test_an_invalid_feed_is_a_failure(body: Any, said: str) -> None:
    assert said in failure("feed", body)


def test_an_empty_feed_and_odd_dates_are_read() -> None:
    assert reading("feed", "<rss><channel/></rss>").facts["entries"] == 0
    odd = "<rss><item><title>x</title><pubDate>{}</pubDate></item></rss>"
    for date in ("yesterday", "9999999-01-01", "Tue, 99 Nov 2023 99:99:99 GMT", "2023-11-14"):
        assert reading("feed", odd.format(date)).changed_at is None
