"""`pollux doctor`: ok, note and bad, and no job is changed."""

from __future__ import annotations

import importlib.util
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from pollux.cli import doctor
from pollux.hints import Hints
from tests.cli.console import Result, files, good, pollux
from tests.cli.test_queue import bury

URL = "sqlite:///jobs.db"


def findings(result: Result) -> dict[str, tuple[str, str]]:
    """What a doctor with --json found: verdict and text by check."""
    return {each["check"]: (each["verdict"], each["says"]) for each in result.json()}


def test_a_machine_that_is_well() -> None:
    found = findings(good("doctor", "--json"))
    assert list(found) == ["python", "sqlite", "metrics", "settings"]
    assert {verdict for verdict, _ in found.values()} == {"ok"}
    text = good("doctor").out
    assert [line.split()[:2] for line in text.splitlines()] == [["ok", check] for check in found]


def test_a_queue_that_is_well(folder: Path) -> None:
    good("submit", URL, "greet")
    before = files(folder)
    found = findings(good("doctor", URL, "--json"))
    assert found["queue"] == ("ok", "sqlite:///jobs.db?queue=default: 1 ready, 0 dead")
    assert found["hints"] == ("ok", "reach other processes on this machine")
    assert files(folder) == before


def test_dead_letters_are_noted() -> None:
    bury("no")
    found = findings(good("doctor", URL, "--json"))
    assert found["dead letters"] == ("note", f"1: pollux dead list '{URL}'")
    assert "\nnote dead letters  1: " in good("doctor", URL).out


def test_hints_that_reach_less_far_are_noted() -> None:
    assert findings(good("doctor", "memory://", "--json"))["hints"] == (
        "note",
        "reach this process only",
    )
    good("submit", URL, "greet")
    verdict, says = findings(good("doctor", f"{URL}?watch=0", "--json"))["hints"]
    assert (verdict, says[:4]) == ("note", "off:")


def test_hints_that_do_not_arrive_are_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    good("submit", URL, "greet")
    monkeypatch.setattr(doctor, "HINT_DEADLINE", 0.01)
    monkeypatch.setattr("pollux.queues.watched_file.WatchedFile.tell_others", Hints.tell_others)
    result = pollux("doctor", f"{URL}?watch=10ms", "--json")
    assert result.code == 1
    verdict, says = findings(result)["hints"]
    assert verdict == "bad"
    assert "may the folder be written to?" in says


def test_a_missing_extra_is_noted_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> Any:
        return None if name == "prometheus_client" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    assert findings(good("doctor", "--json"))["metrics"] == (
        "note",
        "not installed: pip install 'pollux[metrics]'",
    )


def test_an_old_sqlite_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 7, 0))
    result = pollux("doctor", "--json")
    assert result.code == 1
    assert findings(result)["sqlite"][0] == "bad"


def test_bad_settings_are_bad(folder: Path) -> None:
    (folder / "pollux.toml").write_text("[worker]\nlease = '1x'\nconcurrency = '[red]\\u001b'\n")
    result = pollux("doctor", "--json")
    assert (result.code, result.err) == (1, "")
    assert findings(result)["settings"][0] == "bad"
    text = pollux("doctor")
    assert text.code == 1
    assert "\n- worker.lease = '1x' (pollux.toml)" in text.out
    assert "\x1b" not in text.out


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite:///jobs.db", "there is no database at jobs.db"),
        ("sqlite:///no/such.db", "there is no database"),
        ("sqlite:///text", "not a database"),
        ("nosuch://", "no queue has the scheme"),
        ("sqlite:///jobs.db?watch=often", "watch = 'often'"),
    ],
)
def test_a_queue_that_cannot_be_opened_is_bad(url: str, says: str, folder: Path) -> None:
    (folder / "text").write_text("not a database\n" * 100)
    before = files(folder)
    result = pollux("doctor", url, "--json")
    assert (result.code, result.err) == (1, "")
    verdict, told = findings(result)["queue"]
    assert verdict == "bad"
    assert says in told
    assert files(folder) == before
