"""Metrics of commands as they are run: the exporter of queues, OpenTelemetry, fleets by target."""

from __future__ import annotations

import sys
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from opentelemetry import metrics as otel
from opentelemetry.sdk.metrics import MeterProvider

from pollwise.cli.running import has_meter_provider
from tests.cli.console import PATIENCE, Command, good, pollwise
from tests.cli.fleets import FILE, STORE
from tests.support.daemons import wait_until
from tests.support.forked import Forked
from tests.support.servers import OwnRedis

URL = "sqlite:///jobs.db"
STAMP = "pollwise_queue_measured_timestamp_seconds"
SHOP = """
import pollwise
worker = pollwise.Worker("sqlite:///jobs.db")
worker.handle("mail")(print)
"""
#: `pollwise`, started as `opentelemetry-instrument` would.
INSTRUMENTED = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader

show = ConsoleMetricExporter(formatter=lambda data: data.to_json(indent=None) + "\\n")
metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(show, 100)]))
from pollwise.cli import main
main()
"""


def scraped(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        lines = answer.read().decode().splitlines()
    rows = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return {name: float(value) for name, _, value in rows}


def depth(kind: str, queue: str = "default", state: str = "ready") -> str:
    return f'pollwise_queue_depth{{kind="{kind}",queue="{queue}",state="{state}"}}'


def test_queue_export_serves_every_queue_of_a_file(folder: Path) -> None:
    good("queue", "put", URL, "mail")
    good("queue", "put", f"{URL}?queue=shop", "order", "--delay", "1h")
    with Command("queue", "export", URL, "--port", 0, "--every", "50ms") as command:
        url = command.err.until(r"metrics on (http://\S+)")[1]
        order = depth("order", "shop", "delayed")
        wait_until(lambda: scraped(url).get(order) == 1, "both queues", PATIENCE)
        assert scraped(url)[depth("mail")] == 1
        good("queue", "put", URL, "mail")
        wait_until(lambda: scraped(url)[depth("mail")] == 2, "the second job", PATIENCE)
        assert command.stopped() == 0


def test_a_store_that_stops_leaves_its_last_numbers_and_their_time(own_redis: OwnRedis) -> None:
    redis = own_redis(appendonly="yes")
    good("queue", "put", redis.url(), "mail")
    stamp = f'{STAMP}{{queue="default"}}'
    with Command("queue", "export", redis.url(), "--port", 0, "--every", "50ms") as command:
        url = command.err.until(r"metrics on (http://\S+)")[1]
        wait_until(lambda: stamp in scraped(url), "a measurement", PATIENCE)
        redis.stop()
        command.err.until("chore_failed.*chore=measure")
        known = scraped(url)
        assert known[depth("mail")] == 1
        assert scraped(url)[stamp] == known[stamp]
        redis.start()
        good("queue", "put", redis.url(), "mail")
        wait_until(lambda: scraped(url)[depth("mail")] == 2, "the store again", PATIENCE)
        assert scraped(url)[stamp] > known[stamp]
        assert command.stopped() == 0
    assert sum("chore=measure" in line for line in command.err.all) == 1


def test_a_missing_queue_is_refused_and_nothing_is_made(folder: Path) -> None:
    result = pollwise("queue", "export", "sqlite:///none.db", "--port", 0)
    assert result.code == 2
    assert "none.db" in result.err
    assert not (folder / "none.db").exists()


def test_the_provider_of_the_api_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_meter_provider()
    with monkeypatch.context() as patched:
        patched.setattr(otel, "get_meter_provider", MeterProvider)
        assert has_meter_provider()
    monkeypatch.delitem(sys.modules, "opentelemetry.metrics")
    assert not has_meter_provider()


def test_export_queue_without_a_place_for_metrics_is_refused(folder: Path) -> None:
    (folder / "shop.py").write_text(SHOP)
    result = pollwise("worker", "shop:worker", "--set", "worker.export_queue=true")
    assert result.code == 2
    assert "worker.export_queue = true is for metrics; set worker.metrics_port" in result.err


def test_serve_sends_its_metrics_to_a_provider(folder: Path) -> None:
    (folder / "instrumented.py").write_text(INSTRUMENTED)
    with closing(Forked(["instrumented.py", "serve", URL, "--port", "0"])) as process:
        for line in process.stdout:
            if '"pollwise.controller.jobs"' in line and '"state": "ready"' in line:
                break
        else:
            pytest.fail(f"no count of jobs was exported: {process.stderr.read()}")
        process.terminate()
        process.communicate(PATIENCE)


def test_a_fleet_by_target_has_a_label_for_each(folder: Path) -> None:
    (folder / "fleet.toml").write_text(FILE)
    words = ("--store", STORE, "--metrics-port", 0, "--metrics-by", "target")
    with Command("fleet", "run", *words) as command:
        url = command.err.until(r"metrics on (http://\S+)")[1]
        polls = 'pollwise_fleet_poll_total{group="",result="changed",target="fine",type="command"}'
        same = polls.replace("changed", "unchanged")
        wait_until(lambda: not {polls, same}.isdisjoint(scraped(url)), "a poll", PATIENCE)
        assert command.stopped() == 0
