"""Strategies, and the names that the author of a new one needs: contract, outcome and pause."""

from pollwise.core.forecast.durations import Durations
from pollwise.core.outcome import Change, Outcome, Pause
from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import Pacer, Strategy, bounds
from pollwise.core.strategies.batch_fill import BatchFill
from pollwise.core.strategies.completion import Completion
from pollwise.core.strategies.ewma import Ewma
from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.freshness import Freshness
from pollwise.core.strategies.presets import PollingStrategy
from pollwise.core.strategies.worth import Worth

__all__ = [
    "Adaptive",
    "BatchFill",
    "Change",
    "Completion",
    "Durations",
    "Ewma",
    "Fixed",
    "Freshness",
    "Outcome",
    "Pacer",
    "Pause",
    "PollingStrategy",
    "Strategy",
    "Worth",
    "bounds",
]
