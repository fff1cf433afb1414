"""How the commands of a fleet look at it: its file, its settings, and what its store has."""

from __future__ import annotations

import asyncio
import difflib
import getpass
import os
import shlex
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import typer

from pollwise.cli.fleet.views import FleetSnapshot
from pollwise.cli.output import fail, warn
from pollwise.cli.running import import_from_here
from pollwise.errors import ConfigError
from pollwise.fleet.file import FleetFile, FleetFileError, read
from pollwise.fleet.report import states
from pollwise.fleet.stores.base import FleetStore
from pollwise.fleet.stores.urls import open_store
from pollwise.fleet.targets import Target
from pollwise.fleet.views import TargetState
from pollwise.runtime.redact import without_secrets
from pollwise.settings import Settings, load
from pollwise.settings.groups import unknown_groups

T = TypeVar("T")

#: What needs not be named.
FILE = "fleet.toml"


def chosen(file: Path | None, store: str | None) -> dict[str, object]:
    return {"fleet.file": None if file is None else str(file), "fleet.store": store}


def settings_for(file: Path | None, store: str | None) -> Settings:
    return load(overrides=chosen(file, store))


def store_of(settings: Settings) -> FleetStore:
    url = settings.fleet.store
    if url is None:
        raise ConfigError(
            "no store is named, and without one only the process that polls knows how a fleet "
            "fares; give --store sqlite:///fleet.db, here and to `pollwise fleet run`"
        )
    return open_store(url, create=False)


def with_store(settings: Settings, work: Callable[[FleetStore], Awaitable[T]]) -> T:
    async def main() -> T:
        store = store_of(settings)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(main())


def read_for(settings: Settings, overrides: Mapping[str, object], otherwise: str) -> FleetFile:
    """The file of targets; when it, or a group of the settings, is wrong, `otherwise` says what
    that led to."""
    import_from_here()
    try:
        found = read(settings.fleet.file)
    except FleetFileError as error:
        raise ConfigError(f"{error}\n{otherwise}") from None
    groups = load(overrides=overrides, groups=found.groups)
    wrong = unknown_groups(groups.fleet.groups, found.groups, groups.origins())
    if wrong:
        raise ConfigError("\n".join([*wrong, otherwise]))
    return found


def targets_of(settings: Settings) -> tuple[Target, ...]:
    """The targets of the file; none where there is no file, and nobody named one.

    A file that is wrong stops nobody from looking at what runs: then the store has to do.
    """
    if not settings.is_set("fleet.file") and not Path(settings.fleet.file).exists():
        return ()
    import_from_here()
    try:
        found: FleetFile = read(settings.fleet.file)
    except FleetFileError as error:
        warn(f"{error}\nSo only what the store has is known.")
        return ()
    return found.targets


async def looked(
    store: FleetStore, settings: Settings, targets: tuple[Target, ...]
) -> FleetSnapshot:
    saved = await store.load()
    nodes = await store.nodes()
    now = time.time()
    given = settings.fleet
    words = ["--store", without_secrets(given.store or "")]
    if given.file != FILE:
        words = ["--file", given.file, *words]
    start = f"pollwise fleet run {shlex.join(words)}"
    return FleetSnapshot(start, states(targets, saved, now), now, nodes)


def look_at(settings: Settings) -> FleetSnapshot:
    targets = targets_of(settings)
    return with_store(settings, lambda store: looked(store, settings, targets))


def asker() -> str:
    """Who gives orders here, for the log of whoever carries them out."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def named(targets: Any, name: str) -> TargetState:
    known = {each.name: each for each in targets}
    found = known.get(name)
    if found is None:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        fail(f"there is no target {name!r} in this fleet{hint}")
        raise typer.Exit(1)
    assert isinstance(found, TargetState)  # noqa: S101 - for the type checker
    return found
