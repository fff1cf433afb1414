"""`pollwise queue export`: serve the metrics of the queues of a store."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from pollwise.cli.options import LogFormat, LogLevel
from pollwise.cli.running import serve_metrics
from pollwise.durations import seconds
from pollwise.observe import logs
from pollwise.platforms import loops
from pollwise.runtime.events import Events
from pollwise.runtime.signals import stopping_on_signals
from pollwise.worker.measuring import QueueExporter


def export(
    urls: Annotated[
        list[str],
        typer.Argument(help="A queue; without ?queue=name, every queue of its store."),
    ],
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="Serve Prometheus metrics on this port; 0 uses any free."
        ),
    ],
    host: Annotated[str, typer.Option(help="The address to serve at.")] = "127.0.0.1",
    every: Annotated[str, typer.Option(help="How often to measure the store.")] = "15s",
    log_format: LogFormat = None,
    log_level: LogLevel = None,
) -> None:
    """Serve metrics of queues: jobs by kind and state, ages, pauses, workers. Run one per store.

    If the store cannot be reached, the last numbers are served, with the time of the measurement.

    Example: pollwise queue export postgresql://app@db/shop --port 9093
    """
    logs.set_up(log_level or "info", log_format or "text")
    pause, events, stop = seconds(every, "--every", positive=True), Events(), asyncio.Event()
    exporter = QueueExporter(urls, events, pause)

    async def main() -> None:
        with stopping_on_signals(stop.set):
            await exporter.run(stop)

    close = serve_metrics(events, port, host)
    try:
        loops.run(main())
    finally:
        close()
