"""`pollwise worker module:worker`: run a worker, or several processes of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from pollwise.cli.options import (
    HealthPort,
    LogFormat,
    LogLevel,
    MaxMemory,
    MetricsPorts,
    Processes,
    RecycleWhenFull,
    StrategyName,
    TraceContext,
    overrides_of,
    set_option,
)
from pollwise.cli.running import (
    PROGRAM,
    begun,
    found_at,
    has_meter_provider,
    note,
    run_in_processes,
)
from pollwise.errors import ConfigError, HandlerError
from pollwise.lab.prices import Price, price_named
from pollwise.observe import logs
from pollwise.settings import Settings, load
from pollwise.settings.codecs import codec_of
from pollwise.worker import Worker

SET_EXAMPLE = "worker.lease=30s"


def worker(
    target: Annotated[str, typer.Argument(help="The worker, as module:name.")],
    processes: Processes = 1,
    concurrency: Annotated[
        int | None, typer.Option(help="How many handlers run at a time.")
    ] = None,
    strategy: StrategyName = None,
    metrics_port: MetricsPorts = None,
    health_port: HealthPort = None,
    price: Annotated[
        str | None, typer.Option(help="What a poll costs, for the cost metric: s3-list, 0.4/1e6.")
    ] = None,
    max_jobs: Annotated[
        int | None, typer.Option(help="Replace a process after this many runs of handlers.")
    ] = None,
    max_memory: MaxMemory = None,
    grace: Annotated[
        str | None, typer.Option(help="How long a stop waits for running handlers: 30s, 5m.")
    ] = None,
    recycle_when_full: RecycleWhenFull = None,
    cpu_processes: Annotated[
        int | None,
        typer.Option(
            help="How many processes run handlers with process=True; by default one per CPU."
        ),
    ] = None,
    trace_context: TraceContext = None,
    once: Annotated[
        bool,
        typer.Option("--once", help="Run the jobs that are ready, then exit; 1 if any failed."),
    ] = False,
    reload: Annotated[
        bool,
        typer.Option("--reload", help="Start the worker again when its code changes (developing)."),
    ] = False,
    reload_dir: Annotated[
        list[Path] | None,
        typer.Option(help="A folder that --reload watches, instead of the current one."),
    ] = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    setting: Annotated[list[str] | None, set_option(SET_EXAMPLE)] = None,
) -> None:
    """Run a worker until SIGTERM or Ctrl-C; then finish running jobs and give the rest back.

    With --once, it exits when no job can start and none runs: with code 0, or 1 if a run failed.

    Example: pollwise worker shop.jobs:worker --concurrency 16 --metrics-port 9091
    """
    flags = {"polling.strategy": strategy, "concurrency": concurrency, "metrics_port": metrics_port}
    flags |= {"log_format": log_format, "log_level": log_level, "max_jobs": max_jobs}
    flags |= {"max_memory": max_memory, "recycle_when_full": recycle_when_full}
    flags |= {"cpu_processes": cpu_processes, "grace": grace, "health_port": health_port}
    flags |= {"trace_context": trace_context}
    settings = load(
        overrides=overrides_of("worker", setting, SET_EXAMPLE, **flags), runs=begun("worker")
    )
    if reload_dir and not reload:
        raise ConfigError("--reload-dir needs --reload")
    if reload:
        if processes > 1 or once:
            raise ConfigError("--reload runs one process: leave --processes and --once out")
        from pollwise.cli.worker.reloading import run_reloading

        _price(price, settings)
        logs.set_up(settings.worker.log_level, settings.worker.log_format)
        raise typer.Exit(run_reloading(target, reload_dir))
    run_worker(settings, lambda: found_worker(target), processes, price, once)


def run_worker(
    settings: Settings,
    find: Callable[[], Any],
    processes: int = 1,
    price: str | None = None,
    once: bool = False,
    program: Sequence[str] = PROGRAM,
) -> None:
    """Run the worker that `find` returns. program: the command line before its own words."""
    own = settings.worker
    cost = _price(price, settings)
    logs.set_up(own.log_level, own.log_format)
    found = find()
    if own.export_queue and own.metrics_port is None and not has_meter_provider():
        raise ConfigError(
            "worker.export_queue = true is for metrics; set worker.metrics_port (--metrics-port), "
            "or configure a MeterProvider of OpenTelemetry"
        )
    logs.show_users_records(own.log_level, own.log_format)
    if settings.is_set("worker.queue") and own.queue:
        found.queue = own.queue
    chain = codec_of(settings)
    if chain is not None:
        found.codec = chain
    if once:
        _run_once(found, settings, processes, cost)
    else:
        run_in_processes(found, settings, "worker", processes, cost, program=program)


def _run_once(found: Any, settings: Settings, processes: int, cost: Price | None) -> None:
    if processes > 1:
        raise ConfigError(f"--once runs one process, not --processes {processes}; leave it out")
    ran = run_in_processes(found, settings, "worker", 1, cost, found.run_once)
    if ran is not None:
        note(logging.INFO, "ran_once", f"ran what may run now: {ran}", **asdict(ran))
        raise typer.Exit(1 if ran.failed else 0)


def _price(text: str | None, settings: Settings) -> Price | None:
    if text is None:
        return None
    cost = price_named(text)
    if settings.worker.metrics_port is None:
        raise ConfigError(f"--price {text} is for the cost metric and needs --metrics-port")
    return cost


def found_worker(target: str) -> Worker:
    """The worker `module:name`, which must have a handler."""
    found = found_at(target, Worker, "pollwise worker", "pollwise.Worker(queue_url)")
    if not found.kinds:
        raise HandlerError(
            f"the worker {target!r} has no task or handler; register one with @worker.task"
        )
    return found
