"""`pollwise config …`: every setting, and where it came from."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from pollwise.cli.options import Json
from pollwise.cli.output import print_json, print_table, say, warn
from pollwise.errors import ConfigError, PollwiseError
from pollwise.fleet.file import read
from pollwise.fleet.stores.urls import open_store
from pollwise.platforms import loops
from pollwise.runtime.redact import without_secrets
from pollwise.settings import Settings, load, polling_table
from pollwise.settings.groups import unknown_groups

app = typer.Typer(
    help="Show and check the settings.\n\nExample: pollwise config show", no_args_is_help=True
)

File = Annotated[
    Path | None, typer.Option("--file", help="Instead of ./pollwise.toml or $POLLWISE_CONFIG.")
]


def _with_stored(file: Path | None) -> Settings:
    """The settings, with the changes stored while the fleet ran, if its store can be read."""
    settings, groups = _with_groups(file)
    for each in _unknown_groups(settings, groups):
        warn(each)
    url = settings.fleet.store
    if url is None:
        return settings
    try:
        stored = loops.run(_stored(url))
    except PollwiseError as error:
        warn(f"settings changed while the fleet ran are not shown: {error}")
        return settings
    return load(file, stored=stored, stored_in=without_secrets(url), groups=groups or ())


async def _stored(url: str) -> dict[str, Any]:
    store = open_store(url, create=False)
    path = getattr(store, "path", None)
    try:
        # The file is created when the fleet first runs: nothing was changed yet.
        return {} if path is not None and not path.exists() else await store.settings()
    finally:
        await store.close()


def _with_groups(file: Path | None) -> tuple[Settings, frozenset[str] | None]:
    """The settings, and the fleet's groups: None if not needed, or if its file is unreadable."""
    settings = load(file, runs="*")
    path = Path(settings.fleet.file)
    if not settings.fleet.groups or not path.exists():
        return settings, None
    try:
        groups = read(path, for_views=True).groups
    except PollwiseError:  # `pollwise fleet check` shows what is wrong with it
        return settings, None
    return load(file, groups=groups), groups


def _unknown_groups(settings: Settings, groups: frozenset[str] | None) -> list[str]:
    """Problems: settings for groups that no target is in. Empty if the groups are unknown."""
    if groups is None:
        return []
    return unknown_groups(settings.fleet.groups, groups, settings.origins())


@app.command("show")
def show(file: File = None, as_json: Json = False) -> None:
    """Show every setting, its value and where it came from.

    Example: pollwise config show --json
    """
    rows = _with_stored(file).table()
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        ("setting", "value", "from"),
        [(r.key, r.value, r.origin if r.used else f"{r.origin} (unused)") for r in rows],
    )


@app.command("check")
def check(file: File = None, as_json: Json = False) -> None:
    """Check the settings: exit code 0 if they are valid, 2 with all problems if not.

    Example: pollwise config check --file pollwise.toml
    """
    settings, groups = _with_groups(file)
    wrong = _unknown_groups(settings, groups)
    if wrong:
        raise ConfigError("\n".join(wrong))
    if as_json:
        print_json({"valid": True, "polling": repr(settings.worker.polling)})
        return
    say(("The settings are valid. Polling:", "green"))
    say(polling_table(settings.worker.polling).strip())
    if settings.is_set("outbox"):
        say(polling_table(settings.outbox.polling, "outbox.polling").strip())
    if settings.is_set("fleet.polling"):
        say(polling_table(settings.fleet.polling, "fleet.polling").strip())
