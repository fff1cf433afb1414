"""Django's tasks as jobs: which tasks there are, the job of a call, and the handler of a worker.

A job names its task by its kind, the path of the function. It is only looked up among the tasks
that this process has defined: nothing is imported because a job asks for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import Any

from django.apps import apps
from django.utils import timezone

from pollwise.contrib.django import conf
from pollwise.contrib.django.api import Task, normalize_json
from pollwise.core.retry import Retry
from pollwise.durations import Duration
from pollwise.errors import ConfigError
from pollwise.runtime.jobs import NewJob

#: The tasks of this process by kind.
_tasks: dict[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PollwiseTask(Task):
    """A task that may also say how it is retried, and how long a run may take.

        @task(retry=Retry.exponential("5s", attempts=8), timeout="2m")
        def send_invoice(order_id): ...

    Django 6.0 does not pass these on; there, give them in OPTIONS of settings.TASKS.
    """

    retry: Retry | None = None
    timeout: Duration | None = None


def register(task: Any) -> None:
    """Remember a task; of several with the same function, the first, which its module defined."""
    known = _tasks.get(task.module_path)
    if known is None or known.func is not task.func:
        _tasks[task.module_path] = task


def known(kind: str) -> Any:
    """The task with this kind, or None."""
    return _tasks.get(kind)


def all_tasks() -> dict[str, Any]:
    """All tasks by kind: those of the modules `tasks` of all apps, of settings.POLLWISE["modules"],
    and of every other module that was imported.
    """
    names = [*import_modules(), *(f"{app.name}.tasks" for app in apps.get_app_configs())]
    for module in _imported(names):
        for value in list(vars(module).values()):
            if isinstance(value, Task):  # also those of another backend, which `using` may move
                register(value)
    return dict(_tasks)


def import_modules() -> list[str]:
    """Import the modules of settings.POLLWISE["modules"], and return their names."""
    names = conf.task_modules()
    for name in names:
        try:
            import_module(name)
        except ImportError as error:
            raise ConfigError(
                f'{conf.NAME}["modules"]: {name!r} cannot be imported: {error}'
            ) from error
    return names


def _imported(names: Iterable[str]) -> Iterable[Any]:
    return [sys.modules[name] for name in names if name in sys.modules]


def job_of(task: Any, args: Iterable[Any], kwargs: Mapping[str, Any]) -> NewJob:
    """The job of a call. Arguments become JSON as in Django's own backends."""
    payload = {"args": normalize_json(list(args)), "kwargs": normalize_json(dict(kwargs))}
    return NewJob(
        task.module_path, payload, priority=int(task.priority), run_at=_moment(task.run_after)
    )


def _moment(after: datetime | None) -> datetime | None:
    if after is None or timezone.is_aware(after):
        return after
    aware: datetime = timezone.make_aware(after)  # with USE_TZ = False
    return aware


def arguments_of(payload: Any) -> tuple[list[Any], dict[str, Any]]:
    """The arguments in a payload; a ValueError if it is not the payload of a task."""
    if isinstance(payload, dict) and payload.keys() == {"args", "kwargs"}:
        args, kwargs = payload["args"], payload["kwargs"]
        if isinstance(args, list) and isinstance(kwargs, dict):
            return args, kwargs
    raise ValueError('the payload is not {"args": […], "kwargs": {…}}, as that of a task')
