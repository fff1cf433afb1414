"""The publisher to Kafka, on librdkafka's mock cluster: see `tests/kafka.py` for what that is."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaConsumer

from pollwise.errors import ConfigError
from pollwise.outbox.publishers import CloudEvents, KafkaPublisher
from tests.outbox.publishers.kit import attributes, event, failure, opened, publish, record, refusal
from tests.support.kafka import (
    MESSAGE_TOO_LARGE,
    NOT_ENOUGH_REPLICAS,
    OUT_OF_ORDER,
    PRODUCE,
    TOPIC_DENIED,
    UNKNOWN_TOPIC,
    Kafka,
)
from tests.support.proxy import Proxy


@pytest.fixture
def topic(kafka: Kafka) -> str:
    name = f"orders-{uuid4()}"
    kafka.create(name)
    return name


@asynccontextmanager
async def consumed(kafka: Kafka, topic: str) -> AsyncIterator[Any]:
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=kafka.servers, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def messages(kafka: Kafka, topic: str, count: int) -> list[Any]:
    async with consumed(kafka, topic) as consumer, asyncio.timeout(20):
        return [await consumer.getone() for _ in range(count)]


def read(kafka: Kafka, topic: str, count: int) -> list[Any]:
    return asyncio.run(messages(kafka, topic, count))


def test_a_record_is_published_in_its_envelope(kafka: Kafka, topic: str) -> None:
    publisher = KafkaPublisher(kafka.servers, topic=topic)
    assert publisher.name == f"kafka:{topic}"
    publish(publisher, record())
    (message,) = read(kafka, topic, 1)
    assert json.loads(message.value) == event()
    assert message.key == b"order-17"
    assert message.timestamp == 1_767_225_601_250
    assert dict(message.headers) == {
        "content-type": b"application/cloudevents+json; charset=UTF-8",
        "X-Region": b"eu",
    }


def test_binary_mode_has_the_envelope_in_headers(kafka: Kafka, topic: str) -> None:
    publisher = KafkaPublisher(
        [kafka.servers],
        topic=lambda record: topic,
        envelope=CloudEvents(mode="binary"),
        connect={"compression_type": "gzip"},
    )
    publish(publisher, record())
    (message,) = read(kafka, topic, 1)
    assert json.loads(message.value) == {"total": "12 €"}
    expected = {name: text.encode() for name, text in attributes(prefix="ce_").items()}
    assert dict(message.headers) == {
        **expected,
        "content-type": b"application/json",
        "X-Region": b"eu",
    }


def test_records_of_a_key_are_in_one_partition_in_order(kafka: Kafka, topic: str) -> None:
    records = [record(n, key=f"k{n % 5}") for n in range(1, 51)]
    publish(KafkaPublisher(kafka.servers, topic=topic), *records)
    found = read(kafka, topic, 50)
    partitions: dict[bytes, set[int]] = {}
    numbers: dict[bytes, list[int]] = {}
    for message in found:
        partitions.setdefault(message.key, set()).add(message.partition)
        numbers.setdefault(message.key, []).append(int(json.loads(message.value)["id"]))
    assert all(len(each) == 1 for each in partitions.values())
    assert len(set.union(*partitions.values())) > 1
    assert all(each == sorted(each) for each in numbers.values())


def test_a_record_without_a_key_has_none(kafka: Kafka, topic: str) -> None:
    publish(KafkaPublisher(kafka.servers, topic=topic), record(key=None))
    (message,) = read(kafka, topic, 1)
    assert message.key is None
    assert "subject" not in json.loads(message.value)


def test_what_passes_is_tried_again_by_the_client_itself(kafka: Kafka, topic: str) -> None:
    kafka.fail(PRODUCE, [NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS])
    publish(KafkaPublisher(kafka.servers, topic=topic), record())
    assert len(read(kafka, topic, 1)) == 1


def test_what_the_broker_refuses(kafka: Kafka, topic: str) -> None:
    async def main() -> None:
        async with opened(KafkaPublisher(kafka.servers, topic=topic)) as publisher:
            kafka.fail(PRODUCE, [TOPIC_DENIED])
            assert "refuses this user" in str(await failure(publisher(record(1))))
            await publisher(record(1))
            # An idempotent producer is of no use after this one: a new one is opened.
            kafka.fail(PRODUCE, [OUT_OF_ORDER])
            assert "OutOfOrder" in str(await failure(publisher(record(2))))
            await publisher(record(2))
            kafka.fail(PRODUCE, [MESSAGE_TOO_LARGE])
            assert "larger than" in str(await refusal(publisher(record(3))))
            await publisher(record(4))

    asyncio.run(main())
    found = [json.loads(message.value)["id"] for message in read(kafka, topic, 3)]
    assert found == ["1", "2", "4"]


def test_what_is_wrong_with_the_record_itself_is_refused_for_good(kafka: Kafka, topic: str) -> None:
    async def main() -> None:
        chosen = lambda record: record.kind if record.id == "1" else topic  # noqa: E731
        async with opened(KafkaPublisher(kafka.servers, topic=chosen)) as publisher:
            error = await refusal(publisher(record(1, kind="order placed")))
            assert "'order placed', of record 1, is not a valid topic" in str(error)
            error = await refusal(publisher(record(2, payload="x" * 1_100_000)))
            assert "larger than" in str(error)
            await publisher(record(3))

    asyncio.run(main())


def test_a_topic_that_is_not_there_may_be_made_later(kafka: Kafka, topic: str) -> None:
    async def main() -> None:
        async with opened(KafkaPublisher(kafka.servers, topic=topic, timeout="1s")) as publisher:
            kafka.fail_topic(topic, UNKNOWN_TOPIC)
            assert "the topic does not exist" in str(await failure(publisher(record())))
            kafka.fail_topic(topic, 0)
            await publisher(record())

    asyncio.run(main())


def test_faults_on_the_way(kafka: Kafka, topic: str) -> None:
    async def main() -> None:
        publisher = KafkaPublisher(kafka.servers, topic=topic, timeout="1s")
        async with opened(publisher):
            kafka.down()
            assert "cannot be reached" in str(await failure(publisher(record(1))))
            kafka.up()
            await publisher(record(1))
            kafka.down()
            await failure(publisher(record(2)))
            kafka.up()
            await publisher(record(2))
            kafka.slow(3)
            try:
                error = await failure(publisher(record(3)))
                assert "within 1 s" in str(error) or "Timeout" in str(error)
            finally:
                kafka.slow(0)
            await publisher(record(4))

    asyncio.run(main())


def test_a_bootstrap_server_that_does_not_answer_is_given_up_in_time(kafka: Kafka) -> None:
    async def main() -> None:
        with Proxy(kafka.port) as proxy:
            proxy.hold()
            publisher = KafkaPublisher(f"127.0.0.1:{proxy.port}", topic="t", timeout="300ms")
            async with opened(publisher):
                await failure(publisher(record()))

    asyncio.run(main())


def test_a_publisher_outlives_its_event_loop(kafka: Kafka, topic: str) -> None:
    publisher = KafkaPublisher(kafka.servers, topic=topic)
    publish(publisher, record(1))
    publish(publisher, record(2))
    assert len(read(kafka, topic, 2)) == 2


def test_nothing_tells_the_password(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        publisher = KafkaPublisher(
            kafka.servers,
            topic="t",
            timeout="500ms",
            connect={
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "PLAIN",
                "sasl_plain_username": "app",
                "sasl_plain_password": "hunter2",
            },
        )
        assert "hunter2" not in repr(publisher)
        async with opened(publisher):
            await failure(publisher(record()), "hunter2")

    asyncio.run(main())
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("servers", "options", "told"),
    [
        ("kafka://u:hunter2@broker", {"topic": "t"}, "servers must be like"),
        ([], {"topic": "t"}, "servers must be like"),
        ("broker:9092", {"topic": "a b"}, "topic = 'a b'"),
        ("broker:9092", {"topic": ".."}, "topic = '..'"),
        ("broker:9092", {"topic": "t", "connect": {"acks": 0}}, "the publisher sets acks itself"),
    ],
)
def test_bad_arguments_are_refused_at_once(servers: Any, options: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        KafkaPublisher(servers, **options)
    assert "hunter2" not in str(caught.value)
