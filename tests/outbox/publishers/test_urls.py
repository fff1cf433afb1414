"""Publishers by URL: the same as by their classes; and what is wrong with a URL."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pollwise.errors import ConfigError
from pollwise.outbox import NewRecord, Outbox
from pollwise.outbox.publishers import (
    CloudEvents,
    KafkaPublisher,
    NatsPublisher,
    Publisher,
    RabbitPublisher,
    RedisStreamPublisher,
    SnsPublisher,
    SqsPublisher,
    WebhookPublisher,
    open_publisher,
)
from pollwise.runtime.clock import VirtualClock
from pollwise.settings import load
from tests.cli.console import Command, good, pollwise
from tests.outbox.publishers.test_redis_streams import entries
from tests.support.daemons import wait_until
from tests.support.private import write_private
from tests.support.servers import Redis

SECRET = "a-secret-that-nobody-guesses"
TOPIC = "arn:aws:sns:us-east-1:000000000000:orders"


def parts(publisher: Publisher[Any]) -> dict[str, Any]:
    """All that was given to a publisher, and what it made of it."""
    left_out = ("clock", "_closing", "_secrets", "_limits")
    every = {k: v for k, v in vars(publisher).items() if k not in left_out}
    return every | {"class": type(publisher), "secrets": set(publisher._secrets)}


@pytest.mark.parametrize(
    ("url", "same"),
    [
        (
            "redis://app:hunter2@cache:1/2?stream=orders&maxlen=9&exact=true&name=mine",
            lambda: RedisStreamPublisher(
                "redis://app:hunter2@cache:1/2", stream="orders", maxlen=9, exact=True, name="mine"
            ),
        ),
        (
            "amqp://app:hunter2@broker/v?exchange=events&mandatory=false&timeout=3s",
            lambda: RabbitPublisher(
                "amqp://app:hunter2@broker/v", exchange="events", mandatory=False, timeout="3s"
            ),
        ),
        (
            "nats://app:hunter2@broker:4222?stream=ORDERS&source=/shop&mode=binary",
            lambda: NatsPublisher(
                "nats://app:hunter2@broker:4222",
                stream="ORDERS",
                envelope=CloudEvents("/shop", "binary"),
            ),
        ),
        (
            "kafka://One:9092,two:9093?topic=orders",
            lambda: KafkaPublisher("One:9092,two:9093", topic="orders"),
        ),
        (
            "sqs://Orders.fifo?region=eu-west-1",
            lambda: SqsPublisher("Orders.fifo", region="eu-west-1"),
        ),
        (f"sns://{TOPIC}", lambda: SnsPublisher(TOPIC)),
        (
            "https://app:hunter2@hooks.example/T0KEN?v=1#secret_file=secret&timeout=2s",
            lambda: WebhookPublisher(
                "https://app:hunter2@hooks.example/T0KEN?v=1", SECRET, timeout="2s"
            ),
        ),
    ],
)
def test_a_url_opens_what_its_class_opens(
    url: str, same: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_private(Path("secret"), f"{SECRET}\n")
    clock = VirtualClock()
    found = open_publisher(url, clock=clock)
    assert parts(found) == parts(same())
    assert found.clock is clock


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://:hunter2@cache/0", "publisher URLs of redis need stream, as in redis://cache/0"),
        ("amqp://broker/", "URLs of amqp need exchange, as in amqp://…?exchange=…"),
        ("redis://:hunter2@cache/0?steam=x", "do not take 'steam'; did you mean 'stream'?"),
        ("redis://cache/0?stream=x&stream=y", "stream is given twice"),
        ("redis://cache/0?stream=x&maxlen=many", "maxlen = 'many' is not a whole number"),
        ("amqp://broker/?exchange=x&mandatory=no", "mandatory = 'no' must be true or false"),
        ("https://hooks.example/T0KEN#secret_file=none", "secret file none cannot be read"),
        ("https://hooks.example/T0KEN#stream=x", "publisher URLs of https do not take 'stream'"),
        ("pigeon://roof", "no publisher has the scheme 'pigeon'; known: redis, rediss, amqp"),
        ("redi://:hunter2@cache", "no publisher has the scheme 'redi'; did you mean 'redis'?"),
        ("orders", "expected the URL of a publisher, such as redis://cache/0?stream=orders"),
        ("redis://[hunter2", "expected the URL of a publisher"),
        (7, "expected the URL of a publisher"),
    ],
)
def test_a_wrong_url_is_refused_without_its_secrets(url: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_publisher(url)
    assert said in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "T0KEN" not in str(caught.value)


def test_a_relay_without_a_program(
    redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stream, url = f"events:{uuid4()}", "sqlite:///shop.db"

    async def put() -> None:
        outbox = Outbox(url)
        await outbox.store.migrate()
        await outbox.store.put(NewRecord(kind) for kind in ("order.paid", "invoice.sent"))
        await outbox.close()

    asyncio.run(put())
    to = f"order.*,invoice.*={redis.url()}?stream={stream}"
    with Command("outbox", "run", url, env={"POLLWISE_OUTBOX_PUBLISH": to}) as relay:
        wait_until(lambda: len(entries(redis, stream)) == 2, "both records")
        assert relay.stopped() == 0, relay.err.all
    kinds = [json.loads(each["data"])["type"] for each in entries(redis, stream)]
    assert sorted(kinds) == ["invoice.sent", "order.paid"]


def test_where_to_publish_is_a_setting_without_secrets() -> None:
    hook = "order.*=https://app:hunter2@hooks.example/T0KEN?x=1"
    stream = "*=redis://:hunter2@cache/0?stream=a"
    rows = {
        row.key: row.value
        for row in load(environ={"POLLWISE_OUTBOX_PUBLISH": f"{hook} {stream}"}).table()
    }
    assert rows["outbox.publish"] == (
        "order.*=https://app:***@hooks.example *=redis://:***@cache/0?stream=a"
    )
    overrides = {"outbox.publish": [stream]}
    assert load(environ={}, overrides=overrides).outbox.publish == (stream,)
    assert "hunter2" not in repr(load(environ={}, overrides=overrides))
    with pytest.raises(ConfigError, match="is not PATTERN=URL; write like 'order") as caught:
        load(environ={"POLLWISE_OUTBOX_PUBLISH": "redis://:hunter2@cache/0"})
    assert "hunter2" not in str(caught.value)


def test_a_relay_needs_a_handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    good("outbox", "migrate", "sqlite:///shop.db")
    result = pollwise("outbox", "run", "sqlite:///shop.db")
    assert result.code != 0
    assert "or give --publish 'order.*=URL'" in result.err
