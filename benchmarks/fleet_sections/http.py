"""HTTP probes a second through a fleet, against a bare loop of the same client library.

A server in its own process answers every request with the same kilobyte. Two clients take turns,
with equally many requests at a time: a fleet whose targets are always due, where each answer is
read, bounded, hashed and compared, and the next poll is planned; and workers that only `await
client.get(url)`. The turns alternate, so that both meet the same state of the machine.

The bare loop runs in three ways, because httpx's pool gets slow with the number of connections it
holds: with one `httpx.AsyncClient` and its defaults; with a client for each worker, with one
connection each; and with the connections of the probes, which shows what the fleet's own work
costs. The goal is a ratio to the faster one of httpx's two; the third has no goal.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import Any

from benchmarks.common import Child, Goal, Plain, heading, median, number, table

CONCURRENCY = 64
TARGETS = 1000
WARM_UP = 1.0
BODY = b"x" * 1024
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 1024\r\ncontent-type: text/plain\r\n\r\n" + BODY

#: What is measured, and its name in the results.
WAYS = {
    "shared": "httpx, one client by default",
    "own": "httpx, a client for each worker",
    "carrier": "the probes' connections, bare",
    "fleet": "the fleet",
    "news": "the fleet, 304: unchanged",
}
BARE = ("shared", "own")


def measure(quick: bool) -> tuple[Plain, list[Goal]]:
    heading(f"HTTP probes a second, {CONCURRENCY} under way, one process, a local server")
    seconds, rounds = (3.0, 3) if quick else (8.0, 7)
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    works: dict[str, list[float]] = {way: [] for way in WAYS}
    # As a module: as a script, this file would hide the http of the standard library.
    script = [sys.executable, "-m", "benchmarks.fleet_sections.http"]
    with Child([*script, "serve"]) as server:
        url = f"http://127.0.0.1:{server.hear()['port']}/"
        for _ in range(rounds):
            for way in WAYS:
                with Child([*script, way, url, str(seconds)]) as child:
                    said = child.hear(timeout=seconds + 60)
                rates[way].append(said["polls"] / said["seconds"])
                works[way].append(said["cpu"] / said["polls"] * 1e6)
    fastest = max(BARE, key=lambda way: median(rates[way]))
    base = median(rates[fastest])
    table(
        ("", "polls/s", "least", "most", "CPU µs a poll", "of httpx's faster"),
        [
            (
                name,
                number(median(rates[way])),
                number(min(rates[way])),
                number(max(rates[way])),
                number(median(works[way])),
                f"{median(rates[way]) / base:.0%}",
            )
            for way, name in WAYS.items()
        ],
    )
    print(f"\nhttpx {version('httpx')}; {rounds} turns each, {seconds:g} s a turn.")
    # In turns, because other programs may use the machine.
    shares = [ours / theirs for ours, theirs in zip(rates["fleet"], rates[fastest], strict=True)]
    goal = Goal(
        "HTTP probes/s of the fleet ÷ bare httpx loop",
        statistics.median(shares),
        0.8,
        "×",
        least=True,
    )
    return {"http": {"rates": rates, "cpu_us": works, "shares": shares}}, [goal]


# The processes


class Server(asyncio.Protocol):
    """Answers each request at once; requests have no bodies."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.unread = b""

    def data_received(self, data: bytes) -> None:
        self.unread += data
        *requests, self.unread = self.unread.split(b"\r\n\r\n")
        for request in requests:
            if b"if-none-match" in request.lower():
                self.transport.write(b'HTTP/1.1 304 Not Modified\r\netag: "1"\r\n\r\n')
            elif b"GET /news" in request:
                self.transport.write(ANSWER.replace(b"\r\n\r\n", b'\r\netag: "1"\r\n\r\n', 1))
            else:
                self.transport.write(ANSWER)


async def serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Server, "127.0.0.1", 0)
    say({"port": server.sockets[0].getsockname()[1]})
    await server.serve_forever()


async def bare(url: str, seconds: float, clients: int) -> None:
    import httpx

    count = 0

    async def work(client: httpx.AsyncClient) -> None:
        nonlocal count
        while True:
            response = await client.get(url)
            response.raise_for_status()
            count += 1

    async with AsyncExitStack() as stack:
        crew = [await stack.enter_async_context(httpx.AsyncClient()) for _ in range(clients)]
        workers = [asyncio.ensure_future(work(crew[n % clients])) for n in range(CONCURRENCY)]
        await timed(lambda: count, seconds)
        for each in workers:
            each.cancel()
        await asyncio.wait(workers)


async def carried(url: str, seconds: float) -> None:
    import httpx

    from pollwise.fleet.probes.http.carrier import Carrier

    count = 0
    carrier = Carrier(httpx.create_ssl_context)

    async def work() -> None:
        nonlocal count
        while True:
            response = await carrier.handle_async_request(httpx.Request("GET", url))
            await response.aread()
            await response.aclose()
            assert response.status_code == 200
            count += 1

    workers = [asyncio.ensure_future(work()) for _ in range(CONCURRENCY)]
    await timed(lambda: count, seconds)
    for each in workers:
        each.cancel()
    await asyncio.wait(workers)
    await carrier.aclose()


async def fleet(url: str, seconds: float) -> None:
    from pollwise.fleet import Fleet, FleetRunOptions, Target
    from pollwise.runtime.events import Events, TargetFailed

    failures: list[TargetFailed] = []
    events = Events(quiet=True)
    events.subscribe(failures.append, TargetFailed)
    options = FleetRunOptions(concurrency=CONCURRENCY, per_host=None, signals=False)
    polls = Fleet(options, events=events)
    polls.add(
        *(
            # Due again before all others had a turn, so that all slots are always taken.
            Target(f"page {n}", "http", "10ms", options={"url": f"{url}?page={n}"})
            for n in range(TARGETS)
        )
    )
    running = asyncio.ensure_future(polls.run())
    await timed(lambda: polls.state(targets=False).polls, seconds)
    polls.stop()
    await running
    assert not failures, failures[0]  # a failure is cheaper than an answer


async def timed(count: Any, seconds: float) -> None:
    await asyncio.sleep(WARM_UP)
    before, cpu, began = count(), time.process_time(), time.perf_counter()
    await asyncio.sleep(seconds)
    after, took = count(), time.perf_counter() - began
    say({"polls": after - before, "seconds": took, "cpu": time.process_time() - cpu})


def say(facts: Plain) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    what, *arguments = sys.argv[1:] or [""]
    if what == "serve":
        asyncio.run(serve())
    elif what == "carrier":
        asyncio.run(carried(arguments[0], float(arguments[1])))
    elif what in BARE:
        clients = CONCURRENCY if what == "own" else 1
        asyncio.run(bare(arguments[0], float(arguments[1]), clients))
    elif what in ("fleet", "news"):
        path = "news" if what == "news" else ""
        asyncio.run(fleet(arguments[0] + path, float(arguments[1])))
    else:
        measure(quick=True)
