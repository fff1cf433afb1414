"""The record that a running worker stores with its queue, so that operators see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from pollwise.runtime.jobs import storable

if TYPE_CHECKING:
    from pollwise.queues.views import Stats

#: How often a worker writes its record at most, in seconds.
PRESENCE_EVERY = 60.0
#: After how many seconds a record expires. If a worker writes it less often, or pauses for longer
#: than a minute between polls, its record lasts for three times that.
PRESENCE_KEPT = 180.0
#: How many running jobs a record names.
RUNNING_MAX = 20
#: How many kinds a record names.
KINDS_MAX = 100
#: The longest text in a record, in characters.
TEXT_MAX = 200


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that a worker runs, since when (seconds since 1970)."""

    id: str
    kind: str
    since: float


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker, as its last record describes it. Times are seconds since 1970.

    instance: distinguishes workers that have the same name.
    kinds: those it has handlers for; None: any, or too many to name.
    busy: how many handlers run.
    running: the jobs that have run longest.
    waiting: jobs that it has claimed ahead of a free handler.
    strategy, interval: how it polls, and the length of its present pause in seconds.
    hints: True while hints of other processes are proven to arrive.
    breakers: the kinds that it does not claim, because their handlers keep failing.
    schedules: those that it has in its code; None: too many to name.
    signatures: by kind of a task, a hash of its arguments.
    alone: the id of a suspect that it runs alone, so that it claims no other job for now.
    """

    name: str
    instance: str
    host: str
    pid: int
    version: str
    kinds: tuple[str, ...] | None
    concurrency: int
    busy: int
    waiting: int
    running: tuple[RunningJob, ...]
    started_at: float
    seen_at: float
    strategy: str
    interval: float
    hints: bool
    breakers: tuple[str, ...]
    schedules: tuple[str, ...] | None = ()
    signatures: Mapping[str, str] = field(default_factory=dict)
    alone: str = ""

    @property
    def note_name(self) -> str:
        return f"{self.instance} {self.name}"

    def handles(self, kind: str) -> bool:
        return self.kinds is None or kind in self.kinds

    def to_value(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_value(cls, value: object) -> WorkerInfo | None:
        """Read a record, which another process wrote; None if it is not valid."""
        if not isinstance(value, Mapping):
            return None
        # Callers check the two names, so they are taken as they are.
        name, instance, kinds = value.get("name"), value.get("instance"), value.get("kinds")
        if not name or not isinstance(name, str):
            return None
        return cls(
            name[:TEXT_MAX],
            instance[:TEXT_MAX] if isinstance(instance, str) else "",
            _text(value.get("host")),
            int(_number(value.get("pid"))),
            _text(value.get("version")),
            None if kinds is None else _texts(kinds, KINDS_MAX),
            int(_number(value.get("concurrency"))),
            int(_number(value.get("busy"))),
            int(_number(value.get("waiting"))),
            tuple(_running(value.get("running"))),
            _number(value.get("started_at")),
            _number(value.get("seen_at")),
            _text(value.get("strategy")),
            _number(value.get("interval")),
            value.get("hints") is True,
            _texts(value.get("breakers"), KINDS_MAX),
            # A worker of an older version sends none.
            _texts(value.get("schedules", ()), KINDS_MAX)
            if value.get("schedules", ()) is not None
            else None,
            _pairs(value.get("signatures")),
            _text(value.get("alone")),
        )


def unhandled(kinds: Mapping[str, Stats], workers: Iterable[WorkerInfo]) -> list[str]:
    """The kinds that have waiting jobs, but no running worker with a handler for them."""
    running = list(workers)
    return sorted(
        kind
        for kind, counts in kinds.items()
        if counts.ready + counts.delayed + counts.blocked
        and not any(worker.handles(kind) for worker in running)
    )


def handlers_of(kind: str, workers: Iterable[WorkerInfo]) -> int:
    """How many of these workers have a handler for a kind."""
    return sum(worker.handles(kind) for worker in workers)


def _running(value: object) -> Iterable[RunningJob]:
    for each in value[:RUNNING_MAX] if isinstance(value, Sequence) else ():
        if isinstance(each, Mapping):
            kind, since = _text(each.get("kind")), _number(each.get("since"))
            yield RunningJob(_text(each.get("id")), kind, since)


def _text(value: object) -> str:
    return storable(value, TEXT_MAX) or "" if isinstance(value, str) else ""


def _texts(value: object, most: int) -> tuple[str, ...]:
    listed = value[:most] if isinstance(value, Sequence) and not isinstance(value, str) else ()
    return tuple(_text(each) for each in listed)


def _pairs(value: object) -> dict[str, str]:
    pairs = islice(value.items(), KINDS_MAX) if isinstance(value, Mapping) else ()
    return {_text(name): _text(text) for name, text in pairs}


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 0.0
    return float(value) if abs(value) < 1e15 else 0.0
