"""`pollwise fleet maintenance …`: times in which alerts of some targets are held back."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from pollwise.alerts.windows import MaintenanceWindow, MaintenanceWindows
from pollwise.cli.fleet import opening
from pollwise.cli.fleet.opening import File, Store
from pollwise.cli.options import Json
from pollwise.cli.output import NOTHING, moment, print_json, print_table, say, visible
from pollwise.fleet.control import note
from pollwise.fleet.file import FleetFile, ListedFile
from pollwise.fleet.maintenance import MaintenanceBook, in_words
from pollwise.fleet.stores.base import FleetStore

app = typer.Typer(
    help="Hold alerts back while targets are under maintenance. Polls go on.\n\n"
    "Example: pollwise fleet maintenance add --group shop --for 2h --note upgrade",
    no_args_is_help=True,
)
Id = Annotated[str, typer.Argument(help="The id of a window, as `list` shows it.")]


@app.command("add")
def add(
    target: Annotated[list[str] | None, typer.Option(help="A target; may be repeated.")] = None,
    group: Annotated[list[str] | None, typer.Option(help="A group; may be repeated.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All targets.")] = False,
    every: Annotated[
        str | None, typer.Option(help="When it recurs: 'Sat,Sun 02:00-04:00 Europe/Zurich'.")
    ] = None,
    start: Annotated[
        str | None, typer.Option(help="'2026-12-24 22:00 Europe/Zurich'; now if not given.")
    ] = None,
    end: Annotated[str | None, typer.Option(help="When it ends, written as --start.")] = None,
    lasting: Annotated[
        str | None, typer.Option("--for", help="How long it lasts, instead of --end: 2h.")
    ] = None,
    reason: Annotated[str, typer.Option("--note", help="Why, shown to others.")] = "",
    file: File = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Add a maintenance window, from now on or later, once or recurring.

    Example: pollwise fleet maintenance add --target "front page" --for 2h --store sqlite:///f.db
    """
    given: dict[str, Any] = {
        "targets": target, "groups": group, "all": everything or None, "every": every,
        "start": start, "end": end, "for": lasting, "note": reason or None,
    }  # fmt: skip
    table = {key: each for key, each in given.items() if each is not None}
    settings = opening.settings_for(file, store)
    now = time.time()
    read = opening.viewed_file(settings)

    async def work(opened: FleetStore) -> MaintenanceWindow:
        listed = ListedFile() if read is None else opening.listed(read)
        known = (await opening.take_snapshot(opened, settings, listed)).targets
        groups = {each.group for each in known if each.group is not None}
        window = await _book(opened, read).add(
            table,
            opening.asker(),
            now,
            targets={each.name for each in known},
            groups=groups if read is None else groups | read.groups,
        )
        detail = f"{window.id} {in_words(window, now)} {window.note}".strip()
        await _note(opened, "add", window, detail)
        return window

    window = opening.with_store(settings, work)
    if as_json:
        print_json(window.as_dict(now))
    else:
        said = f"{window.id}: maintenance of {visible(window.whom)} {in_words(window, now)}"
        say(f"{said}. All nodes see it within seconds.")


@app.command("list")
def list_windows(file: File = None, store: Store = None, as_json: Json = False) -> None:
    """List the maintenance windows, and which are under way.

    Example: pollwise fleet maintenance list --store sqlite:///fleet.db
    """
    settings = opening.settings_for(file, store)
    read = opening.viewed_file(settings)
    found = opening.with_store(settings, lambda opened: _book(opened, read).windows())
    now = time.time()
    if as_json:
        print_json([each.as_dict(now) for each in found])
    elif not found:
        say("no maintenance windows")
    else:
        print_table(
            ("id", "for", "state", "when", "note", "by"),
            [
                (
                    each.id,
                    each.whom,
                    _state(each, now),
                    in_words(each, now),
                    each.note or NOTHING,
                    "the file" if each.from_file else each.made_by or NOTHING,
                )
                for each in found
            ],
        )


@app.command("end")
def end_window(id: Id, file: File = None, store: Store = None, as_json: Json = False) -> None:
    """End a window that is under way. A recurring window begins again at its next time.

    Example: pollwise fleet maintenance end m1f2e3d4c --store sqlite:///fleet.db
    """
    settings, now = opening.settings_for(file, store), time.time()
    read = opening.viewed_file(settings)

    async def work(opened: FleetStore) -> MaintenanceWindow:
        window = await _book(opened, read).end(id, now)
        await _note(opened, "end", window, id)
        return window

    window = opening.with_store(settings, work)
    if as_json:
        print_json(window.as_dict(now))
    else:
        again = window.next(now)
        then = "" if again is None else f"; it begins again at {moment(again)}"
        say(f"ended: maintenance of {visible(window.whom)}{then}")


@app.command("remove")
def remove(id: Id, file: File = None, store: Store = None, as_json: Json = False) -> None:
    """Delete a window.

    Example: pollwise fleet maintenance remove m1f2e3d4c --store sqlite:///fleet.db
    """
    settings = opening.settings_for(file, store)
    read = opening.viewed_file(settings)

    async def work(opened: FleetStore) -> MaintenanceWindow:
        window = await _book(opened, read).remove(id)
        await _note(opened, "remove", window, id)
        return window

    window = opening.with_store(settings, work)
    if as_json:
        print_json({"removed": id})
    else:
        say(f"removed: maintenance of {visible(window.whom)}")


def _book(store: FleetStore, read: FleetFile | None) -> MaintenanceBook:
    known = MaintenanceWindows()
    known.set_file(() if read is None else read.maintenance)
    return MaintenanceBook(store, known)


def _state(window: MaintenanceWindow, now: float) -> str:
    until = window.until(now)
    if until is not None:
        return f"under way until {moment(until)}"
    again = window.next(now)
    return "over" if again is None else f"begins {moment(again)}"


async def _note(store: FleetStore, what: str, window: MaintenanceWindow, detail: str) -> None:
    who, where = opening.asker(), "the command line"
    await note(store, who, f"maintenance.{what}", window.whom, detail, where)
