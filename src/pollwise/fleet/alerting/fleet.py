"""The part of a fleet that is about alerts: its channels, its functions for changes, its alerts and
its maintenance windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pollwise.alerts.memory import MemoryAlerts
from pollwise.alerts.settings import Alerts
from pollwise.alerts.values import Alert, AlertFilter, AlertPage
from pollwise.alerts.windows import MaintenanceWindows
from pollwise.durations import shown
from pollwise.errors import ConfigError
from pollwise.fleet.alerting.running import RunningAlerts
from pollwise.fleet.stores.base import FleetStore
from pollwise.runtime.clock import Clock

if TYPE_CHECKING:
    from pollwise.alerts.channels.base import Channel

F = TypeVar("F", bound=Callable[..., Any])


class FleetWithAlerts:
    """The base of a fleet."""

    def __init__(self, store: FleetStore | None, clock: Clock, alerts: Alerts) -> None:
        self.store = store
        self.clock = clock
        #: Its channels, and which of them hear of what; `use_alerts` changes it while it runs.
        self.alerts: Alerts = alerts
        #: The maintenance windows of its file and its store.
        self.maintenance: MaintenanceWindows = MaintenanceWindows()
        self._memory_alerts = MemoryAlerts()
        #: Functions that are called with each change, as channels of this process.
        self._listeners: dict[str, Channel] = {}
        self._running_alerts: RunningAlerts | None = None

    def on_change(self, handler: F) -> F:
        """Call `handler`, async or plain, with a notice of each change of any target.

        It is a channel: a call that raises is repeated, even by the next run if the fleet has a
        store. The name of the function is stored with the notices that wait for it.
        """
        from pollwise.alerts.channels.function import FunctionChannel

        if self._running_alerts is not None:
            raise ConfigError("the fleet is running; register functions for changes before that")
        if not callable(handler):
            raise ConfigError(f"{shown(handler)} cannot be called; give a function of one notice")
        name = getattr(handler, "__qualname__", type(handler).__name__)
        while name in self._listeners or name in self.alerts.channels:
            name += "+"
        self._listeners[name] = FunctionChannel(name, handler, clock=self.clock)
        return handler

    async def use_alerts(self, alerts: Alerts) -> None:
        """Use other channels and routes from now on; notices that wait are kept."""
        self.alerts = alerts
        if self._running_alerts is not None:
            await self._running_alerts.use(alerts)

    async def list_alerts(self, chosen: AlertFilter) -> AlertPage:
        """A page of alerts, newest first."""
        if self.store is not None and self.store.keeps_alerts:
            return await self.store.alerts(chosen)
        return self._memory_alerts.alerts(chosen)

    async def find_alerts(self, ids: Sequence[str]) -> list[Alert]:
        """The alerts with these ids, as far as they exist."""
        if self.store is not None and self.store.keeps_alerts:
            return await self.store.alerts_by_id(ids)
        return [found for id in ids if (found := self._memory_alerts.alert(id)) is not None]

    async def acknowledge(self, ids: Sequence[str], by: str, note: str = "") -> list[Alert]:
        """Acknowledge these open alerts, so that they are not repeated; returns those that were
        open."""
        if self.store is not None and self.store.keeps_alerts:
            return await self.store.acknowledge(ids, by, note)
        return self._memory_alerts.acknowledge(ids, by, note, self.clock.epoch())

    async def read_maintenance(self) -> None:
        """Use the maintenance windows that are in the store now."""
        if self.store is not None:
            self.maintenance.set_stored(await self.store.maintenance())
