"""Probes over HTTP against real servers, honest and hostile."""

from __future__ import annotations

import asyncio
import gzip
import logging
import ssl
import time
import zlib
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import SpanKind

from pollwise.errors import ConfigError, ProbeError
from pollwise.fleet.probes import host_of, make_probe
from pollwise.fleet.probes.http.certificates import days_left
from pollwise.fleet.probes.kept import connections
from pollwise.fleet.targets import Reading, Target
from tests.fleet.probes.kit import HttpAnswer, Request, certificate, page, polled, really, web
from tests.support.daemons import HOST
from tests.support.proxy import Proxy
from tests.support.traces import Traces, header_of

ETAG = '"v1"'


def failure(**options: Any) -> ProbeError:
    """How a poll of a server that gives this answer fails."""
    answer = options.pop("answer")

    async def main() -> ProbeError:
        async with web(answer) as server:
            with pytest.raises(ProbeError) as raised:
                await polled("http", **{"url": server.url(), **options})
            return raised.value

    return really(main)


def reading(answer: Any, **options: Any) -> Reading:
    async def main() -> Reading:
        async with web(answer) as server:
            return await polled("http", **{"url": server.url(), **options})

    return really(main)


def refusal(**options: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        make_probe(Target("t", "http", options=options))
    return str(raised.value)


# What is read


def test_a_page_is_its_digest_and_its_facts() -> None:
    same = reading(page("hello")), reading(page("hello"))
    other = reading(page("hullo"))
    assert same[0].value == same[1].value != other.value
    assert same[0].facts["status"] == 200
    assert same[0].facts["bytes"] == 5
    assert same[0].summary.startswith("200, 5 bytes")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("a.b[0].c", "x"),
        ("a.b[-1]", "true"),
        ('a["odd.name"]', "1.5"),
        ("a", '{"b": [{"c": "x"}, true], "odd.name": 1.5}'),
    ],
)
def test_a_json_path_picks_a_value(path: str, value: str) -> None:
    body = '{"a": {"odd.name": 1.5, "b": [{"c": "x"}, true]}, "noise": 1}'
    assert reading(page(body), json=path).value == value


@pytest.mark.parametrize("path", ["a.x", "a.b[7]", "a.b.c", "a[0]", "[0]"])
def test_a_json_path_that_leads_nowhere_is_a_failure_that_may_pass(path: str) -> None:
    error = failure(answer=page('{"a": {"b": [1]}}'), json=path)
    assert not error.permanent
    assert f"nothing at {path}" in str(error)


@pytest.mark.parametrize("body", ["<html>", "[" * 100_000, "9" * 5000 + "x", b"\xff\xfe\x00"])
def test_invalid_json_is_a_failure(body: Any) -> None:
    assert "not valid JSON" in str(failure(answer=page(body), json="a"))


def test_a_regex_group_picks_a_value_in_the_encoding_of_the_page() -> None:
    body = "version: Größe 7\n".encode("latin-1")
    answer = page(body, content_type="text/plain; charset=latin-1")
    assert reading(answer, regex=r"^version: (\pL+) \d$").value == "Größe"
    assert reading(answer, regex=r"\d").value == "7"
    assert "does not match" in str(failure(answer=answer, regex="nowhere"))


def test_only_the_status_may_be_the_reading() -> None:
    found = reading(page("x", "404 Not Found"), expect=[200, 404], reading="status")
    assert found.value == "404"


def test_head_reads_only_headers() -> None:
    answer = page(b"", length=10_000_000, etag=ETAG)
    found = reading(answer, method="head")
    assert found.value == f"200 {ETAG}  10000000"


def test_a_post_sends_its_body_and_is_not_conditional() -> None:
    async def main() -> None:
        async with web(page("x", etag=ETAG)) as server:
            first = await polled("http", url=server.url(), method="post", body="{}")
            await polled("http", first, url=server.url(), method="post", body="{}")
            assert [each.body for each in server.requests] == [b"{}", b"{}"]
            assert "if-none-match" not in server.requests[1].headers

    really(main)


# News only


def test_an_unchanged_page_costs_headers_alone() -> None:
    modified = formatdate(1_700_000_000, usegmt=True)

    def answer(request: Request) -> bytes:
        if request.headers.get("if-none-match") == ETAG:
            assert request.headers["if-modified-since"] == modified
            return b'HTTP/1.1 304 Not Modified\r\netag: "v1"\r\n\r\n'
        return page("body", etag=ETAG, last_modified=modified)

    async def main() -> None:
        async with web(answer) as server:
            first = await polled("http", url=server.url())
            # As it comes back from a store.
            second = await polled("http", Reading.restored(first.kept()), url=server.url())
            third = await polled("http", second, url=server.url())
            assert first.changed_at == 1_700_000_000
            for each in (second, third):
                assert (each.value, each.changed_at) == (first.value, first.changed_at)
                assert each.facts["status"] == 304
            # Another way of reading the same page has to read it.
            other = await polled("http", third, url=server.url(), regex="b")
            assert other.value == "b"
            assert other.facts["status"] == 200
            assert server.connections == 1

    really(main)


def test_an_unrequested_304_is_a_failure() -> None:
    assert "304" in str(failure(answer=b"HTTP/1.1 304 Not Modified\r\n\r\n"))


# Which failures may pass


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_these_may_pass(status: int) -> None:
    error = failure(answer=page("", f"{status} X"))
    assert not error.permanent
    assert str(status) in str(error)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 410, 451])
def test_these_are_for_good(status: int) -> None:
    assert failure(answer=page("", f"{status} X")).permanent


def test_a_used_up_limit_is_a_refusal_for_now_also_as_403() -> None:
    used_up = {"x_ratelimit_remaining": "0", "x_ratelimit_reset": "90"}
    for status, headers, permanent, wait in (
        ("403 Forbidden", used_up, False, 90.0),
        ("429 Too Many Requests", used_up, False, 90.0),
        ("429 Too Many Requests", {}, False, 0.0),
        ("403 Forbidden", {**used_up, "x_ratelimit_remaining": "1"}, True, None),
        ("403 Forbidden", {}, True, None),
        ("503 Service Unavailable", {}, False, None),
    ):
        error = failure(answer=page("", status, None, **headers))
        assert (error.permanent, error.retry_after) == (permanent, wait), status


def test_retry_after_is_in_seconds() -> None:
    def after(value: str) -> float | None:
        return failure(answer=page("", "429 X", retry_after=value)).retry_after

    assert after("120") == 120
    assert after(formatdate(time.time() + 60, usegmt=True)) == pytest.approx(60, abs=5)
    assert after(formatdate(time.time() - 60, usegmt=True)) == 0
    assert after("9" * 30) == 86400
    assert after("soon") == 0  # a refusal for now that does not say for how long


def test_a_closed_port_is_transient() -> None:
    async def main() -> None:
        async with web(page()) as server:
            url = server.url()
        with pytest.raises(ProbeError, match="could not connect") as raised:
            await polled("http", url=url)
        assert not raised.value.permanent

    really(main)


def test_garbage_and_a_cut_answer_may_pass() -> None:
    async def hang_up(writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    def cut(request: Request) -> HttpAnswer:
        async def answer(writer: asyncio.StreamWriter) -> None:
            writer.write(page("half", length=1000))
            await writer.drain()
            writer.close()

        return answer

    answers: tuple[Any, ...] = (b"\x16\x03\x01 no HTTP\r\n\r\n", cut, lambda _: hang_up)
    for answer in answers:
        asked: list[Request] = []

        def noted(request: Request, answer: Any = answer, asked: Any = asked) -> HttpAnswer:
            asked.append(request)
            said: HttpAnswer = answer if isinstance(answer, bytes) else answer(request)
            return said

        error = failure(answer=noted)
        assert len(asked) == 1
        assert not error.permanent
        assert HOST in str(error)


def test_a_closed_idle_connection_is_not_a_failure() -> None:
    server: Any = None

    def answer(request: Request) -> HttpAnswer:
        async def answered_once(writer: asyncio.StreamWriter) -> None:
            writer.write(page("hello"))
            await writer.drain()

        async def hung_up(writer: asyncio.StreamWriter) -> None:
            writer.close()

        first = sum(each.connection == request.connection for each in server.requests) == 1
        return answered_once if first else hung_up

    async def main() -> None:
        nonlocal server
        async with web(answer) as server:
            for _ in range(3):
                await polled("http", url=server.url())
            assert server.connections == 3

    really(main)


def test_a_slow_drip_is_cut_off_and_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with web(page("x" * 100_000)) as server:
            with Proxy(server.port) as proxy:
                proxy.drip(1, 0.05)
                with pytest.raises(TimeoutError):
                    await polled("http", timeout=0.3, url=f"http://{HOST}:{proxy.port}/")
                proxy.restore()
                found = await polled("http", url=f"http://{HOST}:{proxy.port}/")
                assert found.facts["bytes"] == 100_000

    really(main)


# What a server may cost


def test_a_huge_body_is_not_taken() -> None:
    announced = failure(answer=page(b"", length=10**12))
    assert announced.permanent
    assert "raise limit" in str(announced)

    def endless(request: Request) -> HttpAnswer:
        async def answer(writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            while True:
                writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                await writer.drain()

        return answer

    assert "more than 100,000 bytes" in str(failure(answer=endless, limit=100_000))


def test_a_packed_body_is_unpacked_within_its_limit() -> None:
    packed = gzip.compress(b"hello") + gzip.compress(b" world")
    assert reading(page(packed, content_encoding="gzip"), regex=".*").value == "hello world"
    assert reading(page(b"", content_encoding="gzip"), regex=".*").value == ""


def test_a_bomb_is_not_unpacked() -> None:
    # A quarter of a gibibyte of zeros in so many KiB; unpacked, the memory's peak would show it.
    squeeze = zlib.compressobj(1, zlib.DEFLATED, 31)
    bomb = b"".join(squeeze.compress(bytes(1 << 20)) for _ in range(256)) + squeeze.flush()
    before = _peak()
    error = failure(answer=page(bomb, content_encoding="gzip"), limit="2MiB")
    assert error.permanent
    assert _peak() - before < 100 * 1024  # KiB


def _peak() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize(
    ("body", "encoding", "said"),
    [
        (b"not packed", "gzip", "not valid gzip"),
        (gzip.compress(b"hello" * 99)[:-12], "gzip", "cut off"),
        (b"x", "br", "'br'"),
    ],
    ids=["not packed", "cut off", "unknown"],  # what is packed has the time in it
)
def test_a_body_that_cannot_be_unpacked_is_a_failure(body: bytes, encoding: str, said: str) -> None:
    assert said in str(failure(answer=page(body, content_encoding=encoding)))


# Redirects


def test_redirects_are_followed_up_to_a_number() -> None:
    def answer(request: Request) -> bytes:
        hops = int(request.path.strip("/"))
        return page("", "302 X", location=f"/{hops - 1}") if hops else page("there")

    async def main() -> None:
        async with web(answer) as server:
            assert (await polled("http", url=server.url("/5"))).facts["bytes"] == 5
            with pytest.raises(ProbeError, match="redirected more than 5 times"):
                await polled("http", url=server.url("/6"))
            found = await polled("http", url=server.url("/1"), redirects=0, expect=302)
            assert found.facts["status"] == 302

    really(main)


def test_redirects_to_other_hosts_can_be_refused() -> None:
    async def main() -> None:
        places = {"/here": "/there", "/there": "http://169.254.169.254/latest/", "/ok": "/end"}

        def answer(request: Request) -> bytes:
            to = places.get(request.path)
            return page("", "302 X", location=to) if to else page("there")

        async with web(answer) as server:
            found = await polled("http", url=server.url("/ok"), redirects="same-host")
            assert found.facts["status"] == 200
            with pytest.raises(ProbeError, match=r"redirected to another host.*same-host"):
                await polled("http", url=server.url("/here"), redirects="same-host")

    really(main)


def test_headers_for_one_host_are_not_sent_to_another() -> None:
    async def main() -> None:
        async with web(page("x", set_cookie="a=b")) as other:
            async with web(page("", "307 X", location=other.url("/there"))) as server:
                headers = {"X-Api-Key": "k3y", "Authorization": "Bearer t0ken"}
                url = server.url()
                options: dict[str, Any] = {
                    "url": url,
                    "headers": headers,
                    "method": "post",
                    "body": "s3cret",
                }
                await polled("http", **options)
                await polled("http", **options)
                assert server.requests[0].headers["x-api-key"] == "k3y"
                for told in other.requests:
                    assert "k3y" not in str(told)
                    assert "t0ken" not in str(told)
                    assert "s3cret" not in str(told)
                    assert "cookie" not in told.headers

    really(main)


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://x/", "mailto:a@b"])
def test_a_redirect_to_something_else_is_refused(location: str) -> None:
    assert "not http(s)" in str(failure(answer=page("", "302 X", location=location)))


# TLS


@pytest.mark.parametrize("verified", [True, False])
def test_a_certificate_reports_when_it_expires(tmp_path: Path, verified: bool) -> None:
    made_one = certificate(tmp_path, days=30)
    trust: dict[str, Any] = {"ca": str(made_one.file)} if verified else {"verify": False}

    async def main() -> None:
        async with web(page("x"), made_one.context()) as server:
            found = await polled("http", url=server.url(), **trust)
            assert found.facts["days_left"] == pytest.approx(30, abs=0.2)
            assert "warning" not in found.facts
            warned = await polled("http", url=server.url(), tls_warning="60d", **trust)
            assert "expires in" in str(warned.facts["warning"])
            assert "expires in" in warned.summary
            assert server.connections == 1

    really(main)


def test_the_latency_is_told_in_parts(tmp_path: Path) -> None:
    made_one = certificate(tmp_path, days=30)

    async def main() -> None:
        async with web(page("x", etag='"1"'), made_one.context()) as server:
            first = await polled("http", url=server.url(), verify=False)
            parts = [first.facts[name] for name in ("connect_ms", "tls_ms")]
            assert all(isinstance(each, float) and each > 0 for each in parts)
            assert sum(parts) <= first.facts["first_byte_ms"] + 0.2 <= first.facts["ms"] + 0.4  # type: ignore[arg-type, operator]
            # Nothing is connected for the next one, also if it is unchanged.
            kept = await polled("http", first, url=server.url(), verify=False)
            assert server.connections == 1
            assert not {"connect_ms", "tls_ms"} & set(kept.facts)

    really(main)


def test_a_self_signed_certificate_is_refused(tmp_path: Path) -> None:
    made_one = certificate(tmp_path)

    async def main() -> None:
        async with web(page("x"), made_one.context()) as server:
            with pytest.raises(ProbeError, match=r"self.signed") as raised:
                await polled("http", url=server.url())
            assert not raised.value.permanent

    really(main)


def test_the_expiry_of_a_certificate_is_that_of_openssl(tmp_path: Path) -> None:
    made_one = certificate(tmp_path, days=3650 * 3)  # beyond 2049 the date is written otherwise
    raw = ssl.PEM_cert_to_DER_cert(made_one.file.read_text())
    left = days_left(raw, time.time())
    assert left == pytest.approx(3650 * 3, abs=0.2)
    for size in range(0, len(raw), 7):
        days_left(raw[:size], 0.0)  # which raises nothing, whatever it is given


# Secrets


def test_secrets_are_sent_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> str:
        async with web(page("", "403 X")) as server:
            url = f"http://app:hunter2@{HOST}:{server.port}/x?token=t0ken&a=1"
            with pytest.raises(ProbeError) as raised:
                await polled("http", url=url)
            assert server.requests[0].headers["authorization"] == "Basic YXBwOmh1bnRlcjI="
            assert server.requests[0].path == "/x?token=t0ken&a=1"
        with pytest.raises(ProbeError) as unreachable:
            await polled("http", url=url)
        return f"{raised.value} {unreachable.value} {Target('t', 'http', options={'url': url})!r}"

    said = really(main) + caplog.text
    assert "hunter2" not in said
    assert "t0ken" not in said
    assert "x?token=***&a=***" in said


# What is refused before anything starts


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "url is missing"),
        ({"url": "example.org/x"}, "has no scheme; write it as 'https://example.org/x'"),
        ({"url": "ftp://example.org"}, "must begin with http:// or https://"),
        ({"url": "https://"}, "has no valid host"),
        ({"url": "https://x:99999999"}, "has no valid host"),
        ({"url": "https://["}, "has no valid host"),
        ({"url": 7}, "url = 7 must be text"),
        ({"url": "http://x", "jsno": "a"}, "jsno is not an option; did you mean json?"),
        ({"url": "http://x", "json": "a..b"}, "json = 'a..b' is not a JSON path"),
        ({"url": "http://x", "regex": "("}, "regex = '(' is not a regular expression"),
        ({"url": "http://x", "regex": "a", "json": "a"}, "contradict each other"),
        ({"url": "http://x", "expect": 9}, "expect must be a status"),
        ({"url": "http://x", "limit": "1 furlong"}, "limit = '1 furlong' must be"),
        ({"url": "http://x", "headers": {"a b": "c"}}, "'a b', which is not a header name"),
        ({"url": "http://x", "headers": {"a": "b\r\nc: d"}}, "has an invalid value for"),
        ({"url": "http://x", "method": "pots"}, "did you mean 'post'?"),
        ({"url": "http://x", "body": "x"}, "is not sent with GET"),
        ({"url": "http://x", "ca": "/nowhere.pem"}, "is not a file"),
        ({"url": "http://x", "verify": "no"}, "must be true or false"),
        ({"url": "http://x", "redirects": 99}, "from 0 to 20"),
        ({"url": "http://x", "redirects": "same-site"}, "or 'same-host'"),
        ({"url": "http://x", "tls_warning": "soon"}, "is not a duration"),
    ],
)
def test_options_are_checked(options: dict[str, Any], said: str) -> None:
    assert said in refusal(**options)


def test_all_errors_are_reported_at_once_without_secrets() -> None:
    said = refusal(url="app:hunter2@example.org", limit=-1, nonsense=1)
    assert "hunter2" not in said
    assert all(each in said for each in ("url", "limit", "nonsense"))


def test_an_unknown_type_gets_the_nearest() -> None:
    for given, near in (("htpp", "http"), ("HTTPS", "http"), ("promtheus", "prometheus")):
        with pytest.raises(ConfigError, match=f"did you mean '{near}'"):
            make_probe(Target("t", given))


def test_the_host_limits_polls_together() -> None:
    for url in ("https://Example.org:8443/x", "https://example.org/y"):
        target = Target("a", "http", options={"url": url})
        assert host_of(target, make_probe(target)) == "example.org"


def test_the_last_user_closes_the_connections() -> None:
    async def main() -> None:
        async with web(page("x")) as server:
            async with connections():
                await polled("http", url=server.url())
            await polled("http", url=server.url())
            assert server.connections == 1

    really(main)


def test_a_request_has_a_span_and_its_context_and_no_secret(traces: Traces) -> None:
    async def main() -> list[Request]:
        async with web(lambda request: page("hello")) as server:
            url = server.url("/status?token=hunter2").replace("://", "://me:hunter3@")
            await polled("http", url=url)
            return server.requests

    [request] = really(main)
    span = traces.one("GET")
    assert request.headers["traceparent"] == header_of(span)
    assert span.kind is SpanKind.CLIENT
    assert (span.attributes or {})["http.response.status_code"] == 200
    assert (span.attributes or {})["server.address"] == HOST
    told = dict(span.attributes or {})
    assert f":{told['server.port']!s}/" in str(told["url.full"])
    assert "hunter" not in span.to_json()


def test_a_refused_request_says_so_in_its_span(traces: Traces) -> None:
    failure(answer=lambda request: page("", "503 Service Unavailable"))
    assert (traces.one("GET").attributes or {})["error.type"] == "503"


def test_without_a_provider_a_request_has_no_trace() -> None:
    async def main() -> list[Request]:
        async with web(lambda request: page("hello")) as server:
            await polled("http", url=server.url())
            return server.requests

    [request] = really(main)
    assert "traceparent" not in request.headers
