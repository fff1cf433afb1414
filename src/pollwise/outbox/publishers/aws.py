"""What the publishers to SQS and SNS share: one client, errors in our words, their limits."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from pollwise.errors import MissingExtra, PublishError, PublishRefused
from pollwise.outbox.envelope import Message, unique_of
from pollwise.outbox.publishers.base import Publisher, PublisherOptions
from pollwise.outbox.publishers.batching import PARALLEL, Batcher, Entry
from pollwise.outbox.records import Record
from pollwise.runtime.redact import without_secrets

try:
    from aiobotocore.config import AioConfig
    from aiobotocore.session import get_session
    from botocore import exceptions as boto
    from botocore.loaders import create_loader
except ImportError as error:
    raise MissingExtra("publishing to SQS or SNS", "sqs") from error

#: What describes the services to botocore, read once: each client would take 50 ms to do so.
_models = create_loader()
#: The most attributes of a message.
ATTRIBUTES_MAX = 10
#: What the ids of groups and of repeats look like.
_ID = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}")
_ATTRIBUTE_NAME = re.compile(r"(?!AWS\.|Amazon\.)(?!\.)[A-Za-z0-9_.-]{1,256}(?<!\.)", re.IGNORECASE)
#: Characters that neither service takes: XML has none of them.
_UNSPEAKABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_CONTENT = {
    "InvalidMessageContents", "InvalidParameter", "InvalidParameterValue", "InvalidAttributeValue",
    "MessageTooLong", "BatchRequestTooLong", "ParameterValueInvalid",
}  # fmt: skip
_MISSING = {"QueueDoesNotExist", "NonExistentQueue", "NotFound", "NotFoundException"}


@dataclass(slots=True, eq=False)
class AwsClient:
    """A client of a service, what gathers the messages for it, and what closes it."""

    call: Any
    stack: AsyncExitStack
    batcher: Batcher


class AwsPublisher(Publisher[AwsClient]):
    """A publisher to a service of AWS. Credentials come from where every AWS tool takes them."""

    service = ""
    #: The largest message, attributes included, and the most of a batch, in bytes.
    size_max = 0

    one_connection = False

    def __init__(
        self, name: str, region: str | None, endpoint: str | None, common: PublisherOptions
    ) -> None:
        # botocore itself knows AWS_DEFAULT_REGION only, where all newer tools set this one.
        self.region = region or os.environ.get("AWS_REGION")
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
            # The handler's retry policy decides; a lost connection alone is tried once more.
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
        """What to do when the destination is not there."""

    @abstractmethod
    async def _call(self, client: Any, entries: list[Entry]) -> Any:
        """Send entries by one call of the service; they have ids already."""

    async def _gathered(
        self, client: AwsClient, body: str, given: dict[str, Any], entry: Entry
    ) -> None:
        """Send one entry, with others that go at the same time."""
        size = size_of(body, given)
        if size > self.size_max:
            raise PublishRefused(
                f"{self.where}: the message has {size} bytes, and {self.service.upper()} takes "
                f"{self.size_max}"
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
            return PublishError(f"{self.where}: no region; give region='eu-west-1', or AWS_REGION")
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
        if status in (401, 403):  # its message may quote what was signed: not shown
            return PublishError(
                f"{self.where} refuses these credentials ({code}); check them, the clock of this "
                "machine and the policy"
            )
        text = f"{self.where}: {code}: {self._plain(message)}"
        return (PublishRefused if code in _CONTENT else PublishError)(text)


def identified(text: str) -> str:
    """A text as an id of SQS and SNS: itself where that is allowed, else its hash."""
    return text if _ID.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()


def ordered(record: Record) -> dict[str, str]:
    """What a FIFO queue or topic wants to know: whose order it keeps, and what a repeat is."""
    return {
        "MessageGroupId": identified(unique_of(record) if record.key is None else record.key),
        "MessageDeduplicationId": identified(unique_of(record)),
    }


def speakable(body: bytes) -> str:
    """A JSON text in which what these services do not take is escaped."""
    return _UNSPEAKABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", body.decode())


def attributes(message: Message, also: Mapping[str, str], where: str) -> dict[str, Any]:
    """The message attributes: for filters, and the record's own headers."""
    all_of_them = {
        "content-type": message.content_type,
        **{name: text for name, text in also.items() if text},
        **message.prefixed("ce_"),
        **{name: text for name, text in message.headers.items() if text},
    }
    if len(all_of_them) > ATTRIBUTES_MAX:
        raise PublishRefused(
            f"{where}: the message has {len(all_of_them)} attributes, and AWS takes "
            f"{ATTRIBUTES_MAX}: give headers names of lower-case letters and digits (they become "
            "part of the envelope), or give fewer"
        )
    for name in all_of_them:
        if not _ATTRIBUTE_NAME.fullmatch(name) or ".." in name:
            raise PublishRefused(f"{where}: AWS takes no attribute of the name {name!r}")
    return {
        name: {"DataType": "String", "StringValue": _UNSPEAKABLE.sub("\ufffd", text)}
        for name, text in all_of_them.items()
    }


def size_of(body: str, given: Mapping[str, Any]) -> int:
    """What counts against the limit: the body, and names, types and values of attributes."""
    return len(body.encode()) + sum(
        len(name.encode()) + len(value["DataType"]) + len(value["StringValue"].encode())
        for name, value in given.items()
    )
