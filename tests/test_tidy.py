"""House rules that no linter knows: sizes, names, plain English, loose ends, hosts, sleeping."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

from tests.conftest import LONG

ROOT = Path(__file__).resolve().parent.parent
LINES_MAX = 700
FILES_MAX = 14
NOT_OURS = {
    ".git", ".venv", ".venv-peers", "site", "build", "dist", "htmlcov", "__pycache__",
    ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache",
}  # fmt: skip

# Put together here, so that this file does not contain what it looks for.
LOOSE_ENDS = ("TO" + "DO", "FIX" + "ME")
CONFLICTS = ("<<<<" + "<<< ", ">>>>" + ">>> ")
OLD_NAME = "pol" + "lux"
REGISTRY_HOSTS = ("py" + "pi.org", "python" + "hosted.org", "npm" + "js.org", "npm" + "js.com")


#: How paths of the machines begin that the project was made on.
MACHINE_PATHS = ("/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/", "/tmp/pollwise-")

#: Turns of phrase that a reader whose second language is English has to read twice.
OLD_DIALECT = re.compile(
    r"\b(?:whoever|whomever|anew|shall|mend(?:s|ed|ing)?|so many|in vain|fares?|"
    r"(?<!there )(?:is|are|was|were) (?:told|no (?!longer\b|more\b|such\b|one\b)\w+)|"
    r"(?:tells?|told) of|(?:sees?|seen) to|at the (?:most|least))\b",
    re.IGNORECASE,
)
PLAIN = {
    "whoever": "anyone who, or the caller",
    "anew": "again",
    "shall": "will, or must",
    "so many": "a number of",
    "at the most": "at most",
    "at the least": "at least",
}


@cache
def files() -> tuple[Path, ...]:
    """The files of the project: what git tracks or would, else what lies in the tree."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
        found = [ROOT / name for name in listed.decode().split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        found = [path for path in ROOT.rglob("*") if not NOT_OURS & {*path.relative_to(ROOT).parts}]
    return tuple(sorted(path for path in found if path.is_file()))


def texts(*suffixes: str, under: str = "") -> Iterator[tuple[str, str]]:
    """Path (from the root) and text of each file; those that are not text are left out."""
    for path in files():
        if path.is_relative_to(ROOT / under) and (not suffixes or path.suffix in suffixes):
            try:
                yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def lines_with(words: tuple[str, ...], text: str) -> Iterator[tuple[int, str]]:
    pattern = re.compile("|".join(map(re.escape, words)))
    for number, line in enumerate(text.splitlines(), 1):
        found = pattern.search(line)
        if found:
            yield number, found[0]


def test_modules_are_small_enough_to_read_at_a_sitting() -> None:
    long = [
        f"{name} has {count} lines: split it (the limit is {LINES_MAX})"
        for name, text in texts(".py", under="src")
        if (count := len(text.splitlines())) > LINES_MAX
    ]
    assert not long, "\n".join(long)


def test_folders_are_small_enough_to_see_at_a_glance() -> None:
    names = Counter(
        str(path.parent.relative_to(ROOT)) for path in files() if path.is_relative_to(ROOT / "src")
    )
    full = [f"{name} has {count} files" for name, count in names.items() if count > FILES_MAX]
    assert not full, "\n".join([f"give these folders rooms (the limit is {FILES_MAX}):", *full])


def test_a_package_says_what_lives_there() -> None:
    silent = [
        name
        for name, text in texts(".py", under="src")
        if name.endswith("__init__.py") and not ast.get_docstring(ast.parse(text))
    ]
    assert not silent, f"no docstring that says what lives there: {', '.join(silent)}"


# Names


def classes(sources: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Every class and the modules that define one of that name; underscores do not count."""
    found: dict[str, list[str]] = {}
    for name, text in sources:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name.strip("_"), []).append(name)
    return found


def are_siblings(modules: Sequence[str]) -> bool:
    """True if the modules lie in sibling folders: `storage/redis/…` and `storage/postgres/…`."""
    folders = [PurePosixPath(module).parent for module in modules]
    return len(set(folders)) == len(modules) and len({folder.parent for folder in folders}) == 1


def shared_names(sources: Iterable[tuple[str, str]]) -> list[str]:
    return [
        f"{name} is a class in {', '.join(modules)}"
        for name, modules in sorted(classes(sources).items())
        if len(modules) > 1 and not are_siblings(modules)
    ]


def test_a_class_name_means_one_thing() -> None:
    shared = shared_names(texts(".py", under="src"))
    assert not shared, "\n".join(["only sibling backends may share a class name:", *shared])


@pytest.mark.parametrize(
    ("modules", "shared"),
    [
        (("queues/redis/queue.py", "queues/sqlite/queue.py"), False),
        (("queues/redis/queue.py", "queues/sqlite/store.py"), False),
        (("queues/redis/queue.py", "queues/redis/store.py"), True),
        (("queues/redis/queue.py", "outbox/redis/store.py"), True),
        (("queues/queue.py", "queues/redis/queue.py"), True),
        (("queues/redis/queue.py",), False),
        (("queues/redis/queue.py", "queues/redis/queue.py"), True),
    ],
)
def test_a_shared_class_name_is_seen(modules: tuple[str, ...], shared: bool) -> None:
    assert bool(shared_names((module, "class Thing: pass") for module in modules)) is shared


# Plain English


def dialect(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        found = OLD_DIALECT.search(line)
        if found:
            yield number, found[0]


def test_texts_are_plain_english() -> None:
    found = [
        f"{name}:{number} says {words!r}: write {PLAIN.get(words.lower(), 'it plainly')}"
        for name, text in texts(".py", ".md", ".sql", ".lua", ".toml")
        if name.startswith(("src/", "docs/", "README", "CONTRIBUTING", "scripts/"))
        for number, words in dialect(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("Whoever polls takes it.", True),
        ("X is no job", True),
        ("is no longer there", False),
        ("there is no job", False),
        ("at the most ten", True),
        ("at most ten", False),
        ("what it is told", True),
        ("the controller sees to it", True),
        ("nothing to say", False),
    ],
)
def test_the_old_dialect_is_seen(text: str, seen: bool) -> None:
    assert bool(list(dialect(text))) is seen


def test_no_loose_ends() -> None:
    found = [
        f"{name}:{number} says {word}: finish it, or write it down outside the tree"
        for name, text in texts()
        for number, word in lines_with(LOOSE_ENDS, text)
    ]
    assert not found, "\n".join(found)


def test_no_conflict_of_a_merge_is_left() -> None:
    found = [
        f"{name}:{number} has {mark!r}: choose a side, and delete the marks"
        for name, text in texts()
        for number, mark in lines_with(CONFLICTS, text)
    ]
    assert not found, "\n".join(found)


def test_the_old_name_of_the_project_is_gone() -> None:
    found = [
        f"{name}:{number} has the old name: the project is called pollwise"
        for name, text in texts()
        for number, line in enumerate([name, *text.splitlines()])
        if OLD_NAME in line.lower()
    ]
    assert not found, "\n".join(found)


def test_no_package_registry_is_named() -> None:
    found = [
        f"{name}:{number} names {host}: whoever installs decides where packages come from"
        for name, text in texts()
        for number, host in lines_with(REGISTRY_HOSTS, text)
    ]
    assert not found, "\n".join(found)


def test_no_path_of_a_machine_is_committed() -> None:
    found = [
        f"{name}:{number} has the path of a machine, {path}…: print none"
        for name, text in texts()
        if not name.startswith("tests/")
        for number, path in lines_with(MACHINE_PATHS, text)
    ]
    assert not found, "\n".join(found)


def test_requirements_hold_versions_and_hashes_and_no_address() -> None:
    names = {name for name, _ in texts(".txt", under="requirements")}
    assert {"requirements/demo.txt", "requirements/dev.txt"} <= names
    for name, text in texts(".txt", under="requirements"):
        for number, word in lines_with(("://", "index-url", "find-links"), text):
            pytest.fail(f"{name}:{number} holds an address ({word}): run `make lock`")
        for requirement in re.findall(r"^[a-z0-9].*(?:\n    .*)*", text, re.MULTILINE):
            assert "==" in requirement, f"{name}: not pinned: {requirement}"
            assert "--hash=sha256:" in requirement, f"{name}: without a hash: {requirement}"


def test_the_demo_installs_the_versions_the_tests_run_with() -> None:
    def pins(name: str) -> set[str]:
        text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
        return set(re.findall(r"^([a-z0-9][^ ;]*==[^ ;]*)", text, re.MULTILINE))

    assert pins("demo.txt") <= pins("dev.txt")


def real_sleeps(source: str) -> Iterator[tuple[int, str]]:
    """Calls that wait on the real clock.

    `time.sleep` always does. `asyncio.sleep(0)` only yields; with another
    argument it is fine in a file that imports something virtual (the virtual
    clock, or a helper that runs on it), where sleeping takes no time. What must
    wait for another process says why, in a comment on the line:
    `# real time: the child is starting`.
    """
    if "sleep" not in source:
        return
    lines = source.splitlines()
    tree = ast.parse(source)
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    virtual = any("virtual" in ast.unparse(node).lower() for node in imports)
    for each in imports:
        if isinstance(each, ast.ImportFrom) and each.module in {"time", "asyncio"}:
            if any(alias.name == "sleep" for alias in each.names):
                yield each.lineno, f"from {each.module} import sleep"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or re.search(r"# real time: \w", lines[node.lineno - 1]):
            continue
        called = ast.unparse(node.func)
        if called == "time.sleep":
            yield node.lineno, ast.unparse(node)
        elif called == "asyncio.sleep" and not virtual:
            wait = node.args[0] if node.args else None
            if not (isinstance(wait, ast.Constant) and wait.value == 0):
                yield node.lineno, ast.unparse(node)


def test_tests_do_not_sleep_on_the_real_clock() -> None:
    found = [
        f"{name}:{number} {what}: use the virtual clock, or wait for an event with a deadline"
        for name, text in texts(".py", under="tests")
        for number, what in real_sleeps(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("import time\ntime.sleep(0.1)", True),
        ("from time import sleep", True),
        ("import asyncio\nasync def f(): await asyncio.sleep(0.1)", True),
        ("import asyncio\nasync def f(n): await asyncio.sleep(n)", True),
        ("import asyncio\nasync def f(): await asyncio.sleep(0)", False),
        ("import time\ntime.sleep(0.1)  # real time: the child is starting", False),
        ("import time\ntime.sleep(0.1)  # real time:", True),
        ("from pollwise.testing import VirtualClock\nasync def f(): await asyncio.sleep(9)", False),
        ("from pollwise.testing import VirtualClock\ntime.sleep(9)", True),
    ],
)
def test_a_sleeping_test_is_seen(source: str, seen: bool) -> None:
    assert bool(list(real_sleeps(source))) is seen


def test_the_files_that_run_first_exist() -> None:
    assert [name for name in LONG if not (ROOT / "tests" / f"{name}.py").is_file()] == []
