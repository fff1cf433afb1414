"""Handlers that use Django's ORM go on after their database was restarted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pollwise import NewJob, Retry, Worker
from pollwise.outbox import NewRecord
from pollwise.queues.memory import MemoryQueue
from tests.outbox.relays import Bench
from tests.outbox.writers.ways import django_connections
from tests.support.daemons import wait_until
from tests.support.kit import options, until_empty, working
from tests.support.servers import Postgres

KEYS = 40


class Ledger:
    """Rows that handlers insert by Django, with connections that are kept."""

    def __init__(self, postgres: Postgres, name: str) -> None:
        self._postgres = postgres
        self._name = name
        parts = psycopg.conninfo.conninfo_to_dict(postgres.create_database(name))
        postgres.execute("CREATE TABLE told (payload integer)", dbname=name)
        self.connections: Any = django_connections()
        self.connections.databases["ledger"] = {
            **self.connections.databases["default"],
            "ENGINE": "django.db.backends.postgresql",
            "CONN_MAX_AGE": None,
            "NAME": name,
            **{key.upper(): parts[key] for key in ("user", "host", "port")},
        }

    def tell(self, payload: int) -> None:
        with self.connections["ledger"].cursor() as cursor:
            cursor.execute("INSERT INTO told VALUES (%s)", [payload])

    def told(self) -> list[int]:
        rows = self._postgres.execute("SELECT DISTINCT payload FROM told", dbname=self._name)
        return sorted(payload for (payload,) in rows)

    def restart(self) -> None:
        """Close all connections, as a restart of the server does."""
        [(closed,)] = self._postgres.execute(
            "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity "
            f"WHERE datname = '{self._name}' AND pid <> pg_backend_pid()"
        )
        assert closed > 0

    def forget(self) -> None:
        """Wait until the threads of handlers have ended and closed their connections."""
        count = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{self._name}'"
        wait_until(lambda: self._postgres.execute(count) == [(0,)], "threads ended")
        del self.connections.databases["ledger"]


@pytest.fixture
def ledger(postgres: Postgres, request: pytest.FixtureRequest) -> Iterator[Ledger]:
    name = "django_" + "".join(c if c.isalnum() else "_" for c in request.node.name[-40:])
    made = Ledger(postgres, name)
    yield made
    made.forget()


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
def test_a_relay_goes_on_after_a_restart_of_the_handlers_database(
    ledger: Ledger, plain: bool
) -> None:
    from asgiref.sync import sync_to_async

    bench = Bench()

    async def main() -> None:
        outbox = bench.outbox(concurrency=8)

        def told(record: Any) -> None:
            ledger.tell(record.payload)

        async def told_async(record: Any) -> None:
            await sync_to_async(ledger.tell)(record.payload)

        retry = Retry.fixed("1s", attempts=20)
        outbox.handle("*", retry=retry, name="tell")(told if plain else told_async)
        async with outbox.running():
            for first in (0, KEYS):
                for number in range(first, first + KEYS):
                    await bench.store.put(NewRecord("order", number, f"key-{number}"))
                await bench.clock.advance(120)
                assert ledger.told() == list(range(first + KEYS))
                if not first:
                    ledger.restart()
        assert (await bench.store.stats()).dead == 0
        await sync_to_async(ledger.connections.close_all)()

    bench.run(main())


def test_a_worker_goes_on_after_a_restart_of_the_handlers_database(ledger: Ledger) -> None:
    bench = Bench()

    async def main() -> None:
        queue = MemoryQueue(clock=bench.clock)
        worker = Worker(queue)

        @worker.handle("order", retry=Retry.fixed("1s", attempts=20))
        def tell(job: Any) -> None:
            ledger.tell(job.payload)

        async with working(worker, options(concurrency=8)):
            for first in (0, KEYS):
                await queue.put([NewJob("order", n) for n in range(first, first + KEYS)])
                await until_empty(queue)
                assert ledger.told() == list(range(first + KEYS))
                if not first:
                    ledger.restart()

    bench.run(main())
