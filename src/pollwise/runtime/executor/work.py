"""Held work, and the calls in which a worker and a relay differ."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from pollwise.runtime.executor.control.run_control import RunControl
from pollwise.runtime.jobs import Renewal
from pollwise.runtime.loop import Batch


@dataclass(slots=True, eq=False)
class Held:
    """Claimed work, until it is settled.

    name: identifies the work; a newer claim of the same work has the same name.
    taken: when it was claimed; until: when its lease ends, unless it is renewed; began: when its
        handler began. All in the event loop's time. until_epoch: as until, by the wall clock.
    ended: why its task was cancelled, or why its result no longer counts.
    settlement: how it ends, once that is known; settled_at: since when.
    blocked: how its handler blocked the event loop, if it did.
    may_wait: nothing waits for the settlement: no work with the same key, no other worker.
    size: of its payload, in bytes; 0 if unknown.
    alone: it may have killed its workers; until it has run for a minute, nothing else is claimed.
    control: of its run, if the handler can use one.
    """

    name: str
    claim: Any
    taken: float = field(default=0.0, init=False)
    until: float = field(default=0.0, init=False)
    until_epoch: float = field(default=0.0, init=False)
    began: float | None = field(default=None, init=False)
    task: asyncio.Task[None] | None = field(default=None, init=False)
    ended: Literal["", "stop", "lost", "cancel"] = field(default="", init=False)
    settlement: Any = field(default=None, init=False)
    settled_at: float = field(default=0.0, init=False)
    may_wait: bool = field(default=False, init=False)
    blocked: str = field(default="", init=False)
    size: int = field(default=0, init=False)
    alone: bool = field(default=False, init=False)
    control: RunControl | None = field(default=None, init=False)

    def headers(self) -> list[Mapping[str, str]]:
        """The headers of its job or records."""
        return []


H_contra = TypeVar("H_contra", bound=Held, contravariant=True)
C = TypeVar("C")


class Work(Protocol[H_contra, C]):
    """The calls of the executor in which a worker and a relay differ.

    what: its name in reasons such as "the worker stops".
    source: its name in events.
    """

    what: str
    source: str

    async def claim(self, hold: float) -> Batch[C]:
        """The poll: claim as much as there is room for."""

    async def handle(self, held: H_contra) -> Any:
        """Run the handler; return the settlement."""

    def failed(self, held: H_contra, error: BaseException) -> Any:
        """The settlement of work whose `handle` raised."""

    def give_back(self, held: H_contra, reason: str) -> Any:
        """The settlement of work that was not begun or not finished."""

    def cancelled(self, held: H_contra, error: BaseException | None = None) -> Any:
        """The settlement of work that somebody asked to cancel; `error` is what it then raised."""

    def lost(self, held: H_contra) -> None:
        """The lease was lost: whatever happens to this work from now on does not count."""

    def stopping(self, running: int, grace: float) -> None:
        """No more is claimed; `running` handlers may finish within the grace."""

    def label(self, held: H_contra) -> str:
        """The work as log lines name it."""

    async def settle(self, settlements: list[Any]) -> Collection[str]:
        """Settle; return the names of the work whose lease was lost."""

    async def renew(self, held: Sequence[H_contra]) -> Renewal:
        """Renew leases; return the names of what was lost, and of what is to be cancelled."""
