"""A queue in Amazon SQS, where every request is billed.

A call makes as few requests as SQS allows: ten messages in each, receives in parallel while they
come back full, deletes in batches. A claim is a receive with the lease as its visibility timeout.
SQS's clock decides about leases and delays.

The capabilities say what SQS cannot do. Two more things to know: SQS counts receives, so a job that
is given back has used up an attempt; and the queue's own redrive policy moves a message to the
dead-letter queue after `maxReceiveCount` receives, even if its handler allows more attempts. Set it
above the attempts of your handlers; then it only catches jobs that kill workers.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import SplitResult, quote, urlencode

from pollwise.durations import Duration, seconds
from pollwise.errors import ConfigError, PayloadError, StoreError, Unsupported
from pollwise.queues.base import ClaimRequest, Queue
from pollwise.queues.capabilities import Capabilities
from pollwise.queues.sqs.client import (
    BATCH,
    BATCH_BYTES,
    HIDE_MAX,
    HOLD_MAX,
    NAME,
    PARALLEL,
    SqsAddress,
    SqsClient,
)
from pollwise.queues.sqs.dead import DeadJobs
from pollwise.queues.sqs.messages import (
    RAW,
    Entry,
    Message,
    entry_of,
    fifo_entry,
    job_of,
    new_id,
    unique_id,
)
from pollwise.queues.viewed import DEAD
from pollwise.queues.views import COUNTED_MAX, JobFilter, JobPage, Stats
from pollwise.runtime.clock import Clock
from pollwise.runtime.jobs import Claim, JobInfo, NewJob, Progress, Renewal, Settlement, State
from pollwise.runtime.redact import without_secrets

#: Claims within this many seconds of each other are quick; for them fewer messages than FEW are not
#: worth a request; but after PASS_MAX claims without one they try again.
QUICK, FEW, PASS_MAX = 0.5, 4, 3
#: The longest delay of SQS, in seconds.
DELAY_MAX = 900
#: The maximum payload: SQS takes 1 MiB (older servers 256 KiB) including the attributes.
MAX_PAYLOAD = BATCH_BYTES - 8192


class SqsQueue(Queue):
    """Jobs in an SQS queue.

    queue: its name, or its URL. A name that ends in ".fifo" needs `SqsFifoQueue`.
    region, endpoint: where it is; by default AWS_REGION and AWS_ENDPOINT_URL. Credentials are found
        where all AWS tools find them.
    dead: the dead-letter queue; by default the one in the queue's redrive policy. "delete" deletes
        dead jobs.
    timeout: how long SQS may take to answer, in addition to the hold of a poll.
    linger: how long closing waits for polls that SQS still holds. SQS continues a poll whose caller
        is gone, and the messages it finds are then hidden for the length of a lease.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        keys=False,
        priorities=False,
        unique=False,
        exact_unique=False,
        replace=False,
        ordered=False,
        kinds=False,
        views=False,
        shows_claims=False,
        keep=False,
        uncounted=False,
        suspects=False,
        fenced=False,
        atomic_put=False,
        atomic_settle=False,
        long_poll=True,
        next_due=False,
        exact_depth=False,
        headers=False,
        results=False,
        progress=False,
        cancel=False,
        pause=False,
        presence=False,
        history=False,
        schedules=False,
        limits=False,
        breakers=False,
        flows=False,
    )
    foreign_kind: ClassVar[str | None] = RAW
    gather: ClassVar[float] = 2.0
    gather_up_to: ClassVar[int] = BATCH
    _fifo: ClassVar[bool] = False

    def __init__(
        self,
        queue: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        dead: str | None = None,
        timeout: Duration = "10s",
        linger: Duration = HOLD_MAX,
        clock: Clock | None = None,
        keep: Duration | None = None,
        max_payload_bytes: int = MAX_PAYLOAD,
    ) -> None:
        place = SqsAddress.of(queue, region, endpoint)
        if place.name.endswith(".fifo") != self._fifo:
            right = "SqsFifoQueue" if place.name.endswith(".fifo") else "SqsQueue"
            raise ConfigError(
                f"queue = {place.name!r} needs {right}; only the names of FIFO queues end in "
                "'.fifo'. pollwise.open chooses the right class"
            )
        super().__init__(place.name, clock=clock, keep=keep, max_payload_bytes=max_payload_bytes)
        self._linger = seconds(linger, "linger")
        self._sqs = SqsClient(place, self.clock, seconds(timeout, "timeout", positive=True))
        self._dead = DeadJobs(self._sqs, self, dead, fifo=self._fifo)
        self._more = 1  # the number of parallel receives that follow a full one
        self._claimed_at = 0.0
        self._left_last_time = BATCH
        self._passed = 0
        self._held_on: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        place = self._sqs.place
        if "://" in place.queue:
            return without_secrets(place.queue)
        options = {"region": place.region, "endpoint": place.endpoint}
        given = {k: without_secrets(v) for k, v in options.items() if v}
        return f"sqs://{quote(self.name)}" + (f"?{urlencode(given, safe=':/*')}" if given else "")

    async def create(self, *, max_receives: int = 10) -> None:
        """Create the queue, and a dead-letter queue for messages received `max_receives` times."""
        kind = {"FifoQueue": "true"} if self._fifo else {}
        dead_url = await self._sqs.create(self._dead.name, {**kind, **DeadJobs.ATTRIBUTES})
        arn = (await self._sqs.attributes(dead_url, "QueueArn"))["QueueArn"]
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": str(max_receives)})
        await self._sqs.create(self.name, {**kind, "RedrivePolicy": policy})

    # Putting

    async def _put(self, jobs: list[NewJob]) -> tuple[list[str], int]:
        now = self.clock.epoch()
        ids = [new_id() if job.unique is None else unique_id(job.unique) for job in jobs]
        entries = [
            await self._entry(job, job_id, now) for job, job_id in zip(jobs, ids, strict=True)
        ]
        url = await self._sqs.url()
        try:
            await self._sqs.send(url, entries, in_order=self._fifo)
        except StoreError as error:
            if "shorter than" not in str(error):
                raise
            raise PayloadError(f"a payload is too large for this queue: {error}") from None
        return ids, len(ids)

    async def _entry(self, job: NewJob, job_id: str, now: float) -> Entry:
        entry = entry_of(job, job_id, now)
        delay = math.ceil(job.due_at(now) - now)
        return {**entry, "DelaySeconds": delay} if delay else entry

    def _check(self, job: NewJob) -> None:
        super()._check(job)
        delay = job.due_at(now := self.clock.epoch()) - now
        if delay > DELAY_MAX:
            raise Unsupported(
                f"{self.url} cannot delay the job of kind {job.kind!r} by {delay:.0f} s: SQS "
                f"delays at most {DELAY_MAX} s; put it later, or choose another store"
            )

    # Claiming

    async def _claim(self, asked: ClaimRequest) -> list[Claim]:
        hide = _hidden_for(asked.lease)
        await self._dead.find()  # before any job can die
        unwanted = asyncio.Event()
        looking = asyncio.ensure_future(self._receive(asked.limit, hide, asked.hold, unwanted))
        try:
            messages = await asyncio.shield(looking)
        except asyncio.CancelledError:
            unwanted.set()
            self._hold_on(looking)
            raise
        now = self.clock.epoch()
        jobs = [(job_of(message, self.name, now), message) for message in messages]
        return [
            Claim(
                job,
                job.attempt,
                asked.worker,
                now + asked.lease,
                message["ReceiptHandle"],
                size=len(message["Body"]),
            )
            for job, message in jobs
        ]

    async def _receive(
        self, limit: int, hide: int, hold: float, unwanted: asyncio.Event
    ) -> list[Message]:
        """One receive, held as asked; if it came back full, more of them in parallel."""
        url = await self._sqs.url()
        found: dict[str, Message] = {}
        until = self.clock.now() + hold
        left = math.ceil(hold)
        while True:
            held = min(left, HOLD_MAX)
            first = await self._sqs.receive(url, limit, hide, held)
            await self._take(found, [first])
            left = int(until - self.clock.now())  # less than a second is not worth a request
            if found or left < 1 or unwanted.is_set():
                break
        if len(first) < BATCH:
            self._more = max(self._more - 1, 1)
        elif limit > BATCH and not unwanted.is_set() and self._is_more_worth_it():
            await self._receive_more(url, found, limit, hide, unwanted)
        self._claimed_at = self.clock.now()
        return list(found.values())

    def _is_more_worth_it(self) -> bool:
        """True if a full receive should be followed by more.

        If claims follow each other quickly and only a few messages were left the last time, they
        can wait for the next claim. A try now and then finds a backlog.
        """
        quick = self.clock.now() - self._claimed_at < QUICK
        if quick and self._left_last_time < FEW and self._passed < PASS_MAX:
            self._passed += 1
            return False
        self._passed = 0
        return True

    async def _receive_more(
        self,
        url: str,
        found: dict[str, Message],
        limit: int,
        hide: int,
        unwanted: asyncio.Event,
    ) -> None:
        """Receive in parallel: as many as came back full last time, then 1, 2, 3 …

        The first receive that is not full ends it; usually that one brings messages, too.
        """
        full, side, beyond = 0, self._more, 1
        failed = False
        while len(found) < limit and not unwanted.is_set():
            wanted = limit - len(found)
            side = min(side, math.ceil(wanted / BATCH), PARALLEL)
            sizes = [min(BATCH, wanted - BATCH * n) for n in range(side)]
            parts = await asyncio.gather(
                *(self._sqs.receive(url, size, hide) for size in sizes), return_exceptions=True
            )
            # The next poll will meet the error; what was found has to be delivered.
            got = [part for part in parts if not isinstance(part, BaseException)]
            failed = len(got) < len(parts)
            await self._take(found, got)
            full += sum(len(part) == BATCH for part in got)
            if [len(part) for part in got] != sizes:
                break
            side, beyond = beyond, beyond + 1
        self._more = min(max(full, 1), PARALLEL)
        self._left_last_time = BATCH if failed else len(found) - BATCH

    async def _take(self, found: dict[str, Message], parts: Sequence[Sequence[Message]]) -> None:
        """Take the messages; one that was received twice counts once, under its last receipt."""
        for message in (message for part in parts for message in part):
            found[message["MessageId"]] = message

    def _hold_on(self, looking: asyncio.Future[list[Message]]) -> None:
        """Give back the messages of a receive that nobody waits for any more, when it ends.

        It cannot be cancelled: SQS would continue, and hide the messages from everybody.
        """
        task = asyncio.ensure_future(self._hand_back_when_over(looking))
        self._held_on.add(task)
        task.add_done_callback(self._held_on.discard)

    async def _hand_back_when_over(self, looking: asyncio.Future[list[Message]]) -> None:
        # No caller is left for an error; messages that are not given back reappear by themselves.
        with suppress(Exception):
            await self._sqs.hand_back(await self._sqs.url(), await looking)
            self._hints.send()

    # Settling

    async def _settle(self, settlements: list[Settlement]) -> list[str]:
        url = await self._sqs.url()
        await self._dead.bury([s for s in settlements if s.action == "dead"])
        over = [s for s in settlements if not s.comes_back]
        back = [s for s in settlements if s.comes_back]
        lost: set[str] = set()
        if over:
            lost.update(await self._sqs.delete(url, [s.claim.receipt for s in over]))
        if back:
            hidden = [(s.claim.receipt, math.ceil(s.delay)) for s in back]
            lost.update(await self._sqs.hide(url, hidden))
        return [s.claim.job.id for s in settlements if s.claim.receipt in lost]

    async def _renew(
        self, claims: list[Claim], lease: float, progress: Mapping[str, Progress]
    ) -> Renewal:
        hide = _hidden_for(lease)
        hidden = [(claim.receipt, hide) for claim in claims]
        lost = set(await self._sqs.hide(await self._sqs.url(), hidden))
        return Renewal(tuple(claim.job.id for claim in claims if claim.receipt in lost))

    async def _cancel(self, ids: Sequence[str]) -> dict[str, State]:
        raise self._cannot("cancel jobs")

    # Views

    async def stats(self, most: int = COUNTED_MAX) -> Stats:
        """The number of jobs in each state, as SQS estimates it; blocked ones count as ready."""
        names = [f"ApproximateNumberOfMessages{which}" for which in ("", "NotVisible", "Delayed")]
        counts = await self._sqs.attributes(await self._sqs.url(), *names)
        ready, leased, delayed = (int(counts.get(name, 0)) for name in names)
        dead = await self._dead.count()
        return Stats(ready, delayed, 0, leased, dead, 0, 0, None)

    async def stats_by_kind(
        self, most: int = COUNTED_MAX, ready_most: int | None = None
    ) -> dict[str, Stats]:
        raise self._no_views("count jobs by kind")

    async def _find(self, job_id: str) -> JobInfo | None:
        raise self._no_views("show one job")

    async def _page(self, chosen: JobFilter) -> JobPage:
        if chosen.after is not None:
            raise Unsupported(
                f"{self.url} cannot page: SQS returns dead jobs in no order (after = "
                f"{chosen.after!r}); raise the limit"
            )
        if chosen.worker is not None:
            raise Unsupported(
                f"{self.url} cannot list the jobs of one worker: SQS returns dead jobs without "
                "their worker; leave out `worker`"
            )
        found = await self._dead.page(chosen)
        return JobPage(found, None, len(found))

    async def _arrivals(self, chosen: JobFilter) -> list[JobInfo]:
        raise self._no_views("list jobs")

    async def _retry(self, ids: Sequence[str] | None) -> int:
        return await self._dead.retry(ids)

    async def _drop(self, ids: Sequence[str] | None, states: Sequence[State] = DEAD) -> int:
        return await self._dead.drop(ids)

    async def _prune(self, keep: float | None) -> int:
        return 0  # nothing is ever kept

    async def close(self) -> None:
        await super().close()
        if self._held_on:
            await asyncio.wait(self._held_on, timeout=self._linger)
        for task in list(self._held_on):
            task.cancel()
        await self._sqs.close()


class SqsFifoQueue(SqsQueue):
    """Jobs in a FIFO queue of SQS: a key is a message group, and runs one at a time, in order.

    A job without a key is its own group. `unique` is SQS's deduplication: a repeat within five
    minutes is dropped, whatever happened to the first. If the queue has content-based
    deduplication, a job without `unique` counts as a repeat of one with the same kind, key and
    payload. SQS cannot delay a single message of a FIFO queue, so neither can a put.
    """

    capabilities: ClassVar[Capabilities] = replace(
        SqsQueue.capabilities, keys=True, unique=True, delay=False
    )
    _fifo: ClassVar[bool] = True
    _by_content: bool | None = None

    async def _entry(self, job: NewJob, job_id: str, now: float) -> Entry:
        if self._by_content is None:
            name = "ContentBasedDeduplication"
            attributes = await self._sqs.attributes(await self._sqs.url(), name)
            self._by_content = attributes.get(name) == "true"
        return fifo_entry(entry_of(job, job_id, now), job, job_id, self._by_content)

    async def _take(self, found: dict[str, Message], parts: Sequence[Sequence[Message]]) -> None:
        """Take the messages; of several in one group, all but the first are given back at once."""
        groups = {_group(message) for message in found.values()}
        behind = []
        for message in (message for part in parts for message in part):
            if _group(message) in groups:
                behind.append(message)
            else:
                groups.add(_group(message))
                found[message["MessageId"]] = message
        await self._sqs.hand_back(await self._sqs.url(), behind)


def open_sqs(parts: SplitResult, clock: Clock | None, options: dict[str, Any]) -> SqsQueue:
    """The queue at `sqs://name`, or at an SQS queue URL."""
    place = f"{parts.scheme}://{parts.netloc}{parts.path}"
    if parts.scheme == "sqs":
        if not NAME.fullmatch(parts.netloc) or parts.path.strip("/"):
            raise ConfigError(
                f"{without_secrets(place)!r} does not name an SQS queue; write "
                "sqs://jobs?region=eu-west-1. A name has up to 80 letters, digits, '-' and '_'"
            )
        place = parts.netloc
    kind = SqsFifoQueue if place.rstrip("/").endswith(".fifo") else SqsQueue
    return kind(place, clock=clock, **options)


def _group(message: Message) -> str:
    return str(message.get("Attributes", {}).get("MessageGroupId", message["MessageId"]))


def _hidden_for(lease: float) -> int:
    if lease > HIDE_MAX:
        raise ConfigError(f"lease = {lease:g} s is above the limit of SQS, {HIDE_MAX} s (12 h)")
    return math.ceil(lease)
