"""Amazon SQS and SNS, by aiobotocore: up to ten records per call, because AWS bills calls. FIFO
queues and topics keep the order of keys.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Unpack

from pollwise.errors import ConfigError, MissingExtra, PublishError, PublishRefused
from pollwise.outbox.envelope import Message, unique_of
from pollwise.outbox.publishers.base import Publisher, PublisherOptions
from pollwise.outbox.records import Record
from pollwise.runtime.redact import without_secrets
from pollwise.runtime.tracing import w3c

try:
    from aiobotocore.config import AioConfig
    from aiobotocore.session import get_session
    from botocore import exceptions as boto
    from botocore.loaders import create_loader

    from pollwise.queues.sqs.client import SqsAddress
except ImportError as error:
    raise MissingExtra("publishing to SQS or SNS", "sqs") from error

#: The maximum number of messages in one call.
BATCH = 10
#: The maximum number of calls at a time.
PARALLEL = 16

Entry = dict[str, Any]
#: Sends entries in one call; returns None or an error for each of them.
Send = Callable[[list[Entry]], Awaitable[list[PublishError | None]]]
#: botocore's descriptions of the services, read once: each client would take 50 ms to do so.
_models = create_loader()
#: The maximum number of attributes of a message.
ATTRIBUTES_MAX = 10
#: Valid ids of message groups and for deduplication.
_ID = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}")
_ATTRIBUTE_NAME = re.compile(r"(?!AWS\.|Amazon\.)(?!\.)[A-Za-z0-9_.-]{1,256}(?<!\.)", re.IGNORECASE)
#: Characters that both services refuse, because XML does not have them.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_CONTENT = {
    "InvalidMessageContents", "InvalidParameter", "InvalidParameterValue", "InvalidAttributeValue",
    "MessageTooLong", "BatchRequestTooLong", "ParameterValueInvalid",
}  # fmt: skip
_MISSING = {"QueueDoesNotExist", "NonExistentQueue", "NotFound", "NotFoundException"}
_ARN = re.compile(r"arn:[\w-]+:sns:(?P<region>[\w-]+):\d*:(?P<name>[\w-]{1,256}(?:\.fifo)?)")


@dataclass(slots=True, eq=False)
class AwsClient:
    """A client of a service, the batcher of its messages, and the stack that closes it."""

    call: Any
    stack: AsyncExitStack
    batcher: Batcher


class AwsPublisher(Publisher[AwsClient]):
    """A publisher to a service of AWS, with credentials from the usual places of AWS tools."""

    service = ""
    #: The maximum size of a message with its attributes, and of a batch, in bytes.
    size_max = 0

    one_connection = False

    def __init__(
        self, name: str, region: str | None, endpoint: str | None, common: PublisherOptions
    ) -> None:
        # botocore reads only AWS_DEFAULT_REGION; newer tools set AWS_REGION.
        self.region: str | None = region or os.environ.get("AWS_REGION")
        self._endpoint = endpoint
        place = without_secrets(endpoint) if endpoint else self.region
        where = f"{name} at {place}" if place else name
        secret = os.environ.get("AWS_SECRET_ACCESS_KEY", "")
        super().__init__(name, where, [secret], common)

    async def _open(self) -> AwsClient:
        stack = AsyncExitStack()
        session = get_session()
        session.register_component("data_loader", _models)
        config = AioConfig(
            connect_timeout=self.timeout,
            read_timeout=self.timeout,
            max_pool_connections=PARALLEL,
            # The handler's retry policy decides; only a lost connection is retried once.
            retries={"total_max_attempts": 2, "mode": "standard"},
            tcp_keepalive=True,
        )
        client = await stack.enter_async_context(
            session.create_client(
                self.service, region_name=self.region, endpoint_url=self._endpoint, config=config
            )
        )
        return AwsClient(
            client, stack, Batcher(lambda several: self._batch(client, several), self.size_max)
        )

    async def _close(self, client: AwsClient) -> None:
        await client.batcher.close()
        await client.stack.aclose()

    @abstractmethod
    def _missing(self) -> str:
        """What to do when the destination does not exist."""

    @abstractmethod
    async def _call(self, client: Any, entries: list[Entry]) -> Any:
        """Send entries, which have ids, in one call of the service."""

    async def _gathered(
        self, client: AwsClient, body: str, given: dict[str, Any], entry: Entry
    ) -> None:
        """Send one entry, together with others that are sent at the same time."""
        size = size_of(body, given)
        if size > self.size_max:
            raise PublishRefused(
                f"{self.where}: the message has {size} bytes; {self.service.upper()} accepts at "
                f"most {self.size_max}"
            )
        await client.batcher.send({**entry, "MessageAttributes": given}, size)

    async def _batch(self, client: Any, entries: list[Entry]) -> list[PublishError | None]:
        numbered = [{"Id": str(n), **entry} for n, entry in enumerate(entries)]
        async with asyncio.timeout(self.timeout):
            answer = await self._call(client, numbered)
        answers: list[PublishError | None] = [None] * len(entries)
        for failed in answer.get("Failed", []):
            answers[int(failed["Id"])] = self._refused(
                failed.get("Code", "unknown"), failed.get("Message", ""), 0
            )
        return answers

    def _explained(self, error: Exception) -> PublishError:
        if isinstance(error, boto.ClientError):
            return self._said(error)
        if isinstance(error, boto.NoRegionError):
            return PublishError(
                f"{self.where}: no region; give region='eu-west-1', or set AWS_REGION"
            )
        if isinstance(error, (boto.NoCredentialsError, boto.PartialCredentialsError)):
            return PublishError(
                f"{self.where}: no AWS credentials; set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give this machine a role"
            )
        text = self._plain(error)
        if isinstance(error, (boto.HTTPClientError, boto.ConnectionError, OSError)):
            return PublishError(f"{self.where} cannot be reached: {text}")
        return PublishError(f"{self.where}: {type(error).__name__}: {text}")

    def _said(self, error: Any) -> PublishError:
        said = error.response.get("Error", {})
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return self._refused(said.get("Code", "unknown"), said.get("Message", ""), status)

    def _refused(self, code: str, message: str, status: int) -> PublishError:
        code = str(code).rpartition(".")[2]
        if code in _MISSING:
            return PublishError(f"{self.where}: {self._missing()}")
        if (
            status in (401, 403) and "Throttl" not in code
        ):  # its message may quote the signed request: not shown
            return PublishError(
                f"{self.where} refuses these credentials ({code}); check them, this machine's "
                "clock and the policy"
            )
        text = f"{self.where}: {code}: {self._plain(message)}"
        return (PublishRefused if code in _CONTENT else PublishError)(text)


class SqsPublisher(AwsPublisher):
    """Sends records to an SQS queue.

    queue: its name or its URL.
    region, endpoint: where it is; AWS_REGION and AWS by default.

    In a FIFO queue the message group is the record's key (a record without a key is a group of its
    own), and SQS drops a duplicate within five minutes. The attribute `ce_type` is the record's
    kind, for consumers that do not want to parse the body.
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
        self.queue: str = place.name
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
        body = xml_safe(message.body)
        given = attributes(message, {"ce_type": record.kind}, self.where)
        more = ordered(record) if self.queue.endswith(".fifo") else {}
        await self._gathered(client, body, given, {"MessageBody": body, **more})

    async def _call(self, client: Any, entries: list[Entry]) -> Any:
        return await client.send_message_batch(QueueUrl=self._url, Entries=entries)

    def _missing(self) -> str:
        return "the queue does not exist; create it, or check its name, the region and the account"


class SnsPublisher(AwsPublisher):
    """Publishes records to an SNS topic.

    topic: its ARN, such as arn:aws:sns:eu-west-1:123456789012:orders.
    endpoint: where it is, if not at AWS.

    In a FIFO topic the message group is the record's key (a record without a key is a group of its
    own), and SNS drops a duplicate within five minutes. The attribute `ce_type` is the record's
    kind, for the filters of subscriptions.
    """

    service = "sns"
    size_max = 256 * 1024

    def __init__(
        self, topic: str, *, endpoint: str | None = None, **common: Unpack[PublisherOptions]
    ) -> None:
        found = _ARN.fullmatch(topic) if isinstance(topic, str) else None
        if found is None:
            raise ConfigError(
                f"topic = {topic!r} is not the ARN of a topic; write it like "
                "arn:aws:sns:eu-west-1:123456789012:orders"
            )
        super().__init__(f"sns:{found['name']}", found["region"], endpoint, common)
        self.topic = topic

    async def _send(self, client: AwsClient, record: Record, message: Message) -> None:
        body = xml_safe(message.body)
        given = attributes(message, {"ce_type": record.kind}, self.where)
        more = ordered(record) if self.topic.endswith(".fifo") else {}
        await self._gathered(client, body, given, {"Message": body, **more})

    async def _call(self, client: Any, entries: list[Entry]) -> Any:
        return await client.publish_batch(TopicArn=self.topic, PublishBatchRequestEntries=entries)

    def _missing(self) -> str:
        return "the topic does not exist; create it, or check the ARN and the account"


@dataclass(slots=True, eq=False)
class _Unsent:
    entry: Entry
    size: int
    sent: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Batcher:
    """Gathers the entries that are sent within one step of the event loop.

    A relay starts all claimed records at once, so batches are full under load, and a single record
    does not wait.
    """

    def __init__(self, send: Send, bytes_max: int) -> None:
        self._send = send
        self._bytes_max = bytes_max
        self._waiting: list[_Unsent] = []
        self._places = asyncio.Semaphore(PARALLEL)
        self._calls: set[asyncio.Task[None]] = set()

    async def send(self, entry: Entry, size: int) -> None:
        """Send an entry together with others; raise the error of this one."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        waiting = _Unsent(entry, size)
        self._waiting.append(waiting)
        await waiting.sent

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for batch in self._batches(waiting):
            call = asyncio.get_running_loop().create_task(self._call(batch))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    def _batches(self, waiting: list[_Unsent]) -> Iterator[list[_Unsent]]:
        batch: list[_Unsent] = []
        size = 0
        for each in waiting:
            if batch and (len(batch) == BATCH or size + each.size > self._bytes_max):
                yield batch
                batch, size = [], 0
            batch.append(each)
            size += each.size
        yield batch

    async def _call(self, batch: list[_Unsent]) -> None:
        async with self._places:
            batch = [each for each in batch if not each.sent.done()]  # some may be cancelled
            if not batch:
                return
            try:
                answers = await self._send([each.entry for each in batch])
            except Exception as error:
                answers = [error] * len(batch)  # type: ignore[list-item]
            for each, answer in zip(batch, answers, strict=True):
                if not each.sent.done():
                    if answer is None:
                        each.sent.set_result(None)
                    else:
                        each.sent.set_exception(answer)

    async def close(self) -> None:
        """Cancel the calls that are still running."""
        for call in list(self._calls):
            call.cancel()
        if self._calls:
            await asyncio.wait(self._calls)


def identified(text: str) -> str:
    """A valid id of SQS and SNS: the text itself if allowed, else its hash."""
    return text if _ID.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()


def ordered(record: Record) -> dict[str, str]:
    """The message group and the deduplication id for a FIFO queue or topic."""
    return {
        "MessageGroupId": identified(unique_of(record) if record.key is None else record.key),
        "MessageDeduplicationId": identified(unique_of(record)),
    }


def xml_safe(body: bytes) -> str:
    """A JSON text with the characters escaped that these services refuse."""
    return _NOT_XML.sub(lambda found: f"\\u{ord(found[0]):04x}", body.decode())


def attributes(message: Message, also: Mapping[str, str], where: str) -> dict[str, Any]:
    """The message attributes: for filters, and the record's headers."""
    all_of_them = {
        "content-type": message.content_type,
        **{name: text for name, text in also.items() if text},
        **message.prefixed("ce_"),
        **{name: text for name, text in message.headers.items() if text},
    }
    for name in (w3c.TRACESTATE, w3c.TRACEPARENT):  # left out if they do not fit
        if len(all_of_them) > ATTRIBUTES_MAX:
            all_of_them.pop(name, None)
    if len(all_of_them) > ATTRIBUTES_MAX:
        raise PublishRefused(
            f"{where}: the message has {len(all_of_them)} attributes; AWS accepts at most "
            f"{ATTRIBUTES_MAX}. Use header names of lower-case letters and digits (they become "
            "part of the envelope), or fewer headers."
        )
    for name in all_of_them:
        if not _ATTRIBUTE_NAME.fullmatch(name) or ".." in name:
            raise PublishRefused(f"{where}: AWS accepts no attribute with the name {name!r}")
    return {
        name: {"DataType": "String", "StringValue": _NOT_XML.sub("\ufffd", text)}
        for name, text in all_of_them.items()
    }


def size_of(body: str, given: Mapping[str, Any]) -> int:
    """The size that AWS limits: the body, and names, types and values of attributes."""
    return len(body.encode()) + sum(
        len(name.encode()) + len(value["DataType"]) + len(value["StringValue"].encode())
        for name, value in given.items()
    )
