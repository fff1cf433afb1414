"""What the status page shows: read once for all visitors, and kept for a few seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pollwise.alerts.windows import MaintenanceWindow, MaintenanceWindows
from pollwise.fleet.history.values import DAY, PeriodState
from pollwise.fleet.history.views import open_history, strips, uptimes
from pollwise.fleet.stores.base import SavedTarget
from pollwise.fleet.stores.paging import TargetFilter
from pollwise.web.pages.fleet.maintenance import windows_of
from pollwise.web.pages.fleet.past import cell_of
from pollwise.web.pages.fleet.source import FleetSource
from pollwise.web.pages.status.options import ALL, StatusOptions
from pollwise.web.sources import Remembered, Sources
from pollwise.web.texts import counted

#: How long the contents are reused, in seconds, here and in the caches between.
KEPT_FOR = 15.0
#: The most targets and past incidents on the page.
TARGETS_MAX = 500
PAST_MAX = 10
#: How soon a maintenance window must begin to be shown, in seconds, and how many are shown.
PLANNED_WITHIN = 7 * DAY
PLANNED_MAX = 20
#: The days of a strip.
DAYS = 90
#: How many targets are read at a time.
AT_ONCE = 500

#: A target is in the state of its period, or paused.
PublicState = PeriodState | str


@dataclass(frozen=True, slots=True)
class PublicTarget:
    """A target. uptimes: by window, such as "30d"; strip: one cell a day, a tone and a text."""

    name: str
    group: str | None
    state: PublicState
    uptimes: Mapping[str, float | None]
    strip: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class PublicIncident:
    """A time in which a target was down. reason: empty unless everybody may know it.

    maintenance: True if it went down before a maintenance window that covers it now.
    """

    target: str
    started_at: float
    ended_at: float | None
    reason: str = ""
    note: str = ""
    maintenance: bool = False


@dataclass(frozen=True, slots=True)
class PublicMaintenance:
    """A maintenance window that is under way or begins soon. about: which of the targets."""

    about: str
    starts_at: float
    ends_at: float | None
    note: str
    now: bool


@dataclass(frozen=True, slots=True)
class PublicStatus:
    """The contents. more: targets that there was no room for."""

    title: str
    at: float
    targets: Sequence[PublicTarget]
    incidents: Sequence[PublicIncident]
    maintenance: Sequence[PublicMaintenance] = ()
    more: int = 0
    polled: bool = True

    @property
    def groups(self) -> list[tuple[str | None, list[PublicTarget]]]:
        """The targets by group; those without one come last."""
        found: dict[str | None, list[PublicTarget]] = {}
        for each in self.targets:
            found.setdefault(each.group, []).append(each)
        return sorted(found.items(), key=lambda item: (item[0] is None, item[0] or ""))

    @property
    def open(self) -> list[PublicIncident]:
        return [each for each in self.incidents if each.ended_at is None]

    @property
    def past(self) -> list[PublicIncident]:
        return [each for each in self.incidents if each.ended_at is not None][:PAST_MAX]

    @property
    def headline(self) -> str:
        """The state of everything in one sentence."""
        down = sum(each.state == "down" for each in self.targets)
        if not self.polled:
            return "Nothing is checked right now; these are the last known states"
        if down:
            are = "is" if down == 1 else "are"
            return f"{down:,} of {counted(len(self.targets), 'service')} {are} down"
        if any(each.state == "maintenance" for each in self.targets):
            return "Under maintenance"
        if not any(each.state == "up" for each in self.targets):
            return "Nothing is known yet"
        return "All services are up"

    @property
    def tone(self) -> str:
        if not self.polled:
            return "amber"
        states = {each.state for each in self.targets}
        if "down" in states:
            return "red"
        return "green" if "up" in states and "maintenance" not in states else "amber"


class StatusContents:
    """Reads the contents from the stores of the fleets that are shown."""

    def __init__(self, sources: Sources, options: StatusOptions) -> None:
        self._sources = sources
        self._options = options
        self._kept = Remembered(self._read, sources.clock, KEPT_FOR)

    async def get(self) -> PublicStatus:
        """The contents, at most KEPT_FOR seconds old."""
        return await self._kept.get()

    async def _read(self) -> PublicStatus:
        now = self._sources.clock.epoch()
        targets: list[PublicTarget] = []
        incidents: list[PublicIncident] = []
        maintenance: list[PublicMaintenance] = []
        more, polled = 0, True
        for source in self._sources.fleets.values():
            saved = await self._chosen(source)
            room = TARGETS_MAX - len(targets)
            more += max(len(saved) - room, 0)
            windows = await windows_of(source)
            found = await self._of(source, saved[:room], windows, now)
            targets += found[0]
            incidents += found[1]
            maintenance += _planned(windows, saved, now)
            polled = polled and (await source.snapshot()).nodes != ()
        incidents.sort(key=lambda each: (each.ended_at is not None, -each.started_at))
        maintenance.sort(key=lambda each: each.starts_at)
        return PublicStatus(
            self._options.title, now, targets, incidents, maintenance[:PLANNED_MAX], more, polled
        )

    async def _chosen(self, source: FleetSource) -> list[SavedTarget]:
        """The targets of the groups that everybody may see, by name."""
        groups: Iterable[str | None] = self._options.groups
        if ALL in self._options.groups:
            groups = (None,)
        found: list[SavedTarget] = []
        for group in groups:
            after: str | None = None
            while len(found) <= TARGETS_MAX:
                page = await source.page(TargetFilter(group=group, limit=AT_ONCE, after=after))
                found += page.targets
                after = page.next
                if after is None:
                    break
        return found

    async def _of(
        self,
        source: FleetSource,
        saved: Sequence[SavedTarget],
        windows: Sequence[MaintenanceWindow],
        now: float,
    ) -> tuple[list[PublicTarget], list[PublicIncident]]:
        store, names = source.store, [each.name for each in saved]
        maintenance = MaintenanceWindows()
        maintenance.set_stored(windows)
        if store is None or not store.keeps_history or not names:
            return [
                PublicTarget(each.name, each.group, state_of(each), {}, ()) for each in saved
            ], []
        seen = await uptimes(store, names, now)
        strip = await strips(store, names, now, cells=DAYS)
        notes = await self._notes(source)
        targets, incidents = [], []
        since: dict[str, float] = {}
        for each in saved:
            known = seen[each.name]
            state = "paused" if each.paused else known.state or "unknown"
            # The history knows of a window only after the next poll.
            if state == "down" and maintenance.covers(each.name, each.group, now) is not None:
                state = "maintenance"
            shares = {window: times.uptime for window, times in known.windows.items()}
            cells = [cell_of(cell) for cell in strip[each.name]]
            targets.append(PublicTarget(each.name, each.group, state, shares, cells))
            opened = open_history(each)
            began = None if opened is None else opened.outage
            if opened is None or began is None or state not in ("down", "maintenance"):
                continue
            # An outage that was open when the window began is still one.
            if state != known.state and maintenance.covers(each.name, each.group, began):
                continue
            since[each.name] = began
            reason, note = self._reason(opened.reason), notes.get(each.name, "")
            incidents.append(
                PublicIncident(each.name, began, None, reason, note, state == "maintenance")
            )
        ended = await store.periods(names, now - DAYS * DAY, state="down", limit=PAST_MAX)
        incidents += [
            PublicIncident(each.target, each.started_at, each.ended_at, self._reason(each.reason))
            for each in ended
            if each.started_at < since.get(each.target, math.inf)  # else part of the open one
        ]
        return targets, incidents

    async def _notes(self, source: FleetSource) -> dict[str, str]:
        """What operators wrote when they acknowledged an alert, by target."""
        if not self._options.notes:
            return {}
        return {each.target: each.note for each in await source.open_alerts() if each.note}

    def _reason(self, reason: str) -> str:
        return reason if self._options.reasons else ""


def _planned(
    windows: Iterable[MaintenanceWindow], saved: Sequence[SavedTarget], now: float
) -> list[PublicMaintenance]:
    """The windows of these targets that are under way, or begin soon."""
    names, groups = {each.name for each in saved}, {each.group for each in saved}
    found = []
    for each in windows:
        mine = [
            *(name for name in each.targets if name in names),
            *(group for group in each.groups if group in groups),
        ]
        if not mine and (each.targets or each.groups):
            continue  # it is for others
        about = ", ".join(mine) or "Everything"
        until, begins = each.until(now), each.next(now)
        if until is not None:
            found.append(PublicMaintenance(about, now, until, each.note, True))
        elif begins is not None and begins - now <= PLANNED_WITHIN:
            found.append(PublicMaintenance(about, begins, each.until(begins), each.note, False))
    return found


def state_of(saved: SavedTarget) -> PublicState:
    """The state of a target whose store keeps no history."""
    if saved.paused:
        return "paused"
    if saved.more.get("down"):
        return "down"
    return "unknown" if saved.succeeded_at is None else "up"
