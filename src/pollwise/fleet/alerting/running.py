"""The alerts of one run of a fleet, with their delivery and where they are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pollwise.alerts.maintenance import Maintenance
from pollwise.alerts.memory import MemoryAlerts
from pollwise.alerts.settings import Alerts
from pollwise.alerts.values import Alert, Notice
from pollwise.fleet.alerting.alerting import Alerting
from pollwise.fleet.alerting.removed import LOOK_EVERY, RemovedTargets
from pollwise.fleet.engine.run import FleetRun
from pollwise.fleet.engine.running_target import RunningTarget
from pollwise.fleet.stores.base import FleetStore
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events

if TYPE_CHECKING:
    from pollwise.alerts.channels.base import Channel
    from pollwise.alerts.delivery import Delivery
    from pollwise.outbox.stores.base import OutboxStore


class RunningAlerts:
    """Follows a run while it is entered, and sends notices.

    listeners: channels of this process that hear of every change.
    memory: keeps the alerts if the store keeps none.
    """

    def __init__(
        self,
        fleet: str,
        node: str,
        run: FleetRun,
        store: FleetStore | None,
        memory: MemoryAlerts,
        clock: Clock,
        events: Events,
        settings: Alerts,
        listeners: Mapping[str, Channel],
        maintenance: Maintenance | None,
    ) -> None:
        self._fleet = fleet
        self._node = node
        self._saving = run.saving
        self._store = store
        self._memory = memory
        self._clock = clock
        self._events = events
        self._listeners = dict(listeners)
        self._delivery: Delivery | None = None
        #: Notices that wait for a delivery, without an outbox in the store.
        self._unput: list[Notice] = []
        #: Without an outbox in the store.
        self._in_memory: OutboxStore | None = None
        self.alerting: Alerting = Alerting(
            fleet, run.scheduler, store, clock, events, self._keep, self.find,
            self._with_listeners(settings), tuple(listeners), maintenance,
        )  # fmt: skip
        self._saving.notices_saved = self._wake
        run.follow(self.alerting)
        if store is not None and store.keeps_alerts:
            self._removed = RemovedTargets(fleet, node, store, run.scheduler.entries, clock)
            run.chore("close alerts of removed targets", LOOK_EVERY, self._close_removed)

    def _with_listeners(self, settings: Alerts) -> Alerts:
        if not self._listeners:
            return settings
        channels = [*settings.channels.values(), *self._listeners.values()]
        return Alerts(channels, to=settings.to, groups=settings.groups, link=settings.link)

    async def __aenter__(self) -> RunningAlerts:
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        delivery = self._delivery
        if delivery is None:
            return
        if self._in_memory is not None:
            await delivery.drain()
        await delivery.__aexit__()

    async def use(self, settings: Alerts) -> None:
        """Use other channels and routes from now on; notices that wait are kept."""
        before, self._delivery = self._delivery, None
        self.alerting.settings = self._with_listeners(settings)
        if before is not None:
            await before.__aexit__()
        await self._start()

    async def _start(self) -> None:
        channels = self.alerting.settings.channels
        if not channels:
            return
        from pollwise.alerts.delivery import Delivery  # only a fleet that sends needs the outbox

        outbox = None if self._store is None else self._store.outbox()
        by_itself = self._store is not None and self._store.migration() is None
        if outbox is None:
            outbox = self._in_memory or self._new_in_memory()
            self._in_memory = outbox
        elif self._store is not None:
            await self._store.load([])  # creates the file, which then has a write-ahead log
        delivery = Delivery(
            outbox, channels, self.find, node=self._node, source=self._fleet, clock=self._clock,
            events=self._events, migrate=by_itself, close=self._in_memory is None,
        )  # fmt: skip
        self._delivery = await delivery.__aenter__()
        if self._unput:
            self._delivery.put(self._unput)
            self._unput = []

    def _new_in_memory(self) -> OutboxStore:
        from pollwise.alerts.notices import NOTICES_KEPT, outbox_of_alerts
        from pollwise.outbox.stores.memory import MemoryOutboxStore

        name = outbox_of_alerts(self._fleet)
        return MemoryOutboxStore(name, clock=self._clock, keep=NOTICES_KEPT, on_dead="continue")

    async def _close_removed(self) -> None:
        if await self._removed.close(self.alerting.settings):
            self._wake()

    # Keeping

    @property
    def kept_by_store(self) -> bool:
        return self._store is not None and self._store.keeps_alerts

    def _keep(self, entry: RunningTarget, alert: Alert | None, notices: Sequence[Notice]) -> None:
        if self.kept_by_store:
            self._saving.unsaved_alerts.add(entry.target.name, alert, notices)
        else:
            if alert is not None:
                self._memory.save([alert])
            if self._delivery is None:  # it is being replaced
                self._unput += notices
            elif notices:
                self._delivery.put(notices)
        self._saving.touch_soon(entry)

    async def find(self, ids: Sequence[str]) -> list[Alert]:
        if self._store is not None and self.kept_by_store:
            return await self._store.alerts_by_id(ids)
        return [found for id in ids if (found := self._memory.alert(id)) is not None]

    def _wake(self) -> None:
        if self._delivery is not None:
            self._delivery.wake()

    # Views

    def problem(self) -> str | None:
        """What is wrong with the delivery, for people; None if nothing is."""
        return None if self._delivery is None else self._delivery.problem()
