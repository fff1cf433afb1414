"""Channels against real servers: what arrives, what an error says, and what it never says."""

from __future__ import annotations

import asyncio
import email
import json
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pollwise.alerts.channels.apprise import AppriseChannel
from pollwise.alerts.channels.base import Channel
from pollwise.alerts.channels.function import THREADS, FunctionChannel
from pollwise.alerts.channels.put import PutChannel
from pollwise.alerts.channels.table import read_channel
from pollwise.alerts.channels.webhook import WebhookChannel
from pollwise.alerts.values import Notice, NoticeEvent
from pollwise.errors import ChannelError, ConfigError, SignatureError
from pollwise.outbox.publishers.signatures import verify
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.jobs import Settlement
from pollwise.testing import VirtualClock
from tests.alerts.test_texts import payload
from tests.fleet.probes.kit import PATIENCE, certificate, page, really, web

SECRET = "a-secret-of-the-hook"
OK = page("", "204 No Content")


def notice(event: NoticeEvent = "opened", id: str = "n1", **more: Any) -> Notice:
    return Notice(id, "a1", "front page", "ops", event, payload(event, **more))


async def hang(_: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


@asynccontextmanager
async def sending(channel: Channel) -> AsyncIterator[Channel]:
    try:
        yield channel
    finally:
        await channel.close()


async def refusal(channel: Channel) -> ChannelError:
    async with sending(channel):
        with pytest.raises(ChannelError) as refused:
            await channel.send(notice())
    return refused.value


# Webhooks


def test_a_webhook_posts_the_notice_signed_and_with_the_same_id_each_time() -> None:
    async def main() -> None:
        async with web(OK) as server:
            url = server.url("/s3cret-path")
            hook = WebhookChannel("ops", url, secret=SECRET, headers={"Authorization": "Bearer t"})
            async with sending(hook):
                await hook.send(notice())
                await hook.send(notice())
            first, second = server.requests
        assert (first.method, first.path) == ("POST", "/s3cret-path")
        said = json.loads(first.body)
        assert (said["id"], said["target"], said["labels"]) == ("n1", "front page", {"team": "web"})
        assert said["text"].startswith("front page is down [shop] · since")
        assert first.headers["authorization"] == "Bearer t"
        assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
        verify(SECRET, first.headers, first.body)
        with pytest.raises(SignatureError):
            verify(SECRET, first.headers, first.body + b" ")
        assert "s3cret" not in repr(hook)

    really(main)


def test_a_webhook_sends_the_body_or_the_text_it_is_given() -> None:
    async def main() -> None:
        async with web(OK) as server:
            body = {"content": "{target} is {state}", "tts": False}
            for given in ({"text": "*{target}*"}, {"body": body}):
                async with sending(WebhookChannel("ops", server.url(), **given)) as hook:
                    await hook.send(notice(target='a "quoted" name'))
        texted, bodied = (json.loads(each.body) for each in server.requests)
        assert texted["text"] == '*a "quoted" name*'
        assert bodied == {"content": 'a "quoted" name is down', "tts": False}

    really(main)


@pytest.mark.parametrize(
    ("status", "permanent", "wait"),
    [("500 X", False, None), ("429 X", False, 7.0), ("400 X", True, None), ("302 X", True, None)],
)
def test_an_answer_other_than_2xx_is_an_error_and_redirects_are_not_followed(
    status: str, permanent: bool, wait: float | None
) -> None:
    async def main() -> None:
        async with web(OK) as other:
            answer = page("", status, location=other.url(), retry_after="7" if wait else "")
            async with web(answer) as server:
                error = await refusal(WebhookChannel("ops", server.url("/s3cret-path")))
            assert other.requests == []
        assert status[:3] in str(error)
        assert "s3cret" not in str(error)
        assert (error.permanent, error.retry_after) == (permanent, wait)

    really(main)


def test_a_webhook_that_hangs_or_refuses_tls_is_tried_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with web(lambda _: hang) as server:
            error = await refusal(WebhookChannel("ops", server.url(), timeout="50ms"))
            assert "did not answer within 0.05 s" in str(error)
            assert not error.permanent
        made = certificate(tmp_path)
        async with web(OK, made.context()) as server:
            error = await refusal(WebhookChannel("ops", server.url("/s3cret-path")))
            assert "certificate" in str(error)
            assert "s3cret" not in str(error)
            assert not error.permanent
            for trusting in ({"ca": str(made.file)}, {"verify": False}):
                async with sending(WebhookChannel("ops", server.url(), **trusting)) as hook:
                    await hook.send(notice())
            assert len(server.requests) == 2
        assert "cannot be reached" in str(await refusal(WebhookChannel("ops", server.url())))

    really(main)


# Apprise


@asynccontextmanager
async def mail_server(code: str = "250") -> AsyncIterator[tuple[int, list[bytes]]]:
    """A small SMTP server: its port, and the mails that it got. code: its answer to a mail."""
    mails: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail ESMTP\r\n")
        while line := await reader.readline():
            verb = line[:4].upper()
            if verb == b"DATA":
                writer.write(b"354 go on\r\n")
                mails.append(await reader.readuntil(b"\r\n.\r\n"))
                writer.write(f"{code} done\r\n".encode())
            else:
                writer.write(b"250 fine\r\n" if verb != b"QUIT" else b"221 bye\r\n")
                if verb == b"QUIT":
                    break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], mails
    finally:
        server.close()


def mail(port: int, **options: Any) -> AppriseChannel:
    url = f"mailto://127.0.0.1:{port}?from=pollwise@example.org&to=ops@example.org&mode=insecure"
    return AppriseChannel("mail", url, timeout=PATIENCE, **options)


def test_apprise_sends_an_e_mail() -> None:
    async def main() -> None:
        async with mail_server() as (port, mails), sending(mail(port)) as channel:
            await channel.send(notice("closed"))
            (got,) = mails
        message = email.message_from_bytes(got)
        parts = [each for each in message.walk() if each.get_content_type() == "text/plain"]
        text = parts[0].get_payload(decode=True)
        assert isinstance(text, bytes)
        assert "front page is up again" in str(message["Subject"])
        assert b"lasted 5m" in text

    really(main)


def test_a_mail_that_is_refused_is_an_error_with_the_reason() -> None:
    async def main() -> None:
        async with mail_server("554") as (port, mails):
            error = await refusal(mail(port))
        assert len(mails) == 1
        assert "channel 'mail' (E-Mail) could not send: " in str(error)
        assert not error.permanent

    really(main)


def test_apprise_posts_json_with_the_texts_of_the_templates() -> None:
    async def main() -> None:
        async with web(page("ok")) as server:
            url = f"json://127.0.0.1:{server.port}/s3cret-path"
            channel = AppriseChannel(
                "ops", url, title="{state}: {target}", text="{summary}", timeout=PATIENCE
            )
            async with sending(channel):
                await channel.send(notice())
                await channel.send(notice("closed"))
            said, closed = (json.loads(each.body) for each in server.requests)
        assert (said["title"], said["message"]) == ("down: front page", "503 Service Unavailable")
        assert (said["type"], closed["type"]) == ("failure", "success")

    really(main)


@pytest.mark.parametrize("status", ["500 X", "302 X"])
def test_a_failure_of_apprise_shows_no_part_of_its_url(
    status: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def main() -> ChannelError:
        async with web(OK) as other, web(page("", status, location=other.url())) as server:
            url = f"json://user:hunter2@127.0.0.1:{server.port}/s3cret-path?+X-Token=t0ken-value"
            channel = AppriseChannel("ops", url, timeout=PATIENCE)
            error = await refusal(channel)
            assert other.requests == []
            assert "user" not in repr(channel)
        return error

    error = really(main)
    assert status[:3] in str(error)
    logged = "".join(each.getMessage() for each in caplog.records if "urllib3" not in each.name)
    for secret in ("hunter2", "s3cret", "t0ken-value"):
        assert secret not in f"{error!r} {logged}"


def test_a_service_that_hangs_takes_no_more_than_its_threads() -> None:
    async def main() -> None:
        async with web(lambda _: hang) as server:
            url = f"json://127.0.0.1:{server.port}/?rto=60&cto=60"
            channel = AppriseChannel("hangs", url, timeout="100ms")
            for _ in range(THREADS + 2):
                with pytest.raises(ChannelError, match="did not answer within"):
                    await channel.send(notice())
            threads = threading.enumerate()
            alive = [each for each in threads if each.name.startswith("channel-hangs")]
            assert len(alive) == THREADS
            assert all(each.daemon for each in alive)
            assert len(server.requests) <= THREADS
            await channel.close()

    really(main)


@pytest.mark.parametrize("url", ["nonsense-s3cret", "foo://s3cret", "mailto://:s3cret@", 3, ""])
def test_a_url_that_apprise_cannot_use_is_refused_and_not_shown(
    url: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="url") as refused:
        AppriseChannel("ops", url)
    assert "s3cret" not in f"{refused.value} {capfd.readouterr()}"


# Jobs and functions


def test_a_job_is_put_once_for_a_notice() -> None:
    async def main() -> None:
        queue = MemoryQueue()
        channel = PutChannel("jobs", queue, kind="page-changed", priority=3)
        await channel.send(notice())
        await channel.send(notice())  # again, after a crash
        await channel.send(notice("closed", "n2"))
        (claim,) = await queue.claim("w", 10, 60)  # one at a time for a target
        assert (claim.job.kind, claim.job.key, claim.job.priority) == (
            "page-changed", "front page", 3,
        )  # fmt: skip
        assert claim.job.payload["id"] == "n1"
        assert claim.job.payload["text"].startswith("front page is down")
        await queue.settle([Settlement.done(claim)])
        (claim,) = await queue.claim("w", 10, 60)
        assert claim.job.payload["event"] == "closed"
        await channel.close()
        await queue.settle([Settlement.done(claim)])  # a queue of the caller stays open

    VirtualClock().run(main())


def test_a_closed_channel_opens_its_queue_again(tmp_path: Path) -> None:
    async def main() -> None:
        channel = PutChannel("jobs", f"sqlite:///{tmp_path}/jobs.db")
        await channel.send(notice())
        await channel.close()
        await channel.send(notice(id="n2"))
        await channel.close()

    really(main)


def test_a_queue_that_is_down_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"not a database" * 100)

    async def main() -> None:
        error = await refusal(PutChannel("jobs", f"sqlite:///{tmp_path}/jobs.db"))
        assert not error.permanent

    really(main)


class Refused(Exception):
    permanent = True


@pytest.mark.parametrize("plain", [True, False])
def test_a_function_gets_the_notice_and_its_errors_count(plain: bool) -> None:
    got: list[tuple[Notice, bool]] = []

    def call(given: Notice) -> None:
        got.append((given, threading.current_thread() is threading.main_thread()))
        if given.event == "closed":
            raise Refused("no")
        if given.event == "repeated":
            raise TimeoutError("its own")

    async def waiting(given: Notice) -> None:
        call(given)

    async def main() -> None:
        async with sending(FunctionChannel("lamp", call if plain else waiting)) as channel:
            await channel.send(notice())
            with pytest.raises(ChannelError, match="channel 'lamp': Refused: no") as error:
                await channel.send(notice("closed"))
            assert error.value.permanent
            with pytest.raises(ChannelError, match="its own") as error:
                await channel.send(notice("repeated"))
            assert not error.value.permanent

    VirtualClock().run(main())
    assert [each.event for each, _ in got] == ["opened", "closed", "repeated"]
    assert {main_thread for _, main_thread in got} == {not plain}


def test_a_function_that_hangs_is_given_up_after_the_timeout() -> None:
    async def never(_: Notice) -> None:
        await asyncio.sleep(10_000)

    async def main() -> None:
        error = await refusal(FunctionChannel("lamp", never, timeout="1m"))
        assert "did not answer within 60 s" in str(error)
        assert asyncio.get_running_loop().time() == 60

    VirtualClock().run(main())


# Quiet hours and tables


def test_quiet_hours_hold_notices_back_except_those_of_a_severity() -> None:
    midnight = 1_700_006_400.0  # 2023-11-15 00:00 UTC
    channel = FunctionChannel(
        "lamp", print, quiet="22:00-06:00", quiet_except=["critical"], timeout=1
    )
    assert channel.not_before("warning", midnight) == midnight + 6 * 3600
    assert channel.not_before("critical", midnight) is None
    assert channel.not_before("warning", midnight + 7 * 3600) is None
    assert FunctionChannel("lamp", print).not_before("warning", midnight) is None


GOOD: list[tuple[dict[str, Any], type[Channel]]] = [
    ({"type": "apprise", "url": "json://localhost/x"}, AppriseChannel),
    ({"type": "webhook", "url": "https://h/x", "timeout": "3s", "text": "{at}"}, WebhookChannel),
    ({"type": "put", "queue": "memory://?queue=x", "kind": "k"}, PutChannel),
    ({"type": "function", "call": "builtins:print", "quiet": "22:00-06:00"}, FunctionChannel),
]


@pytest.mark.parametrize(("table", "made"), GOOD)
def test_a_table_makes_a_channel(table: dict[str, Any], made: type[Channel]) -> None:
    wrong: list[str] = []
    channel = read_channel("ops", table, wrong.append)
    assert (wrong, type(channel), channel and channel.name) == ([], made, "ops")


@pytest.mark.parametrize(
    ("table", "errors"),
    [
        (3, ["is not a table"]),
        ({}, ["type is missing: one of apprise"]),
        ({"type": "webhok"}, ["did you mean 'webhook'"]),
        ({"type": "webhook"}, ["url is missing"]),
        ({"type": "webhook", "url": "https://x/", "headres": {}, "txt": ""}, ["headers", "text"]),
        (
            {"type": "webhook", "url": "https://x/", "timeout": "x", "quiet": "x", "text": "{x}"},
            ["timeout", "quiet", "no field {x}"],
        ),
        ({"type": "webhook", "url": "https://x/", "text": "", "body": {}}, ["not both"]),
        ({"type": "webhook", "url": "https://x/", "secret": "short", "ca": "/no"}, ["16", "ca"]),
        ({"type": "function", "call": "os:getcwd"}, ["must take one argument"]),
        ({"type": "function", "call": "no.such:thing"}, ["cannot be imported"]),
        ({"type": "put", "queue": "nope://", "keyed": 3}, ["nope", "keyed = 3"]),
        ({"type": "function", "call": "builtins:print", "quiet_except": ["urgent"]}, ["urgent"]),
    ],
)
def test_everything_that_is_wrong_with_a_table_is_told(table: Any, errors: list[str]) -> None:
    wrong: list[str] = []
    assert read_channel("ops", table, wrong.append) is None
    assert len(wrong) == len(errors)
    for said, error in zip(wrong, errors, strict=True):
        assert error in said


def test_a_base_is_not_sent_unknown_arguments() -> None:
    with pytest.raises(ConfigError, match="no argument 'timeuot'"):
        FunctionChannel("lamp", print, timeuot=1)  # type: ignore[call-arg]
