"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pollwise.errors import ConfigError
from pollwise.runtime.redact import without_user

#: The maximum number of processes that one command starts.
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
        help="Serve Prometheus metrics on this port, and further processes on the ports after it; "
        "0 uses any free ports."
    ),
]
HealthPort = Annotated[
    int | None,
    typer.Option(help="Serve /livez and /readyz on this port; 0 uses any free port."),
]
MaxMemory = Annotated[
    int | None, typer.Option(help="Replace a process that uses more than this many bytes.")
]
RecycleWhenFull = Annotated[
    bool | None,
    typer.Option(
        "--recycle-when-full/--no-recycle-when-full",
        help="Replace a process if threads that timed out occupy all its places.",
    ),
]
TraceContext = Annotated[
    str | None,
    typer.Option(help="How the span of a run refers to its put: link, or parent (one trace)."),
]
LogFormat = Annotated[str | None, typer.Option(help="text or json.")]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def set_option(example: str) -> Any:
    """`--set key=value`, which sets any setting."""
    return typer.Option("--set", help=f"Any setting: {example}")


def overrides_of(
    section: str, pairs: list[str] | None, example: str, **flags: object
) -> dict[str, object]:
    """The settings given as arguments, by key: those of `--set`, and the flags that were used.

    flags: by their keys in the section; None is a flag that was not used.
    """
    overrides: dict[str, object] = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {without_user(pair)!r} has no value; write --set {example}")
        overrides[key.strip()] = value.strip()
    for name, given in flags.items():
        if given is not None:
            overrides[f"{section}.{name}"] = str(given) if isinstance(given, Path) else given
    return overrides
