"""`pollux config …`: every setting, and where it came from."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pollux.cli.output import print_json, print_table, say
from pollux.settings import load, polling_table

app = typer.Typer(help="Look at the settings.\n\nExample: pollux config show", no_args_is_help=True)

File = Annotated[
    Path | None, typer.Option("--file", help="Instead of ./pollux.toml or $POLLUX_CONFIG.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command("show")
def show(file: File = None, as_json: Json = False) -> None:
    """Show every setting, its value and where it came from.

    Example: pollux config show --json
    """
    rows = load(file).table()
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        ("setting", "value", "from"),
        [(r.key, r.value, r.origin if r.used else f"{r.origin} (unused)") for r in rows],
    )


@app.command("check")
def check(file: File = None, as_json: Json = False) -> None:
    """Check the settings: exit code 0 when they are good, 2 with every problem when not.

    Example: pollux config check --file pollux.toml
    """
    settings = load(file)
    if as_json:
        print_json({"valid": True, "polling": repr(settings.worker.polling)})
        return
    say(("The settings are good. Polling:", "green"))
    say(polling_table(settings.worker.polling).strip())
    if settings.is_set("outbox"):
        say(polling_table(settings.outbox.polling, "outbox.polling").strip())
