"""The tree of commands: each can be found, explains itself, and speaks JSON."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import pollwise as package
from pollwise.cli.app import app
from tests.cli.console import PATIENCE, good, plain, pollwise

URL = "sqlite:///jobs.db"


def tree(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every group and command, with the words that lead to it."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from tree(inner, (*path, name))


TREE = dict(tree(typer.main.get_command(app)))
COMMANDS = {path: command for path, command in TREE.items() if not hasattr(command, "commands")}


def name_of(path: tuple[str, ...]) -> str:
    return " ".join(path) or "pollwise"


def test_the_commands_of_the_design_are_there() -> None:
    assert {name_of(path) for path in COMMANDS} == {
        "demo", "poll", "worker", "doctor", "web",
        "queue put", "queue stats", "queue list", "queue show", "queue result", "queue cancel",
        "queue retry", "queue drop", "queue migrate", "queue pause", "queue resume", "queue export",
        "queue close-breaker",
        "queue workers", "queue running", "queue set-concurrency", "queue top", "queue history",
        "queue limits", "queue set-limits", "queue remove-limits", "queue flow",
        "outbox run", "outbox stats", "outbox blocked", "outbox dead", "outbox retry",
        "outbox drop", "outbox prune", "outbox migrate", "outbox list", "outbox show",
        "outbox relays", "outbox replay", "outbox release", "outbox export", "outbox history",
        "observe alerts", "observe dashboards",
        "config show", "config check", "keys new", "keys list", "keys use",
        "serve run", "serve token create", "serve token list", "serve token revoke",
        "serve token rotate", "serve attempts", "serve log", "agent",
        "fleet run", "fleet check", "fleet status", "fleet top", "fleet dead", "fleet retry",
        "fleet close-breaker", "fleet pause", "fleet resume", "fleet add", "fleet set",
        "fleet remove", "fleet diff", "fleet migrate",
        "fleet history", "fleet alerts", "fleet ack", "fleet test-channel",
        "fleet maintenance add",
        "fleet maintenance list", "fleet maintenance end", "fleet maintenance remove",
        "lab stats", "lab synth", "lab record", "lab compare", "lab tune", "lab cost",
        "lab until",
        "schedule add", "schedule list", "schedule pause", "schedule resume", "schedule remove",
        "schedule run",
    }  # fmt: skip


@pytest.mark.parametrize("path", TREE, ids=name_of)
def test_help_has_an_example_that_names_the_command(path: tuple[str, ...]) -> None:
    for option in ("--help", "-h"):
        result = good(*path, option)
        assert result.err == ""
        (example,) = re.findall(r"Example: (.*)", plain(result.out))
        words = shlex.split(example)
        assert words[: len(path) + 1] == ["pollwise", *path]


@pytest.mark.parametrize("path", COMMANDS, ids=name_of)
def test_the_example_ends_the_help(path: tuple[str, ...]) -> None:
    """The reference shows the example as a block of code; a sentence after it would be in there."""
    _, example = (COMMANDS[path].help or "").split("Example: ")
    assert "\n\n" not in example.strip()


@pytest.mark.parametrize("path", COMMANDS, ids=name_of)
def test_every_argument_and_option_is_explained(path: tuple[str, ...]) -> None:
    for parameter in COMMANDS[path].params:
        assert parameter.help, f"{name_of(path)}: {parameter.name} has no help"


@pytest.mark.parametrize("path", COMMANDS, ids=name_of)
def test_facts_come_as_json_too(path: tuple[str, ...]) -> None:
    options = {option for parameter in COMMANDS[path].params for option in parameter.opts}
    # What runs until it is stopped tells its facts by logs and metrics; a result is always JSON.
    others = path in {
        ("worker",), ("agent",), ("web",), ("serve", "run"), ("outbox", "run"),
        ("outbox", "export"),
        ("queue", "export"),
        ("fleet", "run"), ("queue", "result"), ("poll",),
    }  # fmt: skip
    assert ("--json" in options) == (not others)


@pytest.mark.parametrize("path", [(), ("queue",), ("config",), ("lab",)], ids=name_of)
def test_a_group_alone_lists_its_commands(path: tuple[str, ...]) -> None:
    result = pollwise(*path)
    assert result.code == 2
    for name in TREE[path].commands:
        assert re.search(rf"^│ {name} ", plain(result.out + result.err), re.MULTILINE)


def test_version() -> None:
    assert good("--version").out == f"pollwise {package.__version__}\n"


def test_python_m_pollwise_is_pollwise(folder: Path) -> None:
    for program in (
        [sys.executable, "-m", "pollwise"],
        [str(Path(sys.executable).parent / "pollwise")],
    ):
        run = subprocess.run(
            [*program, "--version"], capture_output=True, text=True, timeout=PATIENCE
        )
        assert (run.returncode, run.stdout) == (0, f"pollwise {package.__version__}\n")


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["wroker"], "worker"), (["queue", "stat"], "stats"), (["queue", "lst"], "list")],
)
def test_a_misspelt_command_is_recognised(words: list[str], meant: str) -> None:
    result = pollwise(*words)
    assert (result.code, result.out) == (2, "")
    assert f"Did you mean '{meant}'" in plain(result.err)


@pytest.mark.parametrize("path", COMMANDS, ids=name_of)
def test_an_unknown_option_is_refused(path: tuple[str, ...], folder: Path) -> None:
    result = pollwise(*path, "--no-such-option")
    assert (result.code, result.out) == (2, "")
    assert "No such option: --no-such-option" in plain(result.err)
    assert "Traceback" not in result.err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "path", [p for p in COMMANDS if any(q.required for q in COMMANDS[p].params)], ids=name_of
)
def test_a_missing_argument_is_named(path: tuple[str, ...]) -> None:
    result = pollwise(*path)
    assert (result.code, result.out) == (2, "")
    assert "Missing argument" in plain(result.err)


def test_json_is_one_document_on_standard_output() -> None:
    assert good("queue", "put", URL, "greet", "--json").json() == {"id": "1"}
    assert good("queue", "stats", URL, "--json").json()["ready"] == 1
    assert len(good("queue", "list", URL, "--json").json()) == 1
    assert good("queue", "show", URL, "1", "--json").json()["kind"] == "greet"
    assert good("queue", "list", URL, "--state", "dead", "--json").json() == []
    assert good("queue", "retry", URL, "--all", "--json").json() == {"retried": 0}
    assert good("queue", "drop", URL, "--all", "--json").json() == {"dropped": 0}
    assert good("config", "show", "--json").json()[0]["key"] == "worker.queue"
    assert good("config", "check", "--json").json()["valid"] is True
    assert good("doctor", URL, "--json").json()[0]["check"] == "python"


def test_a_warning_does_not_disturb_the_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLLWISE_POLL_INTERVAL", "200ms")
    result = good("config", "show", "--json")
    assert result.json()
    assert result.err.startswith("warning: ")
    assert "POLLWISE_POLLING_INTERVAL=200ms" in result.err
    assert result.err.count("\n") == 1


def test_without_an_encoding_for_it_text_is_still_shown() -> None:
    good("queue", "put", URL, "größe", '"日本"')
    listed = pollwise("queue", "list", URL, "--json", encoding="ascii")
    assert listed.json()[0]["payload"] == "日本"
    assert listed.json()[0]["kind"] == "größe"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_that_leaves_is_no_error(options: list[str]) -> None:
    good("queue", "put", URL, "greet")
    readable, writable = os.pipe()
    os.close(readable)
    run = subprocess.run(
        [sys.executable, "-m", "pollwise", "queue", "list", URL, *options],
        stdout=writable,
        stderr=subprocess.PIPE,
        timeout=PATIENCE,
    )
    os.close(writable)
    assert (run.returncode, run.stderr) == (0, b"")
