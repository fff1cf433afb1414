"""The publisher to webhooks, on a receiver that answers as it is told; and the receiver's check."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pollwise.errors import ConfigError, SignatureError
from pollwise.outbox.publishers import CloudEvents, WebhookPublisher, sign, verify
from tests.outbox.publishers.kit import (
    attributes,
    event,
    failure,
    opened,
    record,
    refusal,
    unique,
)
from tests.outbox.publishers.receiver import receiving
from tests.support.daemons import Missing, free_port

SECRET = "a-secret-that-nobody-guesses"
OTHER = "another-secret-of-the-same-sort"


def test_a_record_is_posted_in_its_envelope() -> None:
    async def main() -> None:
        async with receiving() as receiver:
            async with opened(WebhookPublisher(receiver.url("/in?v=1"), SECRET)) as publisher:
                await publisher(record())
                await publisher(record(2))
            request, _ = receiver.requests
            assert request.line == "POST /in?v=1 HTTP/1.1"
            assert json.loads(request.body) == event()
            assert request["Content-Type"] == "application/cloudevents+json; charset=UTF-8"
            assert request["Idempotency-Key"] == unique()
            assert request["X-Region"] == "eu"
            assert request["User-Agent"] == "pollwise"
            verify(SECRET, request.headers, request.body)
            assert receiver.connections == 1

    asyncio.run(main())


def test_binary_mode_has_the_envelope_in_headers() -> None:
    async def main() -> None:
        async with receiving() as receiver:
            publisher = WebhookPublisher(receiver.url(), envelope=CloudEvents(mode="binary"))
            async with opened(publisher):
                await publisher(record(headers={"tenant": "Größe 1"}))
            (request,) = receiver.requests
            assert json.loads(request.body) == {"total": "12 €"}
            assert request["Content-Type"] == "application/json"
            sent = {n: v for n, v in request.headers if n.startswith("ce-")}
            assert sent == {**attributes(prefix="ce-"), "ce-tenant": "Gr%C3%B6%C3%9Fe%201"}
            assert "Pollwise-Signature" not in request

    asyncio.run(main())


def test_a_record_cannot_change_how_the_request_travels() -> None:
    forged = ["Host", "Content-Length", "Transfer-Encoding", "Authorization", "Cookie", "ce-id"]
    forged += ["Pollwise-Signature", "idempotency-key", "CONTENT-TYPE", "X-Forwarded-For", "a b"]

    async def main() -> None:
        async with receiving() as receiver:
            publisher = WebhookPublisher(
                receiver.url(), SECRET, headers={"authorization": "Bearer x", "X-Shop": "1"}
            )
            async with opened(publisher):
                headers = dict.fromkeys(forged, "forged") | {"x-shop": "forged"}
                await publisher(record(headers=headers))
            (request,) = receiver.requests
            assert "forged" not in [value for _, value in request.headers]
            assert request["Authorization"] == "Bearer x"
            assert request["X-Shop"] == "1"

    asyncio.run(main())


@pytest.mark.parametrize("status", ["200 OK", "201 Created", "202 Accepted", "204 No Content"])
def test_every_2xx_is_a_yes(status: str) -> None:
    async def main() -> None:
        async with receiving() as receiver:
            receiver.answer(status)
            async with opened(WebhookPublisher(receiver.url())) as publisher:
                await publisher(record())

    asyncio.run(main())


@pytest.mark.parametrize("status", [408, 425, 429, 500, 501, 502, 503, 504, 599])
def test_what_may_pass_may_be_tried_again(status: int) -> None:
    async def main() -> None:
        async with receiving() as receiver:
            receiver.answer(f"{status} Sorry")
            async with opened(WebhookPublisher(receiver.url())) as publisher:
                error = await failure(publisher(record()))
                assert f"answered {status} Sorry" in str(error)
                assert error.retry_after is None

    asyncio.run(main())


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 410, 413, 422, 431, 451])
def test_other_4xx_are_refused_for_good(status: int) -> None:
    async def main() -> None:
        async with receiving() as receiver:
            receiver.answer(f"{status} No")
            async with opened(WebhookPublisher(receiver.url())) as publisher:
                assert f"answered {status} No" in str(await refusal(publisher(record())))
            async with opened(WebhookPublisher(receiver.url(), retry_on=[status])) as publisher:
                await failure(publisher(record()))

    asyncio.run(main())


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 304])
def test_redirects_are_not_followed(status: int) -> None:
    async def main() -> None:
        async with receiving() as receiver, receiving() as other:
            receiver.answer(f"{status} There", headers=f"Location: {other.url('/token')}\r\n")
            async with opened(WebhookPublisher(receiver.url(), SECRET)) as publisher:
                error = await refusal(publisher(record()))
                assert "not followed" in str(error)
                assert "token" not in str(error)
            assert not other.requests

    asyncio.run(main())


@pytest.mark.parametrize(
    ("header", "wait"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("99999999999999999999", 86400.0),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 30.0),
        ("Wed, 31 Dec 2025 00:00:00 GMT", 0.0),
        ("soon", None),
        ("-5", None),
        ("", None),
    ],
)
def test_retry_after_is_passed_on(header: str, wait: float | None) -> None:
    from pollwise.runtime.limits.headers import retry_after

    assert retry_after(header, 1_767_225_600.0) == wait

    async def main() -> None:
        async with receiving() as receiver:
            receiver.answer("429 Slow down", headers="Retry-After: 7\r\n")
            async with opened(WebhookPublisher(receiver.url())) as publisher:
                assert (await failure(publisher(record()))).retry_after == 7.0

    asyncio.run(main())


def test_403_that_says_until_when_is_tried_again() -> None:
    async def main() -> None:
        async with receiving() as receiver:
            receiver.answer("403 Forbidden", headers="Retry-After: 7\r\n")
            async with opened(WebhookPublisher(receiver.url())) as publisher:
                assert (await failure(publisher(record()))).retry_after == 7.0

    asyncio.run(main())


def test_a_receiver_that_does_not_answer_is_given_up_in_time() -> None:
    async def main() -> None:
        async with receiving() as receiver:
            receiver.answer(None, "200 OK")
            async with opened(WebhookPublisher(receiver.url(), timeout="500ms")) as publisher:
                assert "within 0.5 s" in str(await failure(publisher(record())))
                await publisher(record())

    asyncio.run(main())


def test_a_connection_that_is_lost_or_cannot_be_had() -> None:
    async def main() -> None:
        port = free_port()
        async with opened(WebhookPublisher(f"http://127.0.0.1:{port}/")) as publisher:
            assert "cannot be reached" in str(await failure(publisher(record(1))))
            async with receiving(port) as receiver:
                await publisher(record(1))
                receiver.answers = [b""]
                assert "may or may not have the record" in str(await failure(publisher(record(2))))
                receiver.answers = [b"SMTP ready\r\n\r\n"]
                await failure(publisher(record(2)))
                receiver.answer("200 OK")
                await publisher(record(2))
            await failure(publisher(record(3)))

    asyncio.run(main())


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of our own for 127.0.0.1, with its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        raise Missing("openssl is not installed")
    path = tmp_path / "own.pem"
    command: list[str | Path] = [
        openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
        "-nodes", "-subj", "/CN=receiver", "-addext", "subjectAltName=IP:127.0.0.1",
        "-keyout", path, "-out", tmp_path / "certificate.pem",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    path.write_text(path.read_text() + (tmp_path / "certificate.pem").read_text())
    return path


def test_certificates_are_checked_and_ones_own_may_be_given(certificate: Path) -> None:
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(certificate)
    trusting = ssl.create_default_context(cafile=certificate)

    async def main() -> None:
        async with receiving(tls=serving) as receiver:
            url = receiver.url().replace("http://", "https://")
            async with opened(WebhookPublisher(url, SECRET)) as publisher:
                error = await failure(publisher(record()))
                assert "cannot be reached" in str(error)
                assert "certificate" in str(error).lower()
            assert not receiver.requests
            async with opened(WebhookPublisher(url, SECRET, ssl=trusting)) as publisher:
                await publisher(record())
            assert len(receiver.requests) == 1

    asyncio.run(main())


def test_a_proxy_is_used_if_it_is_given_and_never_by_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with receiving() as receiver, receiving() as proxy:
            monkeypatch.setenv("HTTP_PROXY", proxy.url(""))
            async with opened(WebhookPublisher(receiver.url())) as publisher:
                await publisher(record(1))
            assert not proxy.requests
            given = proxy.url("", user="app:hunter2@")
            async with opened(WebhookPublisher(receiver.url(), proxy=given)) as publisher:
                await publisher(record(2))
                assert "hunter2" not in repr(publisher)
            assert proxy.requests[0].line == f"POST {receiver.url()} HTTP/1.1"

    asyncio.run(main())


def test_an_endless_answer_is_not_read_to_its_end() -> None:
    async def main() -> None:
        async with receiving() as receiver:
            endless = b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n" + b"x" * 500_000
            receiver.answers = [endless]
            async with opened(WebhookPublisher(receiver.url())) as publisher:
                await publisher(record(1))
                await publisher(record(2))
            assert len(receiver.requests) == 2

    asyncio.run(main())


def test_many_at_once() -> None:
    async def main() -> None:
        async with receiving() as receiver:
            async with opened(WebhookPublisher(receiver.url(), SECRET)) as publisher:
                await asyncio.gather(*(publisher(record(n)) for n in range(1, 101)))
            assert len({request["Idempotency-Key"] for request in receiver.requests}) == 100
            assert receiver.connections <= 32

    asyncio.run(main())


def test_nothing_tells_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secrets = ("hunter2", "T0KEN", SECRET, "Bearer")

    async def main() -> None:
        async with receiving() as receiver:
            url = receiver.url("/T0KEN?key=T0KEN", user="app:hunter2%40@")
            headers = {"X-Api-Key": "Bearer T0KEN"}
            async with opened(WebhookPublisher(url, SECRET, headers=headers)) as publisher:
                assert publisher.name == f"webhook:127.0.0.1:{receiver.port}"
                for secret in secrets:
                    assert secret not in f"{publisher!r} {publisher.name}"
                await publisher(record())
                assert receiver.requests[0]["Authorization"] == "Basic YXBwOmh1bnRlcjJA"
                receiver.answer("500 No", body=b"you sent Bearer T0KEN")
                await failure(publisher(record()), *secrets)
                receiver.answer("404 No", body=b"you sent Bearer T0KEN")
                await refusal(publisher(record()))
        await failure(publisher(record()), *secrets)

    asyncio.run(main())
    for secret in (*secrets, "YXBwOmh1bnRlcjJA"):
        assert secret not in caplog.text


@pytest.mark.parametrize(
    ("arguments", "options", "told"),
    [
        (["ftp://receiver"], {}, "https://, http://"),
        (["https://u:hunter2@receiver:port"], {}, "cannot be read"),
        (["https://receiver", "hunter2"], {}, "can be guessed"),
        (["https://receiver", [SECRET, "hunter2"]], {}, "can be guessed"),
        (["https://receiver", []], {}, "must be a string or bytes"),
        (["https://receiver"], {"headers": {"a b": "hunter2"}}, "the header 'a b'"),
        (["https://receiver"], {"headers": {"a": "hunter2\r\nX: 1"}}, "the header 'a'"),
        (["https://receiver"], {"proxy": "socks://u:hunter2@proxy"}, "http://, https://"),
        (["https://receiver"], {"envelope": "json"}, "envelope = 'json'"),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments: Any, options: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        WebhookPublisher(*arguments, **options)
    assert "hunter2" not in str(caught.value)


# Signatures.

NOW = 1_767_225_600.0
BODY = b'{"id":"1"}'


def signed(*secrets: str, at: float = NOW, body: bytes = BODY) -> dict[str, str]:
    return {"pollwise-signature": sign(secrets, body, at)}


def test_the_signature_is_what_the_docs_say() -> None:
    import hashlib
    import hmac

    expected = hmac.new(SECRET.encode(), b"1767225600." + BODY, hashlib.sha256).hexdigest()
    assert sign(SECRET, BODY, NOW) == f"t=1767225600,v1={expected}"


def test_the_signature_covers_the_idempotency_key() -> None:
    import hashlib
    import hmac

    header = sign(SECRET, BODY, NOW, idempotency_key="ab-1")
    expected = hmac.new(SECRET.encode(), b"v2.1767225600.4.ab-1." + BODY, hashlib.sha256)
    assert header == f"t=1767225600,v2={expected.hexdigest()}"
    verify(SECRET, {"Pollwise-Signature": header, "idempotency-key": "ab-1"}, BODY, now=NOW)


@pytest.mark.parametrize("other", ["ab-2", "", None, "ab-1 ", "AB-1", "ab-1.x", "ä"])
def test_another_idempotency_key_is_refused(other: str | None) -> None:
    headers = {"Pollwise-Signature": sign(SECRET, BODY, NOW, idempotency_key="ab-1")}
    if other is not None:
        headers["Idempotency-Key"] = other
    with pytest.raises(SignatureError):
        verify(SECRET, headers, BODY, now=NOW)


def test_a_signature_of_one_version_is_none_of_the_other() -> None:
    key = {"Idempotency-Key": "ab-1"}
    v1, v2 = sign(SECRET, BODY, NOW), sign(SECRET, BODY, NOW, idempotency_key="ab-1")
    with pytest.raises(SignatureError, match="is not signed"):
        verify(SECRET, {"Pollwise-Signature": v1, **key}, BODY, now=NOW)
    as_v1 = v2.replace("v2=", "v1=")
    for body in (BODY, b"ab-1." + BODY, b"4.ab-1." + BODY):
        with pytest.raises(SignatureError):
            verify(SECRET, {"Pollwise-Signature": as_v1}, body, now=NOW)
    moved = {"Pollwise-Signature": v2, "Idempotency-Key": "ab-1." + BODY[:3].decode()}
    with pytest.raises(SignatureError):
        verify(SECRET, moved, BODY[3:], now=NOW)
    pairs = [("Pollwise-Signature", v2), *key.items(), ("idempotency-key", "ab-1")]
    with pytest.raises(SignatureError, match="once"):
        verify(SECRET, pairs, BODY, now=NOW)


def test_a_secret_is_changed_on_either_side_first() -> None:
    verify(SECRET, signed(SECRET), BODY, now=NOW)
    verify([OTHER, SECRET], signed(SECRET), BODY, now=NOW)
    verify(OTHER, signed(SECRET, OTHER), BODY, now=NOW)
    verify([SECRET.encode(), OTHER], signed(OTHER).items(), BODY, now=NOW)
    with pytest.raises(SignatureError, match="does not match"):
        verify(OTHER, signed(SECRET), BODY, now=NOW)


def test_what_was_changed_on_its_way_does_not_fit() -> None:
    with pytest.raises(SignatureError, match="does not match"):
        verify(SECRET, signed(SECRET), BODY + b" ", now=NOW)
    header = sign(SECRET, BODY, NOW).replace("t=1767225600", "t=1767225601")
    with pytest.raises(SignatureError, match="does not match"):
        verify(SECRET, {"Pollwise-Signature": header}, BODY, now=NOW)


@pytest.mark.parametrize(("off", "fits"), [(0, True), (300, True), (-300, True), (301, False)])
def test_an_old_signature_is_not_trusted(off: float, fits: bool) -> None:
    if fits:
        verify(SECRET, signed(SECRET), BODY, now=NOW + off)
    else:
        for now in (NOW + off, NOW - off):
            with pytest.raises(SignatureError, match=r"301 s (ago|ahead), but .* 300 s"):
                verify(SECRET, signed(SECRET), BODY, now=now)
    verify(SECRET, signed(SECRET), BODY, "1h", now=NOW + off)


@pytest.mark.parametrize(
    "header",
    [
        "", "t=1", "v1=ab", "t=1,t=2,v1=ab", "t=,v1=ab", "t=-1,v1=ab", "t=1.5,v1=ab", "t=١,v1=ab",
        "t=9999999999999999999,v1=ab", "t=1,v1=ä", "t=1,v0=ab", "x" * 5000,
        "t=1" + ",v1=ab" * 17, "=,=,=",
    ],
)  # fmt: skip
def test_a_header_that_is_none_is_told_as_such(header: str) -> None:
    with pytest.raises(SignatureError, match="must"):
        verify(SECRET, {"Pollwise-Signature": header}, BODY, now=NOW)


def test_a_request_without_a_signature_or_with_two() -> None:
    with pytest.raises(SignatureError, match="no header Pollwise-Signature"):
        verify(SECRET, {"Content-Type": "x"}, BODY)
    twice = [*signed(SECRET).items(), *signed(SECRET).items()]
    with pytest.raises(SignatureError, match="must appear once"):
        verify(SECRET, twice, BODY, now=NOW)


def test_the_body_has_to_be_bytes() -> None:
    with pytest.raises(ConfigError, match="bytes of the request"):
        verify(SECRET, signed(SECRET), "text", now=NOW)  # type: ignore[arg-type]


def test_signatures_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each given signature is compared with each expected one, whether an earlier one fits."""
    import hmac

    compared: list[tuple[Any, Any]] = []
    real = hmac.compare_digest

    def compare(a: Any, b: Any) -> bool:
        compared.append((a, b))
        return real(a, b)

    monkeypatch.setattr("pollwise.outbox.publishers.signatures.hmac.compare_digest", compare)
    verify([SECRET, OTHER], signed(SECRET, OTHER), BODY, now=NOW)
    assert len(compared) == 4
