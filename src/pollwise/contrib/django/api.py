"""Django's Tasks API: part of Django since version 6, and the package django-tasks before.

Both have the same classes; only two errors and one function have other names or places. Nothing
else in this package knows which of the two it uses.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import django

from pollwise.errors import MissingExtra

BUILT_IN = django.VERSION >= (6, 0)
PACKAGE = "django.tasks" if BUILT_IN else "django_tasks"

try:
    _tasks = import_module(PACKAGE)
except ModuleNotFoundError as error:
    raise MissingExtra("the Tasks API before Django 6", "django") from error

_base = import_module(f"{PACKAGE}.base")
_errors = import_module(f"{PACKAGE}.exceptions")
_signals = import_module(f"{PACKAGE}.signals")

BaseTaskBackend: Any = import_module(f"{PACKAGE}.backends.base").BaseTaskBackend
Task: Any = _base.Task
TaskContext: Any = _base.TaskContext
TaskError: Any = _base.TaskError
TaskResult: Any = _base.TaskResult
Status: Any = _base.TaskResultStatus
InvalidTask: Any = getattr(_errors, "InvalidTask", None) or _errors.InvalidTaskError
TaskResultDoesNotExist: Any = _errors.TaskResultDoesNotExist
normalize_json: Any = import_module(
    "django.utils.json" if BUILT_IN else "django_tasks.utils"
).normalize_json
task_backends: Any = _tasks.task_backends
task_enqueued: Any = _signals.task_enqueued
task_started: Any = _signals.task_started
task_finished: Any = _signals.task_finished
