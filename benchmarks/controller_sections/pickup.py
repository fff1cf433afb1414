"""How soon a worker gets a job: from before the request that puts it.

Workers are minimal, except in the last two ways, which are what people run: `pollwise agent` (until
it would start the command) and a `Worker` on an `http://` queue (until its handler is called). The
clients that put and that wait share a process, so each can delay the other.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import httpx  # noqa: E402
import uvloop  # noqa: E402
from websockets.asyncio.client import connect  # noqa: E402

from pollwise.agent import Agent, AgentOptions  # noqa: E402
from pollwise.agent.commands.command import CommandResult  # noqa: E402
from pollwise.queues.http.queue import HttpQueue  # noqa: E402
from pollwise.runtime.events import Events, JobStarted  # noqa: E402
from pollwise.runtime.jobs import Job, NewJob  # noqa: E402
from pollwise.worker import Worker, WorkerRunOptions  # noqa: E402
from tests.support.private import write_private  # noqa: E402

HOST = "127.0.0.1"
POLL = "/api/workers/poll"
#: How long a job may take to be picked up before the benchmark gives up, in seconds.
GIVE_UP = 120.0
#: The name of the queue that a `Worker` works on.
QUEUE = "bench"


class Picked:
    """When jobs were sent, and when a worker had them."""

    def __init__(self) -> None:
        self.took: list[float] = []
        self.submitting: list[float] = []
        self.told: list[float] = []
        self.hints = 0
        self._got: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def got(self) -> None:
        if not self._got.done():
            self._got.set_result(time.perf_counter())

    async def sample(self, submit: Callable[[], Awaitable[Any]]) -> None:
        """Put a job, and wait until a worker has it."""
        self._got = asyncio.get_running_loop().create_future()
        sent = time.perf_counter()
        await submit()
        self.submitting.append(time.perf_counter() - sent)
        self.took.append(await asyncio.wait_for(asyncio.shield(self._got), GIVE_UP) - sent)

    def told_all(self, others: Picked) -> None:
        self.took += others.took
        self.submitting += others.submitting
        self.told += others.told
        self.hints += others.hints


class Farm:
    """A controller, as its clients see it."""

    def __init__(self, port: int, token: str, people: httpx.AsyncClient, http: httpx.AsyncClient):
        self.base = f"http://{HOST}:{port}"
        self.port = port
        self.token = token
        self.people = people
        self.http = http

    async def register(self, name: str, kind: str) -> Hand:
        body = {"name": name, "capabilities": {"kinds": [kind]}}
        said = (await self.people.post("/api/workers/register", json=body)).json()
        return Hand(self, said["worker_id"], said["token"], said["ws"])

    async def submit(self, kind: str) -> None:
        answer = await self.people.post("/api/jobs", json={"kind": kind, "payload": 1})
        assert answer.status_code == 201, answer.text


class Hand:
    """A worker that only takes jobs and reports them as done."""

    def __init__(self, farm: Farm, me: str, token: str, ws: str) -> None:
        self._farm = farm
        self._me = me
        self._own = {"Authorization": f"Bearer {token}"}
        self._ws = f"ws://{HOST}:{farm.port}{ws}?worker_id={me}"

    async def poll(self, picked: Picked, **given: Any) -> float:
        """Poll, and report what was found; returns the seconds until the next poll."""
        body = {"worker_id": self._me, "running": [], **given}
        answer = await self._farm.http.post(POLL, json=body, headers=self._own)
        if answer.status_code != 200:
            return float(answer.headers["retry-after"])
        said = answer.json()
        if said["job"] is not None:
            picked.got()
            # It asks for the next one as well, so it counts as idle again.
            finished = [{"job_id": said["job"]["id"], "state": "done"}]
            return await self.poll(picked, finished=finished)
        return float(said["next_poll_s"])

    async def listen(self, picked: Picked, listening: Callable[[], None]) -> None:
        async with connect(self._ws, additional_headers=self._own) as socket:
            async for message in socket:
                if json.loads(message).get("hint"):
                    picked.hints += 1
                    await self.poll(picked)
                    listening()

    async def hold(self, picked: Picked) -> None:
        while True:
            await self.poll(picked, wait=30)

    async def look(self, picked: Picked) -> None:
        while True:
            picked.told.append(await self.poll(picked))
            await asyncio.sleep(picked.told[-1])


@asynccontextmanager
async def working(*tasks: Any) -> AsyncIterator[None]:
    running = [asyncio.ensure_future(task) for task in tasks]
    try:
        yield
        assert not any(task.done() for task in running), "a worker ended"
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def samples(
    picked: Picked,
    count: int,
    submit: Callable[[], Awaitable[Any]],
    pauses: tuple[float, float] = (0.2, 0.4),
    seed: int = 0,
) -> None:
    chance = random.Random(seed)
    for _ in range(count):
        await asyncio.sleep(chance.uniform(*pauses))
        await picked.sample(submit)


async def by_hand(farm: Farm, way: str, count: int, number: int = 0) -> Picked:
    """One minimal worker, with a kind of jobs that only it takes."""
    kind, picked = f"{way}-{number}", Picked()
    hand = await farm.register(kind, kind)
    # The kind must be known: workers of unknown kinds form one group, which polls in turns.
    await farm.submit(kind)
    await hand.poll(Picked())
    listening = asyncio.Event()
    ways: dict[str, Callable[[], Any]] = {
        "push": lambda: hand.listen(picked, listening.set),
        "long poll": lambda: hand.hold(picked),
        "polling": lambda: hand.look(picked),
    }
    async with working(ways[way]()):
        if way == "push":
            await asyncio.wait_for(listening.wait(), GIVE_UP)
            picked.hints = 0
        pauses = (0.5, 6.0) if way == "polling" else (0.2, 0.4)
        await samples(picked, count, lambda: farm.submit(kind), pauses, number)
    return picked


async def by_many(farm: Farm, count: int, hands: int) -> Picked:
    """Many equal workers that listen: a job is for one of them."""
    kind, picked = "many", Picked()
    await farm.submit(kind)
    turns = asyncio.Semaphore(20)
    left, all_listen = hands, asyncio.Event()

    async def one(number: int) -> None:
        async with turns:
            hand = await farm.register(f"{kind}-{number}", kind)
            first = asyncio.Event()
            listening = asyncio.ensure_future(hand.listen(picked, first.set))
            await asyncio.wait_for(first.wait(), GIVE_UP)
        nonlocal left
        left -= 1
        if not left:
            all_listen.set()
        try:
            await listening
        finally:
            listening.cancel()

    async with working(*map(one, range(hands))):
        await asyncio.wait_for(all_listen.wait(), GIVE_UP)
        await asyncio.sleep(1)
        picked.hints = 0
        await samples(picked, count, lambda: farm.submit(kind))
    return picked


async def by_agent(farm: Farm, count: int, folder: Path) -> Picked:
    """An agent as people run it, with push; its command takes no time."""
    kind, picked, events = "agent", Picked(), Events()
    events.subscribe(lambda event: picked.got() if isinstance(event, JobStarted) else None)

    async def nothing(_: Any) -> CommandResult:
        return CommandResult(0, None)

    options = AgentOptions(
        farm.base, ["true"], token_file=folder / "token", name=kind,
        capabilities={"kinds": [kind]}, folder=folder, signals=False,
    )  # fmt: skip
    agent = Agent(options, events=events, execute=nothing)
    async with working(agent.run()):
        await picked.sample(lambda: farm.submit(kind))
        picked.took.clear()
        picked.submitting.clear()
        await samples(picked, count, lambda: farm.submit(kind))
    return picked


async def by_worker(farm: Farm, count: int, folder: Path) -> Picked:
    """A `Worker` on an `http://` queue; the client that puts has its own connection."""
    picked = Picked()
    theirs, ours = (HttpQueue(farm.base, QUEUE, token_file=folder / "token") for _ in range(2))
    worker = Worker(ours, WorkerRunOptions(signals=False))

    @worker.handle("work")
    async def work(_: Job) -> None:
        picked.got()

    async with theirs, ours, working(worker.run()):
        await picked.sample(lambda: theirs.put(NewJob("work", 1)))
        picked.took.clear()
        picked.submitting.clear()
        await samples(picked, count, lambda: theirs.put(NewJob("work", 1)))
    return picked


async def main(given: dict[str, Any]) -> Any:
    port, token, way, count = given["port"], given["token"], given["way"], given["samples"]
    base = f"http://{HOST}:{port}"
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=200)
    picked = Picked()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pickup-")))
        write_private(folder / "token", token)
        admin = {"Authorization": f"Bearer {token}"}
        people = httpx.AsyncClient(base_url=base, headers=admin, timeout=90, limits=limits)
        http = httpx.AsyncClient(base_url=base, timeout=90, limits=limits)
        await stack.enter_async_context(people)
        await stack.enter_async_context(http)
        farm = Farm(port, token, people, http)
        if way == "many":
            picked = await by_many(farm, count, given["hands"])
        elif way == "agent":
            picked = await by_agent(farm, count, folder)
        elif way == "worker":
            picked = await by_worker(farm, count, folder)
        else:
            at_once = range(given.get("at_once", 1))
            for each in await asyncio.gather(*(by_hand(farm, way, count, n) for n in at_once)):
                picked.told_all(each)
    return {
        "picked_ms": [1000 * each for each in picked.took],
        "submitting_ms": 1000 * sorted(picked.submitting)[len(picked.submitting) // 2],
        "told_s": sorted(picked.told)[len(picked.told) // 2] if picked.told else 0.0,
        "hints": picked.hints,
    }


if __name__ == "__main__":
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[1:] or cores)
    print(json.dumps(uvloop.run(main(json.loads(sys.argv[1])))), flush=True)
