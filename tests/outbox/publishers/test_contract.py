"""Our own publishers keep the contract that users try theirs on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from pollwise.outbox.publishers import (
    NatsPublisher,
    Publisher,
    RabbitPublisher,
    RedisStreamPublisher,
    WebhookPublisher,
)
from pollwise.testing.contracts import Delivered, PublisherContract
from tests.outbox.publishers.receiver import receiving
from tests.outbox.publishers.test_nats import inside, stream
from tests.outbox.publishers.test_rabbitmq import exchange
from tests.support.brokers import Nats, RabbitMQ
from tests.support.daemons import free_port
from tests.support.servers import Redis

SECRET = "a-secret-that-nobody-guesses"


class WebhookContract(PublisherContract):
    secrets = (SECRET, "T0KEN")

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with receiving() as self.receiver:
            yield

    def publisher(self) -> Publisher[Any]:
        return WebhookPublisher(self.receiver.url("/T0KEN"), SECRET)

    def unreachable(self) -> Publisher[Any]:
        return WebhookPublisher(f"http://127.0.0.1:{free_port()}/T0KEN", SECRET)

    async def arrived(self) -> Sequence[Delivered]:
        return [Delivered(it["Idempotency-Key"], it.body) for it in self.receiver.requests]


class RedisContract(PublisherContract):
    secrets = ("hunter2",)

    def __init__(self, server: Redis) -> None:
        self.server = server

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        self.stream = f"events:{uuid4()}"
        yield

    def publisher(self) -> Publisher[Any]:
        return RedisStreamPublisher(self.server.url(), stream=self.stream)

    def unreachable(self) -> Publisher[Any]:
        url = f"redis://:hunter2@127.0.0.1:{free_port()}"
        return RedisStreamPublisher(url, stream=self.stream)

    async def arrived(self) -> Sequence[Delivered]:
        with self.server.client() as client:
            found: Any = client.xrange(self.stream)
        return [Delivered(fields["id"], fields["data"].encode()) for _, fields in found]


class NatsContract(PublisherContract):
    """Its stream drops repeats by their id."""

    secrets = ("hunter2",)

    def __init__(self, server: Nats) -> None:
        self.server = server

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with stream(self.server) as (self.name, self.context):
            yield

    def publisher(self) -> Publisher[Any]:
        return NatsPublisher(self.server.url(), subject=inside(self.name), stream=self.name)

    def unreachable(self) -> Publisher[Any]:
        return NatsPublisher(f"nats://app:hunter2@127.0.0.1:{free_port()}", stream=self.name)

    async def arrived(self) -> Sequence[Delivered]:
        count = (await self.context.stream_info(self.name)).state.messages
        found = [await self.context.get_msg(self.name, n + 1) for n in range(count)]
        return [Delivered((it.headers or {})["Nats-Msg-Id"], it.data or b"") for it in found]


class RabbitContract(PublisherContract):
    """Its consumers drop repeats by what the envelope says."""

    secrets = ("hunter2",)

    def __init__(self, server: RabbitMQ) -> None:
        self.server = server

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with exchange(self.server) as (self.name, self.queue):
            self.found: list[Delivered] = []
            yield

    def publisher(self) -> Publisher[Any]:
        return RabbitPublisher(self.server.url(), exchange=self.name)

    def unreachable(self) -> Publisher[Any]:
        return RabbitPublisher(f"amqp://app:hunter2@127.0.0.1:{free_port()}/", exchange=self.name)

    async def arrived(self) -> Sequence[Delivered]:
        while message := await self.queue.get(no_ack=True, fail=False):
            event = json.loads(message.body)
            outbox, number = event["source"].rpartition("/")[2], event["id"]
            assert message.message_id == number
            put = round((1_767_225_600.25 + int(number)) * 1e6)
            self.found.append(Delivered(f"{outbox}-{number}-{put}", message.body))
        return self.found


@pytest.fixture(params=["webhook", "redis", "nats", "rabbitmq"])
def contract(request: pytest.FixtureRequest) -> PublisherContract:
    if request.param == "webhook":
        return WebhookContract()
    server = request.getfixturevalue(request.param)
    kinds: dict[str, type[Any]] = {
        "redis": RedisContract, "nats": NatsContract, "rabbitmq": RabbitContract
    }  # fmt: skip
    made: PublisherContract = kinds[request.param](server)
    return made


@pytest.mark.parametrize("check", PublisherContract.checks())
def test_contract(contract: PublisherContract, check: str) -> None:
    contract.run(check)
