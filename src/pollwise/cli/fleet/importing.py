"""`pollwise fleet import`: targets of other monitors, for a file or for the store."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pollwise.cli.fleet import opening
from pollwise.cli.fleet.opening import Store
from pollwise.cli.fleet.targets import APPLIED, Checker, by_command, with_made_store
from pollwise.cli.options import Json
from pollwise.cli.output import print_json, say, visible, warn
from pollwise.errors import ConfigError
from pollwise.fleet.control import note_order
from pollwise.fleet.definitions.imports import blackbox, gatus, kuma
from pollwise.fleet.definitions.imports.carried import ImportedTargets, loaded
from pollwise.fleet.definitions.imports.written import written
from pollwise.fleet.stores.base import FleetStore
from pollwise.fleet.stores.definitions import DefinitionConflict
from pollwise.fleet.views import counted_targets


class Monitor(StrEnum):
    """The monitors whose targets can be imported."""

    kuma = "uptime-kuma"
    gatus = "gatus"
    blackbox = "blackbox"


def import_targets(
    export: Annotated[Path, typer.Argument(metavar="FILE", help="The export of the monitor.")],
    monitor: Annotated[
        Monitor,
        typer.Option(
            "--from",
            help="uptime-kuma: its backup (JSON). gatus: config.yaml. blackbox: scrape "
            "configuration of Prometheus, or a list of targets (file_sd).",
        ),
    ],
    to: Annotated[Path | None, typer.Option("--to", help="Write a new file of targets.")] = None,
    modules: Annotated[
        Path | None, typer.Option(help="For blackbox: the exporter's blackbox.yml.")
    ] = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Import the targets of another monitor; without --to and --store, print them as fleet.toml.

    What cannot be carried over is listed, target by target.

    Example: pollwise fleet import backup.json --from uptime-kuma --to fleet.toml
    """
    if to is not None and store is not None:
        raise ConfigError("give --to for a file, or --store for the store, not both")
    found = _read(export, monitor, modules)
    if not found.tables:
        raise ConfigError("\n".join([*map(visible, found.notes), f"{export} has no usable target"]))
    if to is not None:
        _write(to, found)
    elif store is not None:
        _put(store, found)
    for each in found.notes:
        warn(visible(each))
    names = [each["name"] for each in found.tables]
    if as_json:
        print_json({"imported": names, "notes": found.notes})
    elif to is not None:
        count = counted_targets(len(names))
        say(f"{count} written to {to}; check it with `pollwise fleet run --file {to}`")
    elif store is not None:
        say(f"{counted_targets(len(names))} put into the store. {APPLIED}")
    else:
        typer.echo(written(found.tables), nl=False)


def _read(export: Path, monitor: Monitor, modules: Path | None) -> ImportedTargets:
    if modules is not None and monitor is not Monitor.blackbox:
        raise ConfigError("--modules is only for --from blackbox")
    content = loaded(export)
    try:
        if monitor is Monitor.kuma:
            return kuma.imported(content)
        if monitor is Monitor.gatus:
            return gatus.imported(content)
        return blackbox.imported(content, None if modules is None else loaded(modules))
    except ConfigError as error:
        raise ConfigError(f"{export}: {error}") from None


def _write(to: Path, found: ImportedTargets) -> None:
    """Write a new file that only its owner can read: an export may contain passwords."""
    try:
        descriptor = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(written(found.tables))
    except FileExistsError:
        raise ConfigError(f"{to} already exists; name a new file, and copy from it") from None
    except OSError as error:
        raise ConfigError(f"{to} cannot be written: {error.strerror}") from None


def _put(store: str, found: ImportedTargets) -> None:
    settings = opening.settings_for(None, store)
    tables = {each["name"]: each for each in found.tables}
    checker = Checker(settings)
    groups = () if checker.file is None else checker.file.groups
    unknown: dict[str, None] = {}
    for each in tables.values():
        if groups and each.get("group") not in (None, *groups):  # groups are in the file
            group = each.pop("group")
            each["labels"] = {**each.get("labels", {}), "group": group}
            unknown[group] = None
    found.notes.extend(
        f"group {each!r} is not in {settings.fleet.file}: its targets have no group, and {each!r} "
        "as their label 'group'"
        for each in unknown
    )
    for name in tables:
        checker.refuse_file(name, "change")
    checker.check(list(tables.values()))

    async def work(opened: FleetStore) -> None:
        try:
            await opened.define(tables, by_command(), dict.fromkeys(tables, 0))
        except DefinitionConflict as error:
            listed = ", ".join(map(repr, error.names[:5])) + ", …" * (len(error.names) > 5)
            raise ConfigError(
                f"already in the store: {listed}; remove them first. Nothing was changed."
            ) from None
        await note_order(opened, opening.asker(), "import", list(tables), "the command line")

    with_made_store(settings, work)
