"""The order of a key on Postgres, while transactions are open: dozens of random schedules.

Writers begin, put, set savepoints, roll back to them, commit, roll back, prepare, in any order and
at any isolation level; a relay claims and settles in between. Whatever the schedule, the records
of a key are claimed in the order of their seq, those that were committed all and no others. The
same check fails a claim that does not heed open transactions, so it is a check that can fail.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel

from pollwise.core.strategies.fixed import Fixed
from pollwise.outbox.records import KeyClaim, KeySettlement, NewRecord
from pollwise.outbox.stores.postgres.store import PostgresOutboxStore
from pollwise.runtime.events import PollFinished
from tests.outbox.relays import Bench
from tests.outbox.stores.benches import StoreBench, migrated
from tests.support.servers import OwnPostgres, Postgres

LEVELS = (None, IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE)
#: As it would be without heeding open transactions.
NAIVE = """
CREATE OR REPLACE FUNCTION pollwise.outbox_bounds(
    p_outbox text, OUT last bigint, OUT last_keyed bigint, OUT hashes bigint[], OUT floors bigint[]
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT s.last_value, s.last_value INTO last, last_keyed FROM pollwise.outbox_seq AS s;
END $$
"""


class Story:
    """What was committed, and what was claimed, in the order in which that happened."""

    def __init__(self, told: str) -> None:
        self.told = told
        self.committed: set[int] = set()
        self.claimed: dict[str, list[int]] = defaultdict(list)
        self.held: set[str] = set()

    def claim(self, claims: list[KeyClaim]) -> None:
        for claim in claims:
            assert claim.name not in self.held, f"{self.told}: two hold {claim.name}"
            self.held.add(claim.name)
            seqs = [int(held.record.id) for held in claim.records]
            line = self.claimed[claim.name]
            assert seqs == sorted(seqs), f"{self.told}: {claim.name} has the run {seqs}"
            assert not line or line[-1] < seqs[0], (
                f"{self.told}: {claim.name} was claimed up to {line[-1]}, and then {seqs}"
            )

    def settled(self, claim: KeyClaim, done: int) -> None:
        self.held.remove(claim.name)
        self.claimed[claim.name] += [int(held.record.id) for held in claim.records[:done]]

    @property
    def handled(self) -> set[int]:
        return {seq for line in self.claimed.values() for seq in line}

    def check_all_done(self) -> None:
        assert self.handled == self.committed, (
            f"{self.told}: lost {self.committed - self.handled}, "
            f"or never committed {self.handled - self.committed}"
        )


class Writer:
    """One connection, which does one random thing after another."""

    def __init__(self, dsn: str, name: str, outbox: str, keys: int, story: Story) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._name = name
        self._outbox = outbox
        self._keys = keys
        self._story = story
        self._put: list[list[int]] | None = None  # by savepoint; None: in no transaction
        self._prepared: list[tuple[str, set[int]]] = []
        self._silent = False
        self._count = 0

    def step(self, rng: random.Random) -> None:
        if self._prepared and self._put is None and rng.random() < 0.3:
            self._end_prepared(rng)
        elif self._put is None:
            self._begin(rng)
        else:
            does = rng.choices(
                (self._puts, self._save, self._roll_back_to, self._commit, self._roll_back),
                (6, 1, 1, 2, 1),
            )[0]
            does(rng)

    def finish(self, rng: random.Random) -> None:
        if self._put is not None:
            self._commit(rng)
        while self._prepared:
            self._end_prepared(rng)

    def close(self) -> None:
        self._connection.close()

    def _run(self, statement: str, *values: object) -> Any:
        return self._connection.execute(statement.encode(), values).fetchall

    def _begin(self, rng: random.Random) -> None:
        level = rng.choice(LEVELS)
        self._run(f"BEGIN ISOLATION LEVEL {level.name.replace('_', ' ')}" if level else "BEGIN")
        if level and rng.random() < 0.5:
            self._run("SELECT 1")  # its snapshot is older than the put
        self._silent = rng.random() < 0.3
        self._put = [[]]

    def _puts(self, rng: random.Random) -> None:
        assert self._put is not None
        # Now and then so many keys that one lock has to do for all.
        many = rng.random() < 0.05
        count, keys = (25, 60) if many else (rng.randrange(1, 4), self._keys)
        records = [
            ["e", "null", None if rng.random() < 0.1 else f"k{rng.randrange(keys)}", None]
            for _ in range(count)
        ]
        message = "" if self._silent else None
        put = "SELECT * FROM pollwise.outbox_put_all(%s, %s, %s)"
        rows = self._run(put, self._outbox, json.dumps(records), message)()
        self._put[-1] += [seq for (seq,) in rows]

    def _save(self, rng: random.Random) -> None:
        assert self._put is not None
        self._run(f"SAVEPOINT s{len(self._put)}")
        self._put.append([])

    def _roll_back_to(self, rng: random.Random) -> None:
        assert self._put is not None
        if len(self._put) > 1:
            del self._put[rng.randrange(1, len(self._put)) :]
            self._run(f"ROLLBACK TO s{len(self._put)}")
            self._put.append([])

    def _commit(self, rng: random.Random) -> None:
        seqs = self._ended()
        if self._silent and rng.random() < 0.7:
            self._count += 1
            gid = f"{self._name}-{self._count}"
            self._run(f"PREPARE TRANSACTION '{gid}'")
            self._prepared.append((gid, seqs))
        else:
            self._story.committed |= seqs
            self._run("COMMIT")

    def _roll_back(self, rng: random.Random) -> None:
        self._ended()
        self._run("ROLLBACK")

    def _ended(self) -> set[int]:
        assert self._put is not None
        seqs = {seq for some in self._put for seq in some}
        self._put = None
        return seqs

    def _end_prepared(self, rng: random.Random) -> None:
        gid, seqs = self._prepared.pop(rng.randrange(len(self._prepared)))
        if rng.random() < 0.8:
            self._story.committed |= seqs
            self._run(f"COMMIT PREPARED '{gid}'")
        else:
            self._run(f"ROLLBACK PREPARED '{gid}'")


async def relay_step(
    store: PostgresOutboxStore, story: Story, held: list[KeyClaim], rng: random.Random
) -> None:
    if held and rng.random() < 0.6:
        some = [held.pop(rng.randrange(len(held))) for _ in range(rng.randint(1, len(held)))]
        ends = [KeySettlement(claim, rng.randint(0, len(claim.records))) for claim in some]
        for end in ends:
            story.settled(end.claim, end.done)
        assert await store.settle(ends) == []
    else:
        claims = await store.claim("relay", rng.choice((1, 3, 50)), rng.choice((1, 2, 20)), "1h")
        story.claim(claims)
        held += claims


async def drained(store: PostgresOutboxStore, story: Story, held: list[KeyClaim]) -> None:
    """Handle what is left; nothing is open any more, so all of it can be claimed at once."""
    for _ in range(1000):
        for claim in held:
            story.settled(claim, len(claim.records))
        assert (
            await store.settle([KeySettlement(claim, len(claim.records)) for claim in held]) == []
        )
        held = await store.claim("relay", 1000, 100, "1h")
        story.claim(held)
        if not held and story.handled >= story.committed:
            return
    raise AssertionError(f"{story.told}: left behind {story.committed - story.handled}")


async def scheduled(dsn: str, seed: int, steps: int) -> None:
    rng = random.Random(seed)
    outbox = f"schedule-{seed}"
    story = Story(f"seed {seed}")
    with ExitStack() as stack:
        writers = []
        for n in range(rng.randrange(2, 6)):
            writer = Writer(dsn, f"{seed}-{n}", outbox, rng.choice((1, 3, 8)), story)
            stack.callback(writer.close)
            writers.append(writer)
        async with PostgresOutboxStore(dsn, outbox) as store:
            held: list[KeyClaim] = []
            for _ in range(steps):
                if rng.random() < 0.3:
                    await relay_step(store, story, held, rng)
                else:
                    rng.choice(writers).step(rng)
            for writer in writers:
                writer.finish(rng)
            await drained(store, story, held)
            stats = await store.stats()
            assert (stats.ready, stats.leased, stats.waiting) == (0, 0, 0), story.told
    story.check_all_done()


@pytest.fixture
def preparing(own_postgres: OwnPostgres) -> Postgres:
    """A server on which transactions can be prepared."""
    return own_postgres(max_prepared_transactions=50)


@pytest.fixture(params=[False, True], ids=["newest", "oldest"])
def either(request: pytest.FixtureRequest, own_postgres: OwnPostgres) -> Postgres:
    return own_postgres(oldest=request.param, max_prepared_transactions=50)


def run_schedules(server: Postgres, count: int, steps: int) -> None:
    dsn = migrated(server.dsn())
    for _ in range(count):
        seed = random.randrange(10**9)
        print(f"seed {seed}")  # shown when the test fails
        asyncio.run(scheduled(dsn, seed, steps))


def test_keys_are_claimed_in_order_whatever_is_open(either: Postgres) -> None:
    run_schedules(either, 20, 80)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_keys_are_claimed_in_order_for_long(either: Postgres) -> None:
    run_schedules(either, 2000, 300)


def test_the_check_fails_a_claim_that_does_not_heed_open_transactions(preparing: Postgres) -> None:
    migrated(preparing.dsn())
    preparing.execute(NAIVE)
    with pytest.raises(AssertionError, match="was claimed up to"):
        run_schedules(preparing, 100, 80)


def test_floors_hold_where_half_of_a_number_overflows(preparing: Postgres) -> None:
    """A lock has room for the lower half of a seq alone."""
    migrated(preparing.dsn())
    for around in (2**31, 2**32, 2**40 + 2**31, 2**41):
        preparing.execute("SELECT setval('pollwise.outbox_seq', %s)", (around - 20,))
        run_schedules(preparing, 3, 80)


# The same in the small: one schedule each.


def put_on(connection: psycopg.Connection[Any], outbox: str, *keys: str | None) -> list[int]:
    records = json.dumps([["e", "null", key, None] for key in keys])
    put = "SELECT * FROM pollwise.outbox_put_all(%s, %s, %s)"
    return [seq for (seq,) in connection.execute(put, (outbox, records, "")).fetchall()]


def ids(claims: list[KeyClaim]) -> list[list[int]]:
    return [[int(held.record.id) for held in claim.records] for claim in claims]


Scene = Callable[[PostgresOutboxStore, psycopg.Connection[Any], psycopg.Connection[Any]], Any]


def staged(server: Postgres, name: str, scene: Scene) -> None:
    dsn = migrated(server.dsn())

    async def main() -> None:
        with psycopg.connect(dsn) as one, psycopg.connect(dsn) as two:
            async with PostgresOutboxStore(dsn, name) as store:
                await scene(store, one, two)

    asyncio.run(main())


def test_a_record_waits_for_who_may_put_before_it_and_for_nobody_else(postgres: Postgres) -> None:
    async def scene(store: PostgresOutboxStore, one: Any, two: Any) -> None:
        first = put_on(one, store.name, "a")
        second = put_on(two, store.name, "a", "b", None)
        two.commit()
        assert ids(await store.claim("r", 10, 10, 30)) == [[second[1]], [second[2]]]
        third = put_on(two, store.name, "a", "c")
        two.commit()
        assert ids(await store.claim("r", 10, 10, 30)) == [[third[1]]]
        assert (await store.stats()).ready == 2
        one.commit()
        assert ids(await store.claim("r", 10, 10, 30)) == [[*first, second[0], third[0]]]

    staged(postgres, "waits", scene)


def test_who_puts_later_holds_nobody_up(postgres: Postgres) -> None:
    async def scene(store: PostgresOutboxStore, one: Any, two: Any) -> None:
        for _ in range(5):  # an endless line of open writers does not starve the key
            made = put_on(one, store.name, "a")
            one.commit()
            put_on(two, store.name, "a")
            [claim] = await store.claim("r", 10, 10, 30)
            assert ids([claim])[0][-1] == made[0]
            await store.settle([KeySettlement(claim, len(claim.records))])
            two.commit()
        one.execute("SELECT count(*) FROM pollwise.outbox_records")  # open, but puts nothing
        assert len(await store.claim("r", 10, 10, 30)) == 1

    staged(postgres, "later", scene)


def test_a_transaction_that_is_rolled_back_is_not_waited_for(postgres: Postgres) -> None:
    async def scene(store: PostgresOutboxStore, one: Any, two: Any) -> None:
        one.execute("SAVEPOINT s")
        put_on(one, store.name, "a")
        made = put_on(two, store.name, "a")
        two.commit()
        assert await store.claim("r", 10, 10, 30) == []
        one.execute("ROLLBACK TO s")
        assert ids(await store.claim("r", 10, 10, 30)) == [made]

    staged(postgres, "rolled-back", scene)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_transaction_with_many_keys_holds_up_all_of_them(
    postgres: Postgres, at_once: bool
) -> None:
    async def scene(store: PostgresOutboxStore, one: Any, two: Any) -> None:
        keys = [f"k{n}" for n in range(100)]
        many = [
            seq
            for some in ([keys] if at_once else [[key] for key in keys])
            for seq in put_on(one, store.name, *some)
        ]
        made = put_on(two, store.name, *[f"k{n}" for n in range(100)], None)
        two.commit()
        [locks] = one.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        ).fetchone()
        assert locks == (1 if at_once else 17)
        assert ids(await store.claim("r", 200, 10, 30)) == [[made[-1]]]
        one.commit()
        claims = await store.claim("r", 200, 10, 30)
        assert ids(claims) == [[a, b] for a, b in zip(many, made, strict=False)]

    staged(postgres, f"many-{at_once}", scene)


@pytest.mark.parametrize("ending", ["rollback", "commit"])
@pytest.mark.parametrize("keys", [1, 17])
def test_what_an_open_transaction_delayed_is_handled_soon_after_it_ends(
    postgres: Postgres, keys: int, ending: str
) -> None:
    """No hint tells when a transaction is rolled back, and the relay would idle for an hour."""
    bench = StoreBench(migrated(postgres.dsn()))
    relayed = Bench()
    relayed.clock = bench.clock

    def put(connection: psycopg.Connection[Any], *names: str) -> None:
        records = json.dumps([["e", json.dumps(name), name, None] for name in names])
        statement = "SELECT * FROM pollwise.outbox_put_all(%s, %s, %s, %s)"
        connection.execute(statement, (bench.name, records, "", bench.clock.imposed()))

    async def main() -> None:
        store = await bench.store()
        outbox = relayed.outbox(store, polling=Fixed("1h"))
        outbox.handle("*")(relayed.recorder("publish"))
        with psycopg.connect(postgres.dsn()) as one, psycopg.connect(postgres.dsn()) as two:
            async with outbox.running():
                put(one, "other" if keys == 1 else "k0", *(f"k{n}" for n in range(1, keys)))
                put(two, "other")
                two.commit()
                await store.put(NewRecord("e", "alone"))  # its hint makes the relay poll
                await bench.clock.advance(100)
                assert relayed.payloads("publish") == ["alone"]
                polls = len(relayed.events(PollFinished))
                assert polls < 130  # it checks once a second
                getattr(one, ending)()
                await bench.clock.advance(1.1)
                assert relayed.payloads("publish")[-1] == "other"
                assert len(relayed.events(PollFinished)) <= polls + 3
            assert not await store.records()

    bench.run(main())


def test_keys_are_claimed_in_order_by_many_at_once(postgres: Postgres) -> None:
    """Real threads: what happens inside of one call meets what happens inside of another."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # shown when the test fails
    dsn = migrated(postgres.dsn())
    outbox = f"crowd-{seed}"
    story = Story(f"seed {seed}")
    errors: list[BaseException] = []

    def write(n: int) -> None:
        rng = random.Random(f"{seed} {n}")
        try:
            with psycopg.connect(dsn) as connection:
                for _ in range(120):
                    seqs = []
                    for _ in range(rng.randrange(1, 4)):
                        keys = [f"k{rng.randrange(6)}" for _ in range(rng.randrange(1, 4))]
                        seqs += put_on(connection, outbox, *keys)
                    if rng.random() < 0.2:
                        connection.rollback()
                    else:
                        connection.commit()
                        story.committed.update(seqs)
        except BaseException as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(n,)) for n in range(5)]

    async def relay(store: PostgresOutboxStore, rng: random.Random) -> None:
        held: list[KeyClaim] = []
        while any(writer.is_alive() for writer in writers):
            await relay_step(store, story, held, rng)
        # What others claim meanwhile is theirs; all that is left of it is claimed by the last.
        for claim in held:
            story.settled(claim, 0)
        await store.settle([KeySettlement(claim, 0) for claim in held])

    async def main() -> None:
        async with PostgresOutboxStore(dsn, outbox) as one, PostgresOutboxStore(dsn, outbox) as two:
            await asyncio.gather(
                relay(one, random.Random(seed)), relay(two, random.Random(seed + 1))
            )
            await drained(one, story, [])

    for writer in writers:
        writer.start()
    asyncio.run(main())
    assert not errors, errors
    story.check_all_done()
