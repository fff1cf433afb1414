"""Control: what people ask of a fleet while it runs, from wherever, and settings that stay changed.

An order for a target that another node polls goes by way of the store, as do those of the command
line; whoever polls the target takes it within a few seconds. Settings that are changed are kept in
the store, above the settings file and below the environment, and all nodes go by them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pollux.errors import ConfigError
from pollux.fleet import Fleet
from pollux.fleet.pace import Pace
from pollux.fleet.store import ORDERS
from pollux.settings import FleetSettings, Settings

#: How often a running fleet looks for orders and changed settings, in seconds.
LOOK_EVERY = 2.0
#: What may be changed while a fleet runs.
CHANGEABLE = ("enabled", "base_interval", "min_interval", "max_interval")
UNSTORED = "this process, until it ends"

#: The settings, given what was changed and where that is kept.
Loader = Callable[[Mapping[str, Any], str], Settings]


def paces(settings: FleetSettings) -> dict[str | None, Pace]:
    """The paces that settings ask for: of all, and of the groups that differ."""
    strategy, enabled = settings.polling, settings.polling_enabled
    found: dict[str | None, Pace] = {None: Pace(strategy, enabled)}
    for name, group in settings.groups.items():
        theirs = enabled if group.enabled is None else group.enabled
        found[name] = Pace(group.strategy(strategy), theirs)
    return found


def key_of(group: str | None, name: str) -> str:
    return f"fleet.polling.{name}" if group is None else f"fleet.groups.{group}.polling.{name}"


class Control:
    """One fleet, in the hands of people.

    load: gives the settings; without it, those of the fleet's code hold and cannot be changed.
    """

    def __init__(self, fleet: Fleet, load: Loader | None = None) -> None:
        self.fleet = fleet
        self._load = load
        self._changes: dict[str, Any] = {}
        self._settings: Settings | None = None
        if fleet.store is not None:
            fleet.chore("look for orders", LOOK_EVERY, self.look)

    @property
    def where(self) -> str:
        """Where changes are kept, for people."""
        store = self.fleet.store
        if store is None:
            return UNSTORED
        path = getattr(store, "path", None)
        return f"sqlite:///{path}" if path is not None else str(getattr(store, "url", store))

    @property
    def settings(self) -> Settings | None:
        return self._settings

    async def start(self) -> None:
        """Go by the settings, as they were last changed. Called before the fleet runs."""
        store = self.fleet.store
        self._take(await store.settings() if store is not None else {})

    async def look(self) -> None:
        """Take what was asked by way of the store."""
        store = self.fleet.store
        if store is None:
            return
        for name, what in await store.orders():
            if name in self.fleet and what in ORDERS:
                self._do(what, name)
        changes = await store.settings()
        if changes != self._changes:
            self._take(changes)

    async def order(self, what: str, names: Sequence[str]) -> None:
        """Ask this of targets: one of ORDERS. Of none of them if one is not there."""
        if what not in ORDERS:
            raise ConfigError(f"{what!r} is none of {', '.join(ORDERS)}")
        missing = [name for name in names if name not in self.fleet]
        if missing:
            raise NoSuchTarget(missing)
        store = self.fleet.store
        shared = store is not None and store.shared
        elsewhere = [name for name in names if shared and not self.fleet.is_held(name)]
        if store is not None and elsewhere:
            await store.order(what, elsewhere)
        for name in names:
            if name not in elsewhere:
                self._do(what, name)

    async def change(self, group: str | None, changes: Mapping[str, Any]) -> None:
        """Change settings of polling, and keep them; None goes back to what else is set."""
        unknown = [name for name in changes if name not in CHANGEABLE]
        if unknown:
            raise ConfigError(f"{unknown[0]!r} cannot be changed; {', '.join(CHANGEABLE)} can")
        if self._load is None:
            raise ConfigError("this fleet is paced by its code, and its settings cannot be changed")
        keyed = {key_of(group, name): value for name, value in changes.items()}
        wanted = {**self._changes, **keyed}
        wanted = {key: value for key, value in wanted.items() if value is not None}
        self._load(wanted, self.where)  # what is wrong is told before anything is kept
        if self.fleet.store is not None:
            await self.fleet.store.keep_settings(keyed)
        self._take(wanted)

    def polling(self) -> list[dict[str, Any]]:
        """Each setting of polling, its value, and which layer it came from."""
        if self._settings is None:
            return []
        return [
            {"key": row.key, "value": row.value, "from": row.origin, "used": row.used}
            for row in self._settings.table()
            if row.key.startswith(("fleet.polling.", "fleet.groups."))
        ]

    def _take(self, changes: Mapping[str, Any]) -> None:
        self._changes = dict(changes)
        if self._load is not None:
            self._settings = self._load(changes, self.where)
            self.fleet.pace(paces(self._settings.fleet))

    def _do(self, what: str, name: str) -> None:
        fleet = self.fleet
        {
            "retry": fleet.retry,
            "reset": fleet.reset,
            "pause": fleet.pause,
            "resume": fleet.resume,
            "poll-now": fleet.poll_now,
        }[what](name)


class NoSuchTarget(ConfigError):
    """An order names targets that the fleet does not have."""

    def __init__(self, names: Sequence[str]) -> None:
        listed = ", ".join(map(repr, names[:5])) + (", …" if len(names) > 5 else "")
        super().__init__(f"there is no target {listed} in this fleet")
