"""Every public name has a type that each type checker reads alike.

pyright says so of a package that is marked by `py.typed`. The public names are those of
docs/reference/stability.md. Of a class, its members without an underscore count, and so does all
that a public name refers to: a parameter whose class has an attribute without an annotation is not
known completely.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import stability

PROGRAMS = Path(sys.executable).parent
#: How many symbols of each kind a failure names.
NAMED_MAX = 40
UNANNOTATED = "is missing type annotation"


@dataclass
class Public:
    """The public names: where they can be imported from, and where they are defined."""

    names: set[str] = field(default_factory=set)
    homes: set[str] = field(default_factory=set)
    classes: set[str] = field(default_factory=set)

    def __contains__(self, symbol: str) -> bool:
        return symbol in self.names or symbol in self.homes or self._is_member(symbol)

    def _is_member(self, symbol: str) -> bool:
        parts = symbol.split(".")
        for number in range(1, len(parts)):
            if ".".join(parts[:number]) in self.classes:
                return not any(re.match("_(?!_)", part) for part in parts[number:])
        return False


@pytest.fixture(scope="module")
def public() -> Public:
    found = Public()
    for promise in stability.promises():
        for name in promise.modules:
            module = importlib.import_module(name)
            for each in stability.public_names(module):
                found.names.add(f"{name}.{each}")
                value = getattr(module, each)
                if inspect.isclass(value) or inspect.isfunction(value):
                    home = f"{value.__module__}.{value.__qualname__}"
                    found.homes.add(home)
                    if inspect.isclass(value):
                        found.classes.add(home)
    return found


@pytest.fixture(scope="module")
def symbols(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What pyright knows of each symbol of the package, as users see it: installed."""
    folder = tmp_path_factory.mktemp("types")  # outside of the tree, which has its own settings
    (folder / "pyrightconfig.json").write_text("{}")
    path = os.pathsep.join((str(PROGRAMS), os.environ.get("PATH", "")))
    command = [str(PROGRAMS / "basedpyright"), "--verifytypes", "pollwise", "--ignoreexternal"]
    done = subprocess.run(
        [*command, "--outputjson"],
        cwd=folder,
        env={**os.environ, "PATH": path, "VIRTUAL_ENV": sys.prefix},
        capture_output=True,
        text=True,
    )
    assert done.stdout, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    return found


def test_every_public_name_is_in_the_report(public: Public, symbols: list[dict[str, Any]]) -> None:
    assert public.names - {symbol["name"] for symbol in symbols} == set()


def test_the_type_of_every_public_symbol_is_known(
    public: Public, symbols: list[dict[str, Any]]
) -> None:
    wrong = [each for each in symbols if not each["isTypeKnown"] or each["isTypeAmbiguous"]]
    unknown = [each["name"] for each in wrong if each["name"] in public]
    classes = {each["name"] for each in symbols if each["category"] == "class"}
    reasons = [told(each) for each in wrong if is_attribute_without_annotation(each, classes)]
    assert not unknown, (
        f"{len(unknown)} public symbols have no type that all type checkers read alike.\n"
        + listed("Attributes without an annotation, also of classes inside", reasons)
        + listed("Public symbols, which refer to such attributes or are such", unknown)
    )


def is_attribute_without_annotation(symbol: dict[str, Any], classes: set[str]) -> bool:
    return symbol["name"].rpartition(".")[0] in classes and any(
        UNANNOTATED in each["message"] for each in symbol["diagnostics"]
    )


def told(symbol: dict[str, Any]) -> str:
    place = symbol["diagnostics"][0]
    return f"{symbol['name']} ({Path(place['file']).name}:{place['range']['start']['line'] + 1})"


def listed(title: str, lines: list[str]) -> str:
    if not lines:
        return ""
    more = [] if len(lines) <= NAMED_MAX else [f"and {len(lines) - NAMED_MAX} more"]
    return "\n  ".join((f"{title}:", *sorted(lines)[:NAMED_MAX], *more)) + "\n"
