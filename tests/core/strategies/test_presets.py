"""The calls of qo's page, as the page writes them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.presets import PollingStrategy
from pollwise.durations import shown
from pollwise.errors import ConfigError
from tests.core.strategies.pacing import delays


def test_adaptive() -> None:
    strategy = PollingStrategy.adaptive(
        min_interval_ms=100,
        max_interval_ms=30000,
        backoff_multiplier=2.0,
    )
    assert strategy == Adaptive("100ms", "30s", backoff_multiplier=2)
    # 100 ms doubles to 25.6 s; 51.2 s is cut to 30 s.
    assert delays(strategy, [0] * 9) == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30]


def test_fixed() -> None:
    assert PollingStrategy.fixed(interval_ms=100) == Fixed("100ms")


def test_defaults_are_those_of_the_page() -> None:
    assert PollingStrategy.adaptive() == Adaptive("100ms", "5s", backoff_multiplier=2) == Adaptive()
    assert PollingStrategy.fixed() == Fixed("500ms") == Fixed()


def test_each_argument_arrives() -> None:
    strategy = PollingStrategy.adaptive(min_interval_ms=100, max_interval_ms=30000)
    assert strategy == Adaptive("100ms", "30s")
    assert PollingStrategy.adaptive(backoff_multiplier=3) == Adaptive(backoff_multiplier=3)


@pytest.mark.parametrize("ms", [1, 9, 17, 250, 999, 1234, 0.5, 86_400_000])
def test_milliseconds_are_the_same_however_they_are_written(ms: float) -> None:
    assert PollingStrategy.fixed(interval_ms=ms) == Fixed(f"{ms}ms") == Fixed(ms / 1000)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_interval_ms": 0}, "min_interval_ms = 0 must be above 0 and finite: milliseconds"),
        ({"min_interval_ms": -5}, "min_interval_ms = -5 must be above 0 and finite: milliseconds"),
        ({"min_interval_ms": "100"}, "min_interval_ms = '100' must be a number above 0 and finite"),
        ({"min_interval_ms": None}, "min_interval_ms = None must be a number above 0 and finite"),
        ({"max_interval_ms": math.inf}, "max_interval_ms = inf must be above 0 and finite"),
        ({"max_interval_ms": math.nan}, "max_interval_ms = nan must be above 0 and finite"),
        ({"max_interval_ms": 10**400}, "max_interval_ms = 1000000"),
        (
            {"min_interval_ms": 6000},
            "min_interval_ms = 6000 is above max_interval_ms = 5000; lower the first or raise",
        ),
        ({"backoff_multiplier": 1}, "backoff_multiplier = 1 must be above 1 and finite: each"),
        (
            {"backoff_multiplier": "2"},
            "backoff_multiplier = '2' must be a number above 1 and finite",
        ),
    ],
)
def test_adaptive_refuses(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PollingStrategy.adaptive(**arguments)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "interval", [0, -1, math.nan, math.inf, True, "500", None, 10**400], ids=shown
)
def test_fixed_refuses(interval: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"interval_ms = .+ must be (a number )?above 0 and finite: millis"
    ):
        PollingStrategy.fixed(interval_ms=interval)


def test_bounds_may_be_equal() -> None:
    strategy = PollingStrategy.adaptive(min_interval_ms=5000)
    assert strategy.min_interval == strategy.max_interval == 5.0
