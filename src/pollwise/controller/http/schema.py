"""The models of requests and answers, and the OpenAPI schema. Bodies are checked by their models,
except those of jobs and workers, which programs can also put and register without HTTP.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.json_schema import models_json_schema

from pollwise.controller.http.codes import AUDITED, CODES
from pollwise.controller.security.tokens import EXPIRES_MAX
from pollwise.controller.state.values import Scope
from pollwise.runtime.jobs import Progress

_ID = "0198c5b2f3a14e6f9d0a7c2b5e8f1d34"
_REF = "#/components/schemas/{model}"
#: The most entries of `running` and of `finished` in one poll.
REPORTS_MAX = 1000


def _cleaned(value: object) -> object:
    """Text that every store can keep, and not too long."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")[:2000]


def _separated(value: object) -> object:
    return [each for each in value.split(",") if each] if isinstance(value, str) else value


JobState = Literal["ready", "delayed", "blocked", "leased", "done", "dead", "cancelled"]
AttemptState = Literal["leased", "failed", "done", "dead", "cancelled"]
WorkerState = Literal["online", "draining", "offline"]
Value = str | int | float | bool
JobId = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]
JobIds = Annotated[list[JobId], BeforeValidator(_separated), WithJsonSchema({"type": "string"})]
Message = Annotated[str, BeforeValidator(_cleaned)]
ExpiresIn = Annotated[float, Field(gt=0, le=EXPIRES_MAX)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class BadItem(_Model):
    index: int = Field(description="Its place in the list, from 0.")
    message: str = Field(description="What is wrong with it.")


class ErrorDetail(_Model):
    code: str = Field(
        description="For programs.",
        examples=["no_such_job"],
        json_schema_extra={"enum": list(CODES)},
    )
    message: str = Field(description="What was wrong.")
    what_to_do: str = Field(description="What to do about it.")
    items: list[BadItem] | None = Field(
        None, description="For a list: the invalid entries, and why."
    )


class Error(_Model):
    """The answer to every request that fails."""

    error: ErrorDetail


class NewJobBody(_Model):
    """A job to put."""

    kind: str = Field(min_length=1, max_length=183, examples=["build"])
    payload: Any = Field(None, description="Any JSON.", examples=[{"ref": "main"}])
    requires: dict[str, Value | list[Value]] = Field(
        default_factory=dict,
        max_length=20,
        description="Capability -> a value, a list of values, or a comparison such as '>=8'.",
        examples=[{"platform": "ios", "memory_gb": ">=8"}],
    )
    priority: int = Field(0, ge=-1000, le=1000, description="Higher runs first.")
    key: str | None = Field(
        None, min_length=1, max_length=200, description="Jobs with the same key run one at a time."
    )
    unique: str | None = Field(
        None, min_length=1, max_length=200, description="A second put with it is the same job."
    )
    delay_s: float | None = Field(0, ge=0, le=315360000, description="Seconds before it may run.")
    timeout_s: float | None = Field(
        None, ge=0.001, le=604800, description="How long a run may take."
    )
    attempts: int | None = Field(None, ge=1, le=100, description="The maximum number of attempts.")
    headers: dict[str, str] = Field(
        default_factory=dict, description="Text that travels with the job, such as a trace context."
    )


class JobFailureView(_Model):
    """Why an attempt failed."""

    at: str | None
    attempt: int
    error: str


class AttemptView(_Model):
    """One run of a job."""

    attempt: int
    state: AttemptState | None = Field(description="How it ended; null if that is not kept.")
    worker_id: str | None
    worker_name: str | None
    began_at: str | None = Field(description="When it was claimed, or its first output came.")
    ended_at: str | None
    error: str | None
    log_start: int | None = Field(description="Its part of the log, in bytes; null without one.")
    log_end: int | None


class AttemptList(_Model):
    attempts: list[AttemptView] = Field(description="The oldest first.")


class WorkBase(_Model):
    id: str = Field(examples=["42"])
    kind: str
    payload: Any
    headers: dict[str, str]
    requires: dict[str, Any]
    state: JobState
    attempt: int
    attempts: int
    priority: int
    key: str | None
    created_at: str | None = Field(examples=["2026-01-27T09:30:00.000Z"])
    timeout_s: float | None
    inputs: list[str]
    cancel: bool = Field(description="True if it runs and was asked to cancel.")


class JobView(WorkBase):
    """A job."""

    unique: str | None
    payload_start: str | None = Field(None, description="In lists, of a long payload.")
    progress: float | None = Field(description="From 0 to 1.")
    message: str | None
    worker_id: str | None = Field(
        description="The worker that runs it, or ran it last; null while it waits."
    )
    worker_name: str | None = Field(description="Its name; null if it is unregistered.")
    created_by: str | None = Field(description="Who put it.")
    created_by_name: str | None = Field(description="The name of that token.")
    run_at: str | None = Field(description="From when on it may run.")
    started_at: str | None = Field(description="When the current or last run began.")
    finished_at: str | None
    error: str | None = Field(description="Why it failed, once it has ended.")
    last_error: str | None = Field(
        description="Why the previous attempt failed, while it waits or runs again."
    )
    errors: list[JobFailureView] = Field(description="Of the last attempts, the newest last.")
    waiting_for: str | None = Field(
        description="Why no live worker can take it.",
        examples=["no live worker has memory_gb >= 8"],
    )
    result: Any = None
    result_start: str | None = Field(None, description="In lists, of a long result.")


class WorkView(WorkBase):
    """A job as its worker receives it."""

    lease_s: float = Field(description="To keep the job, send a request within this time.")


class JobsPut(_Model):
    """A list of jobs that was put."""

    ids: list[str] = Field(description="In the order of the list.")
    fresh: int = Field(description="How many are new, and not repeats of a `unique`.")


class PutJobs(_Model):
    jobs: list[JobView]
    next: str | None = Field(description="The `after` of the next page; null at the end.")


class Registration(_Model):
    """A worker to register."""

    name: str = Field(min_length=1, max_length=200, examples=["mac-mini-3"])
    capabilities: dict[str, Value | list[Value]] = Field(
        default_factory=dict, max_length=50, examples=[{"platform": "ios", "memory_gb": 16}]
    )
    slots: int = Field(1, ge=1, le=1000, description="How many jobs it runs at a time.")


class RegisteredBody(_Model):
    worker_id: str = Field(examples=[_ID])
    token: str = Field(description="The worker's own token. It is not shown again.")
    expires_at: str | None
    expires_in_s: float | None = Field(description="Seconds until then, by the controller's clock.")
    poll_interval_s: float
    min_interval_s: float
    heartbeat_timeout_s: float
    artefact_limit: int = Field(description="The largest artefact, in bytes.")
    ws: str = Field(description="The path of the WebSocket.", examples=["/api/workers/ws"])


class WorkerView(_Model):
    id: str = Field(examples=[_ID])
    name: str
    capabilities: dict[str, Any]
    slots: int
    state: WorkerState
    drain: bool
    registered_at: str | None
    last_seen_at: str | None
    token_expires_at: str | None
    address: str | None


class WorkerPage(_Model):
    workers: list[WorkerView]
    next: str | None


class DrainedView(WorkerView):
    what_follows: str = Field(
        description="What happens to the worker now, and how to undo it.",
    )


class Drain(_Model):
    drain: bool = Field(True, description="false: it gets jobs again.")


class Unregistered(_Model):
    given_back: int = Field(description="How many jobs went back to the queue.")


class LogPiece(_Model):
    offset: int = Field(ge=0, description="Where it begins, in bytes of this run's log.")
    text: str


class Heartbeat(_Model):
    progress: float | None = Field(None, ge=0, le=100, description="Above 1, a percentage.")
    message: Message | None = None

    def as_progress(self) -> Progress | None:
        """The progress and the message; None if there is neither."""
        if self.progress is None:
            return None if self.message is None else Progress(None, self.message)
        fraction = self.progress / 100 if self.progress > 1 else self.progress
        return Progress(fraction, self.message)


class RunningReport(Heartbeat):
    model_config = ConfigDict(extra="ignore")

    job_id: JobId
    log: LogPiece | None = None


class FinishedReport(Heartbeat):
    model_config = ConfigDict(extra="ignore")

    job_id: JobId
    state: Literal["done", "failed", "cancelled"]
    result: Any = None
    error: Message | None = None
    exit_code: int | None = Field(None, gt=-(2**31), lt=2**31)


class PollBase(_Model):
    worker_id: Message = Field(min_length=1, description="From the registration.", examples=[_ID])
    max: int = Field(1, ge=0, le=100, description="The maximum number of jobs to hand out.")
    wait: float = Field(
        0,
        ge=0,
        allow_inf_nan=False,
        description="Hold the answer until there is a job, up to this many seconds; at most 60.",
    )


class PollQuery(PollBase):
    running: JobIds | None = Field(
        None, max_length=REPORTS_MAX, description="The ids of the jobs it runs, with commas."
    )


class PollBody(PollBase):
    """A poll that carries reports."""

    running: list[RunningReport] | None = Field(
        None, max_length=REPORTS_MAX, description="The jobs that it runs; null if not reported."
    )
    finished: list[FinishedReport] | None = Field(
        None, max_length=REPORTS_MAX, description="The jobs that have ended since the last poll."
    )


class PollAnswer(_Model):
    job: WorkView | None
    jobs: list[WorkView] | None = Field(None, description="When more than one was asked for.")
    next_poll_s: float = Field(
        description="Seconds until the next poll; 0 if there may be more jobs."
    )
    cancel: list[str] = Field(description="Jobs of this worker to stop.")
    drain: bool = Field(description="True if it gets no more jobs for now.")
    lost: list[str] | None = Field(None, description="Jobs that this worker has lost.")


class HeartbeatAnswer(_Model):
    cancel: bool
    lease_s: float = Field(description="Seconds left of the lease: send the next request within.")


class LogAnswer(_Model):
    received: int = Field(description="How many bytes of this run's log were received.")
    size: int = Field(description="The length of the whole log, of all runs.")
    cut: bool = Field(description="True if the limit is reached and no more is stored.")


class ArtefactView(_Model):
    name: str
    size: int
    sha256: str
    content_type: str
    created_at: str | None


class ArtefactList(_Model):
    artefacts: list[ArtefactView]


class NewToken(_Model):
    scope: Scope
    name: str = Field(min_length=1, max_length=200, examples=["ci"])
    expires_in_s: ExpiresIn | None = None
    all_jobs: bool = Field(
        False,
        description="For the scope `put`: it sees, cancels and retries the jobs of others too.",
    )


class TokenView(_Model):
    id: str
    name: str
    scope: Scope
    created_at: str | None
    created_by: str
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None
    all_jobs: bool = Field(description="Of the scope `put`: it may see the jobs of others too.")


class TokenMade(TokenView):
    token: str = Field(description="It is not shown again.")


class TokenPage(_Model):
    tokens: list[TokenView]
    next: str | None


class WaitingView(_Model):
    kind: str
    requires: dict[str, Any]
    count: int
    oldest_age_s: float
    waiting_for: str | None


class StatsView(_Model):
    jobs: dict[str, int] = Field(examples=[{"ready": 3, "leased": 1}])
    waiting: list[WaitingView]
    workers: int
    workers_online: int
    running: int
    held_polls: int = Field(description="Of this controller.")
    pushes: int = Field(description="Open WebSockets of this controller.")


class AuditView(_Model):
    id: int
    at: str | None
    who: str = Field(examples=[f"token:{_ID}"])
    who_name: str | None = Field(description="The name of the token or worker.", examples=["ci"])
    action: str = Field(json_schema_extra={"enum": list(AUDITED)})
    what: str
    detail: str
    address: str


class AuditPage(_Model):
    entries: list[AuditView]
    next: str | None


class Health(_Model):
    status: str = Field(examples=["ok"])


class RotateToken(_Model):
    expires_in_s: ExpiresIn | None = None


#: Request bodies, which our routes read themselves.
BODIES = (Drain, Heartbeat, NewJobBody, NewToken, Registration, RotateToken)

ERRORS: dict[int, str] = {
    400: "The request cannot be read.",
    401: "No token, or an invalid one.",
    403: "The token's scope does not allow it.",
    404: "It does not exist, or the token may not see it.",
    409: "The state has changed meanwhile.",
    410: "Its bytes are gone.",
    413: "Too large.",
    408: "The body took too long.",
    415: "The body is compressed.",
    416: "The range is out of bounds.",
    422: "The request is invalid.",
    429: "Too soon; Retry-After says when.",
    500: "The controller failed.",
    501: "Not installed.",
    503: "The store does not answer; Retry-After says when to try again.",
    507: "There is no room for the file; nothing was stored. Retry-After says when to try.",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route, with those that any route may give.

    413 means that the route reads a body, so it adds all errors of reading one. Models are named
    only: FastAPI would make a validator for each, which takes half of the application's start.
    """
    all_of = sorted({*statuses, *((408, 415) if 413 in statuses else ()), 401, 403, 503})
    return {each: {"description": ERRORS[each], "content": _json_of(Error)} for each in all_of}


def _json_of(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}}


def described(
    summary: str,
    model: type[BaseModel],
    *failures: int,
    status: int = 200,
    body: type[BaseModel] | None = None,
    **also: Any,
) -> dict[str, Any]:
    """How FastAPI describes a route: what it answers, how it fails, and the body that it reads."""
    if body is not None:
        required = any(each.is_required() for each in body.model_fields.values())
        also["openapi_extra"] = {"requestBody": {"required": required, "content": _json_of(body)}}
        failures = (*failures, 400, 413, 422)
    responses = {status: {"model": model}, **errors(*failures)}
    return {"summary": summary, "status_code": status, "responses": responses, **also}


def complete(openapi: dict[str, Any]) -> dict[str, Any]:
    """Add what FastAPI does not know: the token, the request bodies and the errors."""
    components = openapi["components"]
    models: Any = [(Error, "serialization"), *((each, "validation") for each in BODIES)]
    _, ours = models_json_schema(models, ref_template=_REF)
    components["schemas"] = {**ours["$defs"], **components["schemas"]}
    for unused in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(unused, None)
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "description": "A token of this controller."}
    }
    openapi["security"] = [{"bearer": []}]
    for path, operations in openapi["paths"].items():
        for operation in operations.values():
            # FastAPI adds a 422 of its own to routes with parameters.
            if "HTTPValidationError" in str(operation["responses"].get("422")):
                del operation["responses"]["422"]
            if path in ("/livez", "/readyz"):
                operation["security"] = []
    return openapi
