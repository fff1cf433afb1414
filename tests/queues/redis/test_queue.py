"""The queue in Redis: what only it can get wrong."""

from __future__ import annotations

import asyncio
import json
import secrets

import pytest
from redis.crc import key_slot

from pollwise.errors import (
    LeaseLost,
    StoreError,
    StoreUnavailable,
    UniqueConflict,
)
from pollwise.queues.base import ClaimRequest, Queue
from pollwise.queues.redis import store as redis_store
from pollwise.queues.redis.queue import RedisQueue
from pollwise.queues.redis.store import EMPTY_PAUSE, MOST_DUE, SCRIPTS
from pollwise.queues.views import JobFilter
from pollwise.runtime.clock import Clock, VirtualClock
from pollwise.runtime.jobs import NewJob, Progress, Settlement
from pollwise.storage.redis.scripts import script
from tests.queues.redis.kit import within
from tests.support.daemons import wait_until
from tests.support.servers import OwnRedis, Redis

# Trouble that passes


def test_a_replica_is_read_only(own_redis: OwnRedis, redis: Redis) -> None:
    server = own_redis(replicaof=f"127.0.0.1 {redis.port}")

    async def main() -> None:
        async with RedisQueue(server.url()) as queue:
            with pytest.raises(StoreUnavailable, match="replica"):
                await queue.put(NewJob("job"))
            server.execute("REPLICAOF", "NO", "ONE")
            await queue.put(NewJob("job"))

    asyncio.run(main())


@pytest.mark.parametrize("oldest", [False, True])
def test_a_full_server_can_be_worked_empty(own_redis: OwnRedis, oldest: bool) -> None:
    server = own_redis(oldest=oldest)

    async def main() -> None:
        async with RedisQueue(server.url()) as queue:
            await queue.put([NewJob("job", n, key=f"k{n % 5}") for n in range(300)])
            await queue.put([NewJob("job", n, delay="1ms") for n in range(10)])
            first = NewJob("job")
            second = NewJob("job", key="k1", after=[first])
            await queue.put([first, second, *(NewJob("job", after=[second]) for _ in range(5))])
            server.execute("CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(StoreUnavailable, match="memory is full"):
                await queue.put([NewJob("job"), NewJob("job")])
            done = 0
            while claims := await queue.claim("w", 50, 60):
                await queue.renew(claims, 60, {claims[0].job.id: Progress(0.5)})
                one, *rest = claims
                await queue.settle([Settlement.retry(one, error="again")])
                await queue.settle([Settlement.done(claim) for claim in rest])
                done += len(rest)
                if not rest:
                    claims = await queue.claim("w", 50, 60)
                    done += len(claims)
                    await queue.cancel([claim.job.id for claim in claims])
                    assert len((await queue.renew(claims, 60)).cancel) == len(claims)
                    await queue.settle([Settlement.done(claim) for claim in claims])
            assert done == 317

    asyncio.run(main())


def test_scripts_that_the_server_forgot(redis: Redis, name: str) -> None:
    async def work(queue: Queue) -> None:
        await queue.put(NewJob("job"))
        redis.execute("SCRIPT", "FLUSH")
        await queue.put(NewJob("job"))
        assert len(await queue.claim("w", 5, 60)) == 2

    within(redis.url(), name, work)


def test_closed(redis: Redis, name: str) -> None:
    async def main() -> None:
        queue = RedisQueue(redis.url(), name)
        await queue.put(NewJob("job"))
        await queue.close()
        await queue.close()
        with pytest.raises(StoreError, match="is closed"):
            await queue.stats()

    asyncio.run(main())


def test_one_handle_on_several_event_loops(redis: Redis, name: str) -> None:
    queue = RedisQueue(redis.url(), name)

    async def put() -> None:
        await queue.put(NewJob("job"))
        await queue._connections._drop_all()

    for _ in range(3):
        asyncio.run(put())

    async def count() -> int:
        async with queue:
            return (await queue.stats()).ready

    assert asyncio.run(count()) == 3


# What is in the server


def test_every_key_is_in_the_slot_of_its_queue(own_redis: OwnRedis) -> None:
    names = ["mail", "a:b", "{a}", "}{", "%7B", "ü ü", "x}:ready:y"]
    server = own_redis()

    async def fill(queue: Queue) -> None:
        jobs = [NewJob(kind, "x" * 2000, key="k", unique=f"u{kind}") for kind in ("a", "}", "{b}")]
        await queue.put([*jobs, NewJob("late", delay=60), *[NewJob("n", n) for n in range(5)]])
        first, second, third, fourth = await queue.claim("w", 4, 60)
        await queue.renew([third], 60, {third.job.id: Progress(0.5)})
        await queue.settle(
            [
                Settlement.dead(first, "why"),
                Settlement.done(second, "result"),
                Settlement.cancelled(fourth),
            ]
        )

    async def main() -> None:
        for name in names:
            async with RedisQueue(server.url(), name, keep="1d") as queue:
                await fill(queue)

    asyncio.run(main())
    tags = {redis_store.tag_of("pollwise", name) for name in names}
    assert len(tags) == len(names)
    with server.client() as client:
        keys = [str(key) for key in client.scan_iter()]
    assert len(keys) > 12 * len(names)
    for key in keys:
        [tag] = [tag for tag in tags if key.startswith(f"{tag}:")]
        assert key_slot(key.encode()) == key_slot(tag.encode()), key


def test_queues_with_odd_names_are_apart(redis: Redis) -> None:
    async def main() -> None:
        made = secrets.token_hex(4)
        pairs = [("p", f"{made}}}:ready:x"), ("p", made), (f"p:{made}", "q"), ("p", f"{made}:q")]
        for n, (prefix, name) in enumerate(pairs):
            async with RedisQueue(redis.url(), name, prefix=prefix) as queue:
                await queue.put([NewJob("x}:jobs", n)] * (n + 1))
        for n, (prefix, name) in enumerate(pairs):
            async with RedisQueue(redis.url(), name, prefix=prefix) as queue:
                claims = await queue.claim("w", 100, 60)
                assert [claim.job.payload for claim in claims] == [n] * (n + 1)

    asyncio.run(main())


# Batches


def test_ten_thousand_at_once(redis: Redis, name: str) -> None:
    async def work(queue: Queue) -> None:
        ids = await queue.put([NewJob(f"k{n % 7}", n, priority=n % 3) for n in range(10_000)])
        assert len(set(ids)) == 10_000
        claims = await queue.claim("w", 10_000, 60)
        wanted = sorted(range(10_000), key=lambda n: (-(n % 3), n))
        assert [claim.job.payload for claim in claims] == wanted
        await queue.renew(claims, 60)
        await queue.settle([Settlement.done(claim) for claim in claims])
        assert (await queue.stats()).leased == 0
        assert await queue.jobs() == []

    within(redis.url(), name, work)


def test_a_conflict_in_ten_thousand_puts_nothing(redis: Redis, name: str) -> None:
    async def work(queue: Queue) -> None:
        await queue.put(NewJob("job", "mine", unique="u"))
        batch = [NewJob("job", n, unique=f"u{n}") for n in range(9_999)]
        with pytest.raises(UniqueConflict, match="'u' is taken by job 1"):
            await queue.put([*batch, NewJob("job", "yours", unique="u")])
        assert (await queue.stats()).ready == 1

    within(redis.url(), name, work)


def test_a_claim_stops_at_so_many_bytes_and_is_followed_by_the_next(
    redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, "MOST_BYTES", 300_000)

    async def work(queue: Queue) -> None:
        await queue.put([NewJob("job", f"{n}" + "x" * 90_000) for n in range(10)])
        found: list[str] = []
        sizes = []
        while claims := await queue.claim("w", 100, 60):
            sizes.append(len(claims))
            found += [claim.job.payload.rstrip("x") for claim in claims]
            more = await queue.claim("w", 1, 60)
            found += [claim.job.payload.rstrip("x") for claim in more]
        assert found == [str(n) for n in range(10)]
        assert max(sizes) == 4
        pages = await queue.jobs("leased", limit=1000)
        assert len(pages) == 10, "a page is put together from several answers"

    within(redis.url(), name, work)


def test_lists_far_apart(redis: Redis, name: str) -> None:
    """Jobs that are few and far between are found without looking at all numbers."""

    async def work(queue: Queue) -> None:
        await queue.put(NewJob("first"))
        tag = redis_store.tag_of("pollwise", name)
        redis.execute("HSET", f"{tag}:meta", "last", str(5 * 10**12))
        ids = await queue.put([NewJob("later", n) for n in range(3000)])
        assert ids[0] == "5000000000001"
        found = await queue.arrivals(None, 1000)
        assert [view.job.id for view in found] == ["1", *ids[:999]]
        found = await queue.arrivals(ids[1999], 1000)
        assert [view.job.id for view in found] == ids[2000:]
        page = await queue.page(JobFilter(limit=1000, after=ids[500]))
        assert [view.job.id for view in page.jobs] == [*reversed(ids[:500]), "1"]
        by_kind = await queue.stats_by_kind()
        assert {kind: stats.ready for kind, stats in by_kind.items()} == {"first": 1, "later": 3000}
        claims = await queue.claim("w", 2000, 60)
        assert [claim.job.id for claim in claims] == ["1", *ids[:1999]]
        held = await queue.page(JobFilter("leased", limit=1000, after=ids[999]))
        assert [view.job.id for view in held.jobs] == [*reversed(ids[:999]), "1"]
        await queue.settle([Settlement.dead(claim, "why") for claim in claims])
        dead = await queue.page(JobFilter("dead", limit=1000, after=ids[999]))
        assert [view.job.id for view in dead.jobs] == [*reversed(ids[:999]), "1"]
        assert await queue.retry() == 2000
        assert (await queue.stats()).ready == 3001

    within(redis.url(), name, work)


@pytest.mark.parametrize("server", ["redis", "redis_oldest"])
def test_order_to_the_last_bit(server: str, request: pytest.FixtureRequest, name: str) -> None:
    """Times that differ in the last bit of a double sort right, and equal ones by put order."""
    clock = VirtualClock()
    url = request.getfixturevalue(server).url()

    async def main() -> None:
        async with RedisQueue(url, name, clock=clock) as queue:
            now = clock.epoch()
            bit = 2.0**-22  # of a double near 1.8e9
            delays = [3, 1, 2, 1, 0.5, 2, 1, 1e9, 7e10 / 3]
            jobs = [NewJob("job", n, run_at=now + 60 + d * bit) for n, d in enumerate(delays)]
            await queue.put(jobs)
            await clock.advance(1e6)
            order = [claim.job.payload for claim in await queue.claim("w", 100, 60)]
            assert order == sorted(range(len(jobs)), key=lambda n: (jobs[n].run_at, n))

    clock.run(main())


class Wrong(Clock):
    """A client whose clock is hours off."""

    def __init__(self, by: float) -> None:
        self._by = by

    def epoch(self) -> float:
        return super().epoch() + self._by


def test_the_clock_of_the_server_decides(redis: Redis, name: str) -> None:
    async def main() -> None:
        early = RedisQueue(redis.url(), name, clock=Wrong(-7200))
        late = RedisQueue(redis.url(), name, clock=Wrong(7200))
        now = Clock().epoch()
        async with early, late:
            await early.put(NewJob("job", "now"))
            await early.put(NewJob("job", "later", delay=60))
            [claim] = await late.claim("w", 10, 30)
            assert claim.job.payload == "now"
            assert abs(claim.until - now - 30) < 10
            assert abs(claim.job.created_at - now) < 10
            assert await early.claim("w", 10, 30) == [], "the lease of the other lives"
            await early.renew([claim], 30)
            await late.settle([Settlement.done(claim)])
            alarm = late.hints()._send_timer
            assert await late.claim("w", 10, 30) == []
            alarm = late.hints()._send_timer
            assert alarm is not None
            assert 0 < alarm.when() - late.clock.now() < 60.5, "woken when the job is due"

    asyncio.run(main())


def test_a_claim_from_before_the_data_was_lost_fits_no_job(redis: Redis, name: str) -> None:
    async def work(queue: Queue) -> None:
        await queue.put(NewJob("job", "before"))
        [before] = await queue.claim("w", 1, 60)
        with redis.client() as client:
            client.delete(*client.scan_iter(match=f"*{name}*"))
        await asyncio.to_thread(redis.execute, "PING")
        [job_id] = await queue.put(NewJob("job", "after"))
        assert job_id == before.job.id
        await queue.claim("w", 1, 60)
        with pytest.raises(LeaseLost):
            await queue.settle([Settlement.done(before)])

    within(redis.url(), name, work)


def test_scripts_are_whole(redis: Redis) -> None:
    names = (
        "cancel",
        "check",
        "claim",
        "ended",
        "renew",
        "page",
        "put",
        "settle",
        "stats",
        "notes",
        "schedule",
    )
    for each in (script(SCRIPTS, name) for name in names):
        assert redis.execute("SCRIPT", "LOAD", each.text) == each.sha


def test_jobs_written_in_text_that_is_not_ours(redis: Redis, name: str) -> None:
    """Payloads pass through as they are: no script decodes or encodes them."""
    texts = [
        '{"a":1.0,"b":1e5,"c":[],"d":{},"e":12345678901234567890}',
        '"\\u0000"',
        "[[]]",
        "-0.0",
    ]

    async def work(queue: Queue) -> None:
        await queue.put([NewJob("job", json.loads(text)) for text in texts])
        claims = await queue.claim("w", 10, 60)
        found = [json.dumps(claim.job.payload, separators=(",", ":")) for claim in claims]
        assert found == [json.dumps(json.loads(text), separators=(",", ":")) for text in texts]

    within(redis.url(), name, work)


def await_cluster(node: Redis) -> None:
    wait_until(lambda: "cluster_state:ok" in str(node.execute("CLUSTER", "INFO")), "cluster up")


@pytest.mark.parametrize("oldest", [False, True])
def test_on_a_cluster(own_redis: OwnRedis, name: str, oldest: bool) -> None:
    cluster = own_redis(oldest=oldest, cluster_enabled="yes")
    cluster.execute("CLUSTER", "ADDSLOTS", *range(16384))
    await_cluster(cluster)

    async def work(queue: Queue) -> None:
        jobs = [
            NewJob(f"k{n % 3}", "x" * n * 100, key=f"{n % 5}", unique=f"{n}") for n in range(40)
        ]
        await queue.put(jobs)
        done = 0
        while claims := await queue.claim("w", 10, 60):
            await queue.renew(claims, 60)
            done += len(claims)
            await queue.settle([Settlement.dead(claim, "why") for claim in claims])
        assert done == 40
        assert await queue.retry() == 40
        assert (await queue.stats()).ready == 5
        assert len(await queue.jobs(limit=100)) == 40

    within(cluster.url(), name, work)


def test_a_queue_at_another_node_of_a_cluster(own_redis: OwnRedis) -> None:
    nodes = [own_redis(cluster_enabled="yes") for _ in range(2)]
    for node, slots in zip(nodes, ((0, 8191), (8192, 16383)), strict=True):
        node.execute("CLUSTER", "ADDSLOTSRANGE", *slots)
    nodes[0].execute("CLUSTER", "MEET", "127.0.0.1", nodes[1].port)
    for node in nodes:
        await_cluster(node)

    async def main() -> None:
        for n in range(8):
            async with RedisQueue(nodes[0].url(), f"queue{n}") as queue:
                await queue.put(NewJob("job", n))
                [claim] = await queue.claim("w", 10, 60)
                assert claim.job.payload == n

    asyncio.run(main())
    assert all(node.execute("DBSIZE") for node in nodes), "each node has some of the queues"


def test_a_claim_ends_when_a_script_found_nothing(redis: Redis, name: str) -> None:
    """More jobs are due than one script makes ready, and those that it made are of another kind."""
    clock = VirtualClock()

    async def main() -> None:
        async with RedisQueue(redis.url(), name, clock=clock) as queue:
            await queue.put([NewJob("x", delay=1) for _ in range(MOST_DUE + 1)])
            await queue.put([NewJob("y", delay=2)])
            await clock.advance(3)
            asked = ClaimRequest("w", 10, 60.0, 0.0, ["y"], False)
            claims, again, _ = await queue._store.claim(asked, clock.epoch(), None, None)
            assert (claims, again) == ([], EMPTY_PAUSE)
            [claim] = await queue.claim("w", 10, 60, kinds=["y"])
            assert claim.job.kind == "y"

    clock.run(main())


def test_a_claim_that_the_server_lost_is_refused(redis: Redis, name: str) -> None:
    """A failover may lose a claim: the next claim of the job must not get the same token."""

    def keys() -> list[str]:
        found = redis.execute("KEYS", f"*{name}*")
        return [key.decode() if isinstance(key, bytes) else str(key) for key in found]

    async def work(queue: Queue) -> None:
        await queue.put(NewJob("job", "first"))
        before = keys()
        for key in before:
            redis.execute("COPY", key, f"{key}:saved")
        [lost] = await queue.claim("old", 1, 60)
        await queue.put(NewJob("job", "lost"))
        [other] = await queue.claim("old", 1, 60)
        for key in set(keys()) - {*before, *(f"{key}:saved" for key in before)}:
            redis.execute("DEL", key)
        for key in before:
            redis.execute("COPY", f"{key}:saved", key, "REPLACE")
            redis.execute("DEL", f"{key}:saved")
        [again] = await queue.claim("new", 1, 60)
        await queue.put(NewJob("job", "with the number of the lost one"))
        [fresh] = await queue.claim("new", 1, 60)
        assert (again.job.id, fresh.job.id) == (lost.job.id, other.job.id)
        assert again.token > lost.token
        assert fresh.token > other.token
        for stale in (lost, other):
            with pytest.raises(LeaseLost):
                await queue.settle([Settlement.done(stale)])
            assert (await queue.renew([stale], 60)).lost == (stale.job.id,)
        await queue.settle([Settlement.done(again), Settlement.done(fresh)])
        assert (await queue.stats()).leased == 0

    within(redis.url(), name, work)


def test_tokens_of_a_job_grow_though_the_clock_goes_back(redis: Redis, name: str) -> None:
    class SetClock(VirtualClock):
        def back(self) -> None:
            self._epoch -= 3600

    clock = SetClock()

    async def main() -> None:
        async with RedisQueue(redis.url(), name, clock=clock) as queue:
            await queue.put(NewJob("job"))
            tokens = []
            for _ in range(5):
                [claim] = await queue.claim("w", 1, 60)
                await queue.settle([Settlement.retry(claim, error="again")])
                tokens.append(claim.token)
                clock.back()
            assert tokens == sorted(set(tokens))

    clock.run(main())


def test_a_claim_of_any_of_many_kinds_is_bounded(redis: Redis, name: str) -> None:
    async def work(queue: Queue) -> None:
        async def commands() -> int:
            await queue.claim("w", 5, 60)  # the first one sends the script
            redis.execute("CONFIG", "RESETSTAT")
            assert len(await queue.claim("w", 5, 60)) == 5
            stats = redis.execute("INFO", "commandstats")
            return sum(value["calls"] for value in stats.values())

        await queue.put([NewJob(f"k{n}") for n in range(1000)])
        few = await commands()
        await queue.put([NewJob(f"k{n}") for n in range(1000, 6000)])
        assert await commands() <= few + 50
        claimed = 20
        while claims := await queue.claim("w", 1000, 60):
            claimed += len(claims)
        assert claimed == 6000, "some kinds were never looked at"

    within(redis.url(), name, work)


def test_jobs_that_stay_for_their_results_hold_no_prune_up(redis: Redis, name: str) -> None:
    async def main() -> None:
        async with RedisQueue(redis.url(), name, keep=0.001) as queue:
            await queue.put([NewJob("x") for _ in range(2500)])
            claims = await queue.claim("w", 2500, 60)
            await queue.settle([Settlement.done(each, 1, keep=3600) for each in claims])
            await queue.cancel(await queue.put([NewJob("x") for _ in range(50)]))
            await asyncio.sleep(0.01)  # real time: the server has a clock of its own
            assert await queue.prune() == 50
            assert (await queue.stats()).done == 2500

    asyncio.run(main())
