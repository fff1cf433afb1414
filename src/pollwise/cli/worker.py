"""`pollwise worker module:worker`: run a worker, or several processes of it."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from pollwise.cli.options import LogFormat, LogLevel, MetricsPorts, Processes, StrategyName
from pollwise.cli.running import (
    Supervisor,
    debug_events,
    found_at,
    overrides_of,
    ports_of,
    serve_metrics,
    stop_with_parent,
    with_settings,
)
from pollwise.errors import ConfigError, HandlerError
from pollwise.lab.prices import Price, price_named
from pollwise.observe import logs
from pollwise.runtime.events import log
from pollwise.settings import Settings, load
from pollwise.worker import Worker


def worker(
    target: Annotated[str, typer.Argument(help="The worker, as module:name.")],
    processes: Processes = 1,
    concurrency: Annotated[
        int | None, typer.Option(help="How many handlers run at a time.")
    ] = None,
    strategy: StrategyName = None,
    metrics_port: MetricsPorts = None,
    price: Annotated[
        str | None, typer.Option(help="What a poll costs, for the cost metric: s3-list, 0.4/1e6.")
    ] = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting: worker.lease=30s")
    ] = None,
) -> None:
    """Run a worker until SIGTERM or Ctrl-C; then finish what runs and give the rest back.

    Example: pollwise worker shop.jobs:worker --concurrency 16 --metrics-port 9091
    """
    overrides = overrides_of(setting or [], "worker.lease=30s")
    given = {
        "worker.concurrency": concurrency,
        "worker.polling.strategy": strategy,
        "worker.metrics_port": metrics_port,
        "worker.log_format": log_format,
        "worker.log_level": log_level,
    }
    overrides |= {key: value for key, value in given.items() if value is not None}
    settings = load(overrides=overrides)
    cost = _price(price, settings)
    logs.set_up(settings.worker.log_level, settings.worker.log_format)
    found = _found(target)
    options = with_settings(found.options, settings, "worker", RUN_OPTIONS)
    if processes > 1:
        supervisor = Supervisor(ports_of(settings.worker.metrics_port, processes))
        raise typer.Exit(asyncio.run(supervisor.run()))
    stop_with_parent()
    _apply(found, settings)
    own = settings.worker
    close = serve_metrics(found.events, own.metrics_port, own.metrics_host, cost)
    try:
        asyncio.run(found.run(options))
    finally:
        close()


def _price(text: str | None, settings: Settings) -> Price | None:
    if text is None:
        return None
    cost = price_named(text)
    if settings.worker.metrics_port is None:
        raise ConfigError(f"--price {text} is for the cost metric and needs --metrics-port")
    return cost


def _found(target: str) -> Worker:
    found = found_at(target, Worker, "pollwise worker", "pollwise.Worker(queue_url)")
    if not found.kinds:
        raise HandlerError(
            f"the worker {target!r} has no handler; register one with @worker.handle('kind')"
        )
    return found


RUN_OPTIONS = (
    "polling",
    "concurrency",
    "prefetch",
    "lease",
    "grace",
    "timeout",
    "long_interval",
)


def _apply(found: Worker, settings: Settings) -> None:
    if settings.is_set("worker.queue") and settings.worker.queue:
        found.queue = settings.worker.queue
    if settings.worker.log_level == "debug":
        found.events.subscribe(log, *debug_events())
