"""Workers on a real server that breaks, each with a handle of its own, and what they did.

Under the virtual clock no call is under way when a timer fires, because time stands still during
calls. So a fault in the middle of a call is a strike: the call itself starts it, some steps after
the call began.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, TypeVar

from pollwise.core.retry import Retry
from pollwise.durations import Duration, seconds
from pollwise.errors import LeaseLost
from pollwise.queues.base import Queue
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.queues.redis.queue import RedisQueue
from pollwise.queues.redis.store import SCRIPTS
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import JobStarted, PollFailed, PollRecovered
from pollwise.runtime.jobs import Claim, Job, NewJob, Renewal, Settlement
from pollwise.storage.redis.scripts import script
from pollwise.worker import Worker
from tests.queues.benches import migrated
from tests.support.kit import Seen, options, until, until_empty, working
from tests.support.proxy import Proxy
from tests.support.servers import OwnPostgres, OwnRedis, Postgres, Redis

T = TypeVar("T")
Call = Literal["claim", "settle", "renew"]

STORES = ("postgres", "redis")
#: How long a handler takes, in seconds of the clock.
TOOK = 1.0
#: A job is tried again, however many claims a server swallows.
AGAIN = Retry.fixed("1s", attempts=None)
#: A strike comes at most this many steps of the event loop after its call began: before the request
#: is sent, while it is under way, or when its answer has arrived.
STEPS = 16


def server_of(store: str, own_postgres: OwnPostgres, own_redis: OwnRedis) -> Postgres | Redis:
    """A server that keeps committed data, for the test to break."""
    if store == "postgres":
        server = own_postgres()
        migrated(server.dsn())
        return server
    return own_redis(appendonly="yes", appendfsync="always")


def address_of(server: Postgres | Redis) -> str:
    return server.dsn() if isinstance(server, Postgres) else server.url()


def request_of(store: str, call: Call) -> bytes:
    """A text in the request of a call, by which the proxy recognises it."""
    return call.encode() if store == "postgres" else script(SCRIPTS, call).sha.encode()


# What happened


@dataclass(slots=True)
class Lease:
    """One claim: its begin, its earliest end, and how it ended, as far as its worker knows."""

    token: int
    attempt: int
    at: float
    until: float
    given_up: float | None = None  # its worker asked to put the job back
    done: bool = False


@dataclass
class Story:
    """What all workers claimed, renewed and settled under which token, and what ran."""

    leases: dict[str, list[Lease]] = field(default_factory=lambda: defaultdict(list))
    ran: Counter[str] = field(default_factory=Counter)

    def lease(self, claim: Claim) -> Lease:
        [lease] = [each for each in self.leases[claim.job.id] if each.token == claim.token]
        return lease

    def attempts(self, job_id: str) -> list[int]:
        return [lease.attempt for lease in self.leases[job_id]]

    def check(self, ids: Iterable[str], *, once: bool = True) -> None:
        """Check that all ran and are done, each claim with its own token and after the one before.

        once: no handler ran twice to its end.
        """
        ids = set(ids)
        assert set(self.ran) == ids, f"never ran: {sorted(ids - set(self.ran))[:10]}"
        for job_id in ids:
            leases = sorted(self.leases[job_id], key=lambda lease: lease.token)
            told = f"job {job_id}: {leases}"
            tokens = [lease.token for lease in leases]
            assert len(set(tokens)) == len(tokens), f"a token was used twice: {told}"
            for one, two in pairwise(leases):
                end = one.until if one.given_up is None else one.given_up
                assert two.at >= end - 1e-6, f"two live leases: {told}"
                assert two.attempt >= one.attempt, told  # equal if it was claimed ahead
                assert not one.done, f"claimed after it was done: {told}"
            assert sum(lease.done for lease in leases) <= 1, told
        if once:
            twice = {job_id: n for job_id, n in self.ran.items() if n > 1}
            assert not twice, f"ran twice: {twice}"


class Noted(Queue):
    """Logs its claims, renewals and settlements in a story, and can be struck in a call."""

    story: Story
    rng: random.Random
    strikes: dict[str, Callable[[], object]]

    async def _struck(self, name: Call, work: Coroutine[Any, Any, T]) -> T:
        call = asyncio.ensure_future(work)
        strike = self.strikes.pop(name, None)
        if strike is not None:
            for _ in range(self.rng.randrange(STEPS)):
                await asyncio.sleep(0)
            strike()
        return await call

    def _server_now(self) -> float:
        imposed = self.clock.imposed()
        return time.time() if imposed is None else imposed

    async def claim(
        self, worker: str, limit: int, lease: Duration, *others: Any, **named: Any
    ) -> list[Claim]:
        work = super().claim(worker, limit, lease, *others, **named)
        claims = await self._struck("claim", work)
        for claim in claims:
            began = claim.until - seconds(lease, "lease")
            self.story.leases[claim.job.id].append(
                Lease(claim.token, claim.job.attempt, began, claim.until)
            )
        return claims

    async def renew(
        self, claims: Iterable[Claim], lease: Duration, *others: Any, **named: Any
    ) -> Renewal:
        batch, before = list(claims), self._server_now()
        renewal = await self._struck("renew", super().renew(batch, lease, *others, **named))
        for claim in batch:
            if claim.job.id not in renewal.lost:
                self.story.lease(claim).until = before + seconds(lease, "lease")
        return renewal

    async def settle(self, settlements: Iterable[Settlement]) -> None:
        batch = list(settlements)
        for settlement in batch:
            noted = self.story.lease(settlement.claim)
            if settlement.action != "done" and noted.given_up is None:
                noted.given_up = self._server_now()  # it may count even if its answer is lost
        lost = await self._lost_in("settle", super().settle(batch))
        for settlement in batch:
            if settlement.action == "done" and settlement.claim.job.id not in lost:
                self.story.lease(settlement.claim).done = True
        if lost:
            raise LeaseLost(lost)

    async def _lost_in(self, name: Call, work: Coroutine[Any, Any, None]) -> tuple[str, ...]:
        try:
            await self._struck(name, work)
        except LeaseLost as error:
            return error.lost
        return ()


class NotedPostgres(Noted, PostgresQueue):
    pass


class NotedRedis(Noted, RedisQueue):
    pass


# Workers


class Team:
    """Workers on one queue. `source` is a handle for the test itself, without a proxy.

    took: how long a handler takes; twenty times as long for the payload "long". A job with the
        payload
    "fails once" fails at its first attempt.
    """

    def __init__(
        self, server: str, clock: Clock, *, seed: int = 0, took: float = TOOK, **given: Any
    ) -> None:
        self.clock = clock
        self.story = Story()
        self.rng = random.Random(seed)
        self.seen: list[Seen] = []
        self.queues: list[Noted] = []
        self.workers: list[Worker] = []
        self.ids: list[str] = []
        self.started: Counter[tuple[str, int]] = Counter()
        #: Set when a handler has begun since the last put.
        self.began = asyncio.Event()
        self._took = took
        self._name = f"team-{secrets.token_hex(6)}"
        self._given = {"keep": "1d", **given}
        self.source = self.handle(server)

    def handle(self, address: str, **given: Any) -> Noted:
        kind = NotedRedis if address.startswith("redis") else NotedPostgres
        chosen = {"clock": self.clock, **self._given, **given}
        queue: Noted = kind(address, self._name, **chosen)
        queue.story, queue.rng, queue.strikes = self.story, self.rng, {}
        return queue

    async def put(self, count: int) -> None:
        """Put jobs of all sorts: a third with a key, a few that fail once."""
        jobs = [
            NewJob(
                "job",
                "fails once" if n % 10 == 7 else n,
                key=f"key{n % 5}" if n % 3 == 0 else None,
            )
            for n in range(count)
        ]
        self.began.clear()
        self.ids += await self.source.put(jobs)

    def hire(self, address: str, **given: Any) -> Worker:
        """Add a worker with its own handle."""
        seen, queue = Seen(), self.handle(address, **given)
        worker = Worker(queue, name=f"w{len(self.workers)}", events=seen.events)
        worker.handle("job", retry=AGAIN)(self._work)
        seen.events.subscribe(self._note_start, JobStarted)
        self.seen.append(seen)
        self.queues.append(queue)
        self.workers.append(worker)
        return worker

    @asynccontextmanager
    async def at_work(self, **chosen: Any) -> AsyncIterator[None]:
        """All workers run inside the block."""
        chosen = {"concurrency": 4, "prefetch": 1, "lease": "30s", **chosen}
        async with AsyncExitStack() as stack:
            for queue in (self.source, *self.queues):
                await stack.enter_async_context(queue)
            for n, worker in enumerate(self.workers):
                await stack.enter_async_context(working(worker, options(**chosen, seed=n)))
            yield

    async def all_done(self, within: float = 3600.0) -> None:
        """Check that nothing is left to do, and that every worker polls normally."""
        await until_empty(self.source, within)
        await until(self._all_recovered, within)

    def _all_recovered(self) -> bool:
        return all(
            sum(event.failures for event in seen.of(PollRecovered)) == len(seen.of(PollFailed))
            for seen in self.seen
        )

    async def check(self, *, once: bool = True) -> None:
        """Check that nothing is lost, ran under two leases, or is left behind."""
        stats = await self.source.stats()
        assert (stats.done, stats.dead) == (len(self.ids), 0), stats
        self.story.check(self.ids, once=once)
        again = [
            (job_id, attempt)
            for (job_id, attempt), count in self.started.items()
            if count > self.story.attempts(job_id).count(attempt)
        ]
        assert not again, f"the same claim was begun twice: {again}"

    def of(self, *kinds: type[Any]) -> list[Any]:
        return [event for seen in self.seen for event in seen.of(*kinds)]

    def check_backed_off(self, most: int, *, every: bool = True) -> None:
        """Check that each loop failed a few times, more slowly each time, and recovered by
        itself."""
        for worker, seen in zip(self.workers, self.seen, strict=True):
            failed, recovered = seen.of(PollFailed), seen.of(PollRecovered)
            told = f"{worker.name}: {failed[:9]}, {recovered}"
            assert len(failed) <= most, told
            assert failed or not every, told
            assert sum(event.failures for event in recovered) == len(failed), told
            for event in failed:
                assert event.delay >= 0.7 * min(2 ** (event.failures - 1), 60), told

    def _note_start(self, event: JobStarted) -> None:
        self.started[event.job, event.attempt] += 1
        self.began.set()

    async def _work(self, job: Job) -> None:
        took = self._took * (20 if job.payload == "long" else 1)
        await asyncio.sleep(took)  # real time: unless the test runs in virtual time
        if job.payload == "fails once" and job.attempt == 1:
            raise OSError("once")
        self.story.ran[job.id] += 1


def team_of(clock: Clock, server: Postgres | Redis, workers: int = 3, **given: Any) -> Team:
    team = Team(address_of(server), clock, **given)
    for _ in range(workers):
        team.hire(address_of(server))
    return team


def team_behind(
    clock: Clock, server: Postgres | Redis, proxy: Proxy, behind: int = 1, **given: Any
) -> Team:
    """Three workers, the first few of which use the proxy."""
    team, direct = Team(address_of(server), clock, **given), address_of(server)
    for n in range(3):
        team.hire(proxy.through(direct) if n < behind else direct)
    return team
