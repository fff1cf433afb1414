"""Every command runs in an empty folder, without settings from outside."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("POLLWISE_") or name in {"COLUMNS", "FORCE_COLOR", "NO_COLOR", "LINES"}:
            monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "path", list(sys.path))  # `pollwise worker` adds the current folder
    modules = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
