"""Calls to SQS: one client, our own errors, and batches whose failed parts are tried again."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

from pollwise.errors import ConfigError, MissingExtra, StoreError, StoreUnavailable
from pollwise.queues.sqs.messages import Entry, Message, size_of
from pollwise.runtime.clock import Clock
from pollwise.runtime.home import Home, keep_for_parent, watch_forks
from pollwise.runtime.redact import split_url, without_secrets

try:
    from aiobotocore.config import AioConfig
    from aiobotocore.session import get_session
    from botocore import exceptions as boto
    from botocore.loaders import create_loader
except ImportError as error:
    raise MissingExtra("an SQS queue", "sqs") from error

T = TypeVar("T")

#: botocore's descriptions of the services, loaded once: it takes 50 ms.
_models = create_loader()
#: The maximum number of messages in one call.
BATCH = 10
#: The maximum number of bytes in one call.
BATCH_BYTES = 1024 * 1024
#: The longest hold of a receive, in seconds.
HOLD_MAX = 20
#: The longest time that a message can be hidden, in seconds, counted from its receive.
HIDE_MAX = 12 * 3600
#: The maximum number of calls of one batch at a time.
PARALLEL = 16
#: How often botocore tries a call, including the first time; it backs off in between.
TRIES = 3
#: The names that queues may have.
NAME = re.compile(r"[A-Za-z0-9_-]{1,80}(?:\.fifo)?")
#: The system attributes that a job is made of.
_SYSTEM = ["ApproximateReceiveCount", "SentTimestamp", "MessageGroupId"]

#: The claim is lost: the message was received again, deleted, or is visible again.
_LOST = {"ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidParameterValue"}
_MISSING = {"QueueDoesNotExist", "NonExistentQueue"}
_DENIED = {
    "AccessDenied", "AccessDeniedException", "AuthFailure", "ExpiredToken",
    "ExpiredTokenException", "IncompleteSignature", "InvalidAccessKeyId", "InvalidClientTokenId",
    "InvalidSecurity", "InvalidSignatureException", "MissingAuthenticationToken", "OptInRequired",
    "SignatureDoesNotMatch", "UnrecognizedClientException",
}  # fmt: skip
_TROUBLED = {
    "InternalError", "InternalFailure", "KmsThrottled", "OverLimit", "RequestThrottled",
    "ServiceUnavailable", "Throttling", "ThrottlingException", "TooManyRequestsException",
    "RequestTimeout", "RequestLimitExceeded", "SlowDown", "RequestExpired",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SqsAddress:
    """The address of a queue: a name in an account and region, or a URL.

    endpoint: the server, if it is not AWS.
    """

    queue: str
    region: str | None = None
    endpoint: str | None = None

    @classmethod
    def of(cls, queue: str, region: str | None, endpoint: str | None) -> SqsAddress:
        if endpoint is not None and "@" in split_url(endpoint).netloc:
            raise ConfigError(
                f"endpoint = {without_secrets(endpoint)!r} holds credentials; leave them to the "
                "environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        if "://" not in queue:
            return cls(queue, region, endpoint)
        parts = split_url(queue)
        account, _, name = parts.path.strip("/").rpartition("/")
        named = account and NAME.fullmatch(name)
        if parts.scheme not in ("http", "https") or not parts.hostname or not named:
            raise ConfigError(
                f"{without_secrets(queue)!r} is not the URL of an SQS queue: that ends in an "
                "account and a name, like https://sqs.eu-west-1.amazonaws.com/123456789012/jobs; "
                "or write sqs://jobs?region=eu-west-1"
            )
        labels = parts.hostname.split(".")
        if parts.hostname.endswith((".amazonaws.com", ".amazonaws.com.cn")):
            return cls(queue, region or (labels[1] if labels[0] == "sqs" else None), endpoint)
        return cls(queue, region, endpoint or f"{parts.scheme}://{parts.netloc}")

    @property
    def name(self) -> str:
        return self.queue.rstrip("/").rpartition("/")[2]


class SqsClient:
    """One SQS queue, and its dead-letter queue in calls that name it."""

    def __init__(self, place: SqsAddress, clock: Clock, timeout: float) -> None:
        self.place = place
        self._clock = clock
        self._timeout = timeout
        self._stack = AsyncExitStack()
        self._opening: asyncio.Lock | None = None
        self._client: Any = None
        self._closed = False
        self._asking: asyncio.Future[str] | None = None
        self._url: str | None = place.queue if "://" in place.queue else None
        self._home = Home()
        watch_forks(self)

    async def url(self) -> str:
        """The queue's URL; SQS is asked once."""
        if self._url is None:
            if self._asking is None:  # one request for all callers
                self._asking = asyncio.ensure_future(self.url_of(self.place.name))
            try:
                self._url = await asyncio.shield(self._asking)
            finally:
                self._asking = None
        return self._url

    async def url_of(self, name: str) -> str:
        answer = await self._call("get_queue_url", name, QueueName=name)
        return str(answer["QueueUrl"])

    async def attributes(self, url: str, *names: str) -> dict[str, str]:
        answer = await self._call(
            "get_queue_attributes", self._name_in(url), QueueUrl=url, AttributeNames=list(names)
        )
        found: dict[str, str] = answer.get("Attributes", {})
        return found

    async def create(self, name: str, attributes: dict[str, str]) -> str:
        answer = await self._call("create_queue", name, QueueName=name, Attributes=attributes)
        return str(answer["QueueUrl"])

    async def receive(self, url: str, limit: int, hide: int, hold: int = 0) -> list[Message]:
        """Up to ten messages, hidden from others for `hide` seconds."""
        answer = await self._call(
            "receive_message",
            self._name_in(url),
            hold=hold,
            QueueUrl=url,
            MaxNumberOfMessages=min(limit, BATCH),
            VisibilityTimeout=hide,
            WaitTimeSeconds=hold,
            MessageSystemAttributeNames=_SYSTEM,
            MessageAttributeNames=["All"],
        )
        messages: list[Message] = answer.get("Messages", [])
        return messages

    async def send(self, url: str, entries: Sequence[Entry], *, in_order: bool) -> None:
        """Send all; those that SQS refused are tried again one by one before it is an error."""
        batches = list(_by_size(entries))
        send = self._one_at_a_time if in_order else self._side_by_side
        left = await send(
            [lambda b=batch: self._batch("send_message", url, b) for batch in batches]  # type: ignore[misc]
        )
        for why in left:
            raise self._refused(why, url, f"{len(left)} of {len(entries)} messages were not sent")

    async def delete(self, url: str, receipts: Sequence[str]) -> list[str]:
        """Delete messages permanently; return the receipts that are not valid any more."""
        return await self._by_receipt(
            "delete_message", url, [{"ReceiptHandle": receipt} for receipt in receipts]
        )

    async def hide(self, url: str, receipts: Sequence[tuple[str, int]]) -> list[str]:
        """Hide messages for some seconds from now; return the receipts not valid any more."""
        return await self._by_receipt(
            "change_message_visibility",
            url,
            [
                {"ReceiptHandle": receipt, "VisibilityTimeout": min(max(hide, 0), HIDE_MAX)}
                for receipt, hide in receipts
            ],
        )

    async def hand_back(self, url: str, messages: Sequence[Message]) -> None:
        """Make messages visible to others at once."""
        if messages:
            await self.hide(url, [(message["ReceiptHandle"], 0) for message in messages])

    async def close(self) -> None:
        self._closed = True
        self._client = None
        await self._stack.aclose()

    async def _by_receipt(self, call: str, url: str, entries: list[Entry]) -> list[str]:
        batches = [entries[at : at + BATCH] for at in range(0, len(entries), BATCH)]
        failed = await self._side_by_side(
            [lambda b=batch: self._batch(call, url, b) for batch in batches]  # type: ignore[misc]
        )
        lost = []
        for why in failed:
            if why["Code"].rpartition(".")[2] not in _LOST:
                raise self._refused(why, url, f"{len(failed)} of {len(entries)} failed")
            lost.append(why["entry"]["ReceiptHandle"])
        return lost

    async def _batch(self, call: str, url: str, entries: list[Entry]) -> list[dict[str, Any]]:
        """One batch call; entries that failed for a passing reason are tried again one by one.

        Returns what failed in the end, each with its code and its entry.
        """
        name = self._name_in(url)
        numbered = [{"Id": str(n), **entry} for n, entry in enumerate(entries)]
        try:
            answer = await self._call(f"{call}_batch", name, QueueUrl=url, Entries=numbered)
            failed = answer.get("Failed", [])
        except StoreError as error:
            # Servers with smaller limits refuse the batch but may take its parts.
            if "BatchRequestTooLong" not in str(error) or len(entries) == 1:
                raise
            failed = [{"Id": str(n), "Code": "Again"} for n in range(len(entries))]
        failures = []
        for failure in failed:
            entry = entries[int(failure["Id"])]
            if failure["Code"].rpartition(".")[2] not in _LOST:
                failure = await self._alone(call, name, url, entry)
            if failure is not None:
                failures.append({**failure, "entry": entry})
        return failures

    async def _alone(self, call: str, name: str, url: str, entry: Entry) -> dict[str, str] | None:
        try:
            await self._call(call, name, QueueUrl=url, **entry)
        except _SqsError as error:
            return {"Code": error.code, "Message": error.message}
        return None

    def _refused(self, why: dict[str, Any], url: str, what: str) -> StoreError:
        said = f"{why['Code']}: {why.get('Message', '')}".strip()
        kind = StoreUnavailable if _is_trouble(why["Code"], 0) else StoreError
        return kind(f"{self._name_in(url)} at {self.where}: {what}; SQS said {said}")

    @property
    def where(self) -> str:
        """The server, for messages."""
        place = self.place
        if place.endpoint:
            return without_secrets(place.endpoint)
        return f"SQS in {place.region}" if place.region else "SQS"

    async def _side_by_side(self, calls: Sequence[Callable[[], Awaitable[list[T]]]]) -> list[T]:
        """Run calls to their end, a bounded number at a time; then raise the first error."""
        if len(calls) == 1:
            return await calls[0]()
        gate = asyncio.Semaphore(PARALLEL)

        async def one(call: Callable[[], Awaitable[list[T]]]) -> list[T]:
            async with gate:
                return await call()

        parts = await asyncio.gather(*(one(call) for call in calls), return_exceptions=True)
        for part in parts:
            if isinstance(part, BaseException):
                raise part
        return [item for part in parts if not isinstance(part, BaseException) for item in part]

    async def _one_at_a_time(self, calls: Sequence[Callable[[], Awaitable[list[T]]]]) -> list[T]:
        return [item for call in calls for item in await call()]

    async def _call(self, call: str, queue: str, *, hold: int = 0, **arguments: Any) -> Any:
        client = await self._opened()
        limit = hold + self._timeout
        try:
            with self._clock.outside():
                async with asyncio.timeout(limit):
                    return await getattr(client, call)(**arguments)
        except TimeoutError:
            raise StoreUnavailable(
                f"{queue}: {self.where} did not answer within {limit:g} s"
            ) from None
        except (boto.BotoCoreError, boto.ClientError, OSError) as error:
            raise self._in_our_words(error, queue) from None

    async def _opened(self) -> Any:
        if self._closed:
            raise StoreError(f"the queue {self.place.name} is closed; open it again")
        was_open = self._home.known
        if self._home.enter(f"the queue {self.place.name}") and was_open:
            self._forget()
        if self._client is not None:
            return self._client
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._client is None:
                try:
                    with self._clock.outside():
                        self._client = await self._stack.enter_async_context(self._made())
                except (boto.BotoCoreError, ValueError) as error:
                    raise self._in_our_words(error, self.place.name) from None
        return self._client

    def _forget(self) -> None:
        """Forget the client of an event loop that ended: it cannot even be closed."""
        self._stack.pop_all()
        self._client = self._opening = self._asking = None

    def after_fork(self) -> None:
        keep_for_parent(self._client, self._stack.pop_all())
        self._forget()

    def _made(self) -> Any:
        config = AioConfig(
            connect_timeout=min(self._timeout, 10.0),
            read_timeout=HOLD_MAX + self._timeout,
            max_pool_connections=2 * PARALLEL,
            retries={"total_max_attempts": TRIES, "mode": "standard"},
            tcp_keepalive=True,
        )
        session = get_session()
        session.register_component("data_loader", _models)
        return session.create_client(
            "sqs",
            # botocore itself only knows AWS_DEFAULT_REGION; all newer tools use AWS_REGION.
            region_name=self.place.region or os.environ.get("AWS_REGION"),
            endpoint_url=self.place.endpoint,
            config=config,
        )

    def _in_our_words(self, error: Exception, queue: str) -> StoreError | ConfigError:
        if isinstance(error, boto.ClientError):
            return self._returned_error(error, queue)
        if isinstance(error, boto.NoRegionError):
            return ConfigError(
                f"the queue {queue} has no region; give one: sqs://{queue}?region=eu-west-1, or "
                "set AWS_REGION"
            )
        if isinstance(error, (boto.NoCredentialsError, boto.PartialCredentialsError)):
            return StoreError(
                f"no AWS credentials for the queue {queue}: set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give this machine a role"
            )
        if isinstance(error, (boto.HTTPClientError, boto.ConnectionError, OSError)):
            return StoreUnavailable(f"{queue}: {self.where} cannot be reached: {_plain(error)}")
        return StoreError(f"{queue} at {self.where}: {_plain(error)}")

    def _returned_error(self, error: Any, queue: str) -> StoreError:
        """An error that SQS returned."""
        said = error.response.get("Error", {})
        code = str(said.get("Code", "unknown")).rpartition(".")[2]
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in _MISSING:
            text = (
                f"there is no queue {queue!r} at {self.where}; create it, or check its name, the "
                "region and the account"
            )
        elif code in _DENIED:  # its message may quote the signed text, so it is not shown
            text = (
                f"{self.where} refuses these credentials for the queue {queue} ({code}); check "
                "them, the clock of this machine and the policy of the queue"
            )
        else:
            text = f"{queue} at {self.where}: {code}: {said.get('Message', '')}"
        kind = _SqsUnavailable if _is_trouble(code, status) else _SqsError
        return kind(text, code, str(said.get("Message", "")))

    def _name_in(self, url: str) -> str:
        return url.rstrip("/").rpartition("/")[2]


class _SqsError(StoreError):
    """An error that SQS returned, with its code."""

    def __init__(self, text: str, code: str, message: str) -> None:
        super().__init__(text)
        self.code = code
        self.message = message


class _SqsUnavailable(_SqsError, StoreUnavailable):
    """An error that may pass."""


def _is_trouble(code: str, status: int) -> bool:
    return code.rpartition(".")[2] in _TROUBLED or status >= 500 or status == 429


def _plain(error: Exception) -> str:
    return without_secrets(str(error)) or type(error).__name__


def _by_size(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Batches of at most ten messages within the size limit."""
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        more = size_of(entry)
        if batch and (len(batch) == BATCH or size + more > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += more
    if batch:
        yield batch


def dead_letter_arn(attributes: dict[str, str]) -> tuple[str, int] | None:
    """The dead-letter queue of a queue, and after how many receives SQS moves a message to it."""
    try:
        policy = json.loads(attributes.get("RedrivePolicy") or "{}")
        return str(policy["deadLetterTargetArn"]), int(policy["maxReceiveCount"])
    except (ValueError, KeyError, TypeError):
        return None
