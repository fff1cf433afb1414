"""Errors for names that other libraries have: they say how it is written here."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from pollwise.errors import StoreError

P = ParamSpec("P")
R = TypeVar("R")

_RUN = "give it to the run, as in WorkerRunOptions({}=…)"
_RETRY = "give retry=Retry.exponential('1s', attempts=…)"
#: Names of other libraries for arguments of a worker, of a task, and of a job's options.
WORKER_ADVICE = {
    name: _RUN.format(name) for name in ("concurrency", "polling", "prefetch", "lease", "grace")
}
TASK_ADVICE = {
    "max_retries": _RETRY,
    "retries": _RETRY,
    "retry_backoff": _RETRY,
    "default_retry_delay": _RETRY,
    "autoretry_for": _RETRY,
    "name": "give the kind first, as in @worker.task('mail')",
    "queue": "a worker has one queue; make another Worker for another queue",
    "time_limit": "give timeout='30s'",
    "soft_time_limit": "give timeout='30s'",
    "rate_limit": "give limit=Rate(10, '1m')",
    "ignore_result": "give result_ttl=None",
}
JOB_ADVICE = {
    "countdown": "give delay='10s', or seconds",
    "eta": "give run_at=…, a datetime with a time zone or seconds since 1970",
    "schedule": "give delay=… or run_at=…; @worker.schedule puts jobs again and again",
    "max_retries": "it is set where the task is registered: @worker.task(retry=Retry(…))",
    "retry": "it is set where the task is registered: @worker.task(retry=Retry(…))",
    "task_id": "give unique=…, under which a second put is the same job",
    "job_id": "give unique=…, under which a second put is the same job",
}
#: Names of other libraries for putting a call of a task.
_PUT = "write `await {task}.put(…)`, or `{task}.put_sync(…)` in code without an event loop"
PUT_ADVICE = {
    "delay": _PUT,
    "send": _PUT,
    "enqueue": _PUT,
    "defer": _PUT,
    "kiq": _PUT,
    "apply_async": _PUT + "; options of the job go before: `{task}.options(delay='10s').put(…)`",
    "configure": "write `{task}.options(…)`",
}


def advice_on(task: str, name: str) -> str:
    """Why a task has no such attribute, and what to write instead if the name is known."""
    advice = PUT_ADVICE.get(name)
    told = f"the task {task!r} has no attribute {name!r}"
    return told if advice is None else f"{told}; {advice.format(task=task)}"


def advising(what: str, **advice: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Refuse arguments with these names by a TypeError that says what to write instead.

    what: the call, as users write it.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name in advice:
                    raise TypeError(f"{what} has no argument {name!r}; {advice[name]}")
            return function(*args, **kwargs)

        return call

    return decorate


def refuse_in_loop(call: str, instead: str) -> None:
    """Raise StoreError in a running event loop, which a call that blocks would stop."""
    if asyncio._get_running_loop() is not None:
        raise StoreError(
            f"{call} blocks, and an event loop runs in this thread, whose tasks would all wait; "
            f"await the async call instead: `{instead}`"
        )
