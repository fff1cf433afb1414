"""Queues as a whole in the OpenAPI schema: workers, history, pauses, schedules, limits.

Nothing here is called.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from pollwise.runtime.executor.starting import MAX_CONCURRENCY
from pollwise.runtime.jobs import ERROR_LENGTH_MAX, NAME_LENGTH_MAX
from pollwise.runtime.rollups.keeping import PACES_MAX
from pollwise.runtime.rollups.rows import ROWS_PER_WRITE_MAX

Seconds = Annotated[float | str, Field(description="Seconds, or text such as '2m'.")]
Name = Annotated[str, Field(min_length=1, max_length=NAME_LENGTH_MAX)]


class RawRunning(BaseModel):
    id: str
    kind: str
    since: float


class RawWorker(BaseModel):
    """A running worker, as it describes itself. Times are seconds since 1970."""

    name: Name
    instance: str = Field(description="Distinguishes workers with the same name.")
    host: str = ""
    pid: int = 0
    version: str = ""
    kinds: list[str] | None = Field(None, description="The kinds it handles; null: any.")
    concurrency: int = 0
    busy: int = 0
    waiting: int = 0
    running: list[RawRunning] = Field(default_factory=list)
    started_at: float = 0.0
    seen_at: float = 0.0
    strategy: str = ""
    interval: float = 0.0
    hints: bool = False
    breakers: list[str] = Field(default_factory=list)
    schedules: list[str] | None = Field(
        default_factory=list, description="The schedules in its code; null: too many to name."
    )
    alone: str = Field("", description="The job that it runs alone, because it may kill workers.")


class RawWorkers(BaseModel):
    workers: list[RawWorker]


Rows = Annotated[
    list[tuple[int, str]],
    Field(
        default_factory=list,
        max_length=ROWS_PER_WRITE_MAX,
        description="What it did: starts of minutes, and figures as Pollwise writes them.",
    ),
]


Paces = Annotated[
    list[tuple[str, str]],
    Field(
        default_factory=list,
        max_length=PACES_MAX,
        description="What workers learned: a key, and the state as Pollwise writes it.",
    ),
]


class RawPaces(BaseModel):
    paces: Paces


class RawWorkerRecord(BaseModel):
    worker: RawWorker
    ttl: Seconds = Field(description="How long the record is valid; at most a day.")
    history: Rows
    paces: Paces


class RawOrder(BaseModel):
    concurrency: int | None = Field(description="The concurrency that an operator set; or null.")
    schedules: str | None = Field(description="Changes with each change of a schedule.")


class RawStoppedWorker(BaseModel):
    worker: RawWorker
    history: Rows
    paces: Paces


class RawSchedule(BaseModel):
    name: Name
    value: str = Field(description="The schedule as JSON, as Pollwise writes it.")


class RawSchedules(BaseModel):
    schedules: list[RawSchedule]
    stamp: str | None = Field(description="Changes with each change of a schedule.")


class RawScheduleSwap(BaseModel):
    name: Name
    expected: str | None = Field(None, description="The value as it was read; null: none.")
    value: str | None = Field(None, description="The new one; null removes the schedule.")


class RawScheduleRun(BaseModel):
    name: Name
    expected: str


class RawScheduleSwapped(BaseModel):
    done: bool = Field(description="False if it was changed meanwhile.")
    value: str | None = Field(description="Its value now.")
    job: str | None = Field(None, description="The id of the job that was put.")


class RawTick(BaseModel):
    name: Name
    value: str = Field(description="The schedule as the worker read it.")
    undeclared: bool = Field(False, description="The worker's code does not have it.")


class RawTickResult(BaseModel):
    outcome: Literal["put", "skipped", "missed", "removed", "lost", "early"]
    value: str | None = Field(description="The schedule now.")
    job: str | None
    tick: float | None
    missed: tuple[float, float] | None
    wait: float


class RawHistogram(BaseModel):
    """How long something took, in buckets of fixed bounds."""

    total: float = Field(description="The sum, in seconds.")
    buckets: list[tuple[int, int]] = Field(description="Bucket and count.")


class RawPoint(BaseModel):
    """What workers did in a minute or an hour. Figures that are 0 are left out."""

    at: float = Field(description="The start, in seconds since 1970.")
    seconds: float = Field(description="60 or 3600.")
    kind: str = Field("", description="Empty: figures that belong to no kind, such as polls.")
    done: int = 0
    failed: int = 0
    dead: int = 0
    found: int = 0
    polls: int = 0
    empty_polls: int = 0
    failed_polls: int = 0
    hinted: int = 0
    worker_seconds: float = 0.0
    interval_total: float = 0.0
    interval_low: float | None = None
    interval_high: float | None = None
    waits: RawHistogram | None = None
    durations: RawHistogram | None = None


class RawHistory(BaseModel):
    points: list[RawPoint]


class RawFolded(BaseModel):
    more: bool = Field(description="True if there may be more to fold.")


class RawConcurrency(BaseModel):
    worker: Name
    concurrency: int = Field(ge=1, le=MAX_CONCURRENCY)


class RawWorkerCount(BaseModel):
    workers: int = Field(description="How many workers have this name.")


class RawKind(BaseModel):
    kind: Name | None = Field(None, description="Null: the whole queue.")


class RawPause(RawKind):
    by: str = Field("", max_length=ERROR_LENGTH_MAX, description="Empty: the token that asks.")
    why: str = Field("", max_length=ERROR_LENGTH_MAX)


class RawResumed(BaseModel):
    resumed: bool = Field(description="False if it was not paused.")


class RawPaused(RawPause):
    at: float = Field(description="Seconds since 1970.")


class RawPauses(BaseModel):
    pauses: list[RawPaused]


class RawBreaker(BaseModel):
    """The breaker of a kind that is open or half-open. Its value is JSON, as the store has it."""

    kind: str
    value: str


class RawBreakers(BaseModel):
    breakers: list[RawBreaker]


class RawBreakerSwap(BaseModel):
    kind: Name
    expected: str | None = Field(None, description="The value as it was read; null: closed.")
    value: str | None = Field(None, description="The new one; null closes the breaker.")


class RawBreakerSwapped(BaseModel):
    done: bool = Field(description="False if it was changed meanwhile.")
    value: str | None = Field(description="Its value now.")


class RawBreakerClose(BaseModel):
    kind: Name


class RawBreakerClosed(BaseModel):
    closed: bool = Field(description="False if it was closed already.")


class RawLimit(BaseModel):
    """The limits of a kind. Their value is JSON, as the store has it."""

    kind: str
    value: str


class RawLimits(BaseModel):
    limits: list[RawLimit]


class RawLimitSet(BaseModel):
    kind: Name
    value: str | None = Field(description="Null removes the limits.")


class RawDone(BaseModel):
    done: bool = Field(description="False if there was nothing to remove.")


class RawGroupUse(BaseModel):
    """The use of a limit by one group; the group of jobs that have none is empty."""

    group: str
    running: int
    waiting: int = Field(description="Counted up to 1,000.")
    next_at: float | None = Field(description="When its rate lets the next one start.")


class RawLimitUse(BaseModel):
    limits: RawLimit
    running: int
    waiting: int = Field(description="Counted up to 1,000.")
    next_at: float | None = Field(description="When the rate lets the next one start.")
    groups: list[RawGroupUse]


class RawLimitUses(BaseModel):
    use: list[RawLimitUse]
