"""Many agents race for jobs on two controllers, and much goes wrong: each job is done, once."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from pollwise.testing import VirtualClock
from tests.controller.farm import Agent, Farm, farm_on, two_queues

LEASE = 120.0


class Crew:
    """Agents that lose answers, die, and talk to either controller."""

    def __init__(self, clock: VirtualClock, seed: int, trouble: bool) -> None:
        self.clock = clock
        self.random = Random(seed)
        self.trouble = trouble
        self.held: dict[str, tuple[str, float]] = {}
        self.done: Counter[str] = Counter()
        self.deliveries = 0

    def takes(self, agent: Agent, job_id: str) -> None:
        """An agent begins a job: nobody else may hold a live lease on it."""
        self.deliveries += 1
        now = self.clock.now()
        holder, until = self.held.get(job_id, (agent.id, 0.0))
        # Seconds since 1970 have seven digits behind the point.
        assert holder == agent.id or until <= now + 1e-6, f"{job_id} runs twice"
        self.held[job_id] = (agent.id, now + LEASE)

    def fails(self, share: float) -> bool:
        return self.trouble and self.random.random() < share

    async def work(self, agents: list[Agent], jobs: int) -> None:
        """One agent, on either controller, until all jobs are done."""
        while len(self.done) < jobs:
            agent = self.random.choice(agents)
            answer = await agent.get(wait=20)
            if answer.status_code == 429:
                await asyncio.sleep(float(answer.headers["Retry-After"]))
                continue
            assert answer.status_code == 200, answer.text
            job = answer.json()["job"]
            if job is None or self.fails(0.1):  # the answer is lost
                await asyncio.sleep(self.random.random())
                continue
            self.takes(agent, job["id"])
            if self.fails(0.05):  # it dies, and comes back long after
                await asyncio.sleep(LEASE + 10)
                continue
            await asyncio.sleep(self.random.uniform(0, 60))
            agent = self.random.choice(agents)
            if self.fails(0.1):
                await agent.finish(job, "failed", error="by chance")
                self.held.pop(job["id"])
                continue
            said = await agent.finish(job)
            if self.fails(0.1):  # the answer is lost: it reports again
                said = await agent.finish(job)
            assert said["lost"] == []
            self.held.pop(job["id"])
            self.done[job["id"]] += 1


@pytest.mark.parametrize("trouble", [False, True], ids=["calm", "trouble"])
@pytest.mark.parametrize("seed", range(3))
def test_each_job_is_done_once(tmp_path: Path, trouble: bool, seed: int) -> None:
    clock = VirtualClock()
    crew = Crew(clock, seed, trouble)

    async def main() -> None:
        async with two_queues(tmp_path, clock) as (one, two):
            async with farm_on(one, clock, tmp_path) as a:
                async with farm_on(two, clock, tmp_path, admin=False) as b:
                    b.admin = a.admin
                    await race(a, b)

    async def race(a: Farm, b: Farm) -> None:
        jobs = [await (a, b)[n % 2].put("build", n, attempts=100) for n in range(60)]
        crews = []
        for n in range(20):
            agent = await (a, b)[n % 2].register(f"agent {n}")
            answer = {"worker_id": agent.id, "token": agent.token}
            crews.append(crew.work([Agent(a.http, answer), Agent(b.http, answer)], len(jobs)))
        await asyncio.gather(*crews)
        assert crew.done == Counter({job["id"]: 1 for job in jobs})
        for job in jobs:
            assert (await a.job(job["id"]))["state"] == "done"
        stats = await a.queue.stats()
        assert (stats.ready, stats.delayed, stats.leased, stats.dead) == (0, 0, 0, 0)
        if not trouble:
            assert crew.deliveries == len(jobs)

    clock.run(main())
