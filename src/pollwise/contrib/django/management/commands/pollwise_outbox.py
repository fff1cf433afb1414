"""`manage.py pollwise_outbox`: run the relay of an outbox."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import BaseCommand

from pollwise.cli.outbox.commands import run as pollwise_outbox_run
from pollwise.cli.outbox.commands import run_relay
from pollwise.contrib.django import conf
from pollwise.contrib.django.running import add_options, as_command, program, settings_of
from pollwise.errors import ConfigError


class OutboxCommand(BaseCommand):
    """Run a relay until SIGTERM or Ctrl-C; then finish running handlers and give the rest back."""

    help = __doc__

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "target",
            nargs="?",
            help='The outbox, as module:name; else settings.POLLWISE["outbox"]["target"].',
        )
        add_options(parser, pollwise_outbox_run)

    def handle(self, **given: Any) -> None:
        with as_command():
            target = given["target"] or conf.outbox_target()
            if target is None:
                raise ConfigError(
                    "name the outbox: manage.py pollwise_outbox shop.events:outbox, or "
                    f'{conf.NAME}["outbox"]["target"]'
                )
            settings = settings_of("outbox", pollwise_outbox_run, given)
            processes = given["processes"] or 1
            run_relay(settings, target, processes, program(processes))


Command = OutboxCommand  # the name that Django looks for
