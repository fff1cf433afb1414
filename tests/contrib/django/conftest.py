"""The project on each database that Django and Pollwise can share."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contrib.django.sites import Site, postgres_database, sqlite_database


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def migrated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The project with its tables."""
    if request.param == "sqlite":
        folder: Path = tmp_path_factory.mktemp("site")
        database = sqlite_database(folder / "grocer.db")
    else:
        name = f"shop_{secrets.token_hex(4)}"
        database = postgres_database(request.getfixturevalue("postgres"), name)
    site = Site({"default": database})
    with site.used():
        from django.core.management import call_command

        call_command("migrate", run_syncdb=True, verbosity=0)
    return site


@pytest.fixture
def site(migrated: Site) -> Iterator[Site]:
    """The project, without orders and jobs, in use in this process."""
    with migrated.used():
        from django.db import connection
        from grocer.models import Order

        Order.objects.all().delete()
        jobs = "pollwise_jobs" if connection.vendor == "sqlite" else "pollwise.jobs"
        with connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {jobs}")
        yield migrated
