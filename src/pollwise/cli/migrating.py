"""Shared by `pollwise queue migrate`, `pollwise outbox migrate` and `pollwise fleet migrate`."""

from __future__ import annotations

from typing import Annotated

import typer

from pollwise.cli.output import print_json, say
from pollwise.errors import ConfigError
from pollwise.runtime.redact import without_secrets

Sql = Annotated[bool, typer.Option("--sql", help="Only print the SQL, to run it elsewhere.")]


def print_sql(sql: str | None, url: str, *, as_json: bool) -> None:
    if sql is None:
        raise ConfigError(f"{without_secrets(url)} has no SQL to print: it needs no migration")
    print_json({"sql": sql}) if as_json else say(sql.rstrip("\n"))


def print_applied(versions: list[int], *, as_json: bool, by_itself: bool = False) -> None:
    """Print which migrations ran. by_itself: the store creates what it needs on first use."""
    if as_json:
        print_json({"applied": versions})
    elif versions:
        many = f"{len(versions)} migration{'s' * (len(versions) > 1)}"
        say(f"applied {many}: the tables are at version {max(versions)}")
    elif by_itself:
        say("nothing to do: this store creates what it needs on first use")
    else:
        say("nothing to do: the tables are up to date")
