"""`pollwise observe …`: write the dashboards and alert rules that come with Pollwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from pollwise.cli.options import Json
from pollwise.cli.output import print_json, say, visible
from pollwise.errors import ConfigError

app = typer.Typer(
    help="Write dashboards for Grafana and alert rules for Prometheus.\n\n"
    "Example: pollwise observe alerts /etc/prometheus/pollwise",
    no_args_is_help=True,
)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder. Created if missing.")]
Force = Annotated[
    bool, typer.Option("--force", help="Replace existing files that have other content.")
]


@app.command("dashboards")
def dashboards(folder: Folder, force: Force = False, as_json: Json = False) -> None:
    """Write dashboards for Grafana, one JSON file each.

    Example: pollwise observe dashboards /var/lib/grafana/dashboards/pollwise
    """
    from pollwise.observe.dashboards import files

    _write(folder, files(), force=force, as_json=as_json)


@app.command("alerts")
def alerts(
    folder: Folder,
    runbooks: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where you publish the runbooks: alerts link to URL/queue-stuck and so on. "
            "If the name is not at the end of that URL, write {page} where it is. "
            "Without it, alerts link to the files that this command writes.",
        ),
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write alert rules for Prometheus, and a runbook for each alert.

    Example: pollwise observe alerts /etc/prometheus/pollwise --runbooks https://wiki.example/pollwise
    """
    from pollwise.observe.rules import FOLDER, PAGE, files

    if runbooks is None:
        where = f"{(folder.absolute() / FOLDER).as_uri()}/{PAGE}.md"
    elif not runbooks.startswith(("https://", "http://")):
        raise ConfigError(
            f"--runbooks {runbooks!r} must be a URL that begins with https:// or http://"
        )
    else:
        where = runbooks if PAGE in runbooks else f"{runbooks.rstrip('/')}/{PAGE}"
    _write(folder, files(where), force=force, as_json=as_json)


def _write(folder: Path, files: Mapping[str, str], *, force: bool, as_json: bool) -> None:
    """Write all files, or none if one of them would replace something else."""
    try:
        others = [name for name, text in files.items() if _differs(folder / name, text)]
        if others and not force:
            raise ConfigError(
                f"{folder / others[0]} exists with other content"
                + (f", like {len(others) - 1} more" if others[1:] else "")
                + "; give --force to replace it, or another folder"
            )
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror or error}") from error
    if as_json:
        print_json({"written": [str(folder / name) for name in files]})
        return
    for name in files:
        say(visible(str(folder / name)))


def _differs(path: Path, text: str) -> bool:
    return path.exists() and (not path.is_file() or path.read_text("utf-8", "replace") != text)
