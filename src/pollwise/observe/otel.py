"""The OpenTelemetry sink: the same metrics as Prometheus (`pip install 'pollwise[otel]'`).

Only the API of OpenTelemetry is used, so nothing is measured unless the program, or
`opentelemetry-instrument`, configured a MeterProvider. Counters and gauges are asynchronous
instruments: the sink keeps their values, and a reader asks for them. So gauges can be removed,
counters can begin at 0, and an age is that of the moment when it is read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

from pollwise.errors import MissingExtra
from pollwise.observe.instruments import Family, Instruments
from pollwise.observe.metrics import DURATION_BUCKETS, Metric
from pollwise.observe.sink import MetricsSink
from pollwise.version import __version__

try:
    from opentelemetry import metrics as otel
except ImportError:  # pragma: no cover - tried in an environment without the extra
    raise MissingExtra("OpenTelemetry metrics", "otel") from None


class _Value:
    """A counter or a gauge with the values of its labels."""

    __slots__ = ("_lock", "function", "number")

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self.number = 0.0
        self.function: Callable[[], float] | None = None

    def inc(self, amount: float = 1) -> None:
        with self._lock:
            self.number += amount

    def dec(self, amount: float = 1) -> None:
        self.inc(-amount)

    def set(self, value: float) -> None:
        with self._lock:
            self.number, self.function = float(value), None

    def set_function(self, f: Callable[[], float]) -> None:
        self.function = f

    def observe(self, amount: float) -> None:
        raise TypeError("only histograms observe")


class _Recorded(_Value):
    """A histogram with the values of its labels, which the library keeps."""

    __slots__ = ("_histogram", "_labels")

    def __init__(
        self, lock: threading.Lock, histogram: otel.Histogram, labels: dict[str, str]
    ) -> None:
        super().__init__(lock)
        self._histogram = histogram
        self._labels = labels

    def observe(self, amount: float) -> None:
        self._histogram.record(amount, self._labels)


class _OtelFamily:
    """One metric in OpenTelemetry, with its series."""

    def __init__(self, meter: otel.Meter, metric: Metric, labels: tuple[str, ...]) -> None:
        self._names = labels
        self._lock = threading.Lock()
        self._series: dict[tuple[str, ...], _Value] = {}
        self._histogram: otel.Histogram | None = None
        #: Called before its series are read.
        self.before: Callable[[], None] = lambda: None
        name, unit = metric.otel_name, metric.otel_unit
        if metric.type == "histogram":
            self._histogram = meter.create_histogram(
                name, unit, metric.help, explicit_bucket_boundaries_advisory=DURATION_BUCKETS
            )
        elif metric.type == "counter":
            meter.create_observable_counter(name, [self._read], unit, metric.help)
        else:
            meter.create_observable_gauge(name, [self._read], unit, metric.help)

    def labels(self, *values: str) -> _Value:
        with self._lock:
            found = self._series.get(values)
            if found is None:
                found = self._series[values] = self._new(values)
            return found

    def _new(self, values: tuple[str, ...]) -> _Value:
        if self._histogram is None:
            return _Value(self._lock)
        named = dict(zip(self._names, values, strict=True))
        return _Recorded(self._lock, self._histogram, named)

    def remove(self, *values: str) -> None:
        with self._lock:
            self._series.pop(values, None)

    def remove_by_labels(self, labels: dict[str, str]) -> None:
        wanted = [(self._names.index(name), value) for name, value in labels.items()]
        with self._lock:
            for values in list(self._series):
                if all(values[at] == value for at, value in wanted):
                    del self._series[values]

    def _read(self, _: otel.CallbackOptions) -> Iterator[otel.Observation]:
        self.before()
        with self._lock:
            found = [(key, each.number, each.function) for key, each in self._series.items()]
        for values, number, function in found:
            shown = number if function is None else function()
            yield otel.Observation(shown, dict(zip(self._names, values, strict=True)))


class OtelInstruments(Instruments):
    """The metrics of a MeterProvider.

    A provider exports for the last time when the program ends, after the worker has stopped: what
    the worker counted since the export before would be lost without its counters.
    """

    keeps_counters: ClassVar[bool] = True

    def __init__(self, provider: otel.MeterProvider | None, *, by_target: bool) -> None:
        self._meter = (provider or otel.get_meter_provider()).get_meter("pollwise", __version__)
        self._own: dict[str, _OtelFamily] = {}
        super().__init__(by_target=by_target)

    def _made(self, metric: Metric, labels: tuple[str, ...]) -> Family:
        made = self._own[metric.name] = _OtelFamily(self._meter, metric, labels)
        return made

    def before_reading(self, names: Iterable[str], call: Callable[[], None]) -> None:
        for name in names:
            self._own[name].before = call

    def set_alone(self, name: str, value: float | None) -> None:
        if value is None:
            self[name].remove()
        else:
            self[name].labels().set(value)


class OtelSink(MetricsSink):
    """Measures with OpenTelemetry what `PrometheusSink` counts, from the same events.

    provider: the MeterProvider; None: the one that the program has set.
    price, by_target: as for `MetricsSink`. Counters and histograms stay when their worker, relay or
    fleet stops, so that the last export has them; gauges go.
    """

    def __init__(
        self,
        provider: otel.MeterProvider | None = None,
        price: float = 0.0,
        *,
        by_target: bool = False,
    ) -> None:
        self._made = made = OtelInstruments(provider, by_target=by_target)
        super().__init__(made, price, by_target=by_target)

    def before_reading(self, names: Iterable[str], call: Callable[[], None]) -> None:
        """Call a function whenever a reader asks for one of these gauges, before it gets them.

        It is called in the thread of the reader.
        """
        self._made.before_reading(names, call)
