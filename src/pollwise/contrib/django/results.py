"""A job's record as Django's TaskResult."""

from __future__ import annotations

import builtins
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.utils import timezone

from pollwise import errors
from pollwise.contrib.django.api import Status, TaskError, TaskResult
from pollwise.contrib.django.tasks import arguments_of
from pollwise.runtime.jobs import ENDED, Job, JobFailure, JobInfo

#: The status of each state that has not ended well.
_STATUS = {"leased": Status.RUNNING, "dead": Status.FAILED, "cancelled": Status.FAILED}
#: The exception of a job that was cancelled, and of one that failed for no exception of its task.
CANCELLED = "asyncio.exceptions.CancelledError"
UNKNOWN = "pollwise.errors.JobFailed"


class PollwiseResult(TaskResult):
    """The result of a task that may not be put yet.

    If the store is not in the database of the open transaction, the job is put after the commit,
    and has an id only then.
    """

    __slots__ = ()

    @property
    def id(self) -> str:
        """The id of the result, for `get_result`."""
        job_id: str = TaskResult.id.__get__(self)
        if not job_id:
            raise ValueError(
                "the task has no id yet: its queue is not in the database of this transaction, so "
                "it is put after the commit. Read the id in transaction.on_commit, or keep the "
                'queue in this database: settings.POLLWISE = {"queue": {"database": "default"}}'
            )
        return job_id

    @id.setter
    def id(self, value: str) -> None:
        TaskResult.id.__set__(self, value)

    def __repr__(self) -> str:
        shown = TaskResult.id.__get__(self) or "not put yet"
        return f"<result {shown} of {self.task.module_path}: {self.status}>"


def new_result(
    task: Any, backend: str, args: list[Any], kwargs: dict[str, Any], id: str = ""
) -> Any:
    """The result of a task that was put just now, or will be."""
    return PollwiseResult(
        task=task, id=id, status=Status.READY, enqueued_at=None, started_at=None,
        last_attempted_at=None, finished_at=None, args=args, kwargs=kwargs, backend=backend,
        errors=[], worker_ids=[],
    )  # fmt: skip


def set_put(result: Any, result_id: str) -> None:
    """The job was put."""
    object.__setattr__(result, "id", result_id)
    object.__setattr__(result, "enqueued_at", timezone.now())


def running_result(task: Any, backend: str, queue: str, job: Job, worker: str) -> Any:
    """The result of a run that begins."""
    result = _result_of_job(task, backend, queue, job)
    now = timezone.now()
    object.__setattr__(result, "status", Status.RUNNING)
    object.__setattr__(result, "enqueued_at", moment(job.created_at))
    object.__setattr__(result, "started_at", now)
    object.__setattr__(result, "last_attempted_at", now)
    result.worker_ids.extend(_workers(worker, job.attempt))
    return result


def end_result(result: Any, value: Any = None, error: Any = None) -> None:
    """The run has ended, and the task with it."""
    object.__setattr__(result, "finished_at", timezone.now())
    object.__setattr__(result, "status", Status.SUCCESSFUL if error is None else Status.FAILED)
    object.__setattr__(result, "_return_value", value)
    if error is not None:
        result.errors.append(error)


def result_of(task: Any, backend: str, queue: str, info: JobInfo) -> Any:
    """The result of a task, from its job's record."""
    job, ended = info.job, info.state in ENDED
    result = _result_of_job(task, backend, queue, job)
    status = Status.SUCCESSFUL if info.state == "done" else _STATUS.get(info.state, Status.READY)
    started = None if info.claimed_at is None else moment(info.claimed_at)
    values = {
        "status": status,
        "enqueued_at": moment(job.created_at),
        "started_at": started,
        "last_attempted_at": started,
        "finished_at": moment(info.since) if ended else None,
        "_return_value": info.result,
    }
    for name, value in values.items():
        object.__setattr__(result, name, value)
    result.worker_ids.extend(_workers(info.worker, job.attempt))
    result.errors.extend(map(error_of, info.errors))
    if info.state == "cancelled":
        result.errors.append(TaskError(exception_class_path=CANCELLED, traceback="cancelled"))
    return result


def _result_of_job(task: Any, backend: str, queue: str, job: Job) -> Any:
    """The result of a job, with the task as it was put: with its queue and its priority."""
    args, kwargs = arguments_of(job.payload)
    after = moment(job.run_at) if job.run_at > job.created_at else None
    put = task.using(priority=job.priority, queue_name=queue, backend=backend, run_after=after)
    return new_result(put, backend, args, kwargs, f"{queue}:{job.id}")


def error_of(failure: JobFailure) -> Any:
    """What Django calls a TaskError. Its class is the beginning of the text, as handlers write it;
    if there is none, because a worker died for example, it is JobFailed.
    """
    name = failure.error.partition(":")[0].strip()
    for module in (builtins, errors):
        if isinstance(getattr(module, name, None), type):
            name = f"{module.__name__}.{name}"
    path = name if all(map(str.isidentifier, name.split("."))) and "." in name else UNKNOWN
    text = f"{failure.traceback}\n{failure.error}" if failure.traceback else failure.error
    return TaskError(exception_class_path=path, traceback=text)


def moment(seconds: float) -> datetime:
    """A time of a store as Django has it: aware, unless USE_TZ is off."""
    aware = datetime.fromtimestamp(seconds, UTC)
    return aware if settings.USE_TZ else timezone.make_naive(aware)


def _workers(last: str | None, attempts: int) -> list[str]:
    """One name for each attempt: Django counts them. Only the last is known."""
    return [] if not attempts else ["unknown"] * (attempts - 1) + [last or "unknown"]
