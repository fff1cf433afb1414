"""What a worker calls for a job of a task."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from pollwise.contrib.django.api import (
    TaskContext,
    TaskError,
    normalize_json,
    task_finished,
    task_started,
)
from pollwise.contrib.django.results import end_result, running_result
from pollwise.core.retry import Retry
from pollwise.errors import Reject, Signal
from pollwise.runtime.executor.handlers import is_async, is_permanent
from pollwise.runtime.jobs import Job
from pollwise.worker.declared.unfit import PayloadUnfit


class TaskFailed(Exception):
    """An error of a task. Its class is named as the error's class, with the module: Django shows
    that path.

    permanent: trying again cannot help.
    """

    permanent = False


class TaskRuns:
    """The runs of one task in one queue.

    retry: how the task is retried. backend: which runs it. worker: the worker's name.
    """

    def __init__(self, task: Any, retry: Retry, backend: Any, queue: str, worker: str) -> None:
        self._task = task
        self._retry = retry
        self._backend = backend
        self._queue = queue
        self._worker = worker
        self._signature = inspect.signature(task.func)

    @property
    def handler(self) -> Callable[[Job], Any]:
        return self._run_async if is_async(self._task.func) else self._run

    @property
    def retry(self) -> Retry:
        """How the worker retries a `TaskFailed`, which says itself whether that can help."""
        return replace(self._retry, include=(Exception,), exclude=())

    def _run(self, job: Job) -> Any:
        result, args = self._begin(job)
        signal = {"sender": type(self._backend), "task_result": result}
        task_started.send_robust(**signal)
        try:
            value = _json(self._task.func(*args, **result.kwargs))
        except Signal:
            raise
        except Exception as error:
            failed = self._failed(error)
            if self._is_last(job, failed):
                end_result(result, error=_task_error(error))
                task_finished.send_robust(**signal)
            raise failed.with_traceback(error.__traceback__) from error.__cause__
        end_result(result, value)
        task_finished.send_robust(**signal)
        return value

    async def _run_async(self, job: Job) -> Any:
        result, args = self._begin(job)
        signal = {"sender": type(self._backend), "task_result": result}
        await task_started.asend_robust(**signal)
        try:
            value = _json(await self._task.func(*args, **result.kwargs))
        except Signal:
            raise
        except Exception as error:
            failed = self._failed(error)
            if self._is_last(job, failed):
                end_result(result, error=_task_error(error))
                await task_finished.asend_robust(**signal)
            raise failed.with_traceback(error.__traceback__) from error.__cause__
        end_result(result, value)
        await task_finished.asend_robust(**signal)
        return value

    def _begin(self, job: Job) -> tuple[Any, list[Any]]:
        """The result of a run that begins, and the arguments without names."""
        try:
            result = running_result(self._task, self._backend.alias, self._queue, job, self._worker)
        except (TypeError, ValueError) as error:  # the job is a forgery
            raise Reject(f"{type(error).__name__}: {error}") from error
        context = [TaskContext(task_result=result)] if self._task.takes_context else []
        try:
            self._signature.bind(*context, *result.args, **result.kwargs)
        except TypeError as error:  # its signature changed
            raise PayloadUnfit(f"TypeError: {error}") from error
        return result, [*context, *result.args]

    def _failed(self, error: Exception) -> TaskFailed:
        failed = _failure_class(_name(type(error)))(str(error))
        failed.permanent = is_permanent(error, self._retry)
        return failed

    def _is_last(self, job: Job, failed: TaskFailed) -> bool:
        return failed.permanent or self._retry.exhausted(job.attempt)


def _json(value: Any) -> Any:
    """What a task returned, as JSON; to run it again would not make it so."""
    try:
        return normalize_json(value)
    except (TypeError, ValueError) as error:
        error.permanent = True  # type: ignore[union-attr]
        raise


def _task_error(error: Exception) -> Any:
    text = "".join(traceback.format_exception(error))
    return TaskError(exception_class_path=_path(type(error)), traceback=text)


def _path(of: type) -> str:
    return f"{of.__module__}.{of.__qualname__}"


def _name(of: type) -> str:
    return of.__qualname__ if of.__module__ == "builtins" else _path(of)


@lru_cache(maxsize=1000)
def _failure_class(name: str) -> type[TaskFailed]:
    return type(name, (TaskFailed,), {"__module__": __name__})
