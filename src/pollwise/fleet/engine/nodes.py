"""Several nodes on one fleet: each polls the targets it holds, and holds its share of them.

A node renews all its leases in one call, three times a lease. It claims free targets up to its
share (targets ÷ nodes, rounded up), and gives back those above it, a few at a time. If the store
cannot be reached, its leases expire by its own clock too, a little early: it stops polling before
any other node may start. It checks again when the lease of another node should expire, so that the
targets of a killed node are taken over within the lease.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from pollwise.fleet.engine.restore import catch_up, restore
from pollwise.fleet.engine.running_target import AGENDA, RunningTarget
from pollwise.fleet.engine.scheduler import Scheduler
from pollwise.fleet.locations.confirming import Confirmations
from pollwise.fleet.locations.values import LOCATION
from pollwise.fleet.stores.base import FleetStore, TargetLease
from pollwise.runtime.chores import Chores
from pollwise.runtime.clock import Clock

#: The chore that renews leases.
RENEW = "renew leases"
#: Fraction of a lease that is not used: clocks differ, and answers take time.
MARGIN = 0.1
#: Seconds after the end of another node's lease until this node checks whether it was renewed.
LATE = 0.05
#: Seconds until targets that are added while the fleet runs are claimed.
SOON = 1.0
#: Maximum number of targets claimed or given back in one call.
BATCH = 10_000


@dataclass
class Nodes:
    """The part of one node in a shared fleet."""

    store: FleetStore
    node: str
    lease: float
    scheduler: Scheduler
    clock: Clock
    pump: Callable[[], None]
    chores: Chores
    #: Called with each target that was claimed.
    joined: Callable[[RunningTarget], None]
    #: Saves all state that is unsaved.
    save: Callable[[], Awaitable[None]]
    #: Where this node is.
    location: str = LOCATION
    #: Names that our claims made known to the store.
    known: set[str] = field(default_factory=set)
    confirmations: Confirmations = field(init=False)

    def __post_init__(self) -> None:
        # Without its leases, a node stops polling.
        self.chores.add(RENEW, self.lease / 3, self.tend, needed=True)
        self.confirmations = Confirmations(
            self.store, self.location, self.scheduler, self.clock, self.chores
        )

    def expect(self, entries: Iterable[RunningTarget]) -> None:
        """Let new targets wait until a node has claimed them, which happens soon."""
        for entry in entries:
            entry.until = -math.inf
        self.chores.hasten(RENEW, SOON)

    async def tend(self) -> None:
        """Renew the leases of this node; claim or give back targets to reach its share."""
        scheduler = self.scheduler
        asked_at = self.clock.now()
        renewal = await self.store.renew(self.node, self.lease, self.location)
        self.confirmations.tend(renewal.locations)
        until = asked_at + self.lease * (1 - MARGIN)
        held = 0
        for name, entry in scheduler.entries.items():
            if name in renewal.held and entry.token is not None:
                scheduler.hold(entry, entry.token, until, asked_at)
                held += 1
            else:
                scheduler.lose(entry)
        share = math.ceil(len(scheduler.entries) / max(renewal.nodes, 1))
        # The store cannot count targets that it does not know yet.
        claimable = renewal.free or not self.known.issuperset(scheduler.entries)
        if held > share:
            await self._give_back(held - share)
        elif held < share and claimable:
            await self._claim(share - held)
        if renewal.ends is not None:
            self.chores.hasten(RENEW, renewal.ends + LATE)
        self.pump()

    async def leave(self) -> None:
        """Give everything back, at the end."""
        await self.store.give_back(self.node)

    async def _claim(self, wanted: int) -> None:
        scheduler = self.scheduler
        names = [name for name, entry in scheduler.entries.items() if entry.until == -math.inf]
        while wanted > 0 and names:
            asked_at = self.clock.now()
            limit = min(wanted, BATCH)
            self.known = set()  # if the answer is lost, claim again
            leases = await self.store.claim(self.node, names, limit, self.lease)
            self.known = set(scheduler.entries)
            now = self.clock.now()
            claimed: list[tuple[RunningTarget, TargetLease]] = []
            for lease in leases:
                entry = scheduler.entries.get(lease.name)
                if entry is None:
                    continue
                if lease.saved is not None and entry.place == AGENDA:
                    ordered = entry.paused and entry.token is None  # before it ever ran here
                    restore(entry, lease.saved, scheduler, now)
                    entry.paused = entry.paused or ordered
                claimed.append((entry, lease))
            catch_up((entry for entry, _ in claimed), scheduler, now)
            for entry, lease in claimed:
                until = asked_at + lease.lasts - self.lease * MARGIN
                scheduler.hold(entry, lease.token, until, now)
                self.joined(entry)
            if len(leases) < limit:
                return
            taken = {lease.name for lease in leases}
            names = [name for name in names if name not in taken]
            wanted -= len(leases)

    async def _give_back(self, surplus: int) -> None:
        """Give back the targets that are due last; none that is being polled."""
        # They were just polled: the next node would not know it, and poll them again at once.
        await self.save()
        ours: list[RunningTarget] = [
            entry
            for entry in self.scheduler.entries.values()
            if entry.place == AGENDA and entry.until > -math.inf
        ]
        ours.sort(key=lambda entry: -entry.due)
        given = ours[: min(surplus, BATCH)]
        for entry in given:
            self.scheduler.lose(entry)
        await self.store.give_back(self.node, [entry.target.name for entry in given])
