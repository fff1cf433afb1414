"""The publisher to RabbitMQ, on a real broker and with faults on the way to it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import aio_pika
import pytest

from pollwise.errors import ConfigError
from pollwise.outbox.publishers import CloudEvents, RabbitPublisher
from tests.outbox.publishers.kit import (
    PUT_AT,
    attributes,
    cancel_and_go_on,
    event,
    failure,
    opened,
    publish,
    record,
    refusal,
)
from tests.support.brokers import OwnRabbitMQ, RabbitMQ
from tests.support.proxy import Proxy

#: The first of them starts the broker, which takes its time on a busy machine.


@asynccontextmanager
async def exchange(
    server: RabbitMQ, name: str | None = None, **queue: Any
) -> AsyncIterator[tuple[str, aio_pika.abc.AbstractQueue]]:
    """An exchange for topics, and a queue that gets all that is about orders."""
    async with await aio_pika.connect(server.url()) as connection:
        channel = await connection.channel()
        made = await channel.declare_exchange(name or f"events-{uuid4()}", "topic", durable=True)
        bound = await channel.declare_queue(None, exclusive=True, **queue)
        await bound.bind(made, "order.#")
        yield made.name, bound
        await made.delete()


async def got(queue: aio_pika.abc.AbstractQueue) -> aio_pika.abc.AbstractIncomingMessage:
    message = await queue.get(no_ack=True, fail=False)
    assert message is not None, "the queue is empty"
    return message


def test_a_record_is_published_in_its_envelope(rabbitmq: RabbitMQ) -> None:
    async def main() -> None:
        async with exchange(rabbitmq) as (name, queue):
            async with opened(RabbitPublisher(rabbitmq.url(), exchange=name)) as publisher:
                await publisher(record())
            message = await got(queue)
            assert json.loads(message.body) == event()
            assert message.content_type == "application/cloudevents+json; charset=UTF-8"
            assert (message.message_id, message.type) == ("1", "order.placed")
            assert message.routing_key == "order.placed"
            assert message.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
            assert message.headers == {"X-Region": "eu"}
            assert message.timestamp is not None
            assert message.timestamp.timestamp() == int(PUT_AT + 1)

    asyncio.run(main())


def test_binary_mode_has_the_envelope_in_headers(rabbitmq: RabbitMQ) -> None:
    async def main() -> None:
        async with exchange(rabbitmq) as (name, queue):
            publisher = RabbitPublisher(
                rabbitmq.url(),
                exchange=name,
                routing_key=lambda record: f"order.{record.key}",
                envelope=CloudEvents(mode="binary"),
            )
            async with opened(publisher):
                await publisher(record())
            message = await got(queue)
            assert json.loads(message.body) == {"total": "12 €"}
            assert message.content_type == "application/json"
            assert message.headers == {"X-Region": "eu", **attributes(prefix="cloudEvents_")}
            assert message.routing_key == "order.order-17"

    asyncio.run(main())


def test_the_default_exchange_leads_to_a_queue_by_name(rabbitmq: RabbitMQ) -> None:
    async def main() -> None:
        async with exchange(rabbitmq) as (_, queue):
            publisher = RabbitPublisher(rabbitmq.url(), exchange="", routing_key=queue.name)
            async with opened(publisher):
                await publisher(record())
            assert json.loads((await got(queue)).body) == event()
            assert publisher.name == "rabbitmq:default"

    asyncio.run(main())


def test_many_at_once_share_one_connection(rabbitmq: RabbitMQ) -> None:
    async def main() -> None:
        with Proxy(rabbitmq.port) as proxy:
            async with exchange(rabbitmq) as (name, queue):
                url = proxy.through(rabbitmq.url())
                async with opened(RabbitPublisher(url, exchange=name)) as publisher:
                    await asyncio.gather(*(publisher(record(n)) for n in range(1, 51)))
                    assert proxy.counts.accepted == 1
                numbers = {(await got(queue)).message_id for _ in range(50)}
                assert len(numbers) == 50

    asyncio.run(main())


def test_what_no_queue_gets_is_an_error_and_may_be_tried_again(rabbitmq: RabbitMQ) -> None:
    async def main() -> None:
        with Proxy(rabbitmq.port) as proxy:
            async with exchange(rabbitmq) as (name, queue):
                url = proxy.through(rabbitmq.url())
                async with opened(RabbitPublisher(url, exchange=name)) as publisher:
                    error = await failure(publisher(record(kind="invoice.sent")))
                    assert "routing key 'invoice.sent'" in str(error)
                    assert "bind one" in str(error)
                    await publisher(record())  # on the same connection
                    assert proxy.counts.accepted == 1
                assert (await got(queue)).message_id == "1"

    asyncio.run(main())


def test_what_no_queue_gets_is_dropped_if_that_is_wanted(rabbitmq: RabbitMQ) -> None:
    async def main() -> None:
        async with exchange(rabbitmq) as (name, _):
            publisher = RabbitPublisher(rabbitmq.url(), exchange=name, mandatory=False)
            async with opened(publisher):
                await publisher(record(kind="invoice.sent"))

    asyncio.run(main())


def test_a_full_queue_refuses_and_may_take_it_later(rabbitmq: RabbitMQ) -> None:
    async def main() -> None:
        limits = {"x-max-length": 1, "x-overflow": "reject-publish"}
        async with exchange(rabbitmq, arguments=limits) as (name, queue):
            async with opened(RabbitPublisher(rabbitmq.url(), exchange=name)) as publisher:
                await publisher(record(1))
                assert "nack" in str(await failure(publisher(record(2))))
                await got(queue)
                await publisher(record(2))
            assert (await got(queue)).message_id == "2"

    asyncio.run(main())


def test_an_exchange_that_is_declared_later_is_found(rabbitmq: RabbitMQ) -> None:
    async def main() -> None:
        name = f"late-{uuid4()}"
        async with opened(RabbitPublisher(rabbitmq.url(), exchange=name)) as publisher:
            error = await failure(publisher(record()))
            assert f"has no exchange {name!r}" in str(error)
            async with exchange(rabbitmq, name) as (_, queue):
                await publisher(record())
                assert (await got(queue)).message_id == "1"

    asyncio.run(main())


def test_an_exchange_that_may_not_be_written_to(rabbitmq: RabbitMQ) -> None:
    async def main() -> None:
        async with await aio_pika.connect(rabbitmq.url()) as connection:
            channel = await connection.channel()
            inner = await channel.declare_exchange(f"inner-{uuid4()}", "topic", internal=True)
            async with opened(RabbitPublisher(rabbitmq.url(), exchange=inner.name)) as publisher:
                assert "may not write to" in str(await failure(publisher(record())))
            await inner.delete()

    asyncio.run(main())


def test_a_record_that_is_too_large_is_refused_for_good(rabbitmq: RabbitMQ) -> None:
    async def main() -> None:
        async with exchange(rabbitmq) as (name, queue):
            async with opened(RabbitPublisher(rabbitmq.url(), exchange=name)) as publisher:
                error = await refusal(publisher(record(payload="x" * 1_100_000)))
                assert "too large" in str(error)
                error = await refusal(publisher(record(kind="order." + "ü" * 150)))
                assert "at most 255" in str(error)
                await publisher(record(2))
            assert (await got(queue)).message_id == "2"

    asyncio.run(main())


def test_a_broker_that_does_not_answer_is_given_up_in_time(rabbitmq: RabbitMQ) -> None:
    async def main() -> None:
        with Proxy(rabbitmq.port) as proxy:
            async with exchange(rabbitmq) as (name, queue):
                url = proxy.through(rabbitmq.url())
                publisher = RabbitPublisher(url, exchange=name, timeout="1s")
                async with opened(publisher):
                    proxy.hold()
                    assert "within 1 s" in str(await failure(publisher(record(1))))  # opening
                    proxy.release()
                    await publisher(record(2))
                    proxy.hold("answers")
                    error = await failure(publisher(record(3)))
                    assert "may or may not have the record" in str(error)
                    proxy.release()
                    await publisher(record(3))
                    assert proxy.counts.accepted == 3  # what did not answer is not used again
                numbers = [(await got(queue)).message_id for _ in range(3)]
                assert numbers == ["2", "3", "3"]

    asyncio.run(main())


def test_a_lost_connection_is_opened_again_by_the_next_record(rabbitmq: RabbitMQ) -> None:
    async def main() -> None:
        with Proxy(rabbitmq.port) as proxy:
            async with exchange(rabbitmq) as (name, queue):
                url = proxy.through(rabbitmq.url())
                async with opened(RabbitPublisher(url, exchange=name)) as publisher:
                    await publisher(record(1))
                    proxy.lose_answer(to=b"order.placed")
                    error = await failure(publisher(record(2)))
                    assert "ended the connection" in str(error)
                    await publisher(record(2))
                    proxy.refuse()
                    proxy.cut()
                    assert "cannot be reached" in str(await failure(publisher(record(3))))
                    proxy.accept()
                    await publisher(record(3))
                numbers = [(await got(queue)).message_id for _ in range(4)]
                assert numbers == ["1", "2", "2", "3"]

    asyncio.run(main())


def test_a_broker_that_was_killed_and_started_again(own_rabbitmq: OwnRabbitMQ) -> None:
    async def main() -> None:
        server = own_rabbitmq()
        publisher = RabbitPublisher(server.url(), exchange="events")
        async with await aio_pika.connect(server.url()) as connection:
            channel = await connection.channel()
            await channel.declare_exchange("events", "topic", durable=True)
            queue = await channel.declare_queue("all", durable=True)
            await queue.bind("events", "#")
            await publisher(record(1))
            server.kill()
        assert "cannot be reached" in str(await failure(publisher(record(2))))
        fresh = RabbitPublisher(server.url(), exchange="events")
        assert "cannot be reached" in str(await failure(fresh(record(2))))
        await asyncio.to_thread(server.start)
        await publisher(record(2))
        await fresh(record(3))
        await publisher.aclose()
        await fresh.aclose()
        async with await aio_pika.connect(server.url()) as connection:
            queue = await (await connection.channel()).get_queue("all")
            numbers = [(await got(queue)).message_id for _ in range(3)]
        assert numbers == ["1", "2", "3"]  # what was confirmed survived

    asyncio.run(main())


def test_a_record_that_is_cancelled_does_no_harm(rabbitmq: RabbitMQ) -> None:
    async def main() -> None:
        with Proxy(rabbitmq.port) as proxy:
            async with exchange(rabbitmq) as (name, _):
                url = proxy.through(rabbitmq.url())
                async with opened(RabbitPublisher(url, exchange=name)) as publisher:
                    await cancel_and_go_on(publisher, proxy)

    asyncio.run(main())


def test_a_publisher_outlives_its_event_loop(rabbitmq: RabbitMQ) -> None:
    async def declared(name: str) -> None:
        async with await aio_pika.connect(rabbitmq.url()) as connection:
            channel = await connection.channel()
            made = await channel.declare_exchange(name, "topic", auto_delete=False)
            await (await channel.declare_queue(f"{name}-all")).bind(made, "#")

    name = f"loops-{uuid4()}"
    asyncio.run(declared(name))
    publisher = RabbitPublisher(rabbitmq.url(), exchange=name)
    publish(publisher, record(1))
    publish(publisher, record(2))


def test_nothing_tells_the_password(rabbitmq: RabbitMQ, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        wrong = RabbitPublisher(rabbitmq.url(password="hunter2%40"), exchange="events")
        assert "hunter2" not in repr(wrong)
        error = await failure(wrong(record()), "hunter2")
        assert "refuses this user and password" in str(error)
        await wrong.aclose()
        nowhere = RabbitPublisher(rabbitmq.url(vhost="nowhere"), exchange="events")
        assert "virtual host" in str(await failure(nowhere(record())))
        await nowhere.aclose()

    asyncio.run(main())
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("url", "options", "told"),
    [
        ("http://broker", {"exchange": "e"}, "amqp://, amqps://"),
        ("amqp://u:hunter2@", {"exchange": "e"}, "cannot be read"),
        ("amqp://u:hunter2@broker:port/", {"exchange": "e"}, "cannot be read"),
        ("amqp://broker", {"exchange": "e" * 256}, "255 bytes"),
        ("amqp://broker", {"exchange": "e", "routing_key": 3}, "routing_key = 3"),
        ("amqp://broker", {"exchange": "e", "timeout": "-1s"}, "timeout"),
        ("amqp://broker", {"exchange": "e", "tiemout": "1s"}, "'tiemout'"),
    ],
)
def test_bad_arguments_are_refused_at_once(url: str, options: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        RabbitPublisher(url, **options)
    assert "hunter2" not in str(caught.value)


def test_a_function_that_chooses_no_text_is_told(rabbitmq: RabbitMQ) -> None:
    chosen: Any = lambda record: 3  # noqa: E731
    with pytest.raises(ConfigError, match="returned 3; it must return a string"):
        publish(RabbitPublisher(rabbitmq.url(), exchange="e", routing_key=chosen), record())
