"""`on_state(main)` runs a test on each kind of state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.controller.state.states import Main, run_on_postgres, run_on_sqlite


@pytest.fixture(params=["sqlite", "postgres", "postgres_oldest"])
def on_state(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Main], None]:
    if request.param == "sqlite":
        return lambda main: run_on_sqlite(tmp_path / "state.db", main)
    server = request.getfixturevalue(request.param)
    return lambda main: run_on_postgres(server, main)
