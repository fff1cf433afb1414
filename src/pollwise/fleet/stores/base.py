"""The contract of a fleet's store: it keeps state over restarts, and nodes can share it.

The fleet loads once, when it starts, and saves changes in batches, at most once a second and each
in one transaction. A store decides nothing; when a target is due is the fleet's business. It keeps
one `SavedTarget` for each target, with times in seconds since 1970.

Several nodes: a store with `shared = True` hands out targets by lease. A node polls only the
targets it holds, and starts a poll only while its lease lasts. All leases of a node are renewed in
one call; those of a killed node expire, and other nodes claim its targets.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pollwise.alerts.values import Alert, AlertFilter, AlertPage, Notice
from pollwise.alerts.windows import MaintenanceWindow
from pollwise.errors import Unsupported
from pollwise.fleet.history.values import (
    PERIODS_KEPT,
    Period,
    PeriodState,
    RollupLength,
    TargetRollup,
    TimeInStates,
)
from pollwise.fleet.locations.values import LOCATION, LocationAnswer, LocationAsk
from pollwise.fleet.stores.definitions import StoredDefinition
from pollwise.fleet.stores.paging import (
    TargetCounts,
    TargetFilter,
    ViewedTarget,
    counts_of,
    page_names,
    polled_every,
)
from pollwise.runtime.audit import AuditEntry

if TYPE_CHECKING:
    from pollwise.outbox.stores.base import OutboxStore

#: Default name of a fleet.
NAME = "fleet"
#: The states of a target.
TARGET_STATES = ("closed", "confirming", "backing off", "open", "half-open", "dead")
#: The orders that operators give for a target.
ORDERS = ("retry", "close-breaker", "pause", "resume", "poll-now")
#: `FleetStore.pending` returns at most this many orders.
PENDING_MAX = 1000
#: How long audit entries are kept, in seconds.
AUDIT_KEPT = 90 * 86400.0


@dataclass(frozen=True, slots=True)
class SavedTarget:
    """The saved state of one target.

    due: time of the next poll; None if not known.
    state: one of TARGET_STATES; "half-open" is saved as "open".
    more: everything else as JSON values: the last reading and the learned rate of changes.
    token: token of the lease under which it was polled; None without other nodes.
    type, group: of its definition; None if it was saved by a version that did not save them.
    """

    name: str
    due: float | None = None
    paused: bool = False
    state: str = "closed"
    failures: int = 0
    error: str | None = None
    polled_at: float | None = None
    succeeded_at: float | None = None
    failed_at: float | None = None
    changed_at: float | None = None
    interval: float | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    token: int | None = None
    type: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True)
class SaveExtras:
    """Rows that are saved in the same transaction as the state of targets. Rows of a target whose
    save is refused are dropped.

    periods, rollups: finished periods, hours and days of their history. Each replaces the one of
        the same target and start. What is above HOURS_KEPT, DAYS_KEPT and PERIODS_KEPT is deleted.
    alerts: alerts that opened or changed, each replacing the one with its id.
    notices: what is to be sent about them, put into the outbox of the fleet's alerts.
    """

    periods: Sequence[Period] = ()
    rollups: Sequence[TargetRollup] = ()
    alerts: Sequence[Alert] = ()
    notices: Sequence[Notice] = ()

    def __bool__(self) -> bool:
        """True if there is anything to save."""
        return bool(self.periods or self.rollups or self.alerts or self.notices)


@dataclass(frozen=True, slots=True)
class TargetLease:
    """A target that a node holds for `lasts` more seconds, with its last saved state."""

    name: str
    token: int
    lasts: float
    saved: SavedTarget | None = None


@dataclass(frozen=True, slots=True)
class TargetPage:
    """Some of the targets that match a filter, in its order.

    next: pass it as `TargetFilter.after` to go on; None at the end.
    """

    targets: list[SavedTarget]
    next: str | None


def viewed(target: SavedTarget) -> ViewedTarget:
    """What decides whether a saved target is on a page, and where."""
    return ViewedTarget(
        target.name,
        target.group,
        target.state,
        target.paused,
        target.succeeded_at,
        target.due,
        polled_every(target.state, target.interval, target.polled_at, target.due),
    )


def in_order(names: Sequence[str], targets: Iterable[SavedTarget]) -> list[SavedTarget]:
    """The targets in the order of these names; those that are gone are left out."""
    found = {each.name: each for each in targets}
    return [found[name] for name in names if name in found]


@dataclass(frozen=True, slots=True)
class TargetTimes:
    """How long a target was in each state, for some windows, and its saved state at the same time.

    spent: one for each window, without the open hour and day, which `saved.more` has.
    """

    saved: SavedTarget
    spent: tuple[TimeInStates, ...]


class TargetOrder(NamedTuple):
    """An order for a target: one of ORDERS, and who gave it."""

    name: str
    what: str
    by: str = ""


class FleetNode(NamedTuple):
    """A node that polls: the remaining seconds of its lease, the number of targets it holds, and
    where it is."""

    name: str
    lasts: float
    held: int
    location: str = LOCATION


@dataclass(frozen=True, slots=True)
class LeaseRenewal:
    """The answer to a renewal.

    held: names of the targets that this node still holds, for a whole lease from now.
    nodes: number of nodes, this one included.
    free: number of targets that no node holds.
    ends: seconds until the first lease of another node expires, unless it is renewed.
    locations: where the nodes are.
    """

    held: frozenset[str]
    nodes: int = 1
    free: int = 0
    ends: float | None = None
    locations: frozenset[str] = frozenset()


class FleetStore(ABC):
    """Keeps the state of one fleet.

    name: name of the fleet. url: where the state is, without secrets.
    """

    name: str
    url: str
    #: True if several nodes can share it; then it has all of the methods below.
    shared: ClassVar[bool] = False
    #: True if `save` keeps periods and roll-ups; then it has the methods for history.
    keeps_history: ClassVar[bool] = False
    #: Where nodes cannot share: seconds between two calls of `enter`, as a sign of life.
    enter_every: ClassVar[float | None] = None

    async def migrate(self) -> list[int]:
        """Create or upgrade the tables; returns the versions that were applied.

        Does nothing for a store that does so itself.
        """
        return []

    def migration(self) -> str | None:
        """The SQL that `migrate` would run; None for a store that needs no `migrate`."""
        return None

    @abstractmethod
    async def load(self, names: Sequence[str] | None = None) -> list[SavedTarget]:
        """The saved state of these targets; None for all. The first call opens the store."""

    @abstractmethod
    async def save(
        self, batch: Sequence[SavedTarget], extras: SaveExtras | None = None
    ) -> list[str]:
        """Save these, each replacing the state saved under its name; all or none.

        Returns the names that were refused because their token is not the newest.
        """

    @abstractmethod
    async def remove(self, names: Sequence[str]) -> None:
        """Delete the state of removed targets."""

    @abstractmethod
    async def close(self) -> None:
        """Release all resources. A closed store is not used again."""

    # Views. A store of your own can omit these methods: the defaults read all targets.

    async def page(self, chosen: TargetFilter) -> TargetPage:
        """A page of targets, without reading the others."""
        kept = {each.name: each for each in await self.load()}
        names, after = page_names(map(viewed, kept.values()), chosen)
        return TargetPage([kept[name] for name in names], after)

    async def counts(self) -> TargetCounts:
        """How many targets are in each group and state."""
        return counts_of(map(viewed, await self.load()), time.time())

    async def pending(self, names: Sequence[str] | None = None) -> list[TargetOrder]:
        """The orders for these targets that are not carried out yet, oldest first; None for all.

        At most PENDING_MAX.
        """
        return []

    # Alerts

    #: True if `save` keeps alerts and puts notices, and the store has the methods below. A fleet
    #: with another store keeps its alerts in memory.
    keeps_alerts: ClassVar[bool] = False

    def outbox(self) -> OutboxStore | None:
        """The outbox with the notices that `save` puts; a new object for each call."""
        return None

    async def alerts(self, chosen: AlertFilter) -> AlertPage:
        """A page of alerts, newest first."""
        raise self._cannot("keep alerts")

    async def alerts_by_id(self, ids: Sequence[str]) -> list[Alert]:
        """The alerts with these ids, as far as they exist, newest first."""
        raise self._cannot("keep alerts")

    async def acknowledge(self, ids: Sequence[str], by: str, note: str = "") -> list[Alert]:
        """Acknowledge these open alerts, so that they are not repeated; returns those that were
        open."""
        raise self._cannot("keep alerts")

    async def maintenance(self) -> list[MaintenanceWindow]:
        """The maintenance windows in this store, oldest first."""
        return []

    async def keep_maintenance(self, window: MaintenanceWindow) -> None:
        """Add a window, or replace the one with its id. ConfigError if there are WINDOWS_MAX."""
        raise self._cannot("keep maintenance windows")

    async def remove_maintenance(self, id: str) -> bool:
        """Delete a window; False if there is none with this id."""
        raise self._cannot("keep maintenance windows")

    # History. `pollwise.fleet.history.views` makes views of it.

    async def rollups(
        self,
        names: Sequence[str],
        length: RollupLength,
        since: float,
        *,
        figures: bool = True,
    ) -> list[TargetRollup]:
        """The finished hours or days of these targets that begin at `since` or later, oldest first.

        figures: off leaves out what their polls gave, which is quicker for many targets.
        """
        raise self._cannot("keep history")

    async def spent(
        self, names: Sequence[str], windows: Sequence[tuple[RollupLength, float]], until: float
    ) -> list[TargetTimes]:
        """The sums of the finished hours or days of each target since a time, for each window.

        until: those that begin later are left out: the clock may have been wrong.
        Targets that the store does not know are left out.
        """
        raise self._cannot("keep history")

    async def periods(
        self,
        names: Sequence[str] | None,
        since: float,
        *,
        state: PeriodState | None = None,
        before: float | None = None,
        limit: int = PERIODS_KEPT,
    ) -> list[Period]:
        """The finished periods that ended after `since`, newest first; names: None for all targets.

        state: only periods of this state. before: only those that began before this time.
        """
        raise self._cannot("keep history")

    async def enter(self) -> None:  # noqa: B027 - only where a store cannot be shared
        """Declare that this process polls the fleet, from now on or still.

        StoreError if another process does and the store cannot be shared.
        """

    async def leave(self) -> None:  # noqa: B027 - as `enter`
        """Declare that this process no longer polls the fleet."""

    # Orders, changed settings and the audit log

    async def order(self, what: str, names: Sequence[str], by: str = "") -> None:
        """Leave an order, one of ORDERS, for the node that polls these targets. by: who gives
        it."""
        raise self._cannot("take orders from other processes")

    async def orders(self) -> list[TargetOrder]:
        """Take the orders for the targets polled here, oldest first."""
        return []

    async def settings(self) -> dict[str, Any]:
        """Settings that were changed while the fleet ran, by their key."""
        return {}

    async def keep_settings(self, changes: Mapping[str, Any]) -> None:
        """Add changed settings; a value of None deletes the change."""
        raise self._cannot("keep settings")

    # Definitions of targets, by the API and the command line

    async def definitions(self, since: int = 0) -> list[StoredDefinition]:
        """The definitions that changed after the version `since`, removed ones included; 0 for all
        that exist."""
        return []

    async def definitions_version(self) -> int:
        """The version of the definitions; each change makes it larger."""
        return 0

    async def define(
        self,
        tables: Mapping[str, Mapping[str, Any] | None],
        by: str = "",
        expected: Mapping[str, int] | None = None,
    ) -> int:
        """Keep definitions by name, None removes one; all or none. Returns the new version.

        by: who changes them. expected: by name, the version that a definition must have, 0 if it
        must not exist; else DefinitionConflict.
        """
        raise self._cannot("keep definitions of targets")

    async def audit(self, entry: AuditEntry) -> None:  # noqa: B027 - the log has a line anyway
        """Keep an audit entry for AUDIT_KEPT seconds."""

    async def list_audit(self, limit: int, before: int | None = None) -> list[AuditEntry]:
        """Audit entries, newest first; before: only those with a smaller `id`."""
        return []

    # Several nodes

    async def figures(self) -> dict[str, Any]:
        """Counts over the targets of all nodes."""
        raise self._cannot("share a fleet between nodes")

    async def nodes(self) -> list[FleetNode] | None:
        """The nodes that poll this fleet now; None if the store does not know."""
        return None

    async def claim(
        self, node: str, names: Sequence[str], limit: int, lease: float
    ) -> list[TargetLease]:
        """Claim up to `limit` of these targets that no node holds, the longest due first.

        A target that the store does not know yet is free.
        """
        raise self._cannot("share a fleet between nodes")

    async def renew(self, node: str, lease: float, location: str = LOCATION) -> LeaseRenewal:
        """Hold all targets of this node, which is at `location`, for `lease` seconds from now, in
        one statement.

        It is also the node's sign of life: a node that holds nothing counts too.
        """
        raise self._cannot("share a fleet between nodes")

    async def give_back(self, node: str, names: Sequence[str] | None = None) -> None:
        """Give up these targets; None for all, and the node is removed."""
        raise self._cannot("share a fleet between nodes")

    # Several locations

    async def ask_locations(self, names: Sequence[str], location: str) -> float:
        """Ask the locations of all other living nodes to poll these targets once.

        Returns the time of the question by the store's clock, which the answers repeat.
        """
        raise self._cannot("confirm failures from several locations")

    async def take_asked(self, location: str, limit: int) -> list[LocationAsk]:
        """Take what this location is asked to poll, the oldest first; each once."""
        raise self._cannot("confirm failures from several locations")

    async def answer_locations(self, answers: Sequence[LocationAnswer]) -> None:
        """Keep the answers, each as the last of its target and location."""
        raise self._cannot("confirm failures from several locations")

    async def location_answers(self, names: Sequence[str]) -> list[LocationAnswer]:
        """The last answer for each of these targets from each location."""
        raise self._cannot("confirm failures from several locations")

    def _cannot(self, what: str) -> Unsupported:
        return Unsupported(
            f"{type(self).__name__} cannot {what}; "
            "use a store on Postgres, or on SQLite for one node"
        )
