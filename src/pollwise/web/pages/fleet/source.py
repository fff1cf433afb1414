"""Fleets that are shown: one that runs in this process, or the store of one that runs elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from pollwise.alerts.values import Alert, AlertFilter, AlertPage
from pollwise.alerts.windows import MaintenanceWindows
from pollwise.errors import ConfigError, PollwiseError, Unsupported
from pollwise.fleet import Fleet
from pollwise.fleet.control import key_of, note, note_order
from pollwise.fleet.history.views import uptimes
from pollwise.fleet.stores.base import (
    ORDERS,
    FleetNode,
    FleetStore,
    SavedTarget,
    TargetOrder,
    TargetPage,
)
from pollwise.fleet.stores.paging import TargetCounts, TargetFilter
from pollwise.runtime.clock import Clock
from pollwise.settings.groups import no_group
from pollwise.settings.values import shown
from pollwise.web.sources import IDLE_REMEMBERED, REST_REMEMBERED, Remembered

#: Counting walks over all targets of the fleet, so counts are reused for this many seconds, and
#: for this many times as long as they took.
COUNTS_REMEMBERED = 2.0
COUNTING_SHARE = 20.0
#: How many open alerts are read for the pages that count them.
OPEN_ALERTS = 100
#: How many alerts the page of a target shows.
ALERTS_OF_ONE = 10


@dataclass(frozen=True, slots=True)
class ShownFleet:
    """What a page shows of a fleet.

    running: number of polls in progress; None if another process polls.
    nodes: who polls it; None if that is not known. budget: polls a second; None if there is none or
        it is not known. alerts: the newest open ones, at most OPEN_ALERTS.
    error: why the store did not answer.
    """

    counts: TargetCounts | None = None
    running: int | None = None
    nodes: tuple[FleetNode, ...] | None = None
    budget: float | None = None
    alerts: tuple[Alert, ...] = ()
    error: str | None = None

    @property
    def depth(self) -> int:
        """Number of targets whose next poll is planned, due or running."""
        return 0 if self.counts is None else self.counts.total - self.counts.states["paused"]

    @property
    def more_alerts(self) -> bool:
        """True if there may be more open alerts than were read."""
        return len(self.alerts) >= OPEN_ALERTS

    @property
    def marker(self) -> Hashable:
        """Changes when a target was polled, or when the number of targets in a state changed."""
        if self.counts is None:
            return self.error
        counts = self.counts
        return (
            counts.succeeded_at,
            counts.overdue,
            repr(counts.groups),
            self.nodes and len(self.nodes),
            tuple(each.id for each in self.alerts),
        )


class FleetSource:
    """A fleet that is shown. slug: its name in addresses, unique among the fleets."""

    def __init__(self, slug: str, fleet: Fleet | FleetStore, clock: Clock) -> None:
        self.slug = slug
        self.name: str = fleet.name
        self.title: str = fleet.name
        self._clock = clock
        self._fleet = fleet if isinstance(fleet, Fleet) else None
        self.store: FleetStore | None = fleet.store if isinstance(fleet, Fleet) else fleet
        #: For a fleet of this process, this includes the windows of its file.
        self.maintenance: MaintenanceWindows = (
            MaintenanceWindows() if self._fleet is None else self._fleet.maintenance
        )
        self.place: str = (
            "this process" if self.store is None else self.store.url
        )  # without secrets
        self._took = self._oldest_took = 0.0
        #: True if the counts were the same when they were read last.
        self._idle = False
        self._counts = Remembered(self._read_counts, clock, COUNTS_REMEMBERED)
        self._oldest = Remembered(self._read_oldest, clock, COUNTS_REMEMBERED)
        self._open = Remembered(self._read_open, clock, COUNTS_REMEMBERED)
        self._nodes = Remembered(self._read_nodes, clock, REST_REMEMBERED)
        self._counts_before: TargetCounts | None = None

    async def snapshot(self) -> ShownFleet:
        """The counts, the nodes and the open alerts. An alert opens and closes with a poll, so
        alerts are read again when the counts have changed."""
        try:
            ttl = max(COUNTS_REMEMBERED, self._took * COUNTING_SHARE)
            counts, nodes = await asyncio.gather(self._counts.get(ttl), self._nodes.get())
            same, self._counts_before = counts == self._counts_before, counts
            self._idle = same
            alerts = await self.open_alerts(REST_REMEMBERED if same else COUNTS_REMEMBERED)
        except (PollwiseError, OSError) as error:
            return ShownFleet(error=str(error) or type(error).__name__)
        budget = None if self._fleet is None else self._fleet.options.budget
        given = None if budget is None else float(budget)
        here = self._fleet is not None and self._fleet.running
        running = self._here().in_flight if here else None
        return ShownFleet(counts, running, nodes[0], given, tuple(alerts))

    async def page(self, chosen: TargetFilter) -> TargetPage:
        """A page of targets."""
        if self.store is not None:
            return await self.store.page(chosen)
        return self._here().page(chosen)

    async def target(self, name: str) -> SavedTarget | None:
        """One target; None if there is none of this name."""
        if self.store is not None:
            return next(iter(await self.store.load([name])), None)
        fleet = self._here()
        return fleet.saved(name) if name in fleet else None

    async def pending(self, names: Sequence[str] | None = None) -> list[TargetOrder]:
        """The orders that are not carried out yet."""
        return [] if self.store is None else await self.store.pending(names)

    async def order(self, what: str, names: Sequence[str], who: str, address: str = "") -> bool:
        """Give an order to targets; True if it is already carried out.

        A fleet of this process carries it out at once. Otherwise the order waits in the store for
        the node that polls the target.
        """
        if what not in ORDERS:
            raise ConfigError(f"{what!r} is not one of {', '.join(ORDERS)}")
        fleet, store = self._fleet, self.store
        mine = [] if fleet is None else [n for n in names if n in fleet and fleet.is_held(n)]
        for name in mine:
            getattr(fleet, what.replace("-", "_"))(name)  # one of ORDERS
        others = [name for name in names if name not in mine]
        if others and store is not None:
            await store.order(what, others, who)
        await note_order(store, who, what, names, address)
        self.forget()
        return not others

    async def adaptive(self) -> dict[str | None, bool]:
        """Whether adaptive polling is on: None for all targets, and by group. Those that are
        missing follow all targets, and these the settings of the polling nodes."""
        if self._fleet is not None:
            return {group: pace.enabled for group, pace in self._fleet.paces.items()}
        assert self.store is not None  # noqa: S101 - without a fleet there is a store
        kept = await self.store.settings()
        groups = [None, *(await self.groups())]
        found = {group: kept.get(key_of(group, "enabled")) for group in groups}
        return {group: value for group, value in found.items() if isinstance(value, bool)}

    async def groups(self) -> list[str]:
        """The names of the groups, sorted."""
        shown = await self.snapshot()
        return [] if shown.counts is None else sorted(each for each in shown.counts.groups if each)

    @property
    def keeps_settings(self) -> bool:
        """True if a change of settings survives restarts: the polling nodes read it from the
        store. A fleet of this process is paced by its code."""
        return self._fleet is None

    async def switch_adaptive(
        self, group: str | None, enabled: bool | None, who: str, address: str = ""
    ) -> None:
        """Turn adaptive polling of a group on or off; None for `group`: of all targets; None for
        `enabled`: as for all targets, or as in the settings of the nodes."""
        if group is not None and group not in (known := await self.groups()):
            raise ConfigError(f"group = {shown(group)}: {no_group(group, known)}")
        if self._fleet is None:
            assert self.store is not None  # noqa: S101 - as above
            await self.store.keep_settings({key_of(group, "enabled"): enabled})
        else:
            paces = dict(self._fleet.paces)
            usual = paces[None].enabled if group is not None else True
            pace = paces.get(group, paces[None])
            paces[group] = replace(pace, enabled=usual if enabled is None else enabled)
            if enabled is None and group is not None and paces[group] == paces[None]:
                del paces[group]
            self._fleet.pace(paces)
        whose = "all targets" if group is None else f"group {group!r}"
        text = "null" if enabled is None else str(enabled).lower()
        await note(self.store, who, "polling.change", whose, f"enabled = {text}", address)
        self.forget()

    async def uptimes(self, names: Sequence[str], now: float) -> dict[str, float | None]:
        """The uptime of each target in the last 7 days; empty if the store keeps no history."""
        if self.store is None or not self.store.keeps_history:
            return {}
        found = await uptimes(self.store, names, now)
        return {name: each.windows["7d"].uptime for name, each in found.items()}

    async def alerts(self, chosen: AlertFilter) -> AlertPage:
        """A page of alerts."""
        if self.store is None:
            raise ConfigError(
                "this fleet has no store, so its alerts are only sent and not listed here"
            )
        return await self.store.alerts(chosen)

    async def alerts_of(self, name: str) -> list[Alert]:
        """The newest alerts of a target, open or closed."""
        if self.store is None:
            return []
        try:
            return (await self.store.alerts(AlertFilter(target=name, limit=ALERTS_OF_ONE))).alerts
        except Unsupported:
            return []

    async def open_alerts(self, ttl: float = COUNTS_REMEMBERED) -> list[Alert]:
        """The newest open alerts, at most OPEN_ALERTS, as they were at most `ttl` seconds ago."""
        return [] if self.store is None else await self._open.get(ttl)

    async def alerts_marker(self) -> Hashable:
        """Changes when an alert opens, closes, is sent or acknowledged."""
        try:
            found = await self.open_alerts()
        except (PollwiseError, OSError) as error:
            return str(error)
        return tuple((each.id, each.sent, each.acknowledged_at) for each in found)

    async def acknowledge(
        self, ids: Sequence[str], who: str, text: str, address: str = ""
    ) -> list[Alert]:
        """Acknowledge these alerts; returns those that are open."""
        if self.store is None:
            raise ConfigError("this fleet has no store, so it keeps no notes")
        found = await self.store.acknowledge(ids, who, text)
        for each in found:
            await note(self.store, who, "alert.acknowledge", each.target, text, address)
        self.forget()
        return found

    def forget(self) -> None:
        """Something was changed: the next page reads the fleet again."""
        self._counts.forget()
        self._oldest.forget()
        self._open.forget()

    async def _read_open(self) -> list[Alert]:
        assert self.store is not None  # noqa: S101 - the caller has checked
        try:
            return (await self.store.alerts(AlertFilter("open", limit=OPEN_ALERTS))).alerts
        except Unsupported:
            return []

    async def oldest(self) -> SavedTarget | None:
        """The polled target whose last success is the oldest, or that never succeeded."""
        often = max(COUNTS_REMEMBERED, self._oldest_took * COUNTING_SHARE)
        return (await self._oldest.get(IDLE_REMEMBERED if self._idle else often))[0]

    async def _read_oldest(self) -> tuple[SavedTarget | None]:
        """In a tuple, because None is an answer too."""
        began = self._clock.now()
        page = await self.page(TargetFilter(sort="stale", limit=1))  # paused ones come last
        self._oldest_took = self._clock.now() - began
        return (next((each for each in page.targets if not each.paused), None),)

    async def _read_counts(self) -> TargetCounts:
        began = self._clock.now()
        counts = self._here().counts() if self.store is None else await self.store.counts()
        self._took = self._clock.now() - began
        return counts

    async def _read_nodes(self) -> tuple[tuple[FleetNode, ...] | None]:
        """In a tuple, because None is an answer too."""
        if self.store is not None:
            nodes = await self.store.nodes()
            return (None if nodes is None else tuple(nodes),)
        fleet = self._here()
        return ((FleetNode(fleet.node, 0.0, len(fleet)),) if fleet.running else (),)

    def _here(self) -> Fleet:
        assert self._fleet is not None  # noqa: S101 - without a store there is a fleet
        return self._fleet
