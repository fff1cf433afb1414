"""Two controllers on one Postgres behind nginx, one of them killed every few seconds.

Agents here are coroutines that speak the protocol and repeat what was not answered, as `pollwise
agent` does, so there can be many of them; `tests/agent` tries fewer, as processes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.controller.security.attackers import Served
from tests.support.nginx import Nginx
from tests.support.servers import Postgres, Servers

AGENTS = 24
#: Seconds between two kills, and how long the victim stays down.
KILL_EVERY = 3.0
DOWN_FOR = 0.7
#: How many jobs are put at least.
JOBS_MIN = 50
#: Seconds that a request may take, a held poll included.
PATIENCE = 15.0
LEASE = 30.0


class Ledger:
    """What happened, as those saw it who asked."""

    def __init__(self) -> None:
        self.put: dict[str, int] = {}
        self.ran: Counter[str] = Counter()
        self.answers: dict[str, Any] = {}
        self.attempts: dict[str, int] = {}
        self.failures: Counter[str] = Counter()
        self.kills = 0
        self.over = False


async def insist(
    http: httpx.AsyncClient, ledger: Ledger, method: str, path: str, **given: Any
) -> Any:
    """Ask until there is an answer: JSON, or None for one that says 'later'."""
    pause = 0.05
    while True:
        try:
            answer = await http.request(method, path, **given)
        except httpx.HTTPError as error:
            ledger.failures[type(error).__name__] += 1
        else:
            if answer.status_code == 429:
                return None
            if answer.status_code < 300:
                return answer.json()
            ledger.failures[str(answer.status_code)] += 1
            assert answer.status_code in (502, 503, 504), f"{answer.status_code} {answer.text}"
        await asyncio.sleep(pause)  # real time: a controller is being killed
        pause = min(pause * 2, 1.0)


async def agent(
    http: httpx.AsyncClient, ledger: Ledger, number: int, chance: random.Random
) -> None:
    """Register, then poll, run and report until all is over."""
    registered = await insist(
        http, ledger, "POST", "/api/workers/register", json={"name": f"agent-{number}"}
    )
    headers = {"Authorization": f"Bearer {registered['token']}"}
    me: str = registered["worker_id"]
    finished: list[Any] = []
    has: set[str] = set()
    while not ledger.over:
        body = {
            "worker_id": me,
            "max": 2,
            "wait": chance.choice((0, 1, 2)),
            "running": [],
            "finished": finished,
        }
        said = await insist(http, ledger, "POST", "/api/workers/poll", json=body, headers=headers)
        if said is None:  # too soon
            await asyncio.sleep(0.2)  # real time: as Retry-After would say, but sooner
            continue
        finished = []
        for job in said.get("jobs") or ():
            assert job["id"] not in has, "what was reported came again"
            has.add(job["id"])
            ledger.ran[job["id"]] += 1
            ledger.attempts[job["id"]] = job["attempt"]
            ledger.answers[job["id"]] = {"by": me, "seen": job["payload"]}
            finished.append(
                {"job_id": job["id"], "state": "done", "result": ledger.answers[job["id"]]}
            )


async def put(http: httpx.AsyncClient, ledger: Ledger, killing: asyncio.Task[None]) -> None:
    """Submit while controllers are killed; a submission that was not answered is repeated."""
    number = 0
    while not killing.done() or len(ledger.put) < JOBS_MIN:
        body = {"kind": f"build{number % 3}", "payload": number, "unique": f"job-{number}"}
        job = await insist(http, ledger, "POST", "/api/jobs", json=body)
        ledger.put[job["id"]] = number
        number += 1
        await asyncio.sleep(0.03)  # real time: a controller is being killed


async def kill(controllers: list[Served], ledger: Ledger, times: int) -> None:
    while ledger.kills < times:
        await asyncio.sleep(KILL_EVERY)  # real time: let them work
        victim = controllers[ledger.kills % len(controllers)]
        await asyncio.to_thread(victim.kill)
        ledger.kills += 1
        await asyncio.sleep(DOWN_FOR)  # real time: the other one is alone for a while
        await asyncio.to_thread(victim.start)


async def until_done(http: httpx.AsyncClient, ledger: Ledger) -> None:
    while True:
        jobs = (await insist(http, ledger, "GET", "/api/stats"))["jobs"]
        if not any(jobs.get(state) for state in ("ready", "leased")):
            return
        await asyncio.sleep(0.3)  # real time: agents are at it


async def all_jobs(http: httpx.AsyncClient, ledger: Ledger) -> list[Any]:
    found: list[Any] = []
    after = ""
    while True:
        page = await insist(http, ledger, "GET", f"/api/jobs?limit=500{after}")
        found += page["jobs"]
        if page["next"] is None:
            return found
        after = f"&after={page['next']}"


async def work_under_fire(url: str, controllers: list[Served], kills: int) -> Ledger:
    ledger = Ledger()
    admin = controllers[0].headers
    limits = httpx.Limits(max_connections=100)
    async with (
        httpx.AsyncClient(base_url=url, headers=admin, timeout=PATIENCE, limits=limits) as people,
        httpx.AsyncClient(base_url=url, headers=admin, timeout=PATIENCE, limits=limits) as http,
        asyncio.TaskGroup() as group,
    ):
        agents = [
            group.create_task(agent(http, ledger, number, random.Random(number)))
            for number in range(AGENTS)
        ]
        killing = group.create_task(kill(controllers, ledger, kills))
        await put(people, ledger, killing)
        await killing
        # A controller that dies between claiming a job and handing it out leaves it to its lease.
        async with asyncio.timeout(LEASE + 30):
            await until_done(people, ledger)
        ledger.over = True
        await asyncio.wait(agents, timeout=PATIENCE)
        jobs = await all_jobs(people, ledger)
        check(ledger, jobs)
        for job in jobs:  # what was reported is what is told
            kept = await insist(people, ledger, "GET", f"/api/jobs/{job['id']}/result")
            assert kept == ledger.answers[job["id"]]
    return ledger


def check(ledger: Ledger, jobs: list[Any]) -> None:
    assert {job["id"] for job in jobs} == set(ledger.put), "each was taken in, once"
    assert len(set(ledger.put.values())) == len(jobs)
    assert Counter(job["state"] for job in jobs) == {"done": len(jobs)}, "none is lost"
    assert Counter(ledger.ran.values()) == {1: len(jobs)}, "each ran once"
    assert Counter(job["attempt"] for job in jobs) == {1: len(jobs)}
    assert set(ledger.attempts.values()) == {1}


def under_fire(servers: Servers, postgres: Postgres, folder: Path, kills: int) -> None:
    store = postgres.create_database(f"fire_{time.monotonic_ns()}")
    settings: Any = {
        "min_interval": "100ms",
        "heartbeat_timeout": f"{LEASE:g}s",
        "artefacts": str(folder),
    }
    one = servers.begin(Served(servers, store=store, **settings), {})
    two = servers.begin(Served(servers, store=store, beside=one, **settings), {})
    nginx = servers.begin(Nginx(servers, one.port, two.port), {})
    try:
        ledger = asyncio.run(work_under_fire(nginx.url, [one, two], kills))
        print(
            f"{len(ledger.put)} jobs, {ledger.kills} kills, not answered: {dict(ledger.failures)}"
        )
        for each in (one, two):
            assert "Traceback" not in each.log(), each.log()
    finally:
        for server in (nginx, one, two):
            server.close()


def test_nothing_is_lost_and_nothing_runs_twice(
    servers: Servers, postgres: Postgres, tmp_path: Path
) -> None:
    under_fire(servers, postgres, tmp_path, 2)  # each of them once


@pytest.mark.soak
def test_for_a_quarter_of_an_hour(servers: Servers, postgres: Postgres, tmp_path: Path) -> None:
    under_fire(servers, postgres, tmp_path, 240)
