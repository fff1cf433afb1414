"""The Prometheus sink: events in, metrics out (`pip install 'pollwise[metrics]'`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pollwise.errors import ConfigError, MissingExtra
from pollwise.observe.instruments import Family, Instruments
from pollwise.observe.metrics import DURATION_BUCKETS, Metric
from pollwise.observe.sink import MetricsSink

try:
    import prometheus_client
except ImportError:  # pragma: no cover - tried in an environment without the extra
    raise MissingExtra("exporting metrics", "metrics") from None


@dataclass(frozen=True, slots=True)
class MetricsServer:
    """A server of metrics at `url`, until `close()`."""

    url: str
    close: Callable[[], None]


class PrometheusInstruments(Instruments):
    """The metrics in a registry."""

    def __init__(self, registry: prometheus_client.CollectorRegistry, *, by_target: bool) -> None:
        self._registry = registry
        self._alone: dict[str, prometheus_client.Gauge] = {}
        self._shown: set[str] = set()
        super().__init__(by_target=by_target)

    def _made(self, metric: Metric, labels: tuple[str, ...]) -> Family:
        # A metric without labels would be shown as 0 before it is set.
        arguments: dict[str, Any] = {"registry": self._registry if labels else None}
        if metric.type == "histogram":
            arguments["buckets"] = DURATION_BUCKETS
        make = getattr(prometheus_client, metric.type.capitalize())
        family: Any = make(metric.name, metric.help, labels, **arguments)
        if not labels:
            self._alone[metric.name] = family
        return family  # type: ignore[no-any-return]

    def set_alone(self, name: str, value: float | None) -> None:
        if value is not None:
            self._alone[name].set(value)
        if (value is not None) == (name in self._shown):
            return
        if value is None:
            self._shown.discard(name)
            self._registry.unregister(self._alone[name])
        else:
            self._shown.add(name)
            self._registry.register(self._alone[name])


class PrometheusSink(MetricsSink):
    """Keeps the metrics of `pollwise.observe.metrics` in a registry, and can serve them.

    price, by_target: as for `MetricsSink`.
    """

    def __init__(
        self,
        registry: prometheus_client.CollectorRegistry | None = None,
        price: float = 0.0,
        *,
        by_target: bool = False,
    ) -> None:
        self.registry: prometheus_client.CollectorRegistry = (
            registry or prometheus_client.CollectorRegistry()
        )
        made = PrometheusInstruments(self.registry, by_target=by_target)
        super().__init__(made, price, by_target=by_target)

    def serve(self, port: int, host: str = "127.0.0.1") -> MetricsServer:
        """Serve `/metrics` from a thread; port 0 takes any free port.

        `/livez` says that the process answers. Whether its event loop is blocked, and whether it
        can work, say `/livez` and `/readyz` of the health port.
        """
        try:
            server, thread = prometheus_client.start_http_server(port, host, self.registry)
        except OSError as error:
            raise ConfigError(
                f"cannot serve metrics on {host}:{port}: {error.strerror or error}; choose another "
                "metrics_port (--metrics-port) or metrics_host"
            ) from error

        metrics: Any = server.get_app()
        server.set_app(_with_livez(metrics))

        def close() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        name = f"[{host}]" if ":" in host else host
        return MetricsServer(f"http://{name}:{server.server_port}/metrics", close)

    def exposed(self) -> tuple[bytes, str]:
        """The text of a scrape, and its content type."""
        text: bytes = prometheus_client.generate_latest(self.registry)
        return text, prometheus_client.CONTENT_TYPE_LATEST


def _with_livez(metrics: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """A WSGI application that serves `/livez`, and else the metrics."""

    def served(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/livez":
            return metrics(environ, start_response)
        start_response("200 OK", [("Content-Type", "application/json")])
        return [b'{"status": "ok"}']

    return served
