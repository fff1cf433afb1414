"""A job in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pollwise.runtime.jobs import LAPSES_ALONE, PRIORITY_MAX, JobFailure, Progress, State

#: The place of a job that is ready in the order of claims: its rank, since when, its number, and
#: the version for which this is true.
Entry = tuple[int, float, int, int]


@dataclass(slots=True)
class MemoryJob:
    seq: int
    kind: str
    encoded: str
    key: str | None
    priority: int
    unique: str | None
    created_at: float
    run_at: float
    headers: Mapping[str, str]
    limit_group: str | None = None
    state: State = "ready"
    since: float = 0.0
    ahead: bool = False  # it was claimed ahead
    lapsed: bool = False  # it is ready because its lease ran out
    lapses: int = 0  # how many leases in a row ran out before its newest
    attempt: int = 0
    token: int = 0
    worker: str | None = None
    claimed_at: float | None = None
    errors: tuple[JobFailure, ...] = ()
    progress: Progress | None = None
    cancel: bool = False
    result: str | None = None
    expires_at: float | None = None  # it is kept until then for its result
    version: int = field(default=0)  # distinguishes stale heap entries from the current one
    flow: str | None = None
    on_failure: bool = False
    after: tuple[int, ...] = ()
    successors: list[int] = field(default_factory=list)
    waits: int = 0  # how many of `after` it still waits for
    passed: bool = False  # it was done, so its successors no longer wait for it
    held_delay: float | None = None  # its delay, which begins when its predecessors have ended

    @property
    def suspect(self) -> bool:
        return self.lapsed and self.lapses + 1 >= LAPSES_ALONE

    @property
    def entry(self) -> Entry:
        priority = self.priority + (2 * PRIORITY_MAX + 1 if self.suspect else 0)
        return -priority, self.since, self.seq, self.version
