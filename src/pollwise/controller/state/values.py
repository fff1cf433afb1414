"""What a controller keeps beside its queue, as values: workers, tokens, files, places in logs.

Times are seconds since 1970 by the clock of the store, or None for what has not happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Scope = Literal["read", "put", "operate", "worker", "admin"]
SCOPES: tuple[Scope, ...] = ("read", "put", "operate", "worker", "admin")


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A registered worker.

    token_hash: the hash of its own token, valid until `token_expires_at`; None means for ever.
    """

    id: str
    name: str
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    slots: int = 1
    token_hash: str = ""
    token_expires_at: float | None = None
    registered_at: float = 0.0
    registered_by: str = ""
    last_seen: float = 0.0
    drain: bool = False
    address: str = ""


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """A worker was seen this many seconds ago, from an address."""

    worker_id: str
    ago_s: float = 0.0
    address: str = ""


@dataclass(frozen=True, slots=True)
class Token:
    """A token as it is stored. `hash` is its SHA-256 in hex; the token itself is not kept.

    all_jobs: of the scope put: it sees and cancels the jobs of others too.
    """

    id: str
    name: str
    scope: Scope
    hash: str
    created_at: float = 0.0
    created_by: str = ""
    expires_at: float | None = None
    revoked_at: float | None = None
    last_used_at: float | None = None
    all_jobs: bool = False


@dataclass(frozen=True, slots=True)
class Requirement:
    """What jobs of a kind in the queue ask of a worker; `hash` is "" when nothing is asked."""

    hash: str
    kind: str
    requires: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ArtefactRow:
    """A file of a job: `input` came with it, else a run made it. `blob` names its bytes.

    folder: for an artefact, the folder of its job; inputs are put into one of their own before
        their job has an id.
    """

    folder: str
    name: str
    blob: str
    size: int
    sha256: str
    input: bool = False
    content_type: str = "application/octet-stream"
    created_at: float = 0.0
    created_by: str = ""


@dataclass(frozen=True, slots=True)
class LogPlace:
    """How far a job's log is.

    size: bytes that are kept, of all runs together.
    part: the newest run that wrote (see `logs`); received: the bytes it has sent.
    cut: no more is kept: the limit is reached.
    """

    size: int = 0
    part: int = 0
    received: int = 0
    cut: bool = False


@dataclass(frozen=True, slots=True)
class LogPiece:
    """What a run sent for its log, as `ControllerState.append_log` has it."""

    part: int
    offset: int
    data: bytes
    limit: int
    end_mark: bytes
    begin_mark: bytes = b""
    attempt: int = 0
    worker: str = ""


@dataclass(frozen=True, slots=True)
class LogRun:
    """A run that wrote to a job's log, from the byte `start` on.

    part: see `LogPlace`. began_at: when its first bytes came.
    """

    part: int
    attempt: int
    worker: str
    began_at: float
    start: int
