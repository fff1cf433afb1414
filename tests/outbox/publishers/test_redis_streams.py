"""The publisher to Redis Streams, on the oldest and the newest server, and with faults."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any
from uuid import uuid4

import pytest

from pollwise.errors import ConfigError
from pollwise.outbox.publishers import CloudEvents, RedisStreamPublisher
from tests.outbox.publishers.kit import (
    attributes,
    event,
    failure,
    opened,
    publish,
    record,
    unique,
)
from tests.support.proxy import Proxy
from tests.support.servers import OwnRedis, Redis


def entries(server: Redis, stream: str) -> list[dict[str, str]]:
    with server.client() as client:
        found: Any = client.xrange(stream)
        return [fields for _, fields in found]


@pytest.fixture(params=["redis", "redis_oldest"])
def server(request: pytest.FixtureRequest) -> Redis:
    found: Redis = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def stream() -> str:
    return f"events:{uuid4()}"


def test_a_record_is_published_in_its_envelope(server: Redis, stream: str) -> None:
    publisher = RedisStreamPublisher(server.url(), stream=stream)
    assert publisher.name == f"redis:{stream}"
    publish(publisher, record())
    (fields,) = entries(server, stream)
    assert json.loads(fields.pop("data")) == event()
    assert fields == {
        "id": unique(),
        "content-type": "application/cloudevents+json; charset=UTF-8",
        "X-Region": "eu",
    }


def test_binary_mode_has_the_envelope_in_fields(server: Redis, stream: str) -> None:
    publish(
        RedisStreamPublisher(
            server.url(),
            stream=lambda record: f"{stream}:{record.key}",
            envelope=CloudEvents(mode="binary"),
        ),
        record(),
    )
    (fields,) = entries(server, f"{stream}:order-17")
    assert fields == {
        **attributes(prefix="ce_"),
        "data": '{"total":"12 €"}',
        "content-type": "application/json",
        "id": unique(),
        "X-Region": "eu",
    }


def test_a_record_cannot_forge_the_fields_of_the_entry(server: Redis, stream: str) -> None:
    publish(
        RedisStreamPublisher(server.url(), stream=stream),
        record(headers={"data": "forged", "id": "forged", "content-type": "forged"}),
    )
    (fields,) = entries(server, stream)
    assert "forged" not in fields.values()


def test_old_entries_are_dropped_if_a_length_is_given(server: Redis, stream: str) -> None:
    exactly = RedisStreamPublisher(server.url(), stream=stream, maxlen=3, exact=True)
    publish(exactly, *(record(n) for n in range(1, 11)))
    assert [fields["id"] for fields in entries(server, stream)] == [unique(n) for n in (8, 9, 10)]
    about = RedisStreamPublisher(server.url(), stream=f"{stream}:about", maxlen=10)
    publish(about, *(record(n) for n in range(1, 501)))
    assert 10 <= len(entries(server, f"{stream}:about")) < 400


def test_many_at_once_use_few_connections(redis: Redis, stream: str) -> None:
    async def main() -> None:
        with Proxy(redis.port) as proxy:
            url = proxy.through(redis.url())
            async with opened(RedisStreamPublisher(url, stream=stream)) as publisher:
                await asyncio.gather(*(publisher(record(n)) for n in range(1, 201)))
            assert proxy.counts.accepted <= 8

    asyncio.run(main())
    assert len(entries(redis, stream)) == 200


def test_a_key_that_is_no_stream(server: Redis, stream: str) -> None:
    server.execute("SET", stream, "text")

    async def main() -> None:
        async with opened(RedisStreamPublisher(server.url(), stream=stream)) as publisher:
            assert "is not a stream" in str(await failure(publisher(record())))
            server.execute("DEL", stream)
            await publisher(record())

    asyncio.run(main())


def test_a_full_server_refuses_and_may_take_it_later(own_redis: OwnRedis, stream: str) -> None:
    server = own_redis()

    async def main() -> None:
        async with opened(RedisStreamPublisher(server.url(), stream=stream)) as publisher:
            server.execute("CONFIG", "SET", "maxmemory", 1)
            assert "memory is full" in str(await failure(publisher(record())))
            server.execute("CONFIG", "SET", "maxmemory", 0)
            await publisher(record())

    asyncio.run(main())


def test_a_server_that_does_not_answer_is_given_up_in_time(redis: Redis, stream: str) -> None:
    async def main() -> None:
        with Proxy(redis.port) as proxy:
            url = proxy.through(redis.url())
            publisher = RedisStreamPublisher(url, stream=stream, timeout="1s")
            async with opened(publisher):
                proxy.hold()
                assert "within 1 s" in str(await failure(publisher(record(1))))
                proxy.release()
                await publisher(record(2))

    asyncio.run(main())


def test_a_lost_connection_is_opened_again_by_the_next_record(redis: Redis, stream: str) -> None:
    async def main() -> None:
        with Proxy(redis.port) as proxy:
            url = proxy.through(redis.url())
            async with opened(RedisStreamPublisher(url, stream=stream)) as publisher:
                await publisher(record(1))
                proxy.lose_answer(to=b"XADD")
                assert "may or may not have been carried out" in str(
                    await failure(publisher(record(2)))
                )
                await publisher(record(2))
                proxy.refuse()
                proxy.cut()
                await failure(publisher(record(3)))
                assert "cannot be reached" in str(await failure(publisher(record(3))))
                proxy.accept()
                await publisher(record(3))

    asyncio.run(main())
    # A repeat stands in the stream twice, and its consumers drop it by its id.
    numbers = [fields["id"] for fields in entries(redis, stream)]
    assert numbers == [unique(n) for n in (1, 2, 2, 3)]


def test_a_server_that_was_killed_and_started_again(own_redis: OwnRedis, stream: str) -> None:
    server = own_redis(appendonly="yes", requirepass="hunter2")

    async def main() -> None:
        fresh = RedisStreamPublisher(server.url(), stream=stream)
        async with opened(RedisStreamPublisher(server.url(), stream=stream)) as publisher:
            await publisher(record(1))
            server.kill()
            await failure(publisher(record(2)), "hunter2")
            assert "cannot be reached" in str(await failure(fresh(record(2)), "hunter2"))
            server.start()
            await publisher(record(2))
            await fresh(record(3))
            await fresh.aclose()

    asyncio.run(main())
    assert [fields["id"] for fields in entries(server, stream)] == [unique(n) for n in (1, 2, 3)]


def test_nothing_tells_the_password(
    own_redis: OwnRedis, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = own_redis(requirepass="correct")
    server.execute("ACL", "SETUSER", "app", "on", ">hunter2", "~other:*", "+@all")

    async def main() -> None:
        wrong = RedisStreamPublisher(server.url(password="hunter2"), stream=stream)
        assert "hunter2" not in repr(wrong)
        assert "Correct the user" in str(await failure(wrong(record()), "hunter2"))
        await wrong.aclose()
        denied = RedisStreamPublisher(server.url(user="app", password="hunter2"), stream=stream)
        assert "allow this user XADD" in str(await failure(denied(record()), "hunter2"))
        await denied.aclose()

    asyncio.run(main())
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("url", "options", "told"),
    [
        ("http://cache", {"stream": "s"}, "redis://, rediss://"),
        ("redis://:hunter2@cache:port", {"stream": "s"}, "cannot be read"),
        ("redis://cache", {"stream": ""}, "stream = ''"),
        ("redis://cache", {"stream": "s", "maxlen": 0}, "maxlen = 0"),
    ],
)
def test_bad_arguments_are_refused_at_once(url: str, options: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        RedisStreamPublisher(url, **options)
    assert "hunter2" not in str(caught.value)
