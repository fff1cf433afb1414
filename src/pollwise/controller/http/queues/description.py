"""Describes the routes of raw queues for the OpenAPI schema. Nothing here is called.

`QueueApi` has the routes, and `pollwise.queues.http.wire` reads and writes their values.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from pollwise.controller.http.queues.view_models import (
    RawEndings,
    RawFlow,
    RawFlowAsked,
    RawId,
    RawJob,
    RawJobPage,
    RawJobs,
    RawOneJob,
    RawPredecessors,
    RawProgress,
    RawStats,
    RawStatsByKind,
)
from pollwise.controller.http.queues.worker_models import (
    Name,
    RawBreakerClose,
    RawBreakerClosed,
    RawBreakers,
    RawBreakerSwap,
    RawBreakerSwapped,
    RawConcurrency,
    RawDone,
    RawFolded,
    RawHistory,
    RawKind,
    RawLimits,
    RawLimitSet,
    RawLimitUses,
    RawOrder,
    RawPaces,
    RawPause,
    RawPauses,
    RawResumed,
    RawScheduleRun,
    RawSchedules,
    RawScheduleSwap,
    RawScheduleSwapped,
    RawStoppedWorker,
    RawTick,
    RawTickResult,
    RawWorkerCount,
    RawWorkerRecord,
    RawWorkers,
    Seconds,
)
from pollwise.controller.http.schema import Error, JobState, errors
from pollwise.runtime.jobs import (
    PRIORITY_MAX,
    SettlementAction,
)

Nonce = Annotated[
    str | None,
    Field(
        min_length=8,
        max_length=100,
        description="Within a minute, a call with the same nonce gets the same answer.",
    ),
]
Keep = Annotated[
    str | None, Query(description="How long the jobs are kept that this call ends: 7d.")
]
Ids = Annotated[list[str] | None, Field(description="Null: all dead jobs.")]


class RawNewJob(BaseModel):
    """A job to put into a raw queue."""

    kind: Name
    payload: Any = None
    key: Name | None = None
    priority: int = Field(0, ge=-PRIORITY_MAX, le=PRIORITY_MAX)
    delay: Seconds = 0.0
    run_at: float | None = Field(None, description="Seconds since 1970; instead of a delay.")
    unique: Name | None = None
    replace: bool = Field(False, description="Replace the waiting job with this `unique`.")
    headers: dict[str, str] | None = None
    limit_group: Name | None = Field(None, description="Its group, if limits are by group.")
    after: list[int] | None = Field(
        None, description="The places in the batch, from 0, of its predecessors."
    )
    on_failure: bool = Field(False, description="Run it when a predecessor is dead.")


class RawPut(BaseModel):
    jobs: list[RawNewJob]
    nonce: Nonce = None


class RawPutAnswer(BaseModel):
    ids: list[str]
    fresh: int = Field(description="How many are new, and not repeats of a `unique`.")


class RawClaim(BaseModel):
    worker: Name
    limit: int = Field(1, ge=1)
    lease: Seconds = 60.0
    hold: Seconds = Field(0.0, description="How long to wait for a job; at most 60 s.")
    kinds: list[str] | None = None
    nonce: Nonce = None


class RawClaimed(RawJob):
    token: int
    until: float
    receipt: str = Field("", description="Send it back to settle or renew the claim.")
    lapsed_from: str = Field("", description="The worker whose lease ran out just before, if any.")


class RawClaims(BaseModel):
    claims: list[RawClaimed]
    due_in: float | None = Field(description="Seconds until the next job is due, if known.")
    limited: list[str] = Field(default_factory=list, description="The kinds that have limits.")


class RawAbandon(BaseModel):
    nonce: Nonce = None


class RawHeld(BaseModel):
    """A claim that is sent back unchanged."""

    id: str
    token: int
    kind: str = "unknown"
    key: str | None = None
    attempt: int = 1
    receipt: str


class RawSettlement(RawHeld):
    action: SettlementAction
    delay: float = Field(0.0, ge=0)
    error: str | None = None
    result: Any = None
    keep: float | None = Field(
        None, gt=0, description="Seconds that a done or cancelled job is kept for its result."
    )
    traceback: str | None = Field(None, description="Where the error of a dead job came from.")


class RawSettle(BaseModel):
    settlements: list[RawSettlement]


class RawLost(BaseModel):
    lost: list[str] = Field(description="The jobs whose claim is not valid.")


class RawRenewal(RawHeld):
    progress: RawProgress | None = None


class RawRenew(BaseModel):
    lease: Seconds
    claims: list[RawRenewal]


class RawRenewed(RawLost):
    cancel: list[str] = Field(description="The jobs that were asked to cancel.")


class RawFilter(BaseModel):
    """Which jobs a bulk action takes; all values are text, as in a query."""

    state: JobState | None = None
    kind: list[str] | None = None
    worker: str | None = None
    limit: str | None = Field(None, description="The maximum number of jobs, up to 1,000.")
    after: str | None = Field(None, description="The `next` of the previous answer.")
    key: Name | None = None
    error: str | None = Field(None, description="Text in the newest error.")
    older_than: str | None = Field(None, description="Put longer ago than this: seconds, or 7d.")
    newer_than: str | None = Field(None, description="Put within this time: seconds, or 7d.")
    live: Literal["true", "false"] | None = None


class RawCancel(BaseModel):
    ids: list[str] | None = None
    filter: RawFilter | None = Field(None, description="Instead of ids.")
    nonce: Nonce = None


class RawStates(BaseModel):
    states: dict[str, JobState]


class RawChoice(BaseModel):
    ids: Ids = None
    filter: RawFilter | None = Field(None, description="Instead of ids.")


class RawRetry(RawChoice):
    anyway: bool = Field(
        False, description="Retry dead jobs too whose failure has started jobs of `on_failure`."
    )


class RawCount(BaseModel):
    count: int


class RawBulkDone(RawCount):
    next: str | None = Field(None, description="For a filter: where to continue; else null.")


class RawHint(BaseModel):
    message: str | None = Field(None, description="For the processes that listen.")


class RawAbout(BaseModel):
    name: str
    capabilities: dict[str, Any]


class RawIds(BaseModel):
    ids: list[str]


class RawNames(BaseModel):
    names: list[str]


class RawNothing(BaseModel):
    """An empty object."""


description = APIRouter(prefix="/api/queue/{name}", tags=["raw queues"])


def _answers(model: Any, scopes: str) -> dict[str, Any]:
    moved = {412: {"description": "The first try reached another controller.", "model": Error}}
    found: dict[Any, Any] = {200: {"model": model}, **errors(400, 413, 422, 429), **moved}
    about = f"Scope {scopes}, in the queues that `controller.queues` names; or `admin`."
    return {"responses": found, "description": about}


_PUT, _WORK, _OPERATE = "`put`", "`worker`", "`operate`"
_READ, _ALL = "`read`, `put` or `operate`", "`read`, `put`, `operate` or `worker`"


@description.post("/put", summary="Put jobs, all or none", **_answers(RawPutAnswer, _PUT))
def raw_put(name: str, body: RawPut, keep: Keep = None) -> None: ...


@description.post("/claim", summary="Claim jobs under a lease", **_answers(RawClaims, _WORK))
def raw_claim(name: str, body: RawClaim, keep: Keep = None) -> None: ...


@description.post("/abandon", summary="End a held claim", **_answers(RawNothing, _WORK))
def raw_abandon(name: str, body: RawAbandon, keep: Keep = None) -> None: ...


@description.post("/settle", summary="End claims", **_answers(RawLost, _WORK))
def raw_settle(name: str, body: RawSettle, keep: Keep = None) -> None: ...


@description.post("/renew", summary="Renew leases", **_answers(RawRenewed, _WORK))
def raw_renew(name: str, body: RawRenew, keep: Keep = None) -> None: ...


@description.post("/prune", summary="Delete jobs kept long enough", **_answers(RawCount, _WORK))
def raw_prune(name: str, keep: Keep = None) -> None: ...


@description.post("/endings", summary="How jobs ended", **_answers(RawEndings, _READ))
def raw_endings(name: str, body: RawIds, keep: Keep = None) -> None: ...


@description.post(
    "/predecessors", summary="How the predecessors of a job of a flow ended",
    **_answers(RawPredecessors, _ALL),
)  # fmt: skip
def raw_predecessors(name: str, body: RawId, keep: Keep = None) -> None: ...


@description.post("/flow", summary="The jobs of a flow", **_answers(RawFlow, _READ))
def raw_flow(name: str, body: RawFlowAsked, keep: Keep = None) -> None: ...


@description.post("/cancel", summary="Cancel jobs", **_answers(RawStates | RawBulkDone, _OPERATE))
def raw_cancel(name: str, body: RawCancel, keep: Keep = None) -> None: ...


@description.post("/retry", summary="Run ended jobs again", **_answers(RawBulkDone, _OPERATE))
def raw_retry(name: str, body: RawRetry, keep: Keep = None) -> None: ...


@description.post("/drop", summary="Delete ended jobs", **_answers(RawBulkDone, _OPERATE))
def raw_drop(name: str, body: RawChoice, keep: Keep = None) -> None: ...


@description.post("/pause", summary="Pause a kind", **_answers(RawNothing, _OPERATE))
def raw_pause(name: str, body: RawPause, keep: Keep = None) -> None: ...


@description.post("/resume", summary="End a pause", **_answers(RawResumed, _OPERATE))
def raw_resume(name: str, body: RawKind, keep: Keep = None) -> None: ...


@description.post(
    "/concurrency", summary="Change a worker's concurrency", **_answers(RawWorkerCount, _OPERATE)
)  # fmt: skip
def raw_concurrency(name: str, body: RawConcurrency, keep: Keep = None) -> None: ...


@description.post("/record-worker", summary="Store a worker's record", **_answers(RawOrder, _WORK))
def raw_record_worker(name: str, body: RawWorkerRecord, keep: Keep = None) -> None: ...


@description.post(
    "/forget-worker", summary="Delete a worker's record", **_answers(RawNothing, _WORK)
)
def raw_forget_worker(name: str, body: RawStoppedWorker, keep: Keep = None) -> None: ...


@description.post("/fold-history", summary="Fold old history", **_answers(RawFolded, _WORK))
def raw_fold_history(name: str, keep: Keep = None) -> None: ...


@description.get("/history", summary="What workers did", **_answers(RawHistory, _READ))
def raw_history(
    name: str,
    since: Seconds = "24h",
    by: Literal["minute", "hour"] | None = None,
    kind: Annotated[list[str] | None, Query()] = None,
    worker: str | None = None,
    keep: Keep = None,
) -> None: ...


@description.get("/pauses", summary="What is paused", **_answers(RawPauses, _ALL))
def raw_pauses(name: str, keep: Keep = None) -> None: ...


@description.get("/schedules", summary="The schedules", **_answers(RawSchedules, _ALL))
def raw_schedules(name: str, keep: Keep = None) -> None: ...


@description.post(
    "/set-schedule", summary="Set or remove a schedule", **_answers(RawScheduleSwapped, _OPERATE)
)  # fmt: skip
def raw_set_schedule(name: str, body: RawScheduleSwap, keep: Keep = None) -> None: ...


@description.post(
    "/run-schedule", summary="Put a job of a schedule now",
    **_answers(RawScheduleSwapped, _OPERATE),
)  # fmt: skip
def raw_run_schedule(name: str, body: RawScheduleRun, keep: Keep = None) -> None: ...


@description.post(
    "/tick", summary="Put the tick of a schedule that is due", **_answers(RawTickResult, _WORK)
)  # fmt: skip
def raw_tick(name: str, body: RawTick, keep: Keep = None) -> None: ...


@description.get("/limits", summary="The limits of kinds", **_answers(RawLimits, _ALL))
def raw_limits(name: str, keep: Keep = None) -> None: ...


@description.get("/breakers", summary="Breakers that are open", **_answers(RawBreakers, _ALL))
def raw_breakers(name: str, keep: Keep = None) -> None: ...


@description.post(
    "/swap-breaker", summary="Share the state of a breaker", **_answers(RawBreakerSwapped, _WORK)
)  # fmt: skip
def raw_swap_breaker(name: str, body: RawBreakerSwap, keep: Keep = None) -> None: ...


@description.post(
    "/close-breaker", summary="Close a breaker", **_answers(RawBreakerClosed, _OPERATE)
)  # fmt: skip
def raw_close_breaker(name: str, body: RawBreakerClose, keep: Keep = None) -> None: ...


@description.get("/limit-use", summary="How limits are used", **_answers(RawLimitUses, _READ))
def raw_limit_use(name: str, kind: str, groups: int = 0, keep: Keep = None) -> None: ...


@description.post(
    "/set-limits", summary="Set or remove the limits of a kind", **_answers(RawDone, _OPERATE)
)  # fmt: skip
def raw_set_limits(name: str, body: RawLimitSet, keep: Keep = None) -> None: ...


@description.get("/paces", summary="What workers learned", **_answers(RawPaces, _WORK))
def raw_paces(name: str, keep: Keep = None) -> None: ...


@description.get("/workers", summary="The running workers", **_answers(RawWorkers, _READ))
def raw_workers(name: str, keep: Keep = None) -> None: ...


@description.post(
    "/hint", summary="Send a message to listeners",
    **_answers(RawNothing, "`put`, `operate` or `worker`"),
)  # fmt: skip
def raw_hint(name: str, body: RawHint, keep: Keep = None) -> None: ...


@description.get("", summary="What the queue can do", **_answers(RawAbout, _ALL))
def raw_about(name: str, keep: Keep = None) -> None: ...


@description.get(
    "/stats", summary="Count the jobs", **_answers(RawStats | RawStatsByKind, _ALL)
)  # fmt: skip
def raw_stats(
    name: str,
    by: Literal["kind"] | None = None,
    most: Annotated[
        int | None, Query(description="The maximum number of jobs to count in a state.", ge=1)
    ] = None,
    keep: Keep = None,
) -> None: ...


@description.get("/arrivals", summary="Jobs in put order", **_answers(RawJobs, _READ))
def raw_arrivals(
    name: str,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    after: str | None = None,
    keep: Keep = None,
) -> None: ...


@description.get("/jobs", summary="A page of jobs", **_answers(RawJobPage, _READ))
def raw_jobs(
    name: str,
    state: JobState | None = None,
    kind: Annotated[list[str] | None, Query()] = None,
    worker: str | None = None,
    key: str | None = None,
    error: str | None = None,
    older_than: str | None = None,
    newer_than: str | None = None,
    live: bool = False,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    after: str | None = None,
    keep: Keep = None,
) -> None: ...


@description.get("/names", summary="The queues of the store", **_answers(RawNames, _ALL))
def raw_names(name: str, keep: Keep = None) -> None: ...


@description.get("/jobs/{job_id}", summary="Show a job", **_answers(RawOneJob, _READ))
def raw_job(name: str, job_id: str, keep: Keep = None) -> None: ...
