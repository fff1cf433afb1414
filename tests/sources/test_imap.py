"""A folder of mail: IDLE, numbering, long messages, and servers that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import ConfigError, ProbeError, ProbeRefused, ProbeTimeout
from pollwise.runtime.events import Events
from pollwise.runtime.loop import poll
from pollwise.sources import ImapFolder
from tests.fleet.probes.net.servers import Handler, served
from tests.sources.imap_server import Mailbox

#: Seconds that anything may take on a busy machine.
PATIENCE = 240.0


def with_source(
    handler: Handler, main: Callable[[ImapFolder], Awaitable[Any]], **given: Any
) -> Any:
    async def run() -> Any:
        async with asyncio.timeout(PATIENCE), served(handler) as address:
            options = {"user": "me", "password": 'se"cret', "tls": False, **given}
            async with ImapFolder(address, **options) as source:
                return await main(source)

    return asyncio.run(run())


def texts(batch: Any) -> list[bytes]:
    return [each.raw for each in batch.items]


def test_a_new_message_ends_the_pause() -> None:
    mailbox = Mailbox()

    async def main(source: ImapFolder) -> None:
        loop = poll(source, Fixed("1h"), spread=False, events=Events(quiet=True))
        waiting = asyncio.ensure_future(anext(loop))
        while not mailbox.idling:
            await asyncio.sleep(0.001)  # real time: the source logs in a second time
        mailbox.put(b"Subject: a\r\n\r\n")
        [message] = await waiting
        assert message.message["subject"] == "a"
        loop.stop()

    with_source(mailbox, main)
    assert not mailbox.open
    assert mailbox.logins == 2


def test_one_connection_is_enough_for_many_polls() -> None:
    mailbox = Mailbox()

    async def main(source: ImapFolder) -> None:
        for n in range(5):
            mailbox.put(b"%d" % n)
            assert texts(await source()) == [b"%d" % n]

    with_source(mailbox, main, idle=False)
    assert mailbox.logins == 1
    assert not [each for each in mailbox.asked if "STORE" in each or "SELECT" in each]


def test_a_long_message_is_cut_and_says_so() -> None:
    mailbox = Mailbox()
    mailbox.put(b"x" * 1000)
    mailbox.put(b"y" * 10)

    async def main(source: ImapFolder) -> Any:
        return (await source()).items

    long, short = with_source(mailbox, main, body_max=100)
    assert (long.raw, long.size, long.is_cut) == (b"x" * 100, 1000, True)
    assert (short.raw, short.is_cut) == (b"y" * 10, False)


@pytest.mark.parametrize("raw", [b"", b'a "quoted" text'])
def test_a_body_may_be_a_quoted_string(raw: bytes) -> None:
    mailbox = Mailbox(quoted=True)
    mailbox.put(raw)

    async def main(source: ImapFolder) -> None:
        assert texts(await source()) == [raw]

    with_source(mailbox, main)


def test_gaps_between_uids_are_skipped() -> None:
    mailbox = Mailbox()
    for uid in (1, 3_000, 2_000_000):
        mailbox.next_uid = uid
        mailbox.put(b"%d" % uid)
    mailbox.next_uid = 4_000_000_000

    async def main(source: ImapFolder) -> list[bytes]:
        found: list[bytes] = []
        for _ in range(4):
            found += texts(await source())
        return found

    assert with_source(mailbox, main, idle=False) == [b"1", b"3000", b"2000000"]
    assert len(mailbox.asked) < 100


def test_a_folder_that_is_numbered_again_is_read_again() -> None:
    mailbox = Mailbox()
    mailbox.put(b"a")

    async def main(source: ImapFolder) -> None:
        assert texts(await source()) == [b"a"]
        assert texts(await source()) == []
        mailbox.validity += 1
        assert texts(await source()) == [b"a"]

    with_source(mailbox, main)


def test_a_message_that_was_removed_meanwhile_is_left_out() -> None:
    mailbox = Mailbox()
    mailbox.put(b"a")
    mailbox.put(b"b")
    fetch = mailbox._fetch

    def removing(writer: asyncio.StreamWriter, chosen: str, what: str) -> None:
        fetch(writer, chosen, what)
        mailbox.messages.pop(1, None)

    mailbox._fetch = removing  # type: ignore[method-assign]

    async def main(source: ImapFolder) -> None:
        assert texts(await source()) == [b"b"]
        assert texts(await source()) == []

    with_source(mailbox, main)


def error_of(handler: Handler, **given: Any) -> ProbeError:
    async def main(source: ImapFolder) -> ProbeError:
        with pytest.raises(ProbeError) as raised:
            await source()
        return raised.value

    error: ProbeError = with_source(handler, main, **given)
    assert "cret" not in str(error)
    return error


@pytest.mark.parametrize(
    ("given", "said"),
    [({"password": "other"}, "refused LOGIN"), ({"folder": "none"}, "refused EXAMINE")],
)
def test_what_the_server_refuses_for_good_ends_the_loop(given: dict[str, Any], said: str) -> None:
    error = error_of(Mailbox(), **given)
    assert isinstance(error, ProbeRefused)
    assert said in str(error)


def scripted(*lines: bytes, drip: bytes = b"") -> Handler:
    """Sends these lines, one for each that it gets, and then drips."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for line in lines:
            writer.write(line)
            await writer.drain()
            await reader.readline()
        while drip:
            writer.write(drip)
            await writer.drain()
            await asyncio.sleep(0)

    return handler


LOGIN = (b"* OK hi\r\n", b"a OK\r\n", b"* CAPABILITY IMAP4rev1\r\na OK\r\n")
EXAMINE = b"* OK [UIDVALIDITY 1]\r\n* OK [UIDNEXT 2]\r\na OK\r\n"


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (scripted(b"HTTP/1.1 400 Bad Request\r\n"), "not IMAP"),
        (scripted(b"* BYE too busy\r\n"), "no service"),
        (scripted(b"* OK hi\r\n", b"a NO [UNAVAILABLE] later\r\n"), "refused LOGIN"),
        (scripted(b"* OK hi\r\n", b"* BYE shutting down\r\n"), "goodbye"),
        (scripted(b"* OK hi\r\n", b"b OK\r\n"), "not IMAP"),
        (scripted(*LOGIN, b"a OK\r\n"), "does not give UIDs"),
        (scripted(*LOGIN, b"* 1 FETCH (BODY[] {999999999}\r\n"), "bytes where"),
        (scripted(b"* OK hi\r\n", drip=b"* OK more\r\n"), "lines in one answer|sent more than"),
        (scripted(b"* OK hi\r\n", drip=b"x" * 1000), "line of more than"),
        (scripted(*LOGIN, EXAMINE, drip=b"* x {9}\r\n"), "10 literals"),
        (scripted(b"* OK hi\r\n"), "closed"),
    ],
)  # fmt: skip
def test_a_server_that_misbehaves_is_an_error(handler: Handler, said: str) -> None:
    error = error_of(handler, body_max=1000)
    assert any(each in str(error) for each in said.split("|")), str(error)
    assert str(error).startswith("127.0.0.1:")


def test_a_server_that_hangs_is_cut_off() -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    assert isinstance(error_of(hang, timeout="100ms"), ProbeTimeout)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"address": "a/b"}, "address"),
        ({"user": ""}, "user must be"),
        ({"password": "se\r\ncret"}, "password must be"),
        ({"folder": "Entwürfe"}, "modified UTF-7"),
        ({"body_max": 0}, "body_max"),
        ({"tls": False, "verify": False}, "no effect without TLS"),
        ({"colour": 1}, "colour is not an option"),
    ],
)
def test_options_that_are_wrong_are_refused(given: dict[str, Any], said: str) -> None:
    options: dict[str, Any] = {"address": "mail.example", "user": "me", "password": "secret"}
    with pytest.raises(ConfigError, match=said) as raised:
        ImapFolder(**{**options, **given})
    assert "cret" not in str(raised.value)
