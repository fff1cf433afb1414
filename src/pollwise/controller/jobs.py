"""What people do with jobs: put, cancel, retry. No HTTP here. Checks what a put may say."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import blake2b

from pollwise.controller.files.artefacts import Artefacts
from pollwise.controller.options import ATTEMPTS_MAX, ControllerOptions
from pollwise.controller.terms import OURS, JobTerms
from pollwise.controller.workers import matching
from pollwise.controller.workers.registry import WorkerRegistry
from pollwise.errors import JobError, PayloadError, StoreError
from pollwise.queues.base import Queue
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events, JobPut
from pollwise.runtime.jobs import DELAY_MAX, Job, JobInfo, NewJob

#: The longest timeout of a job, in seconds.
TIMEOUT_MAX = 7 * 86400.0
#: The largest requirement, in bytes of JSON: it is a header.
REQUIRES_BYTES_MAX = 4096

#: The fields of a job.
FIELDS = (
    "kind", "payload", "requires", "priority", "key", "unique", "delay_s", "timeout_s", "attempts",
    "headers",
)  # fmt: skip


def new_job(
    given: object, options: ControllerOptions, by: str = "", inputs: str | None = None
) -> NewJob:
    """The job of the queue for what came in, checked; raises `JobError`.

    inputs: the folder of the files that come with it.
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
        self._prefix = blake2b(queue.name.encode(), digest_size=4).hexdigest() + "-"

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

    async def cancel(self, job_id: str) -> JobInfo | None:
        """Cancel a job: at once if it waits, by its worker if it runs. None if it is unknown."""
        await self._queue.cancel([job_id])
        return await self._queue.get(job_id)

    async def retry(self, job_id: str) -> bool:
        """Run a job again that has ended; False if it has not, or does not exist."""
        info = await self._queue.get(job_id)
        if info is None:
            return False
        terms = JobTerms.of(info.job)
        await self._registry.require(terms.kind, terms.requires)
        retried = await self._queue.retry([job_id])
        self._registry.notice_put(info.job.kind)
        return bool(retried)

    async def _discard(self, folder: str | None) -> None:
        """Delete files of a job that was not put. If this fails, the retention chore does it."""
        if folder is not None:
            with suppress(StoreError):
                await self._artefacts.forget(folder)


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
