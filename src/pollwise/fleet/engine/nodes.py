"""Several nodes on one fleet: each polls the targets it holds, and holds its share of them.

A node renews all it holds in one call, three times a lease. It takes what nobody holds, up to its
share (targets ÷ nodes, rounded up), and gives back what is beyond that, a few at a time. When the
store cannot be reached its leases run out, by its own clock too: it stops polling by itself before
anybody else may begin. It looks again when the lease of another node should end, so that the
targets of one that was killed go to others within the lease.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from pollwise.fleet.engine.restore import restore
from pollwise.fleet.engine.running_target import AGENDA, RunningTarget
from pollwise.fleet.engine.scheduler import Scheduler
from pollwise.fleet.stores.base import FleetStore
from pollwise.runtime.clock import Clock

#: A lease is taken for shorter than it is, by this share: clocks differ, and answers take time.
MARGIN = 0.1
#: How long after the end of another node's lease one looks whether it was renewed.
LATE = 0.05
#: The most targets claimed, or given back for others, in one call.
BATCH = 10_000


class Nodes:
    """One node's part in a fleet that several share."""

    def __init__(
        self,
        store: FleetStore,
        node: str,
        lease: float,
        scheduler: Scheduler,
        clock: Clock,
        pump: Callable[[], None],
        look_after: Callable[[float], None] = lambda delay: None,
    ) -> None:
        """
        look_after: has `tend` called after so many seconds, if its turn would come later.
        """
        self.lease = lease
        self._store = store
        self._node = node
        self._scheduler = scheduler
        self._clock = clock
        self._pump = pump
        self._look_after = look_after
        #: The names that the store knows by a claim of ours.
        self._told: set[str] = set()

    async def tend(self) -> None:
        """Renew what this node holds; take, or give back, up to its share."""
        scheduler = self._scheduler
        asked_at = self._clock.now()
        renewal = await self._store.renew(self._node, self.lease)
        until = asked_at + self.lease * (1 - MARGIN)
        held = 0
        for name, entry in scheduler.entries.items():
            if name in renewal.held and entry.token is not None:
                scheduler.hold(entry, entry.token, until, asked_at)
                held += 1
            else:
                scheduler.lose(entry)
        share = math.ceil(len(scheduler.entries) / max(renewal.nodes, 1))
        if held > share:
            await self._give_back(held - share)
        elif held < share and (renewal.free or self._unheard_of()):
            await self._claim(share - held)
        self._allot()
        if renewal.ends is not None:
            self._look_after(renewal.ends + LATE)
        self._pump()

    def _unheard_of(self) -> bool:
        """Whether there are targets here that the store was never told of, so cannot count."""
        return not self._told.issuperset(self._scheduler.entries)

    def _allot(self) -> None:
        """Spend the part of the budget that belongs to what is held here."""
        budget, entries = self._scheduler.budget, self._scheduler.entries
        if budget is not None and entries:
            held = sum(entry.until > -math.inf for entry in entries.values())
            budget.allot(held / len(entries))

    async def leave(self) -> None:
        """Give everything back, at the end."""
        await self._store.give_back(self._node)

    async def _claim(self, wanted: int) -> None:
        scheduler = self._scheduler
        names = [name for name, entry in scheduler.entries.items() if entry.until == -math.inf]
        while wanted > 0 and names:
            asked_at = self._clock.now()
            limit = min(wanted, BATCH)
            self._told = set()  # should the answer be lost, it is asked again
            leases = await self._store.claim(self._node, names, limit, self.lease)
            self._told = set(scheduler.entries)
            now = self._clock.now()
            for lease in leases:
                entry = scheduler.entries.get(lease.name)
                if entry is None:
                    continue
                if lease.saved is not None and entry.place == AGENDA:
                    ordered = entry.paused and entry.token is None  # before it ever ran here
                    restore(entry, lease.saved, scheduler, now)
                    entry.paused = entry.paused or ordered
                until = asked_at + lease.lasts - self.lease * MARGIN
                scheduler.hold(entry, lease.token, until, now)
            if len(leases) < limit:
                return
            taken = {lease.name for lease in leases}
            names = [name for name in names if name not in taken]
            wanted -= len(leases)

    async def _give_back(self, surplus: int) -> None:
        """Those due last, and none that is being polled."""
        ours: list[RunningTarget] = [
            entry
            for entry in self._scheduler.entries.values()
            if entry.place == AGENDA and entry.until > -math.inf
        ]
        ours.sort(key=lambda entry: -entry.due)
        given = ours[: min(surplus, BATCH)]
        for entry in given:
            self._scheduler.lose(entry)
        await self._store.give_back(self._node, [entry.target.name for entry in given])
