"""What people do with jobs: put, cancel, retry. No HTTP here. Checks what a put may say."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import islice

from pollwise.controller.files.artefacts import Artefacts
from pollwise.controller.options import ATTEMPTS_MAX, ControllerOptions
from pollwise.controller.terms import OURS, JobTerms
from pollwise.controller.workers import matching
from pollwise.controller.workers.registry import WorkerRegistry
from pollwise.errors import JobError, PayloadError, StoreError, UniqueConflict
from pollwise.queues.base import Queue
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events, JobPut
from pollwise.runtime.jobs import DELAY_MAX, Job, JobInfo, NewJob
from pollwise.runtime.tracing import w3c

#: The longest timeout of a job, in seconds.
TIMEOUT_MAX = 7 * 86400.0
#: The largest requirement, in bytes of JSON: it is a header.
REQUIRES_BYTES_MAX = 4096

#: The maximum number of jobs of one put. More would keep polls waiting.
PUT_MAX = 1000
#: The maximum number of bad jobs of a list that an error names.
NAMED_MAX = 20

#: The fields of a job.
FIELDS = (
    "kind", "payload", "requires", "priority", "key", "unique", "delay_s", "timeout_s", "attempts",
    "headers",
)  # fmt: skip


class BadJobs(JobError):
    """Some jobs of a list are refused, so none was put.

    items: the index of each, and why. conflict: another job has the `unique` of these.
    """

    def __init__(
        self, items: Sequence[tuple[int, str]], conflict: UniqueConflict | None = None
    ) -> None:
        (index, why), more = items[0], len(items) - 1
        also = f" ({more} more are refused)" if more else ""
        super().__init__(f"jobs[{index}]: {why}{also}; none was put")
        self.items: Sequence[tuple[int, str]] = items[:NAMED_MAX]
        self.conflict = conflict


def new_job(
    given: object,
    options: ControllerOptions,
    by: str = "",
    inputs: str | None = None,
    request: Mapping[str, str] | None = None,
) -> NewJob:
    """The job of the queue for what came in, checked; raises `JobError`.

    inputs: the folder of the files that come with it.
    request: the headers of its HTTP request; their trace context is the job's if it has none.
    """
    if not isinstance(given, dict):
        raise JobError('a job is an object, such as {"kind": "build", "payload": {"ref": "main"}}')
    unknown = [name for name in given if name not in FIELDS]
    if unknown:
        raise JobError(
            f"a job has no field {str(unknown[0])[:40]!r}; the fields are {', '.join(FIELDS)}"
        )
    if "kind" not in given:
        raise JobError("a job needs a `kind`: text that names the work to do")
    requires = matching.checked_requires(given.get("requires"))
    if len(json.dumps(requires).encode()) > REQUIRES_BYTES_MAX:
        raise JobError(f"requires has more than {REQUIRES_BYTES_MAX} bytes of JSON")
    headers = given.get("headers") or {}
    if not isinstance(headers, dict) or any(str(name).startswith(OURS) for name in headers):
        raise JobError(f"headers must be an object of text, without names that begin with {OURS}")
    if request is not None and w3c.TRACEPARENT not in headers:
        headers = {**headers, **w3c.of(request)}
    terms = JobTerms(
        matching.checked_kind(given["kind"]),
        requires,
        _number(given.get("timeout_s"), "timeout_s", 0.001, TIMEOUT_MAX),
        _whole(given.get("attempts"), "attempts", options.attempts, 1, ATTEMPTS_MAX),
        by,
        inputs,
        headers,
    )
    job = NewJob(
        matching.queue_kind(terms.kind, requires),
        given.get("payload"),
        key=given.get("key"),
        priority=_whole(given.get("priority"), "priority", 0, -1000, 1000),
        delay=_number(given.get("delay_s"), "delay_s", 0.0, DELAY_MAX) or 0.0,
        unique=given.get("unique"),
        headers=terms.all_headers(),
    )
    if job.size > options.body_limit:
        raise PayloadError(
            f"the payload has more than {options.body_limit} bytes of JSON; send large data as "
            "files (multipart)"
        )
    return job


def folders_begin(queue: str) -> str:
    """How the folders of the jobs of this queue begin: several queues may share a state."""
    return blake2b(queue.encode(), digest_size=4).hexdigest() + "-"


#: Stores files in a folder.
StoreFiles = Callable[[str], Awaitable[None]]


class Jobs:
    """Puts, cancels and retries the jobs of a controller."""

    def __init__(
        self,
        queue: Queue,
        registry: WorkerRegistry,
        artefacts: Artefacts,
        clock: Clock,
        events: Events,
    ) -> None:
        self._queue = queue
        self._registry = registry
        self._artefacts = artefacts
        self._clock = clock
        self._events = events
        self._prefix = folders_begin(queue.name)

    def folder_of(self, job_id: str) -> str:
        """Where the log and the artefacts of a job are: queues may share ids and a state."""
        return self._prefix + job_id

    def job_of(self, folder: str) -> str | None:
        """The id of the job whose folder this is; None for another queue's."""
        return folder.removeprefix(self._prefix) if folder.startswith(self._prefix) else None

    async def put(self, job: NewJob, files: StoreFiles | None = None) -> tuple[JobInfo, bool]:
        """Put a job; return it, and whether it is new.

        With the `unique` of an existing job, the answer is that job; `UniqueConflict` if its kind,
        payload or requirement differs.
        files: stores the files that come with it, before it is put.
        """
        self._queue.check_jobs(job)  # before files are stored for a job that is refused
        terms = JobTerms.of(job)
        if files is not None and terms.inputs is not None:
            try:
                await files(terms.inputs)
            except BaseException:
                await self._discard(terms.inputs)
                raise
        await self._registry.require(terms.kind, terms.requires)
        self._registry.notice_put(job.kind)  # a poll may come during the put
        try:
            [job_id], fresh = await self._queue.put_counted(job)
        except JobError:
            await self._discard(terms.inputs)
            raise
        self._registry.notice_put(job.kind)
        if fresh:
            self._events.emit(JobPut(self._queue.name, job_id, terms.kind))
        else:
            await self._discard(terms.inputs)
        known = None if fresh and job.key is None else await self._queue.get(job_id)
        info = known or self._new(job_id, job)
        inputs = None if files is None else JobTerms.of(info.job).inputs
        if inputs is not None:  # also those of an earlier put, which may have failed before this
            await self._artefacts.attach(inputs, self.folder_of(job_id))
        return info, bool(fresh)

    def _new(self, job_id: str, job: NewJob) -> JobInfo:
        """A job that was just put, without asking the store."""
        now = self._clock.epoch()
        due = job.due_at(now)
        record = Job(
            job_id, self._queue.name, job.kind, job.payload, job.key, job.priority, 0, now, due,
            job.unique, job.headers,
        )  # fmt: skip
        return JobInfo(record, "delayed" if due > now else "ready", due, None)

    async def put_all(
        self,
        given: Sequence[object],
        options: ControllerOptions,
        by: str,
        request: Mapping[str, str] | None = None,
    ) -> tuple[list[str], int]:
        """Put a list of jobs, all or none; their ids, and how many of them are new.

        Raises `BadJobs` for those that are invalid, or whose `unique` another job has.
        """
        if not 0 < len(given) <= PUT_MAX:
            raise JobError(f"a list of {len(given)} jobs; put from 1 to {PUT_MAX} at once")
        batch: list[NewJob] = []
        bad: list[tuple[int, str]] = []
        for index, each in enumerate(given):
            try:
                batch += self._queue.check_jobs(new_job(each, options, by, None, request))
            except JobError as error:
                bad.append((index, str(error)))
        if bad:
            raise BadJobs(bad)
        terms = {job.kind: JobTerms.of(job) for job in batch}
        for each in terms.values():
            await self._registry.require(each.kind, each.requires)
        for kind in terms:
            self._registry.notice_put(kind)  # a poll may come during the put
        try:
            ids, fresh = await self._queue.put_counted(batch)
        except UniqueConflict as error:
            same = [i for i, job in enumerate(batch) if job.unique == error.unique]
            raise BadJobs([(index, str(error)) for index in same or [0]], error) from None
        for kind in terms:
            self._registry.notice_put(kind)
        if self._events.wants(JobPut):
            for job_id, job in _new_of(ids, batch, fresh):
                self._events.emit(JobPut(self._queue.name, job_id, terms[job.kind].kind))
        return ids, fresh

    async def cancel(self, job_id: str) -> JobInfo | None:
        """Cancel a job: at once if it waits, by its worker if it runs. None if it is unknown."""
        await self._queue.cancel([job_id])
        return await self._queue.get(job_id)

    async def retry(self, job_id: str, *, anyway: bool = False) -> bool:
        """Run a job again that has ended; False if it has not, or does not exist.

        anyway: as for `Queue.retry`.
        """
        info = await self._queue.get(job_id)
        if info is None:
            return False
        terms = JobTerms.of(info.job)
        await self._registry.require(terms.kind, terms.requires)
        retried = await self._queue.retry([job_id], anyway=anyway)
        self._registry.notice_put(info.job.kind)
        return bool(retried)

    async def _discard(self, folder: str | None) -> None:
        """Delete files of a job that was not put. If this fails, the retention chore does it."""
        if folder is not None:
            with suppress(StoreError):
                await self._artefacts.forget([folder])


def _new_of(
    ids: Sequence[str], batch: Sequence[NewJob], fresh: int
) -> Iterable[tuple[str, NewJob]]:
    """The jobs of a batch that are new. Of those with a `unique`, the store only counts them."""
    once = dict(zip(ids, batch, strict=True))  # a `unique` may occur twice
    return islice(sorted(once.items(), key=lambda each: each[1].unique is not None), fresh)


def _whole(value: object, name: str, default: int, low: int, high: int) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise JobError(f"{name} = {value!r} must be a whole number from {low} to {high}")
    return value


def _number(value: object, name: str, low: float, high: float) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise JobError(f"{name} = {value!r} must be a number of seconds from {low:g} to {high:g}")
    return float(value)
