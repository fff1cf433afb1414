"""`manage.py pollwise_worker`: run the tasks of the project."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import BaseCommand

from pollwise.cli.worker.commands import found_worker, run_worker
from pollwise.cli.worker.commands import worker as pollwise_worker
from pollwise.contrib.django.backend import PollwiseBackend, backends
from pollwise.contrib.django.running import Workers, add_options, as_command, program, settings_of
from pollwise.errors import ConfigError, did_you_mean
from pollwise.runtime.events import Events
from pollwise.worker import Worker


class WorkerCommand(BaseCommand):
    """Run workers until SIGTERM or Ctrl-C; then finish running tasks and give the rest back."""

    help = __doc__

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "target",
            nargs="?",
            help="A worker of your own, as module:name, to run instead of Django's tasks.",
        )
        parser.add_argument(
            "--queue",
            action="append",
            dest="queues",
            metavar="NAME",
            help="Only this queue; may be repeated. By default, all QUEUES of the backend.",
        )
        parser.add_argument("--backend", help="The backend in settings.TASKS, if it has several.")
        add_options(parser, pollwise_worker)

    def handle(self, **given: Any) -> None:
        with as_command():
            settings = settings_of("worker", pollwise_worker, given)

            def find() -> Worker | Workers:
                if given["target"]:
                    return found_worker(given["target"])
                return _workers(given["backend"], given["queues"])

            processes, once = given["processes"] or 1, bool(given["once"])
            run_worker(settings, find, processes, given["price"], once, program(processes))


def _workers(alias: str | None, queues: list[str] | None) -> Worker | Workers:
    backend = _backend(alias)
    names = list(dict.fromkeys(queues or sorted(backend.queues) or ["default"]))
    for name in names:
        if backend.queues and name not in backend.queues:
            raise ConfigError(
                f"--queue {name} is not in QUEUES of settings.TASKS[{backend.alias!r}]; "
                f"{did_you_mean(name, sorted(backend.queues))}"
            )
    events = Events()
    workers = [backend.worker(name, events=events) for name in names]
    return workers[0] if len(workers) == 1 else Workers(workers, events)


def _backend(alias: str | None) -> PollwiseBackend:
    ours = {backend.alias: backend for backend in backends()}
    if alias is None and "default" not in ours and len(ours) == 1:
        return next(iter(ours.values()))
    chosen = alias or "default"
    if chosen not in ours:
        advice = (
            did_you_mean(chosen, ours)
            if ours
            else "give one the BACKEND 'pollwise.contrib.django.backend.PollwiseBackend'"
        )
        raise ConfigError(f"settings.TASKS has no {chosen!r} whose jobs Pollwise runs; {advice}")
    return ours[chosen]


Command = WorkerCommand  # the name that Django looks for
