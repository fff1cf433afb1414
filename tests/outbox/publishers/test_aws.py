"""The publishers to SQS and SNS, on MiniStack, and with faults on the way to it."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

import pytest
from botocore.config import Config
from botocore.session import Session

from pollwise.errors import ConfigError, PublishError
from pollwise.outbox.publishers import CloudEvents, Publisher, SnsPublisher, SqsPublisher
from pollwise.outbox.publishers.aws import AwsClient, Batcher
from tests.outbox.publishers.kit import attributes, event, failure, opened, publish, record, refusal
from tests.support.clouds import CREDENTIALS, MiniStack
from tests.support.proxy import Proxy


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


def client(server: MiniStack, service: str) -> Any:
    return Session().create_client(
        service, endpoint_url=server.endpoint, config=Config(retries={"total_max_attempts": 1})
    )


class Place:
    """A queue, and a topic whose messages it gets, FIFO or not."""

    def __init__(self, server: MiniStack, fifo: bool = False) -> None:
        self.server = server
        self.sqs, self.sns = client(server, "sqs"), client(server, "sns")
        suffix = ".fifo" if fifo else ""
        more: dict[str, Any] = {"Attributes": {"FifoQueue": "true"}} if fifo else {}
        self.queue = f"orders-{uuid4()}{suffix}"
        self.url = self.sqs.create_queue(QueueName=self.queue, **more)["QueueUrl"]
        more = {"Attributes": {"FifoTopic": "true"}} if fifo else {}
        self.topic = self.sns.create_topic(Name=f"orders-{uuid4()}{suffix}", **more)["TopicArn"]
        self.sns.subscribe(
            TopicArn=self.topic,
            Protocol="sqs",
            Endpoint=f"arn:aws:sqs:us-east-1:000000000000:{self.queue}",
            Attributes={"RawMessageDelivery": "true"},
        )

    def publisher(self, service: str, **options: Any) -> Publisher[Any]:
        options = {"endpoint": self.server.endpoint, **options}
        if service == "sns":
            return SnsPublisher(self.topic, **options)
        return SqsPublisher(self.queue, **options)

    def received(self, count: int = 1) -> list[Any]:
        found: list[Any] = []
        for _ in range(3 + count):
            found += self.sqs.receive_message(
                QueueUrl=self.url,
                MaxNumberOfMessages=10,
                WaitTimeSeconds=1 if len(found) < count else 0,
                MessageAttributeNames=["All"],
                AttributeNames=["All"],
            ).get("Messages", [])
            if len(found) >= count:
                break
        return found


@pytest.fixture
def place(ministack: MiniStack) -> Place:
    return Place(ministack)


@pytest.fixture
def fifo(ministack: MiniStack) -> Place:
    return Place(ministack, fifo=True)


def named(message: Any) -> dict[str, str]:
    return {n: v["StringValue"] for n, v in message.get("MessageAttributes", {}).items()}


both = pytest.mark.parametrize("service", ["sqs", "sns"])


@both
def test_a_record_is_published_in_its_envelope(place: Place, service: str) -> None:
    publish(place.publisher(service), record())
    (message,) = place.received()
    assert json.loads(message["Body"]) == event()
    assert named(message) == {
        "content-type": "application/cloudevents+json; charset=UTF-8",
        "ce_type": "order.placed",
        "X-Region": "eu",
    }


@both
def test_binary_mode_has_the_envelope_in_attributes(place: Place, service: str) -> None:
    publisher = place.publisher(service, envelope=CloudEvents(mode="binary"))
    publish(publisher, record(headers={"tenant": "acme"}))
    (message,) = place.received()
    assert json.loads(message["Body"]) == {"total": "12 €"}
    assert named(message) == {"content-type": "application/json", **attributes(prefix="ce_")}


@both
def test_a_fifo_keeps_the_order_of_a_key_and_drops_repeats(fifo: Place, service: str) -> None:
    records = [record(n) for n in (1, 2, 2, 3)]
    publish(fifo.publisher(service), *records, record(4, key=None), record(5, key="naïve key"))
    messages = fifo.received(5)
    keyed = [m for m in messages if m["Attributes"].get("MessageGroupId") == "order-17"]
    assert [json.loads(m["Body"])["id"] for m in keyed] == ["1", "2", "3"]
    assert len(messages) == 5
    assert len({m["Attributes"]["MessageGroupId"] for m in messages}) == 3


@both
def test_characters_that_xml_lacks_arrive(place: Place, service: str) -> None:
    text = "\ufffe \uffff \x01 \t 😀 ü"
    publish(place.publisher(service), record(payload=text))
    (message,) = place.received()
    assert json.loads(message["Body"])["data"] == text


@both
def test_what_goes_at_the_same_time_goes_in_one_call(place: Place, service: str) -> None:
    async def main() -> None:
        with Proxy(place.server.port) as proxy:
            endpoint = f"http://127.0.0.1:{proxy.port}"
            async with opened(place.publisher(service, endpoint=endpoint)) as publisher:
                await publisher(record(1))
                before = proxy.counts.exchanges
                await asyncio.gather(*(publisher(record(n)) for n in range(2, 32)))
                assert proxy.counts.exchanges - before == 3
                # By size, too: each alone fits, together they do not.
                before = proxy.counts.exchanges
                large = "x" * (publisher.size_max * 2 // 3)
                await asyncio.gather(*(publisher(record(n, payload=large)) for n in (32, 33)))
                assert proxy.counts.exchanges - before == 2

    asyncio.run(main())
    assert len(place.received(33)) == 33


def test_one_that_is_refused_does_not_spoil_its_batch(ministack: MiniStack) -> None:
    async def main() -> None:
        publisher = SqsPublisher("q", region="us-east-1", endpoint=ministack.endpoint)

        class Client:
            async def send_message_batch(self, **given: Any) -> Any:
                failed = {"Code": "InvalidMessageContents", "Message": "no"}
                trouble = {"Code": "InternalError", "SenderFault": False}
                return {"Failed": [{"Id": "1", **failed}, {"Id": "2", **trouble}]}

        batcher = Batcher(lambda entries: publisher._batch(Client(), entries), publisher.size_max)
        publisher._url = "http://q"
        link = AwsClient(None, AsyncExitStack(), batcher)
        results = await asyncio.gather(
            *(
                publisher._send(link, each, CloudEvents()(each))
                for each in (record(1), record(2), record(3), record(4))
            ),
            return_exceptions=True,
        )
        assert [type(each).__name__ for each in results] == [
            "NoneType", "PublishRefused", "PublishError", "NoneType",
        ]  # fmt: skip

    asyncio.run(main())


def test_one_that_gives_up_is_not_sent_and_spoils_nothing() -> None:
    sent: list[Any] = []

    async def send(entries: list[Any]) -> list[PublishError | None]:
        sent.extend(entries)
        await asyncio.sleep(0)
        return [None] * len(entries)

    async def main() -> None:
        batcher = Batcher(send, 1000)
        tasks = [asyncio.create_task(batcher.send({"n": n}, 1)) for n in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.wait(tasks)
        assert [task.cancelled() for task in tasks] == [False, True, False]
        assert sent == [{"n": 0}, {"n": 2}]

    asyncio.run(main())


def test_the_url_of_a_queue_will_do(place: Place) -> None:
    publisher = SqsPublisher(place.url.replace("localhost", "127.0.0.1"))
    assert publisher.name == f"sqs:{place.queue}"
    publish(publisher, record())
    assert len(place.received()) == 1


@both
def test_what_is_wrong_with_the_record_itself_is_refused_for_good(
    place: Place, service: str
) -> None:
    async def main() -> None:
        async with opened(place.publisher(service)) as publisher:
            assert "bytes; " in str(await refusal(publisher(record(payload="x" * 1_100_000))))
            many = {f"X-{n}": "x" for n in range(9)}
            assert "11 attributes" in str(await refusal(publisher(record(headers=many))))
            error = await refusal(publisher(record(headers={"a b": "x"})))
            assert "no attribute with the name 'a b'" in str(error)

    asyncio.run(main())


@both
def test_a_place_that_is_not_there_may_be_made_later(ministack: MiniStack, service: str) -> None:
    name = f"late-{uuid4()}"

    async def main() -> None:
        publisher: Publisher[Any] = (
            SnsPublisher(f"arn:aws:sns:us-east-1:000000000000:{name}", endpoint=ministack.endpoint)
            if service == "sns"
            else SqsPublisher(name, endpoint=ministack.endpoint)
        )
        async with opened(publisher):
            assert "does not exist" in str(await failure(publisher(record())))
            if service == "sns":
                client(ministack, "sns").create_topic(Name=name)
            else:
                client(ministack, "sqs").create_queue(QueueName=name)
            await publisher(record())

    asyncio.run(main())


@both
def test_faults_on_the_way(place: Place, service: str) -> None:
    async def main() -> None:
        with Proxy(place.server.port) as proxy:
            endpoint = f"http://127.0.0.1:{proxy.port}"
            # The first call also makes the client, which takes seconds on a busy machine.
            publisher = place.publisher(service, endpoint=endpoint, timeout="100s")
            hasty = place.publisher(service, endpoint=endpoint, timeout="4s")
            async with opened(publisher), opened(hasty):
                proxy.refuse()
                assert "cannot be reached" in str(await failure(publisher(record(1))))
                proxy.accept()
                await publisher(record(1))
                proxy.hold()
                assert "within 4 s" in str(await failure(hasty(record(2))))
                proxy.release()
                await publisher(record(2))
                proxy.cut()
                await publisher(record(3))  # a lost connection is tried once more

    asyncio.run(main())


@both
def test_nothing_tells_the_credentials(
    place: Place,
    service: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2hunter2")
    publisher = place.publisher(service)
    publish(publisher, record())
    assert "hunter2" not in repr(publisher)
    said = {"Code": "SignatureDoesNotMatch", "Message": "you signed hunter2hunter2"}
    answer = {"Error": said, "ResponseMetadata": {"HTTPStatusCode": 403}}
    from botocore.exceptions import ClientError

    error = publisher._explained(ClientError(answer, "SendMessage"))
    assert "refuses these credentials (SignatureDoesNotMatch)" in str(error)
    assert "hunter2" not in str(error) + caplog.text


@both
def test_without_credentials_or_region_it_says_so(
    service: str, monkeypatch: pytest.MonkeyPatch, ministack: MiniStack
) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")

    async def main() -> None:
        topic = "arn:aws:sns:us-east-1:000000000000:t"
        publisher: Publisher[Any] = (
            SnsPublisher(topic, endpoint=ministack.endpoint)
            if service == "sns"
            else SqsPublisher("q", region="us-east-1", endpoint=ministack.endpoint)
        )
        async with opened(publisher):
            assert "no AWS credentials" in str(await failure(publisher(record())))
        if service == "sqs":
            async with opened(SqsPublisher("q")) as publisher:
                assert "no region" in str(await failure(publisher(record())))

    asyncio.run(main())


@pytest.mark.parametrize(
    ("code", "status", "permanent"),
    [
        ("ThrottlingException", 400, False),
        ("InternalFailure", 500, False),
        ("AWS.SimpleQueueService.NonExistentQueue", 400, False),
        ("InvalidMessageContents", 400, True),
        ("KMSThrottling", 400, False),
    ],
)
def test_only_what_is_wrong_with_the_record_is_permanent(
    code: str, status: int, permanent: bool
) -> None:
    from botocore.exceptions import ClientError

    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    publisher = SqsPublisher("q", region="eu-west-1")
    error = publisher._explained(ClientError(answer, "SendMessage"))
    assert isinstance(error, PublishError)
    assert error.permanent is permanent


@pytest.mark.parametrize("topic", ["orders", "arn:aws:sqs:eu-west-1:1:orders", "", None])
def test_a_topic_is_named_by_its_arn(topic: Any) -> None:
    with pytest.raises(ConfigError, match="is not the ARN of a topic"):
        SnsPublisher(topic)
