"""Workers on one Redis, killed at random, never hold more leases than the limits allow.

A child is this very file run as a script. It writes down what it claims and ends, each batch by
one append, so that a kill leaves whole lines. Its clock is that of the server, on this machine.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pollwise.errors import LeaseLost
from pollwise.queues.limits.record import Concurrency, Rate
from pollwise.queues.redis.queue import RedisQueue
from pollwise.runtime.clock import Clock
from pollwise.runtime.jobs import Claim, NewJob, Settlement
from tests.support.forked import Forked

if TYPE_CHECKING:
    from tests.support.servers import Redis

JOBS = 1_500
GROUPS = 6
CHILDREN = 4
KILLS = 8
LEASE = 0.5
MOST, MOST_EACH = 12, 3
RATE = Rate(400, 1, burst=20)
DEADLINE = 120.0


# The child


async def victim(url: str, name: str, log_path: str, seed: int) -> None:
    """Claim, hold for a moment, and settle, until killed."""
    rng = random.Random(seed)
    file = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(what: str, claims: list[Claim]) -> None:
        now = time.time()
        lines = [
            {"what": what, "job": c.job.id, "group": c.job.payload, "token": c.token,
             "until": c.until, "at": now}
            for c in claims
        ]  # fmt: skip
        os.write(file, "".join(json.dumps(line) + "\n" for line in lines).encode())

    async with RedisQueue(url, name, keep="1d") as queue:
        while True:
            claims = await queue.claim("w", rng.randint(1, 6), LEASE, kinds=["job"])
            write("claim", claims)
            await Clock().sleep(rng.uniform(0, 0.02))  # it is killed in the middle of this
            if not claims:
                continue
            batch = [
                Settlement.done(c) if rng.random() < 0.8 else Settlement.retry(c, error="again")
                for c in claims
            ]
            write("end", claims)
            try:
                await queue.settle(batch)
            except LeaseLost as error:
                write("lost", [c for c in claims if c.job.id in error.lost])


# The test


def test_limits_under_kills(redis: Redis, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # shown when the test fails
    rng = random.Random(seed)
    name, log = f"test-{secrets.token_hex(6)}", tmp_path / "log.jsonl"
    alive: list[Forked] = []

    def start() -> None:
        words = [__file__, redis.url(), name, log, rng.randrange(10**9)]
        alive.append(Forked(words, out=False, err=False))

    async def main() -> None:
        async with RedisQueue(redis.url(), name, keep="1d") as queue:
            limits: list[Concurrency | Rate] = [Concurrency(MOST), RATE]
            limits.append(Concurrency(MOST_EACH, by="tenant"))
            await queue.limits.set("job", limits)
            groups = [rng.choice(range(GROUPS)) for _ in range(JOBS)]
            await queue.put([NewJob("job", n, limit_group=f"t{n}") for n in groups])
            for _ in range(CHILDREN):
                start()
            kill_at = sorted(rng.sample(range(50, JOBS - 100), KILLS))
            async with asyncio.timeout(DEADLINE):
                while (done := (await queue.stats()).done) < JOBS:
                    while kill_at and done >= kill_at[0]:
                        del kill_at[0]
                        process = alive.pop(rng.randrange(2))
                        process.kill()
                        assert process.wait(10) == -signal.SIGKILL
                        process.close()
                        start()
                    assert {process.poll() for process in alive} == {None}
                    await Clock().sleep(0.01)
            [use] = await queue.limits.use("job")
            assert (use.running, use.waiting) == (0, 0)

    try:
        asyncio.run(main())
    finally:
        for process in alive:
            process.close()
    check([json.loads(line) for line in log.read_text().splitlines()], seed)


def check(records: list[dict[str, Any]], seed: int) -> None:
    """A lease begins when the server gave it, and lasts at least until its worker ends it."""
    ends = {(r["job"], r["token"]): r["at"] for r in records if r["what"] == "end"}
    claims = [r for r in records if r["what"] == "claim"]
    killed = [c for c in claims if (c["job"], c["token"]) not in ends]
    assert killed, f"seed {seed}: no kill met a claim, which proves nothing"
    spans = [
        (c["until"] - LEASE, min(ends.get((c["job"], c["token"]), c["until"]), c["until"]), c)
        for c in claims
    ]
    events = sorted(
        [(end, 0, c["group"]) for begin, end, c in spans if end > begin]
        + [(begin, 1, c["group"]) for begin, end, c in spans if end > begin]
    )
    running: dict[int, int] = dict.fromkeys(range(GROUPS), 0)
    fullest = fullest_group = 0
    for _, begins, group in events:
        running[group] += 1 if begins else -1
        fullest = max(fullest, sum(running.values()))
        fullest_group = max(fullest_group, running[group])
    assert fullest <= MOST, f"seed {seed}: {fullest} leases at a time"
    assert fullest_group <= MOST_EACH, f"seed {seed}: {fullest_group} leases of one group"
    assert fullest_group == MOST_EACH, f"seed {seed}: no group reached its limit"
    starts = sorted(begin for begin, _, _ in spans)
    step = 1 / RATE.amount
    burst = RATE.burst or 0
    for first in range(len(starts)):
        for last in range(first, len(starts), 97):
            allowed = burst + (starts[last] - starts[first]) / step + 1
            assert last - first + 1 <= allowed, f"seed {seed}: starts {first} to {last}"


if __name__ == "__main__":
    asyncio.run(victim(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
