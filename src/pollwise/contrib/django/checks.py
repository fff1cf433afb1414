"""Checks of settings.POLLWISE when Django starts. The backend checks settings.TASKS itself."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.conf import settings
from django.core import checks

from pollwise.contrib.django import conf
from pollwise.contrib.django.api import BUILT_IN
from pollwise.contrib.django.tasks import import_modules
from pollwise.errors import PollwiseError


def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """What is wrong with settings.POLLWISE."""
    found: list[checks.CheckMessage] = []
    for read in (conf.codec, import_modules, conf.outbox_target, _place):
        try:
            read()
        except PollwiseError as error:
            if all(each.msg != str(error) for each in found):
                found.append(checks.Error(str(error), id="pollwise.E001"))
    if hasattr(settings, "TASKS") and not BUILT_IN and not apps.is_installed("django_tasks"):
        found.append(
            checks.Error(
                "before Django 6, the Tasks API is the app django_tasks",
                hint='Add "django_tasks" to INSTALLED_APPS.',
                id="pollwise.E003",
            )
        )
    return found


def _place() -> None:
    """Open the queue that is configured. It is not contacted."""
    if "queue" in conf.given():
        from pollwise.contrib.django.queues import DjangoQueue

        DjangoQueue("default", conf.default_place())
