"""What the management commands share: the options of `pollwise worker` and `pollwise outbox run`,
and workers for several queues in one process.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, get_args, get_type_hints

import typer
from django.core.management.base import CommandError
from django.utils.autoreload import get_child_arguments

from pollwise.cli.options import overrides_of
from pollwise.cli.running import PROGRAM, begun
from pollwise.contrib.django import conf
from pollwise.errors import PollwiseError
from pollwise.runtime.events import Events
from pollwise.runtime.payloads.envelope import CodecChain
from pollwise.runtime.signals import stopping_on_signals
from pollwise.settings import Settings
from pollwise.worker import Worker, WorkerRunOptions
from pollwise.worker.once import RunSummary

#: The parameters of a command that are not settings of its section, or not under their own name.
APART = ("target", "processes", "price", "once", "setting")
RENAMED = {"strategy": "polling.strategy"}


class Workers:
    """Workers that run together, one for each queue. If one ends, all end."""

    def __init__(self, workers: Sequence[Worker], events: Events) -> None:
        self.workers = workers
        self.options: WorkerRunOptions = workers[0].options
        self.events = events
        self.recycled: str = ""

    @property
    def codec(self) -> CodecChain | None:
        return self.workers[0].codec

    @codec.setter
    def codec(self, codec: CodecChain | None) -> None:
        for worker in self.workers:
            worker.codec = codec

    async def run(self, options: WorkerRunOptions | None = None) -> None:
        runs = [asyncio.create_task(worker.run(options)) for worker in self.workers]
        try:
            await asyncio.wait(runs, return_when=asyncio.FIRST_COMPLETED)
            for worker in self.workers:
                worker.stop()
            await asyncio.gather(*runs)
        finally:
            for run in runs:
                run.cancel()
            await asyncio.wait(runs)
        self.recycled = next((w.recycled for w in self.workers if w.recycled), "")

    async def run_once(self, options: WorkerRunOptions | None = None) -> RunSummary:
        """Run the jobs that are ready, queue by queue, until a round finds none."""
        total, stopped, found = RunSummary(), asyncio.Event(), True
        with stopping_on_signals(stopped.set):
            while found and not stopped.is_set():
                before = total.runs
                total.limited.clear()  # each round sees all that wait
                for worker in self.workers:
                    if not stopped.is_set():
                        total.add(await worker.run_once(options))
                found = total.runs > before
        return total


def add_options(parser: argparse.ArgumentParser, command: Callable[..., Any]) -> None:
    """Give a parser the options of a command of `pollwise`."""
    for name, hint in get_type_hints(command, include_extras=True).items():
        kind, option = (*get_args(hint), None, None)[:2]
        if not isinstance(option, typer.models.OptionInfo) or name.startswith("reload"):
            continue  # starting again after a change of code is for `pollwise worker`
        # In an annotation, the first name of an option is in the place of its default.
        written = [option.default, *(option.param_decls or ())]
        flags = [flag for flag in written if isinstance(flag, str)]
        flags = flags or [f"--{name.replace('_', '-')}"]
        more: dict[str, Any] = {"dest": name, "help": option.help, "default": None}
        types = [each for each in (get_args(kind) or (kind,)) if each is not type(None)]
        if bool in types:
            name, two, _ = flags[0].partition("/")
            flags = [name]
            more["action"] = argparse.BooleanOptionalAction if two else "store_true"
        elif list in [getattr(each, "__origin__", None) for each in types]:
            more |= {"action": "append", "metavar": "KEY=VALUE"}
        elif int in types:
            more["type"] = int
        parser.add_argument(*flags, **more)


def settings_of(section: str, command: Callable[..., Any], given: dict[str, Any]) -> Settings:
    """The settings, with what the options of a command say."""
    names = [name for name in get_type_hints(command) if name in given and name not in APART]
    flags = {RENAMED.get(name, name): given[name] for name in names}
    pairs = given.get("setting")
    return conf.loaded(
        overrides_of(section, pairs, f"{section}.lease=30s", **flags), begun(section)
    )


def program(processes: int) -> Sequence[str]:
    """The command line of this process, up to the name of the management command: for starting
    several processes of it.
    """
    if processes == 1:
        return PROGRAM  # it is not used, and code that calls a command may have no command line
    words: list[str] = get_child_arguments()
    return words[: len(words) - len(sys.argv[1:])]


@contextmanager
def as_command() -> Iterator[None]:
    """Report errors and exit codes as management commands do."""
    try:
        yield
    except PollwiseError as error:
        raise CommandError(str(error), returncode=2) from error
    except typer.Exit as end:
        sys.exit(end.exit_code)
