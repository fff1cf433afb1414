"""Amazon SQS, by aiobotocore: up to ten records a call; FIFO queues keep the order of keys."""

from __future__ import annotations

from typing import Any, Unpack

from pollwise.outbox.envelope import Message
from pollwise.outbox.publishers.aws import AwsClient, AwsPublisher, attributes, ordered, speakable
from pollwise.outbox.publishers.base import PublisherOptions
from pollwise.outbox.publishers.batching import Entry
from pollwise.outbox.records import Record
from pollwise.queues.sqs.client import SqsAddress


class SqsPublisher(AwsPublisher):
    """Sends records to a queue of SQS.

    queue: its name, or its URL.
    region, endpoint: where it is; AWS_REGION and AWS unless given.

    In a FIFO queue the message group is the record's key (a record without one is a group of its
    own), and SQS drops a repeat that comes within five minutes. The attribute `ce_type` is the
    record's kind, for whoever does not want to read the body.
    """

    service = "sqs"
    size_max = 1024 * 1024

    def __init__(
        self,
        queue: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        **common: Unpack[PublisherOptions],
    ) -> None:
        place = SqsAddress.of(queue, region, endpoint)
        super().__init__(f"sqs:{place.name}", place.region, place.endpoint, common)
        self.queue = place.name
        self._url = place.queue if "://" in place.queue else None

    async def _open(self) -> AwsClient:
        client = await super()._open()
        if self._url is None:
            try:
                answer = await client.call.get_queue_url(QueueName=self.queue)
            except BaseException:
                await client.stack.aclose()
                raise
            self._url = str(answer["QueueUrl"])
        return client

    async def _send(self, client: AwsClient, record: Record, message: Message) -> None:
        body = speakable(message.body)
        given = attributes(message, {"ce_type": record.kind}, self.where)
        more = ordered(record) if self.queue.endswith(".fifo") else {}
        await self._gathered(client, body, given, {"MessageBody": body, **more})

    async def _call(self, client: Any, entries: list[Entry]) -> Any:
        return await client.send_message_batch(QueueUrl=self._url, Entries=entries)

    def _missing(self) -> str:
        return "there is no such queue; create it, or check its name, the region and the account"
