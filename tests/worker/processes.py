"""Worker processes that are killed at random, and the proof that the kills had no effect."""

from __future__ import annotations

import asyncio
import json
import queue
import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from pollwise.queues.base import Queue
from pollwise.queues.views import Stats
from pollwise.runtime.jobs import NewJob
from tests.support.forked import Forked

WORKERS = 3
DEADLINE = 240.0
VICTIM = Path(__file__).parent / "children" / "victim.py"


class Crowd:
    """Three worker processes on one database; a killed one is replaced."""

    def __init__(self, database: Path | str, log: Path) -> None:
        self.told: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self.alive: dict[str, Forked] = {}
        self.up: set[str] = set()
        self.done = 0
        self._paths = (str(database), str(log))
        self._started = 0
        self._deadline = time.monotonic() + DEADLINE

    def start(self) -> None:
        self._started += 1
        name = f"w{self._started}"
        process = Forked([VICTIM, *self._paths, name], err=False)
        self.alive[name] = process
        threading.Thread(target=self._listen, args=(name, process), daemon=True).start()

    def _listen(self, name: str, process: Forked) -> None:
        with process.stdout:
            for line in process.stdout:
                self.told.put((name, line.strip()))

    def hear(self, patience: float) -> None:
        """Wait for the next line of a worker."""
        assert time.monotonic() < self._deadline, "the workers do not get on"
        try:
            name, told = self.told.get(timeout=patience)
        except queue.Empty:
            return
        if told == "up":
            self.up.add(name)
        else:
            self.done += int(told)

    def kill(self, rng: random.Random) -> None:
        name = rng.choice(sorted(self.up & set(self.alive)))
        process = self.alive.pop(name)
        process.kill()
        assert process.wait(10) == -signal.SIGKILL
        self.start()

    def stop(self) -> list[int]:
        while (
            self.alive.keys() - self.up
        ):  # otherwise a signal could come before its handler exists
            self.hear(patience=1.0)
        for process in self.alive.values():
            process.terminate()
        return [process.wait(20) for process in self.alive.values()]

    def clear_away(self) -> None:
        for process in self.alive.values():
            if process.poll() is None:
                process.kill()
                process.wait(10)


def kill_at_random(
    database: Path | str, opened: Callable[[], Queue], log: Path, *, jobs: int, kills: int
) -> None:
    """Let workers do jobs, with kills in the middle: all done, never two live leases."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # shown when the test fails
    rng = random.Random(seed)
    ids = asyncio.run(_put_all(opened(), jobs))
    crowd = Crowd(database, log)
    try:
        for _ in range(WORKERS):
            crowd.start()
        for kill in range(kills):
            at = (kill + rng.random()) * jobs * 0.8 / kills
            while crowd.done < at or len(crowd.up & set(crowd.alive)) < WORKERS - 1:
                crowd.hear(patience=1.0)
            while crowd.done >= len(ids):  # a slow start of the others let one do all
                ids += asyncio.run(_put_all(opened(), jobs))
            crowd.kill(rng)
        while (stats := asyncio.run(_look(opened()))).done < len(ids):
            crowd.hear(patience=0.1)
        assert stats == Stats(
            ready=0,
            delayed=0,
            blocked=0,
            leased=0,
            dead=0,
            done=len(ids),
            cancelled=0,
            oldest_age=None,
        ), f"seed {seed}: {stats}"
        assert crowd.stop() == [0] * WORKERS, f"seed {seed}"
    finally:
        crowd.clear_away()
    check(ids, [json.loads(line) for line in log.read_text().splitlines()], seed)


async def _put_all(opened: Queue, jobs: int) -> list[str]:
    async with opened:
        return await opened.put([NewJob("x", n) for n in range(jobs)])


async def _look(opened: Queue) -> Stats:
    async with opened:
        return await opened.stats()


def check(ids: list[str], records: list[dict[str, Any]], seed: int) -> None:
    """Check by the tokens that every claim, renewal and settlement had."""
    by_job: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        by_job[record["job"]].append(record)
    assert set(by_job) == set(ids), f"seed {seed}"
    claimed_again = 0
    for job, story in by_job.items():
        told = f"seed {seed}, job {job}: {story}"
        assert any(r["what"] == "run" for r in story), told
        claims = sorted((r for r in story if r["what"] == "claim"), key=lambda r: r["token"])
        tokens = [claim["token"] for claim in claims]
        assert len(tokens) == len(set(tokens)), told  # each token is used once
        # A claim may be missing from the log: its worker was killed before it wrote the line.
        for first, second in pairwise(claims):
            claimed_again += 1
            assert second["at"] >= end_of_lease(first, story), told
        done = [r for r in story if r["what"] == "done"]
        assert len(done) <= 1, told
        if done:
            assert done[0]["token"] == max(tokens), told  # it was not claimed afterwards
    finished = sum(any(r["what"] == "done" for r in story) for story in by_job.values())
    # A kill may come between a settlement and its line in the log, once per killed worker.
    assert finished >= len(ids) * 0.9, f"seed {seed}: only {finished} settlements were written down"
    assert claimed_again > 0, f"seed {seed}: no kill met a claim, which proves nothing"


def end_of_lease(claim: dict[str, Any], story: list[dict[str, Any]]) -> float:
    """The earliest end of a claim: its settlement, or its last known renewal."""
    same = [r for r in story if r.get("token") == claim["token"]]
    settled = [r["at"] for r in same if r["what"] in ("done", "retry", "dead", "give_back")]
    if settled:
        return float(min(settled))
    return float(max(r["until"] for r in same if "until" in r))
