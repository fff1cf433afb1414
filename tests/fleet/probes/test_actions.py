"""What is done about a change: webhooks and jobs."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pollwise.errors import ConfigError
from pollwise.fleet.actions import (
    ID_HEADER,
    SIGNATURE_HEADER,
    ActionError,
    PutJob,
    Webhook,
    id_of,
    is_signed,
    payload_of,
)
from pollwise.fleet.targets import Changed, Reading, Target
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.jobs import Settlement
from tests.fleet.probes.kit import page, really, web

AT = 1_700_000_000.25


def change(after: Any = "new", name: str = "shop") -> Changed:
    target = Target(
        name, "http", options={"url": "http://app:hunter2@x/"}, labels={"team": "web"}, group="g"
    )
    return Changed(target, Reading(b"\xff"), Reading(after, AT, {"status": 200}, "200"), AT)


def test_a_webhook_posts_the_change_and_signs_it() -> None:
    async def main() -> None:
        async with web(page("", "204 No Content")) as server:
            hook = Webhook(
                server.url("/s3cret-path"), secret="k3y", headers={"Authorization": "Bearer t"}
            )
            await hook(change())
            (request,) = server.requests
        assert (request.method, request.path) == ("POST", "/s3cret-path")
        said = json.loads(request.body)
        assert said["target"] == "shop"
        assert said["labels"] == {"team": "web"}
        assert said["before"]["value"] == {"base64": "/w=="}
        assert said["after"] == {
            "value": "new", "changed_at": AT, "facts": {"status": 200}, "summary": "200"
        }  # fmt: skip
        assert request.headers[ID_HEADER] == said["id"]
        assert request.headers["authorization"] == "Bearer t"
        assert "hunter2" not in str(request)
        signed = request.headers[SIGNATURE_HEADER]
        assert is_signed("k3y", signed, request.body, AT + 10)
        assert not is_signed("k3y", signed, request.body, AT + 1000)
        assert not is_signed("other", signed, request.body, AT)
        assert not is_signed("k3y", signed, request.body + b" ", AT)
        for forged in ("", "t=1", signed[:-1], signed.replace("t=1", "t=2"), "t=x,v1=y"):
            assert not is_signed("k3y", forged, request.body, AT)

    really(main)


@pytest.mark.parametrize("status", ["302 Found", "400 X", "500 X"])
def test_an_answer_other_than_2xx_is_an_error_and_redirects_are_not_followed(status: str) -> None:
    async def main() -> None:
        async with web(page("x")) as other:
            async with web(page("", status, location=other.url())) as server:
                with pytest.raises(ActionError, match=status[:3]):
                    await Webhook(server.url())(change())
            assert other.requests == []

    really(main)


def test_a_webhook_has_a_time_limit_and_secrets_are_never_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> str:
        async def silent(writer: asyncio.StreamWriter) -> None:
            await asyncio.Event().wait()

        said = ""
        async with web(lambda _: silent) as server:
            url = server.url("/services/s3cret?token=t0ken").replace("//", "//app:hunter2@", 1)
            hook = Webhook(url, secret="k3y", timeout="50ms", headers={"X-Key": "h3ader"})
            with pytest.raises(ActionError, match="no answer within") as raised:
                await hook(change())
            said += f"{raised.value} {hook!r}"
        with pytest.raises(ActionError, match="could not be reached") as raised:
            await hook(change())
        return said + str(raised.value)

    said = really(main) + caplog.text
    for secret in ("s3cret", "t0ken", "hunter2", "k3y", "h3ader"):
        assert secret not in said


def test_the_arguments_of_a_webhook_are_checked() -> None:
    wrong: list[dict[str, Any]] = [
        {"url": "hooks.example/x"},
        {"url": "ftp://hooks.example/x"},
        {"url": "https://"},
        {"url": "https://x", "secret": ""},
        {"url": "https://x", "secret": 7},
        {"url": "https://x", "timeout": 0},
        {"url": "https://x", "headers": {"a": "b\r\nc"}},
        {"url": "https://x", "headers": []},
    ]
    for each in wrong:
        with pytest.raises(ConfigError) as raised:
            Webhook(**each)
        assert "hooks.example/x" not in str(raised.value)


def test_a_change_that_is_seen_again_after_a_crash_has_the_same_id() -> None:
    first = replace(change(), since=1000.0004)
    again = replace(first, at=AT + 9, since=1000.0004000001)
    assert id_of(again) == id_of(first)
    others = [replace(first, since=1001.0), replace(first, since=None), change("newer")]
    assert len({id_of(each) for each in (first, *others)}) == 4

    async def main() -> None:
        queue = MemoryQueue()
        put = PutJob(queue)
        await put(first)
        await put(again)
        assert (await queue.stats()).ready == 1

    really(main)


def test_a_change_is_put_as_a_job_once() -> None:
    async def main() -> None:
        queue = MemoryQueue()
        put = PutJob(queue, "page-changed", priority=3)
        await put(change())
        await put(change())  # the same telling
        await put(change("newer"))
        (first,) = await queue.claim("w", 10, 30)  # those of one target come one by one
        assert first.job.kind == "page-changed"
        assert first.job.payload == payload_of(change())
        assert (first.job.key, first.job.priority) == ("shop", 3)
        await queue.settle([Settlement.done(first)])
        (second,) = await queue.claim("w", 10, 30)
        assert second.job.payload["after"]["value"] == "newer"
        await put(change(name="x" * 255))  # longer than a key may be
        await put.close()
        await PutJob(queue, keyed=False)(change())  # it was not closed: it was given
        await queue.close()

    really(main)


def test_a_queue_by_its_url_is_closed(tmp_path: Path) -> None:
    async def main() -> None:
        put = PutJob(f"sqlite:///{tmp_path}/jobs.db")
        await put(change())
        assert (await put.queue.stats()).ready == 1
        await put.close()

    really(main)
    with pytest.raises(ConfigError):
        PutJob("nonsense")
