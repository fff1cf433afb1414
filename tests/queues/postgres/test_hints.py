"""Hints by LISTEN and NOTIFY: one connection for all queues, which comes back when it is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg

from pollwise.queues.base import Queue
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events, HintsLost, HintsProven
from pollwise.runtime.hints import Hint
from pollwise.runtime.jobs import NewJob
from tests.queues.postgres.kit import names, run
from tests.support.proxy import Proxy
from tests.support.servers import PgBouncer, Postgres

#: Seconds within which what is waited for has to happen.
PATIENCE = 240.0


class Sleeper:
    """Somebody who pauses on a queue, and what befalls its hints."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.seen: list[Any] = []
        self._events = Events(quiet=True)
        self._events.subscribe(self.seen.append)
        queue.hints().report_to(queue.name, self._events)

    async def pause(self) -> bool:
        """Sleep until a hint comes."""
        hint, hints = Hint(), self.queue.hints()
        hints.join(hint)
        hints.asleep(hint)
        try:
            return await Clock().sleep(PATIENCE, hint)
        finally:
            hints.leave(hint)

    async def until(self, *wanted: type[Any]) -> None:
        """Wait for events, in this order, as the last there are."""
        async with asyncio.timeout(PATIENCE):
            while tuple(map(type, self.seen))[-len(wanted) :] != wanted:
                await asyncio.sleep(0.005)  # real time: messages are under way


def test_all_queues_of_a_process_share_one_listening_connection(
    postgres: Postgres, dsn: str
) -> None:
    where = f"{dsn}?application_name=listeners"

    async def main() -> None:
        queues = [PostgresQueue(dsn, next(names), listen=where) for _ in range(5)]
        queues.append(PostgresQueue(dsn, queues[0].name, listen=where))
        sleepers = [Sleeper(queue) for queue in queues]
        pauses = [asyncio.ensure_future(sleeper.pause()) for sleeper in sleepers]
        for sleeper in sleepers:
            await sleeper.until(HintsProven)
        assert postgres.sessions().count("listeners") == 1
        async with PostgresQueue(dsn, queues[3].name) as other:
            await other.put(NewJob("job"))
            assert await pauses[3]
        assert not pauses[1].done()
        await queues[0].close()
        assert postgres.sessions().count("listeners") == 1
        async with PostgresQueue(dsn, queues[-1].name) as other:
            await other.put(NewJob("job"))
            assert await pauses[-1], "the other handle of a queue whose first was closed"
        for queue in queues:
            await queue.close()
        assert "listeners" not in postgres.sessions()
        for pause in pauses:
            pause.cancel()

    run(main)


def test_a_handle_that_only_puts_does_not_listen(postgres: Postgres, dsn: str) -> None:
    async def main() -> None:
        listen = f"{dsn}?application_name=putter"
        async with PostgresQueue(dsn, next(names), listen=listen) as queue:
            await queue.put([NewJob("job", n) for n in range(10)])
            assert "putter" not in postgres.sessions()

    run(main)


def test_a_commit_of_the_users_own_transaction_ends_a_pause(dsn: str) -> None:
    async def main() -> None:
        async with PostgresQueue(dsn, next(names)) as queue:
            sleeper = Sleeper(queue)
            pause = asyncio.ensure_future(sleeper.pause())
            await sleeper.until(HintsProven)
            async with await psycopg.AsyncConnection.connect(dsn) as connection:
                await queue.put(NewJob("job"), connection=connection)
                await queue.stats()
                assert not pause.done(), "before the commit there is nothing to see"
                await connection.commit()
            assert await pause

    run(main)


def test_a_cut_connection_is_reported_once_and_reopened(postgres: Postgres, dsn: str) -> None:
    async def main() -> None:
        with Proxy(postgres.port) as proxy:
            async with PostgresQueue(dsn, next(names), listen=proxy.through(dsn)) as queue:
                sleeper = Sleeper(queue)
                pause = asyncio.ensure_future(sleeper.pause())
                await sleeper.until(HintsProven)
                proxy.cut()
                assert await pause, "sleepers are woken to poll"
                await sleeper.until(HintsProven, HintsLost, HintsProven)
                lost = sleeper.seen[1]
                assert "It will be opened again" in lost.advice
                pause = asyncio.ensure_future(sleeper.pause())
                async with PostgresQueue(dsn, queue.name) as other:
                    await other.put(NewJob("job"))
                assert await pause

    run(main)


def test_an_administrator_may_end_the_listening_session(postgres: Postgres, dsn: str) -> None:
    async def main() -> None:
        async with PostgresQueue(dsn, next(names), listen=f"{dsn}?application_name=ear") as queue:
            sleeper = Sleeper(queue)
            pause = asyncio.ensure_future(sleeper.pause())
            await sleeper.until(HintsProven)
            postgres.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'ear'"
            )
            await pause
            await sleeper.until(HintsProven, HintsLost, HintsProven)

    run(main)


def test_a_pooler_that_swallows_listen_is_noticed_and_got_round(
    pgbouncer: PgBouncer, dsn: str
) -> None:
    async def main() -> None:
        async with PostgresQueue(pgbouncer.dsn(), next(names)) as queue:
            queue.hints()._check_timeout = 0.3  # type: ignore[attr-defined]
            sleeper = Sleeper(queue)
            pause = asyncio.ensure_future(sleeper.pause())
            await sleeper.until(HintsLost)
            assert "listen" in sleeper.seen[0].advice
            assert len(sleeper.seen) == 1
            await pause
        async with PostgresQueue(pgbouncer.dsn(), next(names), listen=dsn) as queue:
            sleeper = Sleeper(queue)
            pause = asyncio.ensure_future(sleeper.pause())
            await sleeper.until(HintsProven)
            async with PostgresQueue(pgbouncer.dsn(), queue.name) as other:
                await other.put(NewJob("job"))
            assert await pause

    run(main)
