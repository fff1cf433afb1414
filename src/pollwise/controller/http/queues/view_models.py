"""What the routes of raw queues show of jobs, for the OpenAPI schema."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from pollwise.controller.http.queues.worker_models import Name
from pollwise.controller.http.schema import JobState
from pollwise.queues.flows.view import FLOW_SHOWN_MAX
from pollwise.runtime.store import MAX_BATCH


class RawJob(BaseModel):
    """A job of a raw queue. Times are seconds since 1970."""

    id: str
    kind: str
    payload: Any
    key: str | None
    priority: int
    attempt: int
    created_at: float
    run_at: float
    unique: str | None
    headers: dict[str, str] = Field(default_factory=dict)
    unreadable: str | None = Field(None, description="Why its payload cannot be decoded.")


class RawProgress(BaseModel):
    fraction: float | None = Field(None, ge=0, le=1)
    note: str | None = None


class RawStats(BaseModel):
    ready: int
    delayed: int
    blocked: int
    leased: int
    dead: int
    done: int
    cancelled: int
    oldest_age: float | None
    capped: list[JobState] = Field(description="The states that have at least this many jobs.")


class RawStatsByKind(BaseModel):
    kinds: dict[str, RawStats]


class RawFailure(BaseModel):
    at: float
    attempt: int
    error: str
    traceback: str | None = None


class RawEnding(BaseModel):
    kind: str
    state: JobState
    result: Any
    failure: RawFailure | None


class RawEndings(BaseModel):
    endings: dict[str, RawEnding | None] = Field(
        description="By id; null for a job that does not exist. Jobs that go on are left out."
    )
    rest: list[str] = Field(
        description="Ids to ask for again, because the results of the others are large."
    )


class RawProgressView(RawProgress):
    at: float


class RawJobInfo(BaseModel):
    job: RawJob
    state: JobState
    since: float
    worker: str | None
    errors: list[RawFailure]
    claimed_at: float | None
    progress: RawProgressView | None
    cancel: bool
    result: Any


class RawJobs(BaseModel):
    jobs: list[RawJobInfo]


class RawJobPage(RawJobs):
    next: str | None = Field(description="Pass it as `after` to go on; null at the end.")
    examined: int


class RawOneJob(BaseModel):
    job: RawJobInfo | None


class RawId(BaseModel):
    id: Name


class RawFlowAsked(RawId):
    most: int = Field(
        FLOW_SHOWN_MAX + 1, ge=1, le=MAX_BATCH, description="The maximum number of jobs."
    )


class RawPredecessor(BaseModel):
    id: str
    ending: RawEnding | None = Field(description="Null: it has not ended, or does not exist.")


class RawPredecessors(BaseModel):
    predecessors: list[RawPredecessor]


class RawFlowJob(BaseModel):
    """A job of a flow, with the ids of its predecessors."""

    info: RawJobInfo
    after: list[str]
    failure: bool = Field(description="It runs when a predecessor is dead.")


class RawFlow(BaseModel):
    jobs: list[RawFlowJob]
