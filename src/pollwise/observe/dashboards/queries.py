"""Short ways to write the queries of panels."""

from __future__ import annotations

from pollwise.observe.dashboards.grafana import Query, metric_of

#: Breakers are numbers in Prometheus.
BREAKERS = ((0, "closed"), (1, "half-open"), (2, "open"))


class Queries:
    """Queries about the metrics of one part, restricted to what the reader chose.

    prefix: how the names begin, for example `pollwise_worker_`.
    choices: the labels that the dashboard has a variable for.
    """

    def __init__(self, prefix: str, *choices: str) -> None:
        self.prefix = prefix
        self.choices = choices

    def select(self, name: str, where: str = "") -> str:
        """A selector with the chosen values, and with further matchers."""
        full = self.prefix + name
        labels = metric_of(full).labels
        chosen = [f'{label}=~"${label}"' for label in self.choices if label in labels]
        matchers = ",".join([*chosen, *([where] if where else [])])
        return f"{full}{{{matchers}}}" if matchers else full

    def rate(self, name: str, *by: str, where: str = "", legend: str = "") -> Query:
        """A counter, per second."""
        inner = f"rate({self.select(name, where)}[$__rate_interval])"
        return _grouped("sum", by, inner, legend)

    def over_range(self, name: str, *by: str, where: str = "", legend: str = "") -> Query:
        """How much a counter grew in the time that the dashboard shows."""
        inner = f"increase({self.select(name, where)}[$__range])"
        return _grouped("sum", by, inner, legend)

    def or_zero(self, query: Query) -> Query:
        """0 while a number does not exist, because what it counts never happened.

        Only where this part polls: if nothing is scraped, a panel must not show 0.
        """
        polls = self.over_range("poll_total").expr
        return Query(f"{query.expr} or 0 * {polls}", query.legend)

    def sum(self, name: str, *by: str, where: str = "", legend: str = "") -> Query:
        """A gauge, summed over processes."""
        return _grouped("sum", by, self.select(name, where), legend)

    def max(self, name: str, *by: str, where: str = "", legend: str = "") -> Query:
        """A gauge, the highest of all processes."""
        return _grouped("max", by, self.select(name, where), legend)

    def min(self, name: str, *by: str, where: str = "", legend: str = "") -> Query:
        """A gauge, the lowest of all processes."""
        return _grouped("min", by, self.select(name, where), legend)

    def total(self, name: str, *by: str, where: str = "", legend: str = "") -> Query:
        """A gauge about a store that several processes may measure: each series counts once."""
        each = self.max(name, *metric_of(self.prefix + name).labels, where=where).expr
        return _grouped("sum", by, each, legend)

    def age(self, name: str, *by: str, legend: str = "") -> Query:
        """How long ago a gauge with a time was set, by the process that set it last."""
        newest = self.max(name, *by, legend=legend)
        return Query(f"time() - {newest.expr}", newest.legend)

    def share(self, part: str, whole: str, *by: str, where: str = "", legend: str = "") -> Query:
        """One counter as a share of another, 0 to 1."""
        over = self.rate(whole, *by).expr
        return Query(
            f"{self.rate(part, *by, where=where).expr} / ({over} > 0)", _legend(by, legend)
        )

    def quantiles(self, name: str, *by: str) -> tuple[Query, ...]:
        """The median, and what 95 and 99 of 100 stay under."""
        return tuple(self.quantile(name, share, *by) for share in (0.5, 0.95, 0.99))

    def quantile(self, name: str, share: float, *by: str) -> Query:
        buckets = f"rate({self.select(f'{name}_bucket')}[$__rate_interval])"
        expr = f"histogram_quantile({share:g}, sum by ({', '.join(['le', *by])}) ({buckets}))"
        return Query(expr, f"p{share * 100:g} {_legend(by, '')}".strip())


def _grouped(how: str, by: tuple[str, ...], inner: str, legend: str) -> Query:
    grouping = f" by ({', '.join(by)})" if by else ""
    return Query(f"{how}{grouping} ({inner})", _legend(by, legend))


def _legend(by: tuple[str, ...], legend: str) -> str:
    """The given words, then the labels: `empty mail done`."""
    return " ".join([*([legend] if legend else []), *(f"{{{{{label}}}}}" for label in by)])
