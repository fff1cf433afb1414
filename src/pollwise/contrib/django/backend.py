"""The backend of Django's tasks: settings.TASKS names it.

TASKS = {"default": {"BACKEND": "pollwise.contrib.django.backend.PollwiseBackend"}}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

from django.apps import apps
from django.core import checks

from pollwise.contrib.django import conf
from pollwise.contrib.django.api import (
    BaseTaskBackend,
    InvalidTask,
    TaskResultDoesNotExist,
    task_backends,
    task_enqueued,
)
from pollwise.contrib.django.conf import QueuePlace, place_of
from pollwise.contrib.django.handlers import TaskRuns
from pollwise.contrib.django.queues import DjangoQueue, queue_at
from pollwise.contrib.django.results import new_result, result_of, set_put
from pollwise.contrib.django.tasks import PollwiseTask, all_tasks, job_of, known, register
from pollwise.core.retry import Retry
from pollwise.durations import seconds
from pollwise.errors import ConfigError, JobError, KeyMissing, PollwiseError, did_you_mean
from pollwise.queues.capabilities import Capabilities
from pollwise.runtime.events import Events
from pollwise.runtime.executor.handlers import JOB_RETRY
from pollwise.runtime.jobs import RESULT_TTL, JobInfo, checked_name
from pollwise.worker import Worker, WorkerRunOptions

#: What OPTIONS may have.
OPTIONS = ("queue", "retry", "timeout")


class PollwiseBackend(BaseTaskBackend):
    """Puts tasks as jobs, and reads their results from the jobs' records.

    OPTIONS: queue: where the queues are, if not where settings.POLLWISE says. retry, timeout: of
    tasks that have none of their own.
    """

    task_class = PollwiseTask
    supports_async_task = True

    # What the store can do

    @property
    def supports_defer(self) -> bool:
        return self._can.delay

    @property
    def supports_priority(self) -> bool:
        return self._can.priorities

    @property
    def supports_get_result(self) -> bool:
        return self._can.results and self._can.views

    @cached_property
    def place(self) -> QueuePlace:
        """Where its queues are."""
        if "queue" in self.options:
            return place_of(self.options["queue"], f"{self._where}['queue']")
        return conf.default_place()

    @property
    def _where(self) -> str:
        return f"settings.TASKS[{self.alias!r}]['OPTIONS']"

    @cached_property
    def _can(self) -> Capabilities:
        return self.queue("default").capabilities

    def queue(self, name: str) -> DjangoQueue:
        """The queue with this name."""
        return queue_at(name, self.place)

    # Putting

    def validate_task(self, task: Any) -> None:
        super().validate_task(task)
        try:
            checked_name(task.module_path, "the path of the task")
        except JobError as error:
            raise InvalidTask(str(error)) from None
        register(task)

    def enqueue(self, task: Any, args: Iterable[Any], kwargs: dict[str, Any]) -> Any:
        """Put a call of the task as a job; in the transaction, or after its commit."""
        self.validate_task(task)
        job = job_of(task, args, kwargs)
        result = new_result(task, self.alias, job.payload["args"], job.payload["kwargs"])

        def note(ids: list[str]) -> None:
            set_put(result, f"{task.queue_name}:{ids[0]}")
            task_enqueued.send(type(self), task_result=result)

        self.queue(task.queue_name).put(job, note)
        return result

    # Results

    def get_result(self, result_id: str) -> Any:
        """The result of a task that was put; TaskResultDoesNotExist if it is not there any more."""
        queue, job_id = self._found(result_id)
        return self._result(result_id, queue, queue.call("get", job_id))

    async def aget_result(self, result_id: str) -> Any:
        queue, job_id = self._found(result_id)
        return self._result(result_id, queue, await queue.acall("get", job_id))

    def _found(self, result_id: str) -> tuple[DjangoQueue, str]:
        if not self.supports_get_result:
            raise NotImplementedError(f"{self.queue('default').url} keeps no results")
        name, colon, job_id = str(result_id).partition(":")
        if not colon or not job_id or (self.queues and name not in self.queues):
            raise TaskResultDoesNotExist(result_id)
        return self.queue(name), job_id

    def _result(self, result_id: str, queue: DjangoQueue, info: JobInfo | None) -> Any:
        task = None if info is None else known(info.job.kind)
        if info is None or task is None:
            raise TaskResultDoesNotExist(result_id)
        if info.job.locked is not None:
            raise KeyMissing(f"job {info.job.id} of kind {info.job.kind}: {info.job.locked}")
        try:
            return result_of(task, self.alias, queue.name, info)
        except ValueError as error:  # a payload that no call of the task has
            raise TaskResultDoesNotExist(result_id) from error

    # Running

    def worker(
        self,
        queue: str = "default",
        options: WorkerRunOptions | None = None,
        events: Events | None = None,
    ) -> Worker:
        """A worker that runs all tasks of one queue."""
        worker = Worker(self.place.url_of(queue), options, events=events, codec=conf.codec())
        retry, timeout = self.options.get("retry"), self.options.get("timeout")
        for kind, task in all_tasks().items():
            runs = TaskRuns(
                task, getattr(task, "retry", None) or retry or JOB_RETRY, self, queue, worker.name
            )
            limit = getattr(task, "timeout", None) or timeout
            worker._register(kind, runs.handler, runs.retry, limit, None, result_ttl=RESULT_TTL)
        return worker

    # Checks

    def check(self, **kwargs: Any) -> Iterator[checks.CheckMessage]:
        yield from super().check(**kwargs)
        if not apps.is_installed("pollwise.contrib.django"):
            yield checks.Warning(
                "the app of Pollwise is not installed: `migrate` creates no tables for jobs, and "
                "there is no command `pollwise_worker`",
                hint='Add "pollwise.contrib.django" to INSTALLED_APPS.',
                obj=self._where,
                id="pollwise.W001",
            )
        try:
            self._check()
        except PollwiseError as error:
            yield checks.Error(str(error), obj=self._where, id="pollwise.E002")

    def _check(self) -> None:
        if not isinstance(self.options, dict):
            raise ConfigError(f"{self._where} must be a dictionary")
        for key in self.options:
            if key not in OPTIONS:
                raise ConfigError(f"{self._where} has no {key!r}; {did_you_mean(key, OPTIONS)}")
        retry, timeout = self.options.get("retry"), self.options.get("timeout")
        if retry is not None and not isinstance(retry, Retry):
            raise ConfigError(
                f"{self._where}['retry'] = {retry!r} is not a Retry; give e.g. Retry.never()"
            )
        if timeout is not None:
            seconds(timeout, f"{self._where}['timeout']", positive=True)
        for name in self.queues:
            checked_name(name, "the name of a queue", ConfigError)
            if ":" in name:
                raise ConfigError(f"the queue {name!r} of {self._where} must not have a colon")
            self.queue(name)


def backends() -> list[PollwiseBackend]:
    """The backends of settings.TASKS that put jobs."""
    return [each for each in task_backends.all() if isinstance(each, PollwiseBackend)]
