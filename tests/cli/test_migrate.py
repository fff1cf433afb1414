"""`pollwise queue migrate`."""

from __future__ import annotations

import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from pollwise.storage.sql import migrations
from tests.cli.console import good, pollwise
from tests.support.servers import Postgres

VERSIONS = [version for version, _ in migrations("pollwise.queues.postgres.tables")]


def test_migrate_makes_the_tables_once(postgres: Postgres) -> None:
    url = postgres.create_database("cli_migrate") + "?queue=mail"
    refused = pollwise("queue", "stats", url)
    assert refused.code == 2
    assert "Run `pollwise queue migrate URL`" in refused.err
    many, last = len(VERSIONS), VERSIONS[-1]  # some versions have no migration on a store
    said = f"applied {many} migrations: the tables are at version {last}\n"
    assert good("queue", "migrate", url).out == said
    assert good("queue", "migrate", url).out == "nothing to do: the tables are up to date\n"
    assert good("queue", "migrate", url, "--json").json() == {"applied": []}
    assert good("queue", "put", url, "greet", '"Ann"').out == "1\n"
    assert good("queue", "stats", url, "--json").json()["ready"] == 1


def test_migrate_says_what_it_did_in_json(postgres: Postgres) -> None:
    url = postgres.create_database("cli_json")
    assert good("queue", "migrate", url, "--json").json() == {"applied": VERSIONS}


def test_the_sql_is_printed_without_a_server_and_runs_elsewhere(postgres: Postgres) -> None:
    printed = good("queue", "migrate", "postgresql://nobody:hunter2@127.0.0.1:1/x", "--sql").out
    assert "hunter2" not in printed
    dsn = postgres.create_database("cli_sql")
    subprocess.run(
        [postgres.programs / "psql", dsn, "--no-psqlrc", "--quiet", "-v", "ON_ERROR_STOP=1"],
        input=printed.encode(),
        check=True,
        capture_output=True,
    )
    assert good("queue", "migrate", dsn, "--json").json() == {"applied": []}
    again = good("queue", "migrate", dsn, "--sql", "--json").json()
    assert again == {"sql": printed}


def test_another_schema_is_made_where_it_is_asked_for(postgres: Postgres) -> None:
    dsn = postgres.create_database("cli_schema")
    good("queue", "migrate", f"{dsn}?schema=work")
    good("queue", "put", f"{dsn}?schema=work", "greet")
    assert pollwise("queue", "put", dsn, "greet").code == 2
    assert 'CREATE SCHEMA "work"' in good("queue", "migrate", f"{dsn}?schema=work", "--sql").out


def test_stores_that_need_no_migration_say_so() -> None:
    assert good("queue", "migrate", "sqlite:///jobs.db", "--json").json() == {"applied": []}
    for words in (["queue", "migrate"], ["fleet", "migrate", "--store"]):
        said = good(*words, "sqlite:///jobs.db").out
        assert "nothing to do: this store creates what it needs on first use" in said
        assert "up to date" not in said
        assert good(*words, "sqlite:///jobs.db", "--json").json() == {"applied": []}
        refused = pollwise(*words, "sqlite:///jobs.db", "--sql")
        assert refused.code == 2
        assert "needs no migration" in refused.err
    assert not Path("jobs.db").exists()
    applied = good("outbox", "migrate", "sqlite:///jobs.db", "--json").json()["applied"]
    assert applied == [version for version, _ in migrations("pollwise.outbox.stores.sqlite")]


def test_a_wrong_password_is_not_printed(postgres: Postgres) -> None:
    postgres.create_role("clerk", "right")
    url = postgres.dsn(user="clerk").replace("right", "hunter2")
    for command in ("migrate", "stats", "list"):
        refused = pollwise("queue", command, url)
        assert refused.code == 2
        assert "password authentication failed" in refused.err
        assert "hunter2" not in refused.err
    missing = pollwise("queue", "show", postgres.dsn(user="clerk"), "1")
    assert "right" not in missing.err.replace("rights", "")


RECORDS = {"queue": "migrations", "outbox": "outbox_migrations", "fleet": "fleet_migrations"}


@pytest.mark.parametrize("left", ["", "0"])
@pytest.mark.parametrize("what", RECORDS)
def test_a_record_of_versions_that_lost_some_is_told_apart_from_tables_of_others(
    postgres: Postgres, what: str, left: str
) -> None:
    name = f"cli_damaged_{what}_{left}"
    url = postgres.create_database(name)
    words = [what, "migrate", "--store", url] if what == "fleet" else [what, "migrate", url]
    applied = good(*words, "--json").json()["applied"]
    record = f"pollwise.{RECORDS[what]}"
    postgres.execute(f"DELETE FROM {record}", dbname=name)
    if left:
        postgres.execute(f"INSERT INTO {record} (version) VALUES ({left})", dbname=name)

    refused = pollwise(*words)
    assert refused.code == 2
    assert f"is incomplete: it has {left or 'none'}." in refused.err
    assert "another" not in refused.err
    rows = ", ".join(f"({version})" for version in applied)
    mend = f'INSERT INTO "pollwise".{RECORDS[what]} (version) VALUES {rows};'
    assert mend in refused.err
    postgres.execute(mend, dbname=name)
    assert good(*words, "--json").json() == {"applied": []}


@pytest.mark.parametrize("left", ["", "0"])
def test_a_record_of_versions_in_a_file_that_lost_some_is_reported(left: str) -> None:
    words = ["outbox", "migrate", "sqlite:///shop.db"]
    good(*words)
    with closing(sqlite3.connect("shop.db", isolation_level=None)) as file:
        file.execute("DELETE FROM pollwise_outbox_schema")
        if left:
            file.execute(f"INSERT INTO pollwise_outbox_schema (version) VALUES ({left})")
        refused = pollwise(*words)
        assert refused.code == 2
        assert f"is incomplete: it has {left or 'none'}." in refused.err
        missing = range(1, 1 + len(migrations("pollwise.outbox.stores.sqlite")))
        listed = ", ".join(f"({version})" for version in missing)
        mend = f"INSERT INTO pollwise_outbox_schema (version) VALUES {listed};"
        assert mend in refused.err
        file.execute(mend)
    assert good(*words, "--json").json() == {"applied": []}
