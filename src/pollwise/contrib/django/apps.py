"""The Django app."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules

from pollwise.errors import PollwiseError


class PollwiseConfig(AppConfig):
    """Imports the tasks of all apps, checks the settings, and creates tables after `migrate`."""

    name = "pollwise.contrib.django"
    label = "pollwise"
    verbose_name = "Pollwise"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from pollwise.contrib.django.checks import check_settings
        from pollwise.contrib.django.tasks import import_modules

        checks.register(check_settings)
        post_migrate.connect(_create_tables, sender=self, dispatch_uid="pollwise-tables")
        autodiscover_modules("tasks")
        with suppress(PollwiseError):  # the checks report it
            import_modules()


def _create_tables(*, using: str, **_: Any) -> None:
    from pollwise.contrib.django.queues import create_tables

    create_tables(using)
