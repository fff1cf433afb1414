"""Runs that end when no job is ready any more: the parts of `Worker.run_once`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pollwise.core.retry import Retry
from pollwise.queues.capabilities import Capabilities
from pollwise.queues.limits.use import WAITING_MAX
from pollwise.runtime.events import (
    Event,
    JobCancelled,
    JobDead,
    JobDone,
    JobLost,
    JobRetried,
    JobSnoozed,
)
from pollwise.runtime.executor.executor import Executor
from pollwise.worker.declared.limits import WorkerLimits
from pollwise.worker.unhandled import UnhandledKinds

#: How a failed poll is retried: such a run must not wait for a store forever.
ONCE_RETRY = Retry.exponential("1s", max_delay="60s", attempts=5)
#: How long a poll waits where only a long poll asks all servers of the store, in seconds.
HOLD_TO_SEE_ALL = 1.0
#: How many kinds a summary names whose jobs wait for a limit.
KINDS_NAMED = 5


@dataclass(slots=True)
class RunSummary:
    """How the runs of `Worker.run_once` ended; each attempt of a job counts.

    done: the handler returned. retried: it failed, and the job runs again later. dead: it failed,
    and the job does not run again. snoozed: it raised `Snooze`. cancelled: the job was cancelled.
    lost: the lease ran out.
    limited: how many jobs were ready at the end but wait for a limit, by kind; at most 1,000 of
    each kind are counted.
    unhandled: the kinds of ready jobs for which the worker has no handler, as far as it looked.
    """

    done: int = 0
    retried: int = 0
    dead: int = 0
    snoozed: int = 0
    cancelled: int = 0
    lost: int = 0
    limited: dict[str, int] = field(default_factory=dict)
    unhandled: tuple[str, ...] = ()

    @property
    def runs(self) -> int:
        """How many runs there were."""
        return sum(getattr(self, name) for name in COUNTED.values())

    @property
    def failed(self) -> int:
        """How many runs failed, whether their jobs run again or not."""
        return self.retried + self.dead + self.lost

    def count(self, event: Event) -> None:
        name = COUNTED[type(event)]
        setattr(self, name, getattr(self, name) + 1)

    def add(self, more: RunSummary) -> None:
        """Add the counts of other runs."""
        for name in COUNTED.values():
            setattr(self, name, getattr(self, name) + getattr(more, name))
        for kind, count in more.limited.items():
            self.limited[kind] = self.limited.get(kind, 0) + count
        self.unhandled = tuple(sorted({*self.unhandled, *more.unhandled}))

    def __str__(self) -> str:
        ran = ", ".join(f"{getattr(self, name)} {name}" for name in COUNTED.values())
        told = [ran, _waiting_text(self.limited)] if self.limited else [ran]
        if self.unhandled:
            told.append(f"no handler here for ready jobs of {_named(self.unhandled)}")
        return "; ".join(told)


def _named(kinds: Sequence[str]) -> str:
    others = f" and {len(kinds) - KINDS_NAMED} more kinds" if len(kinds) > KINDS_NAMED else ""
    return f"{', '.join(kinds[:KINDS_NAMED])}{others}"


def _waiting_text(limited: Mapping[str, int]) -> str:
    more = "+" if any(count >= WAITING_MAX for count in limited.values()) else ""
    total = sum(limited.values())
    verb = "waits" if total == 1 else "wait"
    return f"{total}{more} {verb} for a limit ({_named(sorted(limited))})"


#: The events that are counted, and as what.
COUNTED: dict[type[Event], str] = {
    JobDone: "done",
    JobRetried: "retried",
    JobDead: "dead",
    JobSnoozed: "snoozed",
    JobCancelled: "cancelled",
    JobLost: "lost",
}


def hold_of(capabilities: Capabilities) -> float:
    """How long a poll may block, so that an empty one means that nothing is ready."""
    return HOLD_TO_SEE_ALL if capabilities.long_poll and not capabilities.exact_depth else 0.0


class OnceOnly:
    """Polls without pauses; stops the run after an empty poll that began while no handler ran.

    While handlers run, an empty poll proves nothing: they may put jobs, or free a key.
    """

    def __init__(
        self,
        executor: Executor[Any, Any],
        limits: WorkerLimits,
        unhandled: UnhandledKinds,
        summary: RunSummary,
    ) -> None:
        self._unhandled = unhandled
        self._executor = executor
        self._limits = limits
        self._summary = summary
        self._was_idle = True  # before the last poll
        executor.polls.hint()

    async def after_poll(self, found: bool) -> None:
        executor = self._executor
        if executor.stopping:
            return
        if not found and self._was_idle:
            self._summary.limited = await self._limits.waiting()
            self._summary.unhandled = await self._unhandled.ready_kinds()
            await executor.pruning.until_done(lambda: executor.stopping)
            executor.stop()
            return
        self._was_idle = not found
        if not found:
            await executor.until(executor.is_idle)
        executor.polls.hint()
