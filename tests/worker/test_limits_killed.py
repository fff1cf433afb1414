"""Limits across processes that are killed: never more than allowed, nothing lost."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from pathlib import Path

from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.runtime.clock import Clock
from pollwise.runtime.jobs import NewJob
from tests.support.forked import Forked

CHILD = Path(__file__).parent / "children" / "limited.py"
CALLS, RATED, KILLS = 400, 100, 4
TENANTS = [f"t{number}" for number in range(3)]


def most_at_a_time(log: list[list[str]], killed: dict[str, float]) -> tuple[int, int]:
    """How many calls ran at a time, and how many of one tenant. A kill ends runs."""
    open_runs = {(name, job): group for what, name, job, group, _ in log if what == "call"}
    changes = [(float(at), 1, group) for what, _, _, group, at in log if what == "call"]
    for what, name, job, group, at in log:
        if what == "end":
            changes.append((float(at), -1, group))
            del open_runs[name, job]
    changes += [(killed[name], -1, group) for (name, _), group in open_runs.items()]
    running: Counter[str] = Counter()
    most, most_each = 0, 0
    for _, step, group in sorted(changes):
        running[group] += step
        most, most_each = max(most, running.total()), max(most_each, running[group])
    return most, most_each


def test_limits_hold_across_processes_and_kills(tmp_path: Path) -> None:
    database, log = tmp_path / "jobs.db", tmp_path / "log"
    alive: dict[str, Forked] = {}
    killed: dict[str, float] = {}

    def start() -> None:
        name = f"w{len(alive) + len(killed)}"
        alive[name] = Forked([CHILD, database, name, log], err=False)

    def end(name: str) -> None:
        killed[name] = time.time()
        process = alive.pop(name)
        process.kill()
        assert process.wait(10) == -signal.SIGKILL
        process.stdout.close()

    def noted() -> list[list[str]]:
        return [line.split() for line in log.read_text().splitlines()] if log.exists() else []

    async def main() -> None:
        async with SqliteQueue(database, keep="1d", synchronous="off") as queue:
            await queue.put(
                [
                    NewJob("call", {"tenant": tenant}, limit_group=tenant)
                    for tenant in TENANTS
                    for _ in range(CALLS // len(TENANTS))
                ]
            )
            await queue.put([NewJob("rated", {}) for _ in range(RATED)])
            for _ in range(3):
                start()
            async with asyncio.timeout(120):
                for kill in range(KILLS):
                    while len(noted()) < (kill + 1) * 100:
                        await Clock().sleep(0.02)  # real time: other processes work
                    end(next(iter(alive)))
                    start()
                jobs = len(await queue.jobs(limit=1000))
                while (await queue.stats()).done < jobs:
                    await Clock().sleep(0.05)  # real time: other processes work
            [call, rated] = await queue.limits.use()
            assert (call.limits.origin, call.running, call.waiting) == ("code", 0, 0)
            assert (rated.running, rated.waiting) == (0, 0)
            begun = Counter(job for what, _, job, _, _ in noted() if what != "end")
            for info in await queue.jobs(limit=1000):
                assert info.state == "done"
                # A kill may use up the attempt of what was claimed; a limit uses up none.
                assert 1 <= info.job.attempt <= begun[info.job.id] + KILLS

    try:
        asyncio.run(main())
    finally:
        for name in [*alive]:
            end(name)
    most, most_each = most_at_a_time(noted(), killed)
    assert (most, most_each) == (5, 2)
    starts = sorted(float(at) for what, _, _, _, at in noted() if what == "rated")
    assert starts[-1] - starts[0] >= (RATED - 2) / 50 - 0.3  # some may wait for a handler
