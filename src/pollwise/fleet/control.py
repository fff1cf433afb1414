"""Control: what people ask of a fleet while it runs, from wherever, and settings that stay changed.

An order for a target that another node polls goes by way of the store, as do those of the command
line; whoever polls the target takes it within a few seconds. Settings that are changed are kept in
the store, above the settings file and below the environment, and all nodes go by them.

Who asked for what is an event, and so a line in the log of whoever did it: a target that stands
still because somebody paused it is no riddle then.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from pollwise.errors import ConfigError
from pollwise.fleet import Fleet
from pollwise.fleet.audit import NAMES_TOLD
from pollwise.fleet.engine.pace import Pace
from pollwise.fleet.stores.base import ORDERS
from pollwise.runtime.events import FleetOrdered, FleetSettingsChanged
from pollwise.settings import FleetSettings, Settings
from pollwise.settings.groups import READERS, no_group
from pollwise.settings.values import shown

#: How often a running fleet looks for orders and changed settings, in seconds.
LOOK_EVERY = 2.0
#: What may be changed while a fleet runs, and what else people call it.
CHANGEABLE = tuple(READERS)
_MISNOMERS = {
    "base": "base_interval",
    "interval": "base_interval",
    "poll_interval": "base_interval",
    "min_interval": "min_interval",
    "max_interval": "max_interval",
}
UNSTORED = "this process, until it ends"
#: Who asked where nobody says: code of the process itself, or another one by way of the store.
CODE, ELSEWHERE = "code", "another process"

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
    groups: those that may be given settings of their own, besides the groups of targets.
    """

    def __init__(
        self, fleet: Fleet, load: Loader | None = None, groups: Iterable[str] = ()
    ) -> None:
        self.fleet = fleet
        self._load = load
        self._groups = frozenset(groups)
        self._changes: dict[str, Any] = {}
        self._settings: Settings | None = None
        if fleet.store is not None:
            fleet.chore("look for orders", LOOK_EVERY, self.look)

    @property
    def where(self) -> str:
        """Where changes are kept, for people."""
        store = self.fleet.store
        return UNSTORED if store is None else store.url

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
        sound = [
            each for each in await store.orders() if each.name in self.fleet and each.what in ORDERS
        ]
        for (what, by), orders in groupby(sound, lambda each: (each.what, each.by)):
            self._carry_out(what, [each.name for each in orders], by or ELSEWHERE)
        changes = await store.settings()
        if changes != self._changes:
            before = self._changes
            self._take(changes)
            self._tell_changes(
                {
                    key: changes.get(key)
                    for key in sorted({*before, *changes})
                    if changes.get(key) != before.get(key)
                },
                ELSEWHERE,
            )

    async def order(self, what: str, names: Sequence[str], by: str = CODE) -> None:
        """Ask this of targets: one of ORDERS. Of none of them if one is not there.

        by: who asks, as the log tells it: "api", "view", and what is known of the person.
        """
        if what not in ORDERS:
            raise ConfigError(f"{what!r} is none of {', '.join(ORDERS)}")
        missing = [name for name in names if name not in self.fleet]
        if missing:
            raise NoSuchTarget(missing)
        store = self.fleet.store
        shared = store is not None and store.shared
        elsewhere = {name for name in names if shared and not self.fleet.is_held(name)}
        if store is not None and elsewhere:
            await store.order(what, sorted(elsewhere), by)
        self._carry_out(what, [name for name in names if name not in elsewhere], by)

    async def change(self, group: str | None, changes: Mapping[str, Any], by: str = CODE) -> None:
        """Change settings of polling, and keep them; None goes back to what else is set."""
        if self._load is None:
            raise ConfigError("this fleet is paced by its code, and its settings cannot be changed")
        problems = _problems(changes)
        if group is not None and any(value is not None for value in changes.values()):
            known = self.groups()
            if group not in known:
                problems.insert(0, f"group = {shown(group)}: {no_group(group, known)}")
        if problems:
            raise ConfigError("; ".join(problems))
        keyed = {key_of(group, name): value for name, value in changes.items()}
        wanted = {**self._changes, **keyed}
        wanted = {key: value for key, value in wanted.items() if value is not None}
        try:
            self._load(wanted, self.where)  # what is wrong is told before anything is kept
        except ConfigError as error:
            raise ConfigError(self._as_asked(str(error), keyed)) from None
        if self.fleet.store is not None:
            await self.fleet.store.keep_settings(keyed)
        self._take(wanted)
        self._tell_changes(keyed, by)

    def groups(self) -> list[str]:
        """The groups that there are, in order."""
        return sorted(self._groups | self.fleet.groups())

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

    def _carry_out(self, what: str, names: Sequence[str], by: str) -> None:
        fleet = self.fleet
        do = {
            "retry": fleet.retry,
            "reset": fleet.reset,
            "pause": fleet.pause,
            "resume": fleet.resume,
            "poll-now": fleet.poll_now,
        }[what]
        for name in names:
            do(name)
        if names:
            told = tuple(names[:NAMES_TOLD])
            fleet.events.emit(FleetOrdered(fleet.name, what, told, len(names), by))

    def _tell_changes(self, keyed: Mapping[str, Any], by: str) -> None:
        changes = tuple(
            f"{key}={'' if value is None else shown(value)}" for key, value in keyed.items()
        )
        self.fleet.events.emit(FleetSettingsChanged(self.fleet.name, changes, by))

    def _as_asked(self, error: str, keyed: Mapping[str, Any]) -> str:
        """A refusal in the words of who asked: what was asked for is not kept anywhere yet."""
        kept = re.escape(f"(changed at run time, kept in {self.where})")
        for key in keyed:
            name = key.rpartition(".")[2]
            error = re.sub(rf"{re.escape(key)} = (.*?) {kept}", rf"{name} = \1", error)
        return error


def _problems(changes: Mapping[str, Any]) -> list[str]:
    """What is wrong with each change by itself: the field, its value, and what is allowed."""
    found = []
    for name, value in changes.items():
        if name not in READERS:
            near = _MISNOMERS.get(name) or next(
                iter(difflib.get_close_matches(name, CHANGEABLE, 1)), None
            )
            hint = f"did you mean {near}? " if near else ""
            listed = ", ".join(CHANGEABLE)
            found.append(f"{shown(name)} cannot be changed; {hint}these can: {listed}")
            continue
        try:
            if value is not None:
                READERS[name].read(value)
        except ValueError as error:
            found.append(f"{name} = {shown(value)} {error}")
    return found


class NoSuchTarget(ConfigError):
    """An order names targets that the fleet does not have."""

    def __init__(self, names: Sequence[str]) -> None:
        listed = ", ".join(map(repr, names[:5])) + (", …" if len(names) > 5 else "")
        super().__init__(f"there is no target {listed} in this fleet")
