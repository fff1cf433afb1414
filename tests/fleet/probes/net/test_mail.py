"""Probes of SMTP and IMAP against scripted servers, with and without TLS."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from pollwise.fleet.probes import host_of, make_probe
from pollwise.fleet.targets import Reading, Target
from tests.fleet.probes.kit import Certificate, certificate, polled, really
from tests.fleet.probes.net.servers import (
    IMAP,
    SMTP,
    Handler,
    failure,
    imap_server,
    mail_server,
    refusal,
    served,
    smtp_server,
)


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificate(tmp_path_factory.mktemp("mail"), days=30)


def reading(
    handler: Handler, type: str, context: ssl.SSLContext | None = None, **options: Any
) -> Reading:
    async def main() -> Reading:
        async with served(handler, context) as address:
            return await polled(type, address=address, **options)

    return really(main)


def test_what_a_mail_server_offers_is_the_reading() -> None:
    found = reading(smtp_server(), "smtp")
    assert found.value == "8BITMIME\nSIZE 1000\nSTARTTLS"
    assert found.facts["greeting"] == "mail.example ESMTP 4711"
    assert found.facts["capabilities"] == 3
    found = reading(imap_server(), "imap")
    assert found.value == "IDLE\nIMAP4REV1\nSTARTTLS"
    assert found.facts["greeting"] == "OK mail.example ready"
    assert "3 capabilities" in found.summary


def test_a_part_of_the_greeting_may_be_the_reading() -> None:
    assert reading(smtp_server(), "smtp", regex=r"^(\S+) ESMTP").value == "mail.example"
    said = str(failure(imap_server(), "imap", regex="Dovecot"))
    assert "the greeting does not match regex: 'OK mail.example ready'" in said


@pytest.mark.parametrize(("type", "make"), [("smtp", smtp_server), ("imap", imap_server)])
def test_a_mail_server_is_asked_again_over_tls(type: str, make: Any, trusted: Certificate) -> None:
    context, ca = trusted.context(), str(trusted.file)
    for options in ({"starttls": True}, {"tls": True}):
        at_once = context if "tls" in options else None
        found = reading(make(context), type, at_once, ca=ca, **options)
        assert found.facts["days_left"] == pytest.approx(30, abs=0.2)
        assert found.facts["capabilities"] == 3
        said = str(failure(make(context), type, at_once, **options))
        assert "self-signed" in said
    said = str(failure(make(context), type, ca=ca, starttls=True, server_name="other.example"))
    assert "other.example" in said


@pytest.mark.parametrize(
    ("type", "answers", "said"),
    [
        ("smtp", {"EHLO": "250 mail.example\r\n"}, "does not offer STARTTLS"),
        ("smtp", {"STARTTLS": "454 not now\r\n"}, "STARTTLS was refused: '454 not now'"),
        ("imap", {"CAPABILITY": "* CAPABILITY X\r\na OK\r\n"}, "does not offer STARTTLS"),
        ("imap", {"STARTTLS": "a NO never\r\n"}, "STARTTLS was refused: 'NO never'"),
    ],
)
def test_starttls_that_is_not_had_is_a_failure(
    type: str, answers: dict[str, str], said: str
) -> None:
    server = {"smtp": smtp_server, "imap": imap_server}[type](None, **answers)
    assert said in str(failure(server, type, starttls=True))


@pytest.mark.parametrize(
    ("type", "answer"),
    [("smtp", "220 go\r\n250 injected\r\n"), ("imap", "a OK begin\r\n* CAPABILITY injected\r\n")],
)
def test_what_is_sent_in_the_clear_does_not_count_as_encrypted(
    type: str, answer: str, trusted: Certificate
) -> None:
    server = {"smtp": smtp_server, "imap": imap_server}[type](trusted.context(), STARTTLS=answer)
    said = str(failure(server, type, starttls=True, ca=str(trusted.file)))
    assert "sent more before TLS began" in said


@pytest.mark.parametrize(
    ("type", "greeting", "answers", "said"),
    [
        ("smtp", "554 go away", SMTP, "no service: '554 go away'"),
        ("smtp", "* OK imap", SMTP, "not SMTP: '* OK imap'"),
        ("smtp", "HTTP/1.1 400 Bad Request", SMTP, "not SMTP"),
        ("smtp", "٢٢٠ mail", SMTP, "not SMTP"),
        ("smtp", "220 x", {"EHLO": "502 no\r\n"}, "EHLO was refused: '502 no'"),
        ("smtp", "220 x", {"EHLO": "250-more\r\n" * 300}, "more than 200 lines"),
        ("imap", "* BYE overloaded", IMAP, "no service: '* BYE overloaded'"),
        ("imap", "220 smtp", IMAP, "not IMAP: '220 smtp'"),
        ("imap", "* OK x", {"CAPABILITY": "a BAD what\r\n"}, "CAPABILITY was refused"),
        ("imap", "* OK x", {"CAPABILITY": "a OK\r\n"}, "did not say what it offers"),
        ("imap", "* OK x", {"CAPABILITY": "* 1 EXISTS\r\n" * 300}, "more than 200 lines"),
        ("imap", "* OK x", {"CAPABILITY": "b OK\r\n"}, "not IMAP"),
    ],
)
def test_another_answer_is_a_failure(
    type: str, greeting: str, answers: dict[str, str], said: str
) -> None:
    error = failure(mail_server(greeting, answers), type)
    assert said in str(error)
    assert not error.permanent


def test_options_of_mail_servers_are_checked(tmp_path: Path) -> None:
    said = refusal("smtp", address="mail.example:x", tls=True, starttls=True, hello="a\r\nb")
    assert "the default port is 465" in said
    assert "starttls and tls contradict each other" in said
    assert "hello = 'a\\r\\nb' must be a host name" in said
    assert "address is missing" in refusal("imap")
    assert "verify has no effect without TLS" in refusal("imap", address="a", verify=False)
    (tmp_path / "ca.pem").write_text("nothing")
    said = refusal("imap", address="a", tls=True, ca=str(tmp_path / "ca.pem"))
    assert "has no certificates (PEM)" in said


@pytest.mark.parametrize(
    ("type", "options", "port"),
    [
        ("smtp", {}, 25),
        ("smtp", {"tls": True}, 465),
        ("imap", {}, 143),
        ("imap", {"tls": True}, 993),
    ],
)
def test_ports_have_defaults(type: str, options: dict[str, Any], port: int) -> None:
    for address in ("Mail.Example", f"mail.example:{port}"):
        target = Target("t", type, options={"address": address, **options})
        probe: Any = make_probe(target)
        assert (host_of(target, probe), probe._port) == ("mail.example", port)
    probe = make_probe(Target("t", type, options={"address": "[::1]", **options}))
    assert (probe.host, probe._port) == ("::1", port)
