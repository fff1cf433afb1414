"""Messages between a running handler and its worker: progress, and that it should stop."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pollwise.runtime.jobs import Progress

# The job or record that runs in this task, thread or process: for what its handler logs.
_running: ContextVar[Any] = ContextVar("pollwise_running", default=None)


class RunControl:
    """One run of a handler, as its `Job` sees it. A plain handler uses it from a thread.

    ask: asks for a write soon, from any thread; raises if progress cannot be stored.
    requested: somebody asked to cancel the job.
    seen: the handler has seen that.
    over: the worker no longer waits for the handler.
    before: how the jobs before it in its flow ended, if it takes anything from them.
    """

    __slots__ = ("_ask", "_asked", "_progress", "_written", "before", "over", "requested", "seen")

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        self._asked = False
        self._progress: Progress | None = None
        self._written: Progress | None = None
        self.requested: bool = False
        self.seen: bool = False
        self.over: bool = False
        self.before: list[Any] = []

    def report(self, progress: Progress) -> None:
        """Take a report, which replaces the one before; it is written soon."""
        if self.over:
            return
        before, self._progress = self._progress, progress
        if self._asked or progress == self._written:
            return
        self._asked = True  # first: the write may come before the call returns
        try:
            self._ask()
        except BaseException:
            self._asked, self._progress = False, before
            raise

    def unwritten(self) -> Progress | None:
        """The newest report; None if it is written already."""
        self._asked = False  # first: a report from now on asks again
        progress = self._progress
        return None if progress == self._written else progress

    def wrote(self, progress: Progress) -> None:
        """Note that this report is stored."""
        self._written = progress

    @property
    def has_written(self) -> bool:
        """True if a report of this run is stored."""
        return self._written is not None

    def should_stop(self) -> bool:
        """True if the handler should stop; notes that it has seen that."""
        self.seen = self.requested
        return self.requested or self.over


class WithRunControl:
    """The base of `Job`, with room for the control of its run. That is not a field of the job, so
    copies, comparisons and pickles leave it out."""

    __slots__ = ("_control",)


def begin_run(job: WithRunControl, control: RunControl) -> None:
    """Give a job the control of its run."""
    object.__setattr__(job, "_control", control)
    _running.set(job)


def now_runs(work: Any) -> None:
    """Note what runs in this context; None for nothing."""
    _running.set(work)


def running() -> Any:
    """The job or record whose handler runs in this context; None if there is none."""
    return _running.get()


def run_fields() -> dict[str, Any]:
    """Fields for the log records of a handler: its job or record, and the ids of the span.

    Empty outside handlers and spans. OpenTelemetry is asked only if the program has imported it.
    """
    fields: dict[str, Any] = {}
    work = _running.get()
    if work is not None:
        if isinstance(work, WithRunControl):
            fields = {"job": work.id, "queue": work.queue}  # type: ignore[attr-defined]
        else:
            fields = {"record": work.id, "outbox": work.outbox}
        fields |= {"kind": work.kind, "attempt": work.attempt}
    trace = sys.modules.get("opentelemetry.trace")
    if trace is not None:
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            fields |= {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
    return fields


def control_of(job: Any) -> RunControl | None:
    """The control of a job's run; None if no worker runs it, or for what is not a job."""
    return getattr(job, "_control", None)


def with_same_control(job: Any, other: Any) -> Any:
    """`other`, which a middleware made from `job`, with the control of the same run."""
    control = None if other is job else control_of(job)
    if control is not None and isinstance(other, WithRunControl):
        begin_run(other, control)
    return other


def was_cancelled(job: Any) -> bool:
    """True if somebody asked to cancel a job that runs; for the worker, not for its handler."""
    control = control_of(job)
    return control is not None and control.requested
