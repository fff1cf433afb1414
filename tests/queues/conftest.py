"""What the tests of the queues on shared servers begin with."""

from __future__ import annotations

import secrets

import pytest

from tests.queues.benches import migrated
from tests.support.servers import Postgres


@pytest.fixture
def dsn(postgres: Postgres) -> str:
    """A shared database in which the tables are made."""
    return migrated(postgres.dsn())


@pytest.fixture
def name() -> str:
    """The name of a queue that nobody else uses."""
    return f"test-{secrets.token_hex(6)}"
