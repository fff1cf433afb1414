"""The public names, held: what users type changes only on purpose."""

from __future__ import annotations

import importlib
import inspect
import re
import tomllib
from pathlib import Path

import pytest

import pollwise
import stability
from pollwise import errors

ROOT = Path(__file__).resolve().parent.parent

ROOTS = (errors.PollwiseError, errors.Signal)
ERRORS: list[type[Exception]] = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, ROOTS) and value.__module__ == errors.__name__
]


def test_all_is_sorted_and_complete() -> None:
    now = {
        name
        for name, value in vars(pollwise).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("pollwise.")
    }
    later = set(vars(pollwise)["_HOMES"])  # tests/test_imports.py holds it to what is declared
    assert pollwise.__all__ == sorted(now | later)


def test_each_name_is_there_once() -> None:
    assert len(pollwise.__all__) == len(set(pollwise.__all__))
    things = [getattr(pollwise, name) for name in pollwise.__all__]
    assert len(things) == len({id(thing) for thing in things}), "two names for one thing"


@pytest.mark.parametrize("name", pollwise.__all__)
def test_every_public_name_is_explained(name: str) -> None:
    explained = inspect.getdoc(getattr(pollwise, name))
    assert explained, f"pollwise.{name} has no docstring"


def test_the_root_has_the_base_of_errors_and_what_handlers_raise() -> None:
    at_the_root = {error for error in ERRORS if error.__name__ in pollwise.__all__}
    assert at_the_root == {
        errors.Cancelled,
        errors.PollwiseError,
        errors.Reject,
        errors.Snooze,
    }


# The tree of errors, as the docstring of the module draws it.


def drawn(picture: str) -> dict[str, str | None]:
    """Read a drawn tree: the name on each branch, and the one it hangs from."""
    parents: dict[str, str | None] = {}
    path: list[tuple[int, str]] = []
    for line in picture.splitlines():
        branch = re.match(r"    ([│ ]*[├└]── )?([A-Z]\w+)\b", line)
        if branch is None:
            continue
        depth = len(branch[1] or "")
        while path and path[-1][0] >= depth:
            path.pop()
        assert branch[2] not in parents, f"{branch[2]} is drawn twice"
        parents[branch[2]] = path[-1][1] if path else None
        path.append((depth, branch[2]))
    return parents


def test_a_drawn_tree_is_read() -> None:
    picture = """A tree.

    Root
    ├── Left      some words
    │   └── Leaf  More Words
    └── Right

    Other (remark)
    └── Child
    """
    assert drawn(picture) == {
        "Root": None,
        "Left": "Root",
        "Leaf": "Left",
        "Right": "Root",
        "Other": None,
        "Child": "Other",
    }


def test_the_drawn_tree_is_the_tree_of_classes() -> None:
    def parent(error: type[Exception]) -> str | None:
        above = error.__bases__[0]
        return above.__name__ if issubclass(above, ROOTS) else None

    assert drawn(errors.__doc__ or "") == {error.__name__: parent(error) for error in ERRORS}


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_says_what_it_means(error: type[Exception]) -> None:
    text = vars(error).get("__doc__")
    assert text, f"{error.__name__} has no docstring of its own"
    assert text.rstrip().endswith(".")


@pytest.mark.parametrize("error", ERRORS)
def test_errors_are_errors_and_signals_are_not(error: type[Exception]) -> None:
    assert issubclass(error, errors.PollwiseError) is not issubclass(error, errors.Signal)


def test_the_version_is_a_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", pollwise.__version__)


# What users may rely on.


def _imports_of_docs() -> set[str]:
    """The modules that examples in the docs import from, `pollwise` alone left out."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    found = re.compile(r"^\s*`?(?:from|import) (pollwise\.[\w.]+)", re.MULTILINE)
    return {name for page in pages for name in found.findall(page.read_text(encoding="utf-8"))}


def test_docs_import_from_public_modules_only() -> None:
    public = {name for promise in stability.promises() for name in promise.modules}
    assert _imports_of_docs() - public == set()


@pytest.mark.parametrize("promise", stability.promises(), ids=lambda promise: promise.part)
def test_promises_name_what_there_is(promise: stability.Promise) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(promise.extras) <= set(extras["optional-dependencies"])
    assert promise.tier in stability.TIERS
    for name in promise.modules:
        module = importlib.import_module(name)
        names = stability.public_names(module)
        assert names
        assert all(hasattr(module, each) for each in names)


def test_every_extra_is_named_in_the_docs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = " ".join(page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md"))
    named = {
        each for group in re.findall(r"pollwise\[([\w,]+)\]", texts) for each in group.split(",")
    }
    assert set(project["optional-dependencies"]) == named
