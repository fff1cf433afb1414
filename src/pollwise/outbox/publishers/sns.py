"""Amazon SNS, by aiobotocore: up to ten records a call; FIFO topics keep the order of keys."""

from __future__ import annotations

import re
from typing import Any, Unpack

from pollwise.errors import ConfigError
from pollwise.outbox.envelope import Message
from pollwise.outbox.publishers.aws import AwsClient, AwsPublisher, attributes, ordered, speakable
from pollwise.outbox.publishers.base import PublisherOptions
from pollwise.outbox.publishers.batching import Entry
from pollwise.outbox.records import Record

_ARN = re.compile(r"arn:[\w-]+:sns:(?P<region>[\w-]+):\d*:(?P<name>[\w-]{1,256}(?:\.fifo)?)")


class SnsPublisher(AwsPublisher):
    """Publishes records to a topic of SNS.

    topic: its ARN, such as arn:aws:sns:eu-west-1:123456789012:orders.
    endpoint: where it is, when it is not AWS.

    In a FIFO topic the message group is the record's key (a record without one is a group of its
    own), and SNS drops a repeat that comes within five minutes. The attribute `ce_type` is the
    record's kind, for the filters of subscriptions.
    """

    service = "sns"
    size_max = 256 * 1024

    def __init__(
        self, topic: str, *, endpoint: str | None = None, **common: Unpack[PublisherOptions]
    ) -> None:
        found = _ARN.fullmatch(topic) if isinstance(topic, str) else None
        if found is None:
            raise ConfigError(
                f"topic = {topic!r} is no ARN of a topic; that is like "
                "arn:aws:sns:eu-west-1:123456789012:orders"
            )
        super().__init__(f"sns:{found['name']}", found["region"], endpoint, common)
        self.topic = topic

    async def _send(self, client: AwsClient, record: Record, message: Message) -> None:
        body = speakable(message.body)
        given = attributes(message, {"ce_type": record.kind}, self.where)
        more = ordered(record) if self.topic.endswith(".fifo") else {}
        await self._gathered(client, body, given, {"Message": body, **more})

    async def _call(self, client: Any, entries: list[Entry]) -> Any:
        return await client.publish_batch(TopicArn=self.topic, PublishBatchRequestEntries=entries)

    def _missing(self) -> str:
        return "there is no such topic; create it, or check the ARN and the account"
