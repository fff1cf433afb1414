"""Control of a running fleet: orders for targets, settings that can be changed, and the audit log.

Orders for targets that another node polls, and those of the command line, go through the store; the
node that polls the target carries them out within a few seconds. Changed settings are kept in the
store, above the settings file and below the environment, and apply to all nodes.

Each order and each change is an event, and so a line in the log of the node that carried it out.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from pollwise.core.breaker import Breaker
from pollwise.core.retry import Retry
from pollwise.errors import ConfigError
from pollwise.fleet import Fleet
from pollwise.fleet.definitions.sources import TargetSources
from pollwise.fleet.engine.failures import FailureRules
from pollwise.fleet.engine.options import GroupPace
from pollwise.fleet.file import FleetFile
from pollwise.fleet.stores.base import ORDERS, FleetStore
from pollwise.runtime.audit import AuditEntry, write_down
from pollwise.runtime.events import FleetOrdered, FleetReloadFailed, FleetSettingsChanged
from pollwise.settings import FleetSettings, Settings
from pollwise.settings.groups import READERS, no_group
from pollwise.settings.values import shown

#: How often a running fleet checks its store for orders and changed settings, in seconds.
CHECK_EVERY = 2.0
#: Events and audit entries list at most this many names of targets.
NAMES_LISTED = 20
#: The settings that can be changed while a fleet runs.
CHANGEABLE = tuple(READERS)
UNSTORED = "this process, until it ends"
#: Who gave an order, when nothing else is known: code of this process, or another process.
CODE, ELSEWHERE = "code", "another process"

#: Loads the settings, given the changes and where these are kept.
Loader = Callable[[Mapping[str, Any], str], Settings]


def paces(settings: FleetSettings) -> dict[str | None, GroupPace]:
    """The paces in the settings: None for all targets, and by group where it differs."""
    strategy, enabled = settings.polling, settings.polling_enabled
    found: dict[str | None, GroupPace] = {None: GroupPace(strategy, enabled)}
    for name, group in settings.groups.items():
        theirs = enabled if group.enabled is None else group.enabled
        found[name] = GroupPace(group.strategy(strategy), theirs)
    return found


def failure_rules(settings: FleetSettings) -> FailureRules:
    """The rules for failed polls in the settings."""
    grows = settings.backoff_multiplier
    breaker = Breaker(
        settings.breaker_failures,
        settings.breaker_delay,
        settings.breaker_max_delay,
        multiplier=grows,
    )
    backoff = Retry.exponential(
        settings.backoff_delay,
        settings.backoff_max_delay,
        multiplier=grows,
        attempts=None,
        jitter=settings.backoff_jitter,
    )
    return FailureRules(
        confirm=settings.confirm_delay,
        confirmations=settings.confirmations,
        breaker=breaker,
        backoff=backoff,
        dead_after=settings.dead_after,
        recheck=settings.recheck,
        max_retry_after=settings.max_retry_after,
    )


def key_of(group: str | None, name: str) -> str:
    return f"fleet.polling.{name}" if group is None else f"fleet.groups.{group}.polling.{name}"


class Control:
    """Operates one fleet.

    load: loads the settings; without it the fleet is paced by its code and cannot be changed.
    groups: groups that may have settings, in addition to the groups of the targets.
    targets: where the targets are defined; without it, in code and in the store.
    """

    def __init__(
        self,
        fleet: Fleet,
        load: Loader | None = None,
        groups: Iterable[str] = (),
        targets: TargetSources | None = None,
    ) -> None:
        self.fleet = fleet
        self.targets: TargetSources = targets or TargetSources(fleet)
        self.targets.applied = self._file_applied
        self._load = load
        self._groups = frozenset(groups)
        self._changes: dict[str, Any] = {}
        self.settings: Settings | None = None
        if fleet.store is not None:
            fleet.chore("check for orders", CHECK_EVERY, self.check_store)

    @property
    def where(self) -> str:
        """Where changes are kept, for people."""
        store = self.fleet.store
        return UNSTORED if store is None else store.url

    async def start(self) -> None:
        """Apply the definitions of targets, the settings, and the changes kept in the store.
        Called before the fleet runs."""
        await self.targets.start()
        store = self.fleet.store
        self._apply(await store.settings() if store is not None else {})

    async def check_store(self) -> None:
        """Apply the definitions and settings that other processes left in the store, and carry out
        their orders."""
        store = self.fleet.store
        if store is None:
            return
        await self.targets.check_store()  # first: an order may be for a new target
        sound = [
            each for each in await store.orders() if each.name in self.fleet and each.what in ORDERS
        ]
        for (what, by), orders in groupby(sound, lambda each: (each.what, each.by)):
            self._carry_out(what, [each.name for each in orders], by or ELSEWHERE)
        changes = await store.settings()
        if changes != self._changes:
            keys = sorted({*self._changes, *changes})
            changed = {k: changes.get(k) for k in keys if changes.get(k) != self._changes.get(k)}
            self._apply(changes)
            self._report_changes(changed, ELSEWHERE)

    async def reload(self, by: str) -> None:
        """Read the file of targets and the settings again. A file that is wrong changes nothing;
        the log and the state of the fleet say why."""
        if self.targets.file is not None:
            await self.targets.reload(by)
        else:
            self._load_again()

    async def order(self, what: str, names: Sequence[str], by: str = CODE) -> list[str]:
        """Give an order, one of ORDERS, to targets. If one does not exist, nothing is ordered.

        Returns the names for which the order waits in the store: other nodes poll these targets.
        by: who gives it, for the log: "api", "view", and what is known of the person.
        """
        if what not in ORDERS:
            raise ConfigError(f"{what!r} is not one of {', '.join(ORDERS)}")
        missing = [name for name in names if name not in self.fleet]
        if missing:
            raise NoSuchTarget(missing)
        store = self.fleet.store
        shared = store is not None and store.shared
        elsewhere = {name for name in names if shared and not self.fleet.is_held(name)}
        if store is not None and elsewhere:
            await store.order(what, sorted(elsewhere), by)
        self._carry_out(what, [name for name in names if name not in elsewhere], by)
        return sorted(elsewhere)

    async def change(self, group: str | None, changes: Mapping[str, Any], by: str = CODE) -> None:
        """Change settings of polling and keep them; None undoes an earlier change."""
        if self._load is None:
            raise ConfigError("this fleet is paced by its code, so its settings cannot be changed")
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
            self._load(wanted, self.where)  # refuses what is wrong before anything is kept
        except ConfigError as error:
            raise ConfigError(self._as_asked(str(error), keyed)) from None
        if self.fleet.store is not None:
            await self.fleet.store.keep_settings(keyed)
        self._apply(wanted)
        self._report_changes(keyed, by)

    def groups(self) -> list[str]:
        """The names of all groups, sorted."""
        return sorted(self._groups | self.fleet.groups())

    def polling(self) -> list[dict[str, Any]]:
        """Each setting of polling with its value and the layer that it comes from."""
        if self.settings is None:
            return []
        return [
            {"key": row.key, "value": row.value, "from": row.origin, "used": row.used}
            for row in self.settings.table()
            if row.key.startswith(("fleet.polling.", "fleet.groups."))
        ]

    def _apply(self, changes: Mapping[str, Any]) -> None:
        self._changes = dict(changes)
        if self._load is not None:
            self.settings = self._load(changes, self.where)
            self.fleet.pace(paces(self.settings.fleet))

    def _file_applied(self, file: FleetFile) -> None:
        self._groups = file.groups
        self._load_again()

    def _load_again(self) -> None:
        """Load the settings of polling again; those of the process itself need a restart."""
        problems = self.fleet.problems
        try:
            self._apply(self._changes)
        except ConfigError as error:
            why = "; ".join(str(error).splitlines())
            problems["settings"] = f"the settings are wrong, so those from before are used: {why}"
            fleet = self.fleet
            fleet.events.emit(FleetReloadFailed(fleet.name, "the settings", str(error)))
        else:
            problems.pop("settings", None)

    def _carry_out(self, what: str, names: Sequence[str], by: str) -> None:
        fleet = self.fleet
        order = getattr(fleet, what.replace("-", "_"))  # one of ORDERS
        for name in names:
            order(name)
        if names:
            listed = tuple(names[:NAMES_LISTED])
            fleet.events.emit(FleetOrdered(fleet.name, what, listed, len(names), by))

    def _report_changes(self, keyed: Mapping[str, Any], by: str) -> None:
        changes = tuple(
            f"{key}={'' if value is None else shown(value)}" for key, value in keyed.items()
        )
        self.fleet.events.emit(FleetSettingsChanged(self.fleet.name, changes, by))

    def _as_asked(self, error: str, keyed: Mapping[str, Any]) -> str:
        """The error with the names that the caller used: nothing is kept in the store yet."""
        kept = re.escape(f"(changed at run time, kept in {self.where})")
        for key in keyed:
            name = key.rpartition(".")[2]
            error = re.sub(rf"{re.escape(key)} = (.*?) {kept}", rf"{name} = \1", error)
        return error


async def note(
    store: FleetStore | None,
    who: str,
    action: str,
    what: str = "",
    detail: str = "",
    address: str = "",
) -> None:
    """Write an audit entry; without a store, only to the log of this process."""
    entry = AuditEntry.of(who, action, what, detail, address)
    if store is None:
        entry.log()
    else:
        await write_down(entry, store.audit)


async def note_order(
    store: FleetStore | None, who: str, order: str, names: Sequence[str], address: str = ""
) -> None:
    """Write an audit entry for an order."""
    listed = ", ".join(map(repr, names[:NAMES_LISTED])) + ", …" * (len(names) > NAMES_LISTED)
    detail = f"{len(names)} targets" if len(names) > 1 else ""
    await note(store, who, f"target.{order}", listed, detail, address)


def _problems(changes: Mapping[str, Any]) -> list[str]:
    """What is wrong with each change by itself: the field, its value, and what is allowed."""
    found = []
    for name, value in changes.items():
        if name not in READERS:
            near = difflib.get_close_matches(name, CHANGEABLE, 1, 0.5)
            hint = f"did you mean {near[0]}? " if near else ""
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
        super().__init__(f"this fleet has no target {listed}")
