"""Where the targets of a running fleet are defined: in code, in its file, and in its store.

The file is the truth: its targets are changed there, and of two targets of one name the one in the
file is polled. A change of the file or of the store is applied within seconds, without a restart:
targets that are the same go on as before. A file that is wrong changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pollwise.errors import ConfigError, PollwiseError
from pollwise.fleet.alerting.checks import unheard
from pollwise.fleet.definitions.shown import shown_table
from pollwise.fleet.definitions.stored import (
    StoredRules,
    StoredTables,
    checked_table,
)
from pollwise.fleet.engine.failures import text_of
from pollwise.fleet.engine.replacing import ReplacedTargets
from pollwise.fleet.file import FleetFile, signature
from pollwise.fleet.fleet import Fleet
from pollwise.fleet.stores.definitions import DefinitionConflict, StoredDefinition
from pollwise.fleet.targets import Target
from pollwise.runtime.events import FleetReloadFailed, FleetTargetsChanged

logger = logging.getLogger("pollwise")

#: How often the file is checked for a change, in seconds. It is read once it stays the same for one
#: more check: an editor may still be writing it.
CHECK_FILE_EVERY = 2.0
#: At most this many names are in an event or a problem.
NAMES_LISTED = 20
BY_FILE = "file"

_FILE, _STORE = "file", "definitions"


class DefinedElsewhere(ConfigError):
    """A target whose definition is in the file or in code, and can only be changed there."""


class TargetConflict(ConfigError):
    """A change that another target does not allow; the message says what to do first."""


class NoDefinition(ConfigError):
    """The store has no definition of this name."""


@dataclass(frozen=True, slots=True)
class Defined:
    """The definition of a target, for views.

    table: without secrets; None for a target of code.
    version, by, at: of its last change; None for a target of the file or of code.
    """

    table: dict[str, Any] | None
    version: int | None = None
    by: str | None = None
    at: float | None = None


class TargetSources:
    """Keeps the targets of a fleet as its file and its store define them.

    file: the file as it was read; None without one. read: reads it again.
    applied: called after the targets of a changed file are applied.
    rules: what targets of the store may do.
    """

    def __init__(
        self,
        fleet: Fleet,
        file: FleetFile | None = None,
        read: Callable[[], FleetFile] | None = None,
        rules: StoredRules | None = None,
        applied: Callable[[FleetFile], None] | None = None,
    ) -> None:
        self.fleet = fleet
        self.file = file
        self.rules: StoredRules = rules or StoredRules()
        self.applied = applied
        self._read = read
        self._seen = self._tried = None if file is None else file.signature
        self._version = 0
        #: The definitions of the store, the targets made of them, and why one cannot be used.
        self._stored: dict[str, StoredDefinition] = {}
        self._made: dict[str, Target] = {}
        self._wrong: dict[str, str] = {}
        self._lock = asyncio.Lock()
        if file is not None and read is not None:
            fleet.chore("check the file of targets", CHECK_FILE_EVERY, self.check_file)

    async def start(self) -> None:
        """Give the fleet the targets of the file and of the store. Called before it runs."""
        async with self._lock:
            if self.fleet.store is not None:
                rows = await self.fleet.store.definitions()
                await self._note(rows)
            if self.file is not None:
                await self.fleet.use_alerts(self.file.alerts)
            self._replace(self.file)

    # The file

    async def check_file(self) -> None:
        """Read the file again if it was changed, and no longer changes."""
        if self.file is None:
            return
        found = await asyncio.to_thread(signature, self.file.path)
        if found == self._tried or found != self._seen:
            self._seen = found
        else:
            await self.reload(BY_FILE)

    async def reload(self, by: str) -> ReplacedTargets | None:
        """Read the file again and apply its targets. A wrong file changes nothing: an event and a
        problem of the fleet say why, and None is returned."""
        async with self._lock:
            before, read = self.file, self._read
            if before is None or read is None:
                return None
            self._tried = await asyncio.to_thread(signature, before.path)
            try:
                file = await asyncio.to_thread(read)
                if file.alert_tables == before.alert_tables:
                    file = replace(file, alerts=before.alerts)
                self._tried = self._seen = file.signature
                await self._make_again(file)
                changes = await self._replace_with_alerts(before, file)
            except Exception as error:  # the file may import modules of the user
                why = _why(error)
                self.fleet.problems[_FILE] = (
                    f"{before.path} was changed, but it is wrong, so the targets from before are "
                    f"still polled: {'; '.join(why.splitlines())}"
                )
                self.fleet.events.emit(FleetReloadFailed(self.fleet.name, str(before.path), why))
                return None
            self.file = file
            self.fleet.problems.pop(_FILE, None)
            if self.applied is not None:
                self.applied(file)
            self._report(changes, by, always=True)
            return changes

    # The store

    async def check_store(self) -> None:
        """Apply definitions that were changed in the store."""
        store = self.fleet.store
        if store is None:
            return
        async with self._lock:
            if await store.definitions_version() == self._version:
                return
            rows = await store.definitions(self._version)
            await self._note(rows)
            names = [each.name for each in rows]
            ours = self._elsewhere()
            # What could not be used before may have been behind one of these.
            again = [name for name in self._wrong if name not in self.fleet and name in self._made]
            for name in again:
                del self._wrong[name]
            fresh = {name: self._made[name] for name in (*names, *again) if name in self._made}
            gone = [each for each in names if each not in self._stored and each in self.fleet]
            gone = self._removable([name for name in gone if name not in ours])
            others = {
                each.name: each
                for each in self.fleet.definitions()
                if each.name not in gone and each.name not in fresh
            }
            wanted = {name: each for name, each in fresh.items() if name not in ours}
            changes = self.fleet.update(self._usable(wanted, others).values(), gone, read=True)
            self._report(changes, ", ".join(sorted({each.by for each in rows if each.by})))

    async def define(
        self,
        given: Mapping[str, Any],
        by: str,
        *,
        new: bool = False,
        version: int | None = None,
    ) -> str:
        """Keep the definition of a target in the store and poll it; returns its name.

        new: refuse a name that exists. version: refuse the change if the definition has another.
        """
        table = checked_table(given)
        tables = self._tables(self.file)
        target = await asyncio.to_thread(tables.read, table)
        name = target.name
        self._refuse_elsewhere(name, "change")
        self.fleet.check(target)
        store = self._store()
        expected = {name: 0} if new else {} if version is None else {name: version}
        try:
            await store.define({name: table}, by, expected)
        except DefinitionConflict:
            if not new:
                raise
            raise TargetConflict(
                f"target {name!r} already exists; change it, or choose another name"
            ) from None
        await self.check_store()
        return name

    async def undefine(self, name: str, by: str, *, version: int | None = None) -> None:
        """Remove a definition from the store, and with it the target."""
        self._refuse_elsewhere(name, "remove")
        store = self._store()
        await self.check_store()
        if name not in self._stored:
            raise NoDefinition(f"this fleet has no target {name!r}")
        behind = self._behind([name])
        if behind:
            raise TargetConflict(
                f"target {behind[0]!r} is behind {name!r}; change or remove that first"
            )
        await store.define({name: None}, by, {} if version is None else {name: version})
        await self.check_store()

    def has(self, name: str) -> bool:
        """True if the store has a definition of this name, as far as this node knows."""
        return name in self._stored

    def defined(self, name: str) -> Defined:
        """The definition of a target."""
        if self.file is not None and name in self.file.tables:
            return Defined(shown_table(self.file.tables[name]))
        found = self._stored.get(name)
        if found is None or found.table is None or name in self._elsewhere():
            return Defined(None)
        return Defined(shown_table(found.table), found.version, found.by, found.at)

    # Helpers

    def _store(self) -> Any:
        store = self.fleet.store
        if store is None:
            raise DefinedElsewhere(
                "targets can only be changed while running if the fleet has a store; start it with "
                "--store sqlite:///fleet.db"
            )
        return store

    def _refuse_elsewhere(self, name: str, what: str) -> None:
        if self.file is not None and name in self.file.tables:
            raise DefinedElsewhere(
                f"target {name!r} is defined in {self.file.path}, which is the truth for it; "
                f"{what} it there: the change is applied within seconds"
            )
        if name in self._elsewhere():
            raise DefinedElsewhere(f"target {name!r} is defined in code; {what} it there")

    def _elsewhere(self) -> set[str]:
        """The names of targets that are not defined by the store."""
        named = set() if self.file is None else set(self.file.tables)
        return named | {each.name for each in self.fleet.definitions("code")}

    def _tables(self, file: FleetFile | None) -> StoredTables:
        groups = {} if file is None else file.group_tables
        tables = StoredTables(self.rules, groups)
        tables.channels = (self.fleet.alerts if file is None else file.alerts).channels
        return tables

    async def _note(self, rows: Iterable[StoredDefinition]) -> None:
        """Read changed definitions; one that cannot be used here changes nothing."""
        rows = list(rows)
        for each in rows:
            self._version = max(self._version, each.version)
            self._wrong.pop(each.name, None)
            if each.table is None:
                self._stored.pop(each.name, None)
                self._made.pop(each.name, None)
            else:
                self._stored[each.name] = each
        await self._make([each for each in rows if each.table is not None], self.file)

    async def _make_again(self, file: FleetFile) -> None:
        """Read all definitions of the store with the groups of another file."""
        self._wrong.clear()
        await self._make(list(self._stored.values()), file)

    async def _make(self, rows: list[StoredDefinition], file: FleetFile | None) -> None:
        tables = self._tables(file)

        def make() -> tuple[dict[str, Target], dict[str, str]]:
            made, wrong = {}, {}
            for each in rows:
                try:
                    made[each.name] = tables.read({**(each.table or {}), "name": each.name})
                except Exception as error:  # written by another version, or by hand
                    wrong[each.name] = _why(error)
            return made, wrong

        if rows:
            made, wrong = await asyncio.to_thread(make)
            self._made |= made
            self._wrong |= wrong
        self._report_unusable()

    def _report_unusable(self) -> None:
        problems = self.fleet.problems
        if not self._wrong:
            problems.pop(_STORE, None)
            return
        listed = "; ".join(f"{name!r}: {why}" for name, why in list(self._wrong.items())[:5])
        count = len(self._wrong)
        text = f"{count} definition(s) of the store cannot be used on this node: {listed}"
        if problems.get(_STORE) != text:
            logger.error(text, extra={"action": "definitions_unusable", "fields": {"count": count}})
        problems[_STORE] = text

    async def _replace_with_alerts(self, before: FleetFile, file: FleetFile) -> ReplacedTargets:
        """Apply the targets and the channels of a changed file, or none of them."""
        if file.alerts is before.alerts:
            return self._replace(file)
        await self.fleet.use_alerts(file.alerts)  # first: targets name its channels
        try:
            return self._replace(file)
        except BaseException:
            await self.fleet.use_alerts(before.alerts)
            raise

    def _replace(self, file: FleetFile | None) -> ReplacedTargets:
        code = self.fleet.definitions("code")
        targets = {each.name: each for each in code}
        for each in () if file is None else file.targets:
            if each.name in targets:
                raise ConfigError(f"target {each.name!r} of the file is also defined in code")
            targets[each.name] = each
        both = [name for name in self._made if name in targets]
        if both:
            listed = ", ".join(map(repr, both[:NAMES_LISTED])) + ", …" * (len(both) > NAMES_LISTED)
            text = f"defined in the file and in the store, so the file is used: {listed}"
            logger.warning(text, extra={"action": "defined_twice", "fields": {"count": len(both)}})
        made = {name: each for name, each in self._made.items() if name not in targets}
        changes = self.fleet.replace((self._usable(made, targets) | targets).values(), read=True)
        self.fleet.maintenance.set_file(() if file is None else file.maintenance)
        alerts = self.fleet.alerts
        if said := unheard(self.fleet.definitions(), alerts.channels, alerts.to):
            logger.warning(said, extra={"action": "alerts_unheard"})
        return changes

    def _usable(
        self, stored: Mapping[str, Target], others: Mapping[str, Target]
    ) -> dict[str, Target]:
        """The targets of the store that this fleet can take, beside these others. One that it
        cannot take is a problem; it does not keep the fleet from polling the others."""
        left: dict[str, Target] = {}
        for name, target in stored.items():
            try:
                self.fleet.check(target, alone=True, read=True)
                left[name] = target
            except (PollwiseError, ImportError) as error:
                self._wrong[name] = _why(error)
        found: dict[str, Target] = {}
        while ready := {
            name: target
            for name, target in left.items()
            if all(parent in others or parent in found for parent in target.behind)
        }:
            found |= ready
            left = {name: target for name, target in left.items() if name not in ready}
        for name, target in left.items():
            parents = ", ".join(map(repr, target.behind))
            self._wrong[name] = f"behind = {parents}: not a target of this fleet, or in a circle"
        self._report_unusable()
        return found

    def _removable(self, names: Sequence[str]) -> list[str]:
        """The targets of these that no other is behind; each of the others is a problem."""
        kept = {parent: name for name in self._behind(names) for parent in self._parents(name)}
        for name in names:
            if name in kept:
                self._wrong[name] = f"it was removed, but target {kept[name]!r} is behind it"
        return [name for name in names if name not in kept]

    def _behind(self, names: Sequence[str]) -> list[str]:
        """The names of targets that are behind one of these and not among them."""
        return [
            each.name
            for each in self.fleet.definitions()
            if each.name not in names and any(name in each.behind for name in names)
        ]

    def _parents(self, name: str) -> tuple[str, ...]:
        return self.fleet.definition(name).behind

    def _report(self, changes: ReplacedTargets, by: str, *, always: bool = False) -> None:
        if changes or always:
            names = (*changes.added, *changes.changed, *changes.removed)[:NAMES_LISTED]
            counts = (len(changes.added), len(changes.changed), len(changes.removed))
            self.fleet.events.emit(FleetTargetsChanged(self.fleet.name, *counts, names, by))


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, ConfigError) else text_of(error)
