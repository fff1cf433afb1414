"""The Django project that the tests use, in this process and in others.

Django has one set of settings in a process, so all tests share those of the project; a `Site`
replaces its default database.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from asgiref.sync import sync_to_async

from pollwise.worker import Worker, WorkerRunOptions
from tests.support.daemons import wait_until
from tests.support.servers import Postgres

PROJECT = Path(__file__).parent / "project"
DEADLINE = 240.0


def set_up_django() -> None:
    """Use the project in this process."""
    if str(PROJECT) not in sys.path:
        sys.path.insert(0, str(PROJECT))
        os.environ["DJANGO_SETTINGS_MODULE"] = "grocersite.settings"
        import django

        django.setup()
        del os.environ["DJANGO_SETTINGS_MODULE"]  # processes of other tests have other projects


def sqlite_database(path: Path) -> dict[str, Any]:
    options = {"transaction_mode": "IMMEDIATE", "timeout": 60}
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "OPTIONS": options}


def postgres_database(postgres: Postgres, name: str) -> dict[str, Any]:
    parts = psycopg.conninfo.conninfo_to_dict(postgres.create_database(name))
    given = {key.upper(): str(parts[key]) for key in ("user", "host", "port")}
    return {"ENGINE": "django.db.backends.postgresql", "NAME": name, **given}


class Site:
    """The project on databases of its own."""

    def __init__(self, databases: dict[str, dict[str, Any]]) -> None:
        self.databases = databases
        self.pollwise: dict[str, Any] = {"queue": {"database": "default", "keep": "1h"}}

    @contextmanager
    def used(self) -> Iterator[None]:
        """Use its databases in this process."""
        set_up_django()
        from django.db import connections

        before = dict(connections.settings)
        forget_connections()
        connections.settings.update(self.databases)
        connections.configure_settings(connections.settings)
        try:
            yield
        finally:
            forget_connections()
            connections.settings.clear()
            connections.settings.update(before)

    def manage(self, *words: object, **variables: str) -> subprocess.Popen[str]:
        """Start a management command in a process of its own."""
        environ = {
            **os.environ,
            "SHOP_DATABASES": json.dumps(self.databases, default=str),
            "SHOP_POLLWISE": json.dumps(self.pollwise),
            **variables,
        }
        command = [sys.executable, str(PROJECT / "manage.py"), *map(str, words)]
        return subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )


def forget_connections() -> None:
    """Close the connections of this thread; the next ones go where the settings say."""
    from django.db import connections

    connections.close_all()
    for alias in connections.settings:
        if hasattr(connections._connections, alias):
            del connections[alias]


def work(worker: Worker, until: Callable[[], bool]) -> None:
    """Run a worker in this process until a condition holds."""

    async def main() -> None:
        options = WorkerRunOptions(concurrency=4, signals=False)
        async with worker.running(options):
            await asyncio.to_thread(_held, until)
        await sync_to_async(forget_connections)()  # of the thread of async tasks

    asyncio.run(main())


def _held(condition: Callable[[], bool]) -> None:
    from django.db import connections

    try:
        wait_until(condition, "the condition holds", DEADLINE)
    finally:
        connections.close_all()
