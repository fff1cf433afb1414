"""The metrics of the table in a library: what a sink needs from Prometheus or OpenTelemetry.

The classes here are as small as the two libraries allow. What an event means is in
`pollwise.observe.sink`, once for both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, Protocol

from pollwise.observe.metrics import METRICS, Metric


class MetricSeries(Protocol):
    """One metric with the values of its labels."""

    def inc(self, amount: float = 1) -> None: ...

    def dec(self, amount: float = 1) -> None: ...

    def set(self, value: float) -> None: ...

    def observe(self, amount: float) -> None: ...

    def set_function(self, f: Callable[[], float]) -> None:
        """Call a function for the value of a gauge whenever it is read."""


class Family(Protocol):
    """One metric with all its series."""

    def labels(self, *values: str) -> MetricSeries:
        """The series with these values of the labels, in order; it is made if it is new."""

    def remove(self, *values: str) -> None:
        """Remove a series; raises `KeyError` or does nothing if there is none."""

    def remove_by_labels(self, labels: dict[str, str]) -> None:
        """Remove all series with these values of some labels."""


class Instruments(ABC):
    """All metrics, by name. by_target: the metrics of a fleet have a label for each target.

    keeps_counters: what was counted is still read after a worker, a relay or a fleet has stopped.
    """

    keeps_counters: ClassVar[bool] = False

    def __init__(self, *, by_target: bool) -> None:
        self._families: Mapping[str, Family] = {
            metric.name: self._made(
                metric, tuple(each for each in metric.labels if by_target or each != "target")
            )
            for metric in METRICS
            if by_target or not metric.by_target
        }

    def __getitem__(self, name: str) -> Family:
        return self._families[name]

    @abstractmethod
    def _made(self, metric: Metric, labels: tuple[str, ...]) -> Family:
        """The metric in this library, with these labels."""

    @abstractmethod
    def set_alone(self, name: str, value: float | None) -> None:
        """Set a gauge that has no labels; None: it is not shown."""
