"""The outbox on Postgres by itself: lost answers, many keys, long backlogs, poolers, refusals."""

from __future__ import annotations

import asyncio
import itertools
import re
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

import psycopg
import pytest

from pollwise.errors import ConfigError, SchemaError, StoreError, StoreUnavailable
from pollwise.outbox.records import KeyClaim, KeySettlement, NewRecord
from pollwise.outbox.stores.postgres.store import PostgresOutboxStore, channel_of
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.queues.views import COUNTED_MAX
from pollwise.runtime.clock import VirtualClock
from pollwise.storage.sql import migrations
from tests.outbox.stores.benches import migrated
from tests.support.daemons import wait_until
from tests.support.proxy import Proxy
from tests.support.servers import OwnPostgres, PgBouncer, Postgres

T = TypeVar("T")
VERSIONS = [version for version, _ in migrations("pollwise.outbox.stores.postgres")]


def own(name: str = "o") -> str:
    return f"{name}-{uuid.uuid4().hex}"


# Each call failed once: at least once, in order, nothing lost


class Handled:
    """What was handled, by key, as often as it was."""

    def __init__(self, told: str) -> None:
        self._told = told
        self._lines: dict[str | None, list[int]] = defaultdict(list)

    def run(self, claim: KeyClaim) -> None:
        line = self._lines[claim.key]
        for held in claim.records:
            number = held.record.payload
            # A record may come again, and what came after it with it; none may be left out.
            assert number <= len(line), f"{self._told}: {claim.key} has {line} before {number}"
            if number == len(line):
                line.append(number)

    def check(self, keys: int, each: int) -> None:
        assert {key: len(line) for key, line in self._lines.items()} == {
            f"k{n}": each for n in range(keys)
        }, self._told


async def persistent(clock: VirtualClock, call: Callable[[], Awaitable[T]]) -> T:
    """As a relay does: what the store could not answer is asked again, a moment later."""
    while True:
        try:
            return await call()
        except StoreUnavailable:
            await clock.advance(1)


@pytest.mark.parametrize("fault", ["lose_answer", "lose_request"])
@pytest.mark.parametrize("call", ["put_all", "claim", "settle", "renew", "retry"])
def test_a_call_that_fails_loses_nothing(postgres: Postgres, call: str, fault: str) -> None:
    clock = VirtualClock()
    told = f"{fault} {call}"
    handled = Handled(told)
    dsn = migrated(postgres.dsn())
    name = own("failing")

    async def main(proxy: Proxy) -> None:
        async with PostgresOutboxStore(proxy.through(dsn), name, clock=clock) as store:
            await store.stats()
            for at in range(3):  # the first such call, the second, the third
                await round_of(store, proxy, at)

    async def round_of(store: PostgresOutboxStore, proxy: Proxy, at: int) -> None:
        lost, died = proxy.counts.lost, 0
        for n in range(3):
            if n == at and call == "put_all":
                getattr(proxy, fault)(b"outbox_put_all")
            new = [NewRecord("e", 3 * at + n, f"k{key}") for key in range(4)]
            before = await store.stats()
            try:
                await store.put(new)
            except StoreUnavailable:
                if (await store.stats()).ready == before.ready:
                    await store.put(new)
        calls = 0
        while (stats := await store.stats()).ready + stats.leased + stats.waiting + stats.dead:
            if calls == at and call != "put_all":
                getattr(proxy, fault)(f"outbox_{call}".encode())
            calls += 1
            claims = await persistent(clock, lambda: store.claim("r", 3, 2, "30s"))
            if not claims:
                await clock.advance(10)
                if stats.dead:
                    await persistent(clock, store.retry)
                continue
            await persistent(clock, partial(store.renew, claims, "30s"))
            ends = []
            for claim in claims:
                handled.run(claim)
                if died < 2:
                    died += 1
                    ends.append(KeySettlement(claim, len(claim.records) - 1, "dead", error="no"))
                else:
                    ends.append(KeySettlement(claim, len(claim.records)))
            gone = await persistent(clock, partial(store.settle, ends))
            assert gone == [], f"{told}: what was settled in doubt is no lost lease"
        assert proxy.counts.lost == lost + 1, f"{told}: the fault did not happen"

    with Proxy(postgres.port) as proxy:
        clock.run(main(proxy))
    handled.check(4, 9)


# Many keys


def test_ten_thousand_keys_are_shared_by_two_relays(postgres: Postgres) -> None:
    dsn, name, keys = migrated(postgres.dsn()), own("many"), 10_000
    seen: dict[str | None, list[int]] = defaultdict(list)

    async def relay(store: PostgresOutboxStore) -> None:
        while claims := await store.claim("r", 500, 10, "60s"):
            for claim in claims:
                seen[claim.key] += [held.record.payload for held in claim.records]
            assert await store.settle([KeySettlement(c, len(c.records)) for c in claims]) == []

    async def main() -> None:
        async with PostgresOutboxStore(dsn, name) as one, PostgresOutboxStore(dsn, name) as two:
            for n in range(2):
                await one.put([NewRecord("e", n, f"k{key}") for key in range(keys)])
            await asyncio.gather(relay(one), relay(two))
            assert (await one.stats()).ready == 0

    asyncio.run(main())
    assert len(seen) == keys
    assert all(numbers == [0, 1] for numbers in seen.values())


# Long backlogs: what a claim reads does not grow with them


def buffers(connection: psycopg.Connection[Any], name: str) -> tuple[int, int]:
    """What a claim of ten keys reads, in pages; and how many rows it returns.

    The first of a connection reads the catalogue, too.
    """
    claim = "SELECT * FROM pollwise.outbox_claim(%s, 'r', 10, 10, 60, NULL, NULL)"
    rows = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS) {claim}", (name,)).fetchall()
    plan = "\n".join(line for (line,) in rows)
    top = plan.partition("Planning:")[0]
    pages = sum(int(n) for n in re.findall(r"(?:hit|read)=(\d+)", top))
    found = re.search(r"rows=([\d.]+) loops", top)
    assert found
    return pages, int(float(found[1])) - 1  # the last row tells of the next look


def backlog(server: Postgres, name: str, key: str, count: int) -> None:
    server.execute(
        "INSERT INTO pollwise.outbox_records (created_at, since, outbox, line, key, kind, payload) "
        "SELECT 0, 0, %s, %s || chr(31) || %s, %s, 'e', 'null' FROM generate_series(1, %s)",
        (name, name, key, key, count),
    )


def check_backlog(server: Postgres, count: int) -> None:
    dsn, name = migrated(server.dsn()), own("backlog")

    async def block() -> None:
        async with PostgresOutboxStore(dsn, name) as store:
            await store.put(NewRecord("e", None, "bad"))
            [claim] = await store.claim("r", 1, 1, "60s")
            await store.settle([KeySettlement(claim, 0, "dead", error="no")])

    async def put_good() -> None:
        async with PostgresOutboxStore(dsn, name) as store:
            await store.put([NewRecord("e", None, f"good{n}") for n in range(10)])

    async def count_behind() -> tuple[int, int]:
        async with PostgresOutboxStore(dsn, name) as store:
            [blocked] = await store.blocked()
            stats = await store.stats()
            assert (stats.behind, "behind" in stats.capped) == (COUNTED_MAX, True)
            return blocked.behind, (await store.stats(10 * count)).behind

    asyncio.run(block())
    backlog(server, name, "bad", count)
    asyncio.run(put_good())
    # The first claims come by the backlog, a bounded part of it each, and park it.
    claims, most, rows = 0, 0, 0
    with psycopg.connect(dsn, autocommit=True) as connection:
        while not rows:
            pages, rows = buffers(connection, name)
            claims, most = claims + 1, max(most, pages)
        assert rows == 10
        assert claims <= 2 + count // 3_000, "so many for a backlog"
        assert most < 20 * 8_000, f"a claim read {most} pages"
        # From then on nobody comes by it.
        server.execute("VACUUM pollwise.outbox_records, pollwise.outbox_keys")
        asyncio.run(put_good())
        for _ in range(3):
            pages, _ = buffers(connection, name)
            assert pages < 300, f"a claim behind a backlog of {count} read {pages} pages"
            print(f"{claims} claims of up to {most} pages; from then on {pages}")
    assert asyncio.run(count_behind()) == (COUNTED_MAX, count)


def test_a_claim_does_not_come_by_what_is_behind_a_blocked_key(postgres: Postgres) -> None:
    check_backlog(postgres, 100_000)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_claim_does_not_come_by_a_million_behind_a_blocked_key(postgres: Postgres) -> None:
    check_backlog(postgres, 1_000_000)


def test_a_claim_parks_a_bounded_number_of_records(postgres: Postgres) -> None:
    """Those of keys in work wait elsewhere; to bring them there is spread over many claims."""

    dsn, name = migrated(postgres.dsn()), own("parked")
    parked = f"SELECT count(*) FROM pollwise.outbox_records WHERE outbox = '{name}' AND state = 1"

    async def main() -> None:
        async with PostgresOutboxStore(dsn, name) as store:
            for _ in range(2):
                await store.put([NewRecord("k", n, key=f"key{n % 5}") for n in range(10_000)])
            assert len(await store.claim("r", 100, 20, 3600)) == 5
            await store.put([NewRecord("k", key="free")])
            counts = [0]
            claims: list[KeyClaim] = []
            while not claims:
                claims = await store.claim("r", 100, 20, 3600)
                counts += [int(count) for (count,) in postgres.execute(parked)]
            assert claims[0].key == "free"
            steps = [after - before for before, after in itertools.pairwise(counts)]
            assert max(steps[1:]) <= 4_000 < sum(steps), steps

    asyncio.run(main())


def test_a_claim_that_finds_nothing_writes_nothing(own_postgres: OwnPostgres) -> None:
    server = own_postgres(autovacuum="off")
    dsn = migrated(server.dsn())

    async def main() -> None:
        async with PostgresOutboxStore(dsn) as store:
            await store.put([NewRecord("e", None, "a"), NewRecord("e", None, "b")])
            a, b = await store.claim("r", 10, 10, "60s")
            await store.settle(
                [KeySettlement(a, 0, "retry", delay=60.0), KeySettlement(b, 0, "dead", error="x")]
            )
            await store.claim("r", 10, 10, "60s")  # parks what is behind them
            newest = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"  # that wrote
            before = server.execute(newest)
            sent = store.database._own.count
            for _ in range(10):
                assert await store.claim("r", 10, 10, "60s") == []
            assert store.database._own.count == sent + 10, "one statement each"
            assert server.execute(newest) == before

    asyncio.run(main())


# Plain SQL, poolers, and what is refused


def test_a_put_in_plain_sql_is_heard(postgres: Postgres) -> None:
    dsn, name = migrated(postgres.dsn()), own("plain")
    with psycopg.connect(dsn, autocommit=True) as ear:
        ear.execute(f'LISTEN "{channel_of("pollwise", name)}"')
        [(seq,)] = postgres.execute(
            "SELECT pollwise.outbox_put(%s, 'order.placed', '{\"id\": 17}', 'order-17')", (name,)
        )
        [heard] = ear.notifies(timeout=10, stop_after=1)
    assert heard.payload.startswith('["hint","",')

    async def main() -> None:
        async with PostgresOutboxStore(dsn, name) as store:
            [claim] = await store.claim("r", 1, 1, "30s")
            record = claim.records[0].record
            assert (record.id, record.kind, record.key) == (str(seq), "order.placed", "order-17")
            assert record.payload == {"id": 17}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("'o', 'k', '{bad'", "json"),
        ("'o', '', '1'", "needs an outbox, a kind"),
        ("'o', 'k', NULL", "needs an outbox, a kind"),
        ("'o', 'k', '1', ''", "printable"),
        ("'o', 'k', '1', E'\\x01' || '7'", "printable"),
        ("'o', 'k', '1', 'a', '[1]'", "a JSON object of strings"),
        ("'o', 'k', '1', 'a', '\"x\"'", "a JSON object of strings"),
    ],
)
def test_bad_plain_sql_is_refused(postgres: Postgres, given: str, said: str) -> None:
    migrated(postgres.dsn())
    with pytest.raises(psycopg.Error, match=said):
        postgres.execute(f"SELECT pollwise.outbox_put({given})")


def test_what_other_programs_put_stands_in_nobodys_way(postgres: Postgres) -> None:
    """Postgres takes for JSON what Python does not."""
    dsn, name = migrated(postgres.dsn()), own("strange")
    deep, long = 2000 * "[" + 2000 * "]", "1" + 5000 * "0"
    for payload, headers in [(deep, None), (long, None), ("1", f'{{"a": {deep}}}'), ("2", "null")]:
        postgres.execute(
            "SELECT pollwise.outbox_put(%s, 'e', %s, NULL, %s)", (name, payload, headers)
        )
    for headers in ("[1]", '"x"', "{bad"):  # past what checks it
        postgres.execute(
            "SELECT pollwise.outbox_put_all(%s, json_build_array(json_build_array("
            "'e', '3', NULL, %s::text))::text)",
            (name, headers),
        )

    async def main() -> None:
        async with PostgresOutboxStore(dsn, name) as store:
            await store.put(NewRecord("e", "fine", headers={"a": "b"}))
            assert len(await store.records()) == 8
            claims = await store.claim("r", 10, 10, "30s")
            found = [claim.records[0].record for claim in claims]
            assert [record.payload for record in found] == [deep, long, 1, 2, 3, 3, 3, "fine"]
            assert [dict(record.headers) for record in found] == [*7 * [{}], {"a": "b"}]

    asyncio.run(main())


def test_a_relay_that_stands_still_in_its_claim_holds_up_nobody(postgres: Postgres) -> None:
    """A stopped process, a paused machine: its rows fill the way, and its turn is not over."""
    dsn, name = migrated(postgres.dsn()), own("stalled")
    postgres.execute(
        "SELECT count(pollwise.outbox_put(%s, 'e', to_json(repeat('x', 1000000)), 'k' || n)) "
        "FROM generate_series(1, 60) AS n",
        (name,),
    )
    with closing(psycopg.connect(dsn, autocommit=True)) as stopped:
        pid = stopped.info.backend_pid
        claim = f"SELECT * FROM pollwise.outbox_claim('{name}', 'a', 100, 20, 1, NULL, NULL)"
        stopped.pgconn.send_query(claim.encode())
        wait_until(
            lambda: (
                postgres.execute("SELECT wait_event FROM pg_stat_activity WHERE pid = %s", (pid,))
                == [("ClientWrite",)]
            ),
            "the claim sends more than is taken",
        )

        async def main() -> None:
            async with PostgresOutboxStore(dsn, name) as store:
                [found] = await store.claim("b", 1, 1, "30s")
                assert found.lapses == 0  # as if the other had not claimed at all

        asyncio.run(main())


def test_it_works_through_a_pooler_in_transaction_mode(
    postgres: Postgres, pgbouncer: PgBouncer
) -> None:
    migrated(postgres.dsn())

    async def main() -> None:
        store = PostgresOutboxStore(pgbouncer.dsn(), own("pooled"), listen=postgres.dsn())
        async with store:
            with psycopg.connect(pgbouncer.dsn()) as open_one:
                records = '[["e", "1", "a", null]]'
                put = "SELECT * FROM pollwise.outbox_put_all(%s, %s)"
                open_one.execute(put, (store.name, records))
                await store.put([NewRecord("e", 2, "a"), NewRecord("e", 3, "b")])
                [b] = await store.claim("r", 10, 10, "30s")
                assert b.key == "b"
                open_one.commit()
            [a] = await store.claim("r", 10, 10, "30s")
            assert [held.record.payload for held in a.records] == [1, 2]
            assert await store.settle([KeySettlement(a, 2), KeySettlement(b, 1)]) == []

    asyncio.run(main())


def test_tables_that_are_missing_are_told_of(postgres: Postgres) -> None:
    async def main(dsn: str) -> None:
        async with PostgresOutboxStore(dsn) as store:
            with pytest.raises(SchemaError, match="`pollwise outbox migrate URL`"):
                await store.put(NewRecord("e"))
            assert await store.migrate() == VERSIONS
            assert await store.migrate() == []
            assert len(await store.put(NewRecord("e"))) == 1
            assert "outbox=default" in store.url

    asyncio.run(main(postgres.create_database(f"outbox{uuid.uuid4().hex[:8]}")))


def test_a_queue_and_an_outbox_in_one_schema_are_migrated_apart(postgres: Postgres) -> None:
    async def main(dsn: str) -> None:
        async with PostgresQueue(dsn) as queue, PostgresOutboxStore(dsn) as store:
            assert await store.migrate() == VERSIONS
            with pytest.raises(SchemaError, match="`pollwise queue migrate URL`"):
                await queue.stats()
            assert 1 in await queue.migrate()
            assert await store.migrate() == []
            await queue.stats()
            assert await store.claim("r", 1, 1, "30s") == []

    asyncio.run(main(postgres.create_database(f"both{uuid.uuid4().hex[:8]}")))


def test_a_writer_and_a_relay_need_no_more_than_these_rights(postgres: Postgres) -> None:
    database = f"rights{uuid.uuid4().hex[:8]}"
    migrated(postgres.create_database(database))
    writer, relay = (f"{role}_{database}" for role in ("writer", "relay"))
    for role in (writer, relay):
        postgres.create_role(role)
    postgres.execute(
        f"GRANT USAGE ON SCHEMA pollwise TO {writer}, {relay};"
        f"GRANT SELECT, USAGE ON SEQUENCE pollwise.outbox_seq TO {writer}, {relay};"
        f"GRANT INSERT ON pollwise.outbox_records TO {writer};"
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON pollwise.outbox_records, pollwise.outbox_keys, "
        f"pollwise.outbox_relays, pollwise.outbox_lanes TO {relay};"
        f"GRANT SELECT ON pollwise.outbox_migrations TO {relay};",
        dbname=database,
    )
    put = "SELECT pollwise.outbox_put('default', 'e', '1', 'a')"
    with psycopg.connect(postgres.dsn(database, writer, password="secret")) as connection:
        connection.execute(put)
        connection.commit()
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT * FROM pollwise.outbox_records")

    async def main() -> None:
        conninfo = postgres.dsn(database, relay, password="secret")
        async with PostgresOutboxStore(conninfo) as store:
            [claim] = await store.claim("r", 10, 10, "30s")
            await store.announce_handlers("r", {"h": ["*"]}, 1.0)
            assert await store.settle([KeySettlement(claim, 0, "dead", error="no")]) == []
            assert await store.retry() == 1
            assert (await store.stats()).ready == 1

    asyncio.run(main())


def test_another_isolation_is_refused(postgres: Postgres) -> None:
    dsn = postgres.create_database(f"isolated{uuid.uuid4().hex[:8]}")
    migrated(dsn)

    async def main(options: Any) -> None:
        url = f"{dsn}?options={options}"
        async with PostgresOutboxStore(url) as store:
            with pytest.raises(StoreError, match="read committed"):
                await store.claim("r", 1, 1, "30s")

    asyncio.run(main("-c%20default_transaction_isolation%3Dserializable"))


def test_claims_keep_to_one_connection(own_postgres: OwnPostgres) -> None:
    """A server makes the plans of a claim anew on each connection: that takes ten times as long."""
    server = own_postgres(log_min_duration_statement=0, log_line_prefix="<%p> ")
    dsn = migrated(server.dsn())

    async def main(connections: int) -> None:
        async with PostgresOutboxStore(dsn, connections=connections) as store:
            held: list[KeySettlement] = []
            for number in range(10):  # with settlements, and others, under way
                await store.put([NewRecord("e", None, f"{key}-{number}") for key in range(5)])
                claims, _, _ = await asyncio.gather(
                    store.claim("r", 5, 1, "60s"), store.settle(held), store.stats()
                )
                held = [KeySettlement(claim, 1) for claim in claims]

    for connections in (1, 4):
        before = len(server.log())
        asyncio.run(main(connections))
        lines = server.log()[before:].splitlines()
        claiming = {line.partition(">")[0] for line in lines if "outbox_claim" in line}
        assert len(claiming) == 1


def test_bad_options_are_refused() -> None:
    for bad in ({"connections": 0}, {"schema": "pg_x"}, {"timeout": 0}, {"listen": "nonsense="}):
        with pytest.raises(ConfigError):
            PostgresOutboxStore("postgresql://localhost/shop", **bad)


@pytest.mark.parametrize("older", ["due", "fresh"])
def test_the_oldest_are_claimed_first_and_some_of_the_others(
    postgres: Postgres, older: str
) -> None:
    """Keys that came free with more records, and keys that nobody has looked at."""
    clock, dsn = VirtualClock(), migrated(postgres.dsn())

    async def main() -> None:
        async with PostgresOutboxStore(dsn, f"ages-{older}", clock=clock) as store:

            async def put(what: str) -> None:
                await store.put([NewRecord("e", None, f"{what}-{n}") for n in range(20)])
                await clock.advance(10)

            await put("due")
            claims = await store.claim("r", 20, 1, "1h")
            await put(older)
            await put("fresh" if older == "due" else "due")
            await store.settle([KeySettlement(claim, 1) for claim in claims])
            found = [str(claim.key).partition("-")[0] for claim in await store.claim("r", 8, 5, 60)]
            assert (found.count(older), len(found)) == (6, 8)

    clock.run(main())


def test_a_record_that_python_cannot_decode_says_so_and_leaves_the_others(
    postgres: Postgres,
) -> None:
    dsn = migrated(postgres.dsn())

    async def main() -> None:
        async with PostgresOutboxStore(dsn, own()) as store:
            bad = NewRecord("e", "bad")
            object.__setattr__(bad, "encoded", "7" * 5000)  # numeric to Postgres, too long for int
            await store.put([bad, NewRecord("e", "fine")])
            claims = await store.claim("r", 10, 10, "30s")
            records = [claim.records[0].record for claim in claims]
            assert [record.payload for record in records] == ["7" * 5000, "fine"]
            assert "payload cannot be decoded" in (records[0].unreadable or "")
            assert records[1].unreadable is None
            assert len(await store.records()) == 2

    asyncio.run(main())
