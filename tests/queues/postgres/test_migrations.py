"""The schema of a PostgresQueue: who may make it, by call or by the printed SQL."""

from __future__ import annotations

import asyncio
import re
import subprocess

import pytest

from pollwise.errors import StoreError
from pollwise.queues.urls import open_queue
from pollwise.runtime.jobs import NewJob
from pollwise.storage.sql import migrations
from tests.queues.benches import migrated
from tests.queues.postgres.kit import drain, fresh, queue_at, run
from tests.support.servers import Postgres


@pytest.mark.parametrize(
    ("role", "schema", "right"),
    [
        ("maker", "made", "GRANT CREATE ON DATABASE postgres TO maker"),
        ("owner", "owned", "CREATE SCHEMA owned AUTHORIZATION owner"),
    ],
)
def test_a_role_that_may_create_the_schema_or_owns_it_migrates(
    postgres: Postgres, role: str, schema: str, right: str
) -> None:
    postgres.create_role(role, "hunter2")
    postgres.execute(right)

    async def main() -> None:
        async with fresh(postgres.dsn(user=role), schema=schema) as queue:
            assert await queue.migrate() == [
                version for version, _ in migrations("pollwise.queues.postgres.tables")
            ]
            assert await queue.migrate() == []
            await queue.put(NewJob("job", 1))
            assert await drain(queue) == [1]

    run(main)


def test_a_role_that_may_not_create_is_reported(postgres: Postgres) -> None:
    postgres.create_role("powerless", "hunter2")

    async def main() -> None:
        async with fresh(postgres.dsn(user="powerless"), schema="forbidden") as queue:
            with pytest.raises(StoreError, match="permission denied for database"):
                await queue.migrate()

    run(main)


def test_ten_migrate_at_once(postgres: Postgres) -> None:
    async def main() -> None:
        queues = [queue_at(postgres.dsn(), schema="at once") for _ in range(10)]
        applied = await asyncio.gather(*(queue.migrate() for queue in queues))
        await queues[0].put(NewJob("job", 1))
        assert await drain(queues[0]) == [1]
        for queue in queues:
            await queue.close()
        assert sum(map(bool, applied)) >= 1

    run(main)
    versions = postgres.execute('SELECT version FROM "at once".migrations ORDER BY version')
    assert versions == [(version,) for version, _ in migrations("pollwise.queues.postgres.tables")]


def test_the_printed_sql_makes_the_same_schema(postgres: Postgres) -> None:
    by_call, by_psql = postgres.create_database("by_call"), postgres.create_database("by_psql")
    migrated(by_call)
    text = open_queue(by_psql).migration()
    assert text is not None
    psql = str(postgres.programs / "psql")
    for _ in range(2):  # the second time does no harm
        command = [psql, by_psql, "--no-psqlrc", "--quiet", "-v", "ON_ERROR_STOP=1"]
        subprocess.run(command, input=text.encode(), check=True, capture_output=True)

    def dumped(database: str) -> str:
        dump = subprocess.run(
            [postgres.programs / "pg_dump", "--schema-only", database],
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        return re.sub(r"\\(un)?restrict \w+", "", dump)

    assert dumped(by_psql) == dumped(by_call)
    assert "CREATE FUNCTION pollwise.claim" in dumped(by_call)


def test_schemas_are_apart(postgres: Postgres) -> None:
    migrated(postgres.dsn(), "Odd näme")
    plain_dsn = migrated(postgres.dsn())

    async def main() -> None:
        async with (
            fresh(postgres.dsn(), name="same", schema="Odd näme") as odd,
            fresh(plain_dsn, name="same") as plain,
        ):
            await odd.put(NewJob("job", "odd", unique="u"))
            assert await drain(plain) == []
            assert await drain(odd) == ["odd"]

    run(main)
