"""The API as OpenAPI describes it: models that document, and the route that is no FastAPI route.

What comes in is checked by the code that uses it, with errors of our own; these models say what
that code takes and gives, and a test holds the two together.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema

_ID = "0198c5b2f3a14e6f9d0a7c2b5e8f1d34"
_PATTERN = "^[0-9a-f]{32}$"
_REF = "#/components/schemas/{model}"
JobState = Literal["ready", "leased", "done", "dead", "cancelled"]
Value = str | int | float | bool


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorDetail(_Model):
    code: str = Field(description="For programs.", examples=["no_such_job"])
    message: str = Field(description="What was wrong.")
    what_to_do: str = Field(description="How to go on.")


class Error(_Model):
    """How every request that fails is answered."""

    error: ErrorDetail


class NewJobBody(_Model):
    """A job to submit."""

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
        None, min_length=1, max_length=200, description="Submitted twice, it is one job."
    )
    delay_s: float | None = Field(0, ge=0, le=315360000, description="Not before so many seconds.")
    timeout_s: float | None = Field(
        None, ge=0.001, le=604800, description="How long a run may take."
    )
    attempts: int | None = Field(None, ge=1, le=100, description="How often it is tried.")


class JobView(_Model):
    """A job."""

    id: str = Field(examples=[_ID])
    kind: str
    payload: Any
    payload_bytes: int | None = Field(None, description="In pages, when the payload is left out.")
    requires: dict[str, Any]
    state: JobState
    attempt: int
    attempts: int
    priority: int
    key: str | None
    unique: str | None
    timeout_s: float | None
    inputs: list[str]
    progress: float | None
    message: str | None
    worker_id: str | None = Field(
        description="Who runs it, or ran it last if it has ended; null while it waits."
    )
    cancel: bool = Field(description="It runs, and somebody asked to cancel it.")
    created_at: str | None = Field(examples=["2026-01-27T09:30:00.000Z"])
    started_at: str | None = Field(description="When the run began that goes on, or was the last.")
    finished_at: str | None
    error: str | None = Field(description="Why it did not get done, once it has ended.")
    last_error: str | None = Field(
        description="Why the attempt before failed, while it waits or runs again."
    )
    exit_code: int | None
    waiting_for: str | None = Field(
        description="Why no live worker can take it.",
        examples=["no live worker has memory_gb >= 8"],
    )
    result: Any = None


class WorkView(_Model):
    """A job as its worker gets it."""

    id: str = Field(examples=[_ID])
    kind: str
    payload: Any
    requires: dict[str, Any]
    state: JobState
    attempt: int
    attempts: int
    priority: int
    key: str | None
    created_at: str | None
    timeout_s: float | None
    lease_s: float = Field(description="Be heard of again before so many seconds are over.")
    inputs: list[str]
    cancel: bool


class JobPage(_Model):
    jobs: list[JobView]
    next: str | None = Field(description="Give it as `after` for the next page; null at the end.")


class Registration(_Model):
    """A worker that wants jobs."""

    name: str = Field(min_length=1, max_length=200, examples=["mac-mini-3"])
    capabilities: dict[str, Value | list[Value]] = Field(
        default_factory=dict, max_length=50, examples=[{"platform": "ios", "memory_gb": 16}]
    )
    slots: int = Field(1, ge=1, le=1000, description="How many jobs it runs at a time.")


class RegisteredBody(_Model):
    worker_id: str = Field(examples=[_ID])
    token: str = Field(description="The worker's own. It is shown this once.")
    expires_at: str | None
    poll_interval_s: float
    min_interval_s: float
    heartbeat_timeout_s: float
    artefact_limit: int = Field(description="The largest artefact that is kept, in bytes.")
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
        description="What that means for the worker, and how to take it back.",
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
    max: int = Field(1, ge=0, le=100, description="How many jobs it would take.")
    wait: float = Field(0, ge=0, description="Hold the answer for so many seconds; 60 at most.")
    running: list[RunningReport] | None = Field(
        None, max_length=1000, description="What it works on; null if it does not say."
    )
    finished: list[FinishedReport] = Field(default_factory=list, max_length=1000)


class PollAnswer(_Model):
    job: WorkView | None
    jobs: list[WorkView] | None = Field(None, description="When more than one was asked for.")
    next_poll_s: float = Field(description="When to poll again; 0 when there may be more.")
    cancel: list[str] = Field(description="Jobs of this worker that shall be stopped.")
    drain: bool = Field(description="It gets no more jobs for now; what it runs, it finishes.")
    lost: list[str] | None = Field(None, description="Jobs that are no longer this worker's.")


class Heartbeat(_Model):
    progress: float | None = Field(None, ge=0, le=100)
    message: str | None = None


class HeartbeatAnswer(_Model):
    cancel: bool
    lease_s: float = Field(description="How much of the lease is left: be heard of before.")


class LogAnswer(_Model):
    received: int = Field(description="How many bytes of this run's log are here.")
    size: int = Field(description="The length of the whole log, of all runs.")
    cut: bool = Field(description="The limit is reached: no more is kept.")


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
    token: str = Field(description="It is shown this once.")


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


#: Models that no FastAPI route names: what comes in, and what the hot route answers.
EXTRA = (
    Drain, Error, Heartbeat, NewJobBody, NewToken, PollBody, PollAnswer, Registration, RotateToken,
)  # fmt: skip

ERRORS: dict[int, str] = {
    400: "The request cannot be read.",
    401: "No token, or one that does not hold.",
    403: "The token's scope does not allow it.",
    404: "There is no such thing that the token may see.",
    409: "It is not so any more.",
    410: "Its bytes are gone.",
    413: "Too large.",
    408: "The body took too long.",
    415: "The body would have to be unpacked.",
    416: "There is nothing in this range.",
    422: "The request is understood and wrong.",
    429: "Too soon; Retry-After says when.",
    500: "The controller failed.",
    501: "Not installed.",
    503: "The store does not answer; Retry-After says when to try again.",
    507: "There is no room for the file; nothing of it was kept. Retry-After says when to try.",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route; those that any route may give are added.

    413 stands for a body, and with it for all that may be wrong with how one is sent.
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
    """Add what FastAPI cannot know: the hot route, the token, what comes in."""
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
    """FastAPI says 422 of every route with parameters, in a form that is not ours."""
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
        "304": {"description": "Nothing is pending, as before (If-None-Match)."},
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
            "worker_id", {"type": "string"}, "As the registration answered.", required=True,
            example=_ID,
        ),
        parameter(
            "max", {"type": "integer", "minimum": 0, "maximum": 100, "default": 1},
            "How many jobs it would take.",
        ),
        parameter(
            "wait", {"type": "number", "minimum": 0, "default": 0},
            "Hold the answer for so many seconds until something comes; 60 at most.",
        ),
        parameter("running", {"type": "string"}, "The ids it works on, with commas between."),
        {
            "name": "If-None-Match", "in": "header", "schema": {"type": "string"},
            "description": "The ETag of the answer before.",
        },
    ]  # fmt: skip
    common = {"tags": ["workers"]}
    return {
        "get": {
            **common,
            "operationId": "poll",
            "summary": "Ask for a job",
            "description": "Polls that find nothing may come once in min_interval_s; the answer "
            "suggests when to come again.",
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
