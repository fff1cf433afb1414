"""How benchmarks/queues.py communicates with the measured programs, each in its own environment.

A driver is a script in this folder: a `Driver` and `main(driver)`. The Python of its peer runs it
as `driver.py COMMAND URL [options]`, and it answers in JSON lines:

    setup                    create what the peer needs at the URL (a schema); once
    put --jobs N --batch B   put N jobs, B per call, measured, on each "go"
    fill --jobs N            put N jobs as fast as the peer can, not measured
    putter                   put a job on "one", N jobs on "many N", and at a steady rate
                             on "load RATE SECONDS"
    work                     print that it is ready, start on "go", and then answer "count" with how
                             many jobs were handled and when, "latencies" with the pickup latency
                             of each job that carries the time of its put
    claim --limit L          (Pollwise only) the time of single claims

The only argument of a job is the time of its put, on the monotonic clock, which all processes of a
machine share; 0 means none. This file imports only the standard library, so it runs everywhere.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

#: The number of jobs in one put of `fill`.
FILL_BATCH = 1000
#: How long a putter under load waits between two puts, in seconds.
TICK = 0.01

#: The parent reads this; what a peer itself prints goes elsewhere.
OUT = os.dup(1)
os.dup2(2, 1)

Handle = Callable[[float], None]


def say(**facts: Any) -> None:
    """Print one JSON line in one write, so that threads need no lock."""
    os.write(OUT, json.dumps(facts).encode() + b"\n")


def lines() -> Iterator[str]:
    """The commands of the parent. Unbuffered: a lock on stdin would delay the exit."""
    unread = b""
    while read := os.read(0, 4096):
        *whole, unread = (unread + read).split(b"\n")
        yield from (line.decode() for line in whole)


class Tally:
    """Counts what the handlers did. Appending to a list is atomic, for peers that use threads."""

    def __init__(self) -> None:
        self.moments: list[float] = []
        self.latencies: list[float] = []

    def handle(self, sent: float) -> None:
        now = time.monotonic()
        self.moments.append(now)
        if sent:
            self.latencies.append(now - sent)

    def answer(self, line: str) -> None:
        if line == "count":
            seen = self.moments
            ends = {"first": seen[0], "last": max(seen[-50:])} if seen else {}
            say(handled=len(seen), **ends)
        elif line == "latencies":
            latencies, self.latencies = self.latencies, []
            say(latencies=latencies)
        elif line == "forget":
            self.moments, self.latencies = [], []
            say(forgotten=True)
        else:
            say(error=f"unknown line {line!r}")


class Driver(ABC):
    """One peer with one server."""

    #: Runs its coroutines; peers that are made for uvloop replace it.
    run: Callable[[Coroutine[Any, Any, None]], None] = staticmethod(asyncio.run)

    def __init__(self, url: str, options: argparse.Namespace) -> None:
        self.url = url
        self.options = options
        self.concurrency: int = options.concurrency

    async def setup(self) -> None:
        """Create what the peer needs; by default nothing."""
        return

    @abstractmethod
    async def connect(self) -> None:
        """Get ready to put."""

    @abstractmethod
    async def put(self, sent: list[float]) -> None:
        """Put one job, or many in the fastest way that the peer has."""

    async def fill(self, jobs: int) -> None:
        for done in range(0, jobs, FILL_BATCH):
            await self.put([0.0] * min(jobs - done, FILL_BATCH))

    @abstractmethod
    def work(self, handle: Handle) -> None:
        """Run a worker in this process; never returns."""

    async def claim(self, limit: int, times: int) -> list[float]:
        raise NotImplementedError


async def setup(driver: Driver, _: argparse.Namespace) -> None:
    await driver.setup()
    say(done=True)


async def fill(driver: Driver, options: argparse.Namespace) -> None:
    await driver.connect()
    await driver.fill(options.jobs)
    say(done=True)


async def put(driver: Driver, options: argparse.Namespace) -> None:
    """Put, measured from "go", so that several writers can start together, or in turns. The first
    put does not count.
    """
    await driver.connect()
    await driver.put([0.0])
    say(ready=True)
    heard = lines()
    while await asyncio.to_thread(next, heard, "quit") == "go":
        began = time.monotonic()
        for _ in range(options.jobs // options.batch):
            await driver.put([0.0] * options.batch)
        say(began=began, ended=time.monotonic(), jobs=options.jobs)


async def putter(driver: Driver, _: argparse.Namespace) -> None:
    await driver.connect()
    say(ready=True)
    heard = lines()
    # The loop runs meanwhile: work that a peer does in the background must not wait for us.
    while line := await asyncio.to_thread(next, heard, "quit"):
        command, *numbers = line.split()
        if command == "one":
            sent = time.monotonic()
            await driver.put([sent])
            say(sent=sent, took=time.monotonic() - sent)
        elif command == "many":
            await driver.fill(int(numbers[0]))
            say(put=int(numbers[0]))
        elif command == "quit":
            os._exit(0)
        else:
            rate, seconds = map(float, numbers)
            say(put=await load(driver, rate, seconds))


async def load(driver: Driver, rate: float, seconds: float) -> int:
    """Put at a steady rate: the jobs that fell due since the last tick in one call."""
    began, done = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        due = int(passed * rate) - done
        if due:
            now = time.monotonic()
            await driver.put([now] * min(due, FILL_BATCH))
            done += min(due, FILL_BATCH)
        await asyncio.sleep(max(TICK - (time.monotonic() - began - passed), 0.0))
    return done


async def claim(driver: Driver, options: argparse.Namespace) -> None:
    await driver.connect()
    say(seconds=await driver.claim(options.limit, options.times))


def work(driver: Driver) -> None:
    """Work until the parent sends quit or has ended; then exit at once, with no clean-up."""
    tally = Tally()
    heard = lines()
    say(ready=True)
    if next(heard, "quit") != "go":
        return

    def listen() -> None:
        for line in heard:
            if line == "quit":
                break
            tally.answer(line)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    driver.work(tally.handle)


COMMANDS = {"setup": setup, "fill": fill, "put": put, "putter": putter, "claim": claim}


def main(make: Callable[[str, argparse.Namespace], Driver]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=[*COMMANDS, "work"])
    parser.add_argument("url")
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--concurrency", type=int, default=10)
    parser.add_argument("--limit", type=int, default=100, help="the maximum of jobs in a claim")
    parser.add_argument("--times", type=int, default=50, help="how many claims")
    parser.add_argument("--way", default="", help="a setting that the driver knows")
    options = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR)
    driver = make(options.url, options)
    if options.command == "work":
        work(driver)
    else:
        driver.run(COMMANDS[options.command](driver, options))
