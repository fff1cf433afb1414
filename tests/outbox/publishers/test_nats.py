"""The publisher to NATS JetStream, on a real server and with faults on the way to it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import nats as client
import pytest
from nats.js import JetStreamContext

from pollwise.errors import ConfigError
from pollwise.outbox.publishers import CloudEvents, NatsPublisher
from tests.outbox.publishers.kit import (
    attributes,
    cancel_and_go_on,
    event,
    failure,
    opened,
    publish,
    record,
    refusal,
    unique,
)
from tests.support.brokers import Nats, OwnNats
from tests.support.proxy import Proxy


@asynccontextmanager
async def stream(server: Nats, **config: Any) -> AsyncIterator[tuple[str, JetStreamContext]]:
    """A stream of its own, and the first word of the subjects that it takes."""
    connection = await client.connect(server.url())
    try:
        context = connection.jetstream()
        name = f"S{uuid4().hex}"
        await context.add_stream(name=name, subjects=[f"{name}.>"], **config)
        yield name, context
        await context.delete_stream(name)
    finally:
        await connection.close()


def inside(name: str) -> Any:
    return lambda record: f"{name}.{record.kind}"


async def count(context: JetStreamContext, name: str) -> int:
    return (await context.stream_info(name)).state.messages


def test_a_record_is_published_in_its_envelope(nats: Nats) -> None:
    async def main() -> None:
        async with stream(nats) as (name, context):
            publisher = NatsPublisher(nats.url(), subject=inside(name), stream=name)
            assert publisher.name == f"nats:{name}"
            async with opened(publisher):
                await publisher(record())
            message = await context.get_msg(name, 1)
            assert message.subject == f"{name}.order.placed"
            assert json.loads(message.data or b"") == event()
            assert message.headers == {
                "Nats-Msg-Id": unique(),
                "Nats-Expected-Stream": name,
                "content-type": "application/cloudevents+json; charset=UTF-8",
                "X-Region": "eu",
            }

    asyncio.run(main())


def test_binary_mode_has_the_envelope_in_headers(nats: Nats) -> None:
    async def main() -> None:
        async with stream(nats) as (name, context):
            publisher = NatsPublisher(
                nats.url(), subject=f"{name}.all", envelope=CloudEvents(mode="binary")
            )
            assert publisher.name == f"nats:{name}.all"
            async with opened(publisher):
                await publisher(record(headers={"tenant": "Größe 1", "Nats-Msg-Id": "forged"}))
            message = await context.get_msg(name, 1)
            assert json.loads(message.data or b"") == {"total": "12 €"}
            assert message.headers == {
                **attributes(prefix="ce-"),
                "ce-tenant": "Gr%C3%B6%C3%9Fe%201",
                "content-type": "application/json",
                "Nats-Msg-Id": unique(),
            }

    asyncio.run(main())


def test_a_repeat_is_dropped_by_the_stream_and_counts_as_published(nats: Nats) -> None:
    async def main() -> None:
        async with stream(nats) as (name, context):
            async with opened(NatsPublisher(nats.url(), subject=inside(name))) as publisher:
                await publisher(record(1))
                await publisher(record(1))
                await publisher(record(2))
                await publisher(record(1, outbox="other"))
            assert await count(context, name) == 3

    asyncio.run(main())


def test_many_at_once_share_one_connection(nats: Nats) -> None:
    async def main() -> None:
        with Proxy(nats.port) as proxy:
            async with stream(nats) as (name, context):
                url = proxy.through(nats.url())
                async with opened(NatsPublisher(url, subject=inside(name))) as publisher:
                    await asyncio.gather(*(publisher(record(n)) for n in range(1, 51)))
                    assert proxy.counts.accepted == 1
                assert await count(context, name) == 50

    asyncio.run(main())


def test_a_subject_that_no_stream_takes_may_be_taken_later(nats: Nats) -> None:
    async def main() -> None:
        async with stream(nats) as (name, context):
            chosen: Any = lambda record: f"{name}x.{record.kind}"  # noqa: E731
            async with opened(NatsPublisher(nats.url(), subject=chosen)) as publisher:
                assert "no stream includes" in str(await failure(publisher(record())))
                await context.update_stream(name=name, subjects=[f"{name}.>", f"{name}x.>"])
                await publisher(record())
            assert await count(context, name) == 1

    asyncio.run(main())


def test_another_stream_than_the_expected_one_is_an_error(nats: Nats) -> None:
    async def main() -> None:
        async with stream(nats) as (name, context):
            publisher = NatsPublisher(nats.url(), subject=inside(name), stream="OTHER")
            async with opened(publisher):
                assert "expected stream" in str(await failure(publisher(record())))
            assert await count(context, name) == 0

    asyncio.run(main())


def test_a_full_stream_refuses_and_may_take_it_later(nats: Nats) -> None:
    async def main() -> None:
        async with stream(nats, max_msgs=1, discard="new") as (name, context):
            async with opened(NatsPublisher(nats.url(), subject=inside(name))) as publisher:
                await publisher(record(1))
                error = await failure(publisher(record(2)))
                assert "did not accept the message" in str(error)
                await context.purge_stream(name)
                await publisher(record(2))

    asyncio.run(main())


def test_a_user_who_may_not_publish_is_told_so_at_once(own_nats: OwnNats) -> None:
    rights = '{ publish: ["_INBOX.>"], subscribe: "_INBOX.>" }'
    user = f"{{ user: low, password: hunter2, permissions: {rights} }}"
    server = own_nats(accounts=f"{{ A: {{ jetstream: enabled, users: [{user}] }} }}")
    url = f"nats://low:hunter2@127.0.0.1:{server.port}"

    async def main() -> None:
        async with opened(NatsPublisher(url, timeout="20s")) as publisher, asyncio.timeout(10):
            assert "may not publish" in str(await failure(publisher(record()), "hunter2"))

    asyncio.run(main())


def test_what_is_wrong_with_the_record_itself_is_refused_for_good(nats: Nats) -> None:
    async def main() -> None:
        async with stream(nats, max_msg_size=10_000) as (name, context):
            async with opened(NatsPublisher(nats.url(), subject=inside(name))) as publisher:
                for size in (20_000, 2_000_000):  # for the stream, for the server
                    error = await refusal(publisher(record(payload="x" * size)))
                    assert "larger than" in str(error)
                for kind in ("order placed", "order.*", "order..placed", "order.>"):
                    assert "is not a valid subject" in str(
                        await refusal(publisher(record(kind=kind)))
                    )
                await publisher(record())
            assert await count(context, name) == 1

    asyncio.run(main())


def test_a_server_that_does_not_answer_is_given_up_in_time(nats: Nats) -> None:
    async def main() -> None:
        with Proxy(nats.port) as proxy:
            async with stream(nats) as (name, context):
                url = proxy.through(nats.url())
                publisher = NatsPublisher(url, subject=inside(name), timeout="1s")
                async with opened(publisher):
                    proxy.hold()
                    assert "within 1 s" in str(await failure(publisher(record(1))))
                    proxy.release()
                    await publisher(record(2))
                    proxy.hold("answers")
                    error = await failure(publisher(record(3)))
                    assert "may or may not have the record" in str(error)
                    proxy.release()
                    await publisher(record(3))
                assert await count(context, name) == 2  # the repeat was dropped

    asyncio.run(main())


def test_a_lost_connection_is_opened_again_by_the_next_record(nats: Nats) -> None:
    async def main() -> None:
        with Proxy(nats.port) as proxy:
            async with stream(nats) as (name, context):
                url = proxy.through(nats.url())
                publisher = NatsPublisher(url, subject=inside(name), timeout="20s")
                async with opened(publisher), asyncio.timeout(10):
                    await publisher(record(1))
                    proxy.lose_answer(to=b"order.placed")
                    error = await failure(publisher(record(2)))
                    assert "ended the connection" in str(error)
                    await publisher(record(2))
                    proxy.refuse()
                    proxy.cut()
                    await failure(publisher(record(3)))
                    assert "cannot be reached" in str(await failure(publisher(record(3))))
                    proxy.accept()
                    await publisher(record(3))
                assert await count(context, name) == 3

    asyncio.run(main())


def test_a_server_that_was_killed_and_started_again(own_nats: OwnNats) -> None:
    server = own_nats()

    async def main() -> None:
        connection = await client.connect(server.url())
        await connection.jetstream().add_stream(name="S", subjects=["S.>"])
        await connection.close()
        fresh = NatsPublisher(server.url(), subject=inside("S"))
        async with opened(NatsPublisher(server.url(), subject=inside("S"))) as publisher:
            await publisher(record(1))
            server.kill()
            await failure(publisher(record(2)), server.password)
            error = await failure(fresh(record(2)), server.password)
            assert "cannot be reached" in str(error)
            await asyncio.to_thread(server.start)
            await publisher(record(2))
            await fresh(record(3))
            await fresh.aclose()
        connection = await client.connect(server.url())
        assert await count(connection.jetstream(), "S") == 3
        await connection.close()

    asyncio.run(main())


def test_a_record_that_is_cancelled_does_no_harm(nats: Nats) -> None:
    async def main() -> None:
        with Proxy(nats.port) as proxy:
            async with stream(nats) as (name, _):
                url = proxy.through(nats.url())
                async with opened(NatsPublisher(url, subject=inside(name))) as publisher:
                    await cancel_and_go_on(publisher, proxy)

    asyncio.run(main())


def test_a_publisher_outlives_its_event_loop(nats: Nats) -> None:
    async def main() -> str:
        connection = await client.connect(nats.url())
        name = f"S{uuid4().hex}"
        await connection.jetstream().add_stream(name=name, subjects=[f"{name}.>"])
        await connection.close()
        return name

    publisher = NatsPublisher(nats.url(), subject=inside(asyncio.run(main())))
    publish(publisher, record(1))
    publish(publisher, record(2))


def test_nothing_tells_the_password(nats: Nats, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        for wrong in (
            NatsPublisher(nats.url("hunter2%40")),
            NatsPublisher(f"nats://127.0.0.1:{nats.port}", connect={"token": "hunter2"}),
        ):
            assert "hunter2" not in repr(wrong)
            error = await failure(wrong(record()), "hunter2")
            assert "refuses these credentials" in str(error)
            await wrong.aclose()

    asyncio.run(main())
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("url", "options", "told"),
    [
        ("http://broker", {}, "nats://, tls://"),
        ([], {}, "give the URL"),
        ("nats://u:hunter2@broker:port", {}, "cannot be read"),
        ("nats://broker", {"subject": "order.*"}, "subject = 'order.\\*'"),
        ("nats://broker", {"subject": ""}, "subject = ''"),
        ("nats://broker", {"mode": "binary"}, "'mode'"),
    ],
)
def test_bad_arguments_are_refused_at_once(url: Any, options: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        NatsPublisher(url, **options)
    assert "hunter2" not in str(caught.value)
