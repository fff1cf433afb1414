"""The clients: workers as coroutines, in a process and on a core of their own.

The bytes of requests are made in advance, and of an answer only the necessary part is read, so that
a request costs the client less than the server.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import uvloop  # noqa: E402

HOST = "127.0.0.1"
POLL = "/api/workers/poll"
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_NEXT = re.compile(rb'"next_poll_s":([\d.]+)')


def request(
    worker: tuple[str, str] | None, etag: str | None = None, *, close: bool = False, query: str = ""
) -> bytes:
    """The bytes of a poll."""
    path, lines = POLL, ["Host: controller"]
    if worker is not None:
        path += f"?worker_id={worker[0]}{query}"
        lines.append(f"Authorization: Bearer {worker[1]}")
    if etag is not None:
        lines.append(f"If-None-Match: {etag}")
    if close:
        lines.append("Connection: close")
    return "\r\n".join([f"GET {path} HTTP/1.1", *lines, "", ""]).encode()


class Asker(asyncio.Protocol):
    """A connection that sends a request, and the next one after each answer."""

    def __init__(self, requests: list[bytes], until: float, done: asyncio.Future[None]) -> None:
        self._requests = requests
        self._turn = random.randrange(len(requests))
        self._until = until
        self._done = done
        self._held = b""
        self.answered: Counter[bytes] = Counter()
        self.took: list[float] = []

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        self._turn = (self._turn + 1) % len(self._requests)
        self._began = time.perf_counter()
        self._transport.write(self._requests[self._turn])

    def data_received(self, data: bytes) -> None:
        self._held += data
        head, end, body = self._held.partition(b"\r\n\r\n")
        if not end:
            return
        length = _LENGTH.search(head)
        if length is not None and len(body) < int(length[1]):
            return
        now = time.perf_counter()
        self.answered[head[9:12]] += 1
        self.took.append(now - self._began)
        self._held = b""
        if now < self._until:
            self._ask()
        else:
            self._transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(None)


async def hammer(port: int, requests: list[bytes], seconds: float, connections: int) -> Any:
    """Send as many polls as possible in this time."""
    loop = asyncio.get_running_loop()
    until = time.perf_counter() + seconds
    askers: list[Asker] = []
    futures = []
    for _ in range(connections):
        future = loop.create_future()
        _, asker = await loop.create_connection(partial(Asker, requests, until, future), HOST, port)
        askers.append(asker)
        futures.append(future)
    began = time.perf_counter()
    await asyncio.gather(*futures)
    answered: Counter[bytes] = sum((each.answered for each in askers), Counter())
    return {
        "seconds": time.perf_counter() - began,
        "answered": {status.decode(): count for status, count in answered.items()},
        "p99_ms": p99([took for each in askers for took in each.took]),
    }


async def work(port: int, workers: list[tuple[str, str]], jobs: int) -> Any:
    """Workers that take a job and report the one before in the same request."""
    done = 0
    took: list[float] = []

    async def one(worker: tuple[str, str]) -> None:
        nonlocal done
        reader, writer = await asyncio.open_connection(HOST, port)
        head = f"POST {POLL} HTTP/1.1\r\nHost: controller\r\nAuthorization: Bearer {worker[1]}\r\n"
        finished: list[Any] = []
        while done < jobs:
            said = {"worker_id": worker[0], "running": [], "finished": finished}
            body = json.dumps(said).encode()
            began = time.perf_counter()
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            length = _LENGTH.search(await reader.readuntil(b"\r\n\r\n"))
            assert length is not None
            answer = json.loads(await reader.readexactly(int(length[1])))
            took.append(time.perf_counter() - began)
            done += len(finished)
            job = answer["job"]
            if job is None and not finished:
                await asyncio.sleep(0.01)
            result = {"ok": True}
            finished = [{"job_id": job["id"], "state": "done", "result": result}] if job else []
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*map(one, workers))
    return {"seconds": time.perf_counter() - began, "jobs": done, "p99_ms": p99(took)}


async def ask_once(port: int, data: bytes) -> tuple[float, bytes]:
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(data)
    answer = await reader.read()
    took = time.perf_counter() - began
    writer.close()
    return took, answer


async def fleet(
    port: int, workers: list[tuple[str, str]], seconds: float, pace: float | None, told: float
) -> Any:
    """Workers that poll at the suggested pace (or at this one), each poll on a new connection."""
    took: list[float] = []
    paces: list[float] = []
    answered: Counter[str] = Counter()
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    asking: set[asyncio.Task[None]] = set()

    async def poll(worker: tuple[str, str]) -> None:
        one, answer = await ask_once(port, request(worker, close=True))
        answered[answer[9:12].decode()] += 1
        took.append(one)
        found = _NEXT.search(answer)
        paces.append(float(found[1]) if found else told)
        later = loop.time() + (pace or paces[-1]) * random.uniform(0.9, 1.1)
        if later < until:
            loop.call_at(later, start, worker)

    def start(worker: tuple[str, str]) -> None:
        task = asyncio.ensure_future(poll(worker))
        asking.add(task)
        task.add_done_callback(asking.discard)

    for worker in workers:
        first = random.uniform(0, pace or told)
        if first < seconds:
            loop.call_later(first, start, worker)
    await asyncio.sleep(seconds)
    while asking:
        await asyncio.wait(list(asking), timeout=10)
    return {
        "polls": len(took),
        "p50_ms": percentile(took, 0.5),
        "p99_ms": p99(took),
        "pace": sorted(paces)[len(paces) // 2] if paces else 0.0,
        "answered": dict(answered),
    }


async def greet(port: int, workers: list[tuple[str, str]], at_a_time: int = 50) -> Any:
    """Each worker polls once."""
    turns = asyncio.Semaphore(at_a_time)
    answered: Counter[str] = Counter()

    async def one(worker: tuple[str, str]) -> None:
        async with turns:
            _, answer = await ask_once(port, request(worker, close=True))
            answered[answer[9:12].decode()] += 1
            found = _NEXT.search(answer)
            told.append(float(found[1]) if found else 0.0)

    told: list[float] = []
    await asyncio.gather(*map(one, workers))
    return {"answered": dict(answered), "told": max(told)}


async def put(port: int, token: str, size: int, jobs: int, at_a_time: int = 32) -> Any:
    """Put jobs in lists of this size, or one by one."""
    job = {
        "kind": "build",
        "payload": {"ref": "main", "commit": "0198c5b2f3a14e6f9d0a7c2b5e8f1d34"},
    }
    body = json.dumps(job if size == 1 else [job] * size)
    lines = ["POST /api/jobs HTTP/1.1", "Host: controller", "Connection: close"]
    lines += [f"Authorization: Bearer {token}", f"Content-Length: {len(body)}", "", body]
    asked = "\r\n".join(lines).encode()
    turns = asyncio.Semaphore(at_a_time if size == 1 else 2)
    took: list[float] = []

    async def one() -> None:
        async with turns:
            seconds, answer = await ask_once(port, asked)
            assert answer[9:12] == b"201", answer
            took.append(seconds)

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(jobs // size)))
    seconds = time.perf_counter() - began
    return {"jobs": len(took) * size, "seconds": seconds, "p99_ms": p99(took)}


def percentile(values: list[float], share: float) -> float:
    """A percentile, in milliseconds."""
    ordered = sorted(values)
    return 1000 * ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


def p99(values: list[float]) -> float:
    return percentile(values, 0.99)


async def main(given: dict[str, Any]) -> Any:
    port = given["port"]
    workers: list[tuple[str, str]] = []
    if given.get("workers"):
        workers = [tuple(each) for each in json.loads(Path(given["workers"]).read_text())]
        workers = workers[given.get("skip", 0) :][: given.get("count", len(workers))]
    if given["do"] == "hammer":
        seen = None
        if given.get("unchanged"):
            _, answer = await ask_once(port, request(workers[0], close=True))
            found = re.search(rb"etag: (\S+)", answer, re.IGNORECASE)
            assert found is not None
            seen = found[1].decode()
        requests = [request(each, seen) for each in workers] or [request(None)]
        return await hammer(port, requests, given["seconds"], given["connections"])
    if given["do"] == "put":
        return await put(port, given["token"], given["size"], given["jobs"])
    if given["do"] == "work":
        return await work(port, workers, given["jobs"])
    if given["do"] == "fleet":
        return await fleet(port, workers, given["seconds"], given.get("pace"), given["told"])
    return await greet(port, workers)


if __name__ == "__main__":
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[1:] or cores)
    print(json.dumps(uvloop.run(main(json.loads(sys.argv[1])))), flush=True)
