"""`pollwise keys …`: make, list and choose the keys that encrypt payloads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pollwise.cli.options import Json
from pollwise.cli.output import print_json, print_table, say, visible
from pollwise.runtime.payloads.keys import Key, Keys

app = typer.Typer(
    help="Make and list the keys that encrypt payloads.\n\n"
    "Example: pollwise keys new /etc/pollwise/keys",
    no_args_is_help=True,
)

KeyFile = Annotated[Path, typer.Argument(help="The key file. Only its owner may read it.")]


@app.command("new")
def new(
    file: KeyFile,
    decrypt_only: Annotated[
        bool,
        typer.Option(
            "--decrypt-only",
            help="Do not encrypt with it yet: first give the file to every process, then `use` it.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Add a random key to a key file, and create the file if it is missing. Prints only the id.

    Example: pollwise keys new /etc/pollwise/keys --decrypt-only
    """
    key = Key.new(decrypt_only=decrypt_only)
    keys = Keys.from_file(file).with_key(key) if file.exists() else Keys((key,), f"{file}")
    keys.save(file)
    print_json({"id": key.id}) if as_json else say(key.id)


@app.command("list")
def list_keys(file: KeyFile, as_json: Json = False) -> None:
    """List the ids of the keys in a key file, and which one encrypts. Shows no key.

    Example: pollwise keys list /etc/pollwise/keys
    """
    keys = Keys.from_file(file)
    newest = keys.newest.id
    if as_json:
        print_json([{"id": key.id, "encrypts": key.id == newest} for key in keys.keys])
        return
    rows = [(key.id, "encrypts" if key.id == newest else "decrypts") for key in keys.keys]
    print_table(("id", "use"), rows)


@app.command("use")
def use(
    file: KeyFile,
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The key's id.")],
    as_json: Json = False,
) -> None:
    """Encrypt with this key from now on. The others still decrypt.

    Running processes go on with their old key until they restart or need the new one.

    Example: pollwise keys use /etc/pollwise/keys 2026-11-16-1f2e
    """
    Keys.from_file(file).used(key_id).save(file)
    print_json({"id": key_id}) if as_json else say(visible(key_id), " encrypts now")
