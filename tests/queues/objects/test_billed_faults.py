"""Servers behind a network that drops, delays, repeats and refuses requests: nothing is lost.

A real MiniStack stands behind a proxy that breaks requests at random. Producers put numbers, each
until it is told that it is in; workers claim, renew and settle them, and some walk away from what
they hold. Then the network is mended, and all that was put must be done or dead, as it was meant to
be, and as the ledger says.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any
from urllib.parse import unquote

import pytest

from pollwise import open as open_queue
from pollwise.errors import LeaseLost, StoreUnavailable
from pollwise.queues.base import Queue
from pollwise.queues.sqs.queue import SqsQueue
from pollwise.runtime.clock import VIRTUAL_EPOCH, Clock, VirtualClock, VirtualLoop
from pollwise.runtime.jobs import Claim, NewJob, Settlement
from tests.support.clouds import BUCKET, CREDENTIALS, MiniStack
from tests.support.fast import SPEED, FastClock
from tests.support.http_proxy import Answer, Dice, Fate, HttpProxy, Request

#: What a seed's faults are, in shares of all requests.
SHARE = 0.25


@pytest.fixture(scope="module")
def environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        patch.delenv("AWS_ENDPOINT_URL", raising=False)
        yield


# The ledger


def is_meant_to_die(number: int) -> bool:
    return number % 7 == 3


@dataclass
class Ledger:
    """What was asked for and what was told, by number and by job.

    fenced: no two leases are live at a time, and what was settled is never seen again, except for
        what may be put again by the network, as `again` says.
    """

    fenced: bool
    again: Callable[[Claim], bool]
    put: set[int] = field(default_factory=set)
    failed_puts: Counter[int] = field(default_factory=Counter)
    ids: dict[int, set[str]] = field(default_factory=dict)
    #: Leases that nobody ended, by job: token and end.
    leases: dict[str, dict[int, float]] = field(default_factory=dict)
    #: Numbers whose last settlement was sent, and those of them that were told it stands.
    tried: Counter[int] = field(default_factory=Counter)
    settled: Counter[int] = field(default_factory=Counter)
    over: set[str] = field(default_factory=set)
    ran_out: set[int] = field(default_factory=set)
    calls: Counter[str] = field(default_factory=Counter)

    def claimed(self, claim: Claim, now: float) -> None:
        job, number = claim.job, claim.job.payload
        self.calls["claimed"] += 1
        self.ids.setdefault(number, set()).add(job.id)
        leases = self.leases.setdefault(job.id, {})
        if self.fenced and not self.again(claim):
            assert job.id not in self.over, f"{number} runs again although it is over: {job.id}"
            live = {token: until for token, until in leases.items() if until > now}
            assert not live, f"{job.id} is claimed at {now} (token {claim.token}) beside {live}"
            assert claim.token > max(leases, default=0), f"{claim.token} is not newer than {leases}"
        leases[claim.token] = claim.until

    def let_go(self, claim: Claim, now: float) -> None:
        """Its holder does nothing with it any more, from now on."""
        if self.leases[claim.job.id][claim.token] < now:
            self.ran_out.add(claim.job.payload)
        self.leases[claim.job.id][claim.token] = 0.0

    def renewed(self, claims: list[Claim], until: float) -> None:
        for claim in claims:
            self.leases[claim.job.id][claim.token] = until

    def is_live(self, claim: Claim, now: float) -> bool:
        return self.leases[claim.job.id][claim.token] > now

    def ended(self, claim: Claim) -> None:
        self.settled[claim.job.payload] += 1
        self.over.add(claim.job.id)


# Who does it


class Crew:
    """Producers and workers on handles of one queue; `opened` makes a handle."""

    def __init__(
        self, seed: int, clock: Clock, ledger: Ledger, opened: Callable[[], Queue], lease: float
    ) -> None:
        self.rng = random.Random(seed)
        self.clock = clock
        self.ledger = ledger
        self.lease = lease
        self.stopping = False
        self._opened = opened
        self._handles: list[Queue] = []

    def handle(self) -> Queue:
        self._handles.append(self._opened())
        return self._handles[-1]

    async def close(self) -> None:
        for handle in self._handles:
            await handle.close()

    async def produce(self, numbers: list[int]) -> None:
        queue, left = self.handle(), list(numbers)
        unique = queue.capabilities.unique
        while left:
            size = self.rng.choice([1, 1, 5, 20])
            batch, left = left[:size], left[size:]
            await self.insist(queue, [self._job(number, unique) for number in batch])
            self.ledger.put.update(batch)
            await self.clock.sleep(self.rng.random())

    def _job(self, number: int, unique: bool) -> NewJob:
        delay = 2 if number % 5 == 1 else 0
        name = f"u{number}" if unique and number % 6 == 2 else None
        return NewJob("job", number, delay=delay, unique=name)

    async def insist(self, queue: Queue, jobs: list[NewJob]) -> None:
        while True:
            try:
                await queue.put(jobs)
            except StoreUnavailable:
                self.ledger.failed_puts.update(job.payload for job in jobs)
                await self.clock.sleep(0.5)
            else:
                return

    async def work(self, name: str) -> None:
        queue, rng = self.handle(), self.rng
        while not self.stopping:
            try:
                claims = await queue.claim(name, rng.choice([1, 3, 20]), self.lease)
            except StoreUnavailable:
                await self.clock.sleep(0.5)
                continue
            now = self.clock.epoch()
            for claim in claims:
                self.ledger.claimed(claim, now)
            await self.clock.sleep(rng.choice([0.1, 0.5, self.lease * 0.6, self.lease * 1.2]))
            half = len(claims) // 2
            for part in (claims[:half], claims[half:]):
                if part and rng.random() < 0.15:
                    await self.renew(queue, part)
                if part and rng.random() < 0.1:  # it walks away, and another comes in its place
                    self.ledger.calls["abandoned"] += len(part)
                    queue = self.handle()
                elif part:
                    await self.settle(queue, [self._action(claim) for claim in part])
            if not claims:
                await self.clock.sleep(0.5)

    def _action(self, claim: Claim) -> Settlement:
        luck = self.rng.random() if claim.job.attempt < 6 else 1.0
        if luck < 0.15:
            return Settlement.retry(claim, self.rng.choice([0, 1]), "once more")
        if luck < 0.25:
            return Settlement.give_back(claim)
        return final(claim)

    async def renew(self, queue: Queue, claims: list[Claim]) -> None:
        asked = self.clock.epoch()
        with suppress(StoreUnavailable):
            # Whoever is not told goes by what it had; whoever is has it from when it asked.
            lost = (await queue.renew(claims, self.lease)).lost
            renewed = [claim for claim in claims if claim.job.id not in lost]
            self.ledger.renewed(renewed, asked + self.lease)
            self.ledger.calls["renewed"] += len(renewed)

    async def settle(self, queue: Queue, batch: list[Settlement]) -> None:
        """As a worker does: until it is told what came of it."""
        live = {s.claim.job.id for s in batch if self.ledger.is_live(s.claim, self.clock.epoch())}
        for settlement in batch:
            self.ledger.let_go(settlement.claim, self.clock.epoch())
            self.ledger.calls[settlement.action] += 1
            if not settlement.comes_back:
                self.ledger.tried[settlement.claim.job.payload] += 1
        until = min((s.claim.until for s in batch), default=0.0)
        lost: tuple[str, ...] = ()
        while True:
            try:
                await queue.settle(batch)
            except StoreUnavailable:
                await self.clock.sleep(0.2)
                continue
            except LeaseLost as error:
                lost = error.lost
            break
        if self.ledger.fenced and self.clock.epoch() < until:
            refused = [s for s in batch if s.claim.job.id in live & set(lost)]
            assert not refused, f"refused though their leases are live: {refused}"
        for settlement in batch:
            if not settlement.comes_back and settlement.claim.job.id not in lost:
                self.ledger.ended(settlement.claim)

    async def clear(self, queue: Queue) -> None:
        """All works now: end what is left."""
        until = self.clock.now() + 50 * self.lease
        while True:
            claims = await queue.claim("last", 100, self.lease)
            for claim in claims:
                self.ledger.claimed(claim, self.clock.epoch())
            await self.settle(queue, [final(claim) for claim in claims])
            stats = await queue.stats()
            if not claims and not stats.ready + stats.delayed + stats.leased:
                return
            assert self.clock.now() < until, f"it never ends: {stats}"
            await self.clock.sleep(self.lease / 4)


def final(claim: Claim) -> Settlement:
    if is_meant_to_die(claim.job.payload):
        return Settlement.dead(claim, f"{claim.job.payload} is bad")
    return Settlement.done(claim)


async def storm(crew: Crew, proxy: HttpProxy, jobs: int, workers: int) -> Queue:
    """Work in the storm until all is put, and a little longer; then clear up in calm weather."""
    ledger = crew.ledger
    async with asyncio.TaskGroup() as group:
        for n in range(workers):
            group.create_task(crew.work(f"w{n}"))
        for start in range(2):
            group.create_task(crew.produce(list(range(start, jobs, 2))))
        while len(ledger.put) < jobs:
            await crew.clock.sleep(1)
        until = crew.clock.now() + 30 * crew.lease
        while crew.clock.now() < until and not ledger.put <= set(ledger.tried):
            await crew.clock.sleep(1)
        crew.stopping = True
    await asyncio.to_thread(proxy.calm)
    queue = crew.handle()
    await crew.clock.sleep(1.3 * crew.lease)
    await crew.clear(queue)
    return queue


async def check(ledger: Ledger, queue: Queue, jobs: int) -> list[int]:
    """Nothing lost, nothing made up; returns the numbers of the dead jobs."""
    assert ledger.put == set(range(jobs))
    assert set(ledger.tried) == ledger.put, f"lost: {ledger.put - set(ledger.tried)}"
    dead = [info.job.payload for info in await queue.jobs("dead", limit=1000)]
    meant = {number for number in range(jobs) if is_meant_to_die(number)}
    assert set(dead) == meant, f"dead and should not be, or lost: {set(dead) ^ meant}"
    for number, ids in ledger.ids.items():
        most = 1 + ledger.failed_puts[number]
        assert len(ids) <= most, f"{number} was put {most} times at the most, and is {ids}"
    return dead


# Object storage

LIVE = re.compile(r"/(live/(?P<folder>[^/]+)/(?:b|r[\d-]+))$")


class StoreTime:
    """What the bucket's clock says: virtual time in whole seconds, and none of anybody's clocks.

    PutName into the answers of a real server, so that the queue runs as it is, in virtual time.
    """

    def __init__(self, ahead: float) -> None:
        self._ahead = ahead
        self._written: dict[str, int] = {}
        self._loop: VirtualLoop | None = None

    def begin(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._loop = loop

    async def stall(self, seconds: float) -> None:
        """Time passes while a request is under way."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.jump, seconds)

    def answered(self, request: Request, answer: Answer) -> Answer:
        path, _, query = request.target.partition("?")
        path = unquote(path)
        assert self._loop is not None
        if request.method == "PUT" and answer.status == 200:
            self._written[path] = int(VIRTUAL_EPOCH + self._ahead + self._loop.time())
        headers, body = dict(answer.headers), answer.body
        if "last-modified" in headers and path in self._written:
            headers["last-modified"] = formatdate(self._written[path], usegmt=True)
        if request.method == "GET" and "list-type=2" in query:
            bucket = path.rstrip("/")
            body = re.sub(
                rb"<Contents>.*?</Contents>",
                lambda row: self._stamped(row[0].decode(), bucket).encode(),
                body,
                flags=re.DOTALL,
            )
        return Answer(answer.status, headers, body)

    def _stamped(self, row: str, bucket: str) -> str:
        found = re.search(r"<Key>(.*?)</Key>", row)
        assert found, row
        stamp = self._written[f"{bucket}/{unquote(found[1])}"]
        day = f"<LastModified>{_iso(stamp)}</LastModified>"
        return re.sub(r"<LastModified>.*?</LastModified>", day, row)


def _iso(stamp: int) -> str:
    return datetime.fromtimestamp(stamp, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def s3_refusal(request: Request, rng: random.Random) -> Answer:
    errors = [(503, "SlowDown"), (500, "InternalError")]
    if "if-none-match" in request.headers:
        errors.append((409, "ConditionalRequestConflict"))
    status, code = rng.choice(errors)
    text = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
    return Answer(status, {"content-type": "application/xml"}, text.encode())


def bucket_storm(server: MiniStack, seed: int, jobs: int, workers: int) -> HttpProxy:
    print(f"seed {seed}")
    rng = random.Random(f"bucket {seed}")
    time = StoreTime(ahead=rng.uniform(-900, 900))
    prefix = f"storm{rng.getrandbits(64):x}"

    def again(claim: Claim) -> bool:
        """A put whose answer was lost, or that came twice or late, may bring its jobs back."""
        folder = claim.job.id.partition(".")[0]
        return any(
            fate in ("lose", "twice", "late")
            and request.method == "PUT"
            and request.target.endswith(f"/{folder}/b")
            for request, fate in list(proxy.broken)
        )

    async def main() -> None:
        time.begin()
        crew = Crew(seed, clock, Ledger(fenced=True, again=again), opened, lease=5.0)
        queue = await storm(crew, proxy, jobs, workers)
        await sweep(queue)  # a dead job whose record met a fault is written by now
        dead = await check(crew.ledger, queue, jobs)
        twice = [number for number, count in Counter(dead).items() if count > 1]
        assert all(crew.ledger.failed_puts[number] for number in twice), twice
        assert await queue.drop() == len(dead)
        await sweep(queue)
        await crew.close()

    async def sweep(queue: Queue) -> None:
        """Time for anybody to clean up what others left lying about."""
        for _ in range(4):
            await clock.sleep(61)
            assert await queue.claim("last", 100, 5) == []

    def opened() -> Queue:
        return open_queue(f"s3://{BUCKET}/{prefix}?endpoint={proxy.endpoint}", clock=clock)

    clock = VirtualClock()
    dice = Dice(seed, SHARE)
    with HttpProxy(
        server.port,
        dice,
        refusal=s3_refusal,
        stall=time.stall,
        in_turn=True,
        answered=time.answered,
    ) as proxy:
        clock.run(main())
    left = [meta["path"] for page in server.store().list(prefix) for meta in page]
    assert not [name for name in left if "/check/" not in name and "/unique/" not in name], left
    return proxy


@pytest.mark.parametrize("seed", range(3))
def test_a_bucket_loses_nothing(seed: int, ministack: MiniStack, environment: None) -> None:
    proxy = bucket_storm(ministack, seed, jobs=50, workers=4)
    assert len(proxy.fates) == 8, f"some faults never came: {proxy.fates}"


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_bucket_loses_nothing_for_long(ministack: MiniStack, environment: None) -> None:
    for seed in range(100, 120):
        bucket_storm(ministack, seed, jobs=150, workers=6)


# SQS


def sqs_refusal(request: Request, rng: random.Random) -> Answer:
    status, code = rng.choice(
        [(400, "ThrottlingException"), (400, "RequestThrottled"), (500, "InternalError"),
         (503, "ServiceUnavailable")]
    )  # fmt: skip
    body = json.dumps({"__type": f"com.amazonaws.sqs#{code}", "message": code})
    return Answer(status, {"content-type": "application/x-amz-json-1.0"}, body.encode())


async def _really(seconds: float) -> None:
    await asyncio.sleep(seconds / SPEED)  # real time: this is the fault asked for


def sent(request: Request) -> set[Any]:
    """The numbers that a request sends."""
    if "SendMessage" not in request.headers.get("x-amz-target", ""):
        return set()
    told = json.loads(request.body)
    return {json.loads(entry["MessageBody"]) for entry in told.get("Entries", [told])}


def sqs_storm(server: MiniStack, seed: int, jobs: int, workers: int) -> HttpProxy:
    print(f"seed {seed}")
    assert server.fast is not None
    clock = FastClock(server.fast)
    name = f"storm{seed}"

    async def main() -> None:
        direct = SqsQueue(name, endpoint=server.endpoint, clock=clock)
        await direct.create(max_receives=1000)
        await direct.close()
        ledger = Ledger(fenced=False, again=lambda _: True)
        crew = Crew(seed, clock, ledger, opened, lease=8.0)
        queue = await storm(crew, proxy, jobs, workers)
        dead = await check(ledger, queue, jobs)
        repeated = {
            n
            for request, fate in proxy.broken
            if fate in ("lose", "twice", "late", "wait", "delay")
            for n in sent(request)
        }
        excused = repeated | ledger.ran_out | set(ledger.failed_puts)
        for counts in (Counter(dead), ledger.settled):
            twice = {number for number, count in counts.items() if count > 1}
            assert twice <= excused, f"these ran twice, and nothing went wrong: {twice - excused}"
        await crew.close()

    def opened() -> Queue:
        return SqsQueue(name, endpoint=proxy.endpoint, clock=clock, linger=0, timeout="60s")

    ways: tuple[Fate, ...] = ("drop", "lose", "delay", "wait", "twice", "refuse")
    with HttpProxy(
        server.port, Dice(seed, SHARE, *ways), refusal=sqs_refusal, stall=_really
    ) as proxy:
        clock.run(main())
    return proxy


@pytest.mark.parametrize("seed", [6, 7])  # all faults come early
def test_sqs_loses_nothing(seed: int, fast_ministack: MiniStack, environment: None) -> None:
    proxy = sqs_storm(fast_ministack, seed, jobs=40, workers=3)
    assert len(proxy.fates) == 7, f"some faults never came: {proxy.fates}"


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_sqs_loses_nothing_for_long(fast_ministack: MiniStack, environment: None) -> None:
    for seed in range(100, 120):
        sqs_storm(fast_ministack, seed, jobs=300, workers=6)
