"""How benchmarks/queues.py talks to the programs it measures, each in its own environment.

A driver is a script of this folder: a `Driver` and `main(driver)`. It is run by the Python of its
peer as `driver.py COMMAND URL [options]` and answers in JSON lines:

    setup                    make what the peer needs at the URL (a schema); once
    put --jobs N --batch B   put N jobs, B a call, measured, whenever told "go"
    fill --jobs N            put N jobs as fast as the peer can, unmeasured
    putter                   put a job when told "one", N when told "many N", and at a steady rate
                             when told "load RATE SECONDS"
    work                     say that it is ready, start at "go", and then answer "count" with how
                             many jobs were handled and when, "latencies" with the pickup latency
                             of each job that told when it was put
    claim --limit L          (Pollwise only) the time of single claims

A job's one argument is when it was put, on the monotonic clock, which all processes of a machine
share; 0 says nothing. This file imports nothing but the standard library: it runs everywhere.
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

#: What one put of `fill` holds.
FILL_BATCH = 1000
#: How long a putter under load waits between two rounds of puts, in seconds.
TICK = 0.01

#: The parent reads this; what a peer prints by itself goes elsewhere.
OUT = os.dup(1)
os.dup2(2, 1)

Handle = Callable[[float], None]


def say(**facts: Any) -> None:
    """One JSON line in one write, so that threads need no lock for it."""
    os.write(OUT, json.dumps(facts).encode() + b"\n")


def lines() -> Iterator[str]:
    """What the parent tells. Unbuffered: a lock on stdin would get in the way of the exit."""
    unread = b""
    while read := os.read(0, 4096):
        *whole, unread = (unread + read).split(b"\n")
        yield from (line.decode() for line in whole)


class Tally:
    """What the handlers did. Appending to a list is atomic: peers run handlers in threads."""

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
    """One peer at one server."""

    #: What runs its coroutines; peers that are made for uvloop replace it.
    run: Callable[[Coroutine[Any, Any, None]], None] = staticmethod(asyncio.run)

    def __init__(self, url: str, options: argparse.Namespace) -> None:
        self.url = url
        self.options = options
        self.concurrency: int = options.concurrency

    async def setup(self) -> None:
        """Make what the peer needs; nothing, unless it says otherwise."""
        return

    @abstractmethod
    async def connect(self) -> None:
        """Get ready to put."""

    @abstractmethod
    async def put(self, sent: list[float]) -> None:
        """Put one job, or many by the fastest way the peer has to put many."""

    async def fill(self, jobs: int) -> None:
        for done in range(0, jobs, FILL_BATCH):
            await self.put([0.0] * min(jobs - done, FILL_BATCH))

    @abstractmethod
    def work(self, handle: Handle) -> None:
        """Run a worker in this process; does not come back."""

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
    """Measured from "go", so that many writers can start together, or in turns; the first put is
    not counted.
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
    # The loop goes on meanwhile: what a peer sends in the background must not wait for us.
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
    """Put at a steady rate, what came due since the last tick in one call; behind, catch up."""
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
    """Work until told to quit, or until the parent is gone: at once, for nothing is at stake."""
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
    parser.add_argument("--limit", type=int, default=100, help="the most jobs of one claim")
    parser.add_argument("--times", type=int, default=50, help="how many claims")
    parser.add_argument("--way", default="", help="a setting that the driver knows")
    options = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR)
    driver = make(options.url, options)
    if options.command == "work":
        work(driver)
    else:
        driver.run(COMMANDS[options.command](driver, options))
