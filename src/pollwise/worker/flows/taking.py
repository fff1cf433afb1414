"""Gives a job what it takes from the jobs before it in its flow: results, or an error.

The payload does not contain them, because the job is put before they exist. A header says what the
job takes. When it runs, its worker reads how the jobs before it ended, in one call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pollwise.errors import CodecError, KeyMissing, Reject
from pollwise.runtime.executor.control.run_control import RunControl, control_of
from pollwise.runtime.executor.handlers import text_of
from pollwise.runtime.jobs import Job
from pollwise.runtime.jobs.new_job import FLOW_HEADER
from pollwise.worker.flows.shape import fits, in_shape

if TYPE_CHECKING:
    from pollwise.queues.base import Queue
    from pollwise.queues.waiting import JobEnding
    from pollwise.runtime.executor.handlers import Handler

#: The header of a job that takes something as its first argument: TAKES_ERROR, or the shape of the
#: results.
TAKES_HEADER, TAKES_ERROR = "pollwise-takes", "error"
#: The delay of a job whose worker could not read the results before it, in seconds.
READ_AGAIN = 5.0
#: What a task gets as the error if the job that failed runs again, or is gone.
NO_ERROR = "a job before it was dead; it was retried or dropped since"


class _ResultsBefore:
    """The default of a parameter that gets the results of the jobs before."""

    def __repr__(self) -> str:
        return "results_before"


#: As the default of a handler's parameter: the worker passes the list of the results of the jobs
#: right before this one in its flow.
results_before: Any = _ResultsBefore()


class EndedBefore(NamedTuple):
    """How a job before this one ended: its state, its result and its newest error.

    state: None if it has not ended, or is gone.
    """

    state: str | None = None
    result: Any = None
    error: str | None = None


class ResultsUnread(Exception):
    """The results before a job cannot be read now.

    locked: a key or a codec is missing here.
    """

    def __init__(self, reason: str, *, locked: bool = False) -> None:
        self.reason = reason
        self.locked = locked
        super().__init__(reason)


def names_of_results(function: Callable[..., Any], *, follow: bool = False) -> list[str]:
    """The parameters that get the results of the jobs before.

    follow: look at what a decorator wraps.
    """
    try:
        parameters = inspect.signature(function, follow_wrapped=follow).parameters
    except (TypeError, ValueError):  # not callable, or a builtin
        return []
    return [name for name, each in parameters.items() if each.default is results_before]


class BeforeReader:
    """Reads what jobs get from those before them, when they run."""

    def __init__(self, queue: Queue, handlers: Mapping[str, Handler]) -> None:
        self._queue = queue
        self._asking = frozenset(
            kind
            for kind, handler in handlers.items()
            if names_of_results(handler.function, follow=True)
        )

    def wanted(self, job: Job) -> bool:
        """True if this job takes something from those before it."""
        return takes(job) or (FLOW_HEADER in job.headers and job.kind in self._asking)

    async def read(self, job: Job, control: RunControl) -> None:
        """Read what a job takes into the control of its run. Raises ResultsUnread, or Reject."""
        try:
            before = await self._queue.predecessors(job.id)
        except KeyMissing as error:
            raise ResultsUnread(
                f"a result before it cannot be decoded here: {error}", locked=True
            ) from None
        except CodecError as error:
            raise Reject(f"a result before it cannot be decoded: {error}") from None
        except Exception as error:
            raise ResultsUnread(f"the results before it cannot be read: {text_of(error)}") from None
        control.before = [_ended(each) for _, each in before]


def results_of(job: Job) -> list[Any]:
    """The results of the jobs right before the one that runs, in order."""
    return [each.result for each in _before(job)]


def takes(job: Job) -> bool:
    """True if a job takes its first argument from those before it.

    A job that was put with the headers of another is not in its flow.
    """
    return TAKES_HEADER in job.headers and FLOW_HEADER in job.headers


def taken_by(job: Job) -> Any:
    """The first argument of such a job. Raises Reject."""
    before, shape = _before(job), job.headers[TAKES_HEADER]
    if shape != TAKES_ERROR:
        if not fits(shape, len(before)):  # one that was made by hand could be of any size
            raise Reject(
                f"its header {TAKES_HEADER} = {shape[:40]!r} does not fit the {len(before)} jobs "
                "right before it"
            )
        if lost := sum(each.state is None for each in before):
            raise Reject(
                f"the results of {lost} of the {len(before)} jobs right before it are gone: these "
                "were retried or dropped since, or ended 30 days ago. Retry this job when they are "
                "done"
            )
        return in_shape(shape, [each.result for each in before])
    return next((each.error or NO_ERROR for each in before if each.state == "dead"), NO_ERROR)


def _before(job: Job) -> list[EndedBefore]:
    control = control_of(job)
    return [] if control is None else control.before


def _ended(ending: JobEnding | None) -> EndedBefore:
    if ending is None:
        return EndedBefore()
    error = None if ending.failure is None else ending.failure.error
    return EndedBefore(ending.state, ending.result, error)
