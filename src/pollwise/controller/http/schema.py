"""The OpenAPI schema: models for documentation, and the poll route, which FastAPI does not know.

Requests are checked by the code that uses them, with errors of our own. These models describe what
that code takes and returns, and a test compares the two.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema

_ID = "0198c5b2f3a14e6f9d0a7c2b5e8f1d34"
_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$"
_REF = "#/components/schemas/{model}"
JobState = Literal["ready", "delayed", "blocked", "leased", "done", "dead", "cancelled"]
Value = str | int | float | bool


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorDetail(_Model):
    code: str = Field(description="For programs.", examples=["no_such_job"])
    message: str = Field(description="What was wrong.")
    what_to_do: str = Field(description="What to do about it.")


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
        None, min_length=1, max_length=200, description="Put twice, it is one job."
    )
    delay_s: float | None = Field(0, ge=0, le=315360000, description="Seconds before it may run.")
    timeout_s: float | None = Field(
        None, ge=0.001, le=604800, description="How long a run may take."
    )
    attempts: int | None = Field(None, ge=1, le=100, description="The most attempts.")
    headers: dict[str, str] = Field(
        default_factory=dict, description="Text that travels with the job, such as a trace context."
    )


class JobFailureView(_Model):
    """Why an attempt failed."""

    at: str | None
    attempt: int
    error: str


class JobView(_Model):
    """A job."""

    id: str = Field(examples=["42"])
    kind: str
    payload: Any
    headers: dict[str, str]
    payload_bytes: int | None = Field(None, description="In lists, if the payload is left out.")
    requires: dict[str, Any]
    state: JobState
    attempt: int
    attempts: int
    priority: int
    key: str | None
    unique: str | None
    timeout_s: float | None
    inputs: list[str]
    progress: float | None = Field(description="From 0 to 1.")
    message: str | None
    worker_id: str | None = Field(
        description="The worker that runs it, or ran it last; null while it waits."
    )
    cancel: bool = Field(description="True if it runs and was asked to cancel.")
    created_at: str | None = Field(examples=["2026-01-27T09:30:00.000Z"])
    created_by: str | None = Field(description="Who put it.")
    run_at: str | None = Field(description="When it may run, or could have run first.")
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
    result_bytes: int | None = Field(None, description="In lists, if the result is left out.")


class WorkView(_Model):
    """A job as its worker receives it."""

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
    created_at: str | None
    timeout_s: float | None
    lease_s: float = Field(description="Send a request within this many seconds to keep the job.")
    inputs: list[str]
    cancel: bool


class JobPage(_Model):
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
    state: Literal["online", "draining", "offline"]
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


class RunningReport(_Model):
    job_id: str = Field(pattern=_PATTERN)
    progress: float | None = Field(None, ge=0, le=100)
    message: str | None = None
    log: LogPiece | None = None


class FinishedReport(_Model):
    job_id: str = Field(pattern=_PATTERN)
    state: Literal["done", "failed", "cancelled"]
    result: Any = None
    error: str | None = None
    exit_code: int | None = Field(None, gt=-(2**31), lt=2**31)
    progress: float | None = Field(None, ge=0, le=100)
    message: str | None = None


class PollBody(_Model):
    """A poll that carries reports."""

    worker_id: str = Field(min_length=1, examples=[_ID])
    max: int = Field(1, ge=0, le=100, description="The most jobs to hand out.")
    wait: float = Field(
        0, ge=0, description="Hold the answer for up to this many seconds; at most 60."
    )
    running: list[RunningReport] | None = Field(
        None, max_length=1000, description="The jobs that it runs; null if not reported."
    )
    finished: list[FinishedReport] = Field(default_factory=list, max_length=1000)


class PollAnswer(_Model):
    job: WorkView | None
    jobs: list[WorkView] | None = Field(None, description="When more than one was asked for.")
    next_poll_s: float = Field(
        description="Seconds until the next poll; 0 if there may be more jobs."
    )
    cancel: list[str] = Field(description="Jobs of this worker to stop.")
    drain: bool = Field(description="It gets no more jobs for now, and finishes what it runs.")
    lost: list[str] | None = Field(None, description="Jobs that this worker has lost.")


class Heartbeat(_Model):
    progress: float | None = Field(None, ge=0, le=100)
    message: str | None = None


class HeartbeatAnswer(_Model):
    cancel: bool
    lease_s: float = Field(description="Seconds left of the lease: send the next request before.")


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
    scope: Literal["read", "put", "operate", "worker", "admin"]
    name: str = Field(min_length=1, max_length=200, examples=["ci"])
    expires_in_s: float | None = Field(None, gt=0, le=315360000)


class TokenView(_Model):
    id: str
    name: str
    scope: Literal["read", "put", "operate", "worker", "admin"]
    created_at: str | None
    created_by: str
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None


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
    who: str
    action: str
    what: str
    detail: str
    address: str


class AuditPage(_Model):
    entries: list[AuditView]
    next: str | None


class Health(_Model):
    status: str = Field(examples=["ok"])


class RotateToken(_Model):
    expires_in_s: float | None = Field(None, gt=0, le=315360000)


#: Models that no FastAPI route names: request bodies, and the answer of the poll route.
EXTRA = (
    Drain, Error, Heartbeat, NewJobBody, NewToken, PollBody, PollAnswer, Registration, RotateToken,
)  # fmt: skip

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

    413 means that the route reads a body, so it adds all errors of reading one.
    """
    body = (408, 415) if 413 in statuses else ()
    return {
        status: {"description": ERRORS[status], "model": Error}
        for status in sorted({*statuses, *body, 401, 403, 503})
    }


def body_of(
    model: type[BaseModel], *, required: bool = True, also: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The request body of a route, for `openapi_extra`; `also` are other content types."""
    content = {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}}
    return {"requestBody": {"required": required, "content": {**content, **(also or {})}}}


def complete(openapi: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Add what FastAPI does not know: the poll route, the token, the request bodies."""
    components = openapi.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    _, extra = models_json_schema([(each, "validation") for each in EXTRA], ref_template=_REF)
    schemas |= {name: value for name, value in extra["$defs"].items() if name not in schemas}
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "description": "A token of this controller."}
    }
    openapi["security"] = [{"bearer": []}]
    openapi["paths"] = {f"{prefix}/api/workers/poll": _poll_path(), **openapi["paths"]}
    for path, operations in openapi["paths"].items():
        for operation in operations.values():
            operation.get("responses", {}).pop("422", None) if _no_422(operation) else None
            if path.endswith(("/livez", "/readyz")):
                operation["security"] = []
    return openapi


def _no_422(operation: dict[str, Any]) -> bool:
    """True for the 422 that FastAPI adds to routes with parameters, in its own form."""
    content = operation.get("responses", {}).get("422", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    return bool(schema.get("$ref", "").endswith("HTTPValidationError"))


def _poll_path() -> dict[str, Any]:
    answers: dict[str, Any] = {
        "200": {
            "description": "A job, or none.",
            "headers": {"ETag": {"schema": {"type": "string"}}},
            "content": _json("PollAnswer"),
        },
        "304": {"description": "Still no job (If-None-Match)."},
    }
    failures = {
        str(status): {"description": ERRORS[status], "content": _json("Error")}
        for status in (400, 401, 403, 404, 408, 413, 415, 422, 429, 503)
    }
    failures["429"]["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}

    def parameter(name: str, schema: dict[str, Any], about: str, **also: Any) -> dict[str, Any]:
        return {"name": name, "in": "query", "schema": schema, "description": about, **also}

    parameters = [
        parameter(
            "worker_id", {"type": "string"}, "From the registration.", required=True,
            example=_ID,
        ),
        parameter(
            "max", {"type": "integer", "minimum": 0, "maximum": 100, "default": 1},
            "How many jobs it would take.",
        ),
        parameter(
            "wait", {"type": "number", "minimum": 0, "default": 0},
            "Hold the answer until there is a job, up to this many seconds; at most 60.",
        ),
        parameter("running", {"type": "string"}, "The ids of the jobs it runs, with commas."),
        {
            "name": "If-None-Match", "in": "header", "schema": {"type": "string"},
            "description": "The ETag of the previous answer.",
        },
    ]  # fmt: skip
    common = {"tags": ["workers"]}
    return {
        "get": {
            **common,
            "operationId": "poll",
            "summary": "Ask for a job",
            "description": "After a poll that found nothing, wait at least min_interval_s; the "
            "answer suggests when to poll again.",
            "parameters": parameters,
            "responses": {
                **answers,
                **{k: v for k, v in failures.items() if k not in ("408", "413", "415")},
            },
        },
        "post": {
            **common,
            "operationId": "poll_and_report",
            "summary": "Report, and ask for a job",
            "requestBody": {"required": True, "content": _json("PollBody")},
            "responses": {"200": answers["200"], **failures},
        },
    }


def _json(model: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(model=model)}}}
