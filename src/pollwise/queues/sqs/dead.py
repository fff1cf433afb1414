"""The dead letters of an SQS queue: a queue of their own, which is looked through by receiving."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import ClassVar

from pollwise.errors import ConfigError
from pollwise.queues.base import Queue
from pollwise.queues.sqs.client import BATCH, SqsClient, dead_letter_arn
from pollwise.queues.sqs.messages import Message, dead_entry, job_of, retried_entry, why_dead
from pollwise.runtime.jobs import Job, JobInfo, Settlement

#: Given for `dead`: what dies is deleted.
DELETE = "delete"
#: How long dead letters are hidden from others while we look through them, in seconds.
LOOK = 60
#: The most dead letters that one call looks through.
LOOK_MAX = 10_000
#: How many dead letters are retried or dropped at a time.
MANY = 100


class DeadJobs:
    """Where the dead of a queue are.

    dead: the name of their queue; None takes the one that the redrive policy names, and "delete"
        deletes what dies.
    """

    #: What their queue is made with: they are kept for as long as SQS can, 14 days.
    ATTRIBUTES: ClassVar[dict[str, str]] = {"MessageRetentionPeriod": "1209600"}

    def __init__(self, sqs: SqsClient, queue: Queue, dead: str | None, *, fifo: bool) -> None:
        self._sqs = sqs
        self._queue = queue
        self._given = dead
        self._fifo = fifo
        self._url: str | None = None

    @property
    def name(self) -> str:
        """What their queue is called where it is made by us."""
        if self._given not in (None, DELETE):
            return str(self._given)
        suffix = ".fifo" if self._fifo else ""
        return f"{self._queue.name.removesuffix(suffix)}-dead{suffix}"

    async def find(self) -> str | None:
        """The URL of their queue; None when what dies is to be deleted."""
        if self._url is not None or self._given == DELETE:
            return self._url
        name = self._given
        if name is None:
            attributes = await self._sqs.attributes(await self._sqs.url(), "RedrivePolicy")
            policy = dead_letter_arn(attributes)
            if policy is None:
                raise ConfigError(
                    f"{self._queue.url} has no dead-letter queue, so a job that fails for good "
                    "would be lost. Give the queue a redrive policy, or name a dead-letter queue: "
                    f"dead={self.name}, or dead={DELETE} to delete what dies"
                )
            name = policy[0].rpartition(":")[2]
        self._url = await self._sqs.url_of(name)
        return self._url

    async def bury(self, settlements: Sequence[Settlement]) -> None:
        """Send copies of what died; the messages are to be deleted after that, not before."""
        if not settlements:
            return
        url = await self.find()
        if url is None:
            return
        entries = [dead_entry(s.claim.job, s.error or "", fifo=self._fifo) for s in settlements]
        await self._sqs.send(url, entries, in_order=self._fifo)

    async def count(self) -> int:
        """How many there are, as SQS estimates it."""
        with suppress(ConfigError):
            url = await self.find()
            if url is not None:
                name = "ApproximateNumberOfMessages"
                return int((await self._sqs.attributes(url, name)).get(name, 0))
        return 0

    async def page(self, kind: str | None, limit: int) -> list[JobInfo]:
        """Some of them, in no order."""

        def wanted(message: Message) -> bool:
            return kind is None or self._job(message).kind == kind

        chosen = await self._choose(wanted, limit)
        await self._sqs.hand_back(await self._there(), chosen)
        return [self._info(message) for message in chosen]

    async def retry(self, ids: Sequence[str] | None) -> int:
        # Not by SQS's own move task: that tells neither how many nor when, and takes all.
        url = await self._sqs.url()
        count = 0
        async for batch in self._by_ids(ids):
            await self._sqs.send(url, [retried_entry(m) for m in batch], in_order=self._fifo)
            await self._delete(batch)
            count += len(batch)
        return count

    async def drop(self, ids: Sequence[str] | None) -> int:
        count = 0
        async for batch in self._by_ids(ids):
            await self._delete(batch)
            count += len(batch)
        return count

    async def _there(self) -> str:
        """The URL of their queue, which there has to be."""
        url = await self.find()
        if url is None:
            raise ConfigError(
                f"{self._queue.url} has no dead letters: it was opened with dead={DELETE}"
            )
        return url

    async def _delete(self, messages: Sequence[Message]) -> None:
        receipts = [message["ReceiptHandle"] for message in messages]
        await self._sqs.delete(await self._there(), receipts)

    async def _by_ids(self, ids: Sequence[str] | None) -> AsyncIterator[list[Message]]:
        """Those with these ids, or all, some at a time; each is to be deleted."""
        left = None if ids is None else set(ids)

        def wanted(message: Message) -> bool:
            return left is None or self._job(message).id in left

        while left is None or left:
            limit = MANY if left is None else min(len(left), MANY)
            batch = await self._choose(wanted, limit)
            if not batch:
                return
            if left is not None:
                left -= {self._job(message).id for message in batch}
            yield batch

    async def _choose(self, wanted: Callable[[Message], bool], limit: int) -> list[Message]:
        """Up to `limit` of them that are wanted, hidden from others for a minute."""
        url = await self._there()
        seen: set[str] = set()
        chosen: list[Message] = []
        others: list[Message] = []
        try:
            while len(chosen) < limit and len(seen) < LOOK_MAX:
                messages = await self._sqs.receive(url, BATCH, LOOK)
                fresh = [m for m in messages if m["MessageId"] not in seen]
                if not fresh:  # none left, or so many that the first come round again
                    others += messages
                    break
                seen.update(message["MessageId"] for message in fresh)
                for message in messages:
                    good = message in fresh and len(chosen) < limit and wanted(message)
                    (chosen if good else others).append(message)
        finally:
            await self._sqs.hand_back(url, others)
        return chosen

    def _job(self, message: Message) -> Job:
        return job_of(message, self._queue.name, self._queue.clock.epoch())

    def _info(self, message: Message) -> JobInfo:
        job = self._job(message)
        error, attempt = why_dead(message)
        if error is None:
            error = "SQS moved it here: it was received too often without being settled"
        about = {field.name: getattr(job, field.name) for field in fields(Job)}
        if attempt is not None:
            about["attempt"] = attempt
        return JobInfo(Job(**about), "dead", job.created_at, None, error)
