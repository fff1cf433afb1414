"""A job to put."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pollwise.durations import Duration
from pollwise.errors import JobError
from pollwise.runtime.jobs.fields import (
    checked_delay,
    checked_headers,
    checked_moment,
    checked_name,
    checked_priority,
    encoded_headers,
)
from pollwise.runtime.payloads.encoding import encode

#: The header of a job that has a limit group, and that of a job of a flow: the name of its flow.
LIMIT_GROUP_HEADER, FLOW_HEADER = "pollwise-limit-group", "pollwise-flow"


@dataclass(frozen=True, slots=True)
class FlowPlace:
    """The place of a job in a flow, made by `check_jobs` from `after`.

    flow: the name of the flow, which all its jobs have in a header.
    after: its predecessors, as places in the batch; all are before its own.
    on_failure: it runs when one of its predecessors is dead, not when all are done.
    """

    flow: str
    after: tuple[int, ...] = ()
    on_failure: bool = False


class NewJob:
    """A job to put.

    kind: the name of what is to be done; it selects the handler.
    payload: any JSON value; also with models of pydantic, dataclasses, Decimal, datetime, UUID and
        Enum in it. It is encoded here, so later changes to it do not reach the queue.
    key: jobs with the same key run one at a time, in the order they were put.
    priority: higher runs first; 0 unless given.
    delay, run_at: earliest run, from now or as a moment (an aware datetime or seconds since 1970);
        give one of the two.
    unique: put once. A second job with the same `unique`, kind and payload is the same job; with
        another kind or payload it is refused with `UniqueConflict`. This lasts until the job is
        done or cancelled, also if it is kept after that.
    replace: with `unique`: while the job that has it waits, this one takes its place: payload,
        headers, priority and time are replaced, attempts begin again, and the id stays. A job that
        runs or has ended keeps its own payload and loses its `unique` to this one, which is put as
        a new job. Only another kind or key is refused with `UniqueConflict`.
    debounce: with `unique`: replace, and run after this long without another put.
    headers: text that travels with the job, such as a trace context; handlers read `job.headers`.
    limit_group: the group in which the limits of its kind count it, such as a tenant. It is in the
        header LIMIT_GROUP_HEADER as well.
    after: jobs of the same batch, each before this one. This one is `blocked` until all of them are
        done, and `delay` counts from then. A dead one blocks it until it is retried; one that is
        cancelled or dropped cancels it.
    on_failure: with `after`: run when the first of these is dead. It is cancelled when all of them
        are done.
    place: its place in a flow; `check_jobs` sets it.
    """

    __slots__ = (
        "after", "delay", "encoded", "encoded_headers", "headers", "key", "kind", "limit_group",
        "on_failure", "payload", "place", "priority", "replace", "run_at", "size", "unique",
    )  # fmt: skip

    def __init__(
        self,
        kind: str,
        payload: Any = None,
        *,
        key: str | None = None,
        priority: int = 0,
        delay: Duration = 0,
        run_at: datetime | float | None = None,
        unique: str | None = None,
        replace: bool = False,
        debounce: Duration | None = None,
        headers: Mapping[str, str] | None = None,
        limit_group: str | None = None,
        after: Sequence[NewJob] = (),
        on_failure: bool = False,
    ) -> None:
        self.kind: str = checked_name(kind, "kind")
        self.payload: Any = payload
        self.encoded: str = encode(payload, kind)
        self.size: int = len(self.encoded.encode())
        self.key: str | None = None if key is None else checked_name(key, "key")
        self.unique: str | None = None if unique is None else checked_name(unique, "unique")
        self.priority: int = checked_priority(priority)
        self.delay: float = checked_delay(delay)
        self.run_at: float | None = None if run_at is None else checked_moment(run_at, "run_at")
        if limit_group is not None:
            limit_group = checked_name(limit_group, "limit_group")
            headers = {**checked_headers(headers or {}), LIMIT_GROUP_HEADER: limit_group}
        elif isinstance(headers, Mapping) and LIMIT_GROUP_HEADER in headers:  # it is put again
            limit_group = checked_name(headers[LIMIT_GROUP_HEADER], "limit_group")
        self.limit_group: str | None = limit_group
        self.headers: dict[str, str] = {} if not headers else checked_headers(headers)
        self.encoded_headers: str | None = encoded_headers(self.headers) if headers else None
        self.after: tuple[NewJob, ...] = _checked_after(after) if after else ()
        self.on_failure: bool = on_failure
        self.place: FlowPlace | None = None
        if on_failure and not self.after:
            raise JobError("on_failure needs after: the jobs whose failure starts this one")
        if self.run_at is not None and self.delay:
            raise JobError(f"give delay = {delay!r} or run_at = {run_at!r}, not both")
        self.replace: bool = replace or debounce is not None
        if self.replace:
            self._check_replace(debounce)

    def _check_replace(self, debounce: Duration | None) -> None:
        what = "replace" if debounce is None else f"debounce = {debounce!r}"
        if self.unique is None:
            raise JobError(f"{what} needs unique: the name of what is replaced")
        if debounce is None:
            return
        if self.delay or self.run_at is not None:
            raise JobError(f"give {what} or a delay or run_at, not both: it is a delay itself")
        self.delay = checked_delay(debounce, "debounce")

    def with_headers(self, more: Mapping[str, str]) -> NewJob:
        """A copy with more headers. Raises JobError if they are too large together."""
        made = copy(self)
        made.headers = checked_headers({**self.headers, **more})
        made.encoded_headers = encoded_headers(made.headers)
        return made

    def without_header(self, name: str) -> NewJob:
        """A copy without this header."""
        made = copy(self)
        made.headers = {each: text for each, text in self.headers.items() if each != name}
        made.encoded_headers = encoded_headers(made.headers) if made.headers else None
        return made

    def due_at(self, now: float) -> float:
        """When it may run, in seconds since 1970; never in the past."""
        return max(self.run_at, now) if self.run_at is not None else now + self.delay

    def __repr__(self) -> str:
        return f"NewJob({self.kind!r}, {self.payload!r})"


def _checked_after(after: Sequence[NewJob]) -> tuple[NewJob, ...]:
    if isinstance(after, NewJob) or not all(isinstance(job, NewJob) for job in after):
        raise JobError(f"after = {after!r} must be a list of the NewJobs that come before")
    return tuple(dict.fromkeys(after))
