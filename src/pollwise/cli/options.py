"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

#: How many processes one command starts at most.
MAX_PROCESSES = 256

Processes = Annotated[
    int, typer.Option(min=1, max=MAX_PROCESSES, help="How many processes to run.")
]
StrategyName = Annotated[str | None, typer.Option(help="The polling strategy, by name.")]
MetricsPort = Annotated[
    int | None, typer.Option(help="Serve Prometheus metrics on this port; 0 uses any free port.")
]
MetricsPorts = Annotated[
    int | None,
    typer.Option(
        help="Serve Prometheus metrics on this port, each further process on the next; "
        "0 uses any free ports."
    ),
]
LogFormat = Annotated[str | None, typer.Option(help="text or json.")]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error.")]
