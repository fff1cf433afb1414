"""SQL files beside the code that runs them, read once: named statements and migrations.

A statement begins with `-- name: <name>`; comments that describe it may follow.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib import resources

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
#: A value in a statement: `:name`.
VALUE = re.compile(r"(?<!:):(\w+)")


@cache
def statements(package: str) -> dict[str, str]:
    """The named statements in a package's `statements.sql`, by name."""
    text = (resources.files(package) / "statements.sql").read_text("utf-8")
    parts = _NAME.split(text)[1:]
    return {
        name: _without_comments(body) for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


@cache
def migrations(package: str) -> tuple[tuple[int, str], ...]:
    """The migrations in a package as (version, script), in order."""
    folder = resources.files(package)
    files = sorted(f.name for f in folder.iterdir() if re.match(r"\d{4}_\w+\.sql$", f.name))
    return tuple((int(name[:4]), (folder / name).read_text("utf-8")) for name in files)


def needed_version(package: str, optional: Sequence[int]) -> int:
    """The newest version that the code of a package cannot do without."""
    return max(version for version, _ in migrations(package) if version not in optional)


@cache
def numbered(statement: str) -> tuple[str, tuple[str, ...]]:
    """The statement with `$1` for the values, as Postgres wants it; and their names in order."""
    names = tuple(dict.fromkeys(VALUE.findall(statement)))
    return VALUE.sub(lambda found: f"${names.index(found[1]) + 1}", statement), names


def incomplete_record(table: str, found: Sequence[int], package: str) -> str:
    """Advice for tables that exist although their record of versions, `table`, lacks them."""
    has = f"it has {', '.join(map(str, found))}" if found else "it has none"
    missing = ", ".join(f"({v})" for v, _ in migrations(package) if v not in found)
    fix = f"INSERT INTO {table} (version) VALUES {missing};"  # noqa: S608 - shown, never run
    return (
        f"The tables exist already, but the record of their versions, {table}, is incomplete: "
        f"{has}. Restore its rows from a backup; or, if the tables were up to date, run {fix}"
    )


def _without_comments(body: str) -> str:
    lines = [line for line in body.strip().splitlines() if not line.startswith("--")]
    return "\n".join(lines).strip().rstrip(";")
