"""The contract of what keeps a fleet's state: it survives restarts, and several nodes may share it.

The fleet loads once, when it starts, and saves what changed in batches, at most once a second: one
transaction a batch. A store never decides anything; what is due when is the fleet's business. What
it keeps of a target is one `Saved`, whose times are seconds since 1970.

Several nodes: a store with `shared = True` hands out targets by lease. A node polls only what it
holds, and begins a poll only while its lease lasts longer than the poll may. The leases are renewed
in one call; those of a node that is killed run out, and the others claim its targets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from pollwise.errors import Unsupported
from pollwise.runtime.audit import AuditEntry

#: A fleet that nobody named.
NAME = "fleet"
#: How a target fares, as `condition` of `Saved` and in views.
CONDITIONS = ("closed", "confirming", "backing off", "open", "half-open", "dead")


#: What people ask of a target.
ORDERS = ("retry", "reset", "pause", "resume", "poll-now")


@dataclass(frozen=True, slots=True)
class Saved:
    """What is kept of one target.

    due: when it is polled next; None when it is not known.
    condition: one of CONDITIONS; "half-open" is kept as "open".
    more: the rest as plain values (JSON): its last reading, and what is believed about its changes.
    token: of the lease under which it was polled; None where nodes do not share.
    """

    name: str
    due: float | None = None
    paused: bool = False
    condition: str = "closed"
    failures: int = 0
    error: str | None = None
    polled_at: float | None = None
    succeeded_at: float | None = None
    failed_at: float | None = None
    changed_at: float | None = None
    interval: float | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    token: int | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """A target that a node holds for `lasts` more seconds, with what was last saved of it."""

    name: str
    token: int
    lasts: float
    saved: Saved | None = None


class Order(NamedTuple):
    """What was asked of a target: one of ORDERS, and by whom."""

    name: str
    what: str
    by: str = ""


class Node(NamedTuple):
    """A node that polls: how much it holds, and for how many seconds more."""

    name: str
    lasts: float
    held: int


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a renewal found.

    held: the names that this node still holds, for the whole lease again.
    nodes: how many nodes take part, this one included.
    free: how many targets nobody holds.
    ends: in how many seconds the first of the other nodes' leases is over, unless it is renewed.
    """

    held: frozenset[str]
    nodes: int = 1
    free: int = 0
    ends: float | None = None


class FleetStore(ABC):
    """What keeps the state of one fleet.

    name: the fleet's. url: where it is, fit to be printed.
    """

    name: str
    url: str
    #: Whether several nodes may share it: then all of the methods below are there.
    shared: ClassVar[bool] = False
    #: Where nodes cannot share: how often `enter` is called again, as a sign of life, in seconds.
    enter_every: ClassVar[float | None] = None

    async def migrate(self) -> list[int]:
        """Make the tables, or renew them; the versions that were applied.

        Nothing to do for a store that sees to it by itself.
        """
        return []

    def migration(self) -> str | None:
        """What `migrate` would run, as SQL; None for a store that sees to it by itself."""
        return None

    @abstractmethod
    async def load(self, names: Sequence[str] | None = None) -> list[Saved]:
        """What is kept of these; None for all. The first call opens the store."""

    @abstractmethod
    async def save(self, batch: Sequence[Saved]) -> list[str]:
        """Keep these, each instead of what was kept under its name; all or none.

        Returns the names that were refused, because their token is no longer the newest.
        """

    @abstractmethod
    async def forget(self, names: Sequence[str]) -> None:
        """Keep these no longer: the targets were removed."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of everything. A closed store is not used again."""

    async def enter(self) -> None:  # noqa: B027 - only where a store cannot be shared
        """This process polls the fleet, from now on or still.

        StoreError where another process does, and the store cannot be shared.
        """

    async def leave(self) -> None:  # noqa: B027 - as `enter`
        """This process polls the fleet no longer."""

    # What others ask of whoever runs the fleet, and settings that were changed while it ran

    async def order(self, what: str, names: Sequence[str], by: str = "") -> None:
        """Leave word for whoever polls these targets: one of ORDERS. by: who asks, for its log."""
        raise self._cannot("take orders from other processes")

    async def orders(self) -> list[Order]:
        """Take what was left for the targets polled here, the oldest first."""
        return []

    async def settings(self) -> dict[str, Any]:
        """Settings that were changed while the fleet ran, by their key."""
        return {}

    async def keep_settings(self, changes: Mapping[str, Any]) -> None:
        """Keep these, besides others; what is None is forgotten."""
        raise self._cannot("keep settings")

    async def audit(self, entry: AuditEntry) -> None:  # noqa: B027 - a log line is left anyway
        """Keep who did what, for as long as `audit.KEPT`."""

    async def list_audit(self, limit: int, before: int | None = None) -> list[AuditEntry]:
        """Who did what, the newest first; before: only what has a smaller `id`."""
        return []

    # Several nodes

    async def figures(self) -> dict[str, Any]:
        """How the targets of all nodes fare together."""
        raise self._cannot("share a fleet between nodes")

    async def nodes(self) -> list[Node] | None:
        """Who polls this fleet now; None where the store cannot tell."""
        return None

    async def claim(self, node: str, names: Sequence[str], limit: int, lease: float) -> list[Lease]:
        """Take up to `limit` of these targets that nobody holds, the longest due first.

        A name that the store does not know yet is free.
        """
        raise self._cannot("share a fleet between nodes")

    async def renew(self, node: str, lease: float) -> Renewal:
        """Hold all that this node holds for `lease` seconds from now, in one statement.

        It is also the node's sign of life: a node that holds nothing is counted by it.
        """
        raise self._cannot("share a fleet between nodes")

    async def give_back(self, node: str, names: Sequence[str] | None = None) -> None:
        """Hold these no longer; None for all, and the node takes its leave."""
        raise self._cannot("share a fleet between nodes")

    def _cannot(self, what: str) -> Unsupported:
        return Unsupported(
            f"{type(self).__name__} cannot {what}; "
            "use a store on Postgres, or on SQLite for one node"
        )
