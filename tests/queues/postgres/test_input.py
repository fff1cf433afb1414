"""PostgresQueue and what it is given: URLs, roles, payloads."""

from __future__ import annotations

import psycopg
import pytest

from pollwise.errors import ConfigError, PayloadError, SchemaError, StoreError, StoreUnavailable
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.queues.urls import open_queue
from pollwise.runtime.jobs import NewJob, Progress, Settlement
from tests.queues.benches import migrated
from tests.queues.postgres.kit import GRANTS, drain, fresh, refusal, run
from tests.support.servers import Postgres


def test_a_url_has_its_options_and_those_of_libpq() -> None:
    queue = open_queue(
        "postgresql://app:hunter2@db:6432/jobs?queue=mail&schema=work&keep=7d&timeout=5s"
        "&connections=9&max_payload_bytes=10&listen=postgresql://direct/jobs&sslmode=require"
        "&target_session_attrs=read-write"
    )
    assert isinstance(queue, PostgresQueue)
    assert (queue.name, queue.schema, queue.keep) == ("mail", "work", 7 * 86400)
    assert queue.max_payload_bytes == 10
    assert queue.url == "postgresql://app@db:6432/jobs?queue=mail&schema=work"
    parts = psycopg.conninfo.conninfo_to_dict(queue.database.conninfo)
    assert parts["sslmode"] == "require"
    assert parts["password"] == "hunter2"
    assert "schema" not in parts
    assert psycopg.conninfo.conninfo_to_dict(queue._listen)["host"] == "direct"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app@db:6432/jobs?queue=mail",
        "postgresql:///jobs?host=%2Fvar%2Frun%2Fpg&queue=a%20b",
        "postgresql:///jobs?host=a%2Cb&port=1%2C2&queue=x",
        "postgresql://[::1]:5432/jobs?queue=x",
        "postgresql:///?queue=default",
    ],
)
def test_a_queue_can_be_opened_again_by_its_url(url: str) -> None:
    queue = open_queue(url)
    assert open_queue(queue.url).url == queue.url == url
    assert open_queue(url.replace("postgresql:", "postgres:", 1)).url == url


def test_a_conninfo_need_not_be_a_url() -> None:
    queue = PostgresQueue("host=db dbname=jobs user=app password=hunter2", "mail")
    assert queue.url == "postgresql://app@db/jobs?queue=mail"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://u:hunter2@h/d?quue=x", "did you mean 'queue'?"),
        ("postgresql://u:hunter2@h/d?sslmod=x", "did you mean 'sslmode'?"),
        ("postgresql://u:hunter2@h/d?password=hunter2&password=hunter3", "password is given twice"),
        ("postgresql://u:hunter2@h/d?schema=pg_x", "schema = 'pg_x'"),
        ("postgresql://u:hunter2@h/d?schema=", "schema = ''"),
        ("postgresql://u:hunter2@h/d?connections=0", "connections = 0"),
        ("postgresql://u:hunter2@h/d?connections=x", "connections = 'x'"),
        ("postgresql://u:hunter2@h/d?timeout=0", "timeout = '0'"),
        ("postgresql://u:hunter2@h/d?listen=nonsense%20hunter2", "listen cannot be read"),
        ("postgresql://u:hunter2@h/d#x", "write it as %23"),
        ("postgresql://u:hunter2/x@h/d", "special characters in a user or a password"),
        ("postgresql://u:hun@ter2@h/d", "special characters in a user or a password"),
        ("postgresql://u:12/hunter2@h/d", "special characters in a user or a password"),
        ("postgresql://u:hunter2\uff03@h/d", "is not a queue URL"),
    ],
)
def test_bad_urls_are_refused_without_their_secrets(url: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_queue(url)
    assert says in str(caught.value)
    for secret in ("hunter", "ter2"):
        assert secret not in str(caught.value)


def test_missing_rights_and_databases_are_reported(postgres: Postgres) -> None:
    postgres.create_role("limited", "hunter2")
    good = postgres.dsn(user="limited")
    migrated(postgres.dsn(), "closed")

    async def main() -> None:
        wrong = await refusal(good.replace("hunter2", "wrong"))
        assert type(wrong) is StoreError
        assert "password authentication failed" in str(wrong)
        assert "Check the user and the password." in str(wrong)
        none = await refusal(postgres.dsn("nowhere", "limited"))
        assert type(none) is StoreError
        assert '"nowhere" does not exist' in str(none)
        nobody = await refusal(f"postgresql://nobody:hunter2@127.0.0.1:{postgres.port}/postgres")
        assert type(nobody) is StoreError
        bare = await refusal(good, schema="never made")
        assert type(bare) is SchemaError
        assert "pollwise queue migrate" in str(bare)
        closed = await refusal(good, schema="closed")
        assert type(closed) is StoreError
        assert "Grant the role USAGE on the schema; SELECT and USAGE on its seq" in str(closed)
        postgres.execute("GRANT USAGE ON SCHEMA closed TO limited")
        postgres.execute("GRANT SELECT ON closed.migrations TO limited")
        half = await refusal(good, schema="closed")
        assert type(half) is StoreError
        assert "INSERT" in str(half)
        away = await refusal("postgresql://app:hunter2@127.0.0.1:1/x")
        assert type(away) is StoreUnavailable
        assert "cannot be reached" in str(away)

    run(main)


def test_a_role_with_the_grants_of_the_docs_can_do_everything(postgres: Postgres) -> None:
    postgres.create_role("runner", "hunter2")
    migrated(postgres.dsn(), "granted")
    postgres.execute(GRANTS)

    async def main() -> None:
        async with fresh(postgres.dsn(user="runner"), schema="granted", keep=60) as queue:
            await queue.put([NewJob("job", 1, key="k", unique="u"), NewJob("job", 2, key="k")])
            [claim] = await queue.claim("w", 10, 60)
            await queue.renew([claim], 60, {claim.job.id: Progress(0.5)})
            await queue.cancel([claim.job.id])
            await queue.settle([Settlement.dead(claim, "broken")])
            assert await queue.retry() == 1
            assert await drain(queue) == [2, 1]
            assert (await queue.stats()).done == 2
            assert await queue.drop() == 0
            assert await queue.prune() == 0

    run(main)


def test_a_role_that_was_granted_the_tables_of_an_older_version_goes_on(postgres: Postgres) -> None:
    """It may not pause or store a record before it is granted the new table."""
    postgres.create_role("veteran", "hunter2")
    migrated(postgres.dsn(), "older")
    postgres.execute(
        "GRANT USAGE ON SCHEMA older TO veteran; GRANT SELECT ON older.migrations TO veteran; "
        "GRANT SELECT, INSERT, UPDATE, DELETE ON older.jobs TO veteran"
    )

    async def main() -> None:
        async with (
            fresh(postgres.dsn(user="veteran"), schema="older") as queue,
            PostgresQueue(postgres.dsn(), queue.name, schema="older") as admin,
        ):
            await queue.put([NewJob("mail", 1), NewJob("job", 2)])
            await admin.pause("mail")
            claims = await queue.claim("w", 10, 60)
            assert [claim.job.payload for claim in claims] == [2]
            with pytest.raises(StoreError, match="permission denied"):
                await queue.pause("job")
            await admin.resume("mail")
            assert len(await queue.claim("w", 10, 60, kinds=["mail"])) == 1

    run(main)


def test_a_payload_too_large_is_refused(dsn: str) -> None:
    async def main() -> None:
        async with fresh(dsn, max_payload_bytes=10) as queue:
            with pytest.raises(PayloadError, match="max_payload_bytes is 10"):
                await queue.put(NewJob("job", "x" * 100))

    run(main)


def test_a_batch_too_large_for_postgres_is_refused(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pollwise.queues.postgres.queue.BATCH_BYTES_MAX", 1000)

    async def main() -> None:
        async with fresh(dsn) as queue:
            with pytest.raises(PayloadError, match="at most 1000 at once, so split it"):
                await queue.put([NewJob("job", "x" * 400) for _ in range(3)])
            await queue.put([NewJob("job", "x" * 400) for _ in range(2)])

    run(main)


def test_transactions_of_another_kind_are_refused(postgres: Postgres) -> None:
    postgres.create_role("serial", "hunter2", "SUPERUSER")
    postgres.execute("ALTER ROLE serial SET default_transaction_isolation = 'repeatable read'")
    migrated(postgres.dsn())

    async def main() -> None:
        error = await refusal(postgres.dsn(user="serial"))
        assert type(error) is StoreError
        assert "transactions are repeatable read here" in str(error)

    run(main)
