"""How a worker runs: options as earlier projects spelled them."""

from __future__ import annotations

from typing import Any

import pytest

from pollwise.core.strategies.fixed import Fixed
from pollwise.errors import ConfigError
from pollwise.worker import WorkerRunOptions


@pytest.mark.parametrize(
    "given",
    [{"poll_interval": "500ms"}, {"poll_interval_ms": 500}, {"poll_interval_seconds": 0.5}],
)
def test_one_interval_of_old_is_fixed_with_a_warning(given: dict[str, Any]) -> None:
    with pytest.warns(DeprecationWarning, match=r"every 0\.5 seconds.*polling=Fixed\(") as caught:
        assert WorkerRunOptions(**given).polling == Fixed("500ms")
    assert caught[0].filename == __file__


def test_two_intervals_of_old_are_refused() -> None:
    with pytest.raises(ConfigError, match="poll_interval = '1s' and poll_interval_ms = 5 contra"):
        WorkerRunOptions(poll_interval="1s", poll_interval_ms=5)
    with pytest.raises(ConfigError, match="poll_interval_ms = '5s' must be a number of milli"):
        WorkerRunOptions(poll_interval_ms="5s")  # type: ignore[arg-type]
