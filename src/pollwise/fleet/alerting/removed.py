"""Closes the alerts of targets that were removed while no process polled them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pollwise.alerts.settings import Alerts
from pollwise.alerts.values import PAGE_MAX, Alert, AlertFilter, Notice
from pollwise.fleet.alerting.notices import notices_of
from pollwise.fleet.stores.base import FleetStore, SavedTarget, SaveExtras
from pollwise.fleet.targets import ProbeContext, Target
from pollwise.runtime.clock import Clock

#: How often to look for such alerts, in seconds.
LOOK_EVERY = 600.0
#: How long a node of several holds these targets meanwhile, in seconds.
_HELD_FOR = 30.0
_WHY = "its target was removed"


class RemovedTargets:
    """The alerts of one fleet whose targets are gone.

    known: the names of its targets. Those that another node polls are left alone.
    """

    def __init__(
        self, fleet: str, node: str, store: FleetStore, known: Container[str], clock: Clock
    ) -> None:
        self._fleet = fleet
        self._node = node
        self._store = store
        self._known = known
        self._clock = clock

    async def close(self, settings: Alerts) -> bool:
        """Close them, and notify the channels that heard of them; True if there were notices."""
        told, after = False, None
        while True:
            page = await self._store.alerts(AlertFilter("open", limit=PAGE_MAX, after=after))
            gone = [each for each in page.alerts if each.target not in self._known]
            if gone:
                told = await self._close(gone, settings) or told
            after = page.next
            if after is None:
                return told

    async def _close(self, gone: Sequence[Alert], settings: Alerts) -> bool:
        names = sorted({each.target for each in gone})
        if not self._store.shared:
            saved = {each.name: each for each in await self._store.load(names)}
            return await self._save(gone, saved, settings)
        leases = await self._store.claim(self._node, names, len(names), _HELD_FOR)
        try:
            saved = {
                each.name: replace(each.saved, token=each.token)
                for each in leases
                if each.saved is not None
            }
            free = [each for each in gone if each.target in saved]
            return await self._save(free, saved, settings)
        finally:
            await self._store.give_back(self._node, [each.name for each in leases])

    async def _save(
        self, gone: Sequence[Alert], saved: Mapping[str, SavedTarget], settings: Alerts
    ) -> bool:
        now = self._clock.epoch()
        closed = [
            replace(each, state="closed", closed_at=now, sent=each.sent + 1, last_sent_at=now)
            for each in gone
        ]
        notices: list[Notice] = []
        for alert in closed:
            kept = saved.get(alert.target)
            kind = "" if kept is None else kept.type
            target = Target(alert.target, _never, type=kind or "function", group=alert.group)
            notices += notices_of(
                alert, "closed", alert.sent, now, target, None, _heard(alert, kept), settings,
                self._fleet, _WHY,
            )  # fmt: skip
        # If they come back, their alerts begin again.
        calm = [
            replace(each, more={key: more for key, more in each.more.items() if key != "alerts"})
            for each in saved.values()
        ]
        if closed or calm:
            await self._store.save(calm, SaveExtras(alerts=closed, notices=notices))
        return bool(notices)


def _heard(alert: Alert, kept: SavedTarget | None) -> list[str]:
    """The channels that heard of an alert."""
    states: Any = {} if kept is None else kept.more.get("alerts")
    state = states.get(alert.rule) if isinstance(states, dict) else None
    to = state.get("to") if isinstance(state, dict) else None
    return list(map(str, to)) if isinstance(to, list) else []


async def _never(target: Target, context: ProbeContext) -> None:
    raise AssertionError("it is not polled")
