"""The dead jobs of an SQS queue: messages in its dead-letter queue, read by receiving them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

from pollwise.errors import ConfigError
from pollwise.queues.base import Queue
from pollwise.queues.sqs.client import BATCH, SqsClient, dead_letter_arn
from pollwise.queues.sqs.messages import Message, dead_entry, job_of, retried_entry, why_dead
from pollwise.queues.views import JobFilter
from pollwise.runtime.jobs import Job, JobFailure, JobInfo, Settlement

#: A value of `dead`: dead jobs are deleted.
DELETE = "delete"
#: How long dead jobs are hidden from others while we read them, in seconds.
HIDDEN_FOR = 60
#: The maximum number of dead jobs that one call reads.
READ_MAX = 10_000
#: How many dead jobs are retried or dropped at a time.
MANY = 100


class DeadJobs:
    """The dead jobs of a queue.

    dead: the name of the dead-letter queue; None takes the one in the queue's RedrivePolicy, and
        "delete" deletes dead jobs.
    """

    #: The attributes of a dead-letter queue: keep messages as long as SQS can, 14 days.
    ATTRIBUTES: ClassVar[dict[str, str]] = {"MessageRetentionPeriod": "1209600"}

    def __init__(self, sqs: SqsClient, queue: Queue, dead: str | None, *, fifo: bool) -> None:
        self._sqs = sqs
        self._queue = queue
        self._given = dead
        self._fifo = fifo
        self._url: str | None = None

    @property
    def name(self) -> str:
        """The name of the dead-letter queue if we create it."""
        if self._given not in (None, DELETE):
            return str(self._given)
        suffix = ".fifo" if self._fifo else ""
        return f"{self._queue.name.removesuffix(suffix)}-dead{suffix}"

    async def find(self) -> str | None:
        """The URL of the dead-letter queue; None if dead jobs are deleted."""
        if self._url is not None or self._given == DELETE:
            return self._url
        name = self._given
        if name is None:
            attributes = await self._sqs.attributes(await self._sqs.url(), "RedrivePolicy")
            policy = dead_letter_arn(attributes)
            if policy is None:
                raise ConfigError(
                    f"{self._queue.url} has no dead-letter queue, so a dead job would be lost. "
                    "Give the queue a redrive policy, or name a dead-letter queue: "
                    f"dead={self.name}, or dead={DELETE} to delete dead jobs"
                )
            name = policy[0].rpartition(":")[2]
        self._url = await self._sqs.url_of(name)
        return self._url

    async def bury(self, settlements: Sequence[Settlement]) -> None:
        """Send copies of dead jobs; the messages must be deleted after that, not before."""
        if not settlements:
            return
        url = await self.find()
        if url is None:
            return
        entries = [dead_entry(s.claim.job, s.error or "", fifo=self._fifo) for s in settlements]
        await self._sqs.send(url, entries, in_order=self._fifo)

    async def count(self) -> int:
        """How many dead jobs there are, as SQS estimates it."""
        with suppress(ConfigError):
            url = await self.find()
            if url is not None:
                name = "ApproximateNumberOfMessages"
                return int((await self._sqs.attributes(url, name)).get(name, 0))
        return 0

    async def page(self, chosen: JobFilter) -> list[JobInfo]:
        """Some dead jobs that match, in no order."""
        now = self._queue.clock.epoch()

        def wanted(message: Message) -> bool:
            return chosen.matches(self._info(message), now)

        found = await self._choose(wanted, chosen.limit)
        await self._sqs.hand_back(await self._there(), found)
        return [self._info(message) for message in found]

    async def retry(self, ids: Sequence[str] | None) -> int:
        # Not by SQS's own move task: it does not say how many or when, and moves all.
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
        """The URL of the dead-letter queue; an error if there is none."""
        url = await self.find()
        if url is None:
            raise ConfigError(
                f"{self._queue.url} has no dead jobs: it was opened with dead={DELETE}"
            )
        return url

    async def _delete(self, messages: Sequence[Message]) -> None:
        receipts = [message["ReceiptHandle"] for message in messages]
        await self._sqs.delete(await self._there(), receipts)

    async def _by_ids(self, ids: Sequence[str] | None) -> AsyncIterator[list[Message]]:
        """The dead jobs with these ids (None: all), in batches; the caller deletes each batch."""
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
        """Up to `limit` dead jobs that are wanted, hidden from others for a minute."""
        url = await self._there()
        seen: set[str] = set()
        chosen: list[Message] = []
        others: list[Message] = []
        try:
            while len(chosen) < limit and len(seen) < READ_MAX:
                messages = await self._sqs.receive(url, BATCH, HIDDEN_FOR)
                fresh = [m for m in messages if m["MessageId"] not in seen]
                if not fresh:  # none left, or too many, so the first are received again
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
        if attempt is not None:
            job = replace(job, attempt=attempt)
        failure = JobFailure(job.created_at, job.attempt, error)
        return JobInfo(job, "dead", job.created_at, None, (failure,))
