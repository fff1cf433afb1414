"""Many processes on one Redis, killed at random: nothing lost, one lease at a time, keys in order.

A child is this very file run as a script. It writes down what it claims and settles, each batch by
one append, so that a kill leaves whole lines.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import signal
import sys
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pollwise.errors import LeaseLost
from pollwise.queues.base import Queue
from pollwise.queues.redis.queue import RedisQueue
from pollwise.queues.views import Stats
from pollwise.runtime.clock import Clock
from pollwise.runtime.jobs import Claim, NewJob, Settlement
from tests.support.forked import Forked

if TYPE_CHECKING:
    from tests.support.servers import Redis

JOBS = 4_000
PORTION = 160
KEYS = 40
CHILDREN = 4
KILLS = 12
LEASE = 0.5
DEADLINE = 240.0


# The child


class Log:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, what: str, claims: list[Claim], **more: Any) -> None:
        at = time.monotonic_ns()
        lines = [
            {"what": what, "job": int(c.job.id), "key": c.job.key, "token": c.token,
             "until": c.until, "at": at, **more}
            for c in claims
        ]  # fmt: skip
        os.write(self._file, "".join(json.dumps(line) + "\n" for line in lines).encode())


async def victim(url: str, name: str, log_path: str, seed: int) -> None:
    """Claim, hold for a moment, and settle, in every way there is, until killed."""
    rng, log = random.Random(seed), Log(log_path)
    worker = f"w{os.getpid()}"
    async with RedisQueue(url, name, keep="1d") as queue:
        while True:
            claims = await queue.claim(worker, rng.randint(1, 20), LEASE)
            log.write("claim", claims, by=worker)
            if not claims:
                await Clock().sleep(0.01)
                continue
            await Clock().sleep(rng.uniform(0, 0.03))  # it is killed in the middle of this
            if rng.random() < 0.2:
                renewal = await queue.renew(claims, LEASE)
                claims = [claim for claim in claims if claim.job.id not in renewal.lost]
            ended, batch = [], []
            for claim in claims:
                draw = rng.random()
                if draw < 0.9:
                    ended.append(claim)
                    batch.append(Settlement.done(claim))
                elif draw < 0.95:
                    batch.append(Settlement.retry(claim, rng.choice([0, 0.01]), "again"))
                else:
                    batch.append(Settlement.give_back(claim))
            log.write("ending", ended, by=worker)
            refused: tuple[str, ...] = ()
            try:
                await queue.settle(batch)
            except LeaseLost as error:
                refused = error.lost
            log.write("ended", [c for c in ended if c.job.id not in refused], by=worker)


# The test


class Crowd:
    """Children, of which one is killed now and then and replaced."""

    def __init__(self, url: str, name: str, log: Path, rng: random.Random) -> None:
        self._args = (url, name, str(log))
        self._rng = rng
        self._alive: list[Forked] = []

    def start(self) -> None:
        words = [__file__, *self._args, self._rng.randrange(10**9)]
        self._alive.append(Forked(words, out=False, err=False))

    def kill(self) -> None:
        process = self._alive.pop(self._rng.randrange(2))  # of those that have been up for longest
        process.kill()
        assert process.wait(10) == -signal.SIGKILL
        process.close()

    def check(self) -> None:
        codes = [process.poll() for process in self._alive]
        assert set(codes) == {None}, f"children ended by themselves: {codes}"

    def end(self) -> None:
        for process in self._alive:
            process.close()


async def watch(queue: Queue, crowd: Crowd, rng: random.Random) -> Stats:
    """Kill a child for each portion of jobs that is put; return when all is done."""
    put, wait_for = JOBS - KILLS * PORTION, rng.uniform(0, PORTION)
    async with asyncio.timeout(DEADLINE):
        while (stats := await queue.stats()).done < JOBS:
            if put < JOBS and put - stats.done < wait_for:
                await queue.put(jobs(put, put + PORTION))
                put, wait_for = put + PORTION, rng.uniform(0, PORTION)
                crowd.kill()
                crowd.start()
            crowd.check()
            await Clock().sleep(rng.uniform(0.001, 0.01))
    return stats


def jobs(first: int, last: int) -> list[NewJob]:
    """Half of them with a key, some with a priority or a delay."""
    return [
        NewJob(
            f"kind{n % 3}",
            n,
            key=f"key{n % KEYS}" if n % 2 else None,
            priority=n % 5 if n % 3 == 0 else 0,
            delay=0.05 if n % 11 == 0 else 0,
        )
        for n in range(first, last)
    ]


@pytest.mark.parametrize("server", ["redis", pytest.param("redis_oldest", marks=pytest.mark.soak)])
def test_children_killed_at_random(
    server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    redis: Redis = request.getfixturevalue(server)
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # shown when the test fails
    rng = random.Random(seed)
    name, log = f"test-{secrets.token_hex(6)}", tmp_path / "log.jsonl"
    crowd = Crowd(redis.url(), name, log, rng)

    async def main() -> Stats:
        async with RedisQueue(redis.url(), name, keep="1d") as queue:
            await queue.put(jobs(0, JOBS - KILLS * PORTION))
            for _ in range(CHILDREN):
                crowd.start()
            return await watch(queue, crowd, rng)

    try:
        stats = asyncio.run(main())
    finally:
        crowd.end()
    assert stats == Stats(
        ready=0, delayed=0, blocked=0, leased=0, dead=0, done=JOBS, cancelled=0, oldest_age=None
    ), f"seed {seed}"
    check([json.loads(line) for line in log.read_text().splitlines()], seed)


def check(records: list[dict[str, Any]], seed: int) -> None:
    by_job: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        by_job[record["job"]].append(record)
    again = 0
    for job, story in by_job.items():
        told = f"seed {seed}, job {job}: {story}"
        claims = sorted((r for r in story if r["what"] == "claim"), key=lambda r: r["token"])
        tokens = [claim["token"] for claim in claims]
        assert len(tokens) == len(set(tokens)), told  # no token is given out twice
        for first, second in pairwise(claims):
            # A lease ends by its settlement (two steps of the token) or its time, never earlier.
            ran_out = second["until"] - LEASE >= first["until"]
            assert ran_out or second["token"] > first["token"] + 1, told
            again += ran_out
        ended = [r for r in story if r["what"] == "ended"]
        assert len(ended) <= 1, told
        if ended:
            assert ended[0]["token"] == max(tokens), told  # nobody claimed it afterwards
    assert again > 0, f"seed {seed}: no kill met a claim, which proves nothing"
    finished = sum(any(r["what"] == "ended" for r in story) for story in by_job.values())
    assert finished > JOBS * 0.8, f"seed {seed}: only {finished} ends were written down"
    check_keys(records, seed)


def check_keys(records: list[dict[str, Any]], seed: int) -> None:
    """A later job of a key is claimed only after the earlier ones began to end."""
    newest: dict[int, tuple[int, int]] = {}  # the claim that ended it is the newest one
    for record in records:
        if record["what"] == "ending":
            told_end = (record["token"], record["at"])
            newest[record["job"]] = max(newest.get(record["job"], told_end), told_end)
    ending = {job: at for job, (_, at) in newest.items()}
    first_claim: dict[int, tuple[int, str]] = {}
    for record in records:
        if record["what"] == "claim" and record["key"] is not None:
            known = first_claim.get(record["job"])
            if known is None or record["at"] < known[0]:
                first_claim[record["job"]] = (record["at"], record["key"])
    by_key: dict[str, list[int]] = defaultdict(list)
    for job, (_, key) in first_claim.items():
        by_key[key].append(job)
    assert len(by_key) == KEYS // 2, f"seed {seed}"
    for key, line in by_key.items():
        for before, after in pairwise(sorted(line)):
            told = f"seed {seed}, {key}: job {after} was claimed before job {before} ended"
            assert before in ending, told
            assert ending[before] <= first_claim[after][0], told


if __name__ == "__main__":
    asyncio.run(victim(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
