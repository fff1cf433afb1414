"""Each example runs as its README says, in a copy of its folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.daemons import PATIENCE

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
COMMAND = re.compile(r"^\$ python (run_\w+\.py)$", re.MULTILINE)
EXTRAS = re.compile(r"pip install '?pollwise(?:\[([\w,]+)\])?")
LINES_MAX = 150
README_LINES_MAX = 10

#: What each must print, in any order.
PRINTED = {
    "build-farm": [
        "put job 1: build of v1",
        "  log: building v1 on ",
        "  log: main.c",
        '  result: {"files":1}',
        "  saved app-v1.tar.gz, ",
        "the file has: ['./main.c']",
    ],
    "data-pipeline": [
        "  transform batch ",
        "  24 readings, 13.25 degrees",
        "merge: done, tell_failure: cancelled",
        "a day failed: ValueError: could not convert string to float: 'broken'",
        "transform: dead, merge: blocked, tell_failure: done",
    ],
    "django-project": [
        "2 rye: 201 {'order': 1}",
        "999 rye: 400 {'error': 'at most 50 loaves'}",
        "'order 1: 2 rye', 'status': 'READY', 'result': None",
        "'order 1: 2 rye', 'status': 'SUCCESSFUL', 'result': '2 rye in 8 minutes'",
        "'order 3: 1 pumpkin', 'status': 'FAILED', 'result': None",
        "the admin lists the jobs of ['bakery.tasks.bake']",
    ],
    "fastapi-shop": [
        "order of grace: 201 {'order': 4}",
        "order of edsger: 402 {'detail': 'above your credit'}",
        "mail to ada: thank you for order 3",
        "mail to grace: thank you for order 4",
        "nightly report: {'orders': 4, 'cents': 4830}",
    ],
    "flask-sync": [
        "-> 202 {'job': '1', 'result': '/thumbnails/1'}",
        "-> 200 {'file': 'thumbnails/320/cat.jpg', 'width': 320}",
        "GET /preview/dog.png  -> 200 {'file': 'thumbnails/50/dog.png', 'width': 50}",
        "-> 500 {'error': 'job 3 of kind thumbnail is dead: cat.txt is not a photo'}",
    ],
    "price-watcher": [
        "changed: lamp changed [prices] · -119.00",
        "opened: lamp: alert: value < 100 [prices] · ",
        "closed: lamp: over: value < 100 [prices] · ",
        "value is 95.00 (< 100)",
    ],
    "sqs-consumer": [
        "mail to ada@example.com: from Java",
        "mail to user19@example.com: hello",
        "from elsewhere: not even JSON",
        "22 jobs done with ",
    ],
}
#: What they must not print: an order that was rolled back has no event, so it has no mail.
NEVER = {"fastapi-shop": "mail to edsger"}


def folders() -> list[Path]:
    return sorted(path.parent for path in EXAMPLES.glob("*/README.md"))


def read(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


def run(name: str, tmp_path: Path) -> str:
    """What the one command of an example prints, without variables of the tests' own servers."""
    copy = tmp_path / name
    shutil.copytree(EXAMPLES / name, copy, ignore=shutil.ignore_patterns("__pycache__"))
    [script] = COMMAND.findall(read(EXAMPLES / name))
    mine = ("AWS_", "POLLWISE_", "DJANGO_", "PYTHONWARNINGS")
    environ = {key: value for key, value in os.environ.items() if not key.startswith(mine)}
    ended = subprocess.run(
        [sys.executable, script],
        cwd=copy,
        env=environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    assert "Traceback" not in ended.stderr, ended.stderr
    left = {each.name for each in copy.iterdir()} - {
        each.name for each in (EXAMPLES / name).iterdir()
    }
    assert left <= {"__pycache__"}, f"the command left files in the folder: {left}"
    return ended.stdout


@pytest.mark.parametrize("name", PRINTED)
def test_the_one_command_of_an_example_does_what_it_says(name: str, tmp_path: Path) -> None:
    printed = run(name, tmp_path)
    missing = [each for each in PRINTED[name] if each not in printed]
    assert not missing, f"{missing} not in:\n{printed}"
    assert name not in NEVER or NEVER[name] not in printed


def test_every_example_is_run_and_listed() -> None:
    names = [folder.name for folder in folders()]
    assert names == sorted(PRINTED)
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for folder in folders():
        [script] = COMMAND.findall(read(folder))
        assert f"[{folder.name}]({folder.name}/)" in table
        assert f"| `python {script}` |" in table, f"{script} is not in the table"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    typed = {path for path in project["tool"]["mypy"]["mypy_path"] if "examples/" in path}
    assert typed == {f"examples/{name}" for name in names}


def test_readmes_name_extras_and_files_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for folder in folders():
        text = read(folder)
        named = {e for extras in EXTRAS.findall(text) for e in extras.split(",") if e}
        assert named <= project["optional-dependencies"].keys(), folder.name
        assert (folder / "requirements.txt").exists() == ("-r requirements.txt" in text)
        for name in re.findall(r"`([\w/]+\.(?:py|toml|sh))`", text):
            assert (folder / name).is_file(), f"{folder.name} has no {name}"


def test_readmes_have_ten_lines() -> None:
    for folder in folders():
        lines = [line for line in read(folder).splitlines() if line and not line.startswith("```")]
        assert len(lines) <= README_LINES_MAX, f"{folder.name}: {len(lines)} lines"


def test_modules_of_examples_are_short() -> None:
    long = [
        f"{path.relative_to(ROOT)} has {count} lines"
        for path in EXAMPLES.rglob("*.py")
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > LINES_MAX
    ]
    assert not long, "\n".join(long)
