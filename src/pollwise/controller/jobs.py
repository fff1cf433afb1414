"""What people do with jobs: submit, cancel, retry; no HTTP in here.

Where both are one file, a submission is one transaction (`one_file`). Else the state is written
first and the queue second. A crash in between leaves a job `submitting`, and whichever controller
sees that puts it again: under the same `unique`, so it is there once.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pollwise.controller.dependencies import Part
from pollwise.controller.options import ATTEMPTS_MAX, ControllerOptions
from pollwise.controller.security.audit import Audit
from pollwise.controller.state.base import new_id
from pollwise.controller.state.sqlite.one_file import OneFile
from pollwise.controller.state.values import ENDED, JobRow, Status
from pollwise.controller.workers import matching
from pollwise.errors import JobError, PayloadError, PollwiseError, UniqueConflict
from pollwise.runtime.audit import AuditEntry
from pollwise.runtime.events import JobSubmitted
from pollwise.runtime.jobs import DELAY_MAX, NewJob, checked_name, encode, same_payload

#: The longest time that a job may ask for, in seconds.
TIMEOUT_MAX = 7 * 86400.0
#: After how many seconds a job that is still being submitted is seen to by others, and after how
#: many it is given up, when what belongs to it never arrived.
STUCK_AFTER = 10.0
GIVE_UP_AFTER = 3600.0
#: The most jobs that one turn of a chore sees to.
SWEEP = 100

SUBMITTING: tuple[Status, ...] = ("submitting",)
#: What the audit log calls a submission.
SUBMIT = "job.submit"

StoreInputs = Callable[[JobRow], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job as it was asked for, checked.

    payload: JSON text.
    inputs: the names of the files that come with it.
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


#: What a job may say of itself.
FIELDS = (
    "kind", "payload", "requires", "priority", "key", "unique", "delay_s", "timeout_s", "attempts",
)  # fmt: skip


def spec_from(given: object, options: ControllerOptions, inputs: Sequence[str] = ()) -> JobSpec:
    """Check a job as it came in; a JobError says what is wrong with it."""
    if not isinstance(given, dict):
        raise JobError('a job is an object, such as {"kind": "build", "payload": {"ref": "main"}}')
    unknown = [name for name in given if name not in FIELDS]
    if unknown:
        raise JobError(
            f"a job has no field {str(unknown[0])[:40]!r}; it may have {', '.join(FIELDS)}"
        )
    if "kind" not in given:
        raise JobError("a job needs a `kind`: text that says what is to be done")
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


class Jobs(Part):
    """The jobs of a controller, as people see to them."""

    @cached_property
    def _audit(self) -> Audit:
        return Audit(self._state)

    async def submit(
        self,
        spec: JobSpec,
        who: str,
        store_inputs: StoreInputs | None = None,
        address: str = "",
    ) -> tuple[JobRow, bool]:
        """Take a job in, and write that into the audit log; the job, and whether it is new.

        One that has the same `unique` as another, and is the same job, is that one. With another
        kind, payload or requirement it is refused with `UniqueConflict`.
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
            submitted_by=who,
        )
        self._queue._checked_jobs(self._in_queue(row))  # what the store cannot do, said at once
        if self._one_file is not None and store_inputs is None:
            kept = await self._submit_at_once(self._one_file, row, who, address)
        else:
            kept = await self._submit_in_steps(row, who, address, store_inputs)
        if kept.id != row.id:
            return await self._same(kept, spec), False
        self._events.emit(JobSubmitted(self._queue.name, kept.id, kept.kind))
        return kept, True

    async def _submit_at_once(
        self, one_file: OneFile, row: JobRow, who: str, address: str
    ) -> JobRow:
        job = self._in_queue(row)
        entry = AuditEntry.of(who, SUBMIT, row.id, row.kind, address)
        self._registry.require(row)
        if row.unique is None:  # it is new, and a poll may come while it is submitted
            self._registry.heard_news(job.kind)
        kept = await one_file.submit(row, job, entry)
        if kept.id == row.id:
            self._registry.heard_news(job.kind)
            entry.log()
        return kept

    async def _submit_in_steps(
        self, row: JobRow, who: str, address: str, store_inputs: StoreInputs | None
    ) -> JobRow:
        [kept] = await self._state.add_jobs([row])
        if kept.id != row.id:
            return kept
        if store_inputs is not None:
            await self._store_inputs(kept, store_inputs)
        await self._put(kept)
        kept = await self._state.job(kept.id) or kept
        await self._audit.note(who, SUBMIT, kept.id, kept.kind, address)
        return kept

    async def cancel(self, job_id: str) -> JobRow | None:
        """Cancel a job: at once if it waits, by its worker if it runs. None if there is none."""
        return await self._state.cancel(job_id)

    async def retry(self, job_id: str) -> JobRow | None:
        """Make a job anew that has ended; None if it has not, or there is none."""
        row = await self._state.job(job_id)
        if row is None or row.status not in ENDED:
            return None
        renewed = await self._state.renew_job(job_id, row.round)
        if renewed is None:
            return None
        await self._put(renewed)
        return await self._state.job(job_id) or renewed

    async def complete_submissions(self) -> int:
        """Put what another controller left half submitted; how many there were."""
        stuck = await self._state.stuck(STUCK_AFTER, SWEEP)
        for row in stuck:
            if row.inputs and not await self._has_inputs(row):
                if self._clock.epoch() - row.submitted_at > GIVE_UP_AFTER:
                    error = "its inputs never arrived: the controller went away meanwhile"
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
            # Some other job of the store has our `unique`, though nobody can guess it.
            await self._give_up(row, "the queue has another job under its id")
            raise
        except JobError as error:
            await self._give_up(row, str(error))
            raise
        self._registry.heard_news(job.kind)
        await self._state.mark_queued([(row.id, row.round, queue_id)])

    async def _give_up(self, row: JobRow, error: str) -> None:
        await self._state.end_job(row.id, row.round, SUBMITTING, "dead", error=error)

    def _in_queue(self, row: JobRow) -> NewJob:
        """The job as the queue has it: whose it is, and what it takes to pick and order it."""
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
                f"unique = {spec.unique!r} stands for the job {row.id} with another kind, payload "
                "or requirement; nothing was submitted"
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


def payload_of(row: JobRow) -> Any:
    return None if row.payload is None else json.loads(row.payload)


def _whole(value: object, name: str, default: int, least: int, most: int) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise JobError(f"{name} = {value!r} must be a whole number from {least} to {most}")
    return value


def _number(value: object, name: str, least: float, most: float) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise JobError(f"{name} = {value!r} must be a number of seconds from {least:g} to {most:g}")
    return float(value)
