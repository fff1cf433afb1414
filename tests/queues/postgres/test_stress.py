"""Many writers and workers on a few keys, with kills: what is promised holds all the same.

Per key one job at a time, and in the order of the puts; nothing lost, nothing left behind; never
two live leases on a job.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.queues.views import Stats
from tests.queues.benches import migrated
from tests.queues.postgres import children as postgres_children
from tests.support.forked import Forked
from tests.support.servers import Postgres

WRITERS = 4
WORKERS = 3
HANDS = 3
#: Few keys have long lines; of many, most are empty most of the time.
KEYS = (2, 4, 60)
DEADLINE = 240.0

Story = list[dict[str, Any]]


class Crowd:
    """Writers and workers, each a process; whoever is killed is replaced."""

    def __init__(self, dsn: str, log: Path, rng: random.Random) -> None:
        self._dsn = dsn
        self._log = log
        self._rng = rng
        self._started = 0
        self.all: list[Forked] = []

    def start(self, role: str, *numbers: int) -> Forked:
        self._started += 1
        words = [
            postgres_children.__file__, role, self._dsn, self._log,
            f"{role}{self._started}", self._rng.random(), *numbers,
        ]  # fmt: skip
        self.all.append(Forked(words, out=False, err=False))
        return self.all[-1]

    def clear_away(self) -> None:
        for process in self.all:
            process.close()


async def look(dsn: str) -> Stats:
    async with PostgresQueue(dsn, "stress") as queue:
        stats = await queue.stats()
        if stats.dead:
            await queue.retry()
        return stats


def run(server: Postgres, folder: Path, seed: int, jobs: int, kills: int) -> Story:
    rng = random.Random(seed)
    dsn = migrated(server.create_database(f"stress{seed}"))
    log = folder / "log.jsonl"
    log.touch()
    crowd = Crowd(dsn, log, rng)
    deadline = time.monotonic() + DEADLINE
    keys = rng.choice(KEYS)
    try:
        writers = [crowd.start("write", keys, jobs // WRITERS) for _ in range(WRITERS)]
        workers = [crowd.start("work", HANDS) for _ in range(WORKERS)]
        for _ in range(kills):
            seen = log.stat().st_size
            while log.stat().st_size < seen + rng.randrange(20_000, 200_000):
                assert time.monotonic() < deadline, f"seed {seed}: nobody gets on"
                if all(writer.poll() == 0 for writer in writers):
                    break
                time.sleep(0.01)  # real time: the crowd is at work
            victim = workers.pop(rng.randrange(len(workers)))
            victim.kill()
            workers.append(crowd.start("work", HANDS))
        assert [writer.wait(DEADLINE) for writer in writers] == [0] * WRITERS, f"seed {seed}"
        while sum(
            getattr(stats := asyncio.run(look(dsn)), state)
            for state in ("ready", "delayed", "blocked", "leased", "dead")
        ):
            assert time.monotonic() < deadline, f"seed {seed}: left behind: {stats}"
            time.sleep(0.05)  # real time: the workers finish
        assert all(worker.poll() is None for worker in workers), f"seed {seed}: a worker failed"
    finally:
        crowd.clear_away()
    return [json.loads(line) for line in log.read_text().splitlines()]


def check(story: Story, seed: int) -> None:
    told = f"seed {seed}"
    put = [record for record in story if record["what"] == "put"]
    begun: dict[str, Story] = defaultdict(list)
    for record in story:
        if record["what"] == "begin":
            begun[json.dumps(record["job"])].append(record)
    # A kill may come between a claim and its line in the log, so that one may be missing.
    cancelled = [record["job"] for record in story if record["what"] == "cancel"]
    missing = [
        record
        for record in put
        if json.dumps(record["job"]) not in begun and record["job"] not in cancelled
    ]
    assert len(missing) <= 20 * HANDS * 5, f"{told}: never begun: {missing[:5]}"
    assert not [job for job in begun if "ghost" in job], f"{told}: what was rolled back ran"
    for job, runs in begun.items():
        tokens = [each["token"] for each in runs]
        assert len(set(tokens)) == len(tokens), f"{told}: {job} got a token twice: {runs}"
    ends = {
        (record["id"], record["token"]): record["at"]
        for record in story
        if record["what"] in ("done", "retry", "dead", "give_back")
    }
    check_keys(begun, ends, told)


def check_keys(begun: dict[str, Story], ends: dict[tuple[str, int], float], told: str) -> None:
    died = {job for job, runs in begun.items() if len(runs) > 1}
    by_key: dict[str, Story] = defaultdict(list)
    for runs in begun.values():
        for record in runs:
            if record["key"] is not None:
                by_key[record["key"]].append(record)
    for key, runs in by_key.items():
        runs.sort(key=lambda record: record["at"])
        for one, two in pairwise(runs):
            end = ends.get((one["id"], one["token"]), one["at"] + postgres_children.LEASE - 0.1)
            assert end <= two["at"], f"{told}, key {key}: two at a time: {one}, {two}"
        last: dict[str, int] = {}
        for record in runs:
            writer, number = record["job"]
            if json.dumps(record["job"]) not in died:  # a dead one was put back behind the others
                assert last.get(writer, -1) < number, f"{told}, key {key}: {number} too late"
                last[writer] = number


def test_keys_and_leases_hold_under_kills(postgres: Postgres, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # shown when the test fails
    check(run(postgres, tmp_path, seed, jobs=1200, kills=6), seed)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_keys_and_leases_hold_for_long(postgres: Postgres, tmp_path: Path) -> None:
    for _ in range(20):
        seed = random.randrange(10**6)
        print(f"seed {seed}")
        folder = tmp_path / str(seed)
        folder.mkdir()
        check(run(postgres, folder, seed, jobs=4000, kills=15), seed)
