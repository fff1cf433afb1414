"""Fleets that are shown: one that runs in this process, or the store of one that runs elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from pollwise.errors import ConfigError, PollwiseError
from pollwise.fleet import Fleet
from pollwise.fleet.control import note_order
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
from pollwise.web.sources import REST_REMEMBERED, Remembered

#: How long counts are reused, in seconds; and at least this many times as long as they took: they
#: walk over all targets of the fleet.
COUNTS_REMEMBERED = 2.0
COUNTING_SHARE = 20.0


@dataclass(frozen=True, slots=True)
class ShownFleet:
    """What a page shows of a fleet.

    nodes: who polls it; None if that is not known. budget: polls a second; None if there is none or
        it is not known. error: why the store did not answer.
    """

    counts: TargetCounts | None = None
    nodes: tuple[FleetNode, ...] | None = None
    budget: float | None = None
    error: str | None = None

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
        )


class FleetSource:
    """A fleet that is shown. slug: its name in addresses, unique among the fleets."""

    def __init__(self, slug: str, fleet: Fleet | FleetStore, clock: Clock) -> None:
        self.slug = slug
        self.name = self.title = fleet.name
        self._clock = clock
        self._fleet = fleet if isinstance(fleet, Fleet) else None
        self.store = fleet.store if isinstance(fleet, Fleet) else fleet
        self.place = "this process" if self.store is None else self.store.url  # without secrets
        self._took = 0.0
        self._counts = Remembered(self._read_counts, clock, COUNTS_REMEMBERED)
        self._nodes = Remembered(self._read_nodes, clock, REST_REMEMBERED)

    async def snapshot(self) -> ShownFleet:
        """The counts and the nodes."""
        try:
            ttl = max(COUNTS_REMEMBERED, self._took * COUNTING_SHARE)
            counts, nodes = await asyncio.gather(self._counts.get(ttl), self._nodes.get())
        except (PollwiseError, OSError) as error:
            return ShownFleet(error=str(error) or type(error).__name__)
        budget = None if self._fleet is None else self._fleet.options.budget
        return ShownFleet(counts, nodes[0], None if budget is None else float(budget))

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

    def forget(self) -> None:
        """An order was given: the next page reads the fleet again."""
        self._counts.forget()

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
