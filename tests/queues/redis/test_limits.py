"""Limits in Redis: beside workers of a version without them, over portions, and without traces."""

from __future__ import annotations

import random
from hashlib import sha1
from pathlib import Path
from typing import Any

import pytest

from pollwise.errors import LeaseLost, UniqueConflict
from pollwise.queues.limits.record import Concurrency, Rate
from pollwise.queues.redis import store as redis_store
from pollwise.queues.redis.queue import RedisQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.jobs import Claim, NewJob, Settlement
from pollwise.storage.redis.scripts import Script, script
from tests.queues.redis.kit import within
from tests.queues.redis.test_record import left_of
from tests.support.servers import Redis

#: The scripts of a version without limits, with today's layout of a token.
FORMER = Path(__file__).parent / "former"
GROUPS = "abc"


def former_script(package: str, name: str) -> Script:
    if not (FORMER / f"{name}.lua").exists():
        return script(package, name)
    text = "\n".join((FORMER / f"{each}.lua").read_text("utf-8") for each in ("common", name))
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())


class FormerQueue(RedisQueue):
    """Runs the former scripts. Its producers know no limit groups."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        store = self._store

        async def run(name: str, *given: bytes | str | int, within: float | None = None) -> Any:
            chosen = former_script(redis_store.SCRIPTS, name)
            return await self._connections.run(chosen, store.tag, *given, within=within)

        store._run = run  # type: ignore[method-assign]


class Story:
    """Random calls of two versions on one queue, and what must be true of them."""

    def __init__(self, new: RedisQueue, old: RedisQueue, clock: VirtualClock, seed: int) -> None:
        self.queues = (new, old)
        self.new = new
        self.clock = clock
        self.rng = random.Random(seed)
        self.put: set[str] = set()
        self.held: dict[str, tuple[Claim, RedisQueue]] = {}
        self.done: list[str] = []
        self.cancelled: set[str] = set()
        self.most: int | None = None

    async def step(self) -> None:
        ways = [self.add, self.add, self.claim, self.claim, self.end, self.end]
        more = [self.renew, self.cancel, self.limit, self.pass_time]
        await self.rng.choice([*ways, *ways, *more])()

    async def add(self) -> None:
        rng, queue = self.rng, self.rng.choice(self.queues)
        jobs = []
        for n in range(rng.randint(1, 6)):
            unique = f"u{rng.randint(0, 5)}" if n == 0 and rng.random() < 0.3 else None
            group = rng.choice(GROUPS) if queue is self.new and rng.random() < 0.8 else None
            key = f"k{rng.randint(0, 2)}" if unique is None and rng.random() < 0.3 else None
            jobs.append(
                NewJob(
                    rng.choice(["job", "job", "free"]) if unique is None else "job",
                    "x" * rng.choice([1, 2000]),
                    key=key,
                    unique=unique,
                    replace=unique is not None,
                    priority=rng.randint(-1, 1),
                    delay=rng.choice([0, 0, 2]),
                    limit_group=group,
                )
            )
        try:
            self.put |= set(await queue.put(jobs))
        except UniqueConflict:
            pytest.fail("a replacing put of the same kind was refused")

    async def claim(self) -> None:
        queue = self.rng.choice(self.queues)
        kinds = self.rng.choice([None, ["job"], ["free", "job"]])
        found = await queue.claim("w", self.rng.randint(1, 8), 5, kinds=kinds)
        now = self.clock.epoch()
        for claim in found:
            job_id = claim.job.id
            assert job_id not in self.done, f"job {job_id} was claimed after it was done"
            if job_id in self.held:
                assert self.held[job_id][0].until <= now, f"job {job_id} has two leases"
            self.held[job_id] = claim, queue

    async def end(self) -> None:
        if not self.held:
            return
        claim, queue = self.held.pop(self.rng.choice(sorted(self.held)))
        way = self.rng.random()
        settlement = Settlement.done(claim)
        if way < 0.2:
            settlement = Settlement.retry(claim, self.rng.choice([0, 1]), error="again")
        elif way < 0.3:
            settlement = Settlement.give_back(claim)
        try:
            await queue.settle([settlement])
        except LeaseLost:
            assert claim.until <= self.clock.epoch() or claim.job.id in self.cancelled
            return
        if way >= 0.3:
            self.done.append(claim.job.id)

    async def renew(self) -> None:
        if self.held:
            claim, queue = self.held[self.rng.choice(sorted(self.held))]
            renewal = await queue.renew([claim], 5)
            if renewal.lost:
                assert claim.until <= self.clock.epoch() or claim.job.id in self.cancelled
                del self.held[claim.job.id]
            else:
                object.__setattr__(claim, "until", self.clock.epoch() + 5)

    async def cancel(self) -> None:
        if self.put and self.rng.random() < 0.5:
            some = self.rng.sample(sorted(self.put), min(2, len(self.put)))
            states = await self.rng.choice(self.queues).cancel(some)
            self.cancelled |= set(states)

    async def limit(self) -> None:
        way, limits = self.rng.randint(0, 4), self.new.limits
        if way == 0:
            await limits.remove("job")
        elif way == 1:
            await limits.set("job", Concurrency(3))
        elif way == 2:
            await limits.set("job", [Concurrency(4), Concurrency(2, by="tenant")])
        elif way == 3:
            await limits.set("job", Rate(10, 2, by="tenant", burst=2), fair_by="tenant")
        else:
            await limits.set("job", fair_by="tenant", weights={"a": 3})

    async def pass_time(self) -> None:
        await self.clock.advance(self.rng.choice([0.1, 1, 6]))

    async def finish(self) -> None:
        """Without limits, every job that was not cancelled runs to its end."""
        for claim, queue in self.held.values():
            if claim.until > self.clock.epoch():
                await queue.settle([Settlement.give_back(claim)])
        await self.new.limits.remove("job")
        self.held.clear()
        for _ in range(30):
            await self.clock.advance(6)
            while found := await self.new.claim("w", 100, 5):
                assert not {claim.job.id for claim in found} & set(self.done)
                await self.new.settle([Settlement.done(claim) for claim in found])
                self.done += [claim.job.id for claim in found]
        left = self.put - set(self.done) - self.cancelled
        assert not left, f"jobs {sorted(left)} never ran"
        assert len(self.done) == len(set(self.done))


@pytest.mark.parametrize("seed", range(12))
def test_workers_that_know_no_limits(redis: Redis, name: str, seed: int) -> None:
    """They lose no job and run none twice, whatever limits come and go."""
    clock = VirtualClock()

    async def main() -> None:
        async with (
            RedisQueue(redis.url(), name, clock=clock) as new,
            FormerQueue(redis.url(), name, clock=clock) as old,
        ):
            story = Story(new, old, clock, seed)
            for _ in range(250):
                await story.step()
            await story.finish()

    clock.run(main())


def groups_put(count: int, group: str | None, **more: Any) -> list[NewJob]:
    return [NewJob("job", n, limit_group=group, **more) for n in range(count)]


def test_what_older_workers_do_about_limits(redis: Redis, name: str) -> None:
    """They find no job that waits in its turn, and claim others without limits."""

    async def work(new: RedisQueue, old: RedisQueue) -> None:
        await new.limits.set("job", Concurrency(1, by="tenant"))
        await new.put(groups_put(3, "a"))
        await old.put(groups_put(3, None))
        assert len(await old.claim("w", 10, 60)) == 3
        assert await old.claim("w", 10, 60) == []
        # The last claim took the kind out of the set of kinds that have jobs.
        assert len(await new.claim("w", 10, 60)) == 1
        assert await new.claim("w", 10, 60) == []
        await new.limits.remove("job")
        assert len(await new.claim("w", 10, 60)) == 2

    beside_former(redis, name, work)


def test_a_job_in_two_lines_runs_once(redis: Redis, name: str) -> None:
    """An older worker renewed a lease that had run out, and its job is in both lines."""

    async def work(new: RedisQueue, old: RedisQueue) -> None:
        await new.put(groups_put(1, "a"))
        [claim] = await old.claim("w", 1, 5)
        await new.limits.set("job", fair_by="tenant")
        await new.clock.sleep(6)
        assert await new.claim("w", 1, 5, kinds=["free"]) == []  # the job waits in its group
        await old.renew([claim], 5)
        await new.clock.sleep(6)
        assert await old.claim("w", 1, 5, kinds=["free"]) == []  # and in the line of older workers
        await old.put(groups_put(1100, None, priority=1))  # more than one claim moves
        mine = {each.job.id for each in await new.claim("w", 2, 60)}
        assert claim.job.id in mine
        others = await old.claim("w", 1000, 60)
        assert len(others) == 100
        assert not mine & {each.job.id for each in others}

    beside_former(redis, name, work)


def beside_former(redis: Redis, name: str, work: Any) -> None:
    clock = VirtualClock()

    async def main() -> None:
        async with (
            RedisQueue(redis.url(), name, clock=clock) as new,
            FormerQueue(redis.url(), name, clock=clock) as old,
        ):
            await work(new, old)

    clock.run(main())


def test_limit_groups_that_older_workers_leave_are_deleted(redis: Redis, name: str) -> None:
    async def work(new: RedisQueue, old: RedisQueue) -> None:
        await new.put(groups_put(300, "a"))
        for _ in range(2):
            await old.settle([Settlement.done(each) for each in await old.claim("w", 149, 60)])
        assert redis.execute("HLEN", f"{tag(name)}:groups") == 300
        for _ in range(40):
            await new.prune()
        assert redis.execute("HLEN", f"{tag(name)}:groups") == 2
        await new.settle([Settlement.done(each) for each in await new.claim("w", 10, 60)])
        assert await new.claim("w", 10, 60) == []

    beside_former(redis, name, work)
    assert left_of(redis, name) == [":meta"]


def tag(name: str) -> str:
    return redis_store.tag_of("pollwise", name)


def test_limits_that_come_and_go_over_many_jobs(redis: Redis, name: str) -> None:
    """Jobs are moved in portions, and keep their order within a group."""

    async def work(queue: Any) -> None:
        await queue.put([NewJob("job", n, limit_group=GROUPS[n % 2]) for n in range(2500)])
        await queue.limits.set("job", fair_by="tenant", weights={"a": 2})
        claims = await queue.claim("w", 600, 60)
        assert [sum(c.job.payload % 2 == n for c in claims) for n in (0, 1)] == [400, 200]
        while redis.execute("ZCARD", f"{tag(name)}:ready:job"):
            claims += await queue.claim("w", 1, 60)
        waiting = (await queue.limits.use("job"))[0].groups
        assert sum(each.running for each in waiting) == len(claims)
        assert redis.execute("ZCARD", f"{tag(name)}:lines:job") == 2500 - len(claims)
        await queue.limits.set("job", Concurrency(2000))
        while redis.execute("EXISTS", f"{tag(name)}:lines:job"):
            claims += await queue.claim("w", 1, 60)
        claims += await queue.claim("w", 2500, 60)
        assert len(claims) == 2000
        await queue.limits.remove("job")
        claims += await queue.claim("w", 2500, 60)
        for n in (0, 1):
            of_group = [c.job.payload for c in claims if c.job.payload % 2 == n]
            assert of_group == list(range(n, 2500, 2))
        await queue.settle([Settlement.done(claim) for claim in claims])
        assert await queue.claim("w", 1, 60) == []

    within(redis.url(), name, work)
    assert left_of(redis, name) == [":meta"]


def test_nothing_is_left_of_limited_jobs(redis: Redis, name: str) -> None:
    clock = VirtualClock()

    async def main() -> None:
        async with RedisQueue(redis.url(), name, clock=clock) as queue:
            limits: list[Concurrency | Rate] = [Concurrency(9), Rate(9, 1)]
            limits.append(Concurrency(6, by="tenant"))
            await queue.limits.set("job", limits)
            jobs = [NewJob("job", "x" * size, limit_group="a") for size in (1, 5000)] * 3
            ids = await queue.put([*jobs, *groups_put(6, None)])
            await queue.cancel(ids[5:7])
            for _ in range(30):
                claims = await queue.claim("w", 5, 2)
                await queue.renew(claims[:2], 2)
                await queue.settle([Settlement.done(claim) for claim in claims[:1]])
                await queue.settle([Settlement.retry(claim) for claim in claims[1:2]])
                await queue.settle([Settlement.dead(claim, "why") for claim in claims[2:3]])
                await clock.advance(3)
            await queue.drop()
            await queue.limits.remove("job")
            assert await queue.claim("w", 5, 2) == []

    clock.run(main())
    assert left_of(redis, name) == [":meta"]


def test_a_large_group_costs_a_claim_nothing(redis: Redis, name: str) -> None:
    """A claim runs as many commands, and looks at as many jobs, as without that group."""

    async def work(queue: Any) -> None:
        await queue.limits.set("job", Concurrency(50, by="tenant"))
        await queue.put([NewJob("job", n, limit_group=f"t{n % 20}") for n in range(200)])

        async def commands() -> int:
            await queue.claim("w", 10, 60)  # the first one sends the script
            redis.execute("CONFIG", "RESETSTAT")
            claims = await queue.claim("w", 10, 60)
            stats = redis.execute("INFO", "commandstats")
            assert len({claim.job.headers["pollwise-limit-group"] for claim in claims}) == 10
            return sum(value["calls"] for value in stats.values())

        before = await commands()
        await queue.put(groups_put(5000, "t7a"))
        assert await commands() <= before + 10

    within(redis.url(), name, work)


@pytest.mark.parametrize(
    "limit", [Concurrency(1, by="tenant"), Rate(1, 900, by="tenant")], ids=["number", "rate"]
)
def test_full_groups_cost_a_claim_nothing(
    redis: Redis, name: str, limit: Concurrency | Rate
) -> None:
    """A claim runs as many commands with 20 full groups as with 3,000."""

    async def work(queue: Any) -> None:
        await queue.limits.set("job", limit)
        spent = []
        for groups in (range(20), range(20, 3000)):
            await queue.put([
                NewJob("job", limit_group=f"tenant {n:04}") for n in groups for _ in range(2)
            ])  # fmt: skip
            while await queue.claim("w", 1000, 600):
                pass
            for free in ("", "a", "z"):
                if free:
                    await queue.put(NewJob("job", limit_group=f"{free}{groups}"))
                redis.execute("CONFIG", "RESETSTAT")
                claims = await queue.claim("w", 10, 600)
                stats = redis.execute("INFO", "commandstats")
                assert len(claims) == bool(free)
                spent.append(sum(value["calls"] for value in stats.values()))
        few, many = spent[:3], spent[3:]
        assert all(two <= one + 5 for one, two in zip(few, many, strict=True)), spent

    within(redis.url(), name, work)


def test_the_rates_of_groups_are_forgotten_by_the_server(redis: Redis, name: str) -> None:
    async def work(queue: Any) -> None:
        await queue.limits.set("job", Rate(10, 60, by="tenant", burst=5))
        await queue.put(groups_put(2, "a"))
        await queue.claim("w", 10, 60)
        left = redis.execute("PTTL", f"{tag(name)}:full:job")
        assert 30_000 < left <= 60_000

    within(redis.url(), name, work)
