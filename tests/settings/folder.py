"""Settings from an empty folder, and helpers to read the result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pollwise.errors import ConfigError
from pollwise.settings import SettingRow, Settings, load

#: What a strategy needs in addition to its name.
GOALS: dict[str | None, dict[str, object]] = {"worth": {"worker.polling.p95_wait": "2s"}}


def goals_of(strategy: str | None, table: str) -> dict[str, object]:
    """What a strategy needs in addition to its name, in this table."""
    goals = GOALS.get(strategy, {})
    return {key.replace("worker.polling", table): goal for key, goal in goals.items()}


class Folder:
    """An empty current directory, and `load` in it with only the given values."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(
        self,
        toml: str = "",
        environ: Mapping[str, str] | None = None,
        overrides: Mapping[str, object] | None = None,
        runs: str | None = None,
    ) -> Settings:
        if toml:
            (self.path / "pollwise.toml").write_text(toml, encoding="utf-8")
        return load(environ=environ or {}, overrides=overrides, runs=runs)

    def refusal(
        self,
        toml: str = "",
        environ: Mapping[str, str] | None = None,
        overrides: Mapping[str, object] | None = None,
    ) -> str:
        with pytest.raises(ConfigError) as caught:
            self.load(toml, environ, overrides)
        return str(caught.value)


def row(settings: Settings, key: str) -> SettingRow:
    (found,) = [each for each in settings.table() if each.key == key and each.used]
    return found


def unused(settings: Settings) -> list[SettingRow]:
    return [each for each in settings.table() if not each.used]
