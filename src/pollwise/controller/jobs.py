"""What people do with jobs: put, cancel, retry. No HTTP here.

Where the queue and the state are in one file, a put is one transaction (`one_file`). Otherwise the
state is written first and the queue second. A crash in between leaves a job in the state `putting`,
and the next controller that finds it puts it again, under the same `unique`, so it exists once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pollwise.controller.options import ATTEMPTS_MAX, ControllerOptions
from pollwise.controller.state.base import new_id
from pollwise.controller.state.sqlite.one_file import OneFile
from pollwise.controller.state.values import ENDED, JobRow, JobState
from pollwise.controller.workers import matching
from pollwise.controller.workers.base import ControllerPart
from pollwise.errors import JobError, PayloadError, PollwiseError, UniqueConflict
from pollwise.runtime.audit import AuditEntry
from pollwise.runtime.events import JobPut
from pollwise.runtime.jobs import DELAY_MAX, NewJob, checked_name, encode, same_payload

#: The longest timeout of a job, in seconds.
TIMEOUT_MAX = 7 * 86400.0
#: After how many seconds another controller completes a put, and after how many it gives up when
#: the inputs never arrived.
STUCK_AFTER = 10.0
GIVE_UP_AFTER = 3600.0
#: The most jobs in one turn of the chore.
SWEEP = 100

PUTTING: tuple[JobState, ...] = ("putting",)
#: The name of a put in the audit log.
PUT = "job.put"

StoreInputs = Callable[[JobRow], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job that passed all checks.

    payload: JSON text.
    inputs: the names of the files that come with the job.
    """

    kind: str
    payload: str = "null"
    requires: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0
    key: str | None = None
    unique: str | None = None
    delay_s: float = 0.0
    timeout_s: float | None = None
    attempts: int = 3
    inputs: tuple[str, ...] = ()


#: The fields of a job.
FIELDS = (
    "kind", "payload", "requires", "priority", "key", "unique", "delay_s", "timeout_s", "attempts",
)  # fmt: skip


def job_spec(given: object, options: ControllerOptions, inputs: Sequence[str] = ()) -> JobSpec:
    """Check a job that came in; raises `JobError`."""
    if not isinstance(given, dict):
        raise JobError('a job is an object, such as {"kind": "build", "payload": {"ref": "main"}}')
    unknown = [name for name in given if name not in FIELDS]
    if unknown:
        raise JobError(
            f"a job has no field {str(unknown[0])[:40]!r}; the fields are {', '.join(FIELDS)}"
        )
    if "kind" not in given:
        raise JobError("a job needs a `kind`: text that names the work to do")
    kind = matching.checked_kind(given["kind"])
    payload = encode(given.get("payload"), kind)
    if len(payload.encode()) > options.body_limit:
        raise PayloadError(
            f"the payload has more than {options.body_limit} bytes of JSON; send large data as "
            "files (multipart)"
        )
    key, unique = given.get("key"), given.get("unique")
    timeout = given.get("timeout_s")
    attempts = given.get("attempts")
    return JobSpec(
        kind=kind,
        payload=payload,
        requires=matching.checked_requires(given.get("requires")),
        priority=_whole(given.get("priority"), "priority", 0, -1000, 1000),
        key=None if key is None else checked_name(key, "key"),
        unique=None if unique is None else checked_name(unique, "unique"),
        delay_s=_number(given.get("delay_s"), "delay_s", 0.0, DELAY_MAX) or 0.0,
        timeout_s=_number(timeout, "timeout_s", 0.001, TIMEOUT_MAX),
        attempts=_whole(attempts, "attempts", options.attempts, 1, ATTEMPTS_MAX),
        inputs=tuple(inputs),
    )


class Jobs(ControllerPart):
    """Puts, cancels and retries the jobs of a controller."""

    async def put(
        self,
        spec: JobSpec,
        who: str,
        store_inputs: StoreInputs | None = None,
        address: str = "",
    ) -> tuple[JobRow, bool]:
        """Put a job and write that into the audit log; the job, and whether it is new.

        With the `unique` of an existing job, the answer is that job; `UniqueConflict` if its kind,
        payload or requirement differs.
        """
        row = JobRow(
            id=new_id(self._clock),
            kind=spec.kind,
            payload=spec.payload,
            payload_bytes=len(spec.payload.encode()),
            requires=spec.requires,
            requires_hash=matching.hash_of(spec.requires) if spec.requires else "",
            priority=spec.priority,
            key=spec.key,
            unique=spec.unique,
            delay_s=spec.delay_s,
            timeout_s=spec.timeout_s,
            attempts=spec.attempts,
            inputs=spec.inputs,
            created_by=who,
        )
        self._queue._checked_jobs(self._in_queue(row))  # refuse at once what the store cannot do
        if self._one_file is not None and store_inputs is None:
            kept = await self._put_at_once(self._one_file, row, who, address)
        else:
            kept = await self._put_in_steps(row, who, address, store_inputs)
        if kept.id != row.id:
            return await self._same(kept, spec), False
        self._events.emit(JobPut(self._queue.name, kept.id, kept.kind))
        return kept, True

    async def _put_at_once(self, one_file: OneFile, row: JobRow, who: str, address: str) -> JobRow:
        job = self._in_queue(row)
        entry = AuditEntry.of(who, PUT, row.id, row.kind, address)
        self._registry.require(row)
        if row.unique is None:  # it is new, and a poll may come during the put
            self._registry.notice_put(job.kind)
        kept = await one_file.put(row, job, entry)
        if kept.id == row.id:
            self._registry.notice_put(job.kind)
            entry.log()
        return kept

    async def _put_in_steps(
        self, row: JobRow, who: str, address: str, store_inputs: StoreInputs | None
    ) -> JobRow:
        [kept] = await self._state.add_jobs([row])
        if kept.id != row.id:
            return kept
        if store_inputs is not None:
            await self._store_inputs(kept, store_inputs)
        await self._put(kept)
        kept = await self._state.job(kept.id) or kept
        await self._state.note(who, PUT, kept.id, kept.kind, address)
        return kept

    async def cancel(self, job_id: str) -> JobRow | None:
        """Cancel a job: at once if it waits, by its worker if it runs. None if it is unknown."""
        return await self._state.cancel(job_id)

    async def retry(self, job_id: str) -> JobRow | None:
        """Put a job again that has ended; None if it has not, or does not exist."""
        row = await self._state.job(job_id)
        if row is None or row.state not in ENDED:
            return None
        renewed = await self._state.renew_job(job_id, row.round)
        if renewed is None:
            return None
        await self._put(renewed)
        return await self._state.job(job_id) or renewed

    async def complete_puts(self) -> int:
        """Complete the puts that another controller left unfinished; their number."""
        stuck = await self._state.stuck(STUCK_AFTER, SWEEP)
        for row in stuck:
            if row.inputs and not await self._has_inputs(row):
                if self._clock.epoch() - row.created_at > GIVE_UP_AFTER:
                    error = "its inputs never arrived: the controller stopped during the put"
                    await self._give_up(row, error)
                continue
            await self._put(row)
        return len(stuck)

    async def _put(self, row: JobRow) -> None:
        job = self._in_queue(row)
        self._registry.require(row)
        try:
            [queue_id] = await self._queue.put(job)
        except UniqueConflict:
            # Another job of the store has our `unique`, though it cannot be guessed.
            await self._give_up(row, "the queue has another job under its id")
            raise
        except JobError as error:
            await self._give_up(row, str(error))
            raise
        self._registry.notice_put(job.kind)
        await self._state.mark_ready([(row.id, row.round, queue_id)])

    async def _give_up(self, row: JobRow, error: str) -> None:
        await self._state.end_job(row.id, row.round, PUTTING, "dead", error=error)

    def _in_queue(self, row: JobRow) -> NewJob:
        """The job in the queue: a reference to ours, and what is needed to pick and order it."""
        unique = f"{row.id}:{row.round}" if self._queue.capabilities.unique else None
        return NewJob(
            matching.queue_kind(row.kind, row.requires),
            {"job": row.id, "round": row.round},
            key=row.key,
            priority=row.priority,
            delay=row.delay_s if row.round == 0 else 0,
            unique=unique,
        )

    async def _same(self, kept: JobRow, spec: JobSpec) -> JobRow:
        row = await self._state.job(kept.id) or kept
        same = (
            row.kind == spec.kind
            and dict(row.requires) == dict(spec.requires)
            and same_payload(row.payload or "null", spec.payload)
        )
        if not same:
            raise UniqueConflict(
                f"unique = {spec.unique!r} belongs to the job {row.id}, which has another kind, "
                "payload or requirement; nothing was put"
            )
        return row

    async def _store_inputs(self, row: JobRow, store_inputs: StoreInputs) -> None:
        try:
            await store_inputs(row)
        except BaseException as error:
            why = str(error) if isinstance(error, PollwiseError) else "its inputs did not arrive"
            await self._give_up(row, why[:500])
            await self._state.forget([row.id])
            raise

    async def _has_inputs(self, row: JobRow) -> bool:
        stored = await self._state.artefacts(row.id, input=True)
        return {each.name for each in stored} >= set(row.inputs)


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
