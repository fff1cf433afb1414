"""Debian's Prometheus, which scrapes the metrics of tests and runs queries over them."""

from __future__ import annotations

import json
import math
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.daemons import HOST, PATIENCE, Keeper, Server
from tests.support.servers import debian


@dataclass(frozen=True)
class Scrape:
    """What Prometheus scrapes: the label `job`, a URL, and a token if it needs one."""

    job: str
    url: str
    token: str = ""

    def config(self) -> dict[str, Any]:
        parts = urllib.parse.urlsplit(self.url)
        bearer = {"authorization": {"credentials": self.token}} if self.token else {}
        return {
            "job_name": self.job,
            "metrics_path": parts.path,
            "static_configs": [{"targets": [parts.netloc]}],
            **bearer,
        }


class Prometheus(Server):
    """A Prometheus that scrapes a few URLs twice a second."""

    ready = b"Server is ready to receive web requests"

    def __init__(self, keeper: Keeper, *scrapes: Scrape) -> None:
        super().__init__(keeper, debian("prometheus"))
        self.scrapes = scrapes

    def command(self) -> Sequence[object]:
        every = {"scrape_interval": "500ms", "scrape_timeout": "500ms"}
        jobs = [scrape.config() for scrape in self.scrapes]
        # JSON is also YAML.
        self.write("prometheus.yml", json.dumps({"global": every, "scrape_configs": jobs}))
        return [
            self.program,
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address={HOST}:{self.port}",
        ]

    def values(self, query: str) -> list[float]:
        """The values of an instant query now, without those that are not numbers."""
        body = urllib.parse.urlencode({"query": query}).encode()
        url = f"http://{HOST}:{self.port}/api/v1/query"
        with urllib.request.urlopen(url, body, timeout=PATIENCE) as answer:
            found = json.load(answer)["data"]["result"]
        values = [float(each["value"][1]) for each in found]
        return [value for value in values if not math.isnan(value)]

    def series(
        self, query: str, begin: float, end: float, step: float
    ) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """The labels and the points of a range query, without those that are not numbers."""
        given = {"query": query, "start": begin, "end": end, "step": step}
        url = f"http://{HOST}:{self.port}/api/v1/query_range"
        body = urllib.parse.urlencode(given).encode()
        with urllib.request.urlopen(url, body, timeout=PATIENCE) as answer:
            found = json.load(answer)["data"]["result"]
        return [
            (each["metric"], [(at, y) for at, text in each["values"] if (y := float(text)) == y])
            for each in found
        ]

    def label_values(self, label: str, selector: str) -> list[str]:
        """The answer to Grafana's `label_values(selector, label)`."""
        query = urllib.parse.urlencode({"match[]": selector})
        url = f"http://{HOST}:{self.port}/api/v1/label/{label}/values?{query}"
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            found: list[str] = json.load(answer)["data"]
        return found
