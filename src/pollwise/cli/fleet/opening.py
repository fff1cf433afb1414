"""Opens a fleet for the commands: its file, its settings and its store."""

from __future__ import annotations

import gc
import shlex
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import typer

from pollwise.alerts.values import PAGE_MAX, AlertFilter
from pollwise.cli.fleet.views import FleetSnapshot
from pollwise.cli.output import fail, warn
from pollwise.cli.running import import_from_here
from pollwise.errors import ConfigError, SchemaError, did_you_mean
from pollwise.fleet.definitions.stored import ANYTHING, StoredTables
from pollwise.fleet.file import (
    FleetFile,
    FleetFileError,
    ListedFile,
    ListedTarget,
    list_file,
    read,
)
from pollwise.fleet.stores.base import FleetStore
from pollwise.fleet.stores.urls import open_store
from pollwise.fleet.targets import Target
from pollwise.fleet.views import UNKNOWN, Definition, TargetState, states
from pollwise.platforms import loops
from pollwise.platforms.users import who_am_i
from pollwise.runtime.redact import without_secrets
from pollwise.settings import Settings, load
from pollwise.settings.groups import unknown_groups

T = TypeVar("T")

File = Annotated[Path | None, typer.Option("--file", help="File of targets; default fleet.toml.")]
Store = Annotated[
    str | None, typer.Option("--store", help="Store of the fleet's state: sqlite:///fleet.db")
]

#: The default file of targets.
FILE = "fleet.toml"


def chosen(file: Path | None, store: str | None) -> dict[str, object]:
    return {"fleet.file": None if file is None else str(file), "fleet.store": store}


def settings_for(file: Path | None, store: str | None) -> Settings:
    return load(overrides=chosen(file, store))


def store_of(settings: Settings) -> FleetStore:
    url = settings.fleet.store
    if url is None:
        raise ConfigError(
            "no store is given, and without one only the polling process knows the state of the "
            "fleet; give --store sqlite:///fleet.db, here and to `pollwise fleet run`"
        )
    return open_store(url, create=False)


def with_store(settings: Settings, work: Callable[[FleetStore], Awaitable[T]]) -> T:
    async def main() -> T:
        store = store_of(settings)
        try:
            return await work(store)
        finally:
            await store.close()

    return loops.run(main())


@contextmanager
def collector_paused() -> Iterator[None]:
    """Leave out garbage collections: they take a third of the time while 100,000 targets are made,
    and find nothing."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def read_checked(
    settings: Settings,
    overrides: Mapping[str, object],
    otherwise: str = "",
    *,
    for_views: bool = False,
    before: FleetFile | None = None,
) -> FleetFile:
    """The file of targets; if the file or a group in the settings is wrong, the error ends with
    `otherwise`. for_views, before: as for `read`."""
    import_from_here()
    try:
        with collector_paused():
            found = read(settings.fleet.file, for_views=for_views, before=before)
    except FleetFileError as error:
        raise ConfigError(f"{error}\n{otherwise}".rstrip()) from None
    groups = load(overrides=overrides, groups=found.groups)
    wrong = unknown_groups(groups.fleet.groups, found.groups, groups.origins())
    if wrong:
        raise ConfigError("\n".join([*wrong, otherwise]).rstrip())
    return found


def has_file(settings: Settings) -> bool:
    """False if there is no file of targets and none was named: all targets are in the store."""
    return settings.is_set("fleet.file") or Path(settings.fleet.file).exists()


def viewed_file(settings: Settings) -> FleetFile | None:
    """The file of targets, to show what is in it; None if there is no file and none was named.

    A wrong file is only a warning: the store still has the state of what runs.
    """
    if not has_file(settings):
        return None
    import_from_here()
    try:
        return read(settings.fleet.file, for_views=True)
    except FleetFileError as error:
        warn(f"{error}\nSo only the targets in the store are used.")
        return None


def listed_file(settings: Settings) -> ListedFile:
    """The targets and groups of the file, to show them; empty without a file."""
    found = list_file(settings.fleet.file) if has_file(settings) else None
    if found is None:
        whole = viewed_file(settings)  # which says what is wrong with it
        found = ListedFile() if whole is None else listed(whole)
    return found


def listed(file: FleetFile) -> ListedFile:
    """What is shown of a file that was read."""
    rows = [
        ListedTarget(each.name, each.type, each.group, each.timeout, each.behind)
        for each in file.targets
    ]
    return ListedFile(tuple(rows), file.group_tables)


async def stored_targets(
    store: FleetStore, groups: Mapping[str, Mapping[str, Any]]
) -> list[Target]:
    """The targets that are defined in the store, to show them. groups: those of the file."""
    rows = await store.definitions()
    if not rows:
        return []
    tables = StoredTables(ANYTHING, groups, for_views=True)
    found = []
    for each in rows:
        try:
            found.append(tables.read({**(each.table or {}), "name": each.name}))
        except ConfigError:  # the nodes report it
            found.append(Target(each.name, UNKNOWN, origin="api"))
    return found


async def take_snapshot(store: FleetStore, settings: Settings, file: ListedFile) -> FleetSnapshot:
    saved, pending = await store.load(), await store.pending()
    nodes = await store.nodes()
    named = {each.name for each in file.targets}
    defined = await stored_targets(store, file.groups)
    targets: tuple[Definition, ...] = (
        *file.targets,
        *(each for each in defined if each.name not in named),
    )
    now = time.time()
    given = settings.fleet
    words = ["--store", without_secrets(given.store or "")]
    if given.file != FILE:
        words = ["--file", given.file, *words]
    start = f"pollwise fleet run {shlex.join(words)}"
    return FleetSnapshot(start, states(targets, saved, now, pending), now, nodes)


async def _with_alerts(
    store: FleetStore, settings: Settings, taken: FleetSnapshot
) -> FleetSnapshot:
    """The snapshot with the number of open alerts, and of notices that could not be sent."""
    outbox = store.outbox() if store.keeps_alerts else None
    if outbox is None:
        return taken
    unsent = 0
    try:
        with suppress(SchemaError):  # a fleet without channels has no outbox
            unsent = (await outbox.stats()).dead
    finally:
        await outbox.close()
    found = await store.alerts(AlertFilter("open", limit=PAGE_MAX))
    base, _, query = without_secrets(settings.fleet.store or "").partition("?")
    kept = [pair for pair in query.split("&") if pair and not pair.startswith("fleet=")]
    box = f"{base}?{'&'.join([*kept, f'outbox={quote(outbox.name)}'])}"
    return replace(taken, alerts=len(found.alerts), unsent=unsent, outbox=box)


def snapshot_of(
    settings: Settings, file: ListedFile | None = None, *, alerts: bool = False
) -> FleetSnapshot:
    """The state of the fleet now. file: its file, if it was read already. alerts: count its alerts
    too, if its store keeps them."""
    with collector_paused():
        return _snapshot_of(settings, file, alerts=alerts)


def _snapshot_of(settings: Settings, file: ListedFile | None, *, alerts: bool) -> FleetSnapshot:
    shown = listed_file(settings) if file is None else file

    async def work(store: FleetStore) -> FleetSnapshot:
        taken = await take_snapshot(store, settings, shown)
        return await _with_alerts(store, settings, taken) if alerts else taken

    return with_store(settings, work)


def asker() -> str:
    """The user and host of this command, for the log of the node that carries out an order."""
    return f"{who_am_i()}@{socket.gethostname()}"


def named(targets: Iterable[TargetState], name: str) -> TargetState:
    known = {each.name: each for each in targets}
    found = known.get(name)
    if found is None:
        hint = did_you_mean(name, known, "")
        fail(f"this fleet has no target {name!r}{hint and f'; {hint}'}")
        raise typer.Exit(1)
    return found
