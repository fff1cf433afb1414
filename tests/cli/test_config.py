"""`pollwise config …`: every value, and where it came from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pollwise.settings import STRATEGIES, documented_keys
from pollwise.settings.strategies import parameters
from tests.cli.console import good, pollwise


def shown(*words: str) -> dict[str, tuple[Any, str]]:
    rows = good("config", "show", "--json", *words).json()
    return {row["key"]: (row["value"], row["origin"]) for row in rows}


def test_every_setting_is_shown_with_its_default() -> None:
    rows = shown()
    strategies = {"worker": "adaptive", "outbox": "batch_fill", "fleet": "freshness"}
    ours = {each.key for each in documented_keys()} | {
        f"{part}.polling.{each.key}"
        for part, name in strategies.items()
        for each in parameters(STRATEGIES[name])
    }
    assert set(rows) == ours
    assert {origin for _, origin in rows.values()} == {"default"}
    text = good("config", "show").out
    assert [line.split()[0] for line in text.splitlines()] == ["setting", *rows]


def test_the_environment_goes_before_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "pollwise.toml").write_text("[worker]\nlease = '10s'\nconcurrency = 3\n")
    monkeypatch.setenv("POLLWISE_WORKER_LEASE", "20s")
    rows = shown()
    assert rows["worker.lease"] == ("20s", "environment variable POLLWISE_WORKER_LEASE")
    assert rows["worker.concurrency"] == ("3", "pollwise.toml")
    assert rows["worker.grace"][1] == "default"


@pytest.mark.parametrize("by", ["option", "variable"])
def test_another_file_may_be_named(by: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "pollwise.toml").write_text("[worker]\nlease = '10s'\n")
    (folder / "other.toml").write_text("[worker]\nlease = '20s'\n")
    if by == "variable":
        monkeypatch.setenv("POLLWISE_CONFIG", "other.toml")
    rows = shown(*(["--file", "other.toml"] if by == "option" else []))
    assert rows["worker.lease"] == ("20s", "other.toml")


def test_what_belongs_to_another_strategy_is_marked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "pollwise.toml").write_text("[worker.polling]\nmax_interval = '9s'\n")
    monkeypatch.setenv("POLLWISE_POLLING_STRATEGY", "fixed")
    rows = {row["key"]: row for row in good("config", "show", "--json").json()}
    assert rows["worker.polling.strategy"]["used"] is True
    assert rows["worker.polling.max_interval"]["used"] is False
    lines = good("config", "show").out.splitlines()
    (line,) = [line for line in lines if "worker.polling.max_interval" in line]
    assert line.split() == ["worker.polling.max_interval", "9s", "pollwise.toml", "(unused)"]


def test_no_password_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLLWISE_WORKER_QUEUE", "sqlite:///jobs.db?password=hunter2")
    for words in (["config", "show"], ["config", "show", "--json"], ["config", "check"]):
        result = pollwise(*words)
        assert "hunter2" not in result.out + result.err


def test_check_says_what_polling_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLLWISE_POLLING_MIN_INTERVAL_MS", "50")
    result = good("config", "check")
    assert result.out.startswith("The settings are valid. Polling:\n[worker.polling]\n")
    assert 'min_interval = "50ms"\n' in result.out
    facts = good("config", "check", "--json").json()
    assert facts["valid"] is True
    assert "min_interval=0.05" in facts["polling"]


def test_the_old_interval_is_taken_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLLWISE_POLL_INTERVAL", "200ms")
    result = good("config", "check", "--json")
    assert "Fixed(interval=0.2" in result.json()["polling"]
    assert result.err.startswith("warning: ")
    assert "POLLWISE_POLLING_STRATEGY=fixed" in result.err


def test_values_are_shown_and_not_obeyed(folder: Path) -> None:
    (folder / "pollwise.toml").write_text('[worker]\nmetrics_host = "[red]\\u001b[31m"\n')
    result = good("config", "show")
    assert r"[red]\x1b[31m" in result.out
    assert "\x1b" not in result.out


def test_it_does_not_matter_who_else_has_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "PATH" in os.environ
    monkeypatch.setenv("POLLWISEIAN", "x")
    good("config", "check")
