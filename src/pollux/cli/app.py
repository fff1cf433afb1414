"""The tree of commands."""

from __future__ import annotations

import typer

from pollux import __version__
from pollux.cli import agent, config, demo, doctor, fleet, lab, outbox, queue, serve, worker

app = typer.Typer(
    name="pollux",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"pollux {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Pollux decides when to look again: adaptive polling for Python.

    Example: pollux demo --seconds 30
    """


app.command("demo")(demo.demo)
app.command("worker")(worker.worker)
app.command("submit")(queue.submit)
app.add_typer(queue.queue_app, name="queue")
app.add_typer(queue.dead_app, name="dead")
app.add_typer(outbox.app, name="outbox")
app.add_typer(serve.app, name="serve")
app.command("agent")(agent.agent)
app.add_typer(fleet.app, name="fleet")
app.add_typer(lab.app, name="lab")
app.add_typer(config.app, name="config")
app.command("doctor")(doctor.doctor)
