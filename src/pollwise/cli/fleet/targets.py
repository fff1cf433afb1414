"""`pollwise fleet add|set|remove|diff`: targets that are defined in the store."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

import typer

from pollwise.cli.fleet import opening
from pollwise.cli.fleet.opening import File, Store
from pollwise.cli.options import Json
from pollwise.cli.output import fail, print_json, say, visible, warn
from pollwise.cli.running import import_from_here
from pollwise.errors import ConfigError, did_you_mean
from pollwise.fleet.control import note, note_order
from pollwise.fleet.definitions.comparing import compared
from pollwise.fleet.definitions.stored import StoredRules, StoredTables, checked_table
from pollwise.fleet.definitions.table import WrongDefinition
from pollwise.fleet.file import FleetFile, FleetFileError, ListedFile, read
from pollwise.fleet.stores.base import FleetStore
from pollwise.fleet.stores.definitions import DefinitionConflict, StoredDefinition
from pollwise.fleet.stores.urls import open_store
from pollwise.platforms import loops
from pollwise.settings import Settings

Name = Annotated[str, typer.Argument(help="The name of the target.")]
Pairs = Annotated[
    list[str] | None,
    typer.Argument(help="Keys as in fleet.toml: type=http url=https://… labels.team=shop"),
]
APPLIED = "All polling nodes apply it within seconds, or at their next start."


def add(
    name: Name, pairs: Pairs = None, file: File = None, store: Store = None, as_json: Json = False
) -> None:
    """Define a target in the store. Its keys and their checks are those of fleet.toml.

    A value is text, or a TOML value: 5, true, [200, 404].

    Example: pollwise fleet add "front page" type=http url=https://shop.example/ interval=30s
    """
    settings = opening.settings_for(file, store)
    table = checked_table({"name": name, **tables_of(pairs or [])})

    async def work(opened: FleetStore) -> None:
        checker = Checker(settings)
        checker.check([table])
        checker.refuse_file(name, "change")
        try:
            await opened.define({name: table}, by_command(), {name: 0})
        except DefinitionConflict:
            raise ConfigError(
                f"target {name!r} already exists in the store; change it with `pollwise fleet set`"
            ) from None
        await _note(opened, "add", name, table)

    with_made_store(settings, work)
    _report(name, "added", as_json)


def set_keys(
    name: Name, pairs: Pairs = None, file: File = None, store: Store = None, as_json: Json = False
) -> None:
    """Change keys of a target that is defined in the store. KEY= without a value removes a key.

    Example: pollwise fleet set "front page" interval=1m labels.team=
    """
    settings = opening.settings_for(file, store)
    changes = tables_of(pairs or [], removing=True)
    if not changes:
        raise ConfigError("name the keys to change: interval=1m, or KEY= to remove one")

    async def work(opened: FleetStore) -> None:
        checker = Checker(settings)
        checker.refuse_file(name, "change")
        found = _stored(await opened.definitions(), name)
        table = checked_table({**_merged(found.table or {}, changes), "name": name})
        checker.check([table])
        await opened.define({name: table}, by_command(), {name: found.version})
        await _note(opened, "set", name, changes)

    opening.with_store(settings, work)
    _report(name, "changed", as_json)


def remove(
    names: Annotated[list[str], typer.Argument(help="Names of targets.")],
    file: File = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Remove targets that are defined in the store, and the state of targets that are gone.

    Example: pollwise fleet remove "old page" --store sqlite:///fleet.db
    """
    settings = opening.settings_for(file, store)
    checker = Checker(settings)
    for name in names:
        checker.refuse_file(name, "delete")

    async def work(opened: FleetStore) -> None:
        defined = {each.name: each.version for each in await opened.definitions()}
        snapshot = await opening.take_snapshot(opened, settings, ListedFile())
        for name in names:
            opening.named(snapshot.targets, name)
        ours = {name: defined[name] for name in names if name in defined}
        if ours:
            await opened.define(dict.fromkeys(ours), by_command(), ours)
        await opened.remove(names)
        await note_order(opened, opening.asker(), "remove", names, "the command line")

    opening.with_store(settings, work)
    if as_json:
        print_json({"removed": names})
    else:
        say(f"removed: {', '.join(map(visible, names))}")


def diff(file: File = None, store: Store = None, as_json: Json = False) -> None:
    """Compare the file and the definitions of the store with what is polled.

    Exit code 0 if nothing differs, 1 if something does. Secrets are not compared.

    Example: pollwise fleet diff --store sqlite:///fleet.db
    """
    settings = opening.settings_for(file, store)
    found = _file(settings)

    async def work(opened: FleetStore) -> tuple[Any, bool]:
        groups = {} if found is None else found.group_tables
        wanted = {each.name: each for each in await opening.stored_targets(opened, groups)}
        listed = {} if found is None else {each.name: each for each in found.targets}
        nodes = await opened.nodes()
        return compared(listed, wanted, await opened.load()), nodes == []

    changes, unpolled = opening.with_store(settings, work)
    if as_json:
        print_json({"same": not changes, **changes.as_dict()})
    else:
        if unpolled:
            warn("no node polls this fleet; this compares with what was polled last")
        for sign, names in (("+", changes.added), ("-", changes.removed)):
            for name in names:
                say(f"{sign} {visible(name)}")
        for name, keys in changes.changed.items():
            say(f"~ {visible(name)}: {visible(', '.join(keys))}")
        for name in changes.twice:
            say(f"! {visible(name)}: in the file and in the store; the file is used")
        if not changes:
            say("nothing differs")
    if changes:
        raise typer.Exit(1)


class Checker:
    """Checks definitions as the polling nodes do, by the settings and the file here."""

    def __init__(self, settings: Settings) -> None:
        given = settings.fleet
        self._path = given.file
        self.file: FleetFile | None = _file(settings)
        groups = {} if self.file is None else self.file.group_tables
        rules = StoredRules.of(given.api_may_run, given.api_variables, given.api_min_interval)
        self._tables = StoredTables(rules, groups, for_views=True)
        if self.file is not None:
            self._tables.channels = self.file.alert_tables.get("channel", {})

    def check(self, tables: list[Mapping[str, Any]]) -> None:
        """Raise ConfigError with everything that is wrong."""
        problems: list[str] = []
        for table in tables:
            try:
                self._tables.read(table)
            except WrongDefinition as error:
                problems += error.problems
        if problems:
            raise ConfigError("\n".join([*problems, "Nothing was changed."]))

    def refuse_file(self, name: str, what: str) -> None:
        if self.file is not None and name in self.file.tables:
            raise ConfigError(
                f"{name!r} is {'still ' if what == 'delete' else ''}in {self._path}; {what} it "
                "there: a running fleet applies the change within seconds"
            )


def _file(settings: Settings) -> FleetFile | None:
    if not opening.has_file(settings):
        return None
    import_from_here()
    try:
        return read(settings.fleet.file, for_views=True)
    except FleetFileError as error:
        raise ConfigError(f"{error}\nNothing was changed.") from None


def with_made_store(settings: Settings, work: Callable[[FleetStore], Awaitable[None]]) -> None:
    """As `opening.with_store`, but a missing file is created."""
    opening.store_of(settings)  # raises if no store is given

    async def main() -> None:
        store = open_store(settings.fleet.store or "")
        try:
            await work(store)
        finally:
            await store.close()

    loops.run(main())


def tables_of(pairs: list[str], *, removing: bool = False) -> dict[str, Any]:
    """The table that KEY=VALUE words describe; a dot in a key leads into a table.

    >>> tables_of(["type=http", "labels.team=shop", "expect=[200, 404]", "verify=false"])
    {'type': 'http', 'labels': {'team': 'shop'}, 'expect': [200, 404], 'verify': False}
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        path = key.split(".")
        if not equals or not all(path):
            raise ConfigError(f"{key!r} is not KEY=VALUE; write for example interval=30s")
        if text == "" and not removing:
            raise ConfigError(f"{key} has no value; write {key}=VALUE, or {key}='\"\"' for no text")
        table = found
        for each in path[:-1]:
            table = table.setdefault(each, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{key} contradicts another key; give a value or a table")
        table[path[-1]] = None if text == "" else _value(text)
    return found


def _value(text: str) -> Any:
    """A TOML value, else the text itself."""
    try:
        found = tomllib.loads(f"x = {text}")["x"] if "\n" not in text else text
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    if isinstance(found, float) and not math.isfinite(found):
        return text
    return found if isinstance(found, (str, bool, int, float, list, dict)) else text


def _merged(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A table with changes; None removes a key, and tables are changed key by key."""
    merged = dict(table)
    for key, each in changes.items():
        before = merged.get(key)
        if isinstance(each, dict):
            inner = _merged(before if isinstance(before, dict) else {}, each)
            if inner:
                merged[key] = inner
            else:
                merged.pop(key, None)
        elif each is None:
            merged.pop(key, None)
        else:
            merged[key] = each
    return merged


def _stored(rows: list[StoredDefinition], name: str) -> StoredDefinition:
    known = {each.name: each for each in rows}
    if name not in known:
        hint = did_you_mean(name, known, "")
        fail(f"the store has no definition of {name!r}{hint and f'; {hint}'}")
        raise typer.Exit(1)
    return known[name]


def by_command() -> str:
    return f"cli: {opening.asker()}"


async def _note(store: FleetStore, what: str, name: str, table: Mapping[str, Any]) -> None:
    keys = ", ".join(sorted(table))  # values may be secret
    await note(store, opening.asker(), f"target.{what}", repr(name), keys, "the command line")


def _report(name: str, what: str, as_json: bool) -> None:
    if as_json:
        print_json({what: name})
    else:
        say(f"{what}: {visible(name)}. {APPLIED}")
