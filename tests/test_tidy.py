"""House rules that no linter knows, kept by a test: size, loose ends, hosts, sleeping."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINES_MAX = 500
NOT_OURS = {
    ".git", ".venv", ".venv-peers", "site", "build", "dist", "htmlcov", "__pycache__",
    ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache",
}  # fmt: skip

# Put together here, so that this file does not contain what it looks for.
LOOSE_ENDS = ("TO" + "DO", "FIX" + "ME")
OLD_NAME = "pol" + "lux"
REGISTRY_HOSTS = ("py" + "pi.org", "python" + "hosted.org", "npm" + "js.org", "npm" + "js.com")


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


def test_no_loose_ends() -> None:
    found = [
        f"{name}:{number} says {word}: finish it, or write it down outside the tree"
        for name, text in texts()
        for number, word in lines_with(LOOSE_ENDS, text)
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
