"""Publishers as handlers of a relay: what they raise becomes retries, and dead records."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pollwise.core.retry import Retry
from pollwise.errors import PublishError
from pollwise.outbox import NewRecord, Outbox
from pollwise.outbox.envelope import Message
from pollwise.outbox.publishers import Publisher, RedisStreamPublisher, WebhookPublisher, verify
from pollwise.outbox.publishers.aws import attributes
from pollwise.outbox.records import Record
from tests.outbox.publishers.kit import TRACEPARENT, publish, record
from tests.outbox.publishers.receiver import receiving
from tests.support.kit import Seen
from tests.support.servers import OwnRedis
from tests.support.traces import Traces, header_of, id_of, links_of

SECRET = "a-secret-that-nobody-guesses"
SOON = Retry.fixed("10ms", attempts=3)


async def until(outbox: Outbox, looked_for: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(20):
        while not looked_for(stats := await outbox.store.stats()):
            await asyncio.sleep(0.01)  # real time: a receiver is at work
    return stats


def nothing_left(stats: Any) -> bool:
    return stats.oldest_age is None


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    seen = Seen()
    return Outbox(f"sqlite:///{tmp_path}/shop.db", events=seen.events)


def test_records_of_a_key_arrive_in_order_though_some_are_tried_again(outbox: Outbox) -> None:
    async def main() -> None:
        await outbox.store.migrate()
        async with receiving() as receiver:
            receiver.answer("200 OK", "503 Busy", "429 Slow", "200 OK")
            outbox.handle("order.*", retry=SOON)(WebhookPublisher(receiver.url(), SECRET))
            await outbox.store.put([NewRecord("order.placed", n, "k") for n in range(5)])
            async with outbox.running():
                await until(outbox, nothing_left)
            for request in receiver.requests:
                verify(SECRET, request.headers, request.body)
            numbers = [json.loads(request.body)["data"] for request in receiver.requests]
            assert numbers == [0, 1, 1, 1, 2, 3, 4]
            keys = [request["Idempotency-Key"] for request in receiver.requests]
            assert keys[1] == keys[2] == keys[3]
            assert len(set(keys)) == 5
        await outbox.close()

    asyncio.run(main())


def test_what_the_receiver_refuses_is_dead_at_once(outbox: Outbox) -> None:
    async def main() -> None:
        await outbox.store.migrate()
        async with receiving() as receiver:
            receiver.answer("422 No")
            outbox.handle("*", retry=SOON)(WebhookPublisher(receiver.url("/T0KEN"), SECRET))
            await outbox.store.put([NewRecord("order.placed", n, "k") for n in range(2)])
            async with outbox.running():
                stats = await until(outbox, lambda stats: stats.dead)
            assert (stats.keys_blocked, stats.behind) == (1, 1)
            assert len(receiver.requests) == 1
            (blocked,) = await outbox.store.blocked()
            assert blocked.error is not None
            assert "answered 422 No" in blocked.error
            assert "T0KEN" not in blocked.error
        await outbox.close()

    asyncio.run(main())


def test_retry_after_is_respected(outbox: Outbox) -> None:
    async def main() -> None:
        await outbox.store.migrate()
        async with receiving() as receiver:
            receiver.answer("503 Busy", headers="Retry-After: 3600\r\n")
            outbox.handle("*", retry=SOON)(WebhookPublisher(receiver.url()))
            await outbox.store.put([NewRecord("order.placed")])
            async with outbox.running():
                await until(outbox, lambda stats: stats.waiting)
            (waiting,) = await outbox.store.records("waiting")
            # When it ends its wait: as the receiver asked, whatever the retry policy says.
            assert waiting.since > waiting.record.created_at + 3000
        await outbox.close()

    asyncio.run(main())


def test_a_broker_that_comes_back_gets_what_it_missed(outbox: Outbox, own_redis: OwnRedis) -> None:
    server = own_redis()

    async def main() -> None:
        await outbox.store.migrate()
        retry = Retry.fixed("20ms", attempts=None)
        publisher = RedisStreamPublisher(server.url(), stream="orders", timeout="2s")
        outbox.handle("*", retry=retry)(publisher)
        async with outbox.running():
            await outbox.store.put([NewRecord("order.placed", n, "k") for n in range(3)])
            await until(outbox, nothing_left)
            server.kill()
            await outbox.store.put([NewRecord("order.placed", n, "k") for n in range(3, 6)])
            await until(outbox, lambda stats: stats.waiting)
            server.start()
            await until(outbox, nothing_left)
        with server.client() as client:
            found: Any = client.xrange("orders")
        assert [json.loads(fields["data"])["data"] for _, fields in found] == [3, 4, 5]
        assert publisher._open_client is None  # closed with the relay
        await outbox.close()

    asyncio.run(main())


def test_the_trace_of_the_put_reaches_the_receiver(
    outbox: Outbox, tmp_path: Path, traces: Traces
) -> None:
    import sqlite3

    async def main() -> None:
        await outbox.store.migrate()
        async with receiving() as receiver:
            outbox.handle("*")(WebhookPublisher(receiver.url()))
            connection = sqlite3.connect(tmp_path / "shop.db")
            with connection:
                connection.execute("BEGIN")
                outbox.put(connection, "order.placed", {"id": 17})
            connection.close()
            async with outbox.running():
                await until(outbox, nothing_left)
            [request] = receiver.requests
        sent, ran = traces.one("send outbox:default"), traces.one("process outbox:default")
        created, hop = json.loads(request.body)["traceparent"], dict(request.headers)["traceparent"]
        assert created == header_of(sent)
        assert hop == header_of(ran)
        assert links_of(ran) == [id_of(sent)]
        await outbox.close()

    asyncio.run(main())


def test_every_transport_gets_the_header_of_the_trace() -> None:
    sent: list[Message] = []

    class Kept(Publisher[None]):
        async def _open(self) -> None: ...

        async def _send(self, client: None, record: Record, message: Message) -> None:
            sent.append(message)

        async def _close(self, client: None) -> None: ...

        def _explained(self, error: Exception) -> PublishError:
            raise error

    trace = {"traceparent": TRACEPARENT, "tracestate": "a=1"}
    for headers in (trace, {"traceparent": "forged"}, {}):
        publish(Kept("kept", "here", [], {}), record(headers=headers))
    assert [dict(each.headers) for each in sent] == [trace, {}, {}]
    crowded = {f"X-{n}": "1" for n in range(9)}
    assert set(attributes(Message(b"", headers=crowded | trace), {}, "here")) == {
        *crowded,
        "content-type",
    }
