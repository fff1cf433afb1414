"""The tree of commands. Each is imported when it is used, so that help and workers start fast."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from pollwise import __version__
from pollwise.runtime.redact import without_secrets_of

#: Depending on its version, Typer brings its own Click or uses the installed one.
UsageError: Any = typer.BadParameter.__base__


class CommandEntry(NamedTuple):
    """The module of a command, in `pollwise.cli`, and its line in the list of commands."""

    module: str
    summary: str


#: In the order of the help. A summary is the first line of the command's own help.
COMMANDS = {
    "demo": CommandEntry(
        "demo", "Watch an adaptive worker save polls on a bursty queue. Ctrl-C ends it early."
    ),
    "poll": CommandEntry(
        "sources.commands", "Poll a source and print each item once, as a line of JSON."
    ),
    "worker": CommandEntry(
        "worker.commands",
        "Run a worker until SIGTERM or Ctrl-C; then finish running jobs and give the rest back.",
    ),
    "agent": CommandEntry(
        "agent", "Take jobs from a controller and run a command for each, until SIGTERM or Ctrl-C."
    ),
    "doctor": CommandEntry(
        "doctor",
        "Check this machine, the settings and, if given, a queue or an outbox.",
    ),
    "queue": CommandEntry(
        "queue.commands",
        "Put, list, cancel, retry and drop jobs; pause them, and see their workers.",
    ),
    "schedule": CommandEntry(
        "queue.schedule",
        "Put jobs at set times: list, add, remove, pause, resume and run schedules.",
    ),
    "outbox": CommandEntry(
        "outbox.commands",
        "The transactional outbox: run its relay, show its records, unblock keys.",
    ),
    "web": CommandEntry(
        "web",
        "See and steer queues, outboxes and fleets in a browser, until SIGTERM or Ctrl-C.",
    ),
    "serve": CommandEntry("serve", "Run a controller: jobs for workers anywhere, over HTTP."),
    "fleet": CommandEntry("fleet.commands", "Poll thousands of targets, each at its own pace."),
    "lab": CommandEntry(
        "lab.commands", "Try polling on traces: replay, compare, tune and price it."
    ),
    "observe": CommandEntry(
        "observe.commands", "Write dashboards for Grafana and alert rules for Prometheus."
    ),
    "keys": CommandEntry("keys", "Make and list the keys that encrypt payloads."),
    "config": CommandEntry("config", "Show and check the settings."),
}


class Commands(UserDict[str, Any]):
    """The commands by name; each is imported on first access."""

    def __getitem__(self, name: str) -> Any:
        found = self.data[name]
        if isinstance(found, CommandEntry):
            found = self.data[name] = _command(name, found)
        return found


def _command(name: str, place: CommandEntry) -> Any:
    """Import a command, or a group of commands, and build it with Typer."""
    module = import_module(f"pollwise.cli.{place.module}")
    found = getattr(module, name, None) or module.app
    around = typer.Typer()
    if isinstance(found, typer.Typer):
        around.add_typer(found, name=name)
    else:
        around.command(name)(found)
    return typer.main.get_group(around).commands[name]


@contextmanager
def _hiding_secrets(words: list[str]) -> Iterator[None]:
    """Hide secrets in usage errors, which quote the words of the command line."""
    try:
        yield
    except UsageError as error:
        error.message = without_secrets_of(words, error.message)
        options = error.ctx.command.params if error.ctx else []
        extra = "unexpected extra argument" in error.message
        if extra and any("--store" in option.opts for option in options):
            error.message += ". Give the store as an option: --store URL"
        raise


class RootGroup(TyperGroup):
    """The top-level commands; listing them needs only their summaries."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = Commands(COMMANDS)

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        self._words = list(args)
        with _hiding_secrets(self._words):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _hiding_secrets(self._words):
            return super().invoke(ctx)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command for lists, with its summary only; `resolve_command` returns the real one."""
        if cmd_name not in COMMANDS:
            return None
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name].summary)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else self.commands[name], rest


app = typer.Typer(
    name="pollwise",
    cls=RootGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"pollwise {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Pollwise decides when to poll again: adaptive polling for Python.

    Example: pollwise demo --seconds 30
    """
