"""No module imports from a layer above its own.

The layers, and the imports that are forbidden besides, are in `architecture.toml`, from which the
picture in the docs and the map in CONTRIBUTING are made as well.

Every import counts: at the top of a module, inside a function, behind `TYPE_CHECKING`, and as
`import_module("pollwise.x")`. A type-only import counts too, because its reader has to know the
other layer. Only the purity of core ignores it, since it never runs: a `Random` may be the type of
an argument.

Parts of one layer may import each other, but not in a circle. Imports on first use and imports for
types alone make no circle.

`pollwise/__init__.py`, `codecs.py`, `events.py`, `history.py`, `strategies.py` and `__main__.py`
belong to no layer: they collect what users import.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "pollwise"

TABLE = tomllib.loads((ROOT / "architecture.toml").read_text("utf-8"))
RANK = {part: rank for rank, layer in enumerate(TABLE["layers"]) for part in layer["parts"]}
OUTSIDE = (
    "pollwise", "pollwise.__main__", "pollwise.codecs", "pollwise.events", "pollwise.history",
    "pollwise.strategies"
)  # fmt: skip
ALSO_FORBIDDEN = {
    (importer, imported): rule["why"]
    for rule in TABLE["forbidden"]
    for importer in rule["from"]
    for imported in rule["to"]
}

# Decisions are arithmetic: time and random numbers are arguments of core.
IMPURE = {
    *("asyncio", "concurrent", "contextvars", "multiprocessing", "queue", "sched", "threading"),
    *("calendar", "time", "zoneinfo"),
    *("random", "secrets", "uuid"),
    *("logging", "syslog", "warnings"),
    *("ctypes", "fcntl", "fileinput", "getpass", "glob", "importlib", "io", "locale", "mmap"),
    *("os", "pathlib", "pickle", "platform", "shelve", "shutil", "signal", "sqlite3"),
    *("subprocess", "tempfile"),
    *("ftplib", "http", "select", "selectors", "smtplib", "socket", "socketserver", "ssl"),
    *("urllib", "xmlrpc"),
}
IMPURE_CALLS = frozenset({"open", "print", "input", "exec", "eval", "__import__"})
IMPURE_METHODS = frozenset({"now", "utcnow", "today"})


@dataclass(frozen=True)
class Import:
    """One import statement, resolved."""

    importer: str
    imported: str
    line: int
    types_only: bool
    deferred: bool


def sources() -> dict[str, str]:
    """Every module of the package by name; the file of a package is named `….__init__`."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(("pollwise", *path.relative_to(PACKAGE).with_suffix("").parts))
        found[name] = path.read_text(encoding="utf-8")
    return found


def without_init(module: str) -> str:
    return module.removesuffix(".__init__")


def is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"


def walk(
    node: ast.AST, types_only: bool = False, deferred: bool = False
) -> Iterator[tuple[ast.AST, bool, bool]]:
    """Every node below; whether only type checkers see it; whether it runs only when called."""
    deferred = deferred or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    for field, value in ast.iter_fields(node):
        hidden = types_only or (
            isinstance(node, ast.If) and field == "body" and is_type_checking(node.test)
        )
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child, hidden, deferred
                yield from walk(child, hidden, deferred)


def imports_of(module: str, source: str) -> Iterator[Import]:
    importer = without_init(module)
    for node, types_only, deferred in walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".")[: -node.level]
                base = ".".join([*package, base] if base else package)
            if base == "pollwise":  # `from pollwise import core`, or a public name
                names = [f"pollwise.{a.name}" if a.name in RANK else "pollwise" for a in node.names]
            else:
                names = [base]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            value = node.args[0].value
            if called in {"import_module", "__import__"} and isinstance(value, str):
                names = [value]
        for name in names:
            yield Import(importer, name, getattr(node, "lineno", 0), types_only, deferred)


def unit_of(module: str) -> str | None:
    """The part of Pollwise that a module belongs to: `pollwise.core.strategies.fixed` is in
    `core`.
    """
    parts = module.split(".")
    return parts[1] if parts[0] == "pollwise" and len(parts) > 1 else None


def layer_problem(found: Import) -> str | None:
    importer, imported = unit_of(found.importer), unit_of(found.imported)
    assert importer is not None
    if imported is None:
        if RANK[importer] == RANK["cli"]:
            return None
        return "below cli, import from the module that defines a name, not from the package"
    if imported not in RANK:
        return f"{imported} is not in architecture.toml"
    if RANK[imported] > RANK[importer]:
        allowed = ", ".join(unit for unit, rank in RANK.items() if rank < RANK[importer])
        return f"{importer} may import {allowed or 'nothing'}, and its own layer; never above it"
    return ALSO_FORBIDDEN.get((importer, imported))


def purity_problem(found: Import) -> str | None:
    top = found.imported.split(".")[0]
    if found.types_only or top == "pollwise":
        return None
    if top in IMPURE:
        return "core has no clock, randomness, logging or I/O: pass what it needs as an argument"
    if top not in sys.stdlib_module_names:
        return "core needs no package but the standard library"
    return None


def impure_calls(module: str, source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            called = node.func.id
        elif isinstance(node.func, ast.Attribute) and node.func.attr in IMPURE_METHODS:
            called = node.func.attr
        else:
            continue
        yield (
            f"{without_init(module)}:{node.lineno} calls {called}(): "
            "core has no clock and no I/O: pass what it needs as an argument"
        )


def cycles(edges: Mapping[str, set[str]]) -> Iterator[str]:
    """Parts that import each other. Within a layer, too, arrows point one way."""
    reach = {unit: set(direct) for unit, direct in edges.items()}
    for middle in reach:
        for unit in reach:
            if middle in reach[unit]:
                reach[unit] |= reach[middle]
    for unit in sorted(reach):
        for other in sorted(reach[unit]):
            if unit < other and unit in reach.get(other, ()):
                yield f"{unit} imports {other} and {other} imports {unit}: arrows point one way"


def problems(modules: Mapping[str, str]) -> list[str]:
    """Everything in these modules (name → source) that breaks the architecture."""
    found: list[str] = []
    edges: dict[str, set[str]] = {}
    for module, source in modules.items():
        if without_init(module) in OUTSIDE:
            continue
        unit = unit_of(without_init(module))
        if unit is None or unit not in RANK:
            found.append(f"{without_init(module)} is not in architecture.toml: add it there")
            continue
        for each in imports_of(module, source):
            rules = []
            if each.imported.split(".")[0] == "pollwise":
                rules.append(layer_problem(each))
                imported = unit_of(each.imported)
                if imported and imported != unit and not (each.types_only or each.deferred):
                    edges.setdefault(unit, set()).add(imported)
            if unit == "core":
                rules.append(purity_problem(each))
            found += [
                f"{each.importer}:{each.line} imports {each.imported}: {rule}"
                for rule in rules
                if rule
            ]
        if unit == "core":
            found += impure_calls(module, source)
    return found + list(cycles(edges))


def test_every_arrow_points_the_right_way() -> None:
    modules = sources()
    assert "pollwise.core.__init__" in modules, f"no package found under {PACKAGE}"
    broken = problems(modules)
    assert not broken, "\n".join(["the architecture is broken:", *broken])


def test_the_table_lists_the_parts_that_exist() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    outside = {name.removeprefix("pollwise.") for name in OUTSIDE}
    assert set(RANK) == (modules | packages) - outside
    named = {part for pair in ALSO_FORBIDDEN for part in pair}
    assert named <= set(RANK), "a forbidden import names a part that does not exist"


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        (
            "pollwise.core.strategies.fixed",
            "import pollwise.runtime.loop",
            "pollwise.core.strategies.fixed:1 imports pollwise.runtime.loop:",
        ),
        (
            "pollwise.core.strategies.fixed",
            "from pollwise import runtime",
            "imports pollwise.runtime: core may import",
        ),
        (
            "pollwise.core.strategies.fixed",
            "from ...runtime import poll",
            "imports pollwise.runtime: core may import",
        ),
        ("pollwise.core.__init__", "from .. import runtime", "imports pollwise.runtime: core may"),
        (
            "pollwise.core.strategies.fixed",
            "def f():\n  from pollwise.runtime.clock import Clock",
            "fixed:2 imports",
        ),
        ("pollwise.core.strategies.fixed", "import time", "imports time: core has no clock"),
        (
            "pollwise.core.strategies.fixed",
            "from random import Random",
            "imports random: core has no clock",
        ),
        (
            "pollwise.core.strategies.fixed",
            "import logging.handlers",
            "imports logging.handlers: core has no",
        ),
        ("pollwise.core.strategies.fixed", "import numpy", "imports numpy: core needs no package"),
        (
            "pollwise.core.strategies.fixed",
            "import datetime as d\nd.datetime.now()",
            "fixed:2 calls now()",
        ),
        (
            "pollwise.core.strategies.fixed",
            "open('x')",
            "pollwise.core.strategies.fixed:1 calls open()",
        ),
        ("pollwise.errors", "from pollwise.core import Pause", "imports pollwise.core: errors may"),
        (
            "pollwise.runtime.loop",
            "from pollwise.queues.base import Queue",
            "imports pollwise.queues.base:",
        ),
        (
            "pollwise.queues.sqlite.queue",
            "from pollwise.worker import Worker",
            "imports pollwise.worker:",
        ),
        ("pollwise.queues.sqlite.queue", "import pollwise", "imports pollwise: below cli"),
        ("pollwise.queues.base", "from importlib import import_module as _\n_()", None),
        (
            "pollwise.queues.base",
            "import_module('pollwise.cli')",
            "imports pollwise.cli: queues may",
        ),
        ("pollwise.settings", "from pollwise.worker import Worker", "settings imports queues"),
        ("pollwise.worker", "from pollwise.observe import prometheus", "imports pollwise.observe:"),
        ("pollwise.testing.faults", "from pollwise.lab import replay", "nothing above worker"),
        (
            "pollwise.lab.replay.engine",
            "from pollwise.cli import main",
            "imports pollwise.cli: lab may",
        ),
        ("pollwise.utils", "", "pollwise.utils is not in architecture.toml"),
        ("pollwise.cli.app", "import pollwise.helpers", "helpers is not in architecture.toml"),
        (
            "pollwise.runtime.loop",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  from pollwise.cli import x",
            "pollwise.runtime.loop:3 imports pollwise.cli: runtime may import",
        ),
        (
            "pollwise.core.jitter",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  from random import Random",
            None,
        ),
        (
            "pollwise.core.strategies.fixed",
            "from pollwise.durations import seconds\nimport math",
            None,
        ),
        (
            "pollwise.core.strategies.fixed",
            "from .outcome import Outcome\nfrom ..errors import X",
            None,
        ),
        ("pollwise.runtime.loop", "from pollwise.runtime.clock import Clock\nimport asyncio", None),
        ("pollwise.testing.faults", "from pollwise.worker import Worker", None),
        ("pollwise.cli.worker", "import pollwise\nfrom pollwise.testing import x", None),
        ("pollwise.__init__", "from pollwise.cli import main", None),
        ("pollwise.__main__", "from pollwise.cli import main", None),
    ],
)
def test_a_reversed_arrow_is_seen(module: str, source: str, expected: str | None) -> None:
    broken = problems({module: source})
    if expected is None:
        assert broken == []
    else:
        assert len(broken) == 1
        assert expected in broken[0]


def test_parts_of_one_layer_do_not_import_each_other_in_a_circle() -> None:
    broken = problems(
        {
            "pollwise.worker.run": "from pollwise.outbox.relay import Relay",
            "pollwise.outbox.relay": "from pollwise.fleet.fleet import Fleet",
            "pollwise.fleet.fleet": "from pollwise.worker.run import WorkerRun",
        }
    )
    assert broken
    assert all("arrows point one way" in each for each in broken)


def test_an_import_on_first_use_makes_no_circle() -> None:
    broken = problems(
        {
            "pollwise.durations": "from pollwise.errors import ConfigError",
            "pollwise.errors": "def f():\n  from pollwise.durations import seconds",
        }
    )
    assert broken == []
