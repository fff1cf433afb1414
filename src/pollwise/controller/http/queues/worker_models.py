"""Workers and their history in the OpenAPI schema of raw queues. Nothing here is called."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from pollwise.runtime.executor.starting import MAX_CONCURRENCY
from pollwise.runtime.jobs import NAME_LENGTH_MAX
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
    instance: str = Field(description="Tells workers apart that have the same name.")
    host: str = ""
    pid: int = 0
    version: str = ""
    kinds: list[str] | None = Field(None, description="Those it handles; null: any.")
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
    ttl: Seconds = Field(description="After how long the record expires; at most a day.")
    history: Rows
    paces: Paces


class RawOrder(BaseModel):
    concurrency: int | None = Field(description="What the worker is asked to have; or null.")


class RawStoppedWorker(BaseModel):
    worker: RawWorker
    history: Rows
    paces: Paces


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
